//! Events as bytes: server-sent events, or protobuf where a client names it.

use axum::{
    body::Bytes,
    http::{HeaderMap, header::ACCEPT},
};

use super::{
    event::{Event, Kind},
    proto,
};

/// The exact text that selects the protobuf parser in clients.
const PROTOBUF: &str = "application/vnd.ag-ui.event+proto";
const EVENT_STREAM: &str = "text/event-stream";

/// The encoding of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Wire {
    #[default]
    Sse,
    Protobuf,
}

impl Wire {
    /// The content type of the response.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Sse => EVENT_STREAM,
            Self::Protobuf => PROTOBUF,
        }
    }
}

/// The encoding that this client asks for. Protobuf only if the client names it: `curl` sends `*/*`, and its users do not
/// read bytes.
pub(crate) fn negotiate(headers: &HeaderMap) -> Wire {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let (mut protobuf, mut sse) = (0, 0);
    for range in ranges {
        let (media_type, parameters) = range.split_once(';').unwrap_or((range, ""));
        let media_type = media_type.trim();
        if media_type.eq_ignore_ascii_case(PROTOBUF) {
            protobuf = protobuf.max(quality(parameters));
        } else if media_type.eq_ignore_ascii_case(EVENT_STREAM) {
            sse = sse.max(quality(parameters));
        }
    }
    if protobuf > 0 && protobuf >= sse { Wire::Protobuf } else { Wire::Sse }
}

/// The weight, in thousandths. An unreadable weight counts as 1000, because the type was named.
fn quality(parameters: &str) -> u16 {
    let weight = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let Some(Ok(weight)) = weight.map(str::parse::<f32>) else { return 1_000 };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    let thousandths = (weight.clamp(0.0, 1.0) * 1_000.0) as u16;
    thousandths
}

/// As a server-sent event with one line of data, and an id to go on after, where it has one.
pub(crate) fn sse_placed(event: &Event, id: Option<&str>) -> Bytes {
    frame(identified(id), event)
}

fn identified(id: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(320);
    // A line break would begin another field.
    if let Some(id) = id.filter(|id| !id.contains(['\n', '\r', '\0'])) {
        bytes.extend_from_slice(b"id: ");
        bytes.extend_from_slice(id.as_bytes());
        bytes.extend_from_slice(b"\n");
    }
    bytes
}

/// The same, as `EventSource` reads it: with its type.
pub(crate) fn sse_named(event: &Event, id: Option<&str>) -> Bytes {
    let mut bytes = identified(id);
    bytes.extend_from_slice(b"event: ");
    bytes.extend_from_slice(event.kind.name().as_bytes());
    bytes.extend_from_slice(b"\n");
    frame(bytes, event)
}

