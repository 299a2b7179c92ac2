//! Events for clients from before 1.0, which throw on some of what 1.0 brought (measured with `@ag-ui/client` 0.0.59, that
//! CopilotKit and assistant-ui come with). Such a client says no `protocolVersion` when it asks.

use super::event::{Content, Event, Kind, Message, MessageBody, Outcome, Part, Source};

/// The code of the RUN_ERROR by which an old client hears of a cancelled run.
const CANCELED: &str = "RUN_CANCELED";

/// True if a client of this version uses the protocol before 1.0.
pub(crate) fn is_old(version: Option<&str>) -> bool {
    version.is_none_or(|version| version.split('.').next() == Some("0"))
}

/// The event in the form of old clients. They lose what they cannot show: which calls are theirs to answer (they compare
/// names of tools), that a cancelled run is no failure, and media in results of tools.
pub(crate) fn down(mut event: Event) -> Event {
    match &mut event.kind {
        Kind::RunFinished { outcome: Some(Outcome::Success { pending_tool_call_ids }), .. } => pending_tool_call_ids.clear(),
        Kind::RunFinished { outcome: Some(Outcome::Cancelled), usage, .. } => {
            let usage = std::mem::take(usage);
            let message = "the run was cancelled".to_owned();
            event.kind = Kind::RunError { message, code: Some(CANCELED.to_owned()), usage };
        }
        Kind::ToolCallResult { content, .. } => flatten(content),
        Kind::MessagesSnapshot { messages } => messages.iter_mut().for_each(lower),
        _ => {}
    }
    event
}

fn lower(message: &mut Message) {
    match &mut message.body {
        MessageBody::Tool { content, .. } => flatten(content),
        MessageBody::User { content: Content::Parts(parts), .. } => {
            for part in parts {
                if let Some((_, Source::File { .. })) = media(part) {
                    *part = Part::Text { text: in_words(part) };
                }
            }
        }
        _ => {}
    }
}

/// One text with a line for each part.
fn flatten(content: &mut Content) {
    if let Content::Parts(parts) = content {
        let lines: Vec<_> = parts.iter().map(in_words).collect();
        *content = Content::Text(lines.join("\n"));
    }
}

fn in_words(part: &Part) -> String {
    match (part, media(part)) {
        (Part::Text { text }, _) => text.clone(),
        // The bytes would be read as words.
        (_, Some((kind, Source::Data { mime_type, .. }))) => format!("[{kind}: {mime_type}]"),
        (_, Some((kind, Source::Url { value, .. } | Source::File { value, .. }))) => format!("[{kind}: {value}]"),
        (_, None) => String::new(),
    }
}

const fn media(part: &Part) -> Option<(&'static str, &Source)> {
    match part {
        Part::Text { .. } => None,
        Part::Image { source } => Some(("image", source)),
        Part::Audio { source } => Some(("audio", source)),
        Part::Video { source } => Some(("video", source)),
        Part::Document { source } => Some(("document", source)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agui::sample::{event, events};

    fn lowered(event: Event) -> Value {
        serde_json::to_value(down(event)).unwrap()
    }

    fn parts() -> Content {
        Content::Parts(vec![
            Part::Text { text: "see".into() },
            Part::Image { source: Source::Data { value: "AAAA".into(), mime_type: "image/png".into() } },
            Part::Audio { source: Source::Url { value: "https://a.example/b".into(), mime_type: None } },
            Part::Document { source: Source::File { value: "art_1".into(), provider: None, mime_type: None } },
        ])
    }

    #[test]
    fn a_client_without_a_version_is_old() {
        for (version, old) in
            [(None, true), (Some("0.9"), true), (Some("1.0"), false), (Some("1.1"), false), (Some("10.0"), false)]
        {
            assert_eq!(is_old(version), old, "{version:?}");
        }
    }

    #[test]
    fn events_are_converted_for_old_clients() {
        let finished = json!({"type": "RUN_FINISHED", "threadId": "thread", "runId": "run", "outcome": {"type": "success"}});
        assert_eq!(lowered(event("end=a,b")), finished);
        let cancelled = json!({"type": "RUN_ERROR", "message": "the run was cancelled", "code": "RUN_CANCELED"});
        assert_eq!(lowered(event("cancel")), cancelled);

        let mut result = event("x.a");
        if let Kind::ToolCallResult { content, .. } = &mut result.kind {
            *content = parts();
        }
        let flat = "see\n[image: image/png]\n[audio: https://a.example/b]\n[document: art_1]";
        assert_eq!(lowered(result).get("content"), Some(&json!(flat)));

        let message = |id: &str, body| Message::new(id, body);
        let messages = vec![
            message("u", MessageBody::User { content: parts(), name: None }),
            message("t", MessageBody::Tool { content: parts(), tool_call_id: "a".into(), error: None }),
        ];
        let expected = json!([
            {"id": "u", "role": "user", "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
                {"type": "audio", "source": {"type": "url", "value": "https://a.example/b"}},
                {"type": "text", "text": "[document: art_1]"},
            ]},
            {"id": "t", "role": "tool", "toolCallId": "a", "content": flat},
        ]);
        assert_eq!(lowered(Kind::MessagesSnapshot { messages }.into()).get("messages"), Some(&expected));
    }

    #[test]
    fn all_else_stays() {
        for event in events("run end err t[a@g t.a t]a c[a c.a c]a x.a r[a m[a g[a s[a a=a a.a snap=a set add") {
            assert_eq!(down(event.clone()), event);
        }
    }
}
