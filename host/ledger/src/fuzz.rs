//! Entry points for fuzzing (`tests/fuzz`): readers of the files of a ledger, given bytes instead of a directory.
//!
//! The functions make no claim about the bytes. What must hold is asserted by the targets, which know what was written.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use redb::{Database, DatabaseError, ReadOnlyDatabase, backends::InMemoryBackend};

use crate::{
    error::OpenError,
    rows::{Layer, Table, changes},
    store::{FRAMES, FileLog, FileSystem, Files, Log, OpenFile, PARTS, part_path},
    upkeep::salvage::is_row,
};

/// The number of tables: ids of tables are below it.
#[must_use]
pub fn table_count() -> usize {
    Table::ALL.len()
}

/// True if key and value are a row of the table with this id.
#[must_use]
pub fn is_row_of(table: u8, key: &[u8], value: &[u8]) -> bool {
    Table::from_id(table).is_some_and(|table| is_row(table, key, value))
}

/// The outcome of a payload of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRows {
    /// Changes that were read before the end or the first malformed one.
    pub changes: usize,
    /// Changes whose key and value are a row of their table.
    pub rows: usize,
    /// True if the batch is taken into memory as recovery does it.
    pub is_applied: bool,
}

/// Reads the payload of a batch as recovery does, and each of its rows as a salvage does.
#[must_use]
pub fn read_payload(payload: &[u8]) -> PayloadRows {
    let mut found = PayloadRows { changes: 0, rows: 0, is_applied: Layer::default().apply(payload).is_ok() };
    for change in changes(payload).map_while(Result::ok) {
        found.changes += 1;
        found.rows += usize::from(change.value.is_some_and(|value| is_row(change.table, change.key, value)));
    }
    found
}

/// The place of a frame: the part of the log, and the bytes in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FramePlace {
    /// Index of the part: 0 or 1.
    pub part: usize,
    /// Bytes of the frame, its header included.
    pub bytes: Range<usize>,
}

/// A write-ahead log in memory.
pub struct MemoryLog {
    seed: u64,
    files: Arc<MemoryFiles>,
    /// The place of each batch, in the order of their numbers, which begin with 1.
    pub frames: Vec<FramePlace>,
}

impl MemoryLog {
    /// Writes a log with one batch for each payload. Batches from `second` on (an index) are in the second part.
    ///
    /// # Errors
    /// Fails if a part has fewer than `part_bytes` left.
    pub fn write(seed: u64, part_bytes: u64, payloads: &[Vec<u8>], second: usize) -> io::Result<Self> {
        let files = Arc::new(MemoryFiles::default());
        let shared: Files = Arc::clone(&files) as Files;
        let mut log = FileLog::create(Path::new(""), seed, part_bytes, 0, &shared).map_err(io::Error::other)?;
        let (mut frames, mut part) = (Vec::new(), 0);
        for (index, payload) in payloads.iter().enumerate() {
            if index == second {
                log.turn()?;
                part = 1;
            }
            let start = usize::try_from(FRAMES + log.part_bytes()).unwrap_or(usize::MAX);
            let bytes = usize::try_from(log.append(payload).map_err(io::Error::other)?).unwrap_or(usize::MAX);
            frames.push(FramePlace { part, bytes: start..start.saturating_add(bytes) });
        }
        Ok(Self { seed, files, frames })
    }

    /// The bytes of a part.
    #[must_use]
    pub fn part(&self, part: usize) -> Vec<u8> {
        self.files.0.lock().get(&path(part)).map(|file| file.lock().clone()).unwrap_or_default()
    }

    /// Puts other bytes in the place of a part.
    pub fn set_part(&mut self, part: usize, bytes: Vec<u8>) {
        self.files.0.lock().insert(path(part), Arc::new(Mutex::new(bytes)));
    }

    /// The payloads of the batches after `applied`, as an opening recovers them.
    ///
    /// # Errors
    /// Fails where an opening fails.
    pub fn recover(&self, applied: u64) -> Result<Vec<Vec<u8>>, OpenError> {
        let files: Files = Arc::clone(&self.files) as Files;
        let mut payloads = Vec::new();
        FileLog::open(Path::new(""), self.seed, &files)?.recover(applied, &mut |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok(payloads)
    }
}

fn path(part: usize) -> PathBuf {
    part_path(Path::new(""), PARTS.get(part).copied().unwrap_or_default())
}

type Content = Arc<Mutex<Vec<u8>>>;

/// Files in memory. A sync has no effect: no crash is simulated here.
#[derive(Default)]
struct MemoryFiles(Mutex<HashMap<PathBuf, Content>>);

impl FileSystem for MemoryFiles {
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = self.0.lock().get(path).map(Arc::clone).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemoryFile(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = Content::default();
        self.0.lock().insert(path.to_owned(), Arc::clone(&file));
        Ok(Box::new(MemoryFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn database(&self, _: &Path, cache_bytes: usize) -> Result<Database, DatabaseError> {
        Database::builder().set_cache_size(cache_bytes).create_with_backend(InMemoryBackend::new())
    }

    fn database_for_reading(&self, _: &Path) -> Result<ReadOnlyDatabase, DatabaseError> {
        Err(DatabaseError::Storage(redb::StorageError::Io(io::ErrorKind::Unsupported.into())))
    }
}

struct MemoryFile(Content);

impl MemoryFile {
    fn range(offset: u64, len: usize) -> io::Result<Range<usize>> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(start..end)
    }
}

impl OpenFile for MemoryFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let range = Self::range(offset, bytes.len())?;
        let mut content = self.0.lock();
        if content.len() < range.end {
            content.resize(range.end, 0);
        }
        content.get_mut(range).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let range = Self::range(offset, bytes.len())?;
        bytes.copy_from_slice(self.0.lock().get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.0.lock().resize(usize::try_from(bytes).map_err(io::Error::other)?, 0);
        Ok(())
    }
}
