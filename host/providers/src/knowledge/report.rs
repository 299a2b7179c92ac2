//! What is told of a knowledge base, of its documents, and of what was done to them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A knowledge base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnowledgeBaseInfo {
    /// Its id.
    pub id: String,
    /// For people.
    pub name: String,
    /// How many documents it has.
    pub documents: u64,
    /// How many passages they have.
    pub passages: u64,
    /// Why it cannot be used, where it cannot; it answers errors until that is mended.
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
    /// Where the file was. Not shown to guests.
    pub source: PathBuf,
    /// The first heading, `<title>`, or the name of the file.
    pub title: String,
    /// As it was read: `text/markdown`, `text/html`, `application/pdf`, `text/plain`.
    pub media_type: String,
    /// When the file was last changed. Unix milliseconds.
    pub modified_at: u64,
    /// When it was taken in. Unix milliseconds.
    pub added_at: u64,
    /// Size of the file.
    pub bytes: u64,
    /// How many passages it was cut into.
    pub passages: u64,
    /// The embedding model of its passages, if they have embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<String>,
    /// What guests see of it: all keys that filters can name.
    pub metadata: Map<String, Value>,
}

/// How documents are added.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AddOptions {
    /// Metadata of each document of this addition. Strings, numbers and booleans.
    pub metadata: Map<String, Value>,
    /// Whether documents whose files have gone from an added folder are removed.
    pub prune: bool,
}

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum FileOutcome {
    /// It was not there before.
    Added {
        /// Its passages.
        passages: u64,
    },
    /// It took the place of what it was before.
    Updated {
        /// Its passages.
        passages: u64,
    },
    /// It is there as it is.
    Unchanged,
    /// It is not a kind of file that is read. Files that are named one by one are `Failed` instead.
    Ignored,
    /// It could not be taken in; what was there of it stays.
    Failed {
        /// Why, for a person.
        reason: String,
    },
}

/// How far an addition has come.
#[derive(Debug, Clone, PartialEq)]
pub enum AddProgress {
    /// All files were found.
    Found {
        /// How many.
        files: u64,
    },
    /// A file is done.
    File {
        /// How many are done.
        done: u64,
        /// How many there are.
        files: u64,
        /// The file.
        path: PathBuf,
        /// What happened to it.
        outcome: FileOutcome,
    },
    /// What was told before is on disk, and found.
    Committed {
        /// How many files are done and safe.
        done: u64,
    },
}

/// What an addition did.
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
    /// Documents whose files have gone from an added folder: their paths. They stay, unless `prune` was asked for.
    pub missing: Vec<String>,
    /// How many of those were removed.
    pub pruned: u64,
}

/// A file that could not be taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailure {
    /// The file.
    pub path: PathBuf,
    /// Why, for a person.
    pub reason: String,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RemoveReport {
    /// What was removed.
    pub removed: Vec<DocumentInfo>,
    /// What named no document.
    pub not_found: Vec<String>,
}
