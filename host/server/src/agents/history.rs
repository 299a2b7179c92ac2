//! Comparison of a client's messages with the record: the history of the host wins.
//!
//! Clients send the whole history with every run. The host takes from it new messages of the user, and answers to calls
//! that wait for the client. Messages that a client could only forge are refused.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use agent_host_config::{ClientInstructions, ForeignHistory};
use agent_host_protocol::{EventId, Run, RunId, grant::ConversationKey};
use agent_host_runs::{ClaimedMessage, ThreadBranch};
use serde_json::{Map, Value};

use super::{
    branch::{self, KnownKind, KnownMessage},
    claims::{self, Instruction},
    read::{MessageIds, ReadInput},
    store::Thread,
    thread,
};
use crate::{
    agui::{
        event::{Content, Message, MessageBody},
        project::run_of,
        shape::{Shape, ShapedMessage},
    },
    app::App,
    http::{Problem, ProblemCode},
};

/// Generations of child runs in which the thread of a message is looked for: more than a host allows.
const MAX_GENERATIONS: usize = 64;

/// A message of the user that the host has not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewMessage {
    pub(crate) id: String,
    pub(crate) content: Content,
    pub(crate) name: Option<String>,
    pub(crate) metadata: Map<String, Value>,
    /// Index in the request, for error messages.
    pub(crate) place: usize,
}

/// The client's answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolAnswer {
    pub(crate) message_id: String,
    pub(crate) tool_call_id: String,
    pub(crate) content: Content,
    pub(crate) error: Option<String>,
}

/// The classification of a request's messages.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// In their order; the last is what the run answers.
    pub(crate) new: Vec<NewMessage>,
    /// Of tools, for calls that the host does not know as answered.
    pub(crate) answers: Vec<ToolAnswer>,
    /// True if some messages were known.
    pub(crate) knows_some: bool,
    /// True if messages were ignored because the host never sent them.
    pub(crate) left_out: bool,
    /// History that the client claims, where the thread is new and the host takes it: all in front of `new`.
    pub(crate) claimed: Vec<ClaimedMessage>,
    /// Messages of `system` and `developer`, where the binding offers them to the runner.
    pub(crate) instructions: Vec<Instruction>,
    /// The branch of the thread that begins with the run.
    pub(crate) branch: Option<ThreadBranch>,
    /// True if the branch takes the place of the first message of the thread.
    pub(crate) renames: bool,
    /// The messages of the thread, where they were read.
    pub(crate) ours: Option<Vec<ShapedMessage>>,
}

/// The rules for messages of a client that do not follow from the thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The treatment of messages that this host has not said.
    pub(crate) foreign: ForeignHistory,
    /// The treatment of instructions.
    pub(crate) instructions: ClientInstructions,
    /// True if a new message may wait behind an active run.
    pub(crate) overlaps: bool,
}

