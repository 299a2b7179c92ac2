//! Opening: redb, what only the log holds, and older formats.
//!
//! | there is | and then |
//! |---|---|
//! | nothing | a new ledger, where one may be made |
//! | a log or an identity without redb, or beside an empty one | refused: that is what is left of a ledger |
//! | an empty redb | refused: a new ledger is made where there is no file |
//! | redb that has a log, and its files | the batches that redb does not have are merged |
//! | redb that has a log, and a file is missing | refused, unless the operator has given the log up |
//! | redb that ends before the last clean stop, or of another ledger | refused: an older or a foreign copy |
//! | redb without a log, such as a backup | the host makes the files |
//! | redb of an older format | its log is merged, then the format is raised |

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::Arc,
};

use redb::Database;

use crate::{
    boundary::guard_open,
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    rows::{FORMAT, Layer, Reader, View},
    store::{
        Epochs, Files, Identity, PARTS,
        database::{Kind, Meta, create_as, create_file, database_path, io_error, open_database, read_meta, set_has_log},
        identity_path,
        legacy::{LegacyLog, legacy_path},
        log::FileLog,
        merge::merge,
        part_path,
        upgrade::upgrade,
    },
};

/// The first format whose log has two parts.
const TWO_PART_LOG: u32 = 5;

/// The handling of a missing ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingLedger {
    Create,
    Refuse,
}

/// A ledger whose redb has all batches durably.
pub(crate) struct OpenedStore {
    pub(crate) database: Database,
    pub(super) seed: u64,
    /// The last batch.
    pub(super) last: u64,
    /// Epochs up to the last batch, if the ledger is a copy of a cluster's.
    pub(super) epochs: Option<Epochs>,
    pub(super) log: Option<FileLog>,
}

impl OpenedStore {
    /// Number of the last batch of a copy, and the epochs up to it. `None` for a ledger of its own.
    pub(crate) fn copied(&self) -> Option<(u64, Epochs)> {
        self.epochs.map(|epochs| (self.last, epochs))
    }

    /// Number of the last batch.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn reader(&self) -> Result<Reader, LedgerError> {
        Ok(Reader::new(Arc::new(View::of(&self.database)?)))
    }

    /// Lets go of the files.
    pub(crate) fn close(self) -> Result<(), LedgerError> {
        self.database.close().map_err(LedgerError::unavailable)
    }

    /// The files of the log, made where there are none or where they have another size.
    pub(super) fn log(&mut self, dir: &Path, bytes: u64, files: &Files) -> Result<FileLog, OpenError> {
        match self.log.take() {
            Some(log) if log.has_size(bytes) => {
                // A process that made the files may have died before it synced the directory. The names are then seen, and are
                // gone with all that is in the files when the machine goes off.
                files.sync_directory(dir).map_err(io_error("sync", dir))?;
                Ok(log)
            }
            old => {
                drop(old);
                let log = FileLog::create(dir, self.seed, bytes, self.last, files)?;
                set_has_log(&self.database, true)?;
                Ok(log)
            }
        }
    }
}

/// Opens the files and brings redb up to the end of the log.
pub(crate) fn open(dir: &Path, cache_bytes: usize, missing: MissingLedger, files: &Files) -> Result<OpenedStore, OpenError> {
    open_as(dir, cache_bytes, missing, Kind::Embedded, files)
}

/// Opens the copy of a cluster's ledger, or makes an empty one. The log is not in these files.
///
/// # Errors
/// [`ClusterError::NotACopy`] where the directory holds another ledger.
pub(crate) fn open_copy(dir: &Path, cache_bytes: usize, seed: u64, files: &Files) -> Result<OpenedStore, OpenError> {
    let opened = open_as(dir, cache_bytes, MissingLedger::Create, Kind::Copy(seed), files)?;
    if opened.epochs.is_none() || opened.seed != seed {
        return Err(ClusterError::NotACopy { dir: dir.display().to_string() }.into());
    }
    Ok(opened)
}

