//! A copy of a ledger, whole, while it is in use.
//!
//! A backup is one read transaction, written into a store of its own, and the blobs that its rows refer to. Writes continue
//! meanwhile. The backup contains all that was acknowledged before its start; a later write is in it as a whole or not at
//! all.
//!
//! ```text
//! NAME/backup.json      what is in it, with the digest of the store; written last
//! NAME/ledger/          a ledger: a store with an empty log, and `blobs`
//! NAME/components/ …    folders of files that never change, such as the components of runs
//! ```
//!
//! The backup is made under another name (`.NAME.partial`) and renamed when all of it is on disk, so a folder with the
//! requested name is a complete backup. The next backup removes the leftovers of a killed process ([`remove_unfinished`]).

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use agent_host_protocol::{Timestamp, time};
use redb::{Database, Durability};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    boundary::guard_open,
    digest::{Digest, hex},
    error::{LedgerError, OpenError},
    files::{blobs_path, free_in, path_of},
    handle::Ledger,
    rows::{FORMAT, Reader, Table, malformed, schema},
    store::{MissingLedger, create, database_path, open, open_database, real_files},
    upkeep::compact::CACHE_BYTES,
};

/// Version of the layout of a backup. A higher version is refused.
pub(crate) const BACKUP_FORMAT: u32 = 1;

/// Bytes of rows in one transaction of the copy: more is not kept in memory.
const CHUNK_BYTES: usize = 32 * 1024 * 1024;

/// Memory for pages of the copy, which is written once and not read.
const COPY_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// After so many rows and files it is looked whether to go on: the ledger may be closed, the disk nearly full.
const LOOK_EVERY: u64 = 1_024;

/// The manifest of a backup: `backup.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BackupManifest {
    /// Version of the layout.
    pub backup_format: u32,
    /// Time of the snapshot.
    pub created_at: Timestamp,
    /// Version of the host that made it.
    pub agent_host: String,
    /// Format of the ledger in it.
    pub ledger_format: u32,
    /// Rows of the store.
    pub rows: u64,
    /// Bytes of the store.
    pub store_bytes: u64,
    /// SHA-256 of the store, 64 hexadecimal digits.
    pub store_sha256: String,
    /// Files of content.
    pub blobs: u64,
    /// Their bytes. On one file system they take no space twice: they are links to the files of the ledger.
    pub blob_bytes: u64,
    /// Folders beside the ledger that are in it.
    pub beside: Vec<String>,
    /// Data of the host that the backup does not contain: files that the operator keeps, or that can be made again.
    pub left_out: Vec<String>,
}

/// The source and the target of a backup.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The folder of the backup, which must not exist; missing parents are made.
    pub to: PathBuf,
    /// Folders of files that never change, with their names in the backup and beside the ledger. Missing folders are
    /// skipped.
    pub beside: Vec<(String, PathBuf)>,
    /// Names of omitted data, for the manifest.
    pub left_out: Vec<String>,
    /// Version of the host, for the manifest.
    pub agent_host: String,
}