/// Judges the messages of a request. `open` are the calls that wait for the client, by their ids on the wire.
pub(crate) fn judge(app: &App, thread: &Thread, read: &ReadInput, open: &[String], rules: Rules) -> Result<Judgement, Problem> {
    let mut known = KnownMessages {
        app,
        thread,
        is_read: read.ids == MessageIds::Thread,
        runs: HashMap::new(),
        ours: None,
        ids: HashSet::new(),
        claims: thread::claimed_ids(app, &thread.key)?,
    };
    let mut in_order: Vec<KnownMessage> = Vec::new();
    let begins = rules.foreign == ForeignHistory::Accept && thread.is_unknown(app)?;
    // Places of messages that are history where the thread begins with one.
    let (mut claimed, mut is_foreign) = (Vec::new(), false);
    // A request with answers repeats the message of the user that led to the calls, under the id of its own run.
    let is_answer = |message: &Message| matches!(message.body, MessageBody::Tool { .. });
    let answers = !read.input.resume.is_empty() || read.input.messages.iter().any(is_answer);
    let mut judged = Judgement::default();
    for (place, message) in read.input.messages.iter().enumerate() {
        let refused = |code, detail: String| Problem::new(code, detail).in_field(format!("messages[{place}]"));
        match &message.body {
            MessageBody::System { content, .. } | MessageBody::Developer { content, .. } => {
                let role = message.body.role();
                if rules.instructions == ClientInstructions::Offer {
                    judged.instructions.push(Instruction { role, content: content.clone() });
                    continue;
                }
                let detail = format!(
                    "a client may not speak as `{role}`: the runner and its binding decide what the agent receives; leave the message \
                     out, send it as `context`, or let the binding offer it to the runner (`client_instructions = \"offer\"`)"
                );
                return Err(refused(ProblemCode::RoleForbidden, detail));
            }
            // Shown by clients, never sent; where one is, it says nothing.
            MessageBody::Activity { .. } => {}
            MessageBody::User { content, name } => {
                if known.claims.contains(&message.id) {
                    // A part of what the thread began with: it is neither edited nor asked again by itself.
                    in_order.push(KnownMessage { place, kind: KnownKind::Host { left: false } });
                    judged.knows_some = true;
                    judged.left_out |= !judged.new.is_empty();
                    judged.new.clear();
                    continue;
                }
                let mut event = known.user(&read.key(&message.id), &message.id)?;
                if event.is_none() && answers {
                    event = known.user(&message.id, &message.id)?;
                }
                if let Some(event) = event {
                    in_order.push(KnownMessage { place, kind: KnownKind::User(event) });
                    judged.knows_some = true;
                    // A new one in front of a known one is not what happened.
                    judged.left_out |= !judged.new.is_empty();
                    judged.new.clear();
                } else {
                    claimed.push(place);
                    let (id, content, name, metadata) =
                        (message.id.clone(), content.clone(), name.clone(), message.metadata.clone());
                    judged.new.push(NewMessage { id, content, name, metadata, place });
                }
            }
            MessageBody::Assistant { .. } | MessageBody::Reasoning { .. } => {
                if known.host(&message.id)? || known.claims.contains(&message.id) {
                    let left = known.has_left(&message.id)?;
                    in_order.push(KnownMessage { place, kind: KnownKind::Host { left } });
                    judged.knows_some = true;
                    judged.left_out |= !judged.new.is_empty();
                    judged.new.clear();
                } else if begins {
                    // Reasoning belongs to the model that had it.
                    if matches!(message.body, MessageBody::Assistant { .. }) {
                        claimed.push(place);
                        is_foreign = true;
                    }
                } else if rules.foreign != ForeignHistory::Refuse {
                    judged.left_out = true;
                } else {
                    let (id, role) = (message.id.escape_debug(), message.body.role());
                    let detail = format!(
                        "message `{id}` has the role `{role}`, but is no message of this host in this thread: send the messages of \
                         the host, or new messages only (`[agui] foreign_history = \"ignore\"` leaves such messages out, and \
                         `\"accept\"` begins new threads with them)"
                    );
                    return Err(refused(ProblemCode::RoleForbidden, detail));
                }
            }
            MessageBody::Tool { content, tool_call_id, error } => {
                if open.contains(tool_call_id) {
                    if judged.answers.iter().any(|answer| answer.tool_call_id == *tool_call_id) {
                        let id = tool_call_id.escape_debug();
                        return Err(refused(ProblemCode::UnknownToolCall, format!("call `{id}` is answered twice")));
                    }
                    judged.answers.push(ToolAnswer {
                        message_id: message.id.clone(),
                        tool_call_id: tool_call_id.clone(),
                        content: content.clone(),
                        error: error.clone(),
                    });
                } else if known.host(tool_call_id)? || known.claims.contains(&message.id) {
                    judged.knows_some = true;
                } else if begins {
                    claimed.push(place);
                    is_foreign = true;
                } else {
                    let id = tool_call_id.escape_debug();
                    let detail =
                        format!("no call `{id}` of this thread waits for an answer: answer calls that were streamed, once");
                    return Err(refused(ProblemCode::UnknownToolCall, detail));
                }
            }
        }
    }
    if is_foreign {
        judged.take_claims(read, &claimed)?;
    }
    claims::bound_instructions(&judged.instructions)?;
    if let Some(ours) = known.ours {
        let overlaps = rules.overlaps;
        branch::JudgedRequest { app, thread, read, known: &in_order, ours: &ours, overlaps }.place(&mut judged)?;
        judged.ours = Some(ours);
    }
    Ok(judged)
}

impl Judgement {
    /// Takes the messages at these places as claimed history, but for the last where it is of the user: the run answers that one.
    fn take_claims(&mut self, read: &ReadInput, places: &[usize]) -> Result<(), Problem> {
        let messages = &read.input.messages;
        let last = places.last().and_then(|place| messages.get(*place));
        let answered = last.filter(|message| matches!(message.body, MessageBody::User { .. })).map(|message| &message.id);
        self.new.retain(|new| Some(&new.id) == answered);
        // An id may stand there twice: the last one counts.
        self.new = self.new.pop().into_iter().collect();
        let history = places.len() - usize::from(answered.is_some());
        self.claimed = claims::of(&read.digests, messages, places.get(..history).unwrap_or_default())?;
        Ok(())
    }
}