/// LF and nothing else: the clients in TypeScript split at it, and JSON has none inside.
fn frame(mut bytes: Vec<u8>, event: &Event) -> Bytes {
    bytes.extend_from_slice(b"data: ");
    if let Err(error) = serde_json::to_writer(&mut bytes, event) {
        // Text, numbers, and maps with text for keys: there is nothing in them that JSON cannot say.
        tracing::error!(%error, event = event.kind.name(), "an event could not be written");
        return Bytes::new();
    }
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

/// As protobuf: the length in four bytes, big end first, and the message.
pub(crate) fn protobuf(event: &Event) -> Bytes {
    proto::frame(event).into()
}

impl Kind {
    /// The `type` in JSON.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "RUN_STARTED",
            Self::RunFinished { .. } => "RUN_FINISHED",
            Self::RunError { .. } => "RUN_ERROR",
            Self::StepStarted { .. } => "STEP_STARTED",
            Self::StepFinished { .. } => "STEP_FINISHED",
            Self::TextMessageStart { .. } => "TEXT_MESSAGE_START",
            Self::TextMessageContent { .. } => "TEXT_MESSAGE_CONTENT",
            Self::TextMessageEnd { .. } => "TEXT_MESSAGE_END",
            Self::ToolCallStart { .. } => "TOOL_CALL_START",
            Self::ToolCallArgs { .. } => "TOOL_CALL_ARGS",
            Self::ToolCallEnd { .. } => "TOOL_CALL_END",
            Self::ToolCallResult { .. } => "TOOL_CALL_RESULT",
            Self::StateSnapshot { .. } => "STATE_SNAPSHOT",
            Self::StateDelta { .. } => "STATE_DELTA",
            Self::MessagesSnapshot { .. } => "MESSAGES_SNAPSHOT",
            Self::ActivitySnapshot { .. } => "ACTIVITY_SNAPSHOT",
            Self::ActivityDelta { .. } => "ACTIVITY_DELTA",
            Self::ReasoningStart { .. } => "REASONING_START",
            Self::ReasoningMessageStart { .. } => "REASONING_MESSAGE_START",
            Self::ReasoningMessageContent { .. } => "REASONING_MESSAGE_CONTENT",
            Self::ReasoningMessageEnd { .. } => "REASONING_MESSAGE_END",
            Self::ReasoningEnd { .. } => "REASONING_END",
            Self::ReasoningEncryptedValue { .. } => "REASONING_ENCRYPTED_VALUE",
            Self::SubagentStarted { .. } => "SUBAGENT_STARTED",
            Self::SubagentFinished { .. } => "SUBAGENT_FINISHED",
            Self::SubagentError { .. } => "SUBAGENT_ERROR",
            Self::Raw { .. } => "RAW",
            Self::Custom { .. } => "CUSTOM",
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::{Value, json};

    use super::*;
    use crate::agui::sample::{event, events};

    #[test]
    fn protobuf_is_for_those_that_name_it() {
        let named = "application/vnd.ag-ui.event+proto";
        for (accept, wire) in [
            (vec![], Wire::Sse),
            (vec!["*/*".to_owned()], Wire::Sse),
            (vec!["application/*".to_owned()], Wire::Sse),
            (vec!["text/event-stream".to_owned()], Wire::Sse),
            (vec![named.to_owned()], Wire::Protobuf),
            (vec![named.to_uppercase()], Wire::Protobuf),
            (vec![format!("{named}; q=0.5")], Wire::Protobuf),
            (vec![format!("{named};q=0")], Wire::Sse),
            (vec![format!("{named}, text/event-stream")], Wire::Protobuf),
            (vec![format!("{named};q=0.8, text/event-stream")], Wire::Sse),
            (vec![format!("{named}, text/event-stream;q=0.9, */*;q=0.1")], Wire::Protobuf),
            (vec!["text/event-stream;q=0.1".to_owned(), named.to_owned()], Wire::Protobuf),
            (vec![format!("{named};charset=utf-8;q=oddly")], Wire::Protobuf),
            (vec![format!("{named}s")], Wire::Sse),
        ] {
            let mut headers = HeaderMap::new();
            for value in &accept {
                headers.append(ACCEPT, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(negotiate(&headers), wire, "{accept:?}");
        }
    }

    #[test]
    fn a_frame_is_one_line_whatever_is_said() {
        let mut event = event("t.a");
        let delta = "one\ntwo\r\n\u{2028}\u{0} \"three\"\n\n";
        event.kind = Kind::TextMessageContent { message_id: "a".into(), delta: delta.into() };
        let frame = sse_placed(&event, None);
        let text = std::str::from_utf8(&frame).unwrap();
        let line = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        assert!(!line.contains(['\n', '\r']));
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value, json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": delta}));
    }

    #[test]
    fn a_named_frame_has_its_type_and_id() {
        let frame = |id| String::from_utf8(sse_named(&event("t]a"), id).to_vec()).unwrap();
        let data = "event: TEXT_MESSAGE_END\ndata: {\"type\":\"TEXT_MESSAGE_END\",\"messageId\":\"a\"}\n\n";
        assert_eq!(frame(Some("run:12.0")), format!("id: run:12.0\n{data}"));
        assert_eq!(frame(None), data);
        assert_eq!(frame(Some("run\ndata: x")), data);
        let placed = sse_placed(&event("t]a"), Some("run:12.0"));
        assert_eq!(placed, "id: run:12.0\ndata: {\"type\":\"TEXT_MESSAGE_END\",\"messageId\":\"a\"}\n\n");
    }

    #[test]
    fn names_are_those_of_the_json() {
        let words = "run end err t[a t.a t]a c[a c.a c]a r[a r]a m[a m.a m]a e.a s[a s]a g[a g]a g!a x.a a=a a.a snap=a set add";
        let mut all = events(words);
        all.push(Kind::Raw { event: json!(1), source: None }.into());
        all.push(Kind::Custom { name: "n".into(), value: json!(null) }.into());
        for event in all {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json.get("type").and_then(Value::as_str), Some(event.kind.name()));
        }
    }
}