/// The reason why a backup was not made or not restored, or a ledger not salvaged. No folder of the requested name is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The target exists.
    #[error("{path} is there already: give the backup another name, or move that away")]
    AlreadyThere {
        /// Path of the target.
        path: PathBuf,
    },
    /// The target of a salvage has something in it.
    #[error("{path} is not empty: name a folder for the new ledger that does not exist")]
    NotEmpty {
        /// Path of the target.
        path: PathBuf,
    },
    /// Another process makes it.
    #[error("another process works on {path}: wait for its end")]
    Busy {
        /// The unfinished folder.
        path: PathBuf,
    },
    /// The folder is no backup.
    #[error("{path} is not a backup ({reason}): name the folder that has `backup.json` in it")]
    NotABackup {
        /// The folder.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The backup has another content when it was made.
    #[error("the backup {path} is damaged: {reason}. Take another one, or another copy of it")]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The target of a restore has a ledger.
    #[error("there is a ledger in {dir} already: move it away first, or name another data directory with --data-dir")]
    LedgerThere {
        /// The directory.
        dir: PathBuf,
    },
    /// The disk has too little space.
    #[error("the disk of {path} has {free} bytes left and needs {needed}: free some space, or back up to another disk")]
    DiskLow {
        /// Path of the target.
        path: PathBuf,
        /// Bytes that are left.
        free: u64,
        /// Bytes that would be needed.
        needed: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The ledger could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ledger could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

pub(crate) fn io_failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BackupError + 'a {
    move |source| BackupError::Io { action, path: path.to_owned(), source }
}

/// The copy could not be written: the source was read.
fn unwritten(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> BackupError + '_ {
    move |error| BackupError::Io { action: "write", path: path.to_owned(), source: io::Error::other(error.to_string()) }
}

impl Ledger {
    /// Makes a backup of the state that is committed at the call. Blocks while the store is copied; writers are not
    /// delayed, but pages that they replace are freed only at the end, and no garbage is collected meanwhile.
    ///
    /// # Errors
    /// [`BackupError`]; nothing is left but, where the process is killed, a folder `.NAME.partial`.
    pub fn backup(&self, backup: &Backup) -> Result<BackupManifest, BackupError> {
        let shared = self.shared();
        // Before the rows are read: no blob that they refer to goes away.
        let _hold = shared.blobs.hold();
        let reader = self.reader()?;
        let fetch = |digest: &Digest| shared.blobs.fetched_size(digest).map(drop);
        let copy = Copy {
            reader: &reader,
            dir: &shared.dir,
            alive: &|| self.open(),
            fetch: &fetch,
            reserve: shared.disk.reserve(),
            seen: 0,
        };
        make(backup, copy).map_err(|error| match (&error, self.open()) {
            // Rows that cannot be read because the ledger was closed are not damaged.
            (BackupError::Ledger(_), Err(closed)) => closed.into(),
            _ => error,
        })
    }
}

/// Makes a backup of a ledger that no host has open. See [`Ledger::backup`].
///
/// # Errors
/// [`BackupError`].
pub fn backup(dir: impl AsRef<Path>, backup: &Backup) -> Result<BackupManifest, BackupError> {
    let dir = dir.as_ref();
    guard_open(dir, || {
        let store = open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?;
        let manifest = {
            let reader = store.reader()?;
            make(backup, Copy { reader: &reader, dir, alive: &|| Ok(()), fetch: &|_| Ok(()), reserve: 0, seen: 0 })
        };
        store.close()?;
        manifest
    })
}

/// Removes what killed processes left of backups in this folder. Gives how many there were.
///
/// # Errors
/// Fails with the errors of the file system.
pub fn remove_unfinished(dir: impl AsRef<Path>) -> Result<usize, BackupError> {
    let dir = dir.as_ref();
    let mut removed = 0;
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(io_failed("read", dir))?,
    };
    for entry in entries {
        let path = entry.map_err(io_failed("read", dir))?.path();
        let unfinished = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with('.') && name.ends_with(".partial"));
        if unfinished && path.is_dir() && lock(&path).is_ok() {
            fs::remove_dir_all(&path).map_err(io_failed("remove", &path))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Gives a backup another place, on another disk where need be. Killed in the middle, it is in the old place or in both.
///
/// # Errors
/// [`BackupError`].
pub fn move_backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), BackupError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::AlreadyThere { path: to.to_owned() });
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_dir(parent)?;
    match fs::rename(from, to) {
        Ok(()) => return sync(parent),
        Err(error) if error.kind() != io::ErrorKind::CrossesDevices => return Err(io_failed("move", from)(error)),
        Err(_) => {}
    }
    let unfinished = UnfinishedFolder::begin(to)?;
    copy_tree(from, &unfinished.path)?;
    unfinished.name(to)?;
    fs::remove_dir_all(from).map_err(io_failed("remove", from))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), BackupError> {
    for entry in fs::read_dir(from).map_err(io_failed("read", from))? {
        let entry = entry.map_err(io_failed("read", from))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            make_dir(&to)?;
            copy_tree(&from, &to)?;
        } else {
            copy(&from, &to)?;
        }
    }
    sync(to)
}

/// A folder in the making, which is removed unless it gets its name.
pub(crate) struct UnfinishedFolder {
    pub(crate) path: PathBuf,
    /// Tells other processes that it is being worked on.
    _lock: File,
    named: bool,
}

impl UnfinishedFolder {
    /// Begins what will be `to`.
    pub(crate) fn begin(to: &Path) -> Result<Self, BackupError> {
        let name = to.file_name().and_then(|name| name.to_str());
        let (Some(name), Some(parent)) = (name, to.parent()) else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a folder");
            return Err(io_failed("make", to)(source));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(io_failed("make", parent))?;
        let path = parent.join(format!(".{name}.partial"));
        if path.exists() {
            drop(lock(&path)?);
            fs::remove_dir_all(&path).map_err(io_failed("remove", &path))?;
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(io_failed("make", &path))?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock, named: false })
    }

    /// Gives it its name. All that is in it must be on disk.
    pub(crate) fn name(mut self, to: &Path) -> Result<(), BackupError> {
        sync(&self.path)?;
        // At most an empty folder is replaced.
        fs::rename(&self.path, to).map_err(io_failed("name", to))?;
        self.named = true;
        self.path.parent().map_or(Ok(()), sync)
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        if !self.named
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished backup could not be removed");
        }
    }
}

