//! Facts: the events that the host adds to the record of a run.

use std::time::Duration;

use agent_host_ledger::NewEvent;
use agent_host_protocol::{
    ApiError, ErrorCode, ResultKind, RunEvent, Timestamp,
    message::{ContentPart, TokenUsage},
    result::host_data,
    tool::ToolOutput,
};
use serde_json::{Map, Value, json};

/// Says where a run is in its life.
pub(crate) fn status_event(sequence: u64, at: Timestamp, data: &serde_json::Value) -> NewEvent {
    fact(ResultKind::RunStatus, sequence, at, data)
}

/// A fact that the host adds to the record of a run.
pub(crate) fn fact(kind: ResultKind, sequence: u64, at: Timestamp, data: &serde_json::Value) -> NewEvent {
    NewEvent { sequence, kind: kind.as_str().to_owned(), data: host_data(data), timestamp: at }
}

/// The data of `run.status` of a run that waits.
pub(crate) fn waiting_data(reason: &str, until: Option<Timestamp>) -> Value {
    match until {
        Some(until) => json!({ "status": "waiting", "reason": reason, "until": until }),
        None => json!({ "status": "waiting", "reason": reason }),
    }
}

/// What names the call that a fact is about.
pub(crate) fn id_of(data: &Value) -> Option<String> {
    let ids = ["action_id", "tool_call_id", "model_call_id"];
    ids.iter().find_map(|id| data.get(id)?.as_str()).map(str::to_owned)
}

/// What the end of a call says that nobody waited for.
pub(crate) fn unfinished(kind: ResultKind, why: &ApiError) -> Value {
    match kind {
        ResultKind::ToolCallCompleted => tool_failure(why),
        ResultKind::ActionResolved => json!({ "outcome": "cancelled" }),
        _ => json!({ "error": failure(why) }),
    }
}

/// The ends of calls that have begun in these events and not ended, for a run whose guest is not in memory: nobody waits
/// for them any more.
pub(crate) fn unended(events: &[RunEvent], at: Timestamp) -> Vec<(ResultKind, Value)> {
    let why = ApiError::new(ErrorCode::Cancelled, "the host stopped before the call was done, and nobody waits for it any more");
    let mut open: Vec<(ResultKind, String, Timestamp, Map<String, Value>)> = Vec::new();
    for event in events {
        let (ends, field) = match ResultKind::from_name(&event.kind) {
            Some(ResultKind::ModelCallStarted | ResultKind::ModelCallCompleted) => {
                (ResultKind::ModelCallCompleted, "model_call_id")
            }
            Some(ResultKind::ToolCallStarted | ResultKind::ToolCallCompleted) => (ResultKind::ToolCallCompleted, "tool_call_id"),
            Some(ResultKind::ActionRequested | ResultKind::ActionResolved) => (ResultKind::ActionResolved, "action_id"),
            _ => continue,
        };
        let mut data = object(serde_json::from_str(event.data.get()).unwrap_or_default());
        let id = data.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        if event.kind == ends.as_str() {
            open.retain(|(kind, open, ..)| (*kind, open) != (ends, &id));
        } else {
            data.retain(|name, _| {
                matches!(name.as_str(), "model_call_id" | "model_id" | "operation" | "tool_call_id" | "tool_name" | "action_id")
            });
            open.push((ends, id, event.timestamp, data));
        }
    }
    let ended = |(kind, _, began, named): (ResultKind, String, Timestamp, Map<String, Value>)| {
        (kind, end(named, Duration::from_millis(at.saturating_sub(began)), object(unfinished(kind, &why))))
    };
    open.into_iter().map(ended).collect()
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

pub(crate) fn end(mut named: Map<String, Value>, took: Duration, more: Map<String, Value>) -> Value {
    named.insert("duration_ms".to_owned(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into());
    named.extend(more);
    Value::Object(named)
}

pub(crate) fn usage_or_unknown(usage: Option<&TokenUsage>) -> Value {
    usage.and_then(|usage| serde_json::to_value(usage).ok()).unwrap_or_else(|| "unknown".into())
}

/// What is said of an error: its category is the provider's, where it has one.
pub(crate) fn failure(error: &ApiError) -> Value {
    let category = error.details.as_ref().and_then(|details| details.get("code")).cloned();
    json!({ "code": error.code, "category": category.unwrap_or_else(|| error.code.as_str().into()), "message": error.message })
}

/// Likewise of a tool: `error` is a text there, as it is for a tool that a runner executes by itself.
pub(crate) fn tool_failure(error: &ApiError) -> Value {
    let category = failure(error).get("category").cloned().unwrap_or_default();
    json!({ "error": error.message, "code": error.code, "category": category })
}

pub(crate) fn text(output: &ToolOutput) -> String {
    output.content.iter().filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// The beginning of a text, in bytes, cut between characters.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}… [cut]", text.get(..end).unwrap_or_default())
}
