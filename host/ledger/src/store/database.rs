//! The files: redb for reading, the log for durability, and how the one catches up with the other.

use std::{
    fs::{self, DirBuilder, File},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::DirBuilderExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableError, TableHandle, WriteTransaction};

use crate::{
    error::{LedgerError, OpenError},
    rows::{
        Change, FORMAT, IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, Rows, Table, changes, json, meta, number,
        read_number,
    },
    store::{
        log::{Log, LogFile, open_file},
        upgrade::upgrade,
    },
};

/// Idempotency keys that one checkpoint forgets at most: more than are made between two checkpoints, so that they
/// do not pile up, and few enough that a checkpoint after a long stop is not noticed.
const PURGE_ROWS: usize = 20_000;

/// How long [`Store::close`] waits for readers to finish. A read takes milliseconds.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

pub(crate) fn database_path(dir: &Path) -> PathBuf {
    dir.join("ledger.redb")
}

pub(crate) fn log_path(dir: &Path) -> PathBuf {
    dir.join("ledger.wal")
}

/// Puts a log file in place of the real one, in tests.
pub(crate) type WrapLog = Box<dyn FnOnce(File) -> Box<dyn LogFile>>;

pub(crate) struct Store {
    pub(crate) database: Arc<Database>,
    log: Log,
    /// When the first batch since the last checkpoint was written.
    behind_since: Option<Instant>,
}

/// Why a batch was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The log has failed, and nothing is changed. The next batch may succeed.
    Log(io::Error),
    /// The store has failed and cannot go on.
    Store(LedgerError),
}

/// Whether to make a ledger where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

impl Store {
    /// Opens the files and brings the store up to the end of the log.
    pub(crate) fn open(
        dir: &Path,
        cache_bytes: usize,
        log_bytes: u64,
        missing: Missing,
        wrap: Option<WrapLog>,
    ) -> Result<Self, OpenError> {
        let path = database_path(dir);
        if missing == Missing::Refuse && !path.exists() {
            return Err(OpenError::NoLedger { dir: dir.to_owned() });
        }
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("create", dir))?;
        if !path.exists() {
            create_file(dir, &path, cache_bytes)?;
        }
        let database = open_database(dir, &path, cache_bytes)?;
        let Meta { format, seed, applied } = match read_meta(dir, &path, &database)? {
            Some(meta) => meta,
            None => create(dir, &database)?,
        };
        let log_path = log_path(dir);
        let file = open_file(&log_path, log_bytes).map_err(io_error("prepare", &log_path))?;
        sync_directory(dir)?;
        let file = match wrap {
            Some(wrap) => wrap(file),
            None => Box::new(file),
        };
        let mut store = Self { database: Arc::new(database), log: Log::new(file, log_path, seed), behind_since: None };
        store.recover(dir, applied)?;
        if format < FORMAT {
            let damaged = |error: LedgerError| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
            upgrade(&store.database, format).map_err(damaged)?;
        }
        Ok(store)
    }

    fn recover(&mut self, dir: &Path, applied: u64) -> Result<(), OpenError> {
        let damaged = |error: &dyn std::fmt::Display| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
        let mut transaction = self.database.begin_write().map_err(|e| damaged(&e))?;
        transaction.set_durability(Durability::None).map_err(|e| damaged(&e))?;
        let recovered = {
            let mut tables = OpenTables::new(&transaction);
            self.log.recover(applied, |payload| tables.apply(payload).map_err(|e| damaged(&e)))?
        };
        if recovered.batches == 0 {
            transaction.abort().map_err(|e| damaged(&e))?;
        } else {
            transaction.commit().map_err(|e| damaged(&e))?;
            tracing::info!(batches = recovered.batches, "the ledger took over what only its log held");
            self.checkpoint().map_err(|e| damaged(&e))?;
        }
        self.log.restart();
        Ok(())
    }

    /// Makes the changes durable and visible, in this order.
    pub(crate) fn write(&mut self, rows: &Rows) -> Result<(), WriteError> {
        let failed = |error: LedgerError| WriteError::Store(error);
        let mut transaction = self.database.begin_write().map_err(|e| failed(e.into()))?;
        transaction.set_durability(Durability::None).map_err(|e| failed(e.into()))?;
        OpenTables::new(&transaction).apply(rows.bytes()).map_err(failed)?;
        if let Err(error) = self.log.append(rows.bytes()) {
            transaction.abort().map_err(|e| failed(e.into()))?;
            return Err(WriteError::Log(error));
        }
        transaction.commit().map_err(|e| failed(e.into()))?;
        self.behind_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Bytes in the log that the store does not have durably.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.len()
    }

    pub(crate) fn behind_since(&self) -> Option<Instant> {
        self.behind_since
    }

    /// Makes the store durable up to the last batch; the log starts over. This is the only kind of durable commit
    /// that there is: one without the state of the allocator would make the next opening read the whole file.
    pub(crate) fn checkpoint(&mut self) -> Result<(), LedgerError> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_quick_repair(true);
        purge_idempotency(&transaction, agent_host_protocol::time::now())?;
        transaction.open_table(Table::Meta.definition())?.insert(meta::APPLIED_BATCH, number(self.log.last()).as_slice())?;
        transaction.commit()?;
        self.log.restart();
        self.behind_since = None;
        Ok(())
    }

    /// Lets go of the files. Everything that was answered is durable before this is called.
    pub(crate) fn close(self) -> Result<(), LedgerError> {
        let mut database = self.database;
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            match Arc::try_unwrap(database) {
                Ok(database) => return database.close().map_err(LedgerError::unavailable),
                // The last reader closes it.
                Err(_) if Instant::now() > deadline => return Ok(()),
                Err(shared) => database = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) struct Meta {
    format: u32,
    seed: u64,
    applied: u64,
}

pub(crate) fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OpenError + 'a {
    move |source| OpenError::Io { action, path: path.to_owned(), source }
}

