//! Frames: the bytes of a batch in the log.
//!
//! A frame is `checksum u64 | rows`, or, packed, `checksum u64 | length u32 | rows as a block of LZ4`, with the length of the rows. Numbers are
//! big-endian. The checksum is keyed with the number of the cluster, that of the batch and the form. Rows of one batch have much in common, and the database
//! takes every byte several times: into its own log, into its table, and to its standbys.

use std::borrow::Cow;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the checksum.
const CHECKSUM: usize = 8;
/// Bytes of a packed frame before the block.
const PACKED_HEADER: usize = CHECKSUM + 4;
/// Smaller rows are not packed: little would be saved.
const LEAST_PACKED: usize = 256;

/// Form of the rows in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are, which hosts of every version read.
    Plain,
    Packed,
}

impl Form {
    fn checksum(self, seed: u64, batch: u64, content: &[u8]) -> [u8; CHECKSUM] {
        let key = seed ^ batch.rotate_left(32);
        let key = if self == Self::Packed { !key } else { key };
        xxh3_64_with_seed(content, key).to_be_bytes()
    }
}

/// A batch of the log, whose checksum is right.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) batch: u64,
    pub(crate) epoch: u64,
    form: Form,
    bytes: Bytes,
}

impl Frame {
    /// The batch in these bytes. `None` where their checksum is wrong.
    pub(crate) fn read(seed: u64, batch: u64, epoch: u64, bytes: Bytes) -> Option<Self> {
        let (sum, content) = bytes.split_at_checked(CHECKSUM)?;
        // Most are packed.
        let form = [Form::Packed, Form::Plain].into_iter().find(|form| form.checksum(seed, batch, content) == sum)?;
        Some(Self { batch, epoch, form, bytes })
    }

    /// The rows of the batch. `None` where they cannot be unpacked.
    pub(crate) fn rows(&self) -> Option<Cow<'_, [u8]>> {
        match self.form {
            Form::Plain => Some(Cow::Borrowed(self.bytes.get(CHECKSUM..)?)),
            Form::Packed => {
                let (_, content) = self.bytes.split_at_checked(CHECKSUM)?;
                let (length, block) = content.split_first_chunk()?;
                let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
                let rows = lz4_flex::block::decompress(block, length).ok()?;
                (rows.len() == length).then_some(Cow::Owned(rows))
            }
        }
    }
}

/// The frame of a batch. Rows that packing makes no smaller stay as they are.
pub(crate) fn encode(seed: u64, batch: u64, rows: &[u8], form: Form) -> Vec<u8> {
    if form == Form::Packed
        && let Some(frame) = packed(seed, batch, rows)
    {
        return frame;
    }
    let mut frame = Vec::with_capacity(CHECKSUM + rows.len());
    frame.extend_from_slice(&Form::Plain.checksum(seed, batch, rows));
    frame.extend_from_slice(rows);
    frame
}

fn packed(seed: u64, batch: u64, rows: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(rows.len()).ok()?.to_be_bytes();
    if rows.len() < LEAST_PACKED {
        return None;
    }
    let mut frame = vec![0; PACKED_HEADER + lz4_flex::block::get_maximum_output_size(rows.len())];
    let block = lz4_flex::block::compress_into(rows, frame.get_mut(PACKED_HEADER..)?).ok()?;
    frame.truncate(PACKED_HEADER + block);
    if frame.len() >= CHECKSUM + rows.len() {
        return None;
    }
    frame.get_mut(CHECKSUM..PACKED_HEADER)?.copy_from_slice(&length);
    let sum = Form::Packed.checksum(seed, batch, frame.get(CHECKSUM..)?);
    frame.get_mut(..CHECKSUM)?.copy_from_slice(&sum);
    Some(frame)
}

/// The frame of a batch without rows, which stands for what is in a snapshot or for the beginning of an epoch.
pub(crate) fn empty_frame(seed: u64, batch: u64) -> Vec<u8> {
    encode(seed, batch, b"", Form::Plain)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn read(seed: u64, batch: u64, bytes: &[u8]) -> Option<Frame> {
        Frame::read(seed, batch, 1, Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_frame_is_read_only_with_its_number_and_its_cluster() {
        let rows = b"the same again, ".repeat(100);
        for form in [Form::Plain, Form::Packed] {
            let bytes = encode(7, 3, &rows, form);
            assert_eq!(bytes.len() < rows.len() / 10, form == Form::Packed);
            assert_eq!(read(7, 3, &bytes).unwrap().rows().unwrap(), rows);
            assert!(read(7, 4, &bytes).is_none() && read(8, 3, &bytes).is_none());
            let mut damaged = bytes;
            damaged[13] ^= 1;
            assert!(read(7, 3, &damaged).is_none());
        }
        assert!(read(7, 3, b"").is_none());
        assert_eq!(read(7, 1, &empty_frame(7, 1)).unwrap().rows().unwrap(), b"".as_slice());
    }

    #[test]
    fn a_block_that_does_not_have_the_rows_it_says_is_damaged() {
        let packed = |content: &[u8]| {
            let sum = Form::Packed.checksum(7, 3, content);
            read(7, 3, &[sum.as_slice(), content].concat()).unwrap()
        };
        let block = lz4_flex::block::compress(&b"row".repeat(100));
        let of_length = |length: u32| packed(&[&length.to_be_bytes(), block.as_slice()].concat());
        assert_eq!(of_length(300).rows().unwrap(), b"row".repeat(100));
        assert!(of_length(299).rows().is_none() && of_length(301).rows().is_none());
        assert!(packed(b"").rows().is_none() && packed(&[0, 0, 0, 9, 0xff]).rows().is_none());
    }

    proptest! {
        #[test]
        fn rows_come_out_of_a_frame_as_they_went_in(mut rows in vec(0_u8..8, 0..2_000), noise in vec(any::<u8>(), 0..2_000)) {
            rows.extend(noise);
            let bytes = encode(1, 2, &rows, Form::Packed);
            prop_assert!(bytes.len() <= rows.len() + CHECKSUM);
            let frame = read(1, 2, &bytes).unwrap();
            prop_assert_eq!(frame.rows().unwrap(), rows);
        }
    }
}
