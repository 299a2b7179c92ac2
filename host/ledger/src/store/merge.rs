//! Merging rows from memory into redb, on a thread of its own.
//!
//! A merge is one durable commit with the newest change of every key of a layer, in the order of keys. The merge is the
//! checkpoint: afterwards redb has the batches of one part of the log, which can be overwritten. A merge also saves redb's
//! allocator state, so that the time of opening after a crash depends on the log alone and never on the size of the file;
//! for that reason there is no other kind of durable commit.
//!
//! A merge delays nobody: readers see the rows in memory meanwhile, and the writer continues with the other part of the
//! log. A failed merge loses no rows, because they stay in memory and in the log; redb is opened again, because it accepts
//! no write after a failed one, and the merge is repeated until it succeeds.

use std::{
    borrow::Cow,
    path::PathBuf,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use redb::{Database, ReadOnlyDatabase, ReadableTable, WriteTransaction};

use crate::{
    boundary::guarded,
    error::LedgerError,
    files::free_in,
    rows::{
        Base, IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, Layer, PackedItems, Row, RowSet, Table, UsageChanges, Views,
        changed, derive, json, malformed, number, pair, read_number, read_pair, table_source, workspace_of_run,
    },
    store::{
        Epochs, Files,
        database::{database_path, put_applied},
    },
};

/// Idempotency keys that one merge forgets at most: more than are made between two merges, so that they do not pile up,
/// and few enough that a merge after a long stop is not noticed.
const PURGE_ROWS: usize = 20_000;

/// A merge that failed is repeated after this long: a full disk may have space again.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });

/// After so many times that redb could not even be read, the ledger gives up.
const REOPENINGS: u32 = 20;

/// Disk space that a merge needs, as a multiple of the bytes of its rows: pages are written whole, and once more for the
/// pages that lead to them. A merge does not begin with less space, because redb must be opened again after a failed write.
const SPACE: u64 = 2;

/// Called with the reason for which the last try of a merge has failed; `None` when one has succeeded.
type FailingHook = Box<dyn Fn(Option<&str>) + Send>;

/// Callbacks about merges.
pub(crate) struct MergeEvents {
    /// A merge is done: how long it took, and the bytes of the log that are free again.
    pub(crate) merged: Box<dyn Fn(Duration, u64) + Send>,
    pub(crate) failing: FailingHook,
    /// redb cannot be used any more.
    pub(crate) failed: Box<dyn Fn(&LedgerError) + Send>,
}

/// A layer that is to be merged.
pub(super) struct Job {
    pub(super) layer: Arc<Layer>,
    /// The last batch in it.
    pub(super) last: u64,
    /// Epochs up to that batch, if redb is a copy of a cluster's ledger.
    pub(super) epochs: Option<Epochs>,
    /// Bytes of its batches in the log.
    pub(super) log_bytes: u64,
}

/// State of the merging thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MergeState {
    /// Redb has all rows that the merger received.
    Idle,
    /// A merge is under way.
    Busy,
    /// The last try has failed, for this reason; it is repeated.
    Failing(Arc<str>),
    /// The merge has ended.
    Ended,
}

struct MergerHandle {
    state: MergeState,
    job: Option<Job>,
    /// No job follows, and a failing one is not repeated.
    closing: bool,
}

/// The thread that merges.
pub(super) struct Merger {
    desk: Arc<(Mutex<MergerHandle>, Condvar)>,
    thread: Option<JoinHandle<Option<Database>>>,
}

/// Files and callbacks of the merging thread.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) cache_bytes: usize,
    pub(super) views: Arc<Views>,
    pub(super) events: MergeEvents,
    pub(super) files: Files,
}

impl Merger {
    pub(super) fn start(database: Database, place: Place) -> std::io::Result<Self> {
        let desk = Arc::new((Mutex::new(MergerHandle { state: MergeState::Idle, job: None, closing: false }), Condvar::new()));
        let work = Work { desk: Arc::clone(&desk), place };
        let thread = Builder::new().name("ledger-merge".to_owned()).spawn(move || work.run(database))?;
        Ok(Self { desk, thread: Some(thread) })
    }

    pub(super) fn state(&self) -> MergeState {
        self.desk.0.lock().state.clone()
    }

