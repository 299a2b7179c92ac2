//! The event stream encoding of AWS (`application/vnd.amazon.eventstream`): a reader of bytes as they arrive, with a bound.
//!
//! A message is its length and that of its headers (each 4 bytes, big-endian), the CRC-32 of both, the headers, the payload, and the
//! CRC-32 of all before.
//!
//! The reason not to use `aws-smithy-eventstream`: it brings six packages for this loop, and leaves it to its caller to bound a message
//! that announces 4 GiB. This reader refuses such a message by its first 12 bytes, reads each byte once, and holds at most one message.

/// Bytes before the headers: two lengths and their checksum.
const PRELUDE: usize = 12;
/// Bytes of a checksum.
const CHECKSUM: usize = 4;
/// Bytes of the longest headers, as the encoding has it.
const MAX_HEADERS: usize = 128 << 10;

/// The reason why a stream of messages cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameError {
    /// A message is larger than the bound of its reader.
    TooLarge,
    /// A checksum or a length is wrong.
    Damaged,
}

/// A message that has arrived. The headers that are not texts are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    headers: Vec<(&'a str, &'a str)>,
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// Takes bytes as they arrive and gives messages.
#[derive(Debug)]
pub(super) struct FrameReader {
    /// The message that has not ended.
    buffer: Vec<u8>,
    max_bytes: usize,
}

impl FrameReader {
    /// A reader of messages of at most `max_bytes` each.
    pub(super) const fn new(max_bytes: usize) -> Self {
        Self { buffer: Vec::new(), max_bytes }
    }

    /// Adds bytes, and gives each message that they complete to `message`.
    ///
    /// # Errors
    /// Of `message`, and where a message is damaged or larger than the bound. The reader must not be used after an error.
    pub(super) fn push<E: From<FrameError>>(
        &mut self,
        mut bytes: &[u8],
        mut message: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            bytes = self.fill(bytes, PRELUDE);
            let Some(prelude) = self.buffer.first_chunk::<PRELUDE>() else { return Ok(()) };
            let Lengths { total, headers } = Lengths::of(prelude)?;
            if total > self.max_bytes {
                return Err(FrameError::TooLarge.into());
            }
            bytes = self.fill(bytes, total);
            if self.buffer.len() < total {
                return Ok(());
            }
            message(frame(&self.buffer, headers)?)?;
            self.buffer.clear();
        }
    }

    /// Moves bytes into the buffer until it has `wanted`, and returns the others.
    fn fill<'a>(&mut self, bytes: &'a [u8], wanted: usize) -> &'a [u8] {
        let missing = wanted.saturating_sub(self.buffer.len()).min(bytes.len());
        let (part, rest) = bytes.split_at(missing);
        self.buffer.extend_from_slice(part);
        rest
    }
}

/// The lengths of a message and of its headers, in bytes.
struct Lengths {
    total: usize,
    headers: usize,
}

impl Lengths {
    fn of(prelude: &[u8; PRELUDE]) -> Result<Self, FrameError> {
        let (numbers, checksum) = prelude.split_last_chunk::<CHECKSUM>().ok_or(FrameError::Damaged)?;
        if crc32fast::hash(numbers) != u32::from_be_bytes(*checksum) {
            return Err(FrameError::Damaged);
        }
        let (total, headers) = numbers.split_first_chunk::<4>().ok_or(FrameError::Damaged)?;
        let headers = headers.first_chunk::<4>().ok_or(FrameError::Damaged)?;
        let length = |bytes: &[u8; 4]| usize::try_from(u32::from_be_bytes(*bytes)).map_err(|_| FrameError::TooLarge);
        let lengths = Self { total: length(total)?, headers: length(headers)? };
        let fits = lengths.headers <= MAX_HEADERS && lengths.total >= PRELUDE + lengths.headers + CHECKSUM;
        if fits { Ok(lengths) } else { Err(FrameError::Damaged) }
    }
}

/// The parts of a whole message.
fn frame(whole: &[u8], headers: usize) -> Result<Frame<'_>, FrameError> {
    let (content, checksum) = whole.split_last_chunk::<CHECKSUM>().ok_or(FrameError::Damaged)?;
    if crc32fast::hash(content) != u32::from_be_bytes(*checksum) {
        return Err(FrameError::Damaged);
    }
    let rest = content.get(PRELUDE..).ok_or(FrameError::Damaged)?;
    let (headers, payload) = rest.split_at_checked(headers).ok_or(FrameError::Damaged)?;
    Ok(Frame { headers: texts(headers).ok_or(FrameError::Damaged)?, payload })
}

