//! Messages of a guest, as text messages.

use std::collections::HashMap;

use agent_host_protocol::message::{ContentPart, Message, Role, ToolCall};
use agent_host_runs::facts::{
    open::OpenElements,
    record::{Delta, MessageEnd},
};
use serde_json::json;

use super::{CloseReason, content, ids::Ids, out::Out};
use crate::agui::event::{self, Content, Kind, MessageBody, TextRole};

/// CUSTOM event: a message has a part that is neither text nor an artifact.
const PART: &str = "agent-host.content";

/// The message that a run gives back at its end, where it has said it in no other way.
const LAST: &str = "final";

/// The call that a message answers, where it is the result of a tool and not a text.
pub(super) fn answered_call(message: &Message) -> Option<&str> {
    (message.role == Role::Tool).then(|| message.tool_call_id.as_deref().unwrap_or_default())
}

/// The messages of an attempt, by the names that the guest gave them.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// Being said.
    open: OpenElements<Text>,
    /// Messages that are neither complete nor open: a segment ended inside them, or only their id is known.
    idle: HashMap<String, Text>,
    /// Whole, with their ids where calls may belong to them. A guest that says more under the same name says it in another.
    completed: HashMap<String, CompletedMessage>,
    /// Id of the last message of the assistant.
    last_message: Option<String>,
    /// Calls that the assistant has asked for in a message, and that nobody has begun.
    announced: HashMap<String, AnnouncedCall>,
}

#[derive(Debug)]
struct Text {
    id: String,
    /// `None` until the message has content or another element depends on it.
    role: Option<TextRole>,
    streamed: String,
}

#[derive(Debug)]
struct CompletedMessage {
    id: String,
    role: TextRole,
}

/// A call as a message of the assistant has it.
#[derive(Debug)]
struct AnnouncedCall {
    message: String,
    call: ToolCall,
}

impl Texts {
    pub(super) fn delta(&mut self, out: &mut Out, ids: &mut Ids, delta: Delta) {
        // The output of a tool is no text; its result has an event of its own.
        let Some(role) = text_role(delta.chunk.role) else { return };
        let text = self.open_text(out, ids, &delta.message_id, role);
        if !delta.chunk.content.is_empty() {
            text.streamed.push_str(&delta.chunk.content);
            out.say(Kind::TextMessageContent { message_id: text.id.clone(), delta: delta.chunk.content });
        }
    }

    /// The message under this name, begun.
    fn open_text(&mut self, out: &mut Out, ids: &mut Ids, name: &str, role: TextRole) -> &mut Text {
        let Self { open, idle, .. } = self;
        open.get_or_insert_with(name, || {
            let mut text = idle.remove(name).unwrap_or_else(|| Text::new(ids.message(name)));
            let role = *text.role.get_or_insert(role);
            out.say(Kind::TextMessageStart { message_id: text.id.clone(), role, name: None });
            text
        })
    }

    pub(super) fn completed(&mut self, out: &mut Out, ids: &mut Ids, completed: MessageEnd) {
        let MessageEnd { message_id: name, message } = completed;
        let Some(role) = text_role(message.role) else { return };
        let whole = message.text();
        let begun = self.open.get(&name).or_else(|| self.idle.get(&name));
        let streamed = begun.map_or("", |text| text.streamed.as_str());
        let rest = whole.strip_prefix(streamed);
        let contradicts = rest.is_none();
        let rest = rest.unwrap_or_default().to_owned();
        // A message that only asks for calls is there as soon as one of them begins; what a segment ended in may have been whole.
        let is_there = whole.is_empty() && !message.tool_calls.is_empty() || !streamed.is_empty() && rest.is_empty();
        if self.open.contains(&name) || !is_there {
            let text = self.open_text(out, ids, &name, role);
            if !rest.is_empty() {
                out.say(Kind::TextMessageContent { message_id: text.id.clone(), delta: rest });
            }
        }
        let text = match self.open.remove(&name) {
            Some(text) => {
                out.say(Kind::TextMessageEnd { message_id: text.id.clone() });
                text
            }
            None => self.idle.remove(&name).unwrap_or_else(|| Text::new(ids.message(&name))),
        };
        let role = text.role.unwrap_or(role);
        if contradicts {
            out.correct(corrected(&text.id, role, whole.clone()));
        }
        beside(out, &text.id, &message.content);
        if role == TextRole::Assistant {
            self.last_message = Some(whole);
            for call in message.tool_calls {
                self.announced.insert(call.call_id.clone(), AnnouncedCall { message: text.id.clone(), call });
            }
        }
        self.completed.insert(name, CompletedMessage { id: text.id, role });
    }

