//! A simulated disk with the files of one ledger.
//!
//! Each file has its content as programs see it, its durable content, and what was written since the last sync. A *machine that
//! goes off* leaves of every sector that was written since then the durable bytes or those of any write to it, independently of
//! other sectors: writes are lost, torn and reordered. A length that was set, and names that were given, are there or not. A sector
//! is whole. A *process that dies* leaves the content as programs see it, and what is not durable stays so.
//!
//! A sync that fails behaves as that of Linux: of each sector it is open whether it became durable, and what did not may count as
//! written from then on, so that a later sync that succeeds does not write it.
//!
//! Which call fails and what is left of it depends on the seed, on the kind of file and on the number of the call among those of
//! its kind, and on nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError, ReadOnlyDatabase, StorageBackend};

use super::random::Random;
use crate::store::{FileSystem, OpenFile};

const SECTOR: usize = 512;

/// The kinds of calls, which are counted one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    /// Writes and syncs of the log.
    LogWrites,
    LogReads,
    /// Writes, syncs and lengths of `ledger.redb`.
    StoreWrites,
    StoreReads,
    /// Names of files, and the writes of `ledger.identity`.
    Names,
}

impl Calls {
    pub(super) const ALL: [Self; 5] = [Self::LogWrites, Self::LogReads, Self::StoreWrites, Self::StoreReads, Self::Names];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call fails (EIO), and a write may be done in part.
    Fails,
    /// The disk is full (ENOSPC): what takes space fails, and a write may be done in part.
    Full,
    /// A sync succeeds, and does not do what it says.
    Lies,
}

/// Calls that fail: `count` of a kind, from the call `from` on.
#[derive(Debug, Clone)]
pub(super) struct FaultyCalls {
    pub(super) calls: Calls,
    pub(super) from: u64,
    pub(super) count: u64,
    pub(super) fault: Fault,
}

/// The faults of one life of a host.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    /// The machine goes off in the middle of this call, of those that change something.
    pub(super) off_at: Option<u64>,
    pub(super) faults: Vec<FaultyCalls>,
}

#[derive(Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// The content of sectors after each write since the last sync.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// Lengths since the last sync.
    lengths: Vec<usize>,
}

fn sector(bytes: &[u8], number: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    let from = bytes.get(number * SECTOR..).unwrap_or_default();
    let from = &from[..from.len().min(SECTOR)];
    sector[..from.len()].copy_from_slice(from);
    sector
}

fn set_sector(bytes: &mut [u8], number: usize, sector: &[u8; SECTOR]) {
    if let Some(to) = bytes.get_mut(number * SECTOR..) {
        let len = to.len().min(SECTOR);
        to[..len].copy_from_slice(&sector[..len]);
    }
}

impl Content {
    fn of(bytes: Vec<u8>) -> Self {
        Self { durable: bytes.clone(), seen: bytes, ..Self::default() }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if bytes.is_empty() {
            return;
        }
        if end > self.seen.len() {
            self.set_len(end);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let written = sector(&self.seen, number);
            self.unsynced.entry(number).or_default().push(written);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.seen.resize(len, 0);
        self.lengths.push(len);
        self.unsynced.retain(|number, _| number * SECTOR < len);
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for number in std::mem::take(&mut self.unsynced).into_keys() {
            set_sector(&mut self.durable, number, &sector(&self.seen, number));
        }
        self.lengths.clear();
    }

    /// A sync that does a part of its work: a sector is durable, or written by the next sync, or never.
    fn sync_badly(&mut self, random: &mut Random) {
        if random.one_in(2) {
            self.durable.resize(self.seen.len(), 0);
            self.lengths.clear();
        }
        // Often all sectors have one fate.
        let one = random.one_in(2).then(|| random.below(3));
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            match one.unwrap_or_else(|| random.below(3)) {
                0 => set_sector(&mut self.durable, number, &sector(&self.seen, number)),
                1 => drop(self.unsynced.insert(number, versions)),
                _ => {}
            }
        }
    }

    /// The content after the machine went off.
    fn left(&mut self, random: &mut Random) {
        let mut bytes = std::mem::take(&mut self.durable);
        let len = random.below(self.lengths.len() + 1).checked_sub(1).map_or(bytes.len(), |at| self.lengths[at]);
        bytes.resize(self.lengths.iter().copied().max().unwrap_or(0).max(bytes.len()), 0);
        let mode = random.below(4);
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            let version = match mode {
                0 => 0,
                1 => versions.len(),
                _ => random.below(versions.len() + 1),
            };
            if let Some(version) = version.checked_sub(1) {
                set_sector(&mut bytes, number, &versions[version]);
            }
        }
        bytes.resize(len, 0);
        *self = Self::of(bytes);
    }
}

type FileNames = BTreeMap<PathBuf, usize>;

