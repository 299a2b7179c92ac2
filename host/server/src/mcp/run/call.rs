//! A call of a tool of a run: from the arguments of MCP to those of the gate, and from its answer to a result.

use agent_host_protocol::{ApiError, ErrorCode, ResultKind, RunEvent, RunId, tool::ToolOutput};
use agent_host_runs::{
    Answer, CallError, Calls, Host,
    facts::record::{self, MessageEnd, ToolCallProgress},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{Stream, StreamExt, future, stream};
use rmcp::model::{CallToolResult, ContentBlock, ErrorData, JsonObject, ResourceContents};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::functions::HostFunction;
use crate::mcp::{
    outcome::{self, artifact_uri},
    progress::Report,
};

/// The whole time of a run, as far as it has any: a wait ends with the deadline of the run.
const ANY_TIME_MS: u32 = u32::MAX;
/// Longest objective that is made of a task.
const MAX_OBJECTIVE_CHARS: usize = 120;
/// Events of an agent among which its answer is looked for: it is said at the end.
const LAST_EVENTS: u32 = 50;

/// Calls a function of the contract through the gate; gives its answer.
async fn function(calls: &Calls, name: &str, arguments: &Value) -> Result<Map<String, Value>, CallError> {
    let internal = |error: serde_json::Error| {
        tracing::error!(%error, function = name, "a call over MCP cannot be written");
        CallError::from(ApiError::new(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason"))
    };
    let body = serde_json::to_vec(arguments).map_err(internal)?;
    if body.len() > calls.body_bytes(name)? {
        match calls.clone().refuse_body(name, body.len()).await? {}
    }
    match calls.clone().call(name, body.into()).await? {
        Answer::Json(json) => serde_json::from_slice(&json).map_err(internal),
        // No function of this module streams.
        Answer::Stream(_) => Ok(Map::new()),
    }
}

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ApiError::invalid_argument(format!("the arguments: {error}")))
}

/// Calls a granted tool, or a tool that the run was not granted: the gate refuses that, and the audit has it.
pub(super) async fn tool(calls: &Calls, name: &str, call_id: &str, parameters: JsonObject) -> Result<ToolOutput, CallError> {
    let arguments = json!({ "call_id": call_id, "tool_name": name, "parameters": parameters });
    let answer = function(calls, "tools.call", &arguments).await?;
    serde_json::from_value(Value::Object(answer)).map_err(|error| {
        tracing::error!(%error, "the answer of a tool cannot be read back");
        ApiError::new(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason").into()
    })
}

/// The progress that a granted tool reports in the call, from the record of the run after this sequence.
pub(super) fn reports(host: &Host, run_id: RunId, after: u64, call_id: String) -> impl Stream<Item = Report> + Send + use<> {
    let events = match host.follow(run_id, after) {
        Ok(events) => events.left_stream(),
        Err(_) => stream::empty().right_stream(),
    };
    events.filter_map(move |event| future::ready(event.ok().and_then(|event| report(&event, &call_id))))
}

fn report(event: &RunEvent, call_id: &str) -> Option<Report> {
    if ResultKind::from_name(&event.kind) != Some(ResultKind::ToolCallProgress) {
        return None;
    }
    let ToolCallProgress { tool_call_id, progress, total, message, .. } = record::read(event)?;
    let total = total.and_then(|total| total.as_f64());
    (tool_call_id == call_id).then_some(Report { progress: progress.as_f64()?, total, message })
}

/// Calls a function of the host, by the arguments of its tool.
pub(super) async fn host_function(
    calls: &Calls,
    called: HostFunction,
    arguments: JsonObject,
) -> Result<CallToolResult, ErrorData> {
    let outcome = match called {
        HostFunction::ArtifactRead => artifact_read(calls, arguments).await,
        HostFunction::ArtifactCreate => artifact_create(calls, arguments).await,
        HostFunction::WaitAgent => wait_agent(calls, arguments).await,
        _ => {
            async {
                let arguments = match called {
                    HostFunction::AskUser => question(arguments)?,
                    HostFunction::RequestAction => action(arguments),
                    HostFunction::StartAgent => agent(arguments)?,
                    _ => Value::Object(arguments),
                };
                function(calls, called.function(), &arguments).await.map(outcome::of_function)
            }
            .await
        }
    };
    outcome.or_else(outcome::failure)
}

fn question(arguments: JsonObject) -> Result<Value, ApiError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Question {
        title: String,
        description: Option<String>,
        kind: Option<String>,
        answer_schema: Option<Value>,
        wait_ms: Option<u64>,
    }
    let Question { title, description, kind, answer_schema, wait_ms } = read(arguments)?;
    let expires_at = wait_ms.map(|wait_ms| agent_host_protocol::time::now().saturating_add(wait_ms));
    Ok(json!({
        "kind": kind.as_deref().unwrap_or("form"),
        "title": title,
        "description": description,
        "answer_schema": answer_schema,
        "expires_at": expires_at,
    }))
}

fn action(mut arguments: JsonObject) -> Value {
    for member in ["target", "payload"] {
        arguments.entry(member).or_insert_with(|| json!({}));
    }
    Value::Object(arguments)
}

fn agent(arguments: JsonObject) -> Result<Value, ApiError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Agent {
        runner_id: String,
        text: String,
        objective: Option<String>,
        #[serde(default)]
        attachments: Vec<String>,
        config: Option<Value>,
    }
    let Agent { runner_id, text, objective, attachments, config } = read(arguments)?;
    let objective =
        objective.unwrap_or_else(|| text.lines().next().unwrap_or_default().chars().take(MAX_OBJECTIVE_CHARS).collect());
    // The host puts what it knows of an artifact in the place of its type.
    let named = |id: String| json!({ "artifact_id": id, "media_type": "application/octet-stream" });
    let attachments: Vec<Value> = attachments.into_iter().map(named).collect();
    let mut arguments = json!({
        "runner_id": runner_id,
        "objective": objective,
        "input": { "text": text, "attachments": attachments },
    });
    if let (Some(config), Value::Object(members)) = (config, &mut arguments) {
        members.insert("config".to_owned(), config);
    }
    Ok(arguments)
}

