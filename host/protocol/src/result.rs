//! Results of a run, in the log and on the wire (protocol v1, section 6).

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, value::RawValue};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use crate::{
    encoded::JsonText,
    id::RunId,
    manifest::StateScope,
    message::{ArtifactRef, ContentPart, Message, Role, content},
    time::Timestamp,
};

crate::named_enum! {
    /// Types of results that this version names. Others are kept, warned about, and have no effect.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ResultKind {
        /// A piece of a message.
        MessageDelta = "message.delta",
        /// A whole message, which joins the transcript.
        MessageCompleted = "message.completed",
        /// A piece of reasoning.
        ReasoningDelta = "reasoning.delta",
        /// A tool call begins.
        ToolCallStarted = "tool.call.started",
        /// A piece of the parameters of a call that has begun, where they are too long for its first event. Host only.
        ToolCallArguments = "tool.call.arguments",
        /// A tool says how far it is. Host only.
        ToolCallProgress = "tool.call.progress",
        /// A tool call has ended.
        ToolCallCompleted = "tool.call.completed",
        /// The run made an artifact.
        ArtifactCreated = "artifact.created",
        /// The run changed a state value.
        StateUpdated = "state.updated",
        /// The run asks for a platform action.
        ActionRequested = "action.requested",
        /// A person has said something to an action or a question. Host only.
        ActionAnswered = "action.answered",
        /// The outcome of an action, its last event. Host only.
        ActionResolved = "action.resolved",
        /// The run has taken input that arrived while it was active. Host only.
        SteeringReceived = "steering.received",
        /// The run answers a message that a client has asked again or changed, in place of what followed. Host only.
        ConversationBranched = "conversation.branched",
        /// The run has started another. Host only.
        ChildStarted = "run.child.started",
        /// A run that the run has started has ended. Host only.
        ChildEnded = "run.child.ended",
        /// A model call begins. Host only.
        ModelCallStarted = "model.call.started",
        /// A model call has ended. Host only.
        ModelCallCompleted = "model.call.completed",
        /// A host call was refused for want of a grant. Host only.
        PermissionDenied = "permission.denied",
        /// The guest broke a rule of the sandbox. Host only.
        SandboxViolation = "sandbox.violation",
        /// A limit was met. Host only.
        LimitReached = "limit.reached",
        /// The status of the run changed. Host only.
        RunStatus = "run.status",
        /// The run ended well. Host only, last.
        RunCompleted = "run.completed",
        /// The run ended otherwise: failed, cancelled or timed out. Host only, last.
        RunFailed = "run.failed",
    }
}

impl ResultKind {
    /// True if only the host may write this type. A guest that emits it is refused.
    #[must_use]
    pub const fn is_host_only(self) -> bool {
        matches!(
            self,
            Self::ActionAnswered
                | Self::ActionResolved
                | Self::SteeringReceived
                | Self::ConversationBranched
                | Self::ChildStarted
                | Self::ChildEnded
                | Self::ModelCallStarted
                | Self::ModelCallCompleted
                | Self::ToolCallArguments
                | Self::ToolCallProgress
                | Self::PermissionDenied
                | Self::SandboxViolation
                | Self::LimitReached
                | Self::RunStatus
                | Self::RunCompleted
                | Self::RunFailed
        )
    }

    /// True if the type is the last event of a run.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed)
    }
}

/// A result that a runner emits, before the host has numbered it.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "fields as in the contract, wit/results.wit")]
pub enum RunResult {
    MessageDelta {
        message_id: String,
        role: Role,
        text: String,
    },
    MessageCompleted {
        message_id: String,
        message: Message,
    },
    ReasoningDelta {
        message_id: String,
        role: Role,
        text: String,
    },
    ToolCallStarted {
        call_id: String,
        tool_name: String,
        parameters: Value,
        message_id: Option<String>,
    },
    ToolCallCompleted {
        call_id: String,
        tool_name: String,
        outcome: Result<Vec<ContentPart>, String>,
    },
    ArtifactCreated(ArtifactRef),
    StateUpdated {
        scope: StateScope,
        key: String,
        value: Value,
    },
    ActionRequested {
        action: String,
        target: Value,
        payload: Value,
    },
    /// A type that the contract does not name.
    Other {
        kind: String,
        data: Value,
    },
}

