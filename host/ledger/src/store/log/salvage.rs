//! The batches of a part of the log that can be read, whatever else is damaged.

use memchr::memmem;

use crate::store::log::frame::{FRAME_MAGIC, FRAMES, HEADER, Header};

/// Hands every batch that the bytes of a part hold whole to `each`, in the order in which they stand there. A batch whose
/// header has one wrong byte is whole: its checksums say what the byte was.
pub(crate) fn readable_batches(seed: u64, bytes: &[u8], each: &mut dyn FnMut(u64, &[u8])) {
    let magic = memmem::Finder::new(&FRAME_MAGIC);
    let mut at = usize::try_from(FRAMES).unwrap_or(usize::MAX);
    // A frame begins where the one before ends; elsewhere only a header without a wrong byte is looked for.
    let mut begins = true;
    while let Some(fields) = at.checked_add(HEADER).and_then(|end| bytes.get(at..end)) {
        let header = Header::read(seed, fields).or_else(|| begins.then(|| Header::read_mended(seed, fields)).flatten());
        let frame = header.and_then(|header| {
            let start = at + HEADER;
            let end = start.checked_add(usize::try_from(header.len).ok()?)?;
            Some((header, bytes.get(start..end)?, end))
        });
        match frame {
            Some((header, payload, end)) if header.is_of(seed, payload) => {
                each(header.batch, payload);
                (at, begins) = (end, true);
            }
            // The payload is damaged, and its length is known.
            Some((_, _, end)) if begins_frame(seed, bytes, end) => (at, begins) = (end, true),
            _ => match bytes.get(at + 1..).and_then(|rest| magic.find(rest)) {
                Some(next) => (at, begins) = (at + 1 + next, false),
                None => return,
            },
        }
    }
}

fn begins_frame(seed: u64, bytes: &[u8], at: usize) -> bool {
    let fields = at.checked_add(HEADER).and_then(|end| bytes.get(at..end));
    fields.is_some_and(|fields| Header::read(seed, fields).or_else(|| Header::read_mended(seed, fields)).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 42;

    fn part(payloads: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; usize::try_from(FRAMES).unwrap()];
        let mut starts = Vec::new();
        for (batch, payload) in (1..).zip(payloads) {
            starts.push(bytes.len());
            bytes.extend(Header::of(SEED, batch, payload).unwrap().write(SEED));
            bytes.extend_from_slice(payload);
        }
        bytes.extend_from_slice(&[0; 50]);
        (bytes, starts)
    }

    fn readable(bytes: &[u8]) -> Vec<u64> {
        let mut found = Vec::new();
        readable_batches(SEED, bytes, &mut |batch, _| found.push(batch));
        found
    }

    #[test]
    fn a_wrong_byte_costs_at_most_its_own_batch() {
        let (whole, starts) = part(&[b"first", b"second", b"", b"fourth"]);
        assert_eq!(readable(&whole), [1, 2, 3, 4]);
        for at in starts[0]..whole.len() - 50 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x21;
            let frame = starts.iter().rposition(|start| at >= *start).unwrap();
            let expected: Vec<u64> = (1..=4).filter(|batch| at < starts[frame] + HEADER || *batch != frame as u64 + 1).collect();
            assert_eq!(readable(&bytes), expected, "damaged at {at}");
        }
    }

    #[test]
    fn two_wrong_bytes_of_a_header_cost_its_batch() {
        let (whole, starts) = part(&[b"first", b"second", b"AHL2 is no frame", b"fourth"]);
        for (frame, start) in starts.iter().enumerate() {
            let mut bytes = whole.clone();
            bytes[start + 1] ^= 1;
            bytes[start + 9] ^= 1;
            let expected: Vec<u64> = (1..=4).filter(|batch| *batch != frame as u64 + 1).collect();
            assert_eq!(readable(&bytes), expected);
        }
        assert!(readable(&whole[..100]).is_empty());
    }
}
