//! Signatures of thoughts: what Gemini wants back with the tool calls that it has made.
//!
//! The host keeps nothing of a conversation, so a signature is a part of the message that has the calls: a content part with the type
//! [`KIND`], `call_id` and `signature`. A runner that continues with this message gives it back unread, and a journal replays it.
//! Where a runner leaves the part out, the request says that there is none. Other providers are not sent it.

use agent_host_protocol::message::{ContentPart, Message};
use serde_json::{Value, json};

/// The type of the content part.
const KIND: &str = "gemini_thought_signature";

/// The content part for the signature of a call.
pub(super) fn part(call_id: &str, signature: &str) -> ContentPart {
    ContentPart::Other(json!({ "type": KIND, "call_id": call_id, "signature": signature }))
}

/// True if a content part of another kind is the signature of a call.
pub(super) fn is_signature(part: &Value) -> bool {
    part.get("type").is_some_and(|kind| kind == KIND)
}

/// The signature of a call of this message.
pub(super) fn of_call<'a>(message: &'a Message, call_id: &str) -> Option<&'a str> {
    message.content.iter().find_map(|part| match part {
        ContentPart::Other(part) if is_signature(part) && part.get("call_id").is_some_and(|id| id == call_id) => {
            part.get("signature")?.as_str()
        }
        _ => None,
    })
}
