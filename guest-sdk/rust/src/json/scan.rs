//! Scanner for the tokens of a JSON document, independent of the types that are built.

use std::borrow::Cow;

use serde::de::{Error as _, Expected, Unexpected};

use super::JsonError;

/// Maximum nesting of arrays and objects. The stack of a guest is small.
const MAX_DEPTH: u32 = 128;

/// Scanner with its position in `text`. The byte `at` is always a character boundary.
pub(crate) struct Reader<'de> {
    text: &'de str,
    pub(super) at: usize,
    depth: u32,
}

/// Number in its written form.
pub(super) struct Number<'de> {
    pub(super) text: &'de str,
    pub(super) whole: bool,
}

impl<'de> Reader<'de> {
    pub(crate) fn new(text: &'de str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// Fails unless only whitespace is left.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        match self.next_token() {
            None => Ok(()),
            Some(_) => Err(self.syntax("the end was expected")),
        }
    }

    pub(super) fn syntax(&self, what: &str) -> JsonError {
        JsonError::new(format!("not JSON at byte {}: {what}", self.at))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips whitespace and returns the first byte of the next token.
    pub(super) fn next_token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    pub(super) fn take(&mut self, byte: u8) -> bool {
        let there = self.next_token() == Some(byte);
        self.at += usize::from(there);
        there
    }

    pub(super) fn word(&mut self, word: &str) -> Result<(), JsonError> {
        match self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            true => {
                self.at += word.len();
                Ok(())
            }
            false => Err(self.syntax("a value was expected")),
        }
    }

    /// Skips digits. Returns true if there were any.
    fn digits(&mut self) -> bool {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at > from
    }

    pub(super) fn number(&mut self) -> Result<Number<'de>, JsonError> {
        let from = self.at;
        let mut whole = true;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else if !self.digits() {
            return Err(self.syntax("a value was expected"));
        }
        if self.peek() == Some(b'.') {
            whole = false;
            self.at += 1;
            if !self.digits() {
                return Err(self.syntax("a digit was expected"));
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if !self.digits() {
                return Err(self.syntax("a digit was expected"));
            }
        }
        let text = self.text.get(from..self.at).unwrap_or_default();
        Ok(Number { text, whole })
    }

    /// Reads a string, from the opening quote to the closing quote.
    pub(super) fn string(&mut self) -> Result<Cow<'de, str>, JsonError> {
        self.at += 1;
        let mut built: Option<String> = None;
        let mut from = self.at;
        loop {
            match self.peek() {
                Some(end @ (b'"' | b'\\')) => {
                    let plain = self.text.get(from..self.at).unwrap_or_default();
                    self.at += 1;
                    if end == b'"' {
                        return Ok(match built {
                            None => Cow::Borrowed(plain),
                            Some(built) => Cow::Owned(built + plain),
                        });
                    }
                    let built = built.get_or_insert_default();
                    built.push_str(plain);
                    built.push(self.escape()?);
                    from = self.at;
                }
                None | Some(0..=0x1f) => return Err(self.syntax("a text that does not end")),
                Some(_) => self.at += 1,
            }
        }
    }

    /// Reads an escape after a backslash.
    fn escape(&mut self) -> Result<char, JsonError> {
        let byte = self.peek();
        self.at += 1;
        Ok(match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.code_unit()?;
                let code = match unit {
                    0xd800..=0xdbff => {
                        self.word("\\u")?;
                        match self.code_unit()? {
                            low @ 0xdc00..=0xdfff => 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00),
                            _ => return Err(self.syntax("half of a character")),
                        }
                    }
                    unit => unit,
                };
                char::from_u32(code).ok_or_else(|| self.syntax("half of a character"))?
            }
            _ => {
                self.at -= 1;
                return Err(self.syntax("no such escape"));
            }
        })
    }

    fn code_unit(&mut self) -> Result<u32, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.syntax("four hexadecimal digits were expected"))?;
            self.at += 1;
        }
        Ok(unit)
    }

    /// Enters an array or an object, reads the items, and leaves after the closing bracket.
    pub(super) fn nested<T>(
        &mut self,
        close: u8,
        read: impl FnOnce(&mut Items<'_, 'de>) -> Result<T, JsonError>,
    ) -> Result<T, JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(self.syntax("too deep"));
        }
        self.depth += 1;
        self.at += 1;
        let mut items = Items { reader: self, close, index: 0, key: Cow::Borrowed("") };
        let value = read(&mut items)?;
        if items.more()? {
            return Err(JsonError::new(format!("{} items are too many", items.index + 1)));
        }
        self.depth -= 1;
        self.at += 1;
        Ok(value)
    }

    /// Skips a value without building it.
    pub(super) fn skip(&mut self) -> Result<(), JsonError> {
        match self.next_token() {
            Some(b'"') => self.string().map(|_text| ()),
            Some(b'[') => self.nested(b']', |items| {
                while items.more()? {
                    items.reader.skip()?;
                    items.index += 1;
                }
                Ok(())
            }),
            Some(b'{') => self.nested(b'}', |items| {
                while items.next_name()? {
                    items.reader.skip()?;
                }
                Ok(())
            }),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => self.number().map(|_number| ()),
        }
    }

    /// Returns the error for a value of the wrong type, or the syntax error of the value, if any.
    pub(super) fn another(&mut self, expected: &dyn Expected) -> JsonError {
        let text;
        let found = match self.next_token() {
            Some(b'"') => match self.string() {
                Ok(found) => {
                    text = found;
                    Unexpected::Str(&text)
                }
                Err(error) => return error,
            },
            Some(b'[') => Unexpected::Seq,
            Some(b'{') => Unexpected::Map,
            Some(b't') => Unexpected::Bool(true),
            Some(b'f') => Unexpected::Bool(false),
            Some(b'n') => Unexpected::Unit,
            _ => match self.number() {
                Ok(Number { text, whole: true }) => match text.parse() {
                    Ok(number) => Unexpected::Signed(number),
                    Err(_) => Unexpected::Other("a number of that size"),
                },
                Ok(_) => Unexpected::Float(0.0),
                Err(error) => return error,
            },
        };
        JsonError::invalid_type(found, expected)
    }

    /// Returns true if the next value is a number.
    pub(super) fn at_number(&mut self) -> bool {
        matches!(self.next_token(), Some(b'-' | b'0'..=b'9'))
    }
}

