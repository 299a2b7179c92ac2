//! Content: what guests and people say, as parts that clients know.

use agent_host_protocol::{
    Event,
    message::{ArtifactRef, ContentPart},
    transcript::TranscriptItem,
};
use agent_host_runs::{ClaimedCall, HistoryClaim};
use serde_json::{Value, json};

use super::with;
use crate::agui::event::{Content, Function, FunctionType, Message, MessageBody, Part, Source, ToolCall};

/// CUSTOM event: the run has made or said this artifact.
pub(super) const ARTIFACT: &str = "agent-host.artifact";

/// The address of an artifact for clients.
fn artifact_url(artifact_id: &str) -> String {
    format!("/api/v1/artifacts/{artifact_id}")
}

/// An artifact, for a CUSTOM event.
pub(super) fn artifact_content(artifact: &ArtifactRef, message: Option<&str>) -> Value {
    let mut value = json!({
        "artifactId": artifact.artifact_id,
        "mediaType": artifact.media_type,
        "url": artifact_url(&artifact.artifact_id),
    });
    with(&mut value, "name", artifact.name.clone());
    with(&mut value, "size", artifact.size);
    with(&mut value, "sha256", artifact.sha256.clone());
    with(&mut value, "messageId", message);
    value
}

/// The message of the user that an event is, where it says something.
pub(crate) fn user_message(event: &Event) -> Option<Message> {
    let input = &event.envelope.input;
    // The texts of parts are the text of the event as well.
    let has_text = input.contents.iter().any(|part| matches!(part, ContentPart::Text(_)));
    let text = input.text.iter().filter(|text| !text.is_empty() && !has_text).cloned().map(|text| Part::Text { text });
    let attachments = input.attachments.iter().map(artifact_part);
    let parts: Vec<Part> = text.chain(input.contents.iter().map(part)).chain(attachments).collect();
    let agui = event.envelope.data.get("agui");
    let of_client = |name: &str| agui.and_then(|agui| agui.get(name)).and_then(Value::as_str).map(str::to_owned);
    // A long value beside the message becomes an artifact; the id stays.
    let surface = event.envelope.delivery.as_ref().map(|delivery| delivery.surface.as_str());
    let beside = || event.envelope.data.get("message_id").filter(|_| surface == Some("agui"))?.as_str().map(str::to_owned);
    let id = of_client("message_id").or_else(beside).unwrap_or_else(|| event.event_id.to_string());
    let content = match <[Part; 1]>::try_from(parts) {
        Ok([Part::Text { text }]) => Content::Text(text),
        Ok([part]) => Content::Parts(vec![part]),
        Err(parts) if parts.is_empty() => return None,
        Err(parts) => Content::Parts(parts),
    };
    let body = MessageBody::User { content, name: of_client("name") };
    let metadata = agui.and_then(|agui| agui.get("metadata")).and_then(Value::as_object).cloned().unwrap_or_default();
    Some(Message { metadata, ..Message::new(id, body) })
}

/// The message of a claimed history that an item of a transcript is; `None` for an item that the host has seen.
pub(crate) fn claimed_message(item: &TranscriptItem) -> Option<Message> {
    let HistoryClaim { message_id, tool_calls, tool_call_id, name } = HistoryClaim::of(item)?;
    let texts =
        item.content.iter().filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None });
    let text: String = texts.collect();
    let call = |call: ClaimedCall| ToolCall {
        id: call.call_id,
        kind: FunctionType::Function,
        function: Function { name: call.tool_name, arguments: call.arguments },
        encrypted_value: None,
    };
    let body = match (item.role.as_str(), tool_call_id) {
        ("tool", Some(tool_call_id)) => MessageBody::Tool { content: Content::Text(text), tool_call_id, error: None },
        ("assistant", _) => MessageBody::Assistant {
            content: Some(text).filter(|text| !text.is_empty()),
            name,
            tool_calls: tool_calls.into_iter().map(call).collect(),
        },
        _ => MessageBody::User { content: Content::Text(text), name },
    };
    Some(Message::new(message_id, body))
}

/// The content of a result: a text, or parts where there is something else in it.
pub(super) fn content(result: Value) -> Content {
    match result {
        Value::Null => Content::Text(String::new()),
        Value::String(text) => Content::Text(text),
        Value::Array(parts) => parts_of(parts.into_iter().map(from_json)),
        other => Content::Text(other.to_string()),
    }
}

/// Likewise, of a message.
pub(super) fn message_content(parts: &[ContentPart]) -> Content {
    parts_of(parts.iter().map(part))
}

fn parts_of(parts: impl Iterator<Item = Part>) -> Content {
    let parts: Vec<Part> = parts.collect();
    let texts: Option<String> =
        parts.iter().map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None }).collect();
    texts.map_or(Content::Parts(parts), Content::Text)
}

fn from_json(value: Value) -> Part {
    match serde_json::from_value::<ContentPart>(value.clone()) {
        Ok(known) => part(&known),
        Err(_) => other(&value),
    }
}

fn part(part: &ContentPart) -> Part {
    match part {
        ContentPart::Text(text) => Part::Text { text: text.clone() },
        ContentPart::Artifact(artifact) => artifact_part(artifact),
        ContentPart::Other(value) => other(value),
    }
}

fn artifact_part(artifact: &ArtifactRef) -> Part {
    let media_type = artifact.media_type.as_str();
    let source = Source::Url { value: artifact_url(&artifact.artifact_id), mime_type: Some(media_type.to_owned()) };
    media(media_type.split('/').next().unwrap_or_default(), source)
}

fn media(kind: &str, source: Source) -> Part {
    match kind {
        "image" => Part::Image { source },
        "audio" => Part::Audio { source },
        "video" => Part::Video { source },
        _ => Part::Document { source },
    }
}

/// A part of an unknown kind. A client's own value goes back unchanged; any other is shown as JSON text.
fn other(value: &Value) -> Part {
    foreign(value).unwrap_or_else(|| Part::Text { text: value.to_string() })
}

fn foreign(value: &Value) -> Option<Part> {
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let kind = value.get("type")?.as_str()?;
    if !matches!(kind, "image" | "audio" | "video" | "document") {
        return None;
    }
    let source = value.get("source")?;
    let (content, mime_type) = (text(source, "value")?, text(source, "mimeType"));
    let source = match source.get("type")?.as_str()? {
        "data" => Source::Data { value: content, mime_type: mime_type? },
        "url" => Source::Url { value: content, mime_type },
        "file" => Source::File { value: content, provider: text(source, "provider"), mime_type },
        _ => return None,
    };
    Some(media(kind, source))
}