fn open_as(dir: &Path, cache_bytes: usize, missing: MissingLedger, kind: Kind, files: &Files) -> Result<OpenedStore, OpenError> {
    let path = database_path(dir);
    match fs::metadata(&path) {
        Ok(metadata) if metadata.len() == 0 => {
            nothing_beside(dir, &path)?;
            return Err(OpenError::NotALedger { path, reason: "it is empty".to_owned() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Another process may have made the ledger meanwhile.
            nothing_beside(dir, &path).or_else(|error| if path.exists() { Ok(()) } else { Err(error) })?;
            if missing == MissingLedger::Refuse {
                return Err(OpenError::NoLedger { dir: dir.to_owned() });
            }
            DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("create", dir))?;
            create_file(dir, &path, cache_bytes, kind, files)?;
        }
        Err(error) => return Err(io_error("look at", &path)(error)),
    }
    guard_open(dir, || open_existing(dir, &path, cache_bytes, kind, files))
}

/// Opens the files that are there.
fn open_existing(dir: &Path, path: &Path, cache_bytes: usize, kind: Kind, files: &Files) -> Result<OpenedStore, OpenError> {
    let database = open_database(dir, path, cache_bytes, files)?;
    let mut meta = match read_meta(dir, path, &database)? {
        Some(meta) => meta,
        None => {
            nothing_beside(dir, path)?;
            create_as(dir, &database, kind)?
        }
    };
    let identity = Identity::read(dir).map_err(io_error("read", &identity_path(dir)))?;
    if identity.is_some_and(|identity| identity.seed != meta.seed) {
        return Err(not_this_ledger(dir, "it is another ledger than the one that was here".to_owned()));
    }
    let at_least = identity.map_or(0, |identity| identity.last);
    let legacy = LegacyLog::open(dir, meta.seed)?;
    if meta.format < TWO_PART_LOG {
        if let Some(log) = &legacy {
            meta.applied = take_over(dir, &database, meta.applied, at_least, |applied, each| log.recover(applied, each))?;
        }
        meta.has_log = false;
    }
    let mut opened = OpenedStore { database, seed: meta.seed, last: meta.applied, epochs: meta.epochs, log: None };
    if meta.has_log {
        give_up(dir, &meta, files)?;
        let mut log = FileLog::open(dir, meta.seed, files)?;
        opened.last = take_over(dir, &opened.database, meta.applied, at_least, |applied, each| log.recover(applied, each))?;
        opened.log = Some(log);
    } else {
        no_foreign_log(dir, &opened, files)?;
    }
    not_older(dir, opened.last, at_least)?;
    if meta.format < FORMAT {
        if meta.epochs.is_some() {
            // Copies change by the log alone. The log has all that this one holds.
            return Err(ClusterError::OldCopy { dir: dir.display().to_string() }.into());
        }
        upgrade(&opened.database, meta.format).map_err(|error| OpenError::damaged(dir, &error))?;
    }
    remove_legacy(dir, legacy, opened.last, files)?;
    Ok(opened)
}

/// Fails where the ledger ends before the last batch of the last clean stop.
fn not_older(dir: &Path, last: u64, at_least: u64) -> Result<(), OpenError> {
    if last >= at_least {
        return Ok(());
    }
    let reason = format!("with its log it ends with batch {last}, and had batch {at_least} when the host last stopped");
    Err(not_this_ledger(dir, reason))
}

fn not_this_ledger(dir: &Path, reason: String) -> OpenError {
    OpenError::AnotherLedger { path: database_path(dir), identity: identity_path(dir), reason }
}

/// Fails where something of a ledger stands beside a store that is missing or empty.
fn nothing_beside(dir: &Path, path: &Path) -> Result<(), OpenError> {
    let logs = PARTS.iter().map(|part| part_path(dir, *part));
    match logs.chain([legacy_path(dir), identity_path(dir)]).find(|file| file.exists()) {
        Some(log) => Err(OpenError::LogWithoutStore { log, path: path.to_owned() }),
        None => Ok(()),
    }
}

/// Merges what a log has and redb does not; gives the number of the last batch.
fn take_over(
    dir: &Path,
    database: &Database,
    applied: u64,
    at_least: u64,
    recover: impl FnOnce(u64, &mut dyn FnMut(&[u8]) -> Result<(), OpenError>) -> Result<u64, OpenError>,
) -> Result<u64, OpenError> {
    let mut layer = Layer::default();
    let last = recover(applied, &mut |payload| {
        layer
            .apply(payload)
            .map_err(|_| OpenError::damaged(dir, &LedgerError::damaged("a batch holds something that is not a change")))
    })?;
    not_older(dir, last, at_least)?;
    if last > applied {
        merge(database, &layer, last).map_err(|error| OpenError::damaged(dir, &error))?;
        tracing::info!(batches = last - applied, "the ledger took over what only its log held");
    }
    Ok(last)
}

/// Files of the log where redb says that it has none: half made by a host that died, or none of this ledger.
fn no_foreign_log(dir: &Path, opened: &OpenedStore, files: &Files) -> Result<(), OpenError> {
    for path in PARTS.iter().map(|part| part_path(dir, *part)).filter(|path| path.exists()) {
        if FileLog::has_batches(&path, opened.seed, opened.last, files)? {
            let reason = "ledger.redb knows of no log, and this one has batches that ledger.redb has not".to_owned();
            return Err(OpenError::LogDamaged { path, reason });
        }
    }
    Ok(())
}

/// If an operator has renamed a file of the log to abandon its contents, an empty file replaces it.
fn give_up(dir: &Path, meta: &Meta, files: &Files) -> Result<(), OpenError> {
    for part in PARTS {
        let path = part_path(dir, part);
        let lost = path.with_extension("wal.lost");
        if path.exists() || !lost.exists() {
            continue;
        }
        tracing::warn!(path = %lost.display(), "what only this log held is given up, as its name says");
        FileLog::create_part(&path, meta.seed, files).map_err(io_error("prepare", &path))?;
        let kept = path.with_extension(format!("wal.lost-{}", agent_host_protocol::time::now()));
        files.rename(&lost, &kept).map_err(io_error("rename", &lost))?;
        files.sync_directory(dir).map_err(io_error("sync", dir))?;
    }
    Ok(())
}

/// Removes the log of an older format, which this one does not need.
fn remove_legacy(dir: &Path, legacy: Option<LegacyLog>, last: u64, files: &Files) -> Result<(), OpenError> {
    let Some(log) = legacy else { return Ok(()) };
    if log.recover(last, &mut |_| Ok(()))? > last {
        let reason = "it has batches that ledger.redb has not, and is of an older format than ledger.redb".to_owned();
        return Err(OpenError::LogDamaged { path: legacy_path(dir), reason });
    }
    log.remove(dir, files)
}

#[cfg(test)]
mod tests {
    use redb::ReadableDatabase;

    use super::*;
    use crate::{
        EntryWrite, Ledger, Options, check,
        rows::{Rows, Table, meta, number, read_number},
        salvage,
        store::{legacy::tests::legacy_frames, real_files},
    };

    fn options(dir: &Path) -> Options {
        Options { checkpoint_wal_bytes: 10_000, ..Options::new(dir) }
    }

    fn put(ledger: &Ledger, key: &str) {
        let entry = EntryWrite::put(key.to_owned(), &1).unwrap();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ledger.put_entries(&[entry])).unwrap();
    }

    fn keys(dir: &Path) -> Vec<String> {
        let ledger = options(dir).open().unwrap();
        ledger.entries("", None, 100).unwrap().into_iter().map(|(key, _)| key).collect()
    }

    /// A ledger with the entry `a/a`, and a copy of its log that has `a/b`, which redb has not.
    fn with_a_batch_in_the_log(dir: &Path) {
        let ledger = options(dir).open().unwrap();
        put(&ledger, "a/a");
        drop(ledger);
        let ledger = Options { checkpoint_interval: std::time::Duration::from_secs(3_600), ..options(dir) }.open().unwrap();
        put(&ledger, "a/b");
        let copy = tempfile::tempdir().unwrap();
        let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let files: Vec<_> = names.into_iter().filter(|name| dir.join(name).is_file()).collect();
        for name in &files {
            fs::copy(dir.join(name), copy.path().join(name)).unwrap();
        }
        drop(ledger);
        for name in &files {
            fs::copy(copy.path().join(name), dir.join(name)).unwrap();
        }
    }

    fn refused(dir: &Path, wanted: &[&str]) {
        let host = options(dir).open().unwrap_err().to_string();
        for wanted in wanted {
            assert!(host.contains(wanted), "{host}");
        }
        assert!(check(dir, |_| ()).is_err());
    }

    #[test]
    fn no_ledger_is_made_beside_a_log() {
        for log in ["ledger.wal", "ledger-1.wal", "ledger-2.wal"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(log), b"").unwrap();
            let error = options(dir.path()).open().unwrap_err();
            assert!(matches!(error, OpenError::LogWithoutStore { .. }) && error.to_string().contains(log), "{error}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn an_empty_or_missing_store_beside_what_is_left_of_a_ledger_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        put(&options(dir.path()).open().unwrap(), "a/a");
        for part in PARTS {
            fs::rename(part_path(dir.path(), part), dir.path().join(format!("{part}.away"))).unwrap();
        }
        for left in ["ledger-1.wal", "ledger-2.wal", "ledger.identity"] {
            let copy = tempfile::tempdir().unwrap();
            fs::write(copy.path().join(left), b"x").unwrap();
            for empty in [false, true] {
                if empty {
                    fs::write(database_path(copy.path()), b"").unwrap();
                }
                refused(copy.path(), &[left, "missing or empty", "salvage"]);
            }
            assert_eq!(fs::read_dir(copy.path()).unwrap().count(), 2);
            assert_eq!(fs::read(copy.path().join(left)).unwrap(), b"x");
        }
        let copy = tempfile::tempdir().unwrap();
        fs::write(database_path(copy.path()), b"").unwrap();
        refused(copy.path(), &["is empty", "backup"]);
        assert_eq!(fs::metadata(database_path(copy.path())).unwrap().len(), 0);
    }

    #[test]
    fn an_older_and_a_foreign_copy_of_the_files_are_refused() {
        let (dir, older, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = ["ledger.redb", "ledger-1.wal", "ledger-2.wal"];
        let copy =
            |from: &Path, to: &Path| files.iter().for_each(|file| assert!(fs::copy(from.join(file), to.join(file)).is_ok()));
        put(&options(dir.path()).open().unwrap(), "a/a");
        copy(dir.path(), older.path());
        put(&options(dir.path()).open().unwrap(), "a/b");
        put(&options(other.path()).open().unwrap(), "a/c");
        let newer = tempfile::tempdir().unwrap();
        copy(dir.path(), newer.path());
        copy(other.path(), dir.path());
        refused(dir.path(), &["another ledger", "ledger.identity"]);
        copy(older.path(), dir.path());
        refused(dir.path(), &["ends with batch 1, and had batch 2", "ledger.identity"]);
        // The log alone may be older: redb has what is missed.
        copy(newer.path(), dir.path());
        for part in PARTS {
            fs::copy(part_path(older.path(), part), part_path(dir.path(), part)).unwrap();
        }
        assert_eq!(keys(dir.path()), ["a/a", "a/b"]);
        copy(older.path(), dir.path());
        fs::remove_file(identity_path(dir.path())).unwrap();
        assert_eq!(keys(dir.path()), ["a/a"]);
        // A damaged identity guards nothing and is made anew.
        fs::write(identity_path(dir.path()), b"x").unwrap();
        assert_eq!(keys(dir.path()), ["a/a"]);
        assert_eq!(Identity::read(dir.path()).unwrap().unwrap().last, 1);
    }

    #[test]
    fn a_log_that_is_gone_is_refused_until_the_operator_gives_it_up() {
        let dir = tempfile::tempdir().unwrap();
        with_a_batch_in_the_log(dir.path());
        for part in PARTS {
            let path = part_path(dir.path(), part);
            let away = path.with_extension("away");
            fs::rename(&path, &away).unwrap();
            refused(dir.path(), &[path.to_str().unwrap(), "not there", "ledger-1.wal.lost"]);
            fs::rename(&away, &path).unwrap();
        }
        for part in PARTS {
            let path = part_path(dir.path(), part);
            fs::rename(&path, path.with_extension("wal.lost")).unwrap();
        }
        assert_eq!(keys(dir.path()), ["a/a"]);
        let kept = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(kept.filter(|name| name.contains(".wal.lost-")).count(), 2);
        // The contents are abandoned once, not for all time.
        put(&options(dir.path()).open().unwrap(), "a/c");
        assert_eq!(keys(dir.path()), ["a/a", "a/c"]);
        fs::remove_file(part_path(dir.path(), 1)).unwrap();
        refused(dir.path(), &["not there"]);
    }

    #[test]
    fn a_log_that_redb_knows_nothing_of_is_refused() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        with_a_batch_in_the_log(dir.path());
        drop(options(other.path()).open().unwrap());
        // The store of another ledger, or of a backup, beside this log.
        for has_log in [true, false] {
            let copy = dir.path().join("copy");
            fs::create_dir(&copy).unwrap();
            fs::copy(database_path(other.path()), database_path(&copy)).unwrap();
            for part in PARTS {
                fs::copy(part_path(dir.path(), part), part_path(&copy, part)).unwrap();
            }
            set_has_log(&Database::create(database_path(&copy)).unwrap(), has_log).unwrap();
            refused(&copy, &["ledger-1.wal", "another ledger"]);
            fs::remove_dir_all(&copy).unwrap();
        }
        // This store, from before it knew of its log.
        set_has_log(&Database::create(database_path(dir.path())).unwrap(), false).unwrap();
        refused(dir.path(), &["ledger-1.wal", "ledger.redb knows of no log"]);
    }

    #[test]
    fn a_host_that_died_while_it_made_the_log_makes_it_again() {
        let dir = tempfile::tempdir().unwrap();
        drop(options(dir.path()).open().unwrap());
        set_has_log(&Database::create(database_path(dir.path())).unwrap(), false).unwrap();
        fs::remove_file(part_path(dir.path(), 2)).unwrap();
        fs::write(part_path(dir.path(), 2).with_extension("wal.new"), b"half").unwrap();
        put(&options(dir.path()).open().unwrap(), "a/a");
        assert_eq!(keys(dir.path()), ["a/a"]);
    }

    #[test]
    fn a_check_makes_no_log() {
        let dir = tempfile::tempdir().unwrap();
        create_file(dir.path(), &database_path(dir.path()), 1 << 20, Kind::Embedded, &real_files()).unwrap();
        assert!(check(dir.path(), |_| ()).unwrap().is_ok());
        assert!(PARTS.iter().all(|part| !part_path(dir.path(), *part).exists()));
    }

    /// Makes a ledger what format 4 was. Gives its seed, and its last batch.
    fn make_fourth(dir: &Path) -> (u64, u64) {
        let database = Database::create(database_path(dir)).unwrap();
        set_has_log(&database, false).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(Table::Meta.definition()).unwrap().insert(meta::FORMAT, number(4).as_slice()).unwrap();
        transaction.commit().unwrap();
        PARTS.iter().for_each(|part| fs::remove_file(part_path(dir, *part)).unwrap());
        let table = database.begin_read().unwrap().open_table(Table::Meta.definition()).unwrap();
        let read = |key| read_number(table.get(key).unwrap().unwrap().value()).unwrap();
        (read(meta::LOG_SEED), read(meta::APPLIED_BATCH))
    }

    #[test]
    fn the_log_of_format_4_is_applied() {
        let dir = tempfile::tempdir().unwrap();
        put(&options(dir.path()).open().unwrap(), "a/a");
        let (seed, applied) = make_fourth(dir.path());
        let mut rows = Rows::default();
        rows.put(Table::Entries, b"a/b", b"1");
        let mut later = Rows::default();
        later.put(Table::Entries, b"a/c", b"1");
        later.delete(Table::Entries, b"a/a");
        // The first is in redb already.
        let frames = legacy_frames(seed, applied, &[b"", rows.bytes(), later.bytes()]);
        fs::write(legacy_path(dir.path()), &frames).unwrap();
        assert_eq!(keys(dir.path()), ["a/b", "a/c"]);
        assert!(!legacy_path(dir.path()).exists());
        // A host that died before it removed the file does so the next time.
        fs::write(legacy_path(dir.path()), &frames).unwrap();
        assert_eq!(keys(dir.path()), ["a/b", "a/c"]);
        assert!(!legacy_path(dir.path()).exists());
        // A log that does not belong to this ledger's past is not removed.
        fs::write(legacy_path(dir.path()), legacy_frames(seed, applied + 3, &[b""])).unwrap();
        refused(dir.path(), &["ledger.wal", "older format"]);
    }

    #[test]
    fn a_damaged_header_in_the_log_of_format_4_is_refused_and_salvaged() {
        let dir = tempfile::tempdir().unwrap();
        put(&options(dir.path()).open().unwrap(), "a/a");
        let (seed, applied) = make_fourth(dir.path());
        let entry = |key: &str| {
            let mut rows = Rows::default();
            rows.put(Table::Entries, key.as_bytes(), b"1");
            rows.bytes().to_vec()
        };
        let (lost, kept) = (entry("a/lost"), entry("a/kept"));
        let mut frames = legacy_frames(seed, applied + 1, &[&lost, &kept]);
        frames[2] ^= 1;
        fs::write(legacy_path(dir.path()), &frames).unwrap();
        refused(dir.path(), &["ledger.wal", "byte 0", "salvage"]);
        let to = tempfile::tempdir().unwrap();
        let report = salvage(dir.path(), to.path(), |_| ()).unwrap();
        assert_eq!((report.batches, report.missing_count), (1, 1), "{report:?}");
        assert_eq!((report.missing[0].kind, report.missing[0].name.as_str()), ("batch", (applied + 1).to_string().as_str()));
        assert_eq!(keys(to.path()), ["a/a", "a/kept"]);
        assert_eq!(fs::read(legacy_path(dir.path())).unwrap(), frames);
    }

    #[test]
    fn the_log_of_format_5_is_applied() {
        let dir = tempfile::tempdir().unwrap();
        with_a_batch_in_the_log(dir.path());
        let database = Database::create(database_path(dir.path())).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(Table::Meta.definition()).unwrap().insert(meta::FORMAT, number(5).as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        assert_eq!(keys(dir.path()), ["a/a", "a/b"]);
        let database = Database::create(database_path(dir.path())).unwrap();
        let table = database.begin_read().unwrap().open_table(Table::Meta.definition()).unwrap();
        let format = table.get(meta::FORMAT).unwrap().and_then(|row| read_number(row.value()));
        assert_eq!(format, Some(u64::from(FORMAT)));
    }

    #[test]
    fn a_backup_of_format_4_needs_no_log() {
        let dir = tempfile::tempdir().unwrap();
        put(&options(dir.path()).open().unwrap(), "a/a");
        make_fourth(dir.path());
        assert!(check(dir.path(), |_| ()).unwrap().is_ok());
        assert_eq!(keys(dir.path()), ["a/a"]);
    }
}
