//! The errors of an index.

use std::path::PathBuf;

use tantivy::{TantivyError, directory::error::LockError};

/// The reason why an index cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The folder of the index cannot be made, read or written.
    #[error("the search index in {path} cannot be used: {reason}; check the folder, its owner and the free disk space",
        path = path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// Another process writes to it.
    #[error("the search index in {path} is being written by another process: wait until it is done, and try again",
        path = path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The index was damaged, and is empty now.
    #[error("the search index in {path} was damaged ({reason}) and has been emptied: try again, it is being rebuilt",
        path = path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
}

impl SearchError {
    /// Converts an error of tantivy about the index in `path`.
    pub(crate) fn of(path: &std::path::Path, error: &TantivyError) -> Self {
        let path = path.to_owned();
        match error {
            TantivyError::LockFailure(LockError::LockBusy, _) => Self::Busy { path },
            other => Self::Unusable { path, reason: other.to_string() },
        }
    }
}
