//! The messages of `@ag-ui/proto` 1.0.0: the numbers are its own. What the host never writes is left out.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Envelope {
    #[prost(
        oneof = "Arm",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31"
    )]
    pub(super) arm: Option<Arm>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Arm {
    #[prost(message, tag = "1")]
    TextMessageStart(TextMessageStart),
    #[prost(message, tag = "2")]
    TextMessageContent(Delta),
    #[prost(message, tag = "3")]
    TextMessageEnd(Named),
    #[prost(message, tag = "4")]
    ToolCallStart(ToolCallStart),
    #[prost(message, tag = "5")]
    ToolCallArgs(Delta),
    #[prost(message, tag = "6")]
    ToolCallEnd(Named),
    #[prost(message, tag = "7")]
    StateSnapshot(StateSnapshot),
    #[prost(message, tag = "8")]
    StateDelta(StateDelta),
    #[prost(message, tag = "9")]
    MessagesSnapshot(MessagesSnapshot),
    #[prost(message, tag = "10")]
    Raw(Raw),
    #[prost(message, tag = "11")]
    Custom(Custom),
    #[prost(message, tag = "12")]
    RunStarted(RunStarted),
    #[prost(message, tag = "13")]
    RunFinished(RunFinished),
    #[prost(message, tag = "14")]
    RunError(RunError),
    #[prost(message, tag = "15")]
    StepStarted(Named),
    #[prost(message, tag = "16")]
    StepFinished(Named),
    #[prost(message, tag = "19")]
    SubagentStarted(SubagentStarted),
    #[prost(message, tag = "20")]
    SubagentFinished(SubagentFinished),
    #[prost(message, tag = "21")]
    SubagentError(SubagentError),
    #[prost(message, tag = "22")]
    ToolCallResult(ToolCallResult),
    #[prost(message, tag = "23")]
    ActivitySnapshot(ActivitySnapshot),
    #[prost(message, tag = "24")]
    ActivityDelta(ActivityDelta),
    #[prost(message, tag = "25")]
    ReasoningStart(Reasoning),
    #[prost(message, tag = "26")]
    ReasoningMessageStart(Reasoning),
    #[prost(message, tag = "27")]
    ReasoningMessageContent(Reasoning),
    #[prost(message, tag = "28")]
    ReasoningMessageEnd(Reasoning),
    #[prost(message, tag = "30")]
    ReasoningEnd(Reasoning),
    #[prost(message, tag = "31")]
    ReasoningEncryptedValue(ReasoningEncryptedValue),
}

/// Which event it is, once more, and what every event may carry.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Base {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(int64, optional, tag = "2")]
    pub(super) timestamp: Option<i64>,
    #[prost(message, optional, tag = "4")]
    pub(super) metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TextMessageStart {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) message_id: String,
    #[prost(string, optional, tag = "3")]
    pub(super) role: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(super) subagent: Option<String>,
}

/// TEXT_MESSAGE_CONTENT and TOOL_CALL_ARGS.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Delta {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) delta: String,
    #[prost(string, optional, tag = "4")]
    pub(super) subagent: Option<String>,
}

/// TEXT_MESSAGE_END, TOOL_CALL_END, STEP_STARTED and STEP_FINISHED.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(string, optional, tag = "3")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ToolCallStart {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) tool_call_id: String,
    #[prost(string, tag = "3")]
    pub(super) tool_call_name: String,
    #[prost(string, optional, tag = "4")]
    pub(super) parent_message_id: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ToolCallResult {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) subagent: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) message_id: String,
    #[prost(string, tag = "4")]
    pub(super) tool_call_id: String,
    /// A text, or else the parts.
    #[prost(string, optional, tag = "5")]
    pub(super) content: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) role: Option<String>,
    #[prost(message, repeated, tag = "7")]
    pub(super) parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StateSnapshot {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(message, optional, tag = "2")]
    pub(super) snapshot: Option<Value>,
    #[prost(string, optional, tag = "3")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StateDelta {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(message, repeated, tag = "2")]
    pub(super) delta: Vec<Operation>,
    #[prost(string, optional, tag = "3")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MessagesSnapshot {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(message, repeated, tag = "2")]
    pub(super) messages: Vec<ThreadMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ActivitySnapshot {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) subagent: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) message_id: String,
    #[prost(string, tag = "4")]
    pub(super) activity_type: String,
    #[prost(message, optional, tag = "5")]
    pub(super) content: Option<Struct>,
    #[prost(bool, optional, tag = "6")]
    pub(super) replace: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ActivityDelta {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) subagent: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) message_id: String,
    #[prost(string, tag = "4")]
    pub(super) activity_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) patch: Vec<Operation>,
}

