//! Pages of the transcript and of the event log.

use agent_host_protocol as p;

use super::{artifact_out, context::event_out};
use crate::bindings::{events as we, history as wh};

pub(crate) fn transcript_item_out(item: p::transcript::TranscriptItem) -> wh::TranscriptItem {
    let mut content = item.content;
    let (text, content) = match content.as_mut_slice() {
        [] => (None, None),
        [p::message::ContentPart::Text(text)] => (Some(std::mem::take(text)), None),
        // With other parts: the texts, and all parts.
        parts => (joined_texts(parts), serde_json::to_string(parts).ok()),
    };
    wh::TranscriptItem {
        transcript_id: item.transcript_id,
        event_id: item.event_id.to_string(),
        run_id: item.run_id.map(|id| id.to_string()),
        conversation_id: item.conversation_id,
        thread_id: item.thread_id,
        role: item.role,
        item_type: item.item_type,
        text,
        content,
        artifacts: item.artifacts.into_iter().map(artifact_out).collect(),
        seq: item.seq,
        cursor: item.cursor,
        created_at: item.created_at,
    }
}

/// The texts among these parts, a line each; `None` without any.
fn joined_texts(parts: &[p::message::ContentPart]) -> Option<String> {
    let texts = parts.iter().filter_map(|part| match part {
        p::message::ContentPart::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

pub(crate) fn page_out(page: p::Page<p::transcript::TranscriptItem>) -> wh::TranscriptPage {
    wh::TranscriptPage {
        items: page.items.into_iter().map(transcript_item_out).collect(),
        next: page.next_cursor,
        prev: page.prev_cursor,
        has_more: page.has_more,
    }
}

pub(crate) fn event_page_out(page: p::Page<p::context::EventContext>) -> we::EventPage {
    we::EventPage { items: page.items.into_iter().map(event_out).collect(), next: page.next_cursor, has_more: page.has_more }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::{EventId, transcript::TranscriptItem};
    use serde_json::{Value, json};

    use super::*;

    fn out(content: &Value) -> wh::TranscriptItem {
        let item = json!({
            "transcript_id": "t-1", "event_id": EventId::new(), "role": "user", "item_type": "message", "content": content,
            "seq": 1, "cursor": "c", "created_at": 1,
        });
        transcript_item_out(serde_json::from_value::<TranscriptItem>(item).unwrap())
    }

    #[test]
    fn an_item_with_files_has_its_text_too() {
        let file = json!({ "type": "artifact", "artifact": { "artifact_id": "a", "media_type": "text/plain" } });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let plain = out(&json!("hello"));
        assert_eq!((plain.text.as_deref(), plain.content), (Some("hello"), None));
        let mixed = out(&json!([text("see"), file, text("and say")]));
        assert_eq!(mixed.text.as_deref(), Some("see\nand say"));
        assert!(mixed.content.is_some_and(|content| content.contains("\"artifact_id\":\"a\"")));
        let only = out(&json!([file]));
        assert!(only.text.is_none() && only.content.is_some());
        let empty = out(&json!([]));
        assert!(empty.text.is_none() && empty.content.is_none());
    }
}
