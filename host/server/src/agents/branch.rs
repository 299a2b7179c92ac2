//! The place of a client's message in its thread: at the end, or in place of what the thread has there.
//!
//! | the history of the client | the run answers | leaves the thread |
//! |---|---|---|
//! | ends with a new message, behind what the thread ends with | the new message | nothing |
//! | ends with a new message, in the place of an earlier one of the client | the new message | from that one on |
//! | has a message of the client with another text | its last new message, else the changed one | from the changed one on |
//! | ends with a message of the client that the thread has | that message, again | its former answer, and all that followed |
//! | shows nothing of the thread | the new message | nothing: the client has left its history out |
//! | shows answers that have left the thread | the new message | nothing: the client is behind, and gets a snapshot |
//!
//! The decision is made with the creation of the run, by the writer of the ledger ([`ThreadBranch`]).

use std::collections::HashMap;

use agent_host_protocol::{EventId, message::ContentPart};
use agent_host_runs::{ThreadBranch, facts::record::BranchReason};

use super::{
    history::{Judgement, NewMessage},
    read::{MessageIds, ReadInput},
    store::Thread,
};
use crate::{
    agui::{
        event::{Content, Message, MessageBody, Part},
        shape::{Shape, ShapedMessage},
    },
    app::App,
    http::Problem,
};

/// A message of a client's history that the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownMessage {
    /// Index in the request.
    pub(super) place: usize,
    pub(super) kind: KnownKind,
}

/// The author of a known message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownKind {
    /// The client. The message is this event, and one of the present thread.
    User(EventId),
    /// A run of the host.
    Host {
        /// True if the run has left the thread.
        left: bool,
    },
}

/// A request whose messages were judged.
pub(super) struct JudgedRequest<'a> {
    pub(super) app: &'a App,
    pub(super) thread: &'a Thread,
    pub(super) read: &'a ReadInput,
    /// The known messages of the request, in order.
    pub(super) known: &'a [KnownMessage],
    /// The messages of the thread, in order.
    pub(super) ours: &'a [ShapedMessage],
    /// True if a new message of the thread may wait behind an active run, which its client need not know of.
    pub(super) overlaps: bool,
}

impl JudgedRequest<'_> {
    /// Decides on the branch that the request begins, and completes the new messages.
    pub(super) fn place(&self, judgement: &mut Judgement) -> Result<(), Problem> {
        let answers = !judgement.answers.is_empty() || !self.read.input.resume.is_empty();
        if answers || self.read.ids == MessageIds::Run {
            return Ok(());
        }
        let is_behind = self.known.iter().any(|known| known.kind == KnownKind::Host { left: true });
        if !is_behind && let Some((message, event)) = self.changed()? {
            judgement.begins(BranchReason::Edit, event, &message.id, self.is_first(&message.id));
            judgement.new.insert(0, message);
        } else if let Some(first) = judgement.new.first() {
            let id = first.id.clone();
            if !is_behind
                && !self.overlaps
                && let Some((replaced, event)) = self.replaced()?
            {
                judgement.begins(BranchReason::Edit, event, &id, self.is_first(&replaced));
            }
        } else if let Some((message, event)) = self.repeated() {
            judgement.begins(BranchReason::Regenerate, event, &message.id, false);
            judgement.new.push(message);
        }
        Ok(())
    }

    fn message(&self, place: usize) -> Option<&Message> {
        self.read.input.messages.get(place)
    }

    fn is_first(&self, id: &str) -> bool {
        self.ours.first().is_some_and(|(first, _)| first == id)
    }

    /// The first message of the client with another text than the thread has.
    fn changed(&self) -> Result<Option<(NewMessage, EventId)>, Problem> {
        let shapes = self.ours.iter().filter_map(|(id, shape)| Some((id.as_str(), shape.as_ref()?)));
        let shapes: HashMap<&str, &Shape> = shapes.collect();
        for known in self.known {
            let KnownKind::User(event) = known.kind else { continue };
            let Some(message) = self.message(known.place) else { continue };
            let MessageBody::User { content, .. } = &message.body else { continue };
            let is_same = match (shapes.get(message.id.as_str()), Shape::of(message)) {
                (Some(ours), Some(theirs)) if ours.is_exact() && theirs.is_exact() => ours.agrees(&theirs),
                _ => self.has_text(event, content)?,
            };
            if !is_same {
                return Ok(new_message(message, known.place).map(|new| (new, event)));
            }
        }
        Ok(None)
    }

    /// True if the texts of a content are those of an event. Pictures of it are addresses here, so they are not compared.
    fn has_text(&self, event: EventId, content: &Content) -> Result<bool, Problem> {
        let Some(record) = self.app.host.records().event(event)? else { return Ok(true) };
        let input = &record.event.envelope.input;
        let text = |part: &ContentPart| if let ContentPart::Text(text) = part { Some(text.clone()) } else { None };
        let ours: String = if input.contents.is_empty() {
            input.text.clone().unwrap_or_default()
        } else {
            input.contents.iter().filter_map(text).collect()
        };
        let theirs: String = match content {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                parts.iter().filter_map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None }).collect()
            }
        };
        // Clients that know no parts join their texts in ways of their own.
        let words = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        Ok(words(&ours) == words(&theirs))
    }

    /// The message of the client that the thread has where the history of the client ends, and its event.
    fn replaced(&self) -> Result<Option<(String, EventId)>, Problem> {
        let Some(anchor) = self.known.last().and_then(|known| self.message(known.place)) else { return Ok(None) };
        let Some(place) = self.ours.iter().position(|(id, _)| *id == anchor.id) else { return Ok(None) };
        for (id, shape) in self.ours.iter().skip(place + 1) {
            // Messages that came by another API have no entry: the client need not know of them.
            if shape.as_ref().is_some_and(Shape::is_of_user)
                && let Some(event) = self.thread.message(self.app, id)?
            {
                return Ok(Some((id.clone(), event)));
            }
        }
        Ok(None)
    }

    /// The message of the client that its history ends with, and its event.
    fn repeated(&self) -> Option<(NewMessage, EventId)> {
        let is_said = |message: &Message| !matches!(message.body, MessageBody::Activity { .. });
        let last = self.read.input.messages.iter().rposition(is_said)?;
        let known = self.known.last().filter(|known| known.place == last)?;
        let KnownKind::User(event) = known.kind else { return None };
        Some((new_message(self.message(last)?, last)?, event))
    }
}

/// A message of the client as a new one.
fn new_message(message: &Message, place: usize) -> Option<NewMessage> {
    let MessageBody::User { content, name } = &message.body else { return None };
    let (id, metadata) = (message.id.clone(), message.metadata.clone());
    Some(NewMessage { id, content: content.clone(), name: name.clone(), metadata, place })
}

impl Judgement {
    /// The run begins a branch. `renames`: it takes the place of the first message of the thread, which names the thread.
    fn begins(&mut self, reason: BranchReason, from: EventId, message_id: &str, renames: bool) {
        // A client that has changed its history is shown what holds.
        self.left_out |= reason == BranchReason::Edit;
        self.renames = renames;
        self.branch = Some(ThreadBranch { reason, message_id: message_id.to_owned(), from, until: None });
    }
}
