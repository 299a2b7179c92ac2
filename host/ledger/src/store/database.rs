//! The file of redb: making it, opening it, and what its `meta` table says.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
};

use redb::{Database, DatabaseError, ReadableDatabase, TableError, TableHandle};

use crate::{
    boundary::{guard_open, guarded},
    error::{LedgerError, OpenError},
    rows::{FORMAT, Table, meta, number, read_number},
    store::{Epochs, Files, real_files},
};

pub(crate) fn database_path(dir: &Path) -> PathBuf {
    dir.join("ledger.redb")
}

pub(crate) struct Meta {
    pub(super) format: u32,
    /// Key of the checksums in the log.
    pub(super) seed: u64,
    /// The last batch that redb has.
    pub(super) applied: u64,
    /// True if the ledger has files of the log, which must then exist.
    pub(super) has_log: bool,
    /// Epochs up to the last batch, if the ledger is a copy of a cluster's.
    pub(super) epochs: Option<Epochs>,
}

pub(crate) fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OpenError + 'a {
    move |source| OpenError::Io { action, path: path.to_owned(), source }
}

pub(crate) fn open_database(dir: &Path, path: &Path, cache_bytes: usize, files: &Files) -> Result<Database, OpenError> {
    let not_a_ledger = |reason: String| OpenError::NotALedger { path: path.to_owned(), reason };
    let opened = guarded(|| files.database(path, cache_bytes)).map_err(not_a_ledger)?;
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
pub(super) fn create_file(dir: &Path, path: &Path, cache_bytes: usize, kind: Kind, files: &Files) -> Result<(), OpenError> {
    let unfinished = dir.join(format!("ledger.redb.new-{}", std::process::id()));
    let remove = || match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove().map_err(io_error("remove", &unfinished))?;
    let database = open_database(dir, &unfinished, cache_bytes, &real_files())?;
    create_as(dir, &database, kind)?;
    database.close().map_err(|error| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() })?;
    // Unlike a rename, this never replaces a ledger that another process has made meanwhile.
    match fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error("create", path)(error)),
        _ => {}
    }
    remove().map_err(io_error("remove", &unfinished))?;
    files.sync_directory(dir).map_err(io_error("sync", dir))
}

/// The meta table; `None` where the file is new.
pub(super) fn read_meta(dir: &Path, path: &Path, database: &Database) -> Result<Option<Meta>, OpenError> {
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
    let has_log = table.get(meta::HAS_LOG).map_err(|e| damaged(&e))?.is_some();
    let applied = read(meta::APPLIED_BATCH)?;
    let is_copy = table.get(meta::APPLIED_EPOCH).map_err(|e| damaged(&e))?.is_some();
    let epochs = if is_copy {
        let row = table.get(meta::EPOCHS).map_err(|e| damaged(&e))?;
        Some(Epochs::of_row(row.as_ref().map_or(b"", |row| row.value()), applied, read(meta::APPLIED_EPOCH)?))
    } else {
        None
    };
    Ok(Some(Meta { format: found, seed: read(meta::LOG_SEED)?, applied, has_log, epochs }))
}

/// The format of the ledger in a directory, which is left as it is.
///
/// # Errors
/// [`OpenError`] where there is none, or another process has it open.
pub(crate) fn read_format(dir: &Path, cache_bytes: usize, files: &Files) -> Result<u32, OpenError> {
    let path = database_path(dir);
    if !path.is_file() {
        return Err(OpenError::NoLedger { dir: dir.to_owned() });
    }
    guard_open(dir, || {
        let database = open_database(dir, &path, cache_bytes, files)?;
        let meta = read_meta(dir, &path, &database)?;
        database.close().map_err(|error| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() })?;
        meta.map(|meta| meta.format).ok_or_else(|| OpenError::NotALedger { path: path.clone(), reason: "it is empty".to_owned() })
    })
}

/// The kind of a new ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A ledger of its own, with its log in files.
    Embedded,
    /// A copy of the ledger of the cluster with this number.
    Copy(u64),
}

/// Makes the tables of a new ledger of its own, durably.
pub(crate) fn create(dir: &Path, database: &Database) -> Result<Meta, OpenError> {
    create_as(dir, database, Kind::Embedded)
}

pub(super) fn create_as(dir: &Path, database: &Database, kind: Kind) -> Result<Meta, OpenError> {
    let create = || -> Result<Meta, LedgerError> {
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        // The standard library seeds its hashers from the system's randomness.
        let (seed, epochs) = match kind {
            Kind::Embedded => (RandomState::new().hash_one(dir), None),
            Kind::Copy(seed) => (seed, Some(Epochs::default())),
        };
        for table in Table::ALL {
            transaction.open_table(table.definition())?;
        }
        {
            let mut table = transaction.open_table(Table::Meta.definition())?;
            for (key, value) in [(meta::FORMAT, u64::from(FORMAT)), (meta::LOG_SEED, seed)] {
                table.insert(key, number(value).as_slice())?;
            }
            put_applied(&mut table, 0, epochs)?;
        }
        transaction.commit()?;
        Ok(Meta { format: FORMAT, seed, applied: 0, has_log: false, epochs })
    };
    create().map_err(|error| OpenError::damaged(dir, &error))
}

/// Says which batch is the last one, and of a copy its epochs.
pub(super) fn put_applied(
    meta: &mut redb::Table<'_, &[u8], &[u8]>,
    last: u64,
    epochs: Option<Epochs>,
) -> Result<(), LedgerError> {
    meta.insert(meta::APPLIED_BATCH, number(last).as_slice())?;
    if let Some(epochs) = epochs {
        meta.insert(meta::APPLIED_EPOCH, number(epochs.newest()).as_slice())?;
        meta.insert(meta::EPOCHS, epochs.row().as_slice())?;
    }
    Ok(())
}

/// Says durably whether the ledger has files of the log.
pub(super) fn set_has_log(database: &Database, has_log: bool) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    {
        let mut table = transaction.open_table(Table::Meta.definition())?;
        if has_log {
            table.insert(meta::HAS_LOG, number(1).as_slice())?;
        } else {
            table.remove(meta::HAS_LOG)?;
        }
    }
    transaction.commit()?;
    Ok(())
}
