//! Messages and reasoning.

use std::collections::HashMap;

use agent_host_protocol::message::{ArtifactRef, ContentPart, Message, Role};
use serde_json::{Value, json};

use super::{
    ids::{Ids, Kind, label},
    models::Models,
    out::{Draft, Out, Source, artifact_uri},
};
use crate::{
    fact::RefKind,
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::{Delta, MessageEnd},
    safe::{MAX_TEXT_CHARS, beginning, line},
};

/// The name of a message that a run gives back at its end, where it has said it in no other way.
const LAST: &str = "final";

/// The messages of an attempt, by the names that the runner gave them.
#[derive(Debug, Default)]
pub(super) struct Texts {
    open: OpenElements<Stream>,
    /// The ids of whole messages.
    done: HashMap<String, String>,
    /// The text of the last message of the assistant.
    last: Option<String>,
    /// The messages in which calls were asked for, by the ids of the calls.
    announced: HashMap<String, String>,
}

/// A message that is being said.
#[derive(Debug)]
struct Stream {
    id: String,
    role: Role,
    text: String,
}

/// The artifacts in content.
pub(super) fn artifacts(content: &[ContentPart]) -> impl Iterator<Item = &ArtifactRef> {
    content.iter().filter_map(|part| if let ContentPart::Artifact(artifact) = part { Some(artifact) } else { None })
}

/// The artifact that has the whole of content that was cut to a preview. A tool may give further artifacts beside a text that was
/// cut: `None`, since nothing says which of them it is.
pub(super) fn whole(content: &[ContentPart]) -> Option<&ArtifactRef> {
    let mut artifacts = artifacts(content);
    let first = artifacts.next();
    first.filter(|_| artifacts.next().is_none())
}

impl Texts {
    pub(super) fn delta(&mut self, out: &mut Out, ids: &mut Ids, models: &Models, delta: &Delta) {
        // The output of a tool is no text; its result is a fact of its own.
        if delta.chunk.role == Role::Tool || delta.chunk.content.is_empty() {
            return;
        }
        self.begin(out, ids, models, &delta.message_id, delta.chunk.role);
        self.append(out, &delta.message_id, &delta.chunk.content);
    }

    fn begin(&mut self, out: &mut Out, ids: &mut Ids, models: &Models, name: &str, role: Role) {
        if self.open.contains(name) {
            return;
        }
        let id = ids.of(Kind::Message, name);
        if !models.any() {
            // The runner speaks by itself: no model of the host has said it.
            out.say(
                Draft::new(FactType::ModelRequested)
                    .scope(|scope| scope.model_request_id = Some(format!("{id}:request")))
                    .with("origin", if out.source == Source::Import { "import" } else { "runner" })
                    .with("model", Value::Null)
                    .with("messageId", id.as_str())
                    .with("reason", "no model of the host was called"),
            );
        }
        self.open.insert(name, Stream { id, role, text: String::new() });
    }

    fn append(&mut self, out: &mut Out, name: &str, text: &str) {
        let Some(stream) = self.open.get_mut(name) else { return };
        stream.text.push_str(text);
        let mut rest = text;
        while !rest.is_empty() {
            let piece = beginning(rest, MAX_TEXT_CHARS);
            out.say(
                Draft::new(FactType::ModelDelta)
                    .with("messageId", stream.id.as_str())
                    .with("role", stream.role.as_str())
                    .with("delta", piece),
            );
            rest = rest.get(piece.len()..).unwrap_or_default();
        }
    }

