//! A file of redb that may be damaged, as redb sees it: bytes that the disk does not give are zeros, and nothing is written.

use std::{
    collections::HashMap,
    fs::{File, TryLockError},
    io,
    ops::Bound,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use redb::{BackendError, Builder, StorageBackend};

use crate::{boundary::guarded, error::OpenError, upkeep::compact::CACHE_BYTES};

/// Bytes that are read, and kept where they were written, at once.
const BLOCK: usize = 4096;

type Blocks = HashMap<u64, Box<[u8; BLOCK]>>;

/// See the module. Clones read one file and count together.
#[derive(Debug, Clone)]
pub(in crate::upkeep) struct DamagedFile {
    file: Arc<File>,
    /// Bytes of the file.
    stored: u64,
    /// Bytes that redb sees.
    len: Arc<AtomicU64>,
    /// Blocks that redb has written: they go no further than memory.
    written: Arc<Mutex<Blocks>>,
    /// Bytes that the disk did not give.
    unreadable: Arc<AtomicU64>,
}

impl DamagedFile {
    pub(in crate::upkeep) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self {
            file: Arc::new(file),
            stored: len,
            len: Arc::new(AtomicU64::new(len)),
            written: Arc::default(),
            unreadable: Arc::default(),
        })
    }

    /// The same file, with other first bytes, and without what was written.
    pub(in crate::upkeep) fn with_start(&self, start: &[u8]) -> Self {
        let with = Self { written: Arc::default(), len: Arc::new(AtomicU64::new(self.stored)), ..self.clone() };
        with.put(0, start);
        with
    }

    /// Bytes of the file.
    pub(in crate::upkeep) fn stored(&self) -> u64 {
        self.stored
    }

    pub(in crate::upkeep) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Reads what the disk gives; the rest is zeros.
    pub(in crate::upkeep) fn take(&self, offset: u64, out: &mut [u8]) {
        let written = self.written.lock();
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let within = usize::try_from(at % BLOCK as u64).unwrap_or(0);
            let (piece, left) = rest.split_at_mut((BLOCK - within).min(rest.len()));
            match written.get(&(at / BLOCK as u64)).and_then(|block| block.get(within..within + piece.len())) {
                Some(block) => piece.copy_from_slice(block),
                None => self.take_stored(at, piece),
            }
            at += piece.len() as u64;
            rest = left;
        }
    }

    /// Fails where a host has the file open: what is read would not be of one moment.
    pub(in crate::upkeep) fn not_in_use(&self, dir: &Path) -> Result<(), OpenError> {
        match self.file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(OpenError::AlreadyOpen { dir: dir.to_owned() }),
            // A lock that was got ends here. A file system may have none.
            Ok(()) => {
                drop(self.file.unlock());
                Ok(())
            }
            Err(TryLockError::Error(_)) => Ok(()),
        }
    }

    /// Compares every page with the checksum that it was written with. False if redb would only make the list of free pages
    /// anew.
    ///
    /// # Errors
    /// The reason why pages cannot be read or have another checksum.
    pub(in crate::upkeep) fn check_pages(&self) -> Result<bool, String> {
        let checked = guarded(|| {
            let mut database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(self.with_start(&[]))?;
            database.check_integrity()
        });
        match checked? {
            Err(error) => Err(error.to_string()),
            Ok(_) if self.unreadable() > 0 => Err(format!("{} bytes cannot be read from the disk", self.unreadable())),
            Ok(is_intact) => Ok(is_intact),
        }
    }

    fn take_stored(&self, at: u64, piece: &mut [u8]) {
        piece.fill(0);
        let stored = usize::try_from(self.stored.saturating_sub(at)).unwrap_or(usize::MAX).min(piece.len());
        if let Some(stored) = piece.get_mut(..stored)
            && self.file.read_exact_at(stored, at).is_err()
        {
            self.unreadable.fetch_add(stored.len() as u64, Ordering::Relaxed);
            stored.fill(0);
        }
    }

    fn put(&self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = usize::try_from(at % BLOCK as u64).unwrap_or(0);
            let (piece, left) = rest.split_at((BLOCK - within).min(rest.len()));
            let mut written = self.written.lock();
            let block = written.entry(at / BLOCK as u64).or_insert_with(|| {
                let mut block = Box::new([0; BLOCK]);
                self.take_stored(at - within as u64, block.as_mut_slice());
                block
            });
            if let Some(place) = block.get_mut(within..within + piece.len()) {
                place.copy_from_slice(piece);
            }
            at += piece.len() as u64;
            rest = left;
        }
    }
}

impl StorageBackend for DamagedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::Relaxed))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.take(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.put(offset, data);
        Ok(())
    }

    // Whoever salvages has made sure that no host has the file.
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn query_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_the_file_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = DamagedFile::open(&path).unwrap();
        let changed = file.with_start(b"start");
        changed.write(4_090, b"across a block").unwrap();
        let mut model = bytes.clone();
        model.resize(12_000, 0);
        let mut out = vec![1; 12_000];
        file.take(0, &mut out);
        assert_eq!(out, model);
        model[..5].copy_from_slice(b"start");
        model[4_090..4_104].copy_from_slice(b"across a block");
        changed.read(0, &mut out).unwrap();
        assert_eq!(out, model);
        changed.take(4_000, &mut out[..500]);
        assert_eq!(out[..500], model[4_000..4_500]);
        assert_eq!((std::fs::read(&path).unwrap(), changed.stored(), file.unreadable()), (bytes, 10_000, 0));
    }
}
