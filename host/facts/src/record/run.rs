//! The run itself: its status, its children, its input, and what was refused to it.

use std::borrow::Cow;

use agent_host_protocol::{RunStatus, Timestamp, run::ModelUsage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A change of the status of the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StatusChange {
    /// The number of another attempt that begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The run that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Value>,
    /// The reason.
    #[serde(default)]
    pub reason: String,
    /// The number of this resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<u32>,
    /// The status: `queued`, `running` or `waiting`.
    pub status: Cow<'static, str>,
    /// Time until which it waits at the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl StatusChange {
    /// The run is executed.
    #[must_use]
    pub fn running(reason: impl Into<String>) -> Self {
        Self { status: "running".into(), reason: reason.into(), ..Self::default() }
    }

    /// The run waits.
    #[must_use]
    pub fn waiting(reason: impl Into<String>, until: Option<Timestamp>) -> Self {
        Self { status: "waiting".into(), reason: reason.into(), until, ..Self::default() }
    }
}

/// Input that the run has taken while it was active.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SteeringReceipt {
    /// The event.
    pub event_id: String,
    /// The run that would have answered the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// A branch of the conversation that begins with the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchStart {
    /// The first event that has left the conversation.
    pub from_event_id: String,
    /// The message of the client that was asked again or changed, by its id.
    #[serde(default)]
    pub message_id: String,
    /// The reason.
    pub reason: BranchReason,
}

/// The reason why a conversation has a new branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchReason {
    /// A client asks for another answer to the same message.
    Regenerate,
    /// A client has changed a message, or put another one in its place.
    Edit,
}

impl BranchReason {
    /// As JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regenerate => "regenerate",
            Self::Edit => "edit",
        }
    }
}

/// The start of a child run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChildStart {
    /// The reason, for people.
    #[serde(default)]
    pub objective: String,
    /// The child.
    pub run_id: String,
    /// The runner of the child.
    #[serde(default)]
    pub runner_id: String,
}

/// The end of a child run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChildEnd {
    /// The child.
    pub run_id: String,
    /// The final status of the child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// Use of models by the child and its descendants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
}

/// A host call that the grant of the run does not allow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PermissionDenial {
    /// The code of the refusal.
    pub code: String,
    /// Further refusals of this kind; none at the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The host function.
    #[serde(default)]
    pub function: String,
    /// A line for people.
    #[serde(default)]
    pub message: String,
    /// The resource, as the runner named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// A limit that was met.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Further times at which it was met; none at the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The effect, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Cow<'static, str>>,
    /// The limit, by its key in the configuration.
    pub limit: Cow<'static, str>,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
}

/// A rule of the sandbox that the guest broke.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Violation {
    /// The code of the failure.
    pub code: Cow<'static, str>,
    /// A line for people.
    #[serde(default)]
    pub message: String,
}
