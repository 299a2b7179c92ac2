//! History that a client claims: messages of a thread that began elsewhere, as the client tells them. The transcript marks each
//! of them, since the host has not seen any of it.

use agent_host_ledger::NewItem;
use agent_host_protocol::{
    Event,
    grant::ConversationKey,
    message::{CLAIMED, ContentPart},
    transcript::MESSAGE,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message that a client claims to be history.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedMessage {
    /// The author, as the client tells it.
    pub role: ClaimedRole,
    /// The text.
    pub text: String,
    /// More of the message.
    pub claim: HistoryClaim,
}

/// The author of a claimed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimedRole {
    /// The user.
    User,
    /// An agent.
    Assistant,
    /// A tool.
    Tool,
}

/// The mark of a claimed message: a part of its content, of type [`CLAIMED`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryClaim {
    /// Id that the client gave to the message.
    pub message_id: String,
    /// Calls of tools that the client says the message has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ClaimedCall>,
    /// The call that the message answers, as the client tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call of a tool that a client claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedCall {
    /// Id of the call.
    pub call_id: String,
    /// Name of the tool.
    pub tool_name: String,
    /// The arguments as the client sent them: JSON, or what it took for that.
    pub arguments: String,
}

impl ClaimedRole {
    const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl HistoryClaim {
    /// The mark of an item of a transcript; `None` for an item that the host has seen. Runs do not claim.
    #[must_use]
    pub fn of(item: &agent_host_protocol::transcript::TranscriptItem) -> Option<Self> {
        if item.run_id.is_some() {
            return None;
        }
        item.content.iter().find_map(|part| match part {
            ContentPart::Other(value) if value.get("type").and_then(Value::as_str) == Some(CLAIMED) => {
                serde_json::from_value(value.clone()).ok()
            }
            _ => None,
        })
    }

    fn part(&self) -> ContentPart {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(members) = value.as_object_mut() {
            members.insert("type".to_owned(), CLAIMED.into());
            members.insert("by".to_owned(), "client".into());
        }
        ContentPart::Other(value)
    }
}

impl ClaimedMessage {
    /// The item of the transcript.
    pub(crate) fn item(&self, event: &Event, conversation: &ConversationKey) -> NewItem {
        let text = Some(&self.text).filter(|text| !text.is_empty()).cloned().map(ContentPart::Text);
        NewItem {
            conversation: conversation.clone(),
            event_id: event.event_id,
            run_id: None,
            role: self.role.as_str().into(),
            item_type: MESSAGE.into(),
            content: text.into_iter().chain([self.claim.part()]).collect(),
            artifacts: Vec::new(),
            created_at: event.received_at,
        }
    }
}
