//! Events as protobuf, as `@ag-ui/proto` 1.0.0 decodes them.
//!
//! The encoding covers every kind of event. Whole numbers beyond 2^53 inside JSON values become doubles. (JavaScript rounds
//! those of JSON as well.)

mod schema;

use prost::Message as _;
use serde_json::Map;

use self::schema as pb;
use super::event::{
    Content, Event, Interrupt, Kind, Message, MessageBody, Outcome, Part, PatchOp, Source, SubagentOutcome, TextRole, ToolCall,
    Usage,
};

/// The bytes of the length that stands before each message.
const LENGTH_BYTES: usize = 4;

/// The event with its length before it, in four bytes, big end first.
pub(crate) fn frame(event: &Event) -> Vec<u8> {
    let envelope = pb::Envelope { arm: Some(arm(event)) };
    let length = envelope.encoded_len();
    let Ok(prefix) = u32::try_from(length) else {
        // Clients stop at 10 MiB.
        tracing::error!(event = event.kind.name(), length, "an event is too large for its frame");
        return Vec::new();
    };
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + length);
    bytes.extend_from_slice(&prefix.to_be_bytes());
    envelope.encode_raw(&mut bytes);
    bytes
}

/// The number of the type, which the message repeats.
const fn number(kind: &Kind) -> i32 {
    match kind {
        Kind::TextMessageStart { .. } => 0,
        Kind::TextMessageContent { .. } => 1,
        Kind::TextMessageEnd { .. } => 2,
        Kind::ToolCallStart { .. } => 3,
        Kind::ToolCallArgs { .. } => 4,
        Kind::ToolCallEnd { .. } => 5,
        Kind::StateSnapshot { .. } => 6,
        Kind::StateDelta { .. } => 7,
        Kind::MessagesSnapshot { .. } => 8,
        Kind::Raw { .. } => 9,
        Kind::Custom { .. } => 10,
        Kind::RunStarted { .. } => 11,
        Kind::RunFinished { .. } => 12,
        Kind::RunError { .. } => 13,
        Kind::StepStarted { .. } => 14,
        Kind::StepFinished { .. } => 15,
        Kind::SubagentStarted { .. } => 16,
        Kind::SubagentFinished { .. } => 17,
        Kind::SubagentError { .. } => 18,
        Kind::ToolCallResult { .. } => 21,
        Kind::ActivitySnapshot { .. } => 22,
        Kind::ActivityDelta { .. } => 23,
        Kind::ReasoningStart { .. } => 24,
        Kind::ReasoningMessageStart { .. } => 25,
        Kind::ReasoningMessageContent { .. } => 26,
        Kind::ReasoningMessageEnd { .. } => 27,
        Kind::ReasoningEnd { .. } => 29,
        Kind::ReasoningEncryptedValue { .. } => 30,
    }
}