/// The headers that are texts; `None` where the bytes are no headers.
fn texts(mut bytes: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (kind, rest) = rest.split_first()?;
        let (length, rest) = match kind {
            // True and false.
            0 | 1 => (0, rest),
            2 => (1, rest),
            3 => (2, rest),
            4 => (4, rest),
            // An integer of 64 bits and a time.
            5 | 8 => (8, rest),
            // Bytes and texts.
            6 | 7 => {
                let (length, rest) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(*length)), rest)
            }
            // A UUID.
            9 => (16, rest),
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        if *kind == 7 {
            texts.push((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?));
        }
        bytes = rest;
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with these bytes as its headers.
    fn with_headers(headers: &[u8], payload: &[u8]) -> Vec<u8> {
        let total = u32::try_from(PRELUDE + headers.len() + payload.len() + CHECKSUM).unwrap();
        let mut message = [total.to_be_bytes(), u32::try_from(headers.len()).unwrap().to_be_bytes()].concat();
        message.extend(crc32fast::hash(&message).to_be_bytes());
        message.extend(headers);
        message.extend(payload);
        message.extend(crc32fast::hash(&message).to_be_bytes());
        message
    }

    fn text_header(name: &str, value: &str) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), &[7], &length, value.as_bytes()].concat()
    }

    /// The text headers of a message, and its payload.
    type ReadFrame = (Vec<(String, String)>, Vec<u8>);

    /// The messages in these pieces.
    fn read(pieces: &[&[u8]], max: usize) -> Result<Vec<ReadFrame>, FrameError> {
        let (mut reader, mut out) = (FrameReader::new(max), vec![]);
        for piece in pieces {
            reader.push(piece, |frame| {
                let headers = frame.headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
                out.push((headers, frame.payload.to_vec()));
                Ok::<_, FrameError>(())
            })?;
        }
        Ok(out)
    }

    /// Messages with checksums that another implementation has made.
    #[test]
    fn messages_of_another_implementation_are_read() {
        let plain = [&[0, 0, 0, 30, 0, 0, 0, 0, 186, 242, 246, 138][..], br#"{"foo": "bar"}"#, &[174, 114, 88, 228]].concat();
        let headers = b"\x0ccontent-type\x07\x00\x10application/json";
        let typed =
            [&[0, 0, 0, 62, 0, 0, 0, 32, 64, 93, 249, 70][..], headers, br#"{"foo": "bar"}"#, &[111, 162, 191, 59]].concat();
        let all = read(&[&[plain, typed].concat()], 100).unwrap();
        let payload = br#"{"foo": "bar"}"#.to_vec();
        let content_type = vec![("content-type".to_owned(), "application/json".to_owned())];
        assert_eq!(all, [(vec![], payload.clone()), (content_type, payload)]);
    }

    #[test]
    fn every_kind_of_header_is_passed_over_but_texts() {
        let mut headers = Vec::new();
        for (kind, length) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (8, 8), (9, 16)] {
            headers.extend([1, b'h', kind]);
            headers.extend(std::iter::repeat_n(0xff, length));
        }
        headers.extend([1, b'b', 6, 0, 3, 1, 2, 3]);
        headers.extend(text_header(":event-type", "metadata"));
        let message = with_headers(&headers, b"");
        let expect = vec![(":event-type".to_owned(), "metadata".to_owned())];
        assert_eq!(read(&[&message], 1_000).unwrap(), [(expect, vec![])]);
        for wrong in
            [vec![1], vec![1, b'h'], vec![1, b'h', 10], vec![1, b'h', 4, 0], vec![1, b'h', 7, 0, 2, b'a'], vec![1, 0xff, 7, 0, 0]]
        {
            assert_eq!(read(&[&with_headers(&wrong, b"x")], 1_000), Err(FrameError::Damaged), "{wrong:?}");
        }
    }

    #[test]
    fn a_length_is_refused_before_its_bytes_have_come() {
        let prelude = |total: u32, headers: u32| {
            let mut bytes = [total.to_be_bytes(), headers.to_be_bytes()].concat();
            bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
            bytes
        };
        assert_eq!(read(&[&prelude(u32::MAX, 0)], 1_000), Err(FrameError::TooLarge));
        assert_eq!(read(&[&prelude(1_001, 0)], 1_000), Err(FrameError::TooLarge));
        for (total, headers) in [(0, 0), (15, 0), (16, 1), (100, u32::MAX), (200_000, 140_000)] {
            assert_eq!(read(&[&prelude(total, headers)], 1_000_000), Err(FrameError::Damaged), "{total} {headers}");
        }
        assert_eq!(read(&[&prelude(1_000, 0)], 1_000), Ok(vec![]), "the rest may still come");
    }

    #[test]
    fn megabytes_in_single_bytes_are_read_in_linear_time() {
        let message = with_headers(&[], &vec![b'x'; 4 << 20]);
        let mut reader = FrameReader::new(8 << 20);
        let mut count = 0;
        for byte in message.chunks(1) {
            reader
                .push(byte, |_| {
                    count += 1;
                    Ok::<_, FrameError>(())
                })
                .unwrap();
        }
        assert_eq!((count, reader.buffer.len()), (1, 0));
    }

    proptest! {
        #[test]
        fn messages_are_read_wherever_the_stream_is_cut_and_one_wrong_byte_is_noticed(
            messages in prop::collection::vec(("[:a-z-]{1,20}", ".{0,20}", prop::collection::vec(any::<u8>(), 0..40)), 1..6),
            cuts in prop::collection::vec(1usize..30, 0..40),
            (wrong, bit) in (any::<prop::sample::Index>(), 0u32..8),
        ) {
            let mut bytes: Vec<u8> = messages.iter().flat_map(|(name, value, payload)| with_headers(&text_header(name, value), payload)).collect();
            let expect: Vec<_> = messages.iter().map(|(name, value, payload)| (vec![(name.clone(), value.clone())], payload.clone())).collect();
            let pieces = |bytes: &[u8]| {
                let (mut pieces, mut rest) = (vec![], bytes.to_vec());
                for cut in &cuts {
                    let after = rest.split_off((*cut).min(rest.len()));
                    pieces.push(std::mem::replace(&mut rest, after));
                }
                pieces.push(rest);
                pieces
            };
            let cut = pieces(&bytes);
            let cut: Vec<&[u8]> = cut.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(read(&cut, 10_000).unwrap(), expect);
            let at = wrong.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(read(&[&bytes], 10_000), Err(FrameError::Damaged));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), headers in prop::collection::vec(any::<u8>(), 0..60)) {
            let _refused = read(&[&bytes], 1_000);
            let _refused = read(&[&with_headers(&headers, &bytes)], 1_000);
        }
    }
}
