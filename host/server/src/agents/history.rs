//! Comparison of a client's messages with the record: the history of the host wins.
//!
//! Clients send the whole history with every run. The host takes from it new messages of the user, and answers to calls
//! that wait for the client. Messages that a client could only forge are refused.

use std::collections::HashMap;

use agent_host_config::ForeignHistory;
use agent_host_protocol::{EventId, RunId, grant::ConversationKey};

use super::store::Thread;
use crate::{
    agui::{
        event::{Content, Message, MessageBody},
        input::RunAgentInput,
        project::run_of,
    },
    app::App,
    http::{Problem, ProblemCode},
};

/// A message of the user that the host has not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewMessage {
    pub(crate) id: String,
    pub(crate) content: Content,
    pub(crate) name: Option<String>,
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
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Judgement {
    /// In their order; the last is what the run answers.
    pub(crate) new: Vec<NewMessage>,
    /// Of tools, for calls that the host does not know as answered.
    pub(crate) answers: Vec<ToolAnswer>,
    /// True if some messages were known.
    pub(crate) knows_some: bool,
    /// True if messages were ignored because the host never sent them.
    pub(crate) left_out: bool,
}

/// Judges the messages of a request. `open` are the calls that wait for the client, by their ids on the wire.
pub(crate) fn judge(
    app: &App,
    thread: &Thread,
    input: &RunAgentInput,
    open: &[String],
    foreign: ForeignHistory,
) -> Result<Judgement, Problem> {
    let mut known = Known { app, thread, runs: HashMap::new() };
    let mut judged = Judgement::default();
    for (place, message) in input.messages.iter().enumerate() {
        let refused = |code, detail: String| Problem::new(code, detail).in_field(format!("messages[{place}]"));
        match &message.body {
            MessageBody::System { .. } | MessageBody::Developer { .. } => {
                let role = message.body.role();
                let detail = format!(
                    "a client may not speak as `{role}`: the runner and its binding decide what the agent receives; leave the message out, or send it as `context`"
                );
                return Err(refused(ProblemCode::RoleForbidden, detail));
            }
            // Shown by clients, never sent; where one is, it says nothing.
            MessageBody::Activity { .. } => {}
            MessageBody::User { content, name } => {
                if known.user(&message.id)? {
                    judged.knows_some = true;
                    // A new one in front of a known one is not what happened.
                    judged.left_out |= !judged.new.is_empty();
                    judged.new.clear();
                } else {
                    let (id, content, name) = (message.id.clone(), content.clone(), name.clone());
                    judged.new.push(NewMessage { id, content, name, place });
                }
            }
            MessageBody::Assistant { .. } | MessageBody::Reasoning { .. } => {
                if known.host(&message.id)? {
                    judged.knows_some = true;
                    judged.left_out |= !judged.new.is_empty();
                    judged.new.clear();
                } else if foreign == ForeignHistory::Ignore {
                    judged.left_out = true;
                } else {
                    let (id, role) = (message.id.escape_debug(), message.body.role());
                    let detail = format!(
                        "message `{id}` has the role `{role}`, and this host has not said it in this thread: send what the host \
                         said, or only what is new (`[agui] foreign_history = \"ignore\"` leaves such messages out)"
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
                } else if known.host(tool_call_id)? {
                    judged.knows_some = true;
                } else {
                    let id = tool_call_id.escape_debug();
                    let detail =
                        format!("no call `{id}` of this thread waits for an answer: answer calls that were streamed, once");
                    return Err(refused(ProblemCode::UnknownToolCall, detail));
                }
            }
        }
    }
    Ok(judged)
}

/// The messages of a thread that the host has, by id.
struct Known<'a> {
    app: &'a App,
    thread: &'a Thread,
    /// For each run, true if it belongs to the thread.
    runs: HashMap<RunId, bool>,
}

