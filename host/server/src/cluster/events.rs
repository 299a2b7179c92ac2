//! The events in the bytes of a stream of server-sent events (the HTML standard, section 9.2).

/// The longest event that is held back until it is whole, by default. Results have 32 KiB at most, facts and snapshots a few of them.
const EVENT_BYTES: usize = 1024 * 1024;

/// Splits a stream into whole events, and knows the id of the last one.
#[derive(Debug)]
pub(crate) struct EventSplitter {
    /// The longest event that is held back until it is whole.
    most: usize,
    /// Bytes that were not given out.
    held: Vec<u8>,
    /// Begin of the line that is not whole, in `held`.
    line: usize,
    /// True if the begin of that line was given out.
    is_line_torn: bool,
    /// Number of bytes of `held` that were looked at.
    seen: usize,
    /// The id in the event that is not whole.
    next_id: Option<String>,
    /// True if the event that is not whole has a field.
    has_fields: bool,
    /// True if the event that is not whole was given out in part.
    is_torn: bool,
    last_id: Option<String>,
    has_events: bool,
}

impl Default for EventSplitter {
    fn default() -> Self {
        Self::holding(EVENT_BYTES)
    }
}

impl EventSplitter {
    /// Holds an event of up to so many bytes back until it is whole.
    pub(crate) const fn holding(most: usize) -> Self {
        Self {
            most,
            held: Vec::new(),
            line: 0,
            is_line_torn: false,
            seen: 0,
            next_id: None,
            has_fields: false,
            is_torn: false,
            last_id: None,
            has_events: false,
        }
    }

    /// True if a part of an event was given out that is not whole.
    pub(crate) const fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Takes the next bytes, and gives out what is whole: events and comments. Of an event that is too long to be held back, also a
    /// part.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let mut whole = 0;
        while let Some(end) = self.held.get(self.seen..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
            let end = self.seen + end;
            let line = self.held.get(self.line..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() && !self.is_line_torn {
                whole = end + 1;
                self.has_events |= self.has_fields;
                if let Some(id) = self.next_id.take() {
                    self.last_id = Some(id).filter(|id| !id.is_empty());
                }
                self.has_fields = false;
                self.is_torn = false;
            } else if !line.starts_with(b":") {
                self.has_fields = true;
                self.next_id = id_of(line).or(self.next_id.take());
            }
            self.is_line_torn = false;
            self.line = end + 1;
            self.seen = end + 1;
        }
        self.seen = self.held.len();
        if self.held.len() - whole > self.most {
            // The line that is not whole is not read any more: an id comes before long data.
            self.is_torn = true;
            self.is_line_torn |= self.line < self.held.len();
            whole = self.held.len();
        }
        let given: Vec<u8> = self.held.drain(..whole).collect();
        self.line = self.line.saturating_sub(whole);
        self.seen -= whole;
        given
    }

    /// The bytes of an event that is not whole, at the end of a stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(self).held
    }

    /// Forgets an event that is not whole, because its stream broke off. False where a part of it was given out: no stream can go on
    /// behind that.
    pub(crate) fn break_off(&mut self) -> bool {
        let (last_id, has_events, is_torn) = (self.last_id.take(), self.has_events, self.is_torn);
        *self = Self { last_id, has_events, ..Self::holding(self.most) };
        !is_torn
    }

    /// The id of the last whole event that has one.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// True once an event was given out.
    pub(crate) fn has_events(&self) -> bool {
        self.has_events
    }
}

/// The value of the field `id`, where the line has one that counts.
fn id_of(line: &[u8]) -> Option<String> {
    let value = line.strip_prefix(b"id:")?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    String::from_utf8(value.to_vec()).ok().filter(|id| !id.contains('\0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&str]) -> (Vec<String>, EventSplitter) {
        let mut splitter = EventSplitter::default();
        let given = pieces.iter().map(|piece| String::from_utf8(splitter.push(piece.as_bytes())).unwrap()).collect();
        (given, splitter)
    }

    #[test]
    fn only_whole_events_are_given_out() {
        let (given, splitter) = split(&["id: a:1.0\nda", "ta: x\n", "\nid: a:2.0\ndata: y\n\n: keep", "-alive\n\nid: 3\nda"]);
        assert_eq!(given, ["", "", "id: a:1.0\ndata: x\n\nid: a:2.0\ndata: y\n\n", ": keep-alive\n\n"]);
        assert_eq!(splitter.last_id(), Some("a:2.0"));
    }

    #[test]
    fn a_comment_is_no_event_and_an_event_without_id_keeps_the_last_one() {
        let (_, splitter) = split(&[": hello\n\n"]);
        assert!(!splitter.has_events());
        let pieces = ["id:1\r\ndata: x\r\n\r\n", "event: problem\ndata: {}\n\n"];
        let (given, splitter) = split(&pieces);
        assert_eq!(given, pieces);
        assert_eq!((splitter.last_id(), splitter.has_events()), (Some("1"), true));
        let (_, splitter) = split(&["id: 1\ndata: x\n\nid:\ndata: y\n\n"]);
        assert_eq!(splitter.last_id(), None);
    }

    #[test]
    fn a_broken_event_is_forgotten_unless_a_part_was_given_out() {
        let (_, mut splitter) = split(&["id: 1\ndata: x\n\nid: 2\ndata: y"]);
        assert!(splitter.break_off());
        assert_eq!(splitter.push(b"id: 2\ndata: y\n\n"), b"id: 2\ndata: y\n\n");
        assert_eq!(splitter.last_id(), Some("2"));

        let long = "x".repeat(EVENT_BYTES);
        let (given, mut splitter) = split(&["id: 1\ndata: x\n\n", "id: 2\ndata: ", &long]);
        assert!(given[2].len() > EVENT_BYTES);
        assert!(!splitter.break_off());
        let (given, mut splitter) = split(&["id: 2\ndata: ", &long, "\n", "data: y\n\nid: 3"]);
        assert_eq!((&*given[2], &*given[3]), ("", "\ndata: y\n\n"));
        assert_eq!(splitter.last_id(), Some("2"));
        assert!(splitter.break_off());
    }

    proptest! {
        #[test]
        fn the_cut_of_the_bytes_does_not_matter(ids in prop::collection::vec(0_u32..1000, 1..20), cut in 1_usize..40) {
            let text: String = ids.iter().map(|id| format!("id: {id}\nevent: e\ndata: {id}\n\n: c\n\n")).collect();
            let mut splitter = EventSplitter::default();
            let given: Vec<u8> = text.as_bytes().chunks(cut).flat_map(|piece| splitter.push(piece)).collect();
            prop_assert_eq!(given, text.as_bytes());
            prop_assert_eq!(splitter.last_id().unwrap(), ids.last().unwrap().to_string());
            prop_assert!(splitter.rest().is_empty());
        }
    }
}