impl RunResult {
    /// The type in the log.
    #[must_use]
    pub fn kind(&self) -> Cow<'static, str> {
        let known = match self {
            Self::MessageDelta { .. } => ResultKind::MessageDelta,
            Self::MessageCompleted { .. } => ResultKind::MessageCompleted,
            Self::ReasoningDelta { .. } => ResultKind::ReasoningDelta,
            Self::ToolCallStarted { .. } => ResultKind::ToolCallStarted,
            Self::ToolCallCompleted { .. } => ResultKind::ToolCallCompleted,
            Self::ArtifactCreated(_) => ResultKind::ArtifactCreated,
            Self::StateUpdated { .. } => ResultKind::StateUpdated,
            Self::ActionRequested { .. } => ResultKind::ActionRequested,
            Self::Other { kind, .. } => return Cow::Owned(kind.clone()),
        };
        Cow::Borrowed(known.as_str())
    }

    /// The `data` of the event, as JSON text.
    ///
    /// # Errors
    /// Never fails for values that came from JSON or from the contract.
    pub fn data(&self) -> serde_json::Result<JsonText> {
        #[derive(Serialize)]
        struct Chunk<'a> {
            role: Role,
            content: &'a str,
        }
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Data<'a> {
            Delta {
                message_id: &'a str,
                chunk: Chunk<'a>,
            },
            Message {
                message_id: &'a str,
                message: &'a Message,
            },
            ToolStarted {
                tool_call_id: &'a str,
                tool_name: &'a str,
                parameters: &'a Value,
                #[serde(skip_serializing_if = "Option::is_none")]
                message_id: Option<&'a str>,
            },
            ToolOk {
                tool_call_id: &'a str,
                tool_name: &'a str,
                #[serde(with = "content")]
                result: &'a [ContentPart],
            },
            ToolErr {
                tool_call_id: &'a str,
                tool_name: &'a str,
                error: &'a str,
            },
            Artifact {
                artifact: &'a ArtifactRef,
            },
            State {
                scope: StateScope,
                key: &'a str,
                value: &'a Value,
            },
            Action {
                action: &'a str,
                target: &'a Value,
                payload: &'a Value,
            },
            Other(&'a Value),
        }
        let data = match self {
            Self::MessageDelta { message_id, role, text } | Self::ReasoningDelta { message_id, role, text } => {
                Data::Delta { message_id, chunk: Chunk { role: *role, content: text } }
            }
            Self::MessageCompleted { message_id, message } => Data::Message { message_id, message },
            Self::ToolCallStarted { call_id, tool_name, parameters, message_id } => {
                Data::ToolStarted { tool_call_id: call_id, tool_name, parameters, message_id: message_id.as_deref() }
            }
            Self::ToolCallCompleted { call_id, tool_name, outcome: Ok(result) } => {
                Data::ToolOk { tool_call_id: call_id, tool_name, result }
            }
            Self::ToolCallCompleted { call_id, tool_name, outcome: Err(error) } => {
                Data::ToolErr { tool_call_id: call_id, tool_name, error }
            }
            Self::ArtifactCreated(artifact) => Data::Artifact { artifact },
            Self::StateUpdated { scope, key, value } => Data::State { scope: *scope, key, value },
            Self::ActionRequested { action, target, payload } => Data::Action { action, target, payload },
            Self::Other { data, .. } => Data::Other(data),
        };
        JsonText::of(&data)
    }
}