    pub(super) fn completed(&mut self, out: &mut Out, ids: &mut Ids, models: &Models, end: &MessageEnd) {
        let MessageEnd { message_id: name, message } = end;
        self.begin(out, ids, models, name, message.role);
        let Some(stream) = self.open.remove(name) else { return };
        let text = message.text();
        let draft = Draft::new(FactType::ModelCompleted)
            .with("messageId", stream.id.as_str())
            .with("role", stream.role.as_str())
            .with("stopReason", if message.tool_calls.is_empty() { "unknown" } else { "tool_calls" });
        // Native events name no artifact: the host has kept the message as one.
        let mut draft = match whole(&message.content).filter(|_| out.source == Source::Import) {
            Some(artifact) => out.spill_to(draft, "text", &text, artifact),
            None => out.spill(draft, "text", &text, None, "text/plain"),
        };
        for artifact in artifacts(&message.content) {
            draft = draft.refers(RefKind::Artifact, artifact_uri(&artifact.artifact_id));
        }
        if !message.tool_calls.is_empty() {
            let calls: Vec<Value> =
                message.tool_calls.iter().take(64).map(|call| json!({ "toolName": line(&call.tool_name) })).collect();
            draft = draft.with("toolCalls", calls);
        }
        out.say(draft);
        for call in &message.tool_calls {
            self.announced.insert(call.call_id.clone(), stream.id.clone());
        }
        if stream.role == Role::Assistant {
            self.last = Some(text);
        }
        self.done.insert(name.clone(), stream.id);
    }

    /// The run has ended with this message: it is said, unless it was said before.
    pub(super) fn concluded(&mut self, out: &mut Out, ids: &mut Ids, models: &Models, message: Message) {
        if message.role == Role::Tool {
            return;
        }
        let text = message.text();
        let has_more = message.content.iter().any(|part| !matches!(part, ContentPart::Text(_)));
        if text.is_empty() && !has_more || self.last.as_ref() == Some(&text) {
            return;
        }
        let is_begun = |stream: &Stream| stream.role == message.role && !stream.text.is_empty() && text.starts_with(&stream.text);
        let begun = self.open.iter().rfind(|(_, stream)| is_begun(stream)).map(|(name, _)| name.to_owned());
        let name = begun.unwrap_or_else(|| LAST.to_owned());
        self.completed(out, ids, models, &MessageEnd { message_id: name, message });
    }

    /// The message that a call belongs to: the one that it names, or the one that announced it.
    pub(super) fn owner(&mut self, message: Option<&str>, call: &str) -> Option<String> {
        let announced = self.announced.remove(call);
        let named = message.and_then(|name| self.open.get(name).map(|stream| &stream.id).or_else(|| self.done.get(name)));
        named.cloned().or(announced)
    }

    pub(super) fn reasoning(out: &mut Out, ids: &Ids, delta: &Delta) {
        let id = format!("{}:reasoning:{}", ids.run(), label(&delta.message_id));
        let mut rest = delta.chunk.content.as_str();
        while !rest.is_empty() {
            let piece = beginning(rest, MAX_TEXT_CHARS);
            out.say(Draft::new(FactType::ReasoningDelta).with("messageId", id.as_str()).with("delta", piece));
            rest = rest.get(piece.len()..).unwrap_or_default();
        }
    }

    /// Ends the open messages: as they are where the run has completed, as failed otherwise.
    pub(super) fn close(&mut self, out: &mut Out, failure: Option<FailureCategory>, why: &str) {
        for (_, stream) in self.open.take() {
            let draft = |kind| Draft::new(kind).with("messageId", stream.id.as_str()).with("role", stream.role.as_str());
            match failure {
                None => {
                    let draft = draft(FactType::ModelCompleted)
                        .with("stopReason", "unknown")
                        .with("reason", "the runner did not complete the message");
                    // The text is in the pieces, which are events of their own.
                    let uri = format!("/api/v1/runs/{}/events", out.run());
                    let draft = out.spill(draft, "text", &stream.text, Some(&uri), "text/plain").by(Source::Host);
                    out.say(draft);
                }
                Some(category) => out.say(
                    draft(FactType::ModelFailed)
                        .with("failureCategory", category.as_str())
                        .with("error", why)
                        .with("retryable", super::models::is_retryable(category))
                        .with("recoveryHint", category.hint())
                        .by(Source::Host),
                ),
            }
        }
        *self = Self { last: self.last.take(), ..Self::default() };
    }
}
