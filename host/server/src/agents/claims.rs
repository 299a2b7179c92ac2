//! Claims of a client beside its own words: history of a new thread that this host has not seen, and instructions. Both are
//! bounded, and marked wherever they go.

use agent_host_runs::{ClaimedCall, ClaimedMessage, ClaimedRole, HistoryClaim};
use serde_json::{Value, json};

use super::history::Digests;
use crate::{
    agui::event::{Content, Message, MessageBody, Part},
    http::{Problem, ProblemCode},
};

/// Member of `data` of an event: the number of messages in front of its own that the client claims.
pub(super) const CLAIMED_MESSAGES: &str = "claimed_messages";
/// Messages of a claimed history: each is a row of the transcript, all of one commit.
pub(super) const MAX_CLAIMED: usize = 1_000;
/// Bytes of the texts of a claimed history together: they are in memory and in one commit.
pub(crate) const MAX_CLAIMED_BYTES: usize = 1 << 20;
/// Instructions of one request. Clients send one, or one for each source of instructions.
const MAX_INSTRUCTIONS: usize = 32;
/// Bytes of the instructions of one request together: they are part of an event and of every prompt.
const MAX_INSTRUCTION_BYTES: usize = 64 * 1024;

/// A message of role `system` or `developer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) role: &'static str,
    pub(crate) content: String,
}

impl Instruction {
    /// As the runner finds it in `event.data.agui.instructions`.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "role": self.role, "content": self.content })
    }
}

/// Checks the size of the instructions of a request.
pub(super) fn bound_instructions(instructions: &[Instruction]) -> Result<(), Problem> {
    let bytes: usize = instructions.iter().map(|instruction| instruction.content.len()).sum();
    if instructions.len() <= MAX_INSTRUCTIONS && bytes <= MAX_INSTRUCTION_BYTES {
        return Ok(());
    }
    let detail = format!(
        "messages of `system` and `developer` are at most {MAX_INSTRUCTIONS}, with {MAX_INSTRUCTION_BYTES} bytes together: send \
         fewer, or let the binding say it to the agent"
    );
    Err(Problem::new(ProblemCode::PayloadTooLarge, detail).in_field("messages"))
}

/// The messages at these places as claimed history. Files of the past are named, and not kept.
pub(super) fn of(digests: &Digests, messages: &[Message], places: &[usize]) -> Result<Vec<ClaimedMessage>, Problem> {
    let too_large = |what: String| {
        let detail = format!("{what}: begin the thread with the newest part of the history");
        Problem::new(ProblemCode::PayloadTooLarge, detail).in_field("messages")
    };
    if places.len() > MAX_CLAIMED {
        return Err(too_large(format!("a history that this host has not seen has at most {MAX_CLAIMED} messages")));
    }
    let mut bytes = 0;
    let mut claimed = Vec::with_capacity(places.len());
    for message in places.iter().filter_map(|place| messages.get(*place)) {
        bytes += bytes_of(&message.body);
        if bytes > MAX_CLAIMED_BYTES || digests.has(&message.id) {
            return Err(too_large(format!("a history that this host has not seen has at most {MAX_CLAIMED_BYTES} bytes")));
        }
        claimed.extend(claim(message));
    }
    Ok(claimed)
}

fn claim(message: &Message) -> Option<ClaimedMessage> {
    let claim = HistoryClaim { message_id: message.id.clone(), tool_calls: Vec::new(), tool_call_id: None, name: None };
    Some(match &message.body {
        MessageBody::User { content, name } => ClaimedMessage {
            role: ClaimedRole::User,
            text: text_of(content),
            claim: HistoryClaim { name: name.clone(), ..claim },
        },
        MessageBody::Assistant { content, name, tool_calls } => {
            let call = |call: &crate::agui::event::ToolCall| ClaimedCall {
                call_id: call.id.clone(),
                tool_name: call.function.name.clone(),
                arguments: call.function.arguments.clone(),
            };
            let tool_calls = tool_calls.iter().map(call).collect();
            let text = content.clone().unwrap_or_default();
            ClaimedMessage { role: ClaimedRole::Assistant, text, claim: HistoryClaim { tool_calls, name: name.clone(), ..claim } }
        }
        MessageBody::Tool { content, tool_call_id, .. } => {
            let claim = HistoryClaim { tool_call_id: Some(tool_call_id.clone()), ..claim };
            ClaimedMessage { role: ClaimedRole::Tool, text: text_of(content), claim }
        }
        _ => return None,
    })
}

/// The text of a claimed message; files of it are named.
fn text_of(content: &Content) -> String {
    let parts = match content {
        Content::Text(text) => return text.clone(),
        Content::Parts(parts) => parts,
    };
    let part = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image { .. } => "[image]".to_owned(),
        Part::Audio { .. } => "[audio]".to_owned(),
        Part::Video { .. } => "[video]".to_owned(),
        Part::Document { .. } => "[document]".to_owned(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// Bytes of the texts of a message.
pub(super) fn bytes_of(body: &MessageBody) -> usize {
    match body {
        MessageBody::User { content, .. } | MessageBody::Tool { content, .. } => text_of(content).len(),
        MessageBody::Assistant { content, tool_calls, .. } => {
            let calls = tool_calls.iter().map(|call| call.function.name.len() + call.function.arguments.len() + call.id.len());
            content.as_ref().map_or(0, String::len) + calls.sum::<usize>()
        }
        MessageBody::Developer { content, .. } | MessageBody::System { content, .. } | MessageBody::Reasoning { content, .. } => {
            content.len()
        }
        MessageBody::Activity { .. } => 0,
    }
}
