//! The messages of `@ag-ui/proto` 1.0.0, with their field numbers. Messages that the host never writes are left out.

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

/// Messages with their fields: `name: Type = "TAG" kind label`.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty = $tag:tt $($label:ident)+,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub(super) struct $name {
            $($(#[$note])* #[prost($($label),+, tag = $tag)] pub(super) $field: $type,)*
        }
    )*};
}

/// Events with their fields: messages whose field 1 is what every event has.
macro_rules! events {
    ($($(#[$doc:meta])* $name:ident { $($fields:tt)* })*) => {
        messages! {
            $($(#[$doc])* $name {
                base: Option<Base> = "1" message optional,
                $($fields)*
            })*
        }
    };
}

events! {
    TextMessageStart {
        message_id: String = "2" string,
        role: Option<String> = "3" string optional,
        name: Option<String> = "4" string optional,
        subagent: Option<String> = "5" string optional,
    }

    /// TEXT_MESSAGE_CONTENT and TOOL_CALL_ARGS.
    Delta {
        id: String = "2" string,
        delta: String = "3" string,
        subagent: Option<String> = "4" string optional,
    }

    /// TEXT_MESSAGE_END, TOOL_CALL_END, STEP_STARTED and STEP_FINISHED.
    Named {
        id: String = "2" string,
        subagent: Option<String> = "3" string optional,
    }

    ToolCallStart {
        tool_call_id: String = "2" string,
        tool_call_name: String = "3" string,
        parent_message_id: Option<String> = "4" string optional,
        subagent: Option<String> = "5" string optional,
    }

    ToolCallResult {
        subagent: Option<String> = "2" string optional,
        message_id: String = "3" string,
        tool_call_id: String = "4" string,
        /// A text, or else the parts.
        content: Option<String> = "5" string optional,
        role: Option<String> = "6" string optional,
        parts: Vec<Part> = "7" message repeated,
    }

    StateSnapshot {
        snapshot: Option<Value> = "2" message optional,
        subagent: Option<String> = "3" string optional,
    }

    StateDelta {
        delta: Vec<Operation> = "2" message repeated,
        subagent: Option<String> = "3" string optional,
    }

    MessagesSnapshot {
        messages: Vec<ThreadMessage> = "2" message repeated,
    }

    ActivitySnapshot {
        subagent: Option<String> = "2" string optional,
        message_id: String = "3" string,
        activity_type: String = "4" string,
        content: Option<Struct> = "5" message optional,
        replace: Option<bool> = "6" bool optional,
    }

    ActivityDelta {
        subagent: Option<String> = "2" string optional,
        message_id: String = "3" string,
        activity_type: String = "4" string,
        patch: Vec<Operation> = "5" message repeated,
    }

    /// The events of reasoning: those without `role` or `delta` have none.
    Reasoning {
        subagent: Option<String> = "2" string optional,
        message_id: String = "3" string,
        /// The role of a START, the delta of a CONTENT.
        text: String = "4" string,
    }

    ReasoningEncryptedValue {
        subagent: Option<String> = "2" string optional,
        subtype: String = "3" string,
        entity_id: String = "4" string,
        encrypted_value: String = "5" string,
    }

    Raw {
        event: Option<Value> = "2" message optional,
        source: Option<String> = "3" string optional,
        subagent: Option<String> = "4" string optional,
    }

    Custom {
        name: String = "2" string,
        value: Option<Value> = "3" message optional,
        subagent: Option<String> = "4" string optional,
    }

    RunStarted {
        thread_id: String = "2" string,
        run_id: String = "3" string,
        parent_run_id: Option<String> = "4" string optional,
        protocol_version: Option<String> = "6" string optional,
    }

    RunFinished {
        thread_id: String = "2" string,
        run_id: String = "3" string,
        result: Option<Value> = "4" message optional,
        /// `success`, `interrupt`, `cancelled`, or empty.
        outcome: String = "5" string,
        interrupts: Vec<Interrupt> = "6" message repeated,
        usage: Vec<Usage> = "7" message repeated,
        pending_tool_call_ids: Vec<String> = "8" string repeated,
    }

    RunError {
        code: Option<String> = "2" string optional,
        message: String = "3" string,
        usage: Vec<Usage> = "4" message repeated,
    }

    SubagentStarted {
        subagent_run_id: String = "2" string,
        name: String = "3" string,
        description: Option<String> = "4" string optional,
        parent_subagent_run_id: Option<String> = "5" string optional,
        parent_tool_call_id: Option<String> = "6" string optional,
    }

    SubagentFinished {
        subagent_run_id: String = "2" string,
        result: Option<Value> = "3" message optional,
        /// `suspended`, or empty.
        outcome: String = "4" string,
    }

    SubagentError {
        subagent_run_id: String = "2" string,
        message: String = "3" string,
        code: Option<String> = "4" string optional,
    }
}

messages! {
    /// Type of the event, and the members that every event may carry.
    Base {
        kind: i32 = "1" int32,
        timestamp: Option<i64> = "2" int64 optional,
        metadata: Option<Struct> = "4" message optional,
    }

    Interrupt {
        id: String = "1" string,
        reason: String = "2" string,
        message: Option<String> = "3" string optional,
        tool_call_id: Option<String> = "4" string optional,
        response_schema: Option<Value> = "5" message optional,
        expires_at: Option<String> = "6" string optional,
        metadata: Option<Value> = "7" message optional,
    }

    Usage {
        provider: Option<String> = "1" string optional,
        model: Option<String> = "2" string optional,
        input_tokens: Option<i64> = "3" int64 optional,
        output_tokens: Option<i64> = "4" int64 optional,
        total_tokens: Option<i64> = "5" int64 optional,
        reasoning_tokens: Option<i64> = "6" int64 optional,
        cached_input_tokens: Option<i64> = "7" int64 optional,
    }

    /// An operation of a JSON Patch: `op` is its place among add, remove, replace, move, copy and test.
    Operation {
        op: i32 = "1" int32,
        path: String = "2" string,
        from: Option<String> = "3" string optional,
        value: Option<Value> = "4" message optional,
    }

    /// A message of any role: which fields count depends on it.
    ThreadMessage {
        id: String = "1" string,
        role: String = "2" string,
        content: Option<String> = "3" string optional,
        name: Option<String> = "4" string optional,
        tool_calls: Vec<ToolCall> = "5" message repeated,
        tool_call_id: Option<String> = "6" string optional,
        error: Option<String> = "7" string optional,
        parts: Vec<Part> = "8" message repeated,
        metadata: Option<Struct> = "9" message optional,
        subagent: Option<String> = "10" string optional,
        encrypted_value: Option<String> = "11" string optional,
        activity_type: Option<String> = "12" string optional,
        activity_content: Option<Struct> = "13" message optional,
    }

    ToolCall {
        id: String = "1" string,
        kind: String = "2" string,
        function: Option<Function> = "3" message optional,
    }

    Function {
        name: String = "1" string,
        arguments: String = "2" string,
    }

    TextPart {
        text: String = "1" string,
    }

    MediaPart {
        source: Option<Source> = "1" message optional,
    }

    DataSource {
        value: String = "1" string,
        mime_type: String = "2" string,
    }

    UrlSource {
        value: String = "1" string,
        mime_type: Option<String> = "2" string optional,
    }

    FileSource {
        value: String = "1" string,
        provider: Option<String> = "2" string optional,
        mime_type: Option<String> = "3" string optional,
    }

    /// `google.protobuf.Struct`. Its map is written as the entries of a map on the wire.
    Struct {
        fields: Vec<Field> = "1" message repeated,
    }

    Field {
        key: String = "1" string,
        value: Option<Value> = "2" message optional,
    }

    /// `google.protobuf.ListValue`.
    List {
        values: Vec<Value> = "1" message repeated,
    }
}