#[derive(Default)]
struct State {
    seed: u64,
    files: Vec<Content>,
    names: FileNames,
    /// Names that may be left when the machine goes off: the durable ones, and those after each change since.
    names_left: Vec<FileNames>,
    /// All names that there were.
    known: BTreeSet<PathBuf>,
    plan: Plan,
    calls: [u64; Calls::ALL.len()],
    changes: u64,
    lives: u64,
    is_off: bool,
    faults: u64,
    has_lied: bool,
}

/// The answer to a call.
enum Verdict {
    Done,
    Badly(io::Error),
    Lied,
}

fn is_off() -> io::Error {
    io::Error::other("the machine is off")
}

impl State {
    fn random(&self, calls: Calls) -> Random {
        Random::of(&[self.seed, self.lives, calls as u64, self.calls[calls as usize]])
    }

    fn call(&mut self, calls: Calls, changes: bool, takes_space: bool, is_sync: bool) -> io::Result<Verdict> {
        if self.is_off {
            return Err(is_off());
        }
        self.calls[calls as usize] += 1;
        self.changes += u64::from(changes);
        if changes && self.plan.off_at == Some(self.changes) {
            self.is_off = true;
            return Ok(Verdict::Badly(is_off()));
        }
        let number = self.calls[calls as usize];
        for fault in &self.plan.faults {
            if fault.calls != calls || number < fault.from || number - fault.from >= fault.count {
                continue;
            }
            let verdict = match fault.fault {
                Fault::Fails => Verdict::Badly(io::Error::from_raw_os_error(5)),
                Fault::Full if takes_space => Verdict::Badly(io::ErrorKind::StorageFull.into()),
                Fault::Lies if is_sync => Verdict::Lied,
                Fault::Full | Fault::Lies => continue,
            };
            self.faults += 1;
            return Ok(verdict);
        }
        Ok(Verdict::Done)
    }

    fn write(&mut self, file: usize, calls: Calls, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let verdict = self.call(calls, true, true, false)?;
        let mut random = self.random(calls);
        let offset = usize::try_from(offset).unwrap();
        match verdict {
            Verdict::Badly(error) => {
                // A part ends where a sector ends.
                let end = (offset + random.below(bytes.len() + 1)) / SECTOR * SECTOR;
                let part = [0, end.saturating_sub(offset), bytes.len()][random.below(3)];
                self.files[file].write(offset, &bytes[..part]);
                Err(error)
            }
            _ => {
                self.files[file].write(offset, bytes);
                Ok(())
            }
        }
    }

    fn read(&mut self, file: usize, calls: Calls, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Verdict::Badly(error) = self.call(calls, false, false, false)? {
            return Err(error);
        }
        let offset = usize::try_from(offset).unwrap();
        let bytes = self.files[file].seen.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&mut self, file: usize, calls: Calls, len: u64) -> io::Result<()> {
        if let Verdict::Badly(error) = self.call(calls, true, true, false)? {
            return Err(error);
        }
        self.files[file].set_len(usize::try_from(len).unwrap());
        Ok(())
    }

    fn sync(&mut self, file: usize, calls: Calls) -> io::Result<()> {
        let verdict = self.call(calls, true, false, true)?;
        let mut random = self.random(calls);
        let is_off = self.is_off;
        let file = &mut self.files[file];
        match verdict {
            Verdict::Done => file.sync(),
            // What the machine had not written when it went off is decided for all files at once.
            Verdict::Badly(error) if is_off => return Err(error),
            Verdict::Badly(error) => {
                file.sync_badly(&mut random);
                return Err(error);
            }
            Verdict::Lied => {
                file.sync_badly(&mut random);
                self.has_lied = true;
            }
        }
        Ok(())
    }

    /// The file of a name; one that only the real directory has is durable.
    fn file(&mut self, path: &Path) -> io::Result<usize> {
        if let Some(file) = self.names.get(path) {
            return Ok(*file);
        }
        if self.known.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.files.push(Content::of(fs::read(path)?));
        let file = self.files.len() - 1;
        self.known.insert(path.to_owned());
        for names in self.names_left.iter_mut().chain([&mut self.names]) {
            names.insert(path.to_owned(), file);
        }
        Ok(file)
    }

    fn change_names(&mut self, change: impl FnOnce(&mut FileNames)) {
        if self.names_left.is_empty() {
            self.names_left.push(self.names.clone());
        }
        change(&mut self.names);
        self.names_left.push(self.names.clone());
    }
}

