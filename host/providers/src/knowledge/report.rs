//! Reports on a knowledge base, its documents, and changes to them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A knowledge base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnowledgeBaseInfo {
    /// Id of the knowledge base.
    pub id: String,
    /// For people.
    pub name: String,
    /// Number of documents.
    pub documents: u64,
    /// Number of passages.
    pub passages: u64,
    /// Reason why the knowledge base cannot be used, if any; calls fail until it is repaired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A document of a knowledge base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DocumentInfo {
    /// Derived from the knowledge base and from where the file is: the same at every addition.
    pub id: String,
    /// The path below the folder that was added; the name of a file that was added by itself.
    pub path: String,
    /// Path of the file. Not shown to guests.
    pub source: PathBuf,
    /// The first heading, `<title>`, or the name of the file.
    pub title: String,
    /// As it was read: `text/markdown`, `text/html`, `application/pdf`, `text/plain`.
    pub media_type: String,
    /// Time of the file's last change, in Unix ms.
    pub modified_at: u64,
    /// Time of the addition, in Unix ms.
    pub added_at: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Number of passages.
    pub passages: u64,
    /// The embedding model of its passages, if they have embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<String>,
    /// Metadata for guests: all keys that filters can name.
    pub metadata: Map<String, Value>,
}

/// The options of an addition.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AddOptions {
    /// Metadata of each document of this addition. Strings, numbers and booleans.
    pub metadata: Map<String, Value>,
    /// If true, documents are removed whose files have gone from an added folder.
    pub prune: bool,
}

/// The outcome of adding a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum FileOutcome {
    /// The document is new.
    Added {
        /// Number of passages.
        passages: u64,
    },
    /// The document replaced an earlier version.
    Updated {
        /// Number of passages.
        passages: u64,
    },
    /// The document is unchanged.
    Unchanged,
    /// The format of the file is not supported. A file that was named directly is `Failed` instead.
    Ignored,
    /// The file could not be added; an earlier version stays.
    Failed {
        /// Reason, for a person.
        reason: String,
    },
}

/// The progress of an addition.
#[derive(Debug, Clone, PartialEq)]
pub enum AddProgress {
    /// All files were found.
    Found {
        /// Number of files.
        files: u64,
    },
    /// A file is done.
    File {
        /// Number of completed files.
        done: u64,
        /// Number of files.
        files: u64,
        /// The file.
        path: PathBuf,
        /// Outcome of the file.
        outcome: FileOutcome,
    },
    /// Files reported before are on disk and searchable.
    Committed {
        /// Number of committed files.
        done: u64,
    },
}

/// The result of an addition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AddReport {
    /// Documents that were not there before.
    pub added: u64,
    /// Documents that were replaced.
    pub updated: u64,
    /// Documents that had not changed.
    pub unchanged: u64,
    /// Files in folders that are of no kind that is read.
    pub ignored: u64,
    /// Passages of the added and replaced documents.
    pub passages: u64,
    /// Files that could not be taken in.
    pub failed: Vec<FileFailure>,
    /// Paths of documents whose files have gone from an added folder. The documents stay, unless `prune` was set.
    pub missing: Vec<String>,
    /// Number of removed documents.
    pub pruned: u64,
}

/// A file that could not be taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailure {
    /// The file.
    pub path: PathBuf,
    /// Reason, for a person.
    pub reason: String,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RemoveReport {
    /// Removed documents.
    pub removed: Vec<DocumentInfo>,
    /// Names without a document.
    pub not_found: Vec<String>,
}