/// The author of an event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The runner, as a guest of the host: what the event says is the runner's claim.
    Runner,
    /// The host: a fact.
    #[default]
    Host,
    /// The executor that holds the run: what the event says is the executor's claim.
    Executor,
    /// A person, who answered a question or decided on an action.
    Person,
    /// The client, which answered a call of one of its tools.
    Client,
    /// An importer: the host has translated an event of another framework, which an executor sent.
    Import,
}

impl EventSource {
    /// Every one. An index in this list is the number that the ledger stores.
    pub const ALL: [Self; 6] = [Self::Runner, Self::Host, Self::Executor, Self::Person, Self::Client, Self::Import];

    /// The author as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runner => "runner",
            Self::Host => "host",
            Self::Executor => "executor",
            Self::Person => "person",
            Self::Client => "client",
            Self::Import => "import",
        }
    }

    /// The author of an event of this type that was stored before the author was: the host for the types that only the host
    /// writes, people for their answers, else the runner.
    #[must_use]
    pub fn of_stored(kind: &str) -> Self {
        match ResultKind::from_name(kind) {
            Some(ResultKind::ActionAnswered) => Self::Person,
            Some(kind) if kind.is_host_only() => Self::Host,
            _ => Self::Runner,
        }
    }
}

/// An event of a run: a result, numbered and timed by the host.
#[derive(Debug, Clone, Deserialize)]
pub struct RunEvent {
    /// The run.
    pub run_id: RunId,
    /// Type of the event: see [`ResultKind`]; unknown types are kept.
    #[serde(rename = "type")]
    pub kind: String,
    /// As the type says.
    pub data: Box<RawValue>,
    /// 1 for the first event of the run, then without a gap.
    pub sequence: u64,
    /// Time at which the host accepted the result.
    pub timestamp: Timestamp,
    /// The author of the event.
    #[serde(default)]
    pub source: EventSource,
    /// The metadata that an executor has sent beside the data: a JSON object.
    #[serde(default)]
    pub metadata: Option<Box<RawValue>>,
}

/// An event of a run: a result, numbered and timed by the host (run ledger note, section 4.2).
#[derive(Serialize, ToSchema)]
#[schema(as = RunEvent)]
struct RunEventJson<'a> {
    /// Id of the event: the run and the number, `RUN:SEQUENCE`.
    id: String,
    /// The run.
    run_id: RunId,
    /// 1 for the first event of the run, then without a gap.
    sequence: u64,
    /// Type of the event. Clients ignore types that they do not know.
    #[serde(rename = "type")]
    kind: &'a str,
    /// The author of the event.
    source: EventSource,
    /// As the type says.
    #[schema(value_type = Value)]
    data: &'a RawValue,
    /// The artifacts that `data` names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifact_refs: Vec<ArtifactRef>,
    /// The metadata that an executor has sent beside the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    /// Time at which the host accepted the result.
    timestamp: Timestamp,
    /// The same time.
    created_at: Timestamp,
}

impl Serialize for RunEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { run_id, kind, data, sequence, timestamp, source, metadata } = self;
        let event = RunEventJson {
            id: format!("{run_id}:{sequence}"),
            run_id: *run_id,
            sequence: *sequence,
            kind,
            source: *source,
            data,
            artifact_refs: self.artifact_refs(),
            metadata: metadata.as_deref(),
            timestamp: *timestamp,
            created_at: *timestamp,
        };
        event.serialize(serializer)
    }
}

impl PartialSchema for RunEvent {
    fn schema() -> RefOr<Schema> {
        RunEventJson::schema()
    }
}

impl ToSchema for RunEvent {
    fn name() -> Cow<'static, str> {
        RunEventJson::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        RunEventJson::schemas(schemas);
    }
}