/// The messages of a thread that the host has, by id.
struct KnownMessages<'a> {
    app: &'a App,
    thread: &'a Thread,
    /// True if ids name messages of the thread, so that its messages are read.
    is_read: bool,
    /// For each run, true if it belongs to the thread.
    runs: HashMap<RunId, bool>,
    /// The messages of the present thread, read with the first one that the host has.
    ours: Option<Vec<ShapedMessage>>,
    /// Their ids.
    ids: HashSet<String>,
    /// Ids of the history that the client has claimed when the thread began.
    claims: HashSet<String>,
}

impl KnownMessages<'_> {
    /// The event of a message of the user that is in the thread. A message that has left the thread is as good as new.
    fn user(&mut self, key: &str, id: &str) -> Result<Option<EventId>, Problem> {
        let Some(event) = self.event_of(key, id)? else { return Ok(None) };
        Ok((self.is_present(id)? || !self.app.host.records().has_left_conversation(&self.thread.key, event)?).then_some(event))
    }

    fn event_of(&self, key: &str, id: &str) -> Result<Option<EventId>, Problem> {
        if let Some(event) = self.thread.message(self.app, key)? {
            return Ok(Some(event));
        }
        // A message that came by another API has the id of its event.
        let Ok(id) = id.parse::<EventId>() else { return Ok(None) };
        let event = self.app.host.records().event(id)?;
        let conversation = event.as_ref().and_then(|record| record.event.envelope.conversation.as_ref());
        Ok((conversation.and_then(ConversationKey::of).as_ref() == Some(&self.thread.key)).then_some(id))
    }

    /// True if a message is one of those that were read of the thread: most are, and need no look at the record.
    fn is_present(&mut self, id: &str) -> Result<bool, Problem> {
        if self.is_read && self.ours.is_none() {
            let limit = usize::try_from(self.app.host.config().agui.history_messages).unwrap_or(usize::MAX);
            let ours = thread::shapes(self.app, &self.thread.key, limit)?;
            self.ids = ours.iter().map(|(id, _)| id.clone()).collect();
            self.ours = Some(ours);
        }
        Ok(self.ids.contains(id))
    }

    /// True if a message of a run of the thread has left the thread with its run.
    fn has_left(&mut self, id: &str) -> Result<bool, Problem> {
        let Some(run) = run_of(id).filter(|_| self.is_read) else { return Ok(false) };
        if self.is_present(id)? {
            return Ok(false);
        }
        let Some(run) = self.run_of_thread(run)? else { return Ok(false) };
        Ok(self.app.host.records().has_left_conversation(&self.thread.key, run.event_id)?)
    }

    /// The run of the thread that a run is, or is a descendant of. `None` for a run of another thread.
    fn run_of_thread(&self, run: RunId) -> Result<Option<Arc<Run>>, Problem> {
        let records = self.app.host.records();
        let mut next = Some(run);
        for _ in 0..MAX_GENERATIONS {
            let Some(record) = next.map(|run| records.run(run)).transpose()?.flatten() else { return Ok(None) };
            if self.thread.has(&record.run) {
                return Ok(Some(record.run));
            }
            next = record.run.parent_run_id;
        }
        Ok(None)
    }

    /// True if a run of the thread, or a child of one, sent a message with this id.
    fn host(&mut self, id: &str) -> Result<bool, Problem> {
        let Some(run) = run_of(id) else { return Ok(false) };
        if let Some(known) = self.runs.get(&run) {
            return Ok(*known);
        }
        let is_of_thread = self.run_of_thread(run)?.is_some();
        self.runs.insert(run, is_of_thread);
        Ok(is_of_thread)
    }
}

/// The shapes of messages whose content was not kept: those that a run of this host seems to have said.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    shapes: HashMap<String, Option<Shape>>,
    /// Bytes of content that may still be kept in spite of its id, where such messages may be history of a new thread.
    room: usize,
}

impl Digests {
    /// No shapes yet. Content of messages is kept in the input for as many bytes as `room`.
    pub(crate) fn with_room(room: usize) -> Self {
        Self { shapes: HashMap::new(), room }
    }

