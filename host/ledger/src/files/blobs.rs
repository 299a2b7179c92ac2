//! Blobs: content-addressed files beside the ledger.
//!
//! `blobs/ab/abcdef…` holds the bytes whose SHA-256 is its name. A blob is written under a temporary name, made durable,
//! and then renamed, so a named blob is always complete. Rows refer to existing blobs only; an unreferenced blob is
//! garbage, which [`crate::Ledger::collect_garbage`] removes.
//!
//! A [`Blob`] pins its content: while one is held, or an operation that refers to it waits for its commit, the
//! collector leaves the file alone.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::{
    digest::{Digest, hex, parse_hex},
    error::LedgerError,
    files::{Disk, DiskNeed},
};

const TEMPORARY: &str = "tmp";

pub(crate) fn blobs_path(dir: &Path) -> PathBuf {
    dir.join("blobs")
}

/// The contents of blobs outside of this host, for the host after it.
pub(crate) trait BlobCopies: Send + Sync {
    /// True if the content is there as a whole.
    fn has(&self, digest: &Digest) -> io::Result<bool>;
    /// Puts the content of a file there, durably.
    fn put(&self, digest: &Digest, file: File) -> io::Result<()>;
    /// Writes the content to a file; gives its bytes. `None` where it is not there.
    fn get(&self, digest: &Digest, to: &File) -> io::Result<Option<u64>>;
    fn remove(&self, digest: &Digest) -> io::Result<()>;
    /// The blobs that are older than so many milliseconds.
    fn list(&self, older_than_ms: u64) -> io::Result<Vec<Digest>>;
}

/// The state of the files in memory.
#[derive(Default)]
pub(crate) struct Blobs {
    root: PathBuf,
    inner: Mutex<Inner>,
    /// True if the name of the folder itself is known to be durable.
    rooted: AtomicBool,
    /// `None` for a ledger of its own.
    copies: Option<Box<dyn BlobCopies>>,
}

#[derive(Default)]
struct Inner {
    pinned: HashMap<Digest, usize>,
    /// While somebody copies all that is there, nothing goes away.
    held: usize,
    /// Temporary files that a writer has open.
    open: HashSet<String>,
}

/// Makes names of temporary files differ, also between ledgers that one process opens one after the other.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Keeps the collector away from one blob.
pub(crate) struct Pin {
    blobs: Arc<Blobs>,
    digest: Digest,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut inner = self.blobs.inner.lock();
        if let Some(count) = inner.pinned.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                inner.pinned.remove(&self.digest);
            }
        }
    }
}

/// Keeps the collector away from every blob.
pub(crate) struct Hold(Arc<Blobs>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.inner.lock().held -= 1;
    }
}

fn unwritten(action: &str, error: &dyn fmt::Display) -> LedgerError {
    LedgerError::Storage(format!("cannot {action} a blob: {error}").into())
}

pub(crate) fn unreadable(error: &io::Error) -> LedgerError {
    LedgerError::damaged(format!("a blob cannot be read: {error}"))
}