impl RunEvent {
    /// The artifacts that the data names: the one that was made, and those of a message or of the result of a tool.
    #[must_use]
    pub fn artifact_refs(&self) -> Vec<ArtifactRef> {
        #[derive(Deserialize)]
        struct NamedArtifacts {
            #[serde(default)]
            artifact: Option<ArtifactRef>,
            #[serde(default)]
            message: Option<Message>,
            #[serde(default, with = "content")]
            result: Vec<ContentPart>,
        }
        if !self.data.get().contains("artifact") {
            return Vec::new();
        }
        let Ok(NamedArtifacts { artifact, message, result }) = serde_json::from_str(self.data.get()) else { return Vec::new() };
        let parts = message.map(|message| message.content).unwrap_or_default().into_iter().chain(result);
        let of_parts = parts.filter_map(|part| if let ContentPart::Artifact(artifact) = part { Some(artifact) } else { None });
        artifact.into_iter().chain(of_parts).collect()
    }

    /// `data`, parsed.
    #[must_use]
    pub fn data_value(&self) -> Value {
        serde_json::from_str(self.data.get()).unwrap_or(Value::Null)
    }

    /// True if the event is the last one of its run.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        ResultKind::from_name(&self.kind).is_some_and(ResultKind::is_terminal)
    }
}

/// `data` of an event that only the host writes.
#[must_use]
pub fn host_data(data: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(data).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(result: &RunResult, kind: &str, data: &Value) {
        assert_eq!(result.kind(), kind);
        assert_eq!(&serde_json::from_str::<Value>(result.data().unwrap().get()).unwrap(), data);
    }

    #[test]
    fn results_have_the_form_of_the_protocol() {
        check(
            &RunResult::MessageDelta { message_id: "m1".into(), role: Role::Assistant, text: "hel".into() },
            "message.delta",
            &json!({ "message_id": "m1", "chunk": { "role": "assistant", "content": "hel" } }),
        );
        let message = serde_json::from_value(json!({ "role": "assistant", "content": "hello" })).unwrap();
        check(
            &RunResult::MessageCompleted { message_id: "m1".into(), message },
            "message.completed",
            &json!({ "message_id": "m1", "message": { "role": "assistant", "content": "hello" } }),
        );
        check(
            &RunResult::StateUpdated { scope: StateScope::Conversation, key: "external.session_id".into(), value: json!("abc") },
            "state.updated",
            &json!({ "scope": "conversation", "key": "external.session_id", "value": "abc" }),
        );
        check(
            &RunResult::ActionRequested {
                action: "message.edit".into(),
                target: json!({ "message_id": "1" }),
                payload: json!({ "text": "x" }),
            },
            "action.requested",
            &json!({ "action": "message.edit", "target": { "message_id": "1" }, "payload": { "text": "x" } }),
        );
        check(
            &RunResult::ToolCallCompleted { call_id: "c".into(), tool_name: "t".into(), outcome: Err("no".into()) },
            "tool.call.completed",
            &json!({ "tool_call_id": "c", "tool_name": "t", "error": "no" }),
        );
        check(&RunResult::Other { kind: "x.y".into(), data: json!([1]) }, "x.y", &json!([1]));
    }

    #[test]
    fn an_event_has_exactly_the_fields_of_the_protocol() {
        let run_id = RunId::new();
        let event = RunEvent {
            run_id,
            kind: "message.delta".into(),
            data: RawValue::from_string("{}".into()).unwrap(),
            sequence: 3,
            timestamp: 4,
            source: EventSource::Runner,
            metadata: None,
        };
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({
                "id": format!("{run_id}:3"), "run_id": run_id, "sequence": 3, "type": "message.delta", "source": "runner",
                "data": {}, "timestamp": 4, "created_at": 4,
            })
        );
    }

    #[test]
    fn every_kind_reads_back() {
        for kind in ResultKind::ALL {
            assert_eq!(ResultKind::from_name(kind.as_str()), Some(*kind));
            assert!(!kind.is_terminal() || kind.is_host_only(), "a guest could end its own run with {kind:?}");
        }
    }
}