pub(crate) fn open_database(dir: &Path, path: &Path, cache_bytes: usize) -> Result<Database, OpenError> {
    let not_a_ledger = |reason: String| OpenError::NotALedger { path: path.to_owned(), reason };
    // redb asserts rather than reports some kinds of damage.
    let opened = catch_unwind(AssertUnwindSafe(|| Database::builder().set_cache_size(cache_bytes).create(path)));
    let Ok(opened) = opened else { return Err(not_a_ledger("its pages contradict each other".to_owned())) };
    opened.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::AlreadyOpen { dir: dir.to_owned() },
        DatabaseError::Storage(redb::StorageError::Io(source))
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            OpenError::Io { action: "open", path: path.to_owned(), source }
        }
        other => not_a_ledger(other.to_string()),
    })
}

/// Makes the file of a new ledger under another name first: one that was killed in the middle of this would leave a
/// file that nobody can open.
fn create_file(dir: &Path, path: &Path, cache_bytes: usize) -> Result<(), OpenError> {
    let unfinished = dir.join(format!("ledger.redb.new-{}", std::process::id()));
    let remove = || match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove().map_err(io_error("remove", &unfinished))?;
    let database = open_database(dir, &unfinished, cache_bytes)?;
    create(dir, &database)?;
    database.close().map_err(|error| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() })?;
    // Unlike a rename, this never replaces a ledger that another process has made meanwhile.
    match fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error("create", path)(error)),
        _ => {}
    }
    remove().map_err(io_error("remove", &unfinished))?;
    sync_directory(dir)
}

/// What the meta table says; nothing where the file is new.
fn read_meta(dir: &Path, path: &Path, database: &Database) -> Result<Option<Meta>, OpenError> {
    let damaged = |error: &dyn std::fmt::Display| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
    let transaction = database.begin_read().map_err(|e| damaged(&e))?;
    let table = match transaction.open_table(Table::Meta.definition()) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => {
            return match transaction.list_tables().map_err(|e| damaged(&e))?.next() {
                None => Ok(None),
                Some(table) => {
                    let reason = format!("it is a redb file with a table `{}` but without `meta`", table.name());
                    Err(OpenError::NotALedger { path: path.to_owned(), reason })
                }
            };
        }
        Err(error) => return Err(OpenError::NotALedger { path: path.to_owned(), reason: error.to_string() }),
    };
    let read = |key| {
        let row = table.get(key).map_err(|e| damaged(&e))?;
        row.and_then(|row| read_number(row.value())).ok_or_else(|| damaged(&"a row of `meta` is missing or malformed"))
    };
    let found = u32::try_from(read(meta::FORMAT)?).unwrap_or(u32::MAX);
    if found > FORMAT {
        return Err(OpenError::NewerFormat { dir: dir.to_owned(), found, supported: FORMAT });
    }
    Ok(Some(Meta { format: found, seed: read(meta::LOG_SEED)?, applied: read(meta::APPLIED_BATCH)? }))
}

/// Makes the tables of a new ledger, durably.
pub(crate) fn create(dir: &Path, database: &Database) -> Result<Meta, OpenError> {
    let create = || -> Result<Meta, LedgerError> {
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        // The standard library seeds its hashers from the system's randomness.
        let seed = RandomState::new().hash_one(dir);
        for table in Table::ALL {
            transaction.open_table(table.definition())?;
        }
        {
            let mut table = transaction.open_table(Table::Meta.definition())?;
            for (key, value) in [(meta::FORMAT, u64::from(FORMAT)), (meta::LOG_SEED, seed), (meta::APPLIED_BATCH, 0)] {
                table.insert(key, number(value).as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(Meta { format: FORMAT, seed, applied: 0 })
    };
    create().map_err(|error| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() })
}

/// Makes the names of new files durable.
fn sync_directory(dir: &Path) -> Result<(), OpenError> {
    let sync = |dir: &Path| File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir));
    sync(dir)?;
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync)
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

type OpenTable<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;

/// Tables of one transaction, each opened when it is first written to.
struct OpenTables<'t> {
    transaction: &'t WriteTransaction,
    tables: Vec<Option<OpenTable<'t>>>,
}

impl<'t> OpenTables<'t> {
    fn new(transaction: &'t WriteTransaction) -> Self {
        Self { transaction, tables: Table::ALL.iter().map(|_| None).collect() }
    }

    fn table(&mut self, table: Table) -> Result<&mut OpenTable<'t>, LedgerError> {
        let Some(place) = self.tables.get_mut(usize::from(table.id())) else {
            return Err(LedgerError::damaged("a table has no place"));
        };
        let open = match place.take() {
            Some(open) => open,
            None => self.transaction.open_table(table.definition())?,
        };
        Ok(place.insert(open))
    }

    fn apply(&mut self, payload: &[u8]) -> Result<(), LedgerError> {
        for change in changes(payload) {
            let Ok(Change { table, key, value }) = change else {
                return Err(LedgerError::damaged("a batch holds something that is not a change"));
            };
            match value {
                Some(value) => drop(self.table(table)?.insert(key, value)?),
                None => drop(self.table(table)?.remove(key)?),
            }
        }
        Ok(())
    }
}