fn lock(path: &Path) -> Result<File, BackupError> {
    let dir = File::open(path).map_err(io_failed("open", path))?;
    match rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(dir),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BackupError::Busy { path: path.to_owned() }),
        Err(error) => Err(io_failed("lock", path)(error.into())),
    }
}

pub(crate) fn sync(path: &Path) -> Result<(), BackupError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(io_failed("sync", path))
}

pub(crate) fn make_dir(path: &Path) -> Result<(), BackupError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_failed("make", path))
}

/// SHA-256 of a file, and its bytes.
pub(crate) fn digest_of(path: &Path) -> Result<(String, u64), BackupError> {
    let mut file = File::open(path).map_err(io_failed("open", path))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 256 * 1024]);
    loop {
        let read = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(io_failed("read", path))?,
        };
        if read == 0 {
            let digest: Digest = hash.finalize().into();
            return Ok((hex(&digest), size));
        }
        hash.update(buffer.get(..read).unwrap_or_default());
        size += read as u64;
    }
}

struct Copy<'a> {
    reader: &'a Reader,
    dir: &'a Path,
    /// Fails if the backup should stop.
    alive: &'a dyn Fn() -> Result<(), LedgerError>,
    /// Brings the file of a blob here, where only the database of a cluster has it.
    fetch: &'a dyn Fn(&Digest) -> io::Result<()>,
    /// Bytes that the disk must keep, for the host that writes to it.
    reserve: u64,
    seen: u64,
}

fn make(backup: &Backup, mut copy: Copy<'_>) -> Result<BackupManifest, BackupError> {
    let created_at = time::now();
    let to = &backup.to;
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::AlreadyThere { path: to.clone() });
    }
    let unfinished = UnfinishedFolder::begin(to)?;
    let store_bytes = fs::metadata(database_path(copy.dir)).map_or(0, |metadata| metadata.len());
    copy.room(&unfinished.path, store_bytes)?;
    let ledger = unfinished.path.join("ledger");
    make_dir(&ledger)?;
    let rows = copy.rows(&ledger)?;
    let (blobs, blob_bytes) = copy.blobs(&ledger)?;
    sync(&ledger)?;
    let mut beside = Vec::new();
    for (name, from) in &backup.beside {
        if from.is_dir() {
            link_all(from, &unfinished.path.join(name))?;
            beside.push(name.clone());
        }
    }
    let (store_sha256, store_bytes) = digest_of(&database_path(&ledger))?;
    let manifest = BackupManifest {
        backup_format: BACKUP_FORMAT,
        created_at,
        agent_host: backup.agent_host.clone(),
        ledger_format: FORMAT,
        rows,
        store_bytes,
        store_sha256,
        blobs,
        blob_bytes,
        beside,
        left_out: backup.left_out.clone(),
    };
    let path = manifest_path(&unfinished.path);
    let mut text = serde_json::to_vec_pretty(&manifest).map_err(|error| unwritten(&path)(&error))?;
    text.push(b'\n');
    fs::write(&path, text).map_err(io_failed("write", &path))?;
    sync(&path)?;
    // The last look: a ledger that was closed meanwhile may have given half of its rows.
    (copy.alive)()?;
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::AlreadyThere { path: to.clone() });
    }
    unfinished.name(to)?;
    Ok(manifest)
}

pub(crate) fn manifest_path(dir: &Path) -> PathBuf {
    dir.join("backup.json")
}

