//! The read model of a thread: what a front end shows first.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    fact::{Fact, SCHEMA_VERSION},
    kind::FactType,
    model::{ArtifactRef, ObjectRef, keep, text, value},
};

/// Items of each list of a read model: the newest. A front end reads older ones from the events.
const MOST: usize = 200;
/// Incidents and diagnostics.
const MOST_NOTES: usize = 50;

/// The status of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStatus {
    /// The thread has no turn yet.
    #[default]
    Idle,
    /// A turn waits for its place or for an executor.
    Queued,
    /// A turn is under way.
    Running,
    /// A turn waits for people, for a client or for a time.
    Waiting,
    /// The last turn has ended well.
    Completed,
    /// The last turn has failed.
    Failed,
    /// The last turn was cancelled.
    Canceled,
    /// The reader has missed something.
    Stale,
}

/// Something that a turn waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingAction {
    /// Id of the action.
    pub action_id: String,
    /// The thread.
    pub thread_id: String,
    /// The turn.
    pub turn_id: String,
    /// The call that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// `permission`, `structured_input`, `plan_review`, `interrupt` or `client_tool`.
    pub action_type: String,
    /// A line for people.
    pub title: String,
    /// The decisions that it takes.
    #[schema(value_type = Vec<Object>)]
    pub options: Value,
    /// JSON Schema of the answer; `null` where none is needed or it is read elsewhere.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Value,
    /// Time after which no answer is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The fact that asks.
    pub sequence: u64,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallView {
    /// Id of the call.
    pub tool_call_id: String,
    /// Id of the step.
    pub step_id: String,
    /// The turn.
    pub turn_id: String,
    /// Name of the tool.
    pub tool_name: String,
    /// `running`, `waiting`, `completed` or `failed`.
    pub status: String,
    /// The action that it waits for, or that allowed or refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_action_id: Option<String>,
    /// Address of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ref: Option<String>,
    /// Addresses of the artifacts of the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifact_refs: Vec<String>,
    /// The category of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
}

/// A turn that has no place in the stream yet: it waits for the turns before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedTurn {
    /// Id of the turn.
    pub turn_id: String,
    /// The agent that is to answer.
    pub agent: String,
    /// Time at which it was submitted.
    pub submitted_at: String,
}

/// Something that went wrong, or that somebody should know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// Type of the fact.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: FactType,
    /// The fact.
    pub sequence: u64,
    /// The turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// A code or a category.
    pub code: String,
    /// A line for people.
    pub message: String,
}

/// The end of the last turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The turn.
    pub turn_id: String,
    /// `completed`, `failed` or `canceled`.
    pub status: String,
    /// Time of the end.
    pub at: String,
    /// The category of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
    /// The code of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_hint: Option<String>,
    /// True if another try may succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

