//! Messages as digests, so that the history of a client is compared with that of the host without keeping either.

use sha2::{Digest, Sha256};

use super::event::{Content, Message, MessageBody};

/// The part of a message in which versions of it are compared: its role, and a digest of its content. Names and metadata are
/// left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    role: &'static str,
    /// `None` for parts: bytes that a client sends become artifacts here, so they are not compared.
    digest: Option<[u8; 32]>,
}

/// The id of a message and its shape; `None` for an activity, which is shown and never compared.
pub(crate) type ShapedMessage = (String, Option<Shape>);

impl Shape {
    /// The shape of a message.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let text_digest = |content: &Content| match content {
            Content::Text(text) => Some(digest([text.as_str()])),
            Content::Parts(_) => None,
        };
        let digest = match &message.body {
            MessageBody::Activity { .. } => return None,
            MessageBody::User { content, .. } | MessageBody::Tool { content, .. } => text_digest(content),
            MessageBody::Developer { content, .. }
            | MessageBody::System { content, .. }
            | MessageBody::Reasoning { content, .. } => Some(digest([content.as_str()])),
            MessageBody::Assistant { content, tool_calls, .. } => {
                let calls = tool_calls.iter().flat_map(|call| [&call.id, &call.function.name, &call.function.arguments]);
                let texts = [content.as_deref().unwrap_or_default()].into_iter().chain(calls.map(String::as_str));
                Some(digest(texts))
            }
        };
        Some(Self { role: message.body.role(), digest })
    }

    /// True if the message is of the user.
    pub(crate) fn is_of_user(&self) -> bool {
        self.role == "user"
    }

    /// True if the content is one text, and no parts.
    pub(crate) const fn is_exact(&self) -> bool {
        self.digest.is_some()
    }

    /// True if both may be the same message.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        self.role == other.role && self.digest.zip(other.digest).is_none_or(|(ours, theirs)| ours == theirs)
    }
}

/// Different lists of texts have different digests.
fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.finalize().into()
}
