//! Conversion of transcript items to messages for a model, in units that stay whole.

use serde::Deserialize;
use serde_json::Value;

use super::estimate;
use crate::client::HistoryClaim;
use crate::contract::{ArtifactRef, Message, Role, ToolCall, TranscriptItem};
use crate::json::from_str;

/// Tokens of a message beside its text.
const FRAME_TOKENS: u64 = 4;

/// A message, or tool calls with all of their results.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) messages: Vec<Message>,
    /// Number of the last item.
    pub(super) seq: u64,
    /// Estimated number of tokens.
    pub(super) tokens: u64,
    pub(super) by_user: bool,
    /// True if a client claims it, and the host has not seen it.
    pub(super) claimed: bool,
}

impl Unit {
    fn new(messages: Vec<Message>, seq: u64) -> Self {
        let tokens = messages.iter().map(|message| {
            let calls: u64 = message.tool_calls.iter().map(|call| estimate(&call.parameters) + FRAME_TOKENS).sum();
            estimate(&message.text()) + calls + FRAME_TOKENS
        });
        let by_user = messages.first().is_some_and(|message| message.role == Role::User);
        Self { tokens: tokens.sum(), messages, seq, by_user, claimed: false }
    }

    /// Appends the unit as text for a summary, at most `max_bytes` of each message.
    pub(super) fn write_to(&self, into: &mut String, max_bytes: usize) {
        for message in &self.messages {
            if self.claimed {
                into.push_str("(claimed by the client) ");
            }
            into.push_str(match message.role {
                Role::User => "user: ",
                Role::Tool => "tool: ",
                _ => "assistant: ",
            });
            let text = message.text();
            let head = text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default();
            into.push_str(head);
            if head.len() < text.len() {
                into.push_str(" [...]");
            }
            for call in &message.tool_calls {
                into.push_str(&format!("[calls {}]", call.tool_name));
            }
            into.push('\n');
        }
    }
}

/// Tool calls without all of their results.
#[derive(Default)]
struct PendingCalls {
    calls: Vec<ToolCall>,
    results: Vec<Message>,
}

/// Returns the units of the items, oldest first. Omits notices, empty messages, calls without a result and results
/// without a call.
pub(super) fn units(items: Vec<TranscriptItem>) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut pending = PendingCalls::default();
    for item in items {
        match item.item_type.as_str() {
            "message" => {
                pending = PendingCalls::default();
                let claim = HistoryClaim::of(&item);
                let message = match &claim {
                    Some(claim) => claimed(&item, claim),
                    None => message(&item),
                };
                let unit = message.map(|message| Unit::new(vec![message], item.seq));
                units.extend(unit.map(|unit| Unit { claimed: claim.is_some(), ..unit }));
            }
            "tool-call" => pending.calls.extend(tool_calls(&item)),
            "tool-result" => {
                let is_answer = |result: &Message| {
                    let id = result.tool_call_id.as_deref();
                    let again = pending.results.iter().any(|other| other.tool_call_id.as_deref() == id);
                    pending.calls.iter().any(|call| Some(call.call_id.as_str()) == id) && !again
                };
                if let Some(result) = tool_result(&item).filter(is_answer) {
                    pending.results.push(result);
                }
                if !pending.calls.is_empty() && pending.results.len() == pending.calls.len() {
                    let PendingCalls { calls, results } = std::mem::take(&mut pending);
                    let asks = Message { content: Vec::new(), tool_calls: calls, ..Message::assistant("") };
                    units.push(Unit::new(std::iter::once(asks).chain(results).collect(), item.seq));
                }
            }
            _ => {}
        }
    }
    units
}

fn message(item: &TranscriptItem) -> Option<Message> {
    let role = match item.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        _ => return None,
    };
    let mut text = text(item);
    for artifact in &item.artifacts {
        append(&mut text, &artifact.note());
    }
    (!text.trim().is_empty()).then(|| Message::of(role, text))
}

/// The message of an item that a client claims. Calls of tools and their results are told as text: the host has not seen them, so
/// they must not look like results of its own.
fn claimed(item: &TranscriptItem, claim: &HistoryClaim) -> Option<Message> {
    let mut text = text(item);
    let role = match item.role.as_str() {
        "assistant" => {
            for (tool, arguments) in &claim.tool_calls {
                append(&mut text, &format!("[called {tool}: {arguments}]"));
            }
            Role::Assistant
        }
        "tool" => {
            text = format!("[the result of a tool, as the client tells it: {text}]");
            Role::User
        }
        "user" => Role::User,
        _ => return None,
    };
    (!text.trim().is_empty()).then(|| Message::of(role, text))
}

/// Known fields of a content part, a call, or a result.
#[derive(Deserialize)]
struct Part {
    text: Option<String>,
    artifact: Option<Artifact>,
    call_id: Option<String>,
    tool_name: Option<String>,
    parameters: Option<Value>,
    /// Size of parameters that are too long for the item, in bytes.
    parameters_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Artifact {
    artifact_id: String,
    media_type: String,
    name: Option<String>,
    size: Option<u64>,
}

/// Returns the parts of the content, which is a list of parts or a single part.
fn parts(item: &TranscriptItem) -> Vec<Part> {
    let Some(content) = item.content.as_deref() else { return Vec::new() };
    from_str::<Vec<Part>>(content).or_else(|_| from_str::<Part>(content).map(|part| vec![part])).unwrap_or_default()
}

fn text(item: &TranscriptItem) -> String {
    if let Some(text) = &item.text {
        return text.clone();
    }
    let mut text = String::new();
    for part in parts(item) {
        if let Some(part) = part.text {
            append(&mut text, &part);
        }
        // Artifacts that the item names itself are added elsewhere.
        if let Some(artifact) =
            part.artifact.filter(|artifact| !item.artifacts.iter().any(|named| named.artifact_id == artifact.artifact_id))
        {
            let Artifact { artifact_id, media_type, name, size } = artifact;
            append(&mut text, &ArtifactRef { artifact_id, media_type, name, size, sha256: None }.note());
        }
    }
    text
}

fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

fn tool_calls(item: &TranscriptItem) -> Vec<ToolCall> {
    let call = |part: Part| {
        Some(ToolCall {
            call_id: part.call_id?,
            tool_name: part.tool_name?,
            parameters: match (part.parameters.filter(Value::is_object), part.parameters_bytes) {
                (Some(value), _) => value.to_string(),
                (None, Some(bytes)) => format!("{{\"left_out_bytes\":{bytes}}}"),
                (None, None) => "{}".to_owned(),
            },
        })
    };
    parts(item).into_iter().filter_map(call).collect()
}

fn tool_result(item: &TranscriptItem) -> Option<Message> {
    let call_id = parts(item).into_iter().find_map(|part| part.call_id)?;
    Some(Message::tool(call_id, text(item)))
}
