//! A new ledger from what can be read of a damaged one.
//!
//! The damaged ledger is only read. What can be read of `ledger.redb` is copied row by row, around damaged pages; a row that does
//! not read back as what its table holds is left out. The batches that the log has and `ledger.redb` has not are applied to the
//! copy in their order, also those behind a batch that is missing: each has whole rows. What follows from other rows (indexes,
//! lists, usage) is made anew. Contents are taken if their bytes have the digest that names them.
//!
//! ```text
//! ledger.redb ─► Source (damaged_file, source) ─► rows that can be read (rows, valid) ─► new ledger.redb
//! ledger-?.wal ─► batches that can be read ──────────────────────────────────────────────────▲
//!                                              indexes made anew (mend), check, report ◄─────┘
//! ```

mod mend;
mod rows;
mod source;
mod valid;

pub(crate) use valid::is_row;

use std::{fs, io, path::Path};

use redb::Database;
use serde::Serialize;

use self::source::Source;
use crate::{
    boundary::{guard_apart, guarded},
    digest::{Digest, hex},
    error::{LedgerError, OpenError},
    files::{blobs_path, path_of},
    options::Options,
    rows::{Layer, Reader, Table, View, malformed, meta, number, schema},
    store::{MissingLedger, create, database_path, merge, open, open_database, real_files},
    upkeep::{
        backup::{BackupError, UnfinishedFolder, digest_of, io_failed, link, make_dir, sync},
        check::{CheckReport, Finding, check},
        compact::CACHE_BYTES,
    },
};

/// Missing objects that a report lists.
const LISTED: usize = 1_000;
/// Bytes of rows in one transaction of the copy.
const CHUNK_BYTES: usize = 32 * 1024 * 1024;

/// An object of the damaged ledger that is not in the new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// `store`, `log`, `table`, `row`, `batch`, `event`, `run`, `audit`, `artifact` or `content`.
    pub kind: &'static str,
    /// Name or number of the object.
    pub name: String,
    /// Why it is missing.
    pub reason: String,
}

impl Missing {
    fn new(kind: &'static str, name: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self { kind, name: name.to_string(), reason: reason.into() }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, reason } = self;
        write!(f, "{kind} {name}: {reason}")
    }
}

/// The result of a salvage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvageReport {
    /// Rows of the new ledger that come from `ledger.redb`.
    pub rows: u64,
    /// Batches of the log that were applied.
    pub batches: u64,
    /// Files of content.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Things that are not in the new ledger, at most 1,000 of them.
    pub missing: Vec<Missing>,
    /// Number of things that are not in the new ledger.
    pub missing_count: u64,
    /// The check of the new ledger: rows that refer to what is missing show here.
    pub check: CheckReport,
}

impl SalvageReport {
    /// True if nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing_count == 0 && self.check.is_ok()
    }
}

/// Writes all that can be read of the ledger in `from` into a new one in `to`, which must not exist or be empty. No host may
/// have `from` open; it is only read. `progress` is called with a fraction. Killed at any moment, there is a whole new ledger or
/// none, and a folder `.NAME.partial` beside it.
///
/// # Errors
/// [`BackupError::NotEmpty`], [`BackupError::Open`] where a host has the ledger open, there is none, or a newer version wrote
/// it, and those of the file system. Damage is not an error: the report lists it.
pub fn salvage(from: impl AsRef<Path>, to: impl AsRef<Path>, progress: impl FnMut(f64)) -> Result<SalvageReport, BackupError> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    guard_apart(&from.clone(), progress, move |progress| salvage_dir(&from, &to, progress))
}

fn salvage_dir(from: &Path, to: &Path, progress: &mut dyn FnMut(f64)) -> Result<SalvageReport, BackupError> {
    let is_empty = match fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(io_failed("read", to)(error)),
    };
    if !is_empty {
        return Err(BackupError::NotEmpty { path: to.to_owned() });
    }
    progress(0.0);
    let unfinished = UnfinishedFolder::begin(to)?;
    let mut salvage = Salvage { from, to: &unfinished.path, missing: Vec::new(), rows: 0 };
    let source = Source::open(from, &unfinished.path, &mut salvage.missing)?;
    let batches = salvage.store(&source, progress)?;
    let (blobs, blob_bytes) = salvage.blobs()?;
    let missing_count = salvage.missing.len() as u64;
    let (mut missing, rows) = (salvage.missing, salvage.rows);
    missing.truncate(LISTED);
    let check = match try_out(&unfinished.path, progress) {
        Err(OpenError::Damaged { reason, .. }) => unusable(&reason),
        Err(OpenError::Ledger(LedgerError::Damaged(reason))) => unusable(&reason),
        check => check?,
    };
    unfinished.name(to)?;
    progress(1.0);
    Ok(SalvageReport { rows, batches, blobs, blob_bytes, missing, missing_count, check })
}

/// Opens the new ledger as a host does, and checks it. A ledger of an older format is brought to this one.
fn try_out(dir: &Path, progress: &mut dyn FnMut(f64)) -> Result<CheckReport, OpenError> {
    open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?.close()?;
    // The host makes a log of its own size.
    drop(Options { checkpoint_wal_bytes: 64 * 1024, ..Options::new(dir) }.open()?);
    check(dir, |fraction| progress(0.5 + fraction / 2.0))
}

/// The report on rows with which no host can begin. They are kept: what was read is there.
fn unusable(reason: &str) -> CheckReport {
    let finding = Finding { table: "ledger", what: format!("a host cannot open it: {reason}") };
    CheckReport { pages_intact: true, findings: vec![finding], findings_count: 1, ..CheckReport::default() }
}

struct Salvage<'a> {
    from: &'a Path,
    /// The folder of the new ledger.
    to: &'a Path,
    missing: Vec<Missing>,
    rows: u64,
}

