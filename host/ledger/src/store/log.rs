//! The write-ahead log: one frame for each group commit, durable before anyone is answered.
//!
//! A frame is `magic u32 | payload length u32 | batch u64 | checksum u64 | payload`, big-endian. Batches are
//! numbered without a gap for the life of the ledger. After a checkpoint the log starts over at the front of the
//! same file, so that a sync writes data and no file metadata; what is left of the round before is told from
//! live frames by its batch numbers.
//!
//! The checksum is keyed with a number that never leaves the ledger, so bytes that a guest had written into the
//! log cannot pass for a frame.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::OpenError;

const MAGIC: u32 = u32::from_be_bytes(*b"AHL1");
/// Bytes before the payload.
const HEADER: u64 = 24;

/// Where frames are kept. Tests put a failing one in its place.
pub(crate) trait LogFile: Send {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
}

impl LogFile for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }
}

/// Opens or makes the file of the log, with space for `bytes` set aside where the file system can.
pub(crate) fn open_file(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() < bytes {
        reserve(&file, bytes)?;
        file.sync_all()?;
    }
    Ok(file)
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(bytes),
        result => result.map_err(io::Error::from),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

/// The log of an open ledger.
pub(crate) struct Log {
    file: Box<dyn LogFile>,
    path: PathBuf,
    seed: u64,
    /// Where the next frame begins.
    end: u64,
    /// Its batch number.
    next: u64,
}

/// What [`Log::recover`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Batches that the store did not have.
    pub(crate) batches: u64,
    /// The last batch that is in the store now.
    pub(crate) last: u64,
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

    fn write(&self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        let fields = [&MAGIC.to_be_bytes()[..], &self.len.to_be_bytes(), &self.batch.to_be_bytes(), &self.checksum.to_be_bytes()];
        for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }
}

fn checksum(seed: u64, batch: u64, payload: &[u8]) -> u64 {
    // The length is part of xxh3 itself, the batch number is made part of the seed.
    xxh3_64_with_seed(payload, xxh3_64_with_seed(&batch.to_be_bytes(), seed))
}

impl Log {
    pub(crate) fn new(file: Box<dyn LogFile>, path: PathBuf, seed: u64) -> Self {
        Self { file, path, seed, end: 0, next: 1 }
    }

    /// Hands every payload that follows batch `applied` to `apply`, oldest first.
    ///
    /// The first frame that is torn, stale or out of order ends the log: it was never acknowledged. Where a frame
    /// cannot be read and yet the one after it can, an acknowledged batch has been damaged, and that is an error.
    pub(crate) fn recover(
        &mut self,
        applied: u64,
        mut apply: impl FnMut(&[u8]) -> Result<(), OpenError>,
    ) -> Result<Recovered, OpenError> {
        let mut recovered = Recovered { batches: 0, last: applied };
        let mut expected = None;
        let mut offset = 0;
        let mut payload = Vec::new();
        while let Some(header) = self.header(offset)? {
            let in_order = expected.is_none_or(|expected| header.batch == expected);
            if !in_order || !self.payload(offset, &header, &mut payload)? {
                self.check_for_a_hole(offset, &header, expected.unwrap_or(applied + 1))?;
                break;
            }
            if expected.is_none() && header.batch > applied + 1 {
                let reason = format!("it begins with batch {}, but ledger.redb ends with batch {applied}", header.batch);
                return Err(OpenError::LogDamaged { path: self.path.clone(), reason });
            }
            if header.batch > applied {
                apply(&payload)?;
                recovered = Recovered { batches: recovered.batches + 1, last: header.batch };
            }
            expected = Some(header.batch + 1);
            offset += HEADER + u64::from(header.len);
        }
        self.next = recovered.last + 1;
        self.end = offset;
        Ok(recovered)
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { action: "read", path: self.path.clone(), source }
    }

    fn header(&mut self, offset: u64) -> Result<Option<Header>, OpenError> {
        let len = self.file.len().map_err(|e| self.io(e))?;
        if offset + HEADER > len {
            return Ok(None);
        }
        let mut bytes = [0; HEADER as usize];
        self.file.read_at(&mut bytes, offset).map_err(|e| self.io(e))?;
        Ok(Header::read(bytes).filter(|header| offset + HEADER + u64::from(header.len) <= len))
    }

    /// Reads the payload; false where it is not the one that the header was written for.
    fn payload(&mut self, offset: u64, header: &Header, payload: &mut Vec<u8>) -> Result<bool, OpenError> {
        payload.resize(usize::try_from(header.len).unwrap_or(usize::MAX), 0);
        self.file.read_at(payload, offset + HEADER).map_err(|e| self.io(e))?;
        Ok(checksum(self.seed, header.batch, payload) == header.checksum)
    }

    fn check_for_a_hole(&mut self, offset: u64, broken: &Header, expected: u64) -> Result<(), OpenError> {
        let after = offset + HEADER + u64::from(broken.len);
        let Some(header) = self.header(after)?.filter(|header| header.batch == expected + 1) else { return Ok(()) };
        if !self.payload(after, &header, &mut Vec::new())? {
            return Ok(());
        }
        let reason = format!("batch {expected} at byte {offset} cannot be read, but batch {} after it can", header.batch);
        Err(OpenError::LogDamaged { path: self.path.clone(), reason })
    }

