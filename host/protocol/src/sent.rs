//! Strict reading of the JSON that programs send to the host: an unknown member is an error. Values that the host has
//! stored are read by the types alone.
//!
//! The text is kept as it came until somebody asks for what is in it, so that its size is known before it is parsed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    context::Input,
    error::ApiError,
    id::RunId,
    limits::{MAX_JSON_DEPTH, is_shallow},
    manifest::StateScope,
    message::{ArtifactRef, ContentPart, Message, Role},
    model::{ModelRequest, ToolDefinition},
    result::{ResultKind, RunResult},
};

/// A result of a run that is executed outside: its type and its data, as its event will show them.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentResult {
    /// Such as `message.delta`.
    #[serde(rename = "type")]
    pub kind: String,
    /// As the type says. Without it: an empty object.
    #[schema(value_type = Value, required = false)]
    #[serde(default = "no_data")]
    pub data: Box<RawValue>,
    /// The run, where the whole envelope of the protocol is sent (v1, section 6.1). It must be this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The number of the result, where the whole envelope is sent. It must be the number that follows from `first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Time of the result as the sender has it. The host stores the time at which it accepts the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub timestamp: Option<serde_json::Number>,
    /// A JSON object that the event keeps beside the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
}

fn no_data() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

impl SentResult {
    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.kind.len() + self.data.get().len() + self.metadata.as_ref().map_or(0, |metadata| metadata.get().len())
    }

    /// The same result with this id of its message, where its data has none.
    ///
    /// # Errors
    /// `invalid_argument` if the data is no object.
    pub fn with_message_id(mut self, id: &str) -> Result<Self, ApiError> {
        let mut members: BTreeMap<String, Box<RawValue>> = data_of(&self.kind, &self.data)?;
        if !members.contains_key("message_id") {
            let id = serde_json::value::to_raw_value(id).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
            members.insert("message_id".to_owned(), id);
            self.data =
                serde_json::value::to_raw_value(&members).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
        }
        Ok(self)
    }

    /// The parsed result. A type that only the host writes, and an unknown type, become [`RunResult::Other`], for the
    /// caller to judge.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<RunResult, ApiError> {
        let Self { kind, data, metadata, .. } = self;
        if let Some(metadata) = metadata {
            let members: Map<String, Value> = serde_json::from_str(metadata.get())
                .map_err(|_| ApiError::invalid_argument("the `metadata` of a result is a JSON object"))?;
            shallow("the metadata of a result", &Value::Object(members))?;
        }
        Ok(match ResultKind::from_name(&kind) {
            Some(ResultKind::MessageDelta) => {
                let Delta { message_id, chunk: Chunk { role, content } } = data_of(&kind, &data)?;
                RunResult::MessageDelta { message_id, role, text: content }
            }
            Some(ResultKind::ReasoningDelta) => {
                let Delta { message_id, chunk: Chunk { role, content } } = data_of(&kind, &data)?;
                RunResult::ReasoningDelta { message_id, role, text: content }
            }
            Some(ResultKind::MessageCompleted) => {
                let MessageEnd { message_id, message } = data_of(&kind, &data)?;
                RunResult::MessageCompleted { message_id, message: read_message(message)? }
            }
            Some(ResultKind::ToolCallStarted) => {
                let ToolStarted { tool_call_id, tool_name, parameters, message_id } = data_of(&kind, &data)?;
                shallow("the parameters of a tool call", &parameters)?;
                RunResult::ToolCallStarted { call_id: tool_call_id, tool_name, parameters, message_id }
            }
            Some(ResultKind::ToolCallCompleted) => {
                let ToolCompleted { tool_call_id, tool_name, result, error } = data_of(&kind, &data)?;
                let outcome = match (result, error) {
                    (Some(content), None) => Ok(read_content(content)?),
                    (None, Some(error)) => Err(error),
                    _ => return Err(ApiError::invalid_argument("a tool call ends with either a `result` or an `error`")),
                };
                RunResult::ToolCallCompleted { call_id: tool_call_id, tool_name, outcome }
            }
            Some(ResultKind::ArtifactCreated) => {
                let Artifact { artifact } = data_of(&kind, &data)?;
                RunResult::ArtifactCreated(read_artifact(artifact)?)
            }
            Some(ResultKind::StateUpdated) => {
                let State { scope, key, value } = data_of(&kind, &data)?;
                shallow("the value of a state update", &value)?;
                RunResult::StateUpdated { scope, key, value }
            }
            Some(ResultKind::ActionRequested) => {
                let Action { action, target, payload } = data_of(&kind, &data)?;
                shallow("the target of an action", &target)?;
                shallow("the payload of an action", &payload)?;
                RunResult::ActionRequested { action, target, payload }
            }
            _ => {
                let data = data_of(&kind, &data)?;
                shallow("the data of a result", &data)?;
                RunResult::Other { kind, data }
            }
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta {
    message_id: String,
    chunk: Chunk,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chunk {
    role: Role,
    content: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageEnd {
    message_id: String,
    message: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolStarted {
    tool_call_id: String,
    tool_name: String,
    parameters: Value,
    #[serde(default)]
    message_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolCompleted {
    tool_call_id: String,
    tool_name: String,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Artifact {
    artifact: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    scope: StateScope,
    key: String,
    value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Action {
    action: String,
    target: Value,
    payload: Value,
}

fn data_of<T: DeserializeOwned>(kind: &str, data: &RawValue) -> Result<T, ApiError> {
    serde_json::from_str(data.get()).map_err(|error| ApiError::invalid_argument(format!("the data of `{kind}`: {error}")))
}

/// A message of a conversation.
///
/// # Errors
/// `invalid_argument`, naming what is malformed.
pub fn message(text: &RawValue) -> Result<Message, ApiError> {
    read_message(value("a message", text)?)
}

/// Messages of a conversation.
///
/// # Errors
/// `invalid_argument`, naming the first that is malformed by its place.
pub fn messages(text: &RawValue) -> Result<Vec<Message>, ApiError> {
    match value("the messages", text)? {
        Value::Array(messages) => read_messages(messages),
        _ => Err(ApiError::invalid_argument("`messages` is a list of messages")),
    }
}

/// A request to a chat model.
///
/// # Errors
/// `invalid_argument`, naming what is malformed.
pub fn model_request(text: &RawValue) -> Result<ModelRequest, ApiError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        messages: Vec<Value>,
        #[serde(default)]
        tools: Option<Vec<Tool>>,
        #[serde(default)]
        extra_args: Option<Map<String, Value>>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Tool {
        name: String,
        #[serde(default)]
        description: Option<String>,
        parameters: Value,
    }
    let Request { messages, tools, extra_args } = serde_json::from_str(text.get())
        .map_err(|error| ApiError::invalid_argument(format!("the request to the model: {error}")))?;
    let extra_args = extra_args.unwrap_or_default();
    extra_args.values().try_for_each(|value| shallow("`extra_args`", value))?;
    let tool = |Tool { name, description, parameters }| {
        shallow(&format!("the schema of tool `{name}`"), &parameters)?;
        Ok(ToolDefinition { name, description, parameters })
    };
    let tools = tools.unwrap_or_default().into_iter().map(tool).collect::<Result<_, ApiError>>()?;
    Ok(ModelRequest { messages: read_messages(messages)?, tools, extra_args, session_key: None })
}

/// The input of a run.
///
/// # Errors
/// `invalid_argument`, naming what is malformed.
pub fn input(text: &RawValue) -> Result<Input, ApiError> {
    let malformed = |error: serde_json::Error| ApiError::invalid_argument(format!("the input of a run: {error}"));
    let value: Value = serde_json::from_str(text.get()).map_err(malformed)?;
    let list = |name: &str| value.get(name).and_then(Value::as_array).into_iter().flatten();
    list("contents").try_for_each(check_part)?;
    list("attachments").try_for_each(check_artifact)?;
    value.get("message_chain").map_or(Ok(()), |chain| shallow("the message chain of the input", chain))?;
    if !value.is_object() {
        return Err(ApiError::invalid_argument("the input of a run is an object, such as {\"text\":\"...\"}"));
    }
    serde_json::from_value(value).map_err(malformed)
}

/// Reads JSON that may nest no deeper than a value may.
fn value(what: &str, text: &RawValue) -> Result<Value, ApiError> {
    serde_json::from_str(text.get()).map_err(|error| ApiError::invalid_argument(format!("{what}: {error}")))
}

fn shallow(what: &str, value: &Value) -> Result<(), ApiError> {
    if is_shallow(value) {
        return Ok(());
    }
    Err(ApiError::invalid_argument(format!("{what} nests deeper than {MAX_JSON_DEPTH} levels")))
}

/// Refuses members that are none of `known`, and what is no object.
fn only(what: &str, value: &Value, known: &[&str]) -> Result<(), ApiError> {
    let Value::Object(members) = value else {
        return Err(ApiError::invalid_argument(format!("{what} is a JSON object with {}", known.join(", "))));
    };
    match members.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(unknown) => {
            let unknown: String = unknown.chars().take(64).flat_map(char::escape_debug).collect();
            Err(ApiError::invalid_argument(format!("{what} has no member `{unknown}`; there are: {}", known.join(", "))))
        }
    }
}

fn read_messages(messages: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    let read = |(place, message)| {
        read_message(message).map_err(|error| ApiError { message: format!("message {place}: {}", error.message), ..error })
    };
    messages.into_iter().enumerate().map(read).collect()
}

fn read_message(message: Value) -> Result<Message, ApiError> {
    only("a message", &message, &["role", "content", "name", "tool_calls", "tool_call_id"])?;
    let list = |name: &str| message.get(name).and_then(Value::as_array).into_iter().flatten();
    list("content").try_for_each(check_part)?;
    for call in list("tool_calls") {
        only("a tool call", call, &["call_id", "tool_name", "parameters"])?;
        call.get("parameters").map_or(Ok(()), |parameters| shallow("the parameters of a tool call", parameters))?;
    }
    serde_json::from_value(message).map_err(|error| ApiError::invalid_argument(format!("a message: {error}")))
}

fn read_content(content: Value) -> Result<Vec<ContentPart>, ApiError> {
    content.as_array().into_iter().flatten().try_for_each(check_part)?;
    crate::message::content::deserialize(content).map_err(|error| ApiError::invalid_argument(format!("content: {error}")))
}

fn read_artifact(artifact: Value) -> Result<ArtifactRef, ApiError> {
    check_artifact(&artifact)?;
    serde_json::from_value(artifact).map_err(|error| ApiError::invalid_argument(format!("an artifact: {error}")))
}

fn check_part(part: &Value) -> Result<(), ApiError> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") => only("a content part of type `text`", part, &["type", "text"]),
        Some("artifact") => {
            only("a content part of type `artifact`", part, &["type", "artifact"])?;
            part.get("artifact").map_or(Ok(()), check_artifact)
        }
        _ => shallow("a content part", part),
    }
}

fn check_artifact(artifact: &Value) -> Result<(), ApiError> {
    only("an artifact", artifact, &["artifact_id", "media_type", "name", "size", "sha256"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).unwrap()
    }

    fn sent(kind: &str, data: &Value) -> Result<RunResult, ApiError> {
        SentResult { kind: kind.to_owned(), data: raw(data), run_id: None, sequence: None, timestamp: None, metadata: None }
            .parse()
    }

    /// Every result that a run can emit can be sent by an executor: the data of an event parse back into the result.
    #[test]
    fn the_data_of_an_event_reads_back_as_its_result() {
        let artifact: ArtifactRef = serde_json::from_value(json!({ "artifact_id": "a", "media_type": "text/plain" })).unwrap();
        let message: Message = serde_json::from_value(json!({
            "role": "assistant",
            "content": [{ "type": "text", "text": "a" }, { "type": "artifact", "artifact": artifact }, { "type": "place", "at": [1] }],
            "tool_calls": [{ "call_id": "c", "tool_name": "t", "parameters": { "x": 1 } }],
        }))
        .unwrap();
        let parts = message.content.clone();
        let text = "hel \" lo".to_owned();
        let results = [
            RunResult::MessageDelta { message_id: "m".into(), role: Role::Assistant, text: text.clone() },
            RunResult::ReasoningDelta { message_id: "m".into(), role: Role::Assistant, text: text.clone() },
            RunResult::MessageCompleted { message_id: "m".into(), message },
            RunResult::ToolCallStarted {
                call_id: "c".into(),
                tool_name: "t".into(),
                parameters: json!({ "a": [] }),
                message_id: Some("m".into()),
            },
            RunResult::ToolCallCompleted { call_id: "c".into(), tool_name: "t".into(), outcome: Ok(parts) },
            RunResult::ToolCallCompleted {
                call_id: "c".into(),
                tool_name: "t".into(),
                outcome: Ok(vec![ContentPart::Text(text.clone())]),
            },
            RunResult::ToolCallCompleted { call_id: "c".into(), tool_name: "t".into(), outcome: Err(text) },
            RunResult::ArtifactCreated(artifact),
            RunResult::StateUpdated { scope: StateScope::Runner, key: "k".into(), value: json!(null) },
            RunResult::ActionRequested { action: "message.edit".into(), target: json!({}), payload: json!([1]) },
            RunResult::Other { kind: "acme.progress".into(), data: json!({ "done": 1 }) },
        ];
        for result in results {
            let sent = SentResult {
                kind: result.kind().into_owned(),
                data: serde_json::from_str(result.data().unwrap().get()).unwrap(),
                run_id: None,
                sequence: None,
                timestamp: None,
                metadata: None,
            };
            let line = serde_json::to_string(&sent).unwrap();
            assert_eq!(serde_json::from_str::<SentResult>(&line).unwrap().parse().unwrap(), result);
        }
    }

    #[test]
    fn every_type_that_only_the_host_writes_is_left_to_the_judge() {
        for kind in ResultKind::ALL.iter().filter(|kind| kind.is_host_only()) {
            let result = sent(kind.as_str(), &json!({ "anything": 1 })).unwrap();
            assert_eq!(result, RunResult::Other { kind: kind.as_str().to_owned(), data: json!({ "anything": 1 }) });
        }
    }

    #[test]
    fn a_member_that_nobody_knows_is_refused_wherever_it_stands() {
        let message = |more: &Value| {
            let mut message = json!({ "role": "user", "content": "a" });
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "message_id": "m", "message": message })
        };
        let artifact = json!({ "artifact_id": "a", "media_type": "text/plain", "url": "x" });
        for (kind, data) in [
            ("message.delta", json!({ "message_id": "m", "chunk": { "role": "user", "content": "a" }, "x": 1 })),
            ("message.delta", json!({ "message_id": "m", "chunk": { "role": "user", "content": "a", "x": 1 } })),
            ("message.completed", message(&json!({ "x": 1 }))),
            ("message.completed", message(&json!({ "content": [{ "type": "text", "text": "a", "x": 1 }] }))),
            ("message.completed", message(&json!({ "content": [{ "type": "artifact", "artifact": artifact }] }))),
            (
                "message.completed",
                message(&json!({ "tool_calls": [{ "call_id": "c", "tool_name": "t", "parameters": {}, "x": 1 }] })),
            ),
            ("tool.call.completed", json!({ "tool_call_id": "c", "tool_name": "t", "result": "a", "error": "b" })),
            ("tool.call.completed", json!({ "tool_call_id": "c", "tool_name": "t" })),
            ("artifact.created", json!({ "artifact": artifact })),
            ("state.updated", json!({ "scope": "runner", "key": "k", "value": 1, "x": 1 })),
            ("state.updated", json!({ "scope": "nowhere", "key": "k", "value": 1 })),
            ("action.requested", json!({ "action": "a", "target": {}, "payload": {}, "action_id": "x" })),
        ] {
            let error = sent(kind, &data).expect_err(&format!("{kind} {data}"));
            assert_eq!(error.code, crate::ErrorCode::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_an_overflow() {
        let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert!(sent("acme.deep", &deep(MAX_JSON_DEPTH)).is_ok());
        assert!(sent("acme.deep", &deep(MAX_JSON_DEPTH + 1)).is_err());
        let text = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let sent: SentResult = serde_json::from_str(&format!(r#"{{"type":"acme.deep","data":{text}}}"#)).unwrap();
        assert!(sent.parse().unwrap_err().message.contains("recursion limit"));
    }

    #[test]
    fn a_request_is_read_with_its_defaults() {
        let request = json!({ "messages": [{ "role": "user", "content": "a" }] });
        let read = model_request(&raw(&request)).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), request);
        for wrong in [
            json!({}),
            json!({ "messages": "a" }),
            json!({ "messages": [{ "role": "user", "content": "a" }], "temperature": 0 }),
            json!({ "messages": [{ "role": "robot", "content": "a" }] }),
            json!({ "messages": [], "tools": [{ "name": "t" }] }),
            json!({ "messages": [], "tools": [{ "name": "t", "parameters": {}, "strict": true }] }),
        ] {
            assert!(model_request(&raw(&wrong)).is_err(), "{wrong}");
        }
        assert!(messages(&raw(&json!([{ "role": "user", "content": "a" }, 3]))).unwrap_err().message.starts_with("message 1:"));
    }

    #[test]
    fn an_input_reads_as_one_of_an_event() {
        let given = json!({ "text": "a", "attachments": [{ "artifact_id": "a", "media_type": "text/plain" }] });
        assert_eq!(serde_json::to_value(input(&raw(&given)).unwrap()).unwrap(), given);
        for wrong in [json!([]), json!({ "txet": 1 }), json!({ "contents": [{ "type": "text", "text": "a", "x": 1 }] })] {
            assert!(input(&raw(&wrong)).is_err(), "{wrong}");
        }
    }
}
