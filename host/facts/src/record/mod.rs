//! The data of recorded events, one type for each: the host writes it, and facts, AG-UI, transcripts and the command line read it.
//!
//! A record has events of hosts of all versions and of runners, so members that a reader can do without may be absent. Members are
//! in the order of their names, which is the order in the record. `calls` has calls of models and tools, `actions` requests to
//! people, `run` the run itself; messages, artifacts and state are here.

mod actions;
mod calls;
mod run;

use agent_host_protocol::{
    RunEvent,
    message::{ArtifactRef, Message, Role},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub use self::{
    actions::{ActionAnswer, ActionEnd, ActionRequest, Decision},
    calls::{CallFailure, ModelCallEnd, ModelCallStart, ToolCallArguments, ToolCallEnd, ToolCallProgress, ToolCallStart, Usage},
    run::{BranchReason, BranchStart, ChildEnd, ChildStart, Limit, PermissionDenial, StatusChange, SteeringReceipt, Violation},
};

/// The data of an event; `None` where it has another form, which neither the host nor its contract makes.
#[must_use]
pub fn read<T: DeserializeOwned>(event: &RunEvent) -> Option<T> {
    serde_json::from_str(event.data.get()).ok()
}

/// A piece of a message or of reasoning.
#[derive(Debug, Deserialize)]
pub struct Delta {
    /// The text, as the runner names it.
    pub message_id: String,
    /// The piece.
    pub chunk: Chunk,
}

/// The piece of a text.
#[derive(Debug, Deserialize)]
pub struct Chunk {
    /// The author of the text.
    pub role: Role,
    /// The piece.
    pub content: String,
}

/// A whole message.
#[derive(Debug, Deserialize)]
pub struct MessageEnd {
    /// The message, as the runner names it.
    pub message_id: String,
    /// The message.
    pub message: Message,
}

/// An artifact was made.
#[derive(Debug, Deserialize)]
pub struct ArtifactData {
    /// The artifact.
    pub artifact: ArtifactRef,
}

/// A value of state was set.
#[derive(Debug, Deserialize)]
pub struct StateData {
    /// The scope.
    #[serde(default)]
    pub scope: String,
    /// The key.
    pub key: String,
    /// The value.
    #[serde(default)]
    pub value: Value,
}