#[allow(clippy::too_many_lines, reason = "one arm for each kind")]
fn arm(event: &Event) -> pb::Arm {
    let base =
        Some(pb::Base { kind: number(&event.kind), timestamp: event.timestamp.map(signed), metadata: metadata(&event.metadata) });
    let subagent = event.subagent.clone();
    match event.kind.clone() {
        Kind::RunStarted { thread_id, run_id, protocol_version, parent_run_id } => {
            let protocol_version = protocol_version.map(str::to_owned);
            pb::Arm::RunStarted(pb::RunStarted { base, thread_id, run_id, parent_run_id, protocol_version })
        }
        Kind::RunFinished { thread_id, run_id, result, outcome, usage } => {
            let (outcome, interrupts, pending_tool_call_ids) = outcome_of(outcome);
            let (result, usage) = (result.map(value), usage.into_iter().map(tokens).collect());
            let finished = pb::RunFinished { base, thread_id, run_id, result, outcome, interrupts, usage, pending_tool_call_ids };
            pb::Arm::RunFinished(finished)
        }
        Kind::RunError { message, code, usage } => {
            pb::Arm::RunError(pb::RunError { base, code, message, usage: usage.into_iter().map(tokens).collect() })
        }
        Kind::StepStarted { step_name: id } => pb::Arm::StepStarted(pb::Named { base, id, subagent }),
        Kind::StepFinished { step_name: id } => pb::Arm::StepFinished(pb::Named { base, id, subagent }),
        Kind::TextMessageStart { message_id, role, name } => {
            let role = Some(role_of(role).to_owned());
            pb::Arm::TextMessageStart(pb::TextMessageStart { base, message_id, role, name, subagent })
        }
        Kind::TextMessageContent { message_id: id, delta } => {
            pb::Arm::TextMessageContent(pb::Delta { base, id, delta, subagent })
        }
        Kind::TextMessageEnd { message_id: id } => pb::Arm::TextMessageEnd(pb::Named { base, id, subagent }),
        Kind::ToolCallStart { tool_call_id, tool_call_name, parent_message_id } => {
            let start = pb::ToolCallStart { base, tool_call_id, tool_call_name, parent_message_id, subagent };
            pb::Arm::ToolCallStart(start)
        }
        Kind::ToolCallArgs { tool_call_id: id, delta } => pb::Arm::ToolCallArgs(pb::Delta { base, id, delta, subagent }),
        Kind::ToolCallEnd { tool_call_id: id } => pb::Arm::ToolCallEnd(pb::Named { base, id, subagent }),
        Kind::ToolCallResult { message_id, tool_call_id, content, role: _ } => {
            let (content, parts) = content_of(content);
            let role = Some("tool".to_owned());
            let result = pb::ToolCallResult { base, subagent, message_id, tool_call_id, content, role, parts };
            pb::Arm::ToolCallResult(result)
        }
        Kind::StateSnapshot { snapshot } => {
            pb::Arm::StateSnapshot(pb::StateSnapshot { base, snapshot: Some(value(snapshot)), subagent })
        }
        Kind::StateDelta { delta } => pb::Arm::StateDelta(pb::StateDelta { base, delta: patch(delta), subagent }),
        Kind::MessagesSnapshot { messages } => {
            pb::Arm::MessagesSnapshot(pb::MessagesSnapshot { base, messages: messages.into_iter().map(message).collect() })
        }
        Kind::ActivitySnapshot { message_id, activity_type, content, replace } => {
            let content = Some(object(content));
            let activity = pb::ActivitySnapshot { base, subagent, message_id, activity_type, content, replace };
            pb::Arm::ActivitySnapshot(activity)
        }
        Kind::ActivityDelta { message_id, activity_type, patch: delta } => {
            let patch = patch(delta);
            pb::Arm::ActivityDelta(pb::ActivityDelta { base, subagent, message_id, activity_type, patch })
        }
        Kind::ReasoningStart { message_id } => pb::Arm::ReasoningStart(reasoning(base, subagent, message_id, "")),
        Kind::ReasoningMessageStart { message_id, role: _ } => {
            pb::Arm::ReasoningMessageStart(reasoning(base, subagent, message_id, "reasoning"))
        }
        Kind::ReasoningMessageContent { message_id, delta } => {
            pb::Arm::ReasoningMessageContent(reasoning(base, subagent, message_id, &delta))
        }
        Kind::ReasoningMessageEnd { message_id } => pb::Arm::ReasoningMessageEnd(reasoning(base, subagent, message_id, "")),
        Kind::ReasoningEnd { message_id } => pb::Arm::ReasoningEnd(reasoning(base, subagent, message_id, "")),
        Kind::ReasoningEncryptedValue { subtype, entity_id, encrypted_value } => {
            let encrypted = pb::ReasoningEncryptedValue { base, subagent, subtype, entity_id, encrypted_value };
            pb::Arm::ReasoningEncryptedValue(encrypted)
        }
        Kind::SubagentStarted { subagent_run_id, name, description, parent_subagent_run_id, parent_tool_call_id } => {
            let started =
                pb::SubagentStarted { base, subagent_run_id, name, description, parent_subagent_run_id, parent_tool_call_id };
            pb::Arm::SubagentStarted(started)
        }
        Kind::SubagentFinished { subagent_run_id, result, outcome } => {
            let outcome = outcome.map_or_else(String::new, |SubagentOutcome::Suspended| "suspended".to_owned());
            pb::Arm::SubagentFinished(pb::SubagentFinished { base, subagent_run_id, result: result.map(value), outcome })
        }
        Kind::SubagentError { subagent_run_id, message, code } => {
            pb::Arm::SubagentError(pb::SubagentError { base, subagent_run_id, message, code })
        }
        Kind::Raw { event, source } => pb::Arm::Raw(pb::Raw { base, event: Some(value(event)), source, subagent }),
        Kind::Custom { name, value: content } => {
            pb::Arm::Custom(pb::Custom { base, name, value: Some(value(content)), subagent })
        }
    }
}

fn reasoning(base: Option<pb::Base>, subagent: Option<String>, message_id: String, text: &str) -> pb::Reasoning {
    pb::Reasoning { base, subagent, message_id, text: text.to_owned() }
}