    /// Begins a merge. None is under way.
    pub(super) fn begin(&self, job: Job) {
        let (desk, changed) = &*self.desk;
        let mut desk = desk.lock();
        desk.job = Some(job);
        if desk.state != MergeState::Ended {
            desk.state = MergeState::Busy;
        }
        changed.notify_all();
    }

    /// Waits while a merge is under way. The state that it gives is not [`MergeState::Busy`].
    pub(super) fn wait(&self) -> MergeState {
        let (desk, changed) = &*self.desk;
        let mut desk = desk.lock();
        while desk.state == MergeState::Busy {
            changed.wait(&mut desk);
        }
        desk.state.clone()
    }

    /// Ends the thread after the merge that is under way; gives redb back, where it can still be used.
    pub(super) fn end(mut self) -> Option<Database> {
        self.desk.0.lock().closing = true;
        self.desk.1.notify_all();
        // A panic of the thread was reported by itself.
        self.thread.take().and_then(|thread| thread.join().ok()).flatten()
    }
}

/// An opening that fails after the start of the thread gives redb back.
impl Drop for Merger {
    fn drop(&mut self) {
        self.desk.0.lock().closing = true;
        self.desk.1.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Work {
    desk: Arc<(Mutex<MergerHandle>, Condvar)>,
    place: Place,
}

/// Ends the waits for the thread, however it ends.
impl Drop for Work {
    fn drop(&mut self) {
        self.desk.0.lock().state = MergeState::Ended;
        self.desk.1.notify_all();
        if std::thread::panicking() {
            (self.place.events.failed)(&LedgerError::unavailable("its merging thread has died"));
        }
    }
}

impl Work {
    fn run(self, mut database: Database) -> Option<Database> {
        while let Some(job) = self.next() {
            database = match self.carry_out(&job, database) {
                Ok(database) => database,
                Err(_) if self.desk.0.lock().closing => return None,
                Err(error) => {
                    (self.place.events.failed)(&error);
                    return None;
                }
            };
            let is_done = {
                let desk = self.desk.0.lock();
                desk.closing && desk.state != MergeState::Idle
            };
            if is_done {
                break;
            }
        }
        Some(database)
    }

    fn next(&self) -> Option<Job> {
        let (desk, changed) = &*self.desk;
        let mut desk = desk.lock();
        loop {
            if let Some(job) = desk.job.take() {
                return Some(job);
            }
            if desk.closing {
                return None;
            }
            changed.wait(&mut desk);
        }
    }

    /// Merges a layer, as often as it takes. An error where redb cannot be used any more.
    fn carry_out(&self, job: &Job, mut database: Database) -> Result<Database, LedgerError> {
        loop {
            let began = Instant::now();
            let merged = self.has_space(&job.layer).and_then(|()| {
                merge_to(&database, &job.layer, job.last, job.epochs)?;
                Base::new(&database)
            });
            let error = match merged {
                Ok(base) => {
                    self.place.views.merged(base);
                    (self.place.events.merged)(began.elapsed(), job.log_bytes);
                    self.publish(MergeState::Idle);
                    return Ok(database);
                }
                Err(error) => error,
            };
            tracing::error!(reason = %reason(&error), "rows could not be merged into redb; they stay in memory and in the log");
            if !matches!(error, LedgerError::DiskLow { .. }) {
                database = self.reopen(database)?;
            }
            self.publish(MergeState::Failing(reason(&error)));
            if self.is_closing_after(RETRY) {
                return Ok(database);
            }
        }
    }

    fn has_space(&self, layer: &Layer) -> Result<(), LedgerError> {
        let needed = layer.bytes().saturating_mul(SPACE);
        match free_in(&self.place.dir) {
            Some(free) if free < needed => Err(LedgerError::DiskLow { free, needed }),
            _ => Ok(()),
        }
    }

    fn publish(&self, state: MergeState) {
        match &state {
            MergeState::Failing(reason) => (self.place.events.failing)(Some(reason)),
            _ => (self.place.events.failing)(None),
        }
        self.desk.0.lock().state = state;
        self.desk.1.notify_all();
    }

    fn is_closing_after(&self, time: Duration) -> bool {
        let (desk, changed) = &*self.desk;
        let until = Instant::now() + time;
        let mut desk = desk.lock();
        while !desk.closing && !changed.wait_until(&mut desk, until).timed_out() {}
        desk.closing
    }

    /// Opens redb again. If redb cannot be written to, it is opened for reading until it can. Reads that are open when redb
    /// is closed fail.
    fn reopen(&self, database: Database) -> Result<Database, LedgerError> {
        if let Err(error) = database.close() {
            tracing::debug!(%error, "redb was closed after a failed merge");
        }
        let path = database_path(&self.place.dir);
        let mut unreadable = 0;
        loop {
            let opened = guarded(|| self.place.files.database(&path, self.place.cache_bytes)).map_err(LedgerError::damaged);
            let opened = opened.and_then(|opened| opened.map_err(LedgerError::damaged));
            let error = match opened.and_then(|database| Ok((Base::new(&database)?, database))) {
                Ok((base, database)) => {
                    self.place.views.reopened(base);
                    return Ok(database);
                }
                Err(error) => error,
            };
            tracing::error!(reason = %reason(&error), "redb cannot be written to");
            let reading = guarded(|| self.place.files.database_for_reading(&path)).map_err(LedgerError::damaged);
            let reading = reading.and_then(|reading| reading.map_err(LedgerError::damaged));
            let reading = reading.and_then(|database| Ok((Base::new(&database)?, database)));
            self.publish(MergeState::Failing(reason(&error)));
            let database = match reading {
                Ok((base, database)) => {
                    self.place.views.reopened(base);
                    unreadable = 0;
                    Some(database)
                }
                Err(error) => {
                    tracing::error!(reason = %reason(&error), "redb cannot be read");
                    unreadable += 1;
                    None
                }
            };
            if unreadable == REOPENINGS || self.is_closing_after(RETRY) {
                return Err(error);
            }
            if let Some(Err(error)) = database.map(ReadOnlyDatabase::close) {
                tracing::debug!(%error, "redb was closed to be opened for writing");
            }
        }
    }
}

/// Reason of a failed merge. An error of redb is no reason to doubt the rows: they are in memory and in the log.
fn reason(error: &LedgerError) -> Arc<str> {
    match error {
        LedgerError::Damaged(what) => Arc::clone(what),
        other => other.to_string().into(),
    }
}

/// Puts the rows of a layer into redb, durably.
pub(crate) fn merge(database: &Database, layer: &Layer, last: u64) -> Result<(), LedgerError> {
    merge_to(database, layer, last, None)
}

/// As [`merge`]. `epochs` are those up to the last batch, if redb is a copy of a cluster's ledger.
fn merge_to(database: &Database, layer: &Layer, last: u64, epochs: Option<Epochs>) -> Result<(), LedgerError> {
    guarded(|| merge_rows(database, layer, last, epochs)).unwrap_or_else(|reason| Err(LedgerError::damaged(reason)))
}

fn merge_rows(database: &Database, layer: &Layer, last: u64, epochs: Option<Epochs>) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let mut usage = UsageChanges::new(|run_no| workspace_of(layer, &transaction, run_no));
    for table in Table::ALL {
        let rows = layer.table(*table);
        let derived = match table_source(*table) {
            Some(source) => derive(*table, &layer.table(source))?,
            None => RowSet::default(),
        };
        if rows.is_empty() && derived.is_empty() {
            continue;
        }
        let mut to = transaction.open_table(table.definition())?;
        if *table == Table::RunEvents {
            merge_events(&mut to, &rows, &mut usage)?;
            continue;
        }
        for row in rows.iter().chain(derived.iter()) {
            merge_row(&mut to, *table, row.key(), row.value(), &mut usage)?;
        }
    }
    let usage: Vec<_> = usage.changes().collect();
    change_usage(&transaction, usage)?;
    // A copy changes by the log alone; there the owner writes what it forgets.
    if epochs.is_none() {
        purge_idempotency(&transaction, agent_host_protocol::time::now())?;
    }
    {
        let mut to = transaction.open_table(Table::Meta.definition())?;
        put_applied(&mut to, last, epochs)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Puts a row or removes it, and counts what that changes for its workspace.
fn merge_row(
    to: &mut redb::Table<'_, &[u8], &[u8]>,
    table: Table,
    key: &[u8],
    value: Option<&[u8]>,
    usage: &mut UsageChanges<impl FnMut(u64) -> Result<String, LedgerError>>,
) -> Result<(), LedgerError> {
    let before = match value {
        Some(value) => {
            usage.put(table, key, value)?;
            to.insert(key, value)?
        }
        None => to.remove(key)?,
    };
    before.map_or(Ok(()), |before| usage.remove(table, key, before.value()))
}

/// The workspace of a run, whose row is in the layer or in redb. Not called while the table of runs is open.
fn workspace_of(layer: &Layer, transaction: &WriteTransaction, run_no: u64) -> Result<String, LedgerError> {
    let key = number(run_no);
    if let Some(row) = layer.get(Table::Runs, &key).and_then(Row::value) {
        return Ok(workspace_of_run(row).unwrap_or_default().into_owned());
    }
    let runs = transaction.open_table(Table::Runs.definition())?;
    let row = runs.get(key.as_slice())?;
    Ok(row.and_then(|row| workspace_of_run(row.value()).map(Cow::into_owned)).unwrap_or_default())
}

/// Changes the bytes that workspaces keep.
fn change_usage(transaction: &WriteTransaction, changes: Vec<(String, i64)>) -> Result<(), LedgerError> {
    let mut to = transaction.open_table(Table::Workspaces.definition())?;
    for (workspace, change) in changes {
        let before = to.get(workspace.as_bytes())?.and_then(|row| read_number(row.value())).unwrap_or(0);
        match changed(before, change) {
            0 => drop(to.remove(workspace.as_bytes())?),
            bytes => drop(to.insert(workspace.as_bytes(), number(bytes).as_slice())?),
        }
    }
    Ok(())
}

/// Puts rows of events: those of a run that follow each other become one row, as far as one row has room.
///
/// Readers see the same events whichever rows are there: a row in memory has precedence over one of redb with the same
/// key, and its events are followed by those of the next key.
fn merge_events(
    to: &mut redb::Table<'_, &[u8], &[u8]>,
    rows: &RowSet,
    usage: &mut UsageChanges<impl FnMut(u64) -> Result<String, LedgerError>>,
) -> Result<(), LedgerError> {
    let table = Table::RunEvents;
    let mut open: Option<(u64, PackedItems)> = None;
    let mut value = Vec::new();
    let mut put = |to: &mut redb::Table<'_, &[u8], &[u8]>,
                   open: Option<(u64, PackedItems)>,
                   usage: &mut UsageChanges<_>|
     -> Result<(), LedgerError> {
        let Some((run_no, events)) = open else { return Ok(()) };
        value.clear();
        events.write(&mut value);
        merge_row(to, table, &pair(run_no, events.first), Some(&value), usage)
    };
    for row in rows.iter() {
        let Some(value) = row.value() else {
            merge_row(to, table, row.key(), None, usage)?;
            continue;
        };
        let (run_no, first) = read_pair(row.key()).ok_or_else(|| malformed(table))?;
        let Some(events) = PackedItems::read(table, first, value)? else {
            merge_row(to, table, row.key(), Some(value), usage)?;
            continue;
        };
        if !open.as_mut().is_some_and(|(of, before)| *of == run_no && before.take_over(&events)) {
            put(to, open.replace((run_no, events)), usage)?;
        }
    }
    put(to, open, usage)
}

/// Forgets idempotency keys that are older than [`IDEMPOTENCY_TTL_MS`].
fn purge_idempotency(transaction: &WriteTransaction, now: u64) -> Result<(), LedgerError> {
    let mut ages = transaction.open_table(Table::IdempotencyAge.definition())?;
    let mut old = Vec::new();
    for row in ages.iter()?.take(PURGE_ROWS) {
        let (event_no, row) = row?;
        let row: IdempotencyAgeRow<'_> = json(Table::IdempotencyAge, row.value())?;
        if now.saturating_sub(row.at) < IDEMPOTENCY_TTL_MS {
            break;
        }
        old.push((event_no.value().to_vec(), row.key.into_owned()));
    }
    if old.is_empty() {
        return Ok(());
    }
    let mut keys = transaction.open_table(Table::Idempotency.definition())?;
    for (event_no, key) in old {
        ages.remove(event_no.as_slice())?;
        let row = keys.get(key.as_bytes())?.map(|row| json::<IdempotencyRow>(Table::Idempotency, row.value())).transpose()?;
        // A key may have been used again after its time.
        if row.is_some_and(|row| number(row.event_no).as_slice() == event_no) {
            keys.remove(key.as_bytes())?;
        }
    }
    Ok(())
}
