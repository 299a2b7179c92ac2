//! The events of AG-UI 1.0, as the host writes them, and the messages that they are about.
//!
//! Absent members are left out: `null` for an optional field is fatal to clients. Field names and rules:
//! <https://ag-ui.com/spec/1.0/schema.json>.

use agent_host_protocol::{Timestamp, encoded::JsonText};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version that the host speaks.
pub(crate) const PROTOCOL_VERSION: &str = "1.0";

/// An event on the wire.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Event {
    #[serde(flatten)]
    pub(crate) kind: Kind,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timestamp: Option<Timestamp>,
    /// Subagent of the event. Present on kinds that create or change content.
    #[serde(rename = "subagentRunId", skip_serializing_if = "Option::is_none")]
    pub(crate) subagent: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
}

impl From<Kind> for Event {
    fn from(kind: Kind) -> Self {
        Self { kind, timestamp: None, subagent: None, metadata: Map::new() }
    }
}

impl Event {
    /// At this time.
    pub(crate) fn at(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
pub(crate) enum Kind {
    RunStarted {
        thread_id: String,
        run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        protocol_version: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_run_id: Option<String>,
    },
    RunFinished {
        thread_id: String,
        run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<Outcome>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<Usage>,
    },
    RunError {
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<Usage>,
    },
    StepStarted {
        step_name: String,
    },
    StepFinished {
        step_name: String,
    },
    TextMessageStart {
        message_id: String,
        role: TextRole,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    TextMessageContent {
        message_id: String,
        delta: String,
    },
    TextMessageEnd {
        message_id: String,
    },
    ToolCallStart {
        tool_call_id: String,
        tool_call_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_message_id: Option<String>,
    },
    ToolCallArgs {
        tool_call_id: String,
        delta: String,
    },
    ToolCallEnd {
        tool_call_id: String,
    },
    ToolCallResult {
        message_id: String,
        tool_call_id: String,
        content: Content,
        /// The value is always `tool`.
        role: ToolRole,
    },
    StateSnapshot {
        snapshot: Value,
    },
    StateDelta {
        delta: Vec<PatchOp>,
    },
    MessagesSnapshot {
        messages: Vec<Message>,
    },
    ActivitySnapshot {
        message_id: String,
        activity_type: String,
        content: Map<String, Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        replace: Option<bool>,
    },
    ActivityDelta {
        message_id: String,
        activity_type: String,
        patch: Vec<PatchOp>,
    },
    ReasoningStart {
        message_id: String,
    },
    ReasoningMessageStart {
        message_id: String,
        /// The value is always `reasoning`.
        role: ReasoningRole,
    },
    ReasoningMessageContent {
        message_id: String,
        delta: String,
    },
    ReasoningMessageEnd {
        message_id: String,
    },
    ReasoningEnd {
        message_id: String,
    },
    ReasoningEncryptedValue {
        /// `tool-call` or `message`.
        subtype: String,
        entity_id: String,
        encrypted_value: String,
    },
    SubagentStarted {
        /// Id of the subagent's run; [`Event::subagent`] is not used here.
        subagent_run_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_subagent_run_id: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_tool_call_id: Option<String>,
    },
    SubagentFinished {
        subagent_run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<SubagentOutcome>,
    },
    SubagentError {
        subagent_run_id: String,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    #[cfg_attr(not(test), expect(dead_code, reason = "part of AG-UI; no result of a runner becomes one yet"))]
    Raw {
        event: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<String>,
    },
    Custom {
        name: String,
        value: Value,
    },
}

impl Kind {
    /// True if no event follows in the run.
    pub(crate) const fn is_terminal(&self) -> bool {
        matches!(self, Self::RunFinished { .. } | Self::RunError { .. })
    }
}

/// Whose text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TextRole {
    Developer,
    System,
    #[default]
    Assistant,
    User,
}

/// The word `tool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) enum ToolRole {
    #[default]
    #[serde(rename = "tool")]
    Tool,
}

/// The word `reasoning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) enum ReasoningRole {
    #[default]
    #[serde(rename = "reasoning")]
    Reasoning,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum Outcome {
    Success {
        /// Exactly the calls of frontend tools that have no answer.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pending_tool_call_ids: Vec<String>,
    },
    Interrupt {
        /// At least one.
        interrupts: Vec<Interrupt>,
    },
    Cancelled,
}

/// A question that a run waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Interrupt {
    pub(crate) id: String,
    /// `tool_call`, `input_required`, `confirmation`, or `agent-host:...`.
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_schema: Option<JsonText>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
}

/// The reason why a subagent ends in a run; none for a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum SubagentOutcome {
    /// The run waits for an answer, and a later run continues the subagent.
    Suspended,
}

/// Tokens of one model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_input_tokens: Option<u64>,
}

/// An operation of a JSON Patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum PatchOp {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

/// A message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Message {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) body: MessageBody,
    #[serde(rename = "subagentRunId", skip_serializing_if = "Option::is_none")]
    pub(crate) subagent: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
    /// Opaque to everyone but the provider of the model.
    #[serde(rename = "encryptedValue", skip_serializing_if = "Option::is_none")]
    pub(crate) encrypted_value: Option<String>,
}

impl Message {
    /// A message of the agent itself, without metadata.
    pub(crate) fn new(id: impl Into<String>, body: MessageBody) -> Self {
        Self { id: id.into(), body, subagent: None, metadata: Map::new(), encrypted_value: None }
    }
}

/// The role of a message, and its content.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum MessageBody {
    Developer {
        content: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    System {
        content: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    User {
        content: Content,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    Assistant {
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Tool {
        content: Content,
        tool_call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Reasoning {
        content: String,
    },
    Activity {
        activity_type: String,
        content: Map<String, Value>,
    },
}

impl MessageBody {
    /// The role, as JSON shows it.
    pub(crate) const fn role(&self) -> &'static str {
        match self {
            Self::Developer { .. } => "developer",
            Self::System { .. } => "system",
            Self::User { .. } => "user",
            Self::Assistant { .. } => "assistant",
            Self::Tool { .. } => "tool",
            Self::Reasoning { .. } => "reasoning",
            Self::Activity { .. } => "activity",
        }
    }
}

/// A call of a tool, in a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    /// The value is always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: FunctionType,
    pub(crate) function: Function,
    /// Opaque to everyone but the provider of the model.
    #[serde(rename = "encryptedValue", skip_serializing_if = "Option::is_none")]
    pub(crate) encrypted_value: Option<String>,
}

/// The word `function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) enum FunctionType {
    #[default]
    #[serde(rename = "function")]
    Function,
}

/// The called function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON, as text.
    pub(crate) arguments: String,
}

/// The content: one text, or parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of what is said.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Part {
    Text { text: String },
    Image { source: Source },
    Audio { source: Source },
    Video { source: Source },
    Document { source: Source },
}

/// The source of a part's bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum Source {
    /// Base64.
    Data { value: String, mime_type: String },
    Url {
        value: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
    /// The id of an artifact of this host, as a handle.
    File {
        value: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
}
