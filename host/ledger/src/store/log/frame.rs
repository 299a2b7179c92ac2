//! The format of a log file: its head and its frames.
//!
//! A file begins with a head: `magic u64 | size u64 | checksum u64`. Frames follow from [`FRAMES`] on, without a gap:
//! `magic u32 | payload length u32 | batch u64 | checksum of the payload u64 | checksum of the four fields u64 |
//! payload`. All numbers are big-endian.
//!
//! The checksums are keyed with a number that never leaves the ledger, so bytes of a guest in the log cannot pass for a
//! frame. The fields have a checksum of their own, so that recovery finds frames after a damaged one without reading
//! payloads.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// `AHLOG`, and the version of the format.
const FILE_MAGIC: u64 = u64::from_be_bytes(*b"AHLOG\0\0\x02");
pub(super) const FRAME_MAGIC: [u8; 4] = *b"AHL2";

/// Bytes of the head of a file.
pub(super) const HEAD: usize = 24;
/// Offset of the first frame: after the page of the head, which is written once.
pub(crate) const FRAMES: u64 = 4096;
/// Bytes of a frame before its payload.
pub(super) const HEADER: usize = 32;

/// The fields before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) batch: u64,
    payload: u64,
}

/// The part of a key that marks the head of a file, so that a head cannot pass for a frame.
const HEAD_KEY: u64 = 1;
const HEADER_KEY: u64 = 2;
const PAYLOAD_KEY: u64 = 3;

fn checksum(seed: u64, key: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, xxh3_64_with_seed(&key.to_be_bytes(), seed))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

impl Header {
    pub(super) fn of(seed: u64, batch: u64, payload: &[u8]) -> Option<Self> {
        Some(Self { len: u32::try_from(payload.len()).ok()?, batch, payload: checksum(seed, PAYLOAD_KEY, payload) })
    }

    /// `None` if these bytes are not the fields of a frame of this ledger.
    pub(super) fn read(seed: u64, bytes: &[u8]) -> Option<Self> {
        let (fields, mut rest) = bytes.split_at_checked(HEADER - 8)?;
        if u64::from_be_bytes(take(&mut rest)?) != checksum(seed, HEADER_KEY, fields) {
            return None;
        }
        let mut fields = fields;
        if take::<4>(&mut fields)? != FRAME_MAGIC {
            return None;
        }
        Some(Self {
            len: u32::from_be_bytes(take(&mut fields)?),
            batch: u64::from_be_bytes(take(&mut fields)?),
            payload: u64::from_be_bytes(take(&mut fields)?),
        })
    }

    /// The fields that these bytes were written as, where exactly one byte is another. Eight thousand checksums of 24 bytes: a
    /// fraction of a millisecond.
    pub(super) fn read_mended(seed: u64, bytes: &[u8]) -> Option<Self> {
        let mut bytes: [u8; HEADER] = bytes.try_into().ok()?;
        for at in 0..HEADER {
            let Some(written) = bytes.get(at).copied() else { continue };
            for other in (0..=u8::MAX).filter(|other| *other != written) {
                bytes.get_mut(at).map(|byte| *byte = other)?;
                if let Some(header) = Self::read(seed, &bytes) {
                    return Some(header);
                }
            }
            bytes.get_mut(at).map(|byte| *byte = written)?;
        }
        None
    }

    pub(super) fn write(&self, seed: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(&FRAME_MAGIC);
        bytes.extend_from_slice(&self.len.to_be_bytes());
        bytes.extend_from_slice(&self.batch.to_be_bytes());
        bytes.extend_from_slice(&self.payload.to_be_bytes());
        let check = checksum(seed, HEADER_KEY, &bytes);
        bytes.extend_from_slice(&check.to_be_bytes());
        bytes
    }

    pub(super) fn is_of(&self, seed: u64, payload: &[u8]) -> bool {
        checksum(seed, PAYLOAD_KEY, payload) == self.payload
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_bytes(&self) -> u64 {
        HEADER as u64 + u64::from(self.len)
    }
}

/// The head of a file of so many bytes.
pub(super) fn write_head(seed: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD);
    bytes.extend_from_slice(&FILE_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&size.to_be_bytes());
    let check = checksum(seed, HEAD_KEY, &bytes);
    bytes.extend_from_slice(&check.to_be_bytes());
    bytes
}

/// The size that a head says; nothing where it is not one of this ledger.
pub(super) fn read_head(seed: u64, bytes: &[u8]) -> Option<u64> {
    let (fields, mut check) = bytes.split_at_checked(HEAD - 8)?;
    if u64::from_be_bytes(take(&mut check)?) != checksum(seed, HEAD_KEY, fields) {
        return None;
    }
    let mut fields = fields;
    if u64::from_be_bytes(take(&mut fields)?) != FILE_MAGIC {
        return None;
    }
    Some(u64::from_be_bytes(take(&mut fields)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back_only_with_its_key() {
        let header = Header::of(7, 9, b"payload").unwrap();
        assert_eq!((header.len, header.batch, header.frame_bytes()), (7, 9, 39));
        let bytes = header.write(7);
        assert_eq!(Header::read(7, &bytes), Some(header));
        assert!(header.is_of(7, b"payload") && !header.is_of(7, b"pailoud") && !header.is_of(8, b"payload"));
        assert_eq!((Header::read(8, &bytes), Header::read(7, &bytes[..31])), (None, None));
        let head = write_head(7, 4096);
        assert_eq!((read_head(7, &head), read_head(8, &head), read_head(7, b"")), (Some(4096), None, None));
        for at in 0..HEADER {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(Header::read(7, &changed), None, "changed at {at}");
            assert_eq!(Header::read_mended(7, &changed), Some(header), "changed at {at}");
            assert_eq!(Header::read_mended(8, &changed), None);
            changed[(at + 9) % HEADER] ^= 4;
            assert_eq!(Header::read_mended(7, &changed), None, "changed at {at} and behind it");
        }
    }
}
