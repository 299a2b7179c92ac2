//! Pages of the transcript and of the event log.

use agent_host_protocol as p;

use super::{artifact_out, context::event_out};
use crate::bindings::{events as we, history as wh};

pub(crate) fn transcript_item_out(item: p::transcript::TranscriptItem) -> wh::TranscriptItem {
    let mut content = item.content;
    let (text, content) = match content.as_mut_slice() {
        [] => (None, None),
        [p::message::ContentPart::Text(text)] => (Some(std::mem::take(text)), None),
        parts => (None, serde_json::to_string(parts).ok()),
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