/// Bytes of a blob, where it is there.
pub(crate) fn size_of(root: &Path, digest: &Digest) -> io::Result<Option<u64>> {
    match fs::metadata(path_of(root, digest)) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn path_of(root: &Path, digest: &Digest) -> PathBuf {
    let name = hex(digest);
    let shard = name.get(..2).unwrap_or_default();
    root.join(shard).join(&name)
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes a directory; it may be there already.
fn make(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Blobs {
    /// Removes unfinished files of earlier processes. Called by the owner of the ledger only.
    pub(crate) fn open(dir: &Path, copies: Option<Box<dyn BlobCopies>>) -> io::Result<Self> {
        let blobs = Self { root: blobs_path(dir), copies, ..Self::default() };
        make(&blobs.root)?;
        make(&blobs.root.join(TEMPORARY))?;
        blobs.remove_temporary()?;
        Ok(blobs)
    }

    /// Removes temporary files that nobody writes. Gives how many.
    pub(crate) fn remove_temporary(&self) -> io::Result<u64> {
        let mut removed = 0;
        for entry in fs::read_dir(self.root.join(TEMPORARY))? {
            let entry = entry?;
            // Held while it is removed, so that no writer takes the name meanwhile.
            let inner = self.inner.lock();
            if !entry.file_name().to_str().is_some_and(|name| inner.open.contains(name)) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Err(_) => {}
                    Ok(()) => removed += 1,
                }
            }
        }
        Ok(removed)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn pin(self: &Arc<Self>, digest: Digest) -> Pin {
        *self.inner.lock().pinned.entry(digest).or_default() += 1;
        Pin { blobs: Arc::clone(self), digest }
    }

    /// Bytes of a blob, where it is there. A blob that only the host before this one had is fetched.
    pub(crate) fn fetched_size(self: &Arc<Self>, digest: &Digest) -> io::Result<Option<u64>> {
        let found = size_of(&self.root, digest)?;
        let (None, Some(copies)) = (found, &self.copies) else { return Ok(found) };
        let temporary = self.temporary()?;
        let Some(size) = copies.get(digest, &temporary.file)? else { return Ok(None) };
        let mut hash = Sha256::new();
        io::copy(&mut File::open(&temporary.name.path)?, &mut hash)?;
        if Digest::from(hash.finalize()) != *digest {
            return Err(io::Error::other(format!("the content of blob {} outside of this host is damaged", hex(digest))));
        }
        self.keep_here(&temporary, *digest, size).map(|_| Some(size))
    }

    /// The blobs outside of this host that are older than so many milliseconds.
    pub(crate) fn copied(&self, older_than_ms: u64) -> io::Result<Vec<Digest>> {
        self.copies.as_ref().map_or(Ok(Vec::new()), |copies| copies.list(older_than_ms))
    }

    /// From when this returns, and as long as what it gives is held, no blob is removed: a row that is read meanwhile
    /// finds the blob that it refers to.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.inner.lock().held += 1;
        Hold(Arc::clone(self))
    }

    /// Pins a blob that a row is about to refer to.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where there is none of this name and size.
    pub(crate) fn pin_existing(self: &Arc<Self>, digest: Digest, size: u64) -> Result<Pin, LedgerError> {
        // Pinned first: from then on the collector does not take it away.
        let pin = self.pin(digest);
        match self.fetched_size(&digest).map_err(|error| unreadable(&error))? {
            Some(found) if found == size => Ok(pin),
            Some(found) => Err(LedgerError::invalid(format!("blob {} has {found} bytes, not {size}", hex(&digest)))),
            None => Err(LedgerError::invalid(format!(
                "there is no blob {}: write it, and keep what `finish` gave until the record is committed",
                hex(&digest)
            ))),
        }
    }

    /// Removes a blob unless it is pinned or `needed` reports a row that refers to it. No pin can happen in between.
    pub(crate) fn remove(
        &self,
        digest: &Digest,
        needed: impl FnOnce() -> Result<bool, LedgerError>,
    ) -> Result<bool, LedgerError> {
        let inner = self.inner.lock();
        if inner.held > 0 || inner.pinned.contains_key(digest) || needed()? {
            return Ok(false);
        }
        match fs::remove_file(path_of(&self.root, digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritten("remove", &error)),
            _ => match &self.copies {
                Some(copies) => copies.remove(digest).map(|()| true).map_err(|error| unwritten("remove", &error)),
                None => Ok(true),
            },
        }
    }

    fn temporary(self: &Arc<Self>) -> io::Result<Temporary> {
        let name = format!("{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
        self.inner.lock().open.insert(name.clone());
        let path = self.root.join(TEMPORARY).join(&name);
        // From here on its end takes the name back.
        let unopened = Name { blobs: Arc::clone(self), name, path };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unopened.path)?;
        Ok(Temporary { file, name: unopened })
    }

    /// Gives a finished temporary file its name, when its content is also where the next host finds it.
    fn keep(self: &Arc<Self>, temporary: &Temporary, digest: Digest, size: u64) -> io::Result<Pin> {
        let pin = self.pin(digest);
        if let Some(copies) = &self.copies {
            copies.put(&digest, File::open(&temporary.name.path)?)?;
        }
        self.keep_here(temporary, digest, size).map(|_| pin)
    }

    /// Gives a finished temporary file its name.
    fn keep_here(self: &Arc<Self>, temporary: &Temporary, digest: Digest, size: u64) -> io::Result<Pin> {
        let pin = self.pin(digest);
        let path = path_of(&self.root, &digest);
        let shard = path.parent().unwrap_or(&self.root);
        if size_of(&self.root, &digest)? != Some(size) {
            temporary.file.sync_all()?;
            make(shard)?;
            fs::rename(&temporary.name.path, &path)?;
        }
        // Every name on the way, also where it was there already: who made it may not have come so far.
        sync(shard)?;
        sync(&self.root)?;
        if !self.rooted.load(Ordering::Acquire) {
            self.root.parent().map_or(Ok(()), sync)?;
            self.rooted.store(true, Ordering::Release);
        }
        Ok(pin)
    }
}

struct Temporary {
    file: File,
    name: Name,
}

struct Name {
    blobs: Arc<Blobs>,
    name: String,
    path: PathBuf,
}

impl Drop for Name {
    fn drop(&mut self) {
        // The file may have its final name; the collector removes a leftover.
        let _ = fs::remove_file(&self.path);
        self.blobs.inner.lock().open.remove(&self.name);
    }
}

/// A blob that was written. While it (or a clone) is held the collector does not remove the file, so hold it until
/// the record that refers to it is committed.
#[derive(Clone)]
pub struct Blob {
    /// SHA-256 of the content, 64 hexadecimal digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    pub(crate) pin: Arc<Pin>,
}

impl Blob {
    /// SHA-256 of the content.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.pin.digest
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("sha256", &self.sha256).field("size", &self.size).finish_non_exhaustive()
    }
}