/// A thread, as far as one of its facts. Lists have their newest items; what is older is in the events.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadReadModel {
    /// The version of the form.
    pub schema_version: String,
    /// The host.
    pub runtime_id: String,
    /// The conversation.
    pub session_id: String,
    /// The thread.
    pub thread_id: String,
    /// Status of the thread.
    pub status: ThreadStatus,
    /// The turn that is under way.
    pub active_turn_id: Option<String>,
    /// The actions that the active turn waits for.
    pub pending_actions: Vec<PendingAction>,
    /// Calls of tools of the newest turns.
    pub tool_calls: Vec<ToolCallView>,
    /// Turns without a place in the stream.
    pub queued_turns: Vec<QueuedTurn>,
    /// Failures and blocks.
    pub incidents: Vec<Note>,
    /// Warnings, and what is not known.
    pub diagnostics: Vec<Note>,
    /// Artifacts of the thread.
    pub artifact_refs: Vec<ArtifactRef>,
    /// Tasks, by their ids.
    pub task_ids: Vec<String>,
    /// The end of the last turn.
    pub last_outcome: Option<Outcome>,
    /// Everything up to this fact belongs to turns that have ended.
    pub history_cursor: String,
    /// The last fact in it: `events?after=` continues from here.
    pub event_cursor: String,
    /// Older items that the lists do not have.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl ThreadReadModel {
    /// A thread of which nothing is known yet.
    #[must_use]
    pub fn new(runtime_id: &str, session_id: &str, thread_id: &str) -> Self {
        Self {
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: runtime_id.to_owned(),
            session_id: session_id.to_owned(),
            thread_id: thread_id.to_owned(),
            history_cursor: "0".to_owned(),
            event_cursor: "0".to_owned(),
            ..Self::default()
        }
    }

    /// With the turns that wait for their place.
    #[must_use]
    pub fn with_queued(mut self, queued: Vec<QueuedTurn>) -> Self {
        if self.active_turn_id.is_none() && !queued.is_empty() {
            self.status = ThreadStatus::Queued;
        }
        self.queued_turns = queued;
        self.queued_turns.truncate(MOST);
        self
    }

    /// Takes the next fact of the stream. One that leaves a gap makes the model stale; a repeated one changes nothing.
    pub fn apply(&mut self, fact: &Fact) {
        let at: u64 = self.event_cursor.parse().unwrap_or_default();
        if fact.sequence <= at {
            return;
        }
        if fact.sequence != at + 1 {
            self.status = ThreadStatus::Stale;
            return;
        }
        if self.status == ThreadStatus::Stale {
            return;
        }
        self.event_cursor = fact.sequence.to_string();
        match fact.kind {
            FactType::TurnSubmitted => {
                self.active_turn_id.clone_from(&fact.turn_id);
                self.status = ThreadStatus::Queued;
            }
            FactType::TurnStarted => self.status = ThreadStatus::Running,
            FactType::RunStatus => self.run_status(fact),
            FactType::ToolStarted => self.tool_started(fact),
            FactType::ToolResult | FactType::ToolFailed => self.tool_ended(fact),
            FactType::ActionRequired => self.asked(fact),
            kind if kind.is_action_terminal() => {
                self.pending_actions.retain(|action| Some(&action.action_id) != fact.scope.action_id.as_ref());
                if self.pending_actions.is_empty() && self.status == ThreadStatus::Waiting {
                    self.status = ThreadStatus::Running;
                }
                self.tool_status(fact, "running");
            }
            FactType::ArtifactChanged => {
                if let Some(artifact) = ObjectRef::artifact(fact) {
                    self.artifact_refs.retain(|known| known.id != artifact.id);
                    keep(&mut self.artifact_refs, MOST, &mut self.omitted, artifact);
                }
            }
            FactType::TaskCreated => {
                if let Some(task) = fact.scope.task_id.clone() {
                    keep(&mut self.task_ids, MOST, &mut self.omitted, task);
                }
            }
            FactType::RuntimeWarning => self.note(fact, "code", "message"),
            FactType::CostRecorded if fact.text("status") == Some("unknown") => {
                // A warning for each call would say the same again and again.
                let known = self.diagnostics.iter().any(|note| note.kind == fact.kind && note.turn_id == fact.turn_id);
                if !known {
                    self.note(fact, "reason", "reason");
                }
            }
            FactType::ModelFailed if fact.scope.model_request_id.is_some() => self.incident(fact, "failureCategory", "error"),
            FactType::PermissionDenied | FactType::SandboxBlocked => self.incident(fact, "reasonCode", "message"),
            FactType::RateLimitHit | FactType::QuotaBlocked => self.incident(fact, "kind", "reason"),
            kind if kind.is_turn_terminal() => self.turn_ended(fact),
            FactType::SnapshotUpdated if self.active_turn_id.is_none() => self.history_cursor.clone_from(&self.event_cursor),
            _ => {}
        }
    }

    fn run_status(&mut self, fact: &Fact) {
        match fact.text("phase") {
            Some("waiting") => self.status = ThreadStatus::Waiting,
            Some("queued") => self.status = ThreadStatus::Queued,
            Some("acting") if !self.pending_actions.is_empty() => self.status = ThreadStatus::Waiting,
            _ => self.status = ThreadStatus::Running,
        }
    }

    fn tool_started(&mut self, fact: &Fact) {
        let call = ToolCallView {
            tool_call_id: fact.scope.tool_call_id.clone().unwrap_or_default(),
            step_id: fact.scope.step_id.clone().unwrap_or_default(),
            turn_id: fact.turn_id.clone().unwrap_or_default(),
            tool_name: text(fact, "toolName"),
            status: "running".to_owned(),
            permission_action_id: None,
            output_ref: None,
            artifact_refs: Vec::new(),
            failure_category: None,
        };
        keep(&mut self.tool_calls, MOST, &mut self.omitted, call);
    }

    fn call(&mut self, fact: &Fact) -> Option<&mut ToolCallView> {
        let id = fact.scope.tool_call_id.as_ref()?;
        self.tool_calls.iter_mut().rev().find(|call| call.tool_call_id == *id)
    }

    fn tool_status(&mut self, fact: &Fact, status: &str) {
        let action = fact.scope.action_id.clone();
        if let Some(call) = self.call(fact).filter(|call| matches!(call.status.as_str(), "running" | "waiting")) {
            status.clone_into(&mut call.status);
            call.permission_action_id = action.or_else(|| call.permission_action_id.take());
        }
    }

    fn tool_ended(&mut self, fact: &Fact) {
        let has_failed = fact.kind == FactType::ToolFailed;
        if let Some(call) = self.call(fact) {
            if has_failed { "failed" } else { "completed" }.clone_into(&mut call.status);
            call.output_ref = fact.text("outputRef").map(str::to_owned);
            call.artifact_refs = fact.refs.get(&crate::fact::RefKind::Artifact).cloned().unwrap_or_default();
            call.artifact_refs.truncate(MOST_NOTES);
            call.failure_category = fact.text("failureCategory").map(str::to_owned);
        }
        if has_failed {
            self.incident(fact, "failureCategory", "error");
        }
    }

    fn asked(&mut self, fact: &Fact) {
        let action = PendingAction {
            action_id: fact.scope.action_id.clone().unwrap_or_default(),
            thread_id: fact.thread_id.clone(),
            turn_id: fact.turn_id.clone().unwrap_or_default(),
            tool_call_id: fact.scope.tool_call_id.clone(),
            action_type: text(fact, "actionType"),
            title: text(fact, "title"),
            options: fact.payload.get("options").cloned().unwrap_or_else(|| json!([])),
            input_schema: value(fact, "inputSchema"),
            expires_at: fact.text("expiresAt").map(str::to_owned),
            sequence: fact.sequence,
        };
        keep(&mut self.pending_actions, MOST, &mut self.omitted, action);
        self.status = ThreadStatus::Waiting;
        self.tool_status(fact, "waiting");
    }

    fn turn_ended(&mut self, fact: &Fact) {
        let (status, name) = match fact.kind {
            FactType::TurnCompleted => (ThreadStatus::Completed, "completed"),
            FactType::TurnFailed => (ThreadStatus::Failed, "failed"),
            _ => (ThreadStatus::Canceled, "canceled"),
        };
        self.status = status;
        let some = |key: &str| fact.text(key).map(str::to_owned);
        self.last_outcome = Some(Outcome {
            turn_id: fact.turn_id.clone().unwrap_or_default(),
            status: name.to_owned(),
            at: fact.timestamp.clone(),
            failure_category: some("failureCategory"),
            code: some("code"),
            message: some("message").or_else(|| some("reason")),
            recovery_hint: some("recoveryHint"),
            retryable: fact.payload.get("retryable").and_then(Value::as_bool),
        });
        if fact.kind == FactType::TurnFailed {
            self.incident(fact, "failureCategory", "message");
        }
        self.active_turn_id = None;
        self.pending_actions.clear();
        self.history_cursor.clone_from(&self.event_cursor);
    }

    fn incident(&mut self, fact: &Fact, code: &str, message: &str) {
        let note = Note::of(fact, code, message);
        keep(&mut self.incidents, MOST_NOTES, &mut self.omitted, note);
    }

    fn note(&mut self, fact: &Fact, code: &str, message: &str) {
        let note = Note::of(fact, code, message);
        keep(&mut self.diagnostics, MOST_NOTES, &mut self.omitted, note);
    }
}

impl Note {
    fn of(fact: &Fact, code: &str, message: &str) -> Self {
        Self {
            kind: fact.kind,
            sequence: fact.sequence,
            turn_id: fact.turn_id.clone(),
            code: text(fact, code),
            message: text(fact, message),
        }
    }
}
