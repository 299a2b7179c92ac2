//! The log of formats 1 to 4: one file, which started over after every checkpoint.
//!
//! A frame is `magic u32 | payload length u32 | batch u64 | checksum u64 | payload`, big-endian, from the first byte of the
//! file. The format is read when an older ledger is opened, and never written.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use memchr::memmem;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    error::OpenError,
    store::{Files, io_error},
};

const MAGIC_BYTES: [u8; 4] = *b"AHL1";
const MAGIC: u32 = u32::from_be_bytes(MAGIC_BYTES);
/// Bytes before the payload.
const HEADER: u64 = 24;
/// Bytes of payloads that the search for later frames compares with their checksums: seconds of work.
const SEARCH_BYTES: u64 = 16 << 30;

pub(crate) fn legacy_path(dir: &Path) -> PathBuf {
    dir.join("ledger.wal")
}

struct Header {
    len: u32,
    batch: u64,
    checksum: u64,
}

impl Header {
    fn read(bytes: [u8; HEADER as usize]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (batch, rest) = rest.split_first_chunk::<8>()?;
        let (checksum, _) = rest.split_first_chunk::<8>()?;
        (u32::from_be_bytes(*magic) == MAGIC).then(|| Self {
            len: u32::from_be_bytes(*len),
            batch: u64::from_be_bytes(*batch),
            checksum: u64::from_be_bytes(*checksum),
        })
    }
}

fn checksum(seed: u64, batch: u64, payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64_with_seed(&batch.to_be_bytes(), seed))
}

/// The log of a ledger of an older format.
pub(super) struct LegacyLog {
    file: File,
    path: PathBuf,
    seed: u64,
    len: u64,
}

impl LegacyLog {
    /// `None` without such a log: a backup has none.
    pub(super) fn open(dir: &Path, seed: u64) -> Result<Option<Self>, OpenError> {
        let path = legacy_path(dir);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io_error("open", &path))?,
        };
        let len = file.metadata().map_err(io_error("read", &path))?.len();
        Ok(Some(Self { file, path, seed, len }))
    }

    /// Hands every payload that follows batch `applied` to `each`, oldest first; gives the number of the last batch.
    ///
    /// The first frame that is torn, stale or out of order ends the log. If a frame cannot be read but a later one can, an
    /// acknowledged batch has been damaged, which is an error: a batch was written only after the one before was durable.
    pub(super) fn recover(&self, applied: u64, each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>) -> Result<u64, OpenError> {
        let (mut last, mut expected, mut offset) = (applied, None, 0);
        let mut payload = Vec::new();
        while let Some(header) = self.header(offset)? {
            let in_order = expected.is_none_or(|expected| header.batch == expected);
            if !in_order || !self.payload(offset, &header, &mut payload)? {
                break;
            }
            if expected.is_none() && header.batch > applied + 1 {
                return Err(
                    self.damaged(format!("it begins with batch {}, but ledger.redb ends with batch {applied}", header.batch))
                );
            }
            if header.batch > applied {
                each(&payload)?;
                last = header.batch;
            }
            expected = Some(header.batch + 1);
            offset += HEADER + u64::from(header.len);
        }
        let known = expected.map_or(applied, |expected| last.max(expected - 1));
        let later = self.later(offset, known)?;
        if later > 0 {
            return Err(OpenError::BatchLost { path: self.path.clone(), at: offset, batch: known + 1, later });
        }
        Ok(last)
    }

    /// Number of the frames from `offset` on that are of later batches than `known` and can be read.
    fn later(&self, offset: u64, known: u64) -> Result<u64, OpenError> {
        let mut bytes = vec![0; usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX)];
        self.read_at(&mut bytes, offset)?;
        let mut found = 0;
        each_frame(self.seed, &bytes, &|batch| batch > known && batch <= known.saturating_add(self.len), &mut |_, _| found += 1)
            .map_err(|TooMuch| self.damaged(TooMuch.to_string()))?;
        Ok(found)
    }

    fn damaged(&self, reason: String) -> OpenError {
        OpenError::LogDamaged { path: self.path.clone(), reason }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), OpenError> {
        self.file.read_exact_at(bytes, offset).map_err(io_error("read", &self.path))
    }

    fn header(&self, offset: u64) -> Result<Option<Header>, OpenError> {
        if offset + HEADER > self.len {
            return Ok(None);
        }
        let mut bytes = [0; HEADER as usize];
        self.read_at(&mut bytes, offset)?;
        Ok(Header::read(bytes).filter(|header| offset + HEADER + u64::from(header.len) <= self.len))
    }

    /// Reads the payload; false where it is not the one that the header was written for.
    fn payload(&self, offset: u64, header: &Header, payload: &mut Vec<u8>) -> Result<bool, OpenError> {
        payload.resize(usize::try_from(header.len).unwrap_or(usize::MAX), 0);
        self.read_at(payload, offset + HEADER)?;
        Ok(checksum(self.seed, header.batch, payload) == header.checksum)
    }

    /// Removes the file. Redb must have its batches durably, in a format that needs it no more.
    pub(super) fn remove(self, dir: &Path, files: &Files) -> Result<(), OpenError> {
        fs::remove_file(&self.path).map_err(io_error("remove", &self.path))?;
        files.sync_directory(dir).map_err(io_error("sync", dir))
    }
}

/// The bytes hold more that looks like a batch than can be compared.
#[derive(Debug)]
struct TooMuch;

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it has too much that looks like a batch and is none")
    }
}

