//! Server-sent events as the HTML standard parses them: any line ending, comments, several `data` lines, characters that
//! are split between two reads.

use super::response::Parts;
use crate::contract::ErrorCode;
use crate::error::ApiError;

/// Maximum length of a line, and of the data of one event. Protects the memory of the runner from a sender without line
/// ends.
pub const LINE_BYTES: usize = 1024 * 1024;

/// Server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Name of the event; `message` by default.
    pub event: String,
    /// `data` lines of the event, joined by line ends.
    pub data: String,
    /// Last id of the stream so far.
    pub id: Option<String>,
}

/// Events of a response. An error is the last item; an event that is incomplete at the end of the stream is dropped.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Debug)]
pub struct Events {
    bytes: Parts,
    parser: Parser,
}

impl Events {
    pub(super) fn new(bytes: Parts) -> Self {
        Self { bytes, parser: Parser::default() }
    }
}

impl Iterator for Events {
    type Item = Result<Event, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.parser.next_event() {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => {
                    self.bytes.stop();
                    self.parser = Parser::default();
                    return Some(Err(error));
                }
            }
            match self.bytes.next()? {
                Ok(part) => self.parser.lines.push(&part),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Splits bytes into lines that end with LF, CRLF or CR.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    bytes: Vec<u8>,
    /// Start of the next line in `bytes`.
    start: usize,
    /// End of the searched part of `bytes`.
    seen: usize,
    /// True if the last line ended with CR: a following LF belongs to this line end.
    after_cr: bool,
}

impl LineSplitter {
    pub(super) fn push(&mut self, part: &[u8]) {
        self.bytes.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(part);
    }

    /// Returns the next complete line, if any.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, ApiError> {
        if self.after_cr
            && let Some(next) = self.bytes.get(self.start)
        {
            self.after_cr = false;
            if *next == b'\n' {
                self.start += 1;
                self.seen = self.seen.max(self.start);
            }
        }
        let rest = self.bytes.get(self.seen..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.seen = self.bytes.len();
            return if self.seen - self.start > LINE_BYTES { Err(too_long()) } else { Ok(None) };
        };
        let end = self.seen + length;
        let line = self.bytes.get(self.start..end).unwrap_or_default();
        if line.len() > LINE_BYTES {
            return Err(too_long());
        }
        let line = String::from_utf8_lossy(line).into_owned();
        self.after_cr = self.bytes.get(end) == Some(&b'\r');
        self.start = end + 1;
        self.seen = self.start;
        Ok(Some(line))
    }

    /// Returns the rest without a line end.
    pub(super) fn rest(&mut self) -> Option<String> {
        let rest = self.bytes.split_off(self.start.min(self.bytes.len()));
        *self = Self::default();
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

fn too_long() -> ApiError {
    ApiError::new(ErrorCode::PayloadTooLarge, format!("the response has a line of more than {LINE_BYTES} bytes"))
}

#[derive(Debug, Default)]
struct Parser {
    lines: LineSplitter,
    has_started: bool,
    event: String,
    /// With a line end after each `data` line.
    data: String,
    id: Option<String>,
}

impl Parser {
    fn next_event(&mut self) -> Result<Option<Event>, ApiError> {
        while let Some(line) = self.lines.next_line()? {
            // A byte order mark may precede the first line.
            let line = if self.has_started { line.as_str() } else { line.strip_prefix('\u{feff}').unwrap_or(&line) };
            self.has_started = true;
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                let mut data = std::mem::take(&mut self.data);
                if data.pop().is_some() {
                    let event = if event.is_empty() { "message".to_owned() } else { event };
                    return Ok(Some(Event { event, data, id: self.id.clone() }));
                }
                continue;
            }
            self.field(line)?;
        }
        Ok(None)
    }

    fn field(&mut self, line: &str) -> Result<(), ApiError> {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if self.data.len() + value.len() > LINE_BYTES {
                    let message = format!("the response has an event of more than {LINE_BYTES} bytes");
                    return Err(ApiError::new(ErrorCode::PayloadTooLarge, message));
                }
                self.data.push_str(value);
                self.data.push('\n');
            }
            "event" => value.clone_into(&mut self.event),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // Comments (no name), `retry`, and fields that the standard does not define.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `text` in parts of `part` bytes.
    fn parse(text: &[u8], part: usize) -> Vec<Event> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for part in text.chunks(part) {
            parser.lines.push(part);
            while let Some(event) = parser.next_event().unwrap() {
                events.push(event);
            }
        }
        events
    }

    fn check(text: &str, expect: &[(&str, &str, Option<&str>)]) {
        let expect: Vec<_> = expect
            .iter()
            .map(|(event, data, id)| Event { event: (*event).to_owned(), data: (*data).to_owned(), id: id.map(str::to_owned) })
            .collect();
        // Cuts are everywhere: within a character, between CR and LF, between two events.
        for part in 1..=text.len() {
            assert_eq!(parse(text.as_bytes(), part), expect, "{text:?} in parts of {part}");
        }
    }

    #[test]
    fn events_are_parsed_as_the_standard_says() {
        let m = "message";
        check("data: one\n\ndata:two\n\n", &[(m, "one", None), (m, "two", None)]);
        check("data: a\r\ndata: b\r\n\r\ndata: c\r\rdata: d\n\r", &[(m, "a\nb", None), (m, "c", None), (m, "d", None)]);
        check(": a comment\n\nevent: delta\ndata: x: y\n: another\ndata\n\n", &[("delta", "x: y\n", None)]);
        check("id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", &[(m, "a", Some("7")), (m, "b", Some("7")), (m, "c", Some(""))]);
        check("\u{feff}data: größer 🦀 …\n\n", &[(m, "größer 🦀 …", None)]);
        check("data:  two spaces\nretry: 10\nother: x\n\n", &[(m, " two spaces", None)]);
        check("data\n\n", &[(m, "", None)]);
        check("event: nothing\n\ndata: a\n\n", &[(m, "a", None)]);
        check("data: whole\n\ndata: broken off\n", &[(m, "whole", None)]);
        check("id: a\0b\ndata: x\n\n", &[(m, "x", None)]);
        check("\n\n\r\n", &[]);
    }

    #[test]
    fn a_sender_without_line_ends_is_refused() {
        let mut parser = Parser::default();
        parser.lines.push(&vec![b'x'; LINE_BYTES]);
        assert_eq!(parser.next_event(), Ok(None));
        parser.lines.push(b"xx");
        assert_eq!(parser.next_event().unwrap_err().code, ErrorCode::PayloadTooLarge);

        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1000));
        let refused = (0..2000).find_map(|_| {
            parser.lines.push(line.as_bytes());
            parser.next_event().err()
        });
        assert_eq!(refused.unwrap().code, ErrorCode::PayloadTooLarge);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(parse(b"data: a\xffb\n\n", 3)[0].data, "a\u{fffd}b");
    }
}