#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { seed, ..State::default() })))
    }

    /// The next life of a host begins.
    pub(super) fn begin(&self, plan: Plan) {
        let mut state = self.0.lock();
        state.plan = plan;
        state.calls = [0; Calls::ALL.len()];
        (state.changes, state.faults, state.is_off) = (0, 0, false);
        state.lives += 1;
    }

    /// No call does anything from now on.
    pub(super) fn turn_off(&self) {
        self.0.lock().is_off = true;
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().is_off
    }

    /// True if a call has failed in this life, or could not be made.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.0.lock();
        state.is_off || state.faults > 0
    }

    /// True if a sync has lied, in any life.
    pub(super) fn has_lied(&self) -> bool {
        self.0.lock().has_lied
    }

    /// Writes that were not durable are lost, or not.
    pub(super) fn lose(&self) {
        let state = &mut *self.0.lock();
        for (number, file) in state.files.iter_mut().enumerate() {
            file.left(&mut Random::of(&[state.seed, state.lives, 0x6c6f, number as u64]));
        }
        let mut random = Random::of(&[state.seed, state.lives, 0x6e61]);
        if !state.names_left.is_empty() {
            state.names = state.names_left.swap_remove(random.below(state.names_left.len()));
            state.names_left.clear();
        }
    }

    /// Gives the real directory the files of this one.
    pub(super) fn put_into_directory(&self) {
        let state = self.0.lock();
        for path in state.known.iter().filter(|path| !state.names.contains_key(*path) && path.exists()) {
            fs::remove_file(path).unwrap();
        }
        for (path, file) in &state.names {
            fs::write(path, &state.files[*file].seen).unwrap();
        }
    }
}

/// An open file.
#[derive(Clone)]
struct DiskFile {
    disk: Disk,
    file: usize,
    writes: Calls,
    reads: Calls,
}

impl std::fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DiskFile").field(&self.file).finish()
    }
}

impl DiskFile {
    fn new(disk: &Disk, path: &Path, file: usize) -> Self {
        let name = path.file_name().unwrap().to_string_lossy();
        let (writes, reads) = if name.starts_with("ledger.redb") {
            (Calls::StoreWrites, Calls::StoreReads)
        } else if name.contains(".wal") {
            (Calls::LogWrites, Calls::LogReads)
        } else {
            (Calls::Names, Calls::Names)
        };
        Self { disk: disk.clone(), file, writes, reads }
    }

    fn length(&self) -> io::Result<u64> {
        let state = self.disk.0.lock();
        if state.is_off { Err(is_off()) } else { Ok(state.files[self.file].seen.len() as u64) }
    }
}

impl OpenFile for DiskFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.0.lock().write(self.file, self.writes, offset, bytes)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.0.lock().read(self.file, self.reads, offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.0.lock().sync(self.file, self.writes)
    }

    fn len(&self) -> io::Result<u64> {
        self.length()
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.0.lock().set_len(self.file, self.writes, bytes)
    }
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.0.lock().read(self.file, self.reads, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.0.lock().set_len(self.file, self.writes, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.0.lock().sync(self.file, self.writes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.0.lock().write(self.file, self.writes, offset, data)
    }
}

impl FileSystem for Disk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.0.lock();
        if let Verdict::Badly(error) = state.call(Calls::Names, false, false, false)? {
            return Err(error);
        }
        let file = state.file(path)?;
        Ok(Box::new(DiskFile::new(self, path, file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.0.lock();
        if let Verdict::Badly(error) = state.call(Calls::Names, true, true, false)? {
            return Err(error);
        }
        state.files.push(Content::default());
        let file = state.files.len() - 1;
        state.known.insert(path.to_owned());
        state.change_names(|names| {
            names.insert(path.to_owned(), file);
        });
        Ok(Box::new(DiskFile::new(self, path, file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let file = state.file(from)?;
        let verdict = state.call(Calls::Names, true, true, false)?;
        let is_done = match &verdict {
            Verdict::Badly(_) => state.random(Calls::Names).one_in(2),
            _ => true,
        };
        if is_done {
            state.known.insert(to.to_owned());
            state.change_names(|names| {
                names.remove(from);
                names.insert(to.to_owned(), file);
            });
        }
        if let Verdict::Badly(error) = verdict { Err(error) } else { Ok(()) }
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.call(Calls::Names, true, false, true)? {
            Verdict::Badly(error) => return Err(error),
            Verdict::Lied => state.has_lied = true,
            Verdict::Done => state.names_left.clear(),
        }
        Ok(())
    }

    fn database(&self, path: &Path, cache_bytes: usize) -> Result<Database, DatabaseError> {
        let file = self.0.lock().file(path)?;
        Builder::new().set_cache_size(cache_bytes).create_with_backend(DiskFile::new(self, path, file))
    }

    fn database_for_reading(&self, path: &Path) -> Result<ReadOnlyDatabase, DatabaseError> {
        let file = self.0.lock().file(path)?;
        Builder::new().open_read_only_with_backend(DiskFile::new(self, path, file))
    }
}