impl Copy<'_> {
    fn room(&self, path: &Path, bytes: u64) -> Result<(), BackupError> {
        let needed = self.reserve.saturating_add(bytes);
        match free_in(path) {
            Some(free) if free < needed => Err(BackupError::DiskLow { path: path.to_owned(), free, needed }),
            _ => Ok(()),
        }
    }

    fn look(&mut self, path: &Path) -> Result<(), BackupError> {
        self.seen += 1;
        if self.seen.is_multiple_of(LOOK_EVERY) {
            (self.alive)()?;
            self.room(path, 0)?;
        }
        Ok(())
    }

    /// Every row, into a new store with an empty log. Gives how many there are.
    fn rows(&mut self, dir: &Path) -> Result<u64, BackupError> {
        let path = database_path(dir);
        let unwritten = unwritten(&path);
        let database = open_database(dir, &path, COPY_CACHE_BYTES, &real_files())?;
        create(dir, &database)?;
        let mut count = 0;
        for table in Table::ALL.iter().filter(|table| !matches!(table, Table::Meta | Table::Workspaces)) {
            count += self.table(*table, &database, &path)?;
        }
        count += self.workspaces(&database, &path)?;
        let mut last = database.begin_write().map_err(|error| unwritten(&error))?;
        // The state of the allocator comes along, so that opening it takes no time.
        last.set_quick_repair(true);
        last.commit().map_err(|error| unwritten(&error))?;
        database.close().map_err(|error| unwritten(&error))?;
        sync(&path)?;
        Ok(count)
    }

    fn table(&mut self, table: Table, database: &Database, path: &Path) -> Result<u64, BackupError> {
        let unwritten = unwritten(path);
        let rows = self.reader.table(table)?;
        let mut rows = rows.iter()?;
        let (mut count, mut more) = (0, true);
        while more {
            let mut transaction = database.begin_write().map_err(|error| unwritten(&error))?;
            let mut bytes = 0;
            {
                let mut to = transaction.open_table(table.definition()).map_err(|error| unwritten(&error))?;
                while bytes < CHUNK_BYTES {
                    let Some(row) = rows.next() else {
                        more = false;
                        break;
                    };
                    let (key, value) = row?;
                    bytes += key.value().len() + value.value().len();
                    to.insert(key.value(), value.value()).map_err(|error| unwritten(&error))?;
                    count += 1;
                    self.look(path)?;
                }
            }
            // A full transaction goes to the disk, so that memory stays bounded; the last commit makes the rest durable.
            if bytes < CHUNK_BYTES {
                transaction.set_durability(Durability::None).map_err(|error| unwritten(&error))?;
            }
            transaction.commit().map_err(|error| unwritten(&error))?;
        }
        Ok(count)
    }

    /// The bytes that workspaces keep, with what is not merged.
    fn workspaces(&self, database: &Database, path: &Path) -> Result<u64, BackupError> {
        let unwritten = unwritten(path);
        let usage = self.reader.workspace_usage()?;
        let transaction = database.begin_write().map_err(|error| unwritten(&error))?;
        {
            let mut to = transaction.open_table(Table::Workspaces.definition()).map_err(|error| unwritten(&error))?;
            for (workspace, bytes) in &usage {
                to.insert(workspace.as_bytes(), schema::number(*bytes).as_slice()).map_err(|error| unwritten(&error))?;
            }
        }
        transaction.commit().map_err(|error| unwritten(&error))?;
        Ok(usage.len() as u64)
    }

    /// Every blob that a row refers to. Gives how many, and their bytes.
    fn blobs(&mut self, dir: &Path) -> Result<(u64, u64), BackupError> {
        let (from, to) = (blobs_path(self.dir), blobs_path(dir));
        make_dir(&to)?;
        let refs = self.reader.table(Table::BlobRefs)?;
        let (mut count, mut bytes, mut last, mut shard) = (0, 0, None::<Digest>, None::<PathBuf>);
        for row in refs.iter()? {
            let (key, _) = row?;
            let (digest, ..) = schema::read_blob_ref(key.value()).ok_or_else(|| malformed(Table::BlobRefs))?;
            if last.as_ref() == Some(digest) {
                continue;
            }
            last = Some(*digest);
            let path = path_of(&to, digest);
            let folder = path.parent().unwrap_or(&to);
            if shard.as_deref() != Some(folder) {
                if let Some(done) = shard.replace(folder.to_owned()) {
                    sync(&done)?;
                }
                make_dir(folder)?;
            }
            (self.fetch)(digest).map_err(io_failed("fetch", &path))?;
            bytes += link(&path_of(&from, digest), &path)?;
            count += 1;
            self.look(dir)?;
        }
        if let Some(done) = shard {
            sync(&done)?;
        }
        sync(&to)?;
        Ok((count, bytes))
    }
}

/// A link to a file that never changes, or, where the file system has none, a copy of it. Gives its bytes.
pub(crate) fn link(from: &Path, to: &Path) -> Result<u64, BackupError> {
    if fs::hard_link(from, to).is_err() {
        copy(from, to)?;
    }
    Ok(fs::metadata(to).map_err(io_failed("look at", to))?.len())
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), BackupError> {
    fs::copy(from, to).map_err(io_failed("copy", from))?;
    sync(to)
}

/// The files of a folder, without those in the making.
pub(crate) fn files_in(dir: &Path) -> Result<Vec<PathBuf>, BackupError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_failed("read", dir))? {
        let path = entry.map_err(io_failed("read", dir))?.path();
        let in_the_making =
            path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| extension.starts_with("partial"));
        if path.is_file() && !in_the_making {
            files.push(path);
        }
    }
    Ok(files)
}

fn link_all(from: &Path, to: &Path) -> Result<(), BackupError> {
    make_dir(to)?;
    for file in files_in(from)? {
        let Some(name) = file.file_name() else { continue };
        match link(&file, &to.join(name)) {
            // The blob is no longer referenced.
            Err(BackupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            linked => drop(linked?),
        }
    }
    sync(to)
}
