//! A `RunAgentInput` in pieces, while its body arrives.
//!
//! A client sends the whole history of a thread with each run, and pictures as text within it. [`Splitter`] cuts the body at its
//! top level, so that one message is in memory at a time, and passes on long data of a part as it comes. It looks at the structure
//! of the outer object and of `messages`; each piece is JSON that the reader parses and judges.

use std::mem;

use crate::http::{Problem, ProblemCode};

/// Data of a part that is longer than this is passed on while it arrives: a picture, and no icon.
pub(crate) const DATA_FROM: usize = 64 * 1024;
/// Members of a part that have data: `value` of a source, `data` and `url` of a `binary` part.
const DATA_MEMBERS: [&[u8]; 3] = [b"value", b"data", b"url"];
/// Stands for data that was passed on, with its number behind it.
pub(crate) const PASSED: &str = "agent-host:passed:";
/// Longest name of a member of the outer object.
const MAX_NAME: usize = 256;

/// A piece of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A member of the outer object besides `messages`, and its JSON.
    Member(String, Vec<u8>),
    /// The list of messages begins.
    Messages,
    /// The JSON of a message. Data that was passed on is [`PASSED`] and its number.
    Message(Vec<u8>),
    /// The next characters of data. Escapes of JSON are in them.
    Data(Vec<u8>),
    /// The data is whole.
    DataEnd,
}

/// The place in the structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the outer object.
    Start,
    /// Before a name, or the end of the object where none has come.
    Name {
        first: bool,
    },
    InName {
        escaped: bool,
    },
    Colon,
    /// Before the value of a member.
    Value,
    /// Within a value, or a message.
    Within,
    /// Behind a value.
    Behind,
    /// Before a message, or the end of the list where none has come.
    Message {
        first: bool,
    },
    BehindMessage,
    End,
}

/// Cuts a body into pieces.
#[derive(Debug)]
pub(crate) struct Splitter {
    place: Place,
    /// Of a byte order mark at the beginning, so many bytes have come.
    mark: usize,
    name: Vec<u8>,
    in_messages: bool,
    value: Vec<u8>,
    scan: Scan,
    /// The number of the next data that is passed on.
    next: usize,
    /// Bytes so far, for error messages.
    at: usize,
}

/// The state within a value.
#[derive(Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Start of the present string in the value.
    start: usize,
    /// The last string, which is a name if a colon follows.
    last: Option<(usize, usize)>,
    /// True if the next string is the value of one of [`DATA_MEMBERS`].
    is_data: bool,
    /// True while the present string is passed on.
    passes: bool,
    /// The value in front of it, meanwhile.
    before: Vec<u8>,
}

impl Splitter {
    pub(crate) fn new() -> Self {
        Self {
            place: Place::Start,
            mark: 0,
            name: Vec::new(),
            in_messages: false,
            value: Vec::new(),
            scan: Scan::default(),
            next: 0,
            at: 0,
        }
    }

