//! Items of a stream, which are open from their START to their END.

use crate::agui::event::{Event, Kind};

/// Something that is open for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Text(&'a str),
    Call(&'a str),
    Span(&'a str),
    Reasoning(&'a str),
    /// By its owner and name: a subagent often has steps of the names of its parent's.
    Step(Option<&'a str>, &'a str),
    Subagent(&'a str),
}

impl std::fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(id) => write!(f, "text message `{id}`"),
            Self::Call(id) => write!(f, "tool call `{id}`"),
            Self::Span(id) => write!(f, "reasoning span `{id}`"),
            Self::Reasoning(id) => write!(f, "reasoning message `{id}`"),
            Self::Step(None, name) => write!(f, "step `{name}`"),
            Self::Step(Some(owner), name) => write!(f, "step `{name}` of subagent `{owner}`"),
            Self::Subagent(id) => write!(f, "subagent `{id}`"),
        }
    }
}

/// The effect of an event on an item.
pub(super) enum Act<'a> {
    Open(Item<'a>),
    Continue(Item<'a>),
    Close(Item<'a>),
    None,
}

pub(super) fn act(event: &Event) -> Act<'_> {
    let owner = event.subagent.as_deref();
    match &event.kind {
        Kind::TextMessageStart { message_id, .. } => Act::Open(Item::Text(message_id)),
        Kind::TextMessageContent { message_id, .. } => Act::Continue(Item::Text(message_id)),
        Kind::TextMessageEnd { message_id } => Act::Close(Item::Text(message_id)),
        Kind::ToolCallStart { tool_call_id, .. } => Act::Open(Item::Call(tool_call_id)),
        Kind::ToolCallArgs { tool_call_id, .. } => Act::Continue(Item::Call(tool_call_id)),
        Kind::ToolCallEnd { tool_call_id } => Act::Close(Item::Call(tool_call_id)),
        Kind::ReasoningStart { message_id } => Act::Open(Item::Span(message_id)),
        Kind::ReasoningEnd { message_id } => Act::Close(Item::Span(message_id)),
        Kind::ReasoningMessageStart { message_id, .. } => Act::Open(Item::Reasoning(message_id)),
        Kind::ReasoningMessageContent { message_id, .. } => Act::Continue(Item::Reasoning(message_id)),
        Kind::ReasoningMessageEnd { message_id } => Act::Close(Item::Reasoning(message_id)),
        Kind::StepStarted { step_name } => Act::Open(Item::Step(owner, step_name)),
        Kind::StepFinished { step_name } => Act::Close(Item::Step(owner, step_name)),
        Kind::SubagentStarted { subagent_run_id, .. } => Act::Open(Item::Subagent(subagent_run_id)),
        Kind::SubagentFinished { subagent_run_id, .. } | Kind::SubagentError { subagent_run_id, .. } => {
            Act::Close(Item::Subagent(subagent_run_id))
        }
        _ => Act::None,
    }
}

/// The item that this START opened.
pub(super) fn opened(start: &Event) -> Option<Item<'_>> {
    match act(start) {
        Act::Open(item) => Some(item),
        Act::Continue(_) | Act::Close(_) | Act::None => None,
    }
}