/// Every blob in its place. Other files are not ours and are passed over.
pub(crate) fn each_blob(root: &Path, mut each: impl FnMut(Digest, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    let shards = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        shards => shards?,
    };
    for shard in shards {
        let shard = shard?;
        let name = shard.file_name();
        let Some(name) = name.to_str().filter(|name| name.len() == 2) else { continue };
        for file in fs::read_dir(shard.path())? {
            let file = file?;
            let Some(digest) = file.file_name().to_str().filter(|file| file.starts_with(name)).and_then(parse_hex) else {
                continue;
            };
            match file.metadata() {
                Ok(metadata) if metadata.is_file() => each(digest, &metadata)?,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Files and bytes of all blobs.
pub(crate) fn blob_totals(blobs: &Arc<Blobs>) -> io::Result<(u64, u64)> {
    let mut totals = (0, 0);
    each_blob(blobs.root(), |_, metadata| {
        totals.0 += 1;
        totals.1 += metadata.len();
        Ok(())
    })?;
    Ok(totals)
}

/// Bytes that decide the media type: every relevant signature is within them.
const HEAD_BYTES: usize = 8 * 1024;

/// Writes are gathered to so much: large enough that the system call is not noticed.
const BUFFER_BYTES: usize = 64 * 1024;

/// A blob in the making. Dropped before [`BlobWriter::finish`] it leaves nothing behind.
///
/// Blocks: call it from a thread that may block.
pub struct BlobWriter {
    blobs: Arc<Blobs>,
    disk: Arc<Disk>,
    temporary: Temporary,
    hash: Sha256,
    size: u64,
    limit: u64,
    head: Vec<u8>,
    buffer: Vec<u8>,
    /// After an error nothing more is taken.
    failed: Option<LedgerError>,
}

impl fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobWriter").field("size", &self.size).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl BlobWriter {
    pub(crate) fn new(blobs: &Arc<Blobs>, disk: &Arc<Disk>, limit: u64) -> Result<Self, LedgerError> {
        disk.check(DiskNeed::NewEvent)?;
        let temporary = blobs.temporary().map_err(|error| unwritten("create", &error))?;
        Ok(Self {
            blobs: Arc::clone(blobs),
            disk: Arc::clone(disk),
            temporary,
            hash: Sha256::new(),
            size: 0,
            limit,
            head: Vec::new(),
            buffer: Vec::new(),
            failed: None,
        })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`LedgerError::TooLarge`] above the limit, [`LedgerError::DiskLow`], [`LedgerError::Storage`]. Afterwards the
    /// writer answers everything with the same error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.take(bytes);
        self.failed = result.as_ref().err().cloned();
        result
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        let size = self.size.saturating_add(bytes.len() as u64);
        if size > self.limit {
            return Err(LedgerError::TooLarge { limit: self.limit });
        }
        self.size = size;
        self.hash.update(bytes);
        let missing = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(bytes.get(..missing).unwrap_or(bytes));
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            return self.put(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LedgerError> {
        let buffer = std::mem::take(&mut self.buffer);
        self.put(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn put(&self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.disk.check(DiskNeed::NewEvent)?;
        (&self.temporary.file).write_all(bytes).map_err(|error| unwritten("write", &error))
    }

    /// The first 8 KiB, or fewer: enough to detect a media type.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Bytes that were written.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Makes the content durable and gives it its name. Content that is there already is kept once.
    ///
    /// # Errors
    /// Fails as [`BlobWriter::write`] does.
    pub fn finish(mut self) -> Result<Blob, LedgerError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.flush()?;
        let digest: Digest = self.hash.finalize().into();
        let pin = self.blobs.keep(&self.temporary, digest, self.size).map_err(|error| unwritten("keep", &error))?;
        Ok(Blob { sha256: hex(&digest), size: self.size, pin: Arc::new(pin) })
    }
}

/// A blob for reading. An open blob stays readable even if it is collected meanwhile.
#[derive(Debug)]
pub struct BlobReader {
    file: File,
    len: u64,
}

impl BlobReader {
    /// Opens a blob; `None` where there is none of this digest.
    pub(crate) fn open(root: &Path, digest: &Digest) -> Result<Option<Self>, LedgerError> {
        match File::open(path_of(root, digest)) {
            Ok(file) => {
                let len = file.metadata().map_err(|error| unreadable(&error))?.len();
                Ok(Some(Self { file, len }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&error)),
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the blob is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// At most `max` bytes from `offset`: fewer only at the end, none after it. Blocks.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] where the file cannot be read or is shorter than it was.
    pub fn read_at(&self, offset: u64, max: usize) -> Result<Vec<u8>, LedgerError> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(max)];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| unreadable(&error))?;
        Ok(bytes)
    }

    /// The file, at its start.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }
}
