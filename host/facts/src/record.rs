//! The data of recorded events, as every projection of a record reads them: facts here, AG-UI in the server.
//!
//! A record has events of hosts of all versions and of runners, so members that a projection can do without may be absent.

use agent_host_protocol::{
    RunEvent, RunStatus,
    message::{ArtifactRef, Message, Role},
    run::ModelUsage,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

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

/// The start of a tool call.
#[derive(Debug, Deserialize)]
pub struct ToolCallStart {
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
    /// `None` if the parameters are unknown, or follow in pieces.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
    /// Size of parameters that follow in pieces.
    #[serde(default)]
    pub parameters_bytes: Option<u64>,
    /// The message that the call belongs to, as the runner names it.
    #[serde(default)]
    pub message_id: Option<String>,
}

/// The end of a tool call.
#[derive(Debug, Deserialize)]
pub struct ToolCallEnd {
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
    /// The result: a text or a list of parts.
    #[serde(default)]
    pub result: Value,
    /// The error of a call that failed.
    #[serde(default)]
    pub error: Option<Value>,
    /// The code of the error.
    #[serde(default)]
    pub code: Option<String>,
    /// The category of the error.
    #[serde(default)]
    pub category: Option<Value>,
    /// The duration, in ms.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// Bytes of the whole output; `None` if nobody counted them.
    #[serde(default)]
    pub output_bytes: Option<u64>,
    /// True if the result or the error is not the whole output.
    #[serde(default)]
    pub truncated: bool,
}

/// The progress of a tool call.
#[derive(Debug, Deserialize)]
pub struct ToolCallProgress {
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The part that is done.
    #[serde(default)]
    pub progress: Value,
    /// The whole.
    #[serde(default)]
    pub total: Option<Value>,
    /// A message for people.
    #[serde(default)]
    pub message: Option<String>,
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

/// The start of a child run.
#[derive(Debug, Deserialize)]
pub struct ChildStart {
    /// The child.
    pub run_id: String,
    /// The runner of the child.
    #[serde(default)]
    pub runner_id: String,
    /// The reason, for people.
    #[serde(default)]
    pub objective: String,
}

/// The end of a child run.
#[derive(Debug, Deserialize)]
pub struct ChildEnd {
    /// The child.
    pub run_id: String,
    /// The final status of the child.
    #[serde(default)]
    pub status: Option<RunStatus>,
    /// The models that the child used.
    #[serde(default)]
    pub usage: Option<ModelUsage>,
}