/// Waits for an agent, and gives its last message beside its status where the run may read the events of agents.
async fn wait_agent(calls: &Calls, mut arguments: JsonObject) -> Result<CallToolResult, CallError> {
    arguments.entry("wait_ms").or_insert_with(|| ANY_TIME_MS.into());
    let called = HostFunction::WaitAgent.function();
    let mut answer = function(calls, called, &Value::Object(arguments)).await?;
    let ended = answer.get("run").and_then(|run| run.get("run_id")).cloned();
    let may_read = calls.grant().permissions.runs.contains(&agent_host_protocol::manifest::RunOperation::Events);
    if let Some(run_id) = ended.filter(|_| may_read) {
        let page = json!({ "run_id": run_id, "direction": "backward", "limit": LAST_EVENTS });
        let mut page = function(calls, "runs.events-page", &page).await?;
        let text = match page.remove("items") {
            Some(Value::Array(events)) => last_message(events),
            _ => None,
        };
        answer.insert("output".to_owned(), text.into());
    }
    Ok(outcome::of_function(answer))
}

/// The text of the last message among events of a run, in whichever order.
fn last_message(events: Vec<Value>) -> Option<String> {
    let events = events.into_iter().filter_map(|event| serde_json::from_value::<RunEvent>(event).ok());
    let messages = events.filter(|event| ResultKind::from_name(&event.kind) == Some(ResultKind::MessageCompleted));
    let last = messages.max_by_key(|event| event.sequence)?;
    record::read::<MessageEnd>(&last).map(|end| end.message.text())
}

async fn artifact_create(calls: &Calls, arguments: JsonObject) -> Result<CallToolResult, CallError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Create {
        media_type: String,
        name: Option<String>,
        text: Option<String>,
        content: Option<String>,
    }
    let Create { media_type, name, text, content } = read(arguments)?;
    let content = match (text, content) {
        (Some(text), None) => STANDARD.encode(text),
        (None, Some(content)) => content,
        _ => return Err(ApiError::invalid_argument("an artifact has either `text`, or `content` as Base64").into()),
    };
    let arguments = json!({ "media_type": media_type, "name": name, "content": content });
    let answer = function(calls, HostFunction::ArtifactCreate.function(), &arguments).await?;
    let created = answer.get("artifact_id").and_then(Value::as_str).and_then(|id| calls.visible_artifact(id).ok());
    let mut result = outcome::of_function(answer);
    result.content.extend(created.map(|artifact| ContentBlock::resource_link(outcome::resource(&artifact))));
    Ok(result)
}