    /// The run has ended with this message.
    pub(super) fn concluded(&mut self, out: &mut Out, ids: &mut Ids, message: Message) {
        let Some(role) = text_role(message.role) else { return };
        let whole = message.text();
        let has_more = message.content.iter().any(|part| !matches!(part, ContentPart::Text(_)));
        if whole.is_empty() && !has_more || self.last_message.as_ref() == Some(&whole) {
            return;
        }
        match self.beginning_of(role, &whole) {
            Some(message_id) => self.completed(out, ids, MessageEnd { message_id, message }),
            None => {
                let message_id = ids.message(LAST);
                out.say(Kind::TextMessageStart { message_id: message_id.clone(), role, name: None });
                if !whole.is_empty() {
                    out.say(Kind::TextMessageContent { message_id: message_id.clone(), delta: whole });
                }
                out.say(Kind::TextMessageEnd { message_id: message_id.clone() });
                beside(out, &message_id, &message.content);
            }
        }
    }

    /// The message that has begun like this, and is not whole: guests stream, and leave it to their end to say that it is.
    fn beginning_of(&self, role: TextRole, whole: &str) -> Option<String> {
        let begins = |text: &Text| text.role == Some(role) && !text.streamed.is_empty() && whole.starts_with(&text.streamed);
        if let Some((name, _)) = self.open.iter().rev().find(|(_, text)| begins(text)) {
            return Some(name.to_owned());
        }
        let idle = self.idle.iter().filter(|(_, text)| begins(text));
        idle.max_by_key(|(name, text)| (text.streamed.len(), *name)).map(|(name, _)| name.clone())
    }

    /// The id of the message under this name, where clients have it.
    pub(super) fn begun_id(&self, name: &str) -> Option<&str> {
        let open = self.open.get(name).map(|text| &text.id);
        open.or_else(|| self.completed.get(name).map(|completed| &completed.id)).map(String::as_str)
    }

    /// The id of the message under this name, which may be said later.
    pub(super) fn id_of(&mut self, ids: &mut Ids, name: &str) -> &str {
        if let Some(text) = self.open.get(name) {
            return &text.id;
        }
        if !self.idle.contains_key(name)
            && let Some(completed) = self.completed.get(name)
        {
            return &completed.id;
        }
        &self.idle.entry(name.to_owned()).or_insert_with(|| Text::new(ids.message(name))).id
    }

    /// Likewise, of the message that a call belongs to; nothing where it is not the assistant's.
    pub(super) fn parent(&mut self, ids: &mut Ids, name: &str) -> Option<String> {
        if !self.open.contains(name) && (self.idle.contains_key(name) || !self.completed.contains_key(name)) {
            let text = self.idle.entry(name.to_owned()).or_insert_with(|| Text::new(ids.message(name)));
            // The client makes a message of the assistant for the call.
            text.role.get_or_insert(TextRole::Assistant);
        }
        let begun = self.open.get(name).or_else(|| self.idle.get(name)).map(|text| (&text.id, text.role));
        let (id, role) = begun.or_else(|| self.completed.get(name).map(|completed| (&completed.id, Some(completed.role))))?;
        (role == Some(TextRole::Assistant)).then(|| id.clone())
    }

    /// A call that a message of the assistant asks for, and that nobody has begun.
    pub(super) fn announced(&self, call_id: &str) -> Option<&ToolCall> {
        self.announced.get(call_id).map(|announced| &announced.call)
    }

    /// Starts the message that the call belongs to.
    pub(super) fn take_wanted(&mut self, call_id: &str) -> Option<String> {
        self.announced.remove(call_id).map(|announced| announced.message)
    }

    /// Closes the open elements. If the run continues, their messages may continue.
    pub(super) fn close(&mut self, out: &mut Out, closing: CloseReason) {
        for (name, text) in self.open.take() {
            out.say(Kind::TextMessageEnd { message_id: text.id.clone() });
            self.idle.insert(name, text);
        }
        if closing != CloseReason::Waits {
            *self = Self::default();
        }
    }
}

impl Text {
    const fn new(id: String) -> Self {
        Self { id, role: None, streamed: String::new() }
    }
}

const fn text_role(role: Role) -> Option<TextRole> {
    match role {
        Role::System => Some(TextRole::System),
        Role::Developer => Some(TextRole::Developer),
        Role::User => Some(TextRole::User),
        Role::Assistant => Some(TextRole::Assistant),
        Role::Tool => None,
    }
}

/// A message as it is, whatever was streamed of it.
fn corrected(id: &str, role: TextRole, text: String) -> event::Message {
    let body = match role {
        TextRole::Developer => MessageBody::Developer { content: text, name: None },
        TextRole::System => MessageBody::System { content: text, name: None },
        TextRole::User => MessageBody::User { content: Content::Text(text), name: None },
        TextRole::Assistant => MessageBody::Assistant { content: Some(text), name: None, tool_calls: Vec::new() },
    };
    event::Message::new(id, body)
}

/// The parts of a message that no text shows.
fn beside(out: &mut Out, message: &str, parts: &[ContentPart]) {
    for part in parts {
        match part {
            ContentPart::Text(_) => {}
            ContentPart::Artifact(artifact) => out.custom(content::ARTIFACT, content::artifact_content(artifact, Some(message))),
            ContentPart::Other(part) => out.custom(PART, json!({ "messageId": message, "part": part })),
        }
    }
}
