//! The copy of a cluster's ledger, made from rows in place of the one that is there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use redb::{Database, Durability};

use crate::{
    boundary::guarded,
    error::{LedgerError, OpenError},
    rows::Table,
    store::{
        Epochs, Files,
        database::{Kind, create_as, database_path, io_error, open_database, put_applied},
    },
};

/// Memory for pages of the copy, which is written once and not read.
const CACHE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of rows that are in memory at most before they go to the disk.
const DURABLE_BYTES: usize = 32 * 1024 * 1024;

/// The file of a copy in the making, which is removed unless it got another name.
struct UnfinishedFile(PathBuf);

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // Where it is gone, it is the copy now. What cannot be removed is in the way of no other one.
        let _ = fs::remove_file(&self.0);
    }
}

/// A copy in the making, in a file of another name. The caller holds the lock of the copy that is there.
pub(crate) struct NewCopy {
    dir: PathBuf,
    database: Database,
    path: UnfinishedFile,
    files: Files,
    /// Bytes of rows since the last durable commit.
    bytes: usize,
}

impl NewCopy {
    /// Begins an empty copy of the cluster with the number `seed`. What a killed process has left of another one is removed.
    pub(crate) fn begin(dir: &Path, seed: u64, files: &Files) -> Result<Self, OpenError> {
        let path = dir.join("ledger.redb.snapshot");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &path)(error)),
            _ => {}
        }
        let database = open_database(dir, &path, CACHE_BYTES, files)?;
        create_as(dir, &database, Kind::Copy(seed))?;
        Ok(Self { dir: dir.to_owned(), database, path: UnfinishedFile(path), files: Files::clone(files), bytes: 0 })
    }

    /// Writes rows of a table.
    pub(crate) fn put<'r>(&mut self, table: Table, rows: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> Result<(), OpenError> {
        let mut bytes = self.bytes;
        let put = || {
            let mut transaction = self.database.begin_write()?;
            {
                let mut to = transaction.open_table(table.definition())?;
                for (key, value) in rows {
                    bytes += key.len() + value.len();
                    to.insert(key, value)?;
                }
            }
            if bytes < DURABLE_BYTES {
                transaction.set_durability(Durability::None)?;
            } else {
                bytes = 0;
            }
            transaction.commit()?;
            Ok(())
        };
        let done = guarded(put).unwrap_or_else(|reason| Err(LedgerError::damaged(reason)));
        self.bytes = bytes;
        done.map_err(|error| self.unwritten(&error))
    }

    fn unwritten(&self, error: &dyn std::fmt::Display) -> OpenError {
        io_error("write", &self.path.0)(io::Error::other(error.to_string()))
    }

    /// Puts the copy in the place of the one that is there, durably: it has the batches up to `last`, which has the epoch `epoch`.
    pub(crate) fn finish(self, last: u64, epoch: u64) -> Result<(), OpenError> {
        let put = || {
            let mut transaction = self.database.begin_write()?;
            transaction.set_quick_repair(true);
            {
                let mut table = transaction.open_table(Table::Meta.definition())?;
                put_applied(&mut table, last, Some(Epochs::of(last, epoch)))?;
            }
            transaction.commit()?;
            Ok(())
        };
        let done = guarded(put).unwrap_or_else(|reason| Err(LedgerError::damaged(reason)));
        done.map_err(|error| self.unwritten(&error))?;
        let Self { dir, path, database, files, .. } = self;
        let failed = |error: &dyn std::fmt::Display| io_error("write", &path.0)(io::Error::other(error.to_string()));
        database.close().map_err(|error| failed(&error))?;
        let to = database_path(&dir);
        files.rename(&path.0, &to).map_err(io_error("rename", &path.0))?;
        files.sync_directory(&dir).map_err(io_error("sync", &dir))
    }
}