fn outcome_of(outcome: Option<Outcome>) -> (String, Vec<pb::Interrupt>, Vec<String>) {
    match outcome {
        None => (String::new(), Vec::new(), Vec::new()),
        Some(Outcome::Success { pending_tool_call_ids }) => ("success".to_owned(), Vec::new(), pending_tool_call_ids),
        Some(Outcome::Interrupt { interrupts }) => {
            ("interrupt".to_owned(), interrupts.into_iter().map(interrupt).collect(), Vec::new())
        }
        Some(Outcome::Cancelled) => ("cancelled".to_owned(), Vec::new(), Vec::new()),
    }
}

fn interrupt(interrupt: Interrupt) -> pb::Interrupt {
    let Interrupt { id, reason, message, tool_call_id, response_schema, expires_at, metadata } = interrupt;
    let as_value = |map| value(serde_json::Value::Object(map));
    let response_schema = response_schema.and_then(|schema| serde_json::from_str(schema.get()).ok()).map(value);
    let metadata = (!metadata.is_empty()).then(|| as_value(metadata));
    pb::Interrupt { id, reason, message, tool_call_id, response_schema, expires_at, metadata }
}

fn tokens(usage: Usage) -> pb::Usage {
    let Usage { provider, model, input_tokens, output_tokens, total_tokens, reasoning_tokens, cached_input_tokens } = usage;
    pb::Usage {
        provider,
        model,
        input_tokens: input_tokens.map(signed),
        output_tokens: output_tokens.map(signed),
        total_tokens: total_tokens.map(signed),
        reasoning_tokens: reasoning_tokens.map(signed),
        cached_input_tokens: cached_input_tokens.map(signed),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

const fn role_of(role: TextRole) -> &'static str {
    match role {
        TextRole::Developer => "developer",
        TextRole::System => "system",
        TextRole::Assistant => "assistant",
        TextRole::User => "user",
    }
}

fn message(message: Message) -> pb::ThreadMessage {
    let base = pb::ThreadMessage {
        role: message.body.role().to_owned(),
        id: message.id,
        metadata: metadata(&message.metadata),
        subagent: message.subagent,
        encrypted_value: message.encrypted_value,
        ..pb::ThreadMessage::default()
    };
    match message.body {
        MessageBody::Developer { content, name } | MessageBody::System { content, name } => {
            pb::ThreadMessage { content: Some(content), name, ..base }
        }
        MessageBody::User { content, name } => {
            let (content, parts) = content_of(content);
            pb::ThreadMessage { content, parts, name, ..base }
        }
        MessageBody::Assistant { content, name, tool_calls } => {
            pb::ThreadMessage { content, name, tool_calls: tool_calls.into_iter().map(call).collect(), ..base }
        }
        MessageBody::Tool { content, tool_call_id, error } => {
            let (content, parts) = content_of(content);
            pb::ThreadMessage { content, parts, tool_call_id: Some(tool_call_id), error, ..base }
        }
        MessageBody::Reasoning { content } => pb::ThreadMessage { content: Some(content), ..base },
        MessageBody::Activity { activity_type, content } => {
            pb::ThreadMessage { activity_type: Some(activity_type), activity_content: Some(object(content)), ..base }
        }
    }
}

fn call(call: ToolCall) -> pb::ToolCall {
    let function = pb::Function { name: call.function.name, arguments: call.function.arguments };
    pb::ToolCall { id: call.id, kind: "function".to_owned(), function: Some(function) }
}

/// A text, or parts: no text at all says that the parts count, of which there may be none.
fn content_of(content: Content) -> (Option<String>, Vec<pb::Part>) {
    match content {
        Content::Text(text) => (Some(text), Vec::new()),
        Content::Parts(parts) => (None, parts.into_iter().map(part).collect()),
    }
}

fn part(part: Part) -> pb::Part {
    let arm = match part {
        Part::Text { text } => pb::PartArm::Text(pb::TextPart { text }),
        Part::Image { source } => pb::PartArm::Image(media(source)),
        Part::Audio { source } => pb::PartArm::Audio(media(source)),
        Part::Video { source } => pb::PartArm::Video(media(source)),
        Part::Document { source } => pb::PartArm::Document(media(source)),
    };
    pb::Part { arm: Some(arm) }
}

fn media(source: Source) -> pb::MediaPart {
    let arm = match source {
        Source::Data { value, mime_type } => pb::SourceArm::Data(pb::DataSource { value, mime_type }),
        Source::Url { value, mime_type } => pb::SourceArm::Url(pb::UrlSource { value, mime_type }),
        Source::File { value, provider, mime_type } => pb::SourceArm::File(pb::FileSource { value, provider, mime_type }),
    };
    pb::MediaPart { source: Some(pb::Source { arm: Some(arm) }) }
}

fn patch(delta: Vec<PatchOp>) -> Vec<pb::Operation> {
    let operation = |op| match op {
        PatchOp::Add { path, value: new } => pb::Operation { op: 0, path, from: None, value: Some(value(new)) },
        PatchOp::Remove { path } => pb::Operation { op: 1, path, from: None, value: None },
        PatchOp::Replace { path, value: new } => pb::Operation { op: 2, path, from: None, value: Some(value(new)) },
        PatchOp::Move { from, path } => pb::Operation { op: 3, path, from: Some(from), value: None },
        PatchOp::Copy { from, path } => pb::Operation { op: 4, path, from: Some(from), value: None },
        PatchOp::Test { path, value: is } => pb::Operation { op: 5, path, from: None, value: Some(value(is)) },
    };
    delta.into_iter().map(operation).collect()
}

fn metadata(map: &Map<String, serde_json::Value>) -> Option<pb::Struct> {
    (!map.is_empty()).then(|| object(map.clone()))
}

fn object(map: Map<String, serde_json::Value>) -> pb::Struct {
    let field = |(key, content)| pb::Field { key, value: Some(value(content)) };
    pb::Struct { fields: map.into_iter().map(field).collect() }
}

fn value(json: serde_json::Value) -> pb::Value {
    use serde_json::Value as Json;
    let arm = match json {
        Json::Null => pb::ValueArm::Null(0),
        Json::Bool(bool) => pb::ValueArm::Bool(bool),
        // Every number of JSON is a double, nearly.
        Json::Number(number) => pb::ValueArm::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => pb::ValueArm::String(text),
        Json::Array(values) => pb::ValueArm::List(pb::List { values: values.into_iter().map(value).collect() }),
        Json::Object(map) => pb::ValueArm::Struct(object(map)),
    };
    pb::Value { arm: Some(arm) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agui::sample::{event, events};

    /// The bytes that `@ag-ui/proto` 1.0.0 encodes.
    #[test]
    fn bytes_are_those_of_the_client() {
        for (word, expected) in [
            ("t.a@g", "120f0a0208011201611a03286129220167"),
            ("end=a,b", "6a200a02080c12067468726561641a0372756e2a0773756363657373420161420162"),
            ("x.a", "b201170a0208151a0278612201612a04646f6e653204746f6f6c"),
            ("a.i", "c201210a0208171a01692204706c616e2a1212082f73746570732f2d22061a046e657874"),
            ("snap=a", "4a160a02080812100a01611209617373697374616e741a00"),
            ("set", "3a140a020806120e2a0c0a0a0a046c69737412023200"),
            ("m[a", "d201120a0208191a01612209726561736f6e696e67"),
            ("g[a", "9a01100a0208101201611a076167656e742d61"),
        ] {
            let frame = frame(&event(word));
            let (length, message) = frame.split_at(LENGTH_BYTES);
            assert_eq!(length, (message.len() as u32).to_be_bytes(), "{word}");
            let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{word}");
        }
    }

    #[test]
    fn every_kind_has_an_arm_of_its_number() {
        let words = "run end err t[a t.a t]a c[a c.a c]a r[a r]a m[a m.a m]a e.a s[a s]a g[a g]a g!a x.a a=a a.a snap=a set add";
        let mut all = events(words);
        all.push(Kind::Raw { event: json!(1), source: None }.into());
        all.push(Kind::Custom { name: "n".into(), value: json!(null) }.into());
        let mut arms: Vec<_> = all.iter().map(|event| frame(event)[LENGTH_BYTES..LENGTH_BYTES + 2].to_vec()).collect();
        arms.sort();
        arms.dedup();
        assert_eq!(arms.len(), 28);
    }

    #[test]
    fn decoded_parameters_equal_the_encoded_ones() {
        let mut activity = event("a=i@g").at(1_700_000_000_123);
        activity.metadata.insert("key".to_owned(), json!({"deep": [null, true, -0.5, "text", {}]}));
        let bytes = frame(&activity);
        let decoded = pb::Envelope::decode(&bytes[LENGTH_BYTES..]).unwrap();
        let Some(pb::Arm::ActivitySnapshot(decoded)) = decoded.arm else { panic!("another arm") };
        let base = decoded.base.unwrap();
        assert_eq!((base.kind, base.timestamp), (22, Some(1_700_000_000_123)));
        assert_eq!(base.metadata, metadata(&activity.metadata));
        assert_eq!((decoded.message_id.as_str(), decoded.subagent.as_deref(), decoded.replace), ("i", Some("g"), None));
    }
}
