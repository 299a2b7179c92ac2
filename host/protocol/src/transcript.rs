//! The transcript: what was said in a conversation. A projection of the event log, never a raw payload.

use serde::{Deserialize, Serialize};

use crate::{
    id::{EventId, RunId},
    message::{ArtifactRef, ContentPart, content},
    time::Timestamp,
};

/// The type of an item that is a message.
pub const MESSAGE: &str = "message";

/// An item of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TranscriptItem {
    /// Opaque.
    pub transcript_id: String,
    /// The event that it belongs to.
    pub event_id: EventId,
    /// The run that said it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// `user`, `assistant`, `tool`, `system` or `developer`.
    pub role: String,
    /// `message`, `tool-call`, `tool-result`, `notice`, ...
    pub item_type: String,
    /// Content: a string for a single text, else a list of parts.
    #[serde(default, with = "content")]
    pub content: Vec<ContentPart>,
    /// Artifacts of the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRef>,
    /// 1 for the first item of the conversation, then without a gap.
    pub seq: u64,
    /// Opaque position.
    pub cursor: String,
    /// Time at which the host accepted the item.
    pub created_at: Timestamp,
}
