//! Server-sent events, as far as models use them: the `data` of each event.
//!
//! Not `eventsource-stream`: for each line it copies the rest of what it holds, and it reads an unfinished line again
//! with every chunk, so a hostile server can make a few megabytes cost hours. This reads each byte once and holds at
//! most one event. A property test holds it against that library.

/// An event is larger than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Takes bytes as they arrive and gives events.
#[derive(Debug)]
pub(super) struct Events {
    /// The line that has not ended.
    line: Vec<u8>,
    /// The data of the event that has not ended, each line with its line feed.
    data: Vec<u8>,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_cr: bool,
    /// No line has ended: a byte order mark may stand before the first.
    first: bool,
    max_bytes: usize,
}

impl Events {
    pub(super) const fn new(max_bytes: usize) -> Self {
        Self { line: Vec::new(), data: Vec::new(), after_cr: false, first: true, max_bytes }
    }

    /// Adds bytes, and gives the data of each event that they complete to `event`.
    pub(super) fn push<E: From<TooLarge>>(
        &mut self,
        mut bytes: &[u8],
        mut event: impl FnMut(&[u8]) -> Result<(), E>,
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
                event(&self.data)?;
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

    fn add(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() + bytes.len() > self.max_bytes {
            return Err(TooLarge);
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
        if let Some(value) = line.strip_prefix(b"data") {
            let value = match value {
                [] => Some(value),
                [b':', value @ ..] => Some(value.strip_prefix(b" ").unwrap_or(value)),
                _ => None,
            };
            if let Some(value) = value {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
        }
        self.line.clear();
        ends
    }

    /// The data of an event that lacks only the empty line at its end, where the stream ends. A line that has not ended
    /// is lost, as the standard says.
    pub(super) fn rest(&mut self) -> Option<&[u8]> {
        self.data.strip_suffix(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use eventsource_stream::Eventsource;
    use futures_util::{StreamExt, stream};
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]], max: usize) -> Result<Vec<String>, TooLarge> {
        let (mut events, mut out) = (Events::new(max), vec![]);
        for chunk in chunks {
            events.push(chunk, |data| {
                out.push(String::from_utf8_lossy(data).into_owned());
                Ok::<_, TooLarge>(())
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
        assert_eq!(read(&[&[b'x'; 60], &[b'x'; 60]], 100), Err(TooLarge));
        assert_eq!(read(&[b"data: 0123456789\n".as_slice(); 20], 100), Err(TooLarge));
        assert_eq!(read(&[b": 0123456789\n".as_slice(); 20], 100), Ok(vec![]));
    }

    #[test]
    fn megabytes_in_single_bytes_and_lines_are_read_in_linear_time() {
        let mut events = Events::new(8 << 20);
        for _ in 0..(4 << 20) {
            events.push(b"x", |_| Ok::<_, TooLarge>(())).unwrap();
        }
        read(&[&[b'\n'; 4 << 20]], 100).unwrap();
    }

    proptest! {
        #[test]
        fn it_reads_as_the_library_does_wherever_the_stream_is_cut(
            lines in prop::collection::vec(prop_oneof![
                Just("data: a"), Just("data:"), Just("data:  b:c"), Just("data"), Just(""), Just(""), Just(": note"),
                Just("event: e"), Just("id: 7"), Just("data: é語"), Just("other: x"),
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
            let expect: Vec<String> = futures_util::FutureExt::now_or_never(library.map(|event| event.unwrap().data).collect()).unwrap();
            prop_assert_eq!(read(&chunks, 10_000).unwrap(), expect);
        }
    }
}
