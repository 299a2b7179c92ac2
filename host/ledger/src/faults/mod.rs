//! Failing files: refused writes are absent, acknowledged writes are present, and the ledger continues.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

mod disk;
mod log;
mod merge;
mod random;
mod seeds;

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use redb::{Builder, Database, DatabaseError, ReadOnlyDatabase, StorageBackend, backends::FileBackend};
use serde_json::value::RawValue;

use crate::{
    AcceptOutcome, Ledger, LedgerError, NewEvent, Options, RunRecord, RunWrite, StateWrite, samples,
    store::{FileSystem, Files, OpenFile, real_files},
};

#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Fault {
    None,
    /// The disk is full: nothing is written.
    Write,
    /// Half of it is written, then the disk is full.
    Torn,
    /// All is written, but not known to be durable.
    Sync,
    /// Durability is delayed.
    Slow,
    /// Writes are held back until the fault is over: the files are as a crash at this moment would leave them.
    Held,
}

#[derive(Debug, Clone, Default)]
struct Switch {
    fault: Arc<AtomicU8>,
    /// Operations that are still carried out before the fault begins.
    after: Arc<AtomicU64>,
    /// Operations that were held.
    held: Arc<AtomicU64>,
}

impl Switch {
    fn set(&self, fault: Fault) {
        self.set_after(0, fault);
    }

    fn set_after(&self, operations: u64, fault: Fault) {
        self.after.store(operations, Ordering::SeqCst);
        self.held.store(0, Ordering::SeqCst);
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u8
    }

    fn is_holding(&self) -> bool {
        self.held.load(Ordering::SeqCst) > 0
    }

    /// Counts an operation that changes a file; true where the fault has begun.
    fn has_begun(&self) -> bool {
        let left = self.after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |after| after.checked_sub(1));
        if left.is_ok() {
            return false;
        }
        while self.is(Fault::Held) {
            self.held.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

#[derive(Clone, Default)]
struct Switches {
    log: Switch,
    store: Switch,
}

struct FaultyFile {
    file: Box<dyn OpenFile>,
    switch: Switch,
}

impl OpenFile for FaultyFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.switch.has_begun() {
            return self.file.write_at(bytes, offset);
        }
        if self.switch.is(Fault::Write) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.switch.is(Fault::Torn) {
            self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_at(bytes, offset)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.switch.is(Fault::Sync) {
            return Err(io::Error::other("the sync failed"));
        }
        if self.switch.is(Fault::Slow) {
            std::thread::sleep(Duration::from_millis(500));
        }
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }
}

/// redb's file.
#[derive(Debug)]
struct FailingStore {
    file: FileBackend,
    switch: Switch,
}

impl FailingStore {
    fn check(&self) -> io::Result<()> {
        if self.switch.has_begun() && self.switch.is(Fault::Write) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for FailingStore {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        if self.switch.is(Fault::Sync) {
            return Err(io::Error::other("the sync failed"));
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write(offset, data)
    }
}

/// The real files, whose log and redb fail by switches.
struct FailingFiles {
    switches: Switches,
    real: Files,
}

impl FileSystem for FailingFiles {
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(FaultyFile { file: self.real.open(path)?, switch: self.switches.log.clone() }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(FaultyFile { file: self.real.create(path)?, switch: self.switches.log.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn sync_directory(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_directory(dir)
    }

    fn database(&self, path: &Path, cache_bytes: usize) -> Result<Database, DatabaseError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let backend = FailingStore { file: FileBackend::new(file)?, switch: self.switches.store.clone() };
        Builder::new().set_cache_size(cache_bytes).create_with_backend(backend)
    }

    fn database_for_reading(&self, path: &Path) -> Result<ReadOnlyDatabase, DatabaseError> {
        self.real.database_for_reading(path)
    }
}

/// Merges begin with this much in a part of the log.
const PART_BYTES: u64 = 1 << 20;

fn open(dir: &Path, interval: Duration) -> (Ledger, Switches) {
    open_with(Options { checkpoint_interval: interval, checkpoint_wal_bytes: PART_BYTES, ..Options::new(dir) })
}

fn open_with(options: Options) -> (Ledger, Switches) {
    let switches = Switches::default();
    let files = FailingFiles { switches: switches.clone(), real: real_files() };
    (options.open_with(Arc::new(files)).unwrap(), switches)
}

/// Copies the files as a crash leaves them. No merge may be under way, unless it is held: a copy takes longer than a crash.
fn crash(dir: &Path, copy: &Path) {
    for file in ["ledger.redb", "ledger-1.wal", "ledger-2.wal"] {
        std::fs::copy(dir.join(file), copy.join(file)).unwrap();
    }
}

fn raw<T: From<Box<RawValue>>>(text: &str) -> T {
    T::from(RawValue::from_string(text.to_owned()).unwrap())
}

async fn new_run(ledger: &Ledger) -> Result<RunRecord, LedgerError> {
    match ledger.accept(samples::accept()).await? {
        AcceptOutcome::New { mut runs, .. } => Ok(runs.remove(0)),
        AcceptOutcome::Repeated { .. } => panic!("repeated"),
    }
}

fn delta_write(run_no: u64, sequence: u64) -> RunWrite {
    let events = vec![NewEvent {
        sequence,
        kind: "message.delta".into(),
        data: raw("{}"),
        timestamp: 1,
        source: agent_host_protocol::EventSource::Host,
        metadata: None,
    }];
    let state = vec![StateWrite {
        scope_key: "s".into(),
        key: "k".into(),
        value: Some(raw(&sequence.to_string())),
        ..StateWrite::default()
    }];
    RunWrite { run_no, events, state, ..RunWrite::default() }
}