    /// Takes the next bytes of the body; adds the pieces that are whole to `out`.
    ///
    /// # Errors
    /// `invalid_json` for a body that is no object, or has more than an object.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<Piece>) -> Result<(), Problem> {
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            if self.place == Place::Within {
                let taken = self.within(rest, out)?;
                self.at += taken;
                rest = rest.get(taken..).unwrap_or_default();
                continue;
            }
            self.outside_strings(byte, out)?;
            // The first byte of a value is part of it.
            if self.place != Place::Within {
                self.at += 1;
                rest = behind;
            }
        }
        if self.scan.passes && !self.value.is_empty() {
            self.pass(out);
        }
        Ok(())
    }

    /// The body is over.
    ///
    /// # Errors
    /// `invalid_json` where it ends too early.
    pub(crate) fn finish(&self) -> Result<(), Problem> {
        match self.place {
            Place::End => Ok(()),
            _ => Err(self.malformed("it ends before its object does")),
        }
    }

    fn outside_strings(&mut self, byte: u8, out: &mut Vec<Piece>) -> Result<(), Problem> {
        const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
        if let Place::InName { escaped } = self.place {
            return self.in_name(byte, escaped);
        }
        if self.place == Place::Start && MARK.get(self.mark) == Some(&byte) {
            self.mark += 1;
            return Ok(());
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return Ok(());
        }
        self.place = match (self.place, byte) {
            (Place::Start, b'{') => Place::Name { first: true },
            (Place::Start, b'[' | b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n') => {
                return Err(Problem::invalid("body", "the body must be a JSON object"));
            }
            (Place::Name { .. }, b'"') => {
                self.name.clear();
                Place::InName { escaped: false }
            }
            (Place::Name { first: true }, b'}') | (Place::Behind, b'}') => Place::End,
            (Place::Colon, b':') => Place::Value,
            (Place::Value, b'[') if self.name == b"messages" => {
                out.push(Piece::Messages);
                Place::Message { first: true }
            }
            (Place::Value, _) => self.begin(false),
            (Place::Behind, b',') => Place::Name { first: false },
            (Place::Message { first: true }, b']') | (Place::BehindMessage, b']') => Place::Behind,
            (Place::Message { .. }, _) => self.begin(true),
            (Place::BehindMessage, b',') => Place::Message { first: false },
            (Place::End, _) => return Err(self.malformed("something follows its object")),
            _ => return Err(self.malformed(&format!("`{}` is not expected", char::from(byte).escape_default()))),
        };
        Ok(())
    }

    fn in_name(&mut self, byte: u8, escaped: bool) -> Result<(), Problem> {
        if byte == b'"' && !escaped {
            self.place = Place::Colon;
            return Ok(());
        }
        self.name.push(byte);
        if self.name.len() > MAX_NAME {
            return Err(self.malformed("the name of a member is too long"));
        }
        self.place = Place::InName { escaped: byte == b'\\' && !escaped };
        Ok(())
    }

    fn begin(&mut self, in_messages: bool) -> Place {
        self.in_messages = in_messages;
        self.value.clear();
        self.scan = Scan::default();
        Place::Within
    }

    /// Takes bytes of a value up to its end; gives their number.
    fn within(&mut self, bytes: &[u8], out: &mut Vec<Piece>) -> Result<usize, Problem> {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.scan.in_string {
                // Most bytes are within strings, and are taken together.
                let rest = bytes.get(taken..).unwrap_or_default();
                let plain = if self.scan.escaped {
                    0
                } else {
                    rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(rest.len())
                };
                if plain > 0 {
                    self.value.extend_from_slice(rest.get(..plain).unwrap_or_default());
                    taken += plain;
                    self.maybe_pass(out);
                    continue;
                }
                self.string_byte(byte, out);
                taken += 1;
                if self.is_over() {
                    return self.end(out).map(|()| taken);
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.value.push(byte);
                    self.scan.in_string = true;
                    self.scan.start = self.value.len();
                }
                b'{' | b'[' => {
                    self.value.push(byte);
                    (self.scan.depth, self.scan.is_data) = (self.scan.depth + 1, false);
                }
                b'}' | b']' if self.scan.depth > 0 => {
                    self.value.push(byte);
                    self.scan.depth -= 1;
                    if self.scan.depth == 0 {
                        taken += 1;
                        return self.end(out).map(|()| taken);
                    }
                }
                // A number or a literal ends in front of what follows it.
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' if self.scan.depth == 0 => {
                    return self.end(out).map(|()| taken);
                }
                b':' => {
                    self.value.push(byte);
                    let name = self.scan.last.take().and_then(|(start, end)| self.value.get(start..end));
                    self.scan.is_data = self.in_messages && name.is_some_and(|name| DATA_MEMBERS.contains(&name));
                }
                byte => {
                    self.value.push(byte);
                    if byte == b',' {
                        self.scan.is_data = false;
                    }
                }
            }
            taken += 1;
        }
        Ok(taken)
    }

    fn string_byte(&mut self, byte: u8, out: &mut Vec<Piece>) {
        let scan = &mut self.scan;
        if scan.escaped {
            scan.escaped = false;
        } else if byte == b'\\' {
            scan.escaped = true;
        } else {
            // Its end.
            scan.in_string = false;
            if mem::take(&mut scan.passes) {
                if !self.value.is_empty() {
                    self.pass(out);
                }
                out.push(Piece::DataEnd);
                self.value = mem::take(&mut self.scan.before);
                self.value.extend_from_slice(format!("{PASSED}{}\"", self.next).as_bytes());
                self.next += 1;
                return;
            }
            scan.last = Some((scan.start, self.value.len()));
        }
        self.value.push(byte);
    }

    /// Begins to pass on a string that has become long.
    fn maybe_pass(&mut self, out: &mut Vec<Piece>) {
        let scan = &mut self.scan;
        if scan.passes || !scan.is_data || self.value.len() - scan.start < DATA_FROM {
            return;
        }
        scan.passes = true;
        let data = self.value.split_off(scan.start);
        scan.before = mem::replace(&mut self.value, data);
        self.pass(out);
    }

    fn pass(&mut self, out: &mut Vec<Piece>) {
        out.push(Piece::Data(mem::take(&mut self.value)));
    }

    /// True if the value was a string that is over.
    fn is_over(&self) -> bool {
        !self.scan.in_string && self.scan.depth == 0
    }

    fn end(&mut self, out: &mut Vec<Piece>) -> Result<(), Problem> {
        let value = mem::take(&mut self.value);
        if value.is_empty() {
            return Err(self.malformed("a value is missing"));
        }
        if self.in_messages {
            out.push(Piece::Message(value));
            self.place = Place::BehindMessage;
            return Ok(());
        }
        let quoted = [b"\"", self.name.as_slice(), b"\""].concat();
        let name: String = serde_json::from_slice(&quoted).map_err(|_| self.malformed("the name of a member is no text"))?;
        out.push(Piece::Member(name, value));
        self.place = Place::Behind;
        Ok(())
    }

    fn malformed(&self, why: &str) -> Problem {
        Problem::new(ProblemCode::InvalidJson, format!("the body is not JSON: {why}, at byte {}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The pieces of a body that comes in parts of so many bytes.
    fn split(body: &[u8], each: usize) -> Result<Vec<Piece>, Problem> {
        let (mut splitter, mut pieces) = (Splitter::new(), Vec::new());
        for part in body.chunks(each.max(1)) {
            splitter.push(part, &mut pieces)?;
        }
        splitter.finish()?;
        Ok(pieces)
    }

    /// The value that the pieces are, with the data that was passed on in its place.
    fn joined(pieces: Vec<Piece>) -> Value {
        let (mut whole, mut data, mut present) = (json!({}), Vec::<String>::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Member(name, value) => whole[name] = serde_json::from_slice(&value).unwrap(),
                Piece::Messages => whole["messages"] = json!([]),
                Piece::Data(bytes) => present.extend(bytes),
                Piece::DataEnd => {
                    let quoted = [b"\"", mem::take(&mut present).as_slice(), b"\""].concat();
                    data.push(serde_json::from_slice(&quoted).unwrap());
                }
                Piece::Message(bytes) => {
                    let mut text = String::from_utf8(bytes).unwrap();
                    for (number, data) in data.iter().enumerate() {
                        text = text.replace(&format!("\"{PASSED}{number}\""), &json!(data).to_string());
                    }
                    whole["messages"].as_array_mut().unwrap().push(serde_json::from_str(&text).unwrap());
                }
            }
        }
        whole
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z\"\\\\{}\\[\\],:é🙂 \n]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\\\ ]{0,5}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// However a body is cut, its pieces are what it says.
        #[test]
        fn pieces_are_the_body(
            members in prop::collection::btree_map("[a-z\"\\\\ ]{0,6}", json_value(), 0..5),
            messages in prop::collection::vec(json_value(), 0..4),
            pretty in any::<bool>(),
            each in 1_usize..40,
        ) {
            let mut whole: Value = members.into_iter().filter(|(name, _)| name != "messages").collect();
            whole["messages"] = messages.into();
            let body = if pretty { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) }.unwrap();
            prop_assert_eq!(joined(split(body.as_bytes(), each).unwrap()), whole);
        }

        /// Bytes of any kind are refused or split, and nothing else.
        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200), each in 1_usize..20) {
            let _ = split(&body, each);
        }
    }

    #[test]
    fn long_data_is_passed_on_and_long_texts_are_not() {
        let long = "QUJD/".repeat(DATA_FROM / 4);
        let part = |name: &str| json!({ "type": "image", "source": { "type": "data", name: long, "mimeType": "image/png" } });
        let message = |content: Value| json!({ "id": "m", "role": "user", "content": content });
        let whole = json!({
            "runId": "r", "state": { "value": long },
            "messages": [message(json!([part("value"), { "type": "text", "text": long }, part("data")])), message(json!(long))],
        });
        for body in [whole.to_string(), whole.to_string().replace('/', "\\/"), format!("\u{feff}{whole}")] {
            for each in [1_000_003, 4_096, 7] {
                let pieces = split(body.as_bytes(), each).unwrap();
                let passed = pieces.iter().filter(|piece| **piece == Piece::DataEnd).count();
                assert_eq!(passed, 2);
                let first =
                    pieces.iter().find_map(|piece| if let Piece::Message(json) = piece { Some(json.len()) } else { None });
                assert!(first.unwrap() < 2 * long.len(), "the text alone is in memory");
                assert_eq!(joined(pieces), whole);
            }
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in [
            "",
            " ",
            "[]",
            "\"x\"",
            "1",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "{,}",
            "{\"a\" 1}",
            "{\"a\":1 2}",
            "{\"a\":1} x",
            "{} {}",
            "{\"messages\":[,]}",
            "{\"messages\":[1,]}",
            "{\"messages\":[1 2]}",
            "{\"messages\":[1}",
            "{\"messages\":[{\"a\":\"",
            "{a:1}",
            "\u{feff}\u{feff}{}",
            "{\"\\u00\":1}",
        ] {
            let error = split(body.as_bytes(), 3).expect_err(body);
            assert!(matches!(error.code(), ProblemCode::InvalidJson | ProblemCode::InvalidArgument), "{body}: {error:?}");
        }
    }
}