impl Salvage<'_> {
    /// Writes the new store. Gives the batches that were applied.
    fn store(&mut self, source: &Source, progress: &mut dyn FnMut(f64)) -> Result<u64, BackupError> {
        let path = database_path(self.to);
        let database = open_database(self.to, &path, CACHE_BYTES, &real_files())?;
        create(self.to, &database)?;
        if let Some(reader) = &source.reader {
            let tables = Table::ALL.len() as f64;
            for (done, table) in Table::ALL.iter().enumerate().filter(|(_, table)| **table != Table::Meta) {
                self.table(reader, *table, source.format, &database)?;
                progress(done as f64 / tables / 2.0);
            }
        }
        if source.unreadable() > 0 {
            let reason = format!("{} bytes cannot be read from the disk", source.unreadable());
            self.missing.push(Missing::new("store", database_path(self.from).display(), reason));
        }
        let mut layer = Layer::default();
        let mut batches = 0;
        for (batch, payload) in &source.batches {
            let mut with = layer.clone();
            match with.apply(payload) {
                Ok(()) => (layer, batches) = (with, batches + 1),
                Err(_) => self.missing.push(Missing::new("batch", batch, "it holds something that is not a change")),
            }
        }
        merge(&database, &layer, 0)?;
        if !self.missing.is_empty() {
            let reader = Reader::new(View::of(&database)?.into());
            mend::remove_orphans(&database, &reader, &mut self.missing)?;
            let reader = Reader::new(View::of(&database)?.into());
            mend::indexes(&database, &reader)?;
            let reader = Reader::new(View::of(&database)?.into());
            mend::list_missing(&reader, &mut self.missing)?;
        }
        self.finish(&database, source.format)?;
        database.close().map_err(LedgerError::damaged)?;
        sync(&path)?;
        Ok(batches)
    }

    /// Copies the rows of a table that can be read.
    fn table(&mut self, reader: &Reader, table: Table, format: u32, database: &Database) -> Result<(), BackupError> {
        // Tables that the format of the ledger does not have. Where that cannot be read either, the rows say so.
        if format < crate::rows::FORMAT && !reader.has_table(table).unwrap_or(true) {
            return Ok(());
        }
        let mut sink = Sink { database, table, chunk: Vec::new(), bytes: 0 };
        let (mut rows, mut left_out) = (0u64, 0u64);
        let is_whole = rows::each_row(reader, table, &mut |key, value| {
            // A row that makes a reader panic is as little a row.
            if guarded(|| is_row(table, key, value)).unwrap_or(false) {
                rows += 1;
                sink.put(key, value)
            } else {
                left_out += 1;
                Ok(())
            }
        })?;
        sink.flush()?;
        self.rows += rows;
        if !is_whole {
            let reason = format!("some of its pages cannot be read; {rows} rows can");
            self.missing.push(Missing::new("table", table.name(), reason));
        }
        if left_out > 0 {
            let reason = format!("{left_out} rows do not have the content of a row of this table");
            self.missing.push(Missing::new("row", table.name(), reason));
        }
        Ok(())
    }

    /// Makes the store durable, as one of the format that its rows have.
    fn finish(&self, database: &Database, format: u32) -> Result<(), LedgerError> {
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        let version = number(u64::from(format));
        transaction.open_table(Table::Meta.definition())?.insert(meta::FORMAT, version.as_slice())?;
        transaction.commit()?;
        Ok(())
    }

    /// Takes the contents that rows of the new ledger refer to. Gives how many there are, and their bytes.
    fn blobs(&mut self) -> Result<(u64, u64), BackupError> {
        let (from, to) = (blobs_path(self.from), blobs_path(self.to));
        make_dir(&to)?;
        let database = open_database(self.to, &database_path(self.to), CACHE_BYTES, &real_files())?;
        let (mut count, mut bytes, mut last) = (0, 0, None::<Digest>);
        {
            let reader = Reader::new(View::of(&database)?.into());
            for row in reader.table(Table::BlobRefs)?.iter()? {
                let (key, _) = row?;
                let (digest, ..) = schema::read_blob_ref(key.value()).ok_or_else(|| malformed(Table::BlobRefs))?;
                if last.replace(*digest).as_ref() == Some(digest) {
                    continue;
                }
                let (stored, path) = (path_of(&from, digest), path_of(&to, digest));
                let name = hex(digest);
                match digest_of(&stored) {
                    Ok((found, size)) if found == name => {
                        if let Some(folder) = path.parent() {
                            make_dir(folder)?;
                        }
                        link(&stored, &path)?;
                        (count, bytes) = (count + 1, bytes + size);
                    }
                    Ok(_) => self.missing.push(Missing::new("content", name, "its bytes are others than were written")),
                    Err(error) => self.missing.push(Missing::new("content", name, error.to_string())),
                }
            }
        }
        database.close().map_err(LedgerError::damaged)?;
        for shard in fs::read_dir(&to).map_err(io_failed("read", &to))? {
            sync(&shard.map_err(io_failed("read", &to))?.path())?;
        }
        sync(&to)?;
        Ok((count, bytes))
    }
}

/// Rows of a table on their way into the new store.
struct Sink<'a> {
    database: &'a Database,
    table: Table,
    chunk: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl Sink<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), LedgerError> {
        self.bytes += key.len() + value.len();
        self.chunk.push((key.to_vec(), value.to_vec()));
        if self.bytes < CHUNK_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), LedgerError> {
        self.bytes = 0;
        let transaction = self.database.begin_write()?;
        {
            let mut to = transaction.open_table(self.table.definition())?;
            for (key, value) in self.chunk.drain(..) {
                to.insert(key.as_slice(), value.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}
