//! Lines of a file of JSON Lines that arrives in pieces, with bounded memory.

/// The longest line, in bytes. An event has at most 32,000 characters of payload; a longer line is counted and not kept.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// A line without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// A whole line.
    Whole(&'a [u8]),
    /// A line over the limit, with its length.
    TooLong {
        /// Length of the line.
        bytes: u64,
    },
    /// The last line of a file that does not end with a line feed.
    Unended(&'a [u8]),
}

/// The splitter. It keeps the beginning of one line.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    begun: Vec<u8>,
    /// Length of the begun line, including bytes that are not kept.
    bytes: u64,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_limit(MAX_LINE_BYTES)
    }
}

impl Lines {
    /// A splitter for lines of at most `limit` bytes.
    #[must_use]
    pub const fn with_limit(limit: usize) -> Self {
        Self { limit, begun: Vec::new(), bytes: 0 }
    }

    /// Takes the next bytes, and gives the lines that end in them to `each`.
    pub fn push(&mut self, mut chunk: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (piece, rest) = chunk.split_at(end);
            chunk = rest.get(1..).unwrap_or_default();
            if self.bytes == 0 && piece.len() <= self.limit {
                each(Line::Whole(without_return(piece)));
                continue;
            }
            self.keep(piece);
            match self.fits() {
                true => each(Line::Whole(without_return(&self.begun))),
                false => each(Line::TooLong { bytes: self.bytes }),
            }
            self.clear();
        }
        self.keep(chunk);
    }

    /// Takes the end of the file.
    pub fn finish(mut self, mut each: impl FnMut(Line<'_>)) {
        match self.bytes {
            0 => {}
            _ if self.fits() => each(Line::Unended(without_return(&self.begun))),
            bytes => each(Line::TooLong { bytes }),
        }
        self.clear();
    }

    fn fits(&self) -> bool {
        self.bytes <= self.limit as u64
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = self.limit.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(piece.get(..room).unwrap_or(piece));
        self.bytes += piece.len() as u64;
    }

    fn clear(&mut self) {
        self.begun.clear();
        self.bytes = 0;
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines of a text that arrives in pieces of this size, each as a text.
    fn split(text: &[u8], size: usize, limit: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut lines = Lines::with_limit(limit);
        let show = |line: Line<'_>| match line {
            Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
            Line::TooLong { bytes } => format!("<{bytes}>"),
            Line::Unended(line) => format!("{}…", String::from_utf8_lossy(line)),
        };
        for piece in text.chunks(size) {
            lines.push(piece, |line| found.push(show(line)));
        }
        lines.finish(|line| found.push(show(line)));
        found
    }

    #[test]
    fn lines_are_the_same_however_they_arrive_and_long_ones_are_only_counted() {
        for size in 1..20 {
            assert_eq!(split(b"one\r\n\ntwo 34567890\nthree", size, 8), ["one", "", "<12>", "three…"], "{size}");
            assert_eq!(split(b"12345678\n123456789", size, 8), ["12345678", "<9>"], "{size}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), size in 1_usize..50) {
            prop_assert_eq!(split(&text, size, 16), split(&text, 1_000, 16));
        }
    }
}