impl Known<'_> {
    /// True if the host has this message of the user.
    fn user(&self, id: &str) -> Result<bool, Problem> {
        if self.thread.message(self.app, id)?.is_some() {
            return Ok(true);
        }
        // A message that came by another API has the id of its event.
        let Ok(id) = id.parse::<EventId>() else { return Ok(false) };
        let event = self.app.host.records().event(id)?;
        let conversation = event.as_ref().and_then(|record| record.event.envelope.conversation.as_ref());
        Ok(conversation.and_then(ConversationKey::of).as_ref() == Some(&self.thread.key))
    }

    /// True if a run of the thread sent a message with this id.
    fn host(&mut self, id: &str) -> Result<bool, Problem> {
        let Some(run) = run_of(id) else { return Ok(false) };
        if let Some(known) = self.runs.get(&run) {
            return Ok(*known);
        }
        let record = self.app.host.records().run(run)?;
        let is_of_thread = record.is_some_and(|record| self.thread.has(&record.run));
        self.runs.insert(run, is_of_thread);
        Ok(is_of_thread)
    }
}

/// True if a client shows a thread that differs from the record: `theirs` is the client's history, `ours` the newest
/// messages. A missing beginning, or an empty history, is no difference: some clients send only new messages.
pub(crate) fn contradicts(theirs: &[Message], ours: &[Message]) -> bool {
    let by_id: HashMap<&str, &Message> = ours.iter().map(|message| (message.id.as_str(), message)).collect();
    let mut places = HashMap::new();
    for (place, message) in ours.iter().enumerate() {
        places.insert(message.id.as_str(), place);
    }
    let mut last = None;
    let mut shown = 0;
    for message in theirs.iter().filter(|message| !matches!(message.body, MessageBody::Activity { .. })) {
        let (Some(own), Some(place)) = (by_id.get(message.id.as_str()), places.get(message.id.as_str())) else { continue };
        if !says_the_same(message, own) || last.is_some_and(|last| last >= *place) {
            return true;
        }
        shown += 1;
        last = Some(*place);
    }
    let Some(first) = theirs.iter().find_map(|message| places.get(message.id.as_str())) else { return false };
    // From the first that they show to the end, all of them are there.
    let rest = ours.get(*first..).unwrap_or_default();
    let expected = rest.iter().filter(|message| !matches!(message.body, MessageBody::Activity { .. })).count();
    shown != expected
}

/// True if two versions of a message have the same content. Names and metadata are ignored.
fn says_the_same(theirs: &Message, ours: &Message) -> bool {
    match (&theirs.body, &ours.body) {
        (MessageBody::User { content: theirs, .. }, MessageBody::User { content: ours, .. }) => match (theirs, ours) {
            (Content::Text(theirs), Content::Text(ours)) => theirs == ours,
            // Bytes that a client sends become artifacts here, so parts are not compared.
            _ => true,
        },
        (
            MessageBody::Assistant { content: theirs, tool_calls: their_calls, .. },
            MessageBody::Assistant { content: ours, tool_calls: our_calls, .. },
        ) => {
            let text = |content: &Option<String>| content.clone().unwrap_or_default();
            text(theirs) == text(ours)
                && their_calls.len() == our_calls.len()
                && their_calls
                    .iter()
                    .zip(our_calls)
                    .all(|(theirs, ours)| theirs.id == ours.id && theirs.function == ours.function)
        }
        (MessageBody::Tool { content: theirs, .. }, MessageBody::Tool { content: ours, .. }) => {
            !matches!((theirs, ours), (Content::Text(theirs), Content::Text(ours)) if theirs != ours)
        }
        (MessageBody::Reasoning { content: theirs, .. }, MessageBody::Reasoning { content: ours, .. }) => theirs == ours,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn user(id: &str, text: &str) -> Message {
        let body = MessageBody::User { content: Content::Text(text.to_owned()), name: None };
        Message { id: id.to_owned(), body, subagent: None, metadata: Map::new() }
    }

    fn assistant(id: &str, text: &str) -> Message {
        let body = MessageBody::Assistant { content: Some(text.to_owned()), name: None, tool_calls: Vec::new() };
        Message { id: id.to_owned(), body, subagent: None, metadata: Map::new() }
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
}
