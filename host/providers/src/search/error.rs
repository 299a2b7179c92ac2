//! Why an index cannot be used.

use std::path::PathBuf;

use tantivy::{TantivyError, directory::error::LockError};

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The folder of the index cannot be made, read or written.
    #[error("the search index in {path} cannot be used: {reason}; check the folder, its owner and the free disk space",
        path = path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process writes to it.
    #[error("the search index in {path} is being written by another process: wait until it is done, and try again",
        path = path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// It was damaged, and is empty now.
    #[error("the search index in {path} was damaged ({reason}) and has been emptied: try again, it is filled anew",
        path = path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
}

impl SearchError {
    /// What tantivy reports of an index in `path`.
    pub(crate) fn of(path: &std::path::Path, error: &TantivyError) -> Self {
        let path = path.to_owned();
        match error {
            TantivyError::LockFailure(LockError::LockBusy, _) => Self::Busy { path },
            other => Self::Unusable { path, reason: other.to_string() },
        }
    }
}
