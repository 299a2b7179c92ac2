//! Events for tests, in short: `run t[a t.a t]a end`.
//!
//! A word is a sign and an id, then `@` and the subagent that it is tagged with, if any:
//!
//! | Word | Event |
//! |---|---|
//! | `run`, `end`, `cancel`, `err` | RUN_STARTED, RUN_FINISHED (with success, cancelled), RUN_ERROR |
//! | `end=a,b` | RUN_FINISHED with the pending calls `a` and `b` |
//! | `t[a` `t.a` `t]a` | text message: START, CONTENT (the id, in brackets), END; `u[a` is one of the user |
//! | `c[a` `c.a` `c]a` | tool call; `c[a<m` has the parent message `m` |
//! | `r[a` `r]a` | reasoning span |
//! | `m[a` `m.a` `m]a` | reasoning message |
//! | `e.a` `f.a` | encrypted value of message, of call `a` |
//! | `s[a` `s]a` | step |
//! | `g[a` `g]a` `g!a` | subagent: started, finished, failed; `g[a<p` has the parent `p` |
//! | `x.a` | result of call `a`, with the id `xa` |
//! | `a=i` `a?i` `a.i` | activity `i`: snapshot, snapshot without `replace`, delta |
//! | `snap=a,b` | MESSAGES_SNAPSHOT with the assistant messages `a` and `b` |
//! | `set` `add` | STATE_SNAPSHOT, STATE_DELTA |

use serde_json::{Map, json};

use super::event::{Content, Event, Kind, Message, MessageBody, Outcome, PROTOCOL_VERSION, PatchOp, TextRole};

/// The events of these words.
pub(crate) fn events(words: &str) -> Vec<Event> {
    words.split_whitespace().map(event).collect()
}

/// The event of this word.
pub(crate) fn event(word: &str) -> Event {
    let (word, tag) = word.split_once('@').map_or((word, None), |(word, tag)| (word, Some(tag.to_owned())));
    Event { subagent: tag, ..Event::from(kind(word)) }
}

/// An assistant's message.
pub(crate) fn assistant_message(id: &str, content: &str) -> Message {
    let body = MessageBody::Assistant { content: Some(content.to_owned()), name: None, tool_calls: Vec::new() };
    Message::new(id, body)
}

fn kind(word: &str) -> Kind {
    let finished = |outcome| Kind::RunFinished {
        thread_id: "thread".into(),
        run_id: "run".into(),
        result: None,
        outcome: Some(outcome),
        usage: Vec::new(),
    };
    let list = |ids: &str| ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    match word {
        "run" => {
            return Kind::RunStarted {
                thread_id: "thread".into(),
                run_id: "run".into(),
                protocol_version: Some(PROTOCOL_VERSION),
                parent_run_id: None,
            };
        }
        "end" => return finished(Outcome::Success { pending_tool_call_ids: Vec::new() }),
        "cancel" => return finished(Outcome::Cancelled),
        "err" => return Kind::RunError { message: "it broke".into(), code: None, usage: Vec::new() },
        "set" => return Kind::StateSnapshot { snapshot: json!({"list": []}) },
        "add" => return Kind::StateDelta { delta: vec![PatchOp::Add { path: "/list/-".into(), value: json!(1) }] },
        _ => {}
    }
    if let Some(ids) = word.strip_prefix("end=") {
        return finished(Outcome::Success { pending_tool_call_ids: list(ids) });
    }
    if let Some(ids) = word.strip_prefix("snap=") {
        return Kind::MessagesSnapshot { messages: list(ids).iter().map(|id| assistant_message(id, "")).collect() };
    }
    let (sign, rest) = word.split_at(2);
    let (id, parent) = rest.split_once('<').map_or((rest, None), |(id, parent)| (id, Some(parent.to_owned())));
    let id = id.to_owned();
    match sign {
        "t[" => Kind::TextMessageStart { message_id: id, role: TextRole::Assistant, name: None },
        "u[" => Kind::TextMessageStart { message_id: id, role: TextRole::User, name: None },
        "t." => Kind::TextMessageContent { delta: format!("({id})"), message_id: id },
        "t]" => Kind::TextMessageEnd { message_id: id },
        "c[" => Kind::ToolCallStart { tool_call_name: format!("tool-{id}"), tool_call_id: id, parent_message_id: parent },
        "c." => Kind::ToolCallArgs { delta: format!("({id})"), tool_call_id: id },
        "c]" => Kind::ToolCallEnd { tool_call_id: id },
        "r[" => Kind::ReasoningStart { message_id: id },
        "r]" => Kind::ReasoningEnd { message_id: id },
        "m[" => Kind::ReasoningMessageStart { message_id: id, role: Default::default() },
        "m." => Kind::ReasoningMessageContent { delta: format!("({id})"), message_id: id },
        "m]" => Kind::ReasoningMessageEnd { message_id: id },
        "e." => Kind::ReasoningEncryptedValue { subtype: "message".into(), entity_id: id, encrypted_value: "?".into() },
        "f." => Kind::ReasoningEncryptedValue { subtype: "tool-call".into(), entity_id: id, encrypted_value: "?".into() },
        "s[" => Kind::StepStarted { step_name: id },
        "s]" => Kind::StepFinished { step_name: id },
        "g[" => Kind::SubagentStarted {
            name: format!("agent-{id}"),
            subagent_run_id: id,
            description: None,
            parent_subagent_run_id: parent,
            parent_tool_call_id: None,
        },
        "g]" => Kind::SubagentFinished { subagent_run_id: id, result: None, outcome: None },
        "g!" => Kind::SubagentError { subagent_run_id: id, message: "it broke".into(), code: None },
        "x." => Kind::ToolCallResult {
            message_id: format!("x{id}"),
            tool_call_id: id,
            content: Content::Text("done".into()),
            role: Default::default(),
        },
        "a=" | "a?" => Kind::ActivitySnapshot {
            message_id: id,
            activity_type: "plan".into(),
            content: Map::from_iter([("steps".to_owned(), json!([]))]),
            replace: (sign == "a?").then_some(false),
        },
        "a." => Kind::ActivityDelta {
            message_id: id,
            activity_type: "plan".into(),
            patch: vec![PatchOp::Add { path: "/steps/-".into(), value: json!("next") }],
        },
        other => panic!("no such sign: {other}"),
    }
}
