//! Upkeep: backup, restore, check, compact, export, and the deletion of what is no longer needed.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod compact;
mod damaged_file;
pub(crate) mod export;
mod forget;
pub(crate) mod garbage;
mod prune;
pub(crate) mod restore;
pub(crate) mod salvage;

use crate::error::LedgerError;

/// Work beside the writer, on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, LedgerError> + Send + 'static) -> Result<T, LedgerError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(LedgerError::Storage(format!("the work did not finish: {error}").into())),
    }
}