/// A range of an artifact.
pub(super) struct Range {
    /// Text as it is, other content as Base64.
    pub(super) contents: ResourceContents,
    /// Facts of the range and of the artifact.
    pub(super) about: Value,
}

/// Reads a range of an artifact through the gate.
pub(super) async fn range(calls: &Calls, id: &str, offset: u64, length: u32) -> Result<Range, CallError> {
    let arguments = json!({ "artifact_id": id, "offset": offset, "length": length });
    let answer = function(calls, HostFunction::ArtifactRead.function(), &arguments).await?;
    let encoded = answer.get("content").and_then(Value::as_str).unwrap_or_default();
    let artifact = calls.visible_artifact(id)?;
    let size = artifact.size.unwrap_or_default();
    let mut bytes = STANDARD.decode(encoded).unwrap_or_default();
    let uri = artifact_uri(id);
    let more = |bytes: usize| offset.saturating_add(bytes as u64) < size;
    // A range may end within a character; the next one begins with it.
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
        && more(bytes.len())
    {
        bytes.truncate(error.valid_up_to());
    }
    let next = more(bytes.len()).then(|| offset.saturating_add(bytes.len() as u64));
    let about = json!({
        "artifact_id": id,
        "media_type": artifact.media_type,
        "size": size,
        "offset": offset,
        "bytes": bytes.len(),
        "next_offset": next,
    });
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri),
    };
    Ok(Range { contents: contents.with_mime_type(artifact.media_type), about })
}

async fn artifact_read(calls: &Calls, arguments: JsonObject) -> Result<CallToolResult, CallError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Read {
        artifact_id: String,
        #[serde(default)]
        offset: u64,
        #[serde(default = "length")]
        length: u32,
    }
    const fn length() -> u32 {
        65_536
    }
    let Read { artifact_id, offset, length } = read(arguments)?;
    let Range { contents, about } = range(calls, &artifact_id, offset, length).await?;
    let block = match contents {
        ResourceContents::TextResourceContents { text, .. } => ContentBlock::text(text),
        blob => ContentBlock::resource(blob),
    };
    let mut result = CallToolResult::success(vec![block]);
    result.structured_content = Some(about);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_is_the_answer() {
        let event = |kind: &str, sequence: u64, data: Value| json!({ "run_id": RunId::new(), "type": kind, "sequence": sequence, "timestamp": 1, "data": data });
        let message = |sequence: u64, content: Value| {
            let message = json!({ "role": "assistant", "content": content });
            event("message.completed", sequence, json!({ "message_id": "m", "message": message }))
        };
        let last = message(7, json!([{ "type": "text", "text": "la" }, { "type": "text", "text": "st" }]));
        let first = message(3, json!("first"));
        assert_eq!(last_message(vec![last, first.clone()]).as_deref(), Some("last"));
        assert_eq!(last_message(vec![first]).as_deref(), Some("first"));
        assert_eq!(last_message(vec![event("run.completed", 9, json!({}))]), None);
    }

    #[test]
    fn arguments_are_those_of_the_gate() {
        let arguments = |value: Value| value.as_object().unwrap().clone();
        let asked = question(arguments(json!({ "title": "Which?" }))).unwrap();
        assert_eq!((asked["kind"].as_str(), asked["expires_at"].as_u64()), (Some("form"), None));
        assert!(question(arguments(json!({ "title": "Which?", "wait_ms": 5 }))).unwrap()["expires_at"].as_u64() > Some(5));
        assert!(question(arguments(json!({ "titel": "Which?" }))).unwrap_err().message.contains("titel"));
        let started = agent(arguments(json!({ "runner_id": "r", "text": "one\ntwo", "attachments": ["a"] }))).unwrap();
        assert_eq!(started["objective"], "one");
        assert_eq!(started["input"]["attachments"][0]["artifact_id"], "a");
        assert!(started.get("config").is_none());
        assert_eq!(action(arguments(json!({ "action": "a" }))), json!({ "action": "a", "target": {}, "payload": {} }));
    }
}