/// Finds the frames of the batches that are wanted.
fn each_frame(seed: u64, bytes: &[u8], is_wanted: &dyn Fn(u64) -> bool, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), TooMuch> {
    let (mut from, mut left) = (0, SEARCH_BYTES);
    let magic = memmem::Finder::new(&MAGIC_BYTES);
    while let Some(at) = bytes.get(from..).and_then(|rest| magic.find(rest)) {
        from += at;
        let header = bytes.get(from..).and_then(|rest| rest.first_chunk()).and_then(|header| Header::read(*header));
        let frame = header.filter(|header| is_wanted(header.batch)).and_then(|header| {
            let start = from + HEADER as usize;
            let payload = bytes.get(start..start.checked_add(usize::try_from(header.len).ok()?)?)?;
            Some((header, payload))
        });
        from += 1;
        let Some((header, payload)) = frame else { continue };
        // Headers of this format have no checksum, so a guest can write what looks like one before many bytes.
        left = left.checked_sub(payload.len() as u64).ok_or(TooMuch)?;
        if checksum(seed, header.batch, payload) == header.checksum {
            each(header.batch, payload);
            from += HEADER as usize + payload.len() - 1;
        }
    }
    Ok(())
}

/// Every batch that the bytes of a log hold whole, in the order in which they stand there.
///
/// # Errors
/// [`OpenError::LogDamaged`] where the search would take hours.
pub(crate) fn readable_batches(seed: u64, path: &Path, bytes: &[u8], each: &mut dyn FnMut(u64, &[u8])) -> Result<(), OpenError> {
    each_frame(seed, bytes, &|_| true, each)
        .map_err(|TooMuch| OpenError::LogDamaged { path: path.to_owned(), reason: TooMuch.to_string() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SEED: u64 = 42;

    /// A log as the formats before wrote it.
    pub(in crate::store) fn legacy_frames(seed: u64, first: u64, payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (batch, payload) in (first..).zip(payloads) {
            bytes.extend_from_slice(&MAGIC.to_be_bytes());
            bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(&batch.to_be_bytes());
            bytes.extend_from_slice(&checksum(seed, batch, payload).to_be_bytes());
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    fn recovered(bytes: &[u8], applied: u64) -> Result<Vec<Vec<u8>>, OpenError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(legacy_path(dir.path()), bytes).unwrap();
        let mut payloads = Vec::new();
        LegacyLog::open(dir.path(), SEED)?.unwrap().recover(applied, &mut |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok(payloads)
    }

    #[test]
    fn recovery_reads_new_batches_in_order_up_to_the_torn_frame() {
        let whole = legacy_frames(SEED, 1, &[b"first", b"second", b"third"]);
        assert_eq!(recovered(&whole, 1).unwrap(), [b"second".to_vec(), b"third".to_vec()]);
        let ends = [24 + 5, 2 * 24 + 11, 3 * 24 + 16];
        for cut in 0..=whole.len() {
            let kept = ends.iter().filter(|end| cut >= **end).count();
            assert_eq!(recovered(&whole[..cut], 0).unwrap().len(), kept, "cut at {cut}");
        }
        let mut stale = whole.clone();
        stale[..29].copy_from_slice(&legacy_frames(SEED, 4, &[b"again"]));
        assert_eq!(recovered(&stale, 3).unwrap(), [b"again"]);
    }

    /// One damaged byte in a header dropped all later batches.
    #[test]
    fn a_damaged_byte_before_the_last_frame_is_refused() {
        let whole = legacy_frames(SEED, 1, &[b"first", b"second", b"", b"fourth"]);
        let starts = [0, 29, 59, 83, whole.len()];
        for at in 0..starts[3] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x11;
            let frame = starts.iter().rposition(|start| at >= *start).unwrap();
            let error = recovered(&damaged, 0).unwrap_err();
            let OpenError::BatchLost { at: place, batch, later, .. } = error else { panic!("damaged at {at}: {error}") };
            assert_eq!((place, batch, later), (starts[frame] as u64, frame as u64 + 1, 3 - frame as u64), "damaged at {at}");
            // What redb has is not missed.
            assert_eq!(recovered(&damaged, 4).unwrap(), Vec::<Vec<u8>>::new());
        }
    }

    #[test]
    fn stale_frames_behind_the_end_are_no_damage() {
        let mut stale = legacy_frames(SEED, 7, &[b"new", b"newer"]);
        stale.extend_from_slice(&[0x41; 7]);
        stale.extend(legacy_frames(SEED, 3, &[b"old", b"older"]));
        assert_eq!(recovered(&stale, 6).unwrap(), [b"new".to_vec(), b"newer".to_vec()]);
    }

    #[test]
    fn damage_and_gaps_are_refused() {
        let whole = legacy_frames(SEED, 1, &[b"first", b"second", b"third"]);
        let mut damaged = whole.clone();
        damaged[24 + 5 + 24] ^= 1;
        assert!(recovered(&damaged, 0).unwrap_err().to_string().contains("batch 2 "));
        assert!(recovered(&legacy_frames(SEED, 3, &[b"third"]), 1).is_err());
        assert!(recovered(&legacy_frames(SEED + 1, 1, &[b"first"]), 0).unwrap().is_empty());
        assert!(LegacyLog::open(tempfile::tempdir().unwrap().path(), SEED).unwrap().is_none());
    }
}