/// Items of an array or of an object.
pub(super) struct Items<'a, 'de> {
    pub(super) reader: &'a mut Reader<'de>,
    close: u8,
    /// Index of the next item.
    pub(super) index: usize,
    /// Key of the last item of an object.
    pub(super) key: Cow<'de, str>,
}

impl<'de> Items<'_, 'de> {
    /// Moves to the next item, after the comma. Returns false before the closing bracket.
    pub(super) fn more(&mut self) -> Result<bool, JsonError> {
        if self.reader.next_token() == Some(self.close) {
            return Ok(false);
        }
        if self.index > 0 && !self.reader.take(b',') {
            return Err(self.reader.syntax("a comma or the end of the list was expected"));
        }
        match self.reader.next_token() {
            Some(byte) if byte != self.close => Ok(true),
            _ => Err(self.reader.syntax("a value was expected")),
        }
    }

    /// Reads the next name and its colon.
    pub(super) fn next_name(&mut self) -> Result<bool, JsonError> {
        if !self.more()? {
            return Ok(false);
        }
        if self.reader.next_token() != Some(b'"') {
            return Err(self.reader.syntax("a name in quotes was expected"));
        }
        self.key = self.reader.string()?;
        if !self.reader.take(b':') {
            return Err(self.reader.syntax("a colon was expected"));
        }
        self.index += 1;
        Ok(true)
    }
}
