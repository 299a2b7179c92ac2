//! Values kept by name or id: state, storage, entries and artifacts.

use agent_host_protocol::{EventId, RunId, Timestamp, artifact::ArtifactMetadata, grant::ConversationKey, message::ArtifactRef};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{error::LedgerError, files::Blob};

/// A named JSON value that the ledger keeps and does not look into: an API key, an executor, the state of a delivery.
#[derive(Debug, Clone)]
pub struct EntryWrite {
    /// `KIND/ID`: 1 to 1,024 bytes.
    pub key: String,
    /// New value; `None` deletes the key.
    pub value: Option<Box<RawValue>>,
}

impl EntryWrite {
    /// Puts a value.
    ///
    /// # Errors
    /// [`crate::LedgerError::Invalid`] where it cannot be JSON.
    pub fn put(key: impl Into<String>, value: &impl Serialize) -> Result<Self, LedgerError> {
        let value = serde_json::value::to_raw_value(value).map_err(|error| LedgerError::not_json(&error))?;
        Ok(Self { key: key.into(), value: Some(value) })
    }

    /// Deletes a value.
    #[must_use]
    pub fn delete(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None }
    }
}

/// Sets or deletes one state value.
#[derive(Debug, Clone, Default)]
pub struct StateWrite {
    /// Whose state: `Grant::state_key`.
    pub scope_key: String,
    /// Key of the value.
    pub key: String,
    /// New value; `None` deletes the key.
    pub value: Option<Box<RawValue>>,
    /// Value that must be there now, else nothing of the whole write happens.
    pub expected: Option<ExpectedValue>,
    /// Quota of the scope. The writer decides, so a refusal comes from the [`crate::Commit`]; until then readers see the
    /// value, as with every write that is admitted and refused later.
    pub quota: Option<Quota>,
}

/// Condition of a write: the state value that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedValue {
    /// The value does not exist.
    Absent,
    /// The value has this tag: [`crate::state_tag`] of its stored JSON text.
    Value(u64),
}

/// Limit of a scope of state or an area of storage. A scope or area over its limit can still shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Keys and values together.
    pub max_bytes: u64,
    /// Keys.
    pub max_keys: u64,
}

/// The usage of a scope of state or an area of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Keys and values together.
    pub bytes: u64,
    /// Keys.
    pub keys: u64,
}

/// A storage value that is larger than this is a blob: a page of redb has 4 KiB, and a batch of the writer 4 MiB.
pub const STORAGE_INLINE_BYTES: usize = 32 * 1024;

/// Keeps or deletes the bytes of one key.
#[derive(Debug, Clone)]
pub struct StorageWrite {
    /// Whose storage.
    pub area_key: String,
    /// Key of the value.
    pub key: String,
    /// New value; `None` deletes the key.
    pub value: Option<StorageValue>,
    /// Quota of the area.
    pub quota: Option<Quota>,
}

/// Bytes to keep.
#[derive(Debug, Clone)]
pub enum StorageValue {
    /// At most [`STORAGE_INLINE_BYTES`].
    Inline(Vec<u8>),
    /// Any number of them, already written.
    Blob(Blob),
}

/// Bytes that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageContent {
    /// Themselves.
    Inline(Vec<u8>),
    /// In a blob. If [`crate::Ledger::blob`] no longer has it, the value was replaced meanwhile: get the value again.
    Blob {
        /// Name of the blob.
        sha256: String,
        /// Bytes.
        size: u64,
    },
}

impl StorageContent {
    /// The size of the value, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob { size, .. } => *size,
        }
    }
}

/// [`ArtifactRecord::source`] of what a client sent by itself.
pub const UPLOAD: &str = "upload";

/// Record of an artifact. The content is the blob with its digest; several artifacts may share one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRecord {
    /// A UUIDv7 as text, or 1 to 64 letters, digits and `-`. The id must be new.
    pub artifact_id: String,
    /// Digest of its bytes, 64 hexadecimal digits in lower case.
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
    /// Media type, as the host has determined it.
    pub media_type: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Time at which the host accepted the artifact.
    pub created_at: Timestamp,
    /// Expiry time, if any. Until the artifact is collected, readers compare this time with the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Scope of the callers that may see the artifact. The ledger does not look into it.
    pub scope: ArtifactScope,
    /// `upload`, `run`, `tool`, `event`, `skill` or `static`. Uploads are collected where nothing refers to them; all others are referred
    /// to from the start.
    pub source: String,
}

/// An id for a new artifact of a workspace: a UUIDv7, so ids of later artifacts sort later.
#[must_use]
pub fn new_artifact_id(workspace: &str) -> String {
    // Every id of the protocol is one; this one belongs to no event.
    EventId::of_workspace(Some(workspace)).to_string()
}

impl ArtifactRecord {
    /// True if the artifact has expired.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The reference to the artifact in messages and events.
    #[must_use]
    pub fn reference(&self) -> ArtifactRef {
        ArtifactRef {
            artifact_id: self.artifact_id.clone(),
            media_type: self.media_type.clone(),
            name: self.name.clone(),
            size: Some(self.size),
            sha256: Some(self.sha256.clone()),
        }
    }

    /// Reference to the artifact, as guests and clients see it.
    #[must_use]
    pub fn metadata(&self) -> ArtifactMetadata {
        ArtifactMetadata { artifact: self.reference(), created_at: self.created_at, expires_at: self.expires_at }
    }
}

/// The owner of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactScope {
    /// The workspace; empty where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workspace: String,
    /// The conversation that it came up in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationKey>,
    /// The run that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The binding of that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_id: Option<String>,
}
