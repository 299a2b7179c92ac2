//! The errors of opening and changing a knowledge base.

use std::path::PathBuf;

use agent_host_protocol::{ApiError, ErrorCode};

use crate::search::SearchError;

/// The reason why a knowledge base cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KnowledgeError {
    /// A value of the configuration cannot be.
    #[error("{0}")]
    Config(String),
    /// The knowledge base does not exist.
    #[error("there is no knowledge base `{id}`; the configuration has {}", named(.known))]
    UnknownBase {
        /// Requested id.
        id: String,
        /// Existing ids.
        known: Vec<String>,
    },
    /// An option of an addition cannot be.
    #[error("{0}")]
    Options(String),
    /// The path to add does not exist.
    #[error("{path} cannot be added: {reason}", path = path.display())]
    Path {
        /// The file or folder.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The index was made by another version, or is damaged.
    #[error("the knowledge base in {path} cannot be read: {reason}; remove that folder and add the documents again",
        path = path.display())]
    Unreadable {
        /// Folder of the knowledge base.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The index cannot be used now.
    #[error(transparent)]
    Index(#[from] SearchError),
    /// The embedding model does not answer. Committed documents stay; a repeated call adds the rest.
    #[error(
        "the embedding model failed ({source}); {done} of {files} files are done and kept; run the command again to continue"
    )]
    Embedding {
        /// Error of the model.
        source: ApiError,
        /// Files that are done.
        done: u64,
        /// All files.
        files: u64,
    },
    /// A task of this process ended by itself.
    #[error("a part of the host failed: {0}")]
    Internal(String),
}

fn named(ids: &[String]) -> String {
    if ids.is_empty() { "none: add one under [[knowledge_bases]]".to_owned() } else { ids.join(", ") }
}

/// The error for a guest, without paths of the host's machine.
impl From<KnowledgeError> for ApiError {
    fn from(error: KnowledgeError) -> Self {
        match error {
            KnowledgeError::UnknownBase { id, .. } => {
                Self::new(ErrorCode::NotFound, format!("there is no knowledge base `{id}`"))
            }
            KnowledgeError::Index(SearchError::Busy { .. }) => {
                Self::retryable(ErrorCode::RuntimeError, "the knowledge base is busy: try again later")
            }
            KnowledgeError::Embedding { source, .. } => source,
            other => {
                tracing::error!(error = %other, "a knowledge base cannot be used");
                Self::new(ErrorCode::RuntimeError, "the knowledge base cannot be used: its operator finds the reason in the log")
            }
        }
    }
}
