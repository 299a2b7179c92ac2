//! Giving free space back to the file system.

use std::path::Path;

use redb::CompactionError;

use crate::{
    boundary::guard_apart,
    error::OpenError,
    store::{MissingLedger, database_path, io_error, open, real_files},
};

/// Memory for pages while an operator's verb works: enough to be quick beside a host that is stopped.
pub(crate) const CACHE_BYTES: usize = 256 * 1024 * 1024;

/// The result of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactReport {
    /// Size of the store before, in bytes.
    pub before: u64,
    /// Size afterwards, in bytes.
    pub after: u64,
}

/// Makes the store as small as possible. The host must be stopped. `progress` is called with 0 at the start and 1 at the
/// end; redb reports no more.
///
/// An interruption loses nothing; the next opening then reads the whole store once.
///
/// # Errors
/// [`OpenError::NoLedger`], [`OpenError::AlreadyOpen`], and those of the file system.
pub fn compact(dir: impl AsRef<Path>, progress: impl FnMut(f64)) -> Result<CompactReport, OpenError> {
    let dir = dir.as_ref();
    let of = dir.to_owned();
    guard_apart(dir, progress, move |progress| compact_dir(&of, progress))
}

fn compact_dir(dir: &Path, progress: &mut dyn FnMut(f64)) -> Result<CompactReport, OpenError> {
    let damaged = |error: &dyn std::fmt::Display| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
    let path = database_path(dir);
    let size = || path.metadata().map(|metadata| metadata.len()).map_err(io_error("look at", &path));
    progress(0.0);
    let mut store = open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?;
    let before = size()?;
    store.database.compact().map_err(|error| match error {
        CompactionError::Storage(error) => damaged(&error),
        other => damaged(&other),
    })?;
    store.close()?;
    let after = size()?;
    progress(1.0);
    Ok(CompactReport { before, after })
}