    /// Makes a payload durable as the next batch.
    ///
    /// # Errors
    /// Then the frame is not part of the log: the next one takes its number and its place.
    pub(crate) fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).map_err(|_| io::Error::other("a batch is larger than 4 GiB"))?;
        let header = Header { len, batch: self.next, checksum: checksum(self.seed, self.next, payload) };
        let written = self
            .file
            .write_at(&header.write(), self.end)
            .and_then(|()| self.file.write_at(payload, self.end + HEADER))
            .and_then(|()| self.file.sync());
        if let Err(error) = written {
            self.retract();
            return Err(error);
        }
        self.end += HEADER + u64::from(len);
        self.next += 1;
        Ok(())
    }

    /// A frame that was written but not synced must not be found after a crash: its batch was answered as failed.
    /// Where even this fails, the next frame overwrites it.
    fn retract(&mut self) {
        let retracted = self.file.write_at(&[0; HEADER as usize], self.end).and_then(|()| self.file.sync());
        if let Err(error) = retracted {
            tracing::warn!(%error, "a batch that could not be made durable may be found after a crash");
        }
    }

    /// Starts over at the front. Everything up to [`Self::last`] must be durable in the store.
    pub(crate) fn restart(&mut self) {
        self.end = 0;
    }

    /// Number of the last batch.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Bytes of the frames since the log started over.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    const SEED: u64 = 42;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl LogFile for Memory {
        fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
            let (mut file, offset) = (self.0.lock(), usize::try_from(offset).unwrap());
            if file.len() < offset + bytes.len() {
                file.resize(offset + bytes.len(), 0);
            }
            file[offset..offset + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
            let (file, offset) = (self.0.lock(), usize::try_from(offset).unwrap());
            bytes.copy_from_slice(file.get(offset..offset + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().len() as u64)
        }
    }

    fn log(file: &Memory) -> Log {
        Log::new(Box::new(file.clone()), PathBuf::from("test.wal"), SEED)
    }

    fn recover(file: &Memory, applied: u64) -> Result<(Recovered, Vec<Vec<u8>>), OpenError> {
        let mut payloads = Vec::new();
        let recovered = log(file).recover(applied, |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok((recovered, payloads))
    }

    fn written(payloads: &[&[u8]]) -> Memory {
        let file = Memory::default();
        let mut log = log(&file);
        for payload in payloads {
            log.append(payload).unwrap();
        }
        file
    }

    #[test]
    fn what_the_store_does_not_have_is_applied_in_order() {
        let file = written(&[b"one", b"two", b"", b"four"]);
        assert_eq!(recover(&file, 0).unwrap().1, [b"one".to_vec(), b"two".to_vec(), Vec::new(), b"four".to_vec()]);
        let (recovered, payloads) = recover(&file, 3).unwrap();
        assert_eq!((recovered, payloads), (Recovered { batches: 1, last: 4 }, vec![b"four".to_vec()]));
        assert_eq!(recover(&file, 4).unwrap().0, Recovered { batches: 0, last: 4 });
    }

    #[test]
    fn a_log_cut_at_any_byte_keeps_the_whole_frames_before_the_cut() {
        let file = written(&[b"first", b"second", b"third"]);
        let whole = file.0.lock().clone();
        let ends = [24 + 5, 2 * 24 + 11, 3 * 24 + 16];
        for cut in 0..=whole.len() {
            for zeroed in [false, true] {
                let mut bytes = whole[..cut].to_vec();
                if zeroed {
                    bytes.resize(whole.len() + 100, 0);
                }
                let file = Memory(Arc::new(Mutex::new(bytes)));
                let kept = ends.iter().filter(|end| cut >= **end).count();
                assert_eq!(recover(&file, 0).unwrap().1.len(), kept, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_the_last_frame_drops_that_frame_alone() {
        let whole = written(&[b"first", b"second"]).0.lock().clone();
        for at in 24 + 5..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert_eq!(recover(&Memory(Arc::new(Mutex::new(bytes))), 0).unwrap().1, [b"first".to_vec()], "flipped {at}");
        }
    }

    #[test]
    fn a_damaged_frame_before_a_good_one_is_an_error_and_not_the_end() {
        let whole = written(&[b"first", b"second", b"third"]).0.lock().clone();
        for at in 2 * 24 + 5..2 * 24 + 11 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let error = recover(&Memory(Arc::new(Mutex::new(bytes))), 0).unwrap_err().to_string();
            assert!(error.contains("batch 2") && error.contains("backup"), "{error}");
        }
    }

    #[test]
    fn frames_of_the_round_before_are_not_applied() {
        let file = Memory::default();
        let mut log = log(&file);
        for n in 0..10u8 {
            log.append(&[n; 50]).unwrap();
        }
        log.restart();
        assert_eq!(recover(&file, 10).unwrap().0, Recovered { batches: 0, last: 10 });
        for n in 10..13u8 {
            log.append(&[n; 50]).unwrap();
            let (recovered, payloads) = recover(&file, 10).unwrap();
            assert_eq!(recovered.last, u64::from(n) + 1);
            assert_eq!(payloads.len(), usize::from(n) - 9);
        }
        log.append(&[99; 7]).unwrap();
        assert_eq!(recover(&file, 10).unwrap().0.last, 14);
    }

    #[test]
    fn a_log_that_begins_after_the_store_ends_is_refused() {
        let file = written(&[b"one", b"two"]);
        let mut log = log(&file);
        log.recover(0, |_| Ok(())).unwrap();
        log.restart();
        log.append(b"three").unwrap();
        assert!(matches!(recover(&file, 1), Err(OpenError::LogDamaged { .. })));
    }

    #[test]
    fn a_frame_of_another_ledger_is_not_applied() {
        let file = written(&[b"one"]);
        let mut other = Log::new(Box::new(file), PathBuf::new(), SEED + 1);
        assert_eq!(other.recover(0, |_| Ok(())).unwrap(), Recovered { batches: 0, last: 0 });
    }
}