    /// True if the content of a message was not kept.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.shapes.contains_key(id)
    }

    /// Keeps the shape of a message in place of its content, where the id is one that this host gives to its own messages. A
    /// later check of the thread needs no content.
    pub(crate) fn keep(&mut self, message: &mut Message) {
        if run_of(&message.id).is_none() {
            return;
        }
        let bytes = claims::bytes_of(&message.body);
        if bytes <= self.room {
            self.room -= bytes;
            return;
        }
        let shape = Shape::of(message);
        match &mut message.body {
            MessageBody::Assistant { content, tool_calls, .. } => (*content, *tool_calls) = (None, Vec::new()),
            MessageBody::Reasoning { content, .. } => *content = String::new(),
            _ => return,
        }
        self.shapes.insert(message.id.clone(), shape);
    }

    /// The shapes of messages, in their order.
    pub(crate) fn shapes(&self, messages: &[Message]) -> Vec<ShapedMessage> {
        let shape = |message: &Message| self.shapes.get(&message.id).cloned().unwrap_or_else(|| Shape::of(message));
        messages.iter().map(|message| (message.id.clone(), shape(message))).collect()
    }
}

/// True if a client shows a thread that differs from the record: `theirs` is the client's history, `ours` the newest
/// messages. A missing beginning, or an empty history, is no difference: some clients send only new messages.
pub(crate) fn contradicts(theirs: &[ShapedMessage], ours: &[ShapedMessage]) -> bool {
    let places: HashMap<&str, (usize, &Option<Shape>)> =
        ours.iter().enumerate().map(|(place, (id, shape))| (id.as_str(), (place, shape))).collect();
    let mut last = None;
    let mut count = 0;
    for (id, theirs) in theirs {
        let (Some(theirs), Some((place, own))) = (theirs, places.get(id.as_str())) else { continue };
        if !own.as_ref().is_some_and(|own| own.agrees(theirs)) || last.is_some_and(|last| last >= *place) {
            return true;
        }
        count += 1;
        last = Some(*place);
    }
    let Some((first, _)) = theirs.iter().find_map(|(id, _)| places.get(id.as_str())) else { return false };
    // From the first that they show to the end, all of them are there.
    let rest = ours.get(*first..).unwrap_or_default();
    count != rest.iter().filter(|(_, shape)| shape.is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: &str, text: &str) -> Message {
        let body = MessageBody::User { content: Content::Text(text.to_owned()), name: None };
        Message::new(id, body)
    }

    fn assistant(id: &str, text: &str) -> Message {
        let body = MessageBody::Assistant { content: Some(text.to_owned()), name: None, tool_calls: Vec::new() };
        Message::new(id, body)
    }

    fn contradicts(theirs: &[Message], ours: &[Message]) -> bool {
        let digests = Digests::default();
        super::contradicts(&digests.shapes(theirs), &digests.shapes(ours))
    }

    #[test]
    fn history_that_is_the_same_or_left_out_contradicts_nothing() {
        let ours = [user("u1", "hi"), assistant("a1", "hello"), user("u2", "and?")];
        for theirs in [
            vec![],
            vec![user("u9", "new")],
            ours.to_vec(),
            ours.get(1..).unwrap().to_vec(),
            [ours.to_vec(), vec![user("u3", "new")]].concat(),
        ] {
            assert!(!contradicts(&theirs, &ours), "{theirs:?}");
        }
    }

    #[test]
    fn other_words_another_order_and_gaps_contradict() {
        let ours = [user("u1", "hi"), assistant("a1", "hello"), user("u2", "and?")];
        let [u1, a1, u2] = ours.clone();
        for theirs in [
            vec![user("u1", "ho"), a1.clone(), u2.clone()],
            vec![u1.clone(), assistant("a1", "bye"), u2.clone()],
            vec![a1.clone(), u1.clone(), u2.clone()],
            vec![u1.clone(), u2],
            vec![u1, a1],
        ] {
            assert!(contradicts(&theirs, &ours), "{theirs:?}");
        }
    }

    #[test]
    fn a_message_that_the_host_has_said_is_compared_without_its_content() {
        let run = RunId::new();
        let answer = assistant(&format!("{run}:m1"), "a long answer");
        let ours = Digests::default().shapes(&[user("u1", "hi"), answer.clone()]);
        for (theirs, differs) in [(answer.clone(), false), (assistant(&answer.id, "another answer"), true)] {
            let mut digests = Digests::default();
            let mut theirs = [user("u1", "hi"), theirs];
            theirs.iter_mut().for_each(|message| digests.keep(message));
            assert_eq!(theirs[1].body, MessageBody::Assistant { content: None, name: None, tool_calls: Vec::new() });
            assert!(matches!(&theirs[0].body, MessageBody::User { content: Content::Text(text), .. } if text == "hi"));
            assert_eq!(super::contradicts(&digests.shapes(&theirs), &ours), differs);
        }
    }
}
