//! The calls by which the log, redb and the identity reach their files. Tests put a simulated disk in the place of the operating
//! system.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use redb::{Database, DatabaseError, ReadOnlyDatabase};

/// A file that is open for reading and writing.
pub(crate) trait OpenFile: Send {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes the content and the length durable.
    fn sync(&mut self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Gives an empty file this length, and space for it where the file system can.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;
}

/// The names of files, and what is behind them.
pub(crate) trait FileSystem: Send + Sync {
    /// Opens a file that is there.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;
    /// Makes an empty file, in place of one that may be there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;
    /// Gives a file another name, in place of a file that may have it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names of a directory durable.
    fn sync_directory(&self, dir: &Path) -> io::Result<()>;
    /// Opens redb, and makes it where there is none.
    fn database(&self, path: &Path, cache_bytes: usize) -> Result<Database, DatabaseError>;
    /// Opens redb where it cannot be written to.
    fn database_for_reading(&self, path: &Path) -> Result<ReadOnlyDatabase, DatabaseError>;
}

/// The files of one ledger.
pub(crate) type Files = Arc<dyn FileSystem>;

/// The files of the operating system.
pub(crate) fn real_files() -> Files {
    Arc::new(RealFiles)
}

struct RealFiles;

impl OpenFile for File {
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

    #[cfg(target_os = "linux")]
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&*self, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.set_len(bytes),
            result => result.map_err(io::Error::from),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

impl FileSystem for RealFiles {
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::options().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, dir: &Path) -> io::Result<()> {
        let sync = |dir: &Path| File::open(dir).and_then(|dir| dir.sync_all());
        sync(dir)?;
        dir.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync)
    }

    fn database(&self, path: &Path, cache_bytes: usize) -> Result<Database, DatabaseError> {
        Database::builder().set_cache_size(cache_bytes).create(path)
    }

    fn database_for_reading(&self, path: &Path) -> Result<ReadOnlyDatabase, DatabaseError> {
        ReadOnlyDatabase::open(path)
    }
}
