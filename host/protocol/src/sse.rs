//! Server-sent events: a reader of bytes as they arrive, with a bound.
//!
//! The reason not to use `eventsource-stream`: it copies the rest of its buffer for each line and reads an unfinished line
//! again with every chunk, so a hostile server can make a few megabytes cost hours. This reader reads each byte once and
//! holds at most one event. A property test compares it with that library.

/// An event is larger than the bound of its reader.
#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLarge;

/// An event that has arrived, without its type and retry time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The last `id` of the stream; empty before the first one.
    pub id: &'a [u8],
    /// The `data` lines, with a line feed between two of them.
    pub data: &'a [u8],
}

/// Takes bytes as they arrive and gives events.
#[derive(Debug)]
pub struct EventReader {
    /// The line that has not ended.
    line: Vec<u8>,
    /// The last id.
    id: Vec<u8>,
    /// The data of the event that has not ended, each line with its line feed.
    data: Vec<u8>,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_cr: bool,
    /// No line has ended: a byte order mark may stand before the first.
    first: bool,
    max_bytes: usize,
}

impl EventReader {
    /// A reader of events of at most `max_bytes` each.
    #[must_use]
    pub const fn new(max_bytes: usize) -> Self {
        Self { line: Vec::new(), id: Vec::new(), data: Vec::new(), after_cr: false, first: true, max_bytes }
    }

    /// Adds bytes, and gives each event that they complete to `event`.
    ///
    /// # Errors
    /// Of `event`, and where an event is larger than the bound.
    pub fn push<E: From<EventTooLarge>>(
        &mut self,
        mut bytes: &[u8],
        mut event: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = bytes.split_at(end);
            self.add(line)?;
            if self.end_line() {
                self.data.pop();
                event(Event { id: &self.id, data: &self.data })?;
                self.data.clear();
            }
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        Ok(self.add(bytes)?)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), EventTooLarge> {
        if self.line.len() + self.data.len() + bytes.len() > self.max_bytes {
            return Err(EventTooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes in the line; true where it ends an event that has data.
    fn end_line(&mut self) -> bool {
        let mut line = self.line.as_slice();
        if std::mem::take(&mut self.first) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let ends = line.is_empty() && !self.data.is_empty();
        if let Some(value) = value(line, b"data") {
            self.data.extend_from_slice(value);
            self.data.push(b'\n');
        } else if let Some(value) = value(line, b"id").filter(|value| !value.contains(&0)) {
            self.id.clear();
            self.id.extend_from_slice(value);
        }
        self.line.clear();
        ends
    }

    /// The data of an event that lacks only the empty line at its end, where the stream ends. A line that has not ended
    /// is lost, as the standard says.
    pub fn rest(&mut self) -> Option<&[u8]> {
        self.data.strip_suffix(b"\n")
    }
}

/// The value of the field `name`, where the line is that field.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', value @ ..] => Some(value.strip_prefix(b" ").unwrap_or(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use eventsource_stream::Eventsource;
    use futures_util::{StreamExt, stream};
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]], max: usize) -> Result<Vec<String>, EventTooLarge> {
        Ok(read_all(chunks, max)?.into_iter().map(|(_, data)| data).collect())
    }

    /// The id and the data of each event.
    fn read_all(chunks: &[&[u8]], max: usize) -> Result<Vec<(String, String)>, EventTooLarge> {
        let (mut events, mut out) = (EventReader::new(max), vec![]);
        for chunk in chunks {
            events.push(chunk, |event| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                out.push((text(event.id), text(event.data)));
                Ok::<_, EventTooLarge>(())
            })?;
        }
        Ok(out)
    }

    #[test]
    fn data_lines_make_an_event_and_the_rest_is_passed_over() {
        let text =
            b"\xef\xbb\xbfdata: a\r\n: note\r\nid: 1\r\ndata:b\r\n\r\nevent: x\n\ndata\n\ndatum: no\n\ndata: c\r\rdata: lost";
        assert_eq!(read(&[text], 100).unwrap(), ["a\nb", "", "c"]);
    }

    #[test]
    fn a_line_or_an_event_without_an_end_is_too_large_at_some_point() {
        assert_eq!(read(&[&[b'x'; 60], &[b'x'; 60]], 100), Err(EventTooLarge));
        assert_eq!(read(&[b"data: 0123456789\n".as_slice(); 20], 100), Err(EventTooLarge));
        assert_eq!(read(&[b": 0123456789\n".as_slice(); 20], 100), Ok(vec![]));
    }

    #[test]
    fn megabytes_in_single_bytes_and_lines_are_read_in_linear_time() {
        let mut events = EventReader::new(8 << 20);
        for _ in 0..(4 << 20) {
            events.push(b"x", |_| Ok::<_, EventTooLarge>(())).unwrap();
        }
        read(&[&[b'\n'; 4 << 20]], 100).unwrap();
    }

    proptest! {
        #[test]
        fn it_reads_as_the_library_does_wherever_the_stream_is_cut(
            lines in prop::collection::vec(prop_oneof![
                Just("data: a"), Just("data:"), Just("data:  b:c"), Just("data"), Just(""), Just(""), Just(": note"),
                Just("event: e"), Just("id: 7"), Just("id:8"), Just("id"), Just("data: é語"), Just("other: x"),
            ], 0..30),
            ends in prop::collection::vec(prop_oneof![Just("\n"), Just("\r\n")], 30),
            cuts in prop::collection::vec(1usize..9, 0..60),
        ) {
            let text: String = lines.iter().zip(&ends).map(|(line, end)| format!("{line}{end}")).collect();
            let (mut chunks, mut rest) = (vec![], text.as_bytes());
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            let library = stream::iter([Ok::<_, std::io::Error>(text.as_bytes().to_vec())]).eventsource();
            let library = library.map(|event| event.map(|event| (event.id, event.data)).unwrap());
            let expect: Vec<_> = futures_util::FutureExt::now_or_never(library.collect()).unwrap();
            prop_assert_eq!(read_all(&chunks, 10_000).unwrap(), expect);
        }
    }
}