/// The events of reasoning: those without `role` or `delta` have none.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Reasoning {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) subagent: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) message_id: String,
    /// The role of a START, the delta of a CONTENT.
    #[prost(string, tag = "4")]
    pub(super) said: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReasoningEncryptedValue {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) subagent: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) subtype: String,
    #[prost(string, tag = "4")]
    pub(super) entity_id: String,
    #[prost(string, tag = "5")]
    pub(super) encrypted_value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Raw {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(message, optional, tag = "2")]
    pub(super) event: Option<Value>,
    #[prost(string, optional, tag = "3")]
    pub(super) source: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Custom {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, optional, tag = "3")]
    pub(super) value: Option<Value>,
    #[prost(string, optional, tag = "4")]
    pub(super) subagent: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunStarted {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) thread_id: String,
    #[prost(string, tag = "3")]
    pub(super) run_id: String,
    #[prost(string, optional, tag = "4")]
    pub(super) parent_run_id: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) protocol_version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunFinished {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) thread_id: String,
    #[prost(string, tag = "3")]
    pub(super) run_id: String,
    #[prost(message, optional, tag = "4")]
    pub(super) result: Option<Value>,
    /// `success`, `interrupt`, `cancelled`, or empty.
    #[prost(string, tag = "5")]
    pub(super) outcome: String,
    #[prost(message, repeated, tag = "6")]
    pub(super) interrupts: Vec<Interrupt>,
    #[prost(message, repeated, tag = "7")]
    pub(super) usage: Vec<Usage>,
    #[prost(string, repeated, tag = "8")]
    pub(super) pending_tool_call_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunError {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, optional, tag = "2")]
    pub(super) code: Option<String>,
    #[prost(string, tag = "3")]
    pub(super) message: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) usage: Vec<Usage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubagentStarted {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) subagent_run_id: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, optional, tag = "4")]
    pub(super) description: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(super) parent_subagent_run_id: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) parent_tool_call_id: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubagentFinished {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) subagent_run_id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) result: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubagentError {
    #[prost(message, optional, tag = "1")]
    pub(super) base: Option<Base>,
    #[prost(string, tag = "2")]
    pub(super) subagent_run_id: String,
    #[prost(string, tag = "3")]
    pub(super) message: String,
    #[prost(string, optional, tag = "4")]
    pub(super) code: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Interrupt {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) reason: String,
    #[prost(string, optional, tag = "3")]
    pub(super) message: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) tool_call_id: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) response_schema: Option<Value>,
    #[prost(string, optional, tag = "6")]
    pub(super) expires_at: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(super) metadata: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Usage {
    #[prost(string, optional, tag = "1")]
    pub(super) provider: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) model: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(super) input_tokens: Option<i64>,
    #[prost(int64, optional, tag = "4")]
    pub(super) output_tokens: Option<i64>,
    #[prost(int64, optional, tag = "5")]
    pub(super) total_tokens: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub(super) reasoning_tokens: Option<i64>,
    #[prost(int64, optional, tag = "7")]
    pub(super) cached_input_tokens: Option<i64>,
}

/// An operation of a JSON Patch: `op` is its place among add, remove, replace, move, copy and test.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Operation {
    #[prost(int32, tag = "1")]
    pub(super) op: i32,
    #[prost(string, tag = "2")]
    pub(super) path: String,
    #[prost(string, optional, tag = "3")]
    pub(super) from: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub(super) value: Option<Value>,
}

/// A message of any role: which fields count depends on it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadMessage {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) role: String,
    #[prost(string, optional, tag = "3")]
    pub(super) content: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) tool_calls: Vec<ToolCall>,
    #[prost(string, optional, tag = "6")]
    pub(super) tool_call_id: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(super) error: Option<String>,
    #[prost(message, repeated, tag = "8")]
    pub(super) parts: Vec<Part>,
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<Struct>,
    #[prost(string, optional, tag = "10")]
    pub(super) subagent: Option<String>,
    #[prost(string, optional, tag = "11")]
    pub(super) encrypted_value: Option<String>,
    #[prost(string, optional, tag = "12")]
    pub(super) activity_type: Option<String>,
    #[prost(message, optional, tag = "13")]
    pub(super) activity_content: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ToolCall {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) kind: String,
    #[prost(message, optional, tag = "3")]
    pub(super) function: Option<Function>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Function {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) arguments: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Part {
    #[prost(oneof = "PartArm", tags = "1, 2, 3, 4, 5")]
    pub(super) arm: Option<PartArm>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum PartArm {
    #[prost(message, tag = "1")]
    Text(TextPart),
    #[prost(message, tag = "2")]
    Image(MediaPart),
    #[prost(message, tag = "3")]
    Audio(MediaPart),
    #[prost(message, tag = "4")]
    Video(MediaPart),
    #[prost(message, tag = "5")]
    Document(MediaPart),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TextPart {
    #[prost(string, tag = "1")]
    pub(super) text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MediaPart {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<Source>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Source {
    #[prost(oneof = "SourceArm", tags = "1, 2, 3")]
    pub(super) arm: Option<SourceArm>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum SourceArm {
    #[prost(message, tag = "1")]
    Data(DataSource),
    #[prost(message, tag = "2")]
    Url(UrlSource),
    #[prost(message, tag = "3")]
    File(FileSource),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DataSource {
    #[prost(string, tag = "1")]
    pub(super) value: String,
    #[prost(string, tag = "2")]
    pub(super) mime_type: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UrlSource {
    #[prost(string, tag = "1")]
    pub(super) value: String,
    #[prost(string, optional, tag = "2")]
    pub(super) mime_type: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FileSource {
    #[prost(string, tag = "1")]
    pub(super) value: String,
    #[prost(string, optional, tag = "2")]
    pub(super) provider: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) mime_type: Option<String>,
}

/// `google.protobuf.Struct`. Its map is written as the entries that a map is on the wire.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Struct {
    #[prost(message, repeated, tag = "1")]
    pub(super) fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Field {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(oneof = "ValueArm", tags = "1, 2, 3, 4, 5, 6")]
    pub(super) arm: Option<ValueArm>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ValueArm {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(List),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct List {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Value>,
}
