//! Run events as people read them.

use std::fmt::Write;

use agent_host_facts::record::{Delta, MessageEnd, read};
use agent_host_protocol::{
    ResultKind, RunEvent,
    message::Message,
    run::{RunCompletion, RunFailure},
    time,
};
use serde_json::Value;

use super::{action_text, failure_text};
use crate::text;

/// An event on one line: number, time, type, and the beginning of its content.
pub(crate) fn line(event: &RunEvent) -> String {
    const MAX: usize = 160;
    format!(
        "{:>5}  {}  {:<21}  {}\n",
        event.sequence,
        time::display(event.timestamp),
        text::one_line(&event.kind, 40),
        text::one_line(&gist(event), MAX)
    )
}

/// The whole message of an event that has one.
pub(crate) fn message(event: &RunEvent) -> Option<Message> {
    match ResultKind::from_name(&event.kind)? {
        ResultKind::MessageCompleted => read::<MessageEnd>(event).map(|end| end.message),
        ResultKind::RunCompleted => serde_json::from_str::<RunCompletion>(event.data.get()).ok()?.message,
        _ => None,
    }
}

/// The content of an event, in short.
fn gist(event: &RunEvent) -> String {
    let line = match ResultKind::from_name(&event.kind) {
        Some(ResultKind::MessageDelta | ResultKind::ReasoningDelta) => {
            read::<Delta>(event).map(|delta| format!("{:?}", delta.chunk.content))
        }
        Some(ResultKind::MessageCompleted) => read::<MessageEnd>(event).map(|end| format!("{:?}", end.message.text())),
        Some(ResultKind::RunFailed) => failure(event).map(|failure| failure_text::sentence(&failure)),
        Some(ResultKind::ActionRequested) => about(event, "action_id", action_text::what),
        Some(ResultKind::ActionAnswered) => about(event, "action_id", action_text::answer_text),
        Some(ResultKind::ActionResolved) => about(event, "action_id", action_text::outcome_text),
        Some(ResultKind::SteeringReceived) => about(event, "event_id", |data| {
            format!("would have been run {}", text::member(data, "/run_id").as_str().unwrap_or("-"))
        }),
        Some(ResultKind::ConversationBranched) => about(event, "message_id", |data| {
            let text = |name: &str| data[name].as_str().unwrap_or("-").to_owned();
            format!("{} from event {}", text("reason"), text("from_event_id"))
        }),
        Some(ResultKind::ChildStarted) => about(event, "run_id", |data| {
            let text = |name: &str| data[name].as_str().unwrap_or("-").to_owned();
            format!("{}: {}", text("runner_id"), text("objective"))
        }),
        Some(ResultKind::PermissionDenied) => about(event, "function", |data| {
            let text = |name: &str| data[name].as_str().unwrap_or("-").to_owned();
            let more = data["count"].as_u64().map(|count| format!(" ({count} more)")).unwrap_or_default();
            format!("{}: {}{more}", text("code"), text("message"))
        }),
        Some(ResultKind::ChildEnded) => about(event, "run_id", |data| data["status"].as_str().unwrap_or("-").to_owned()),
        _ => None,
    };
    line.unwrap_or_else(|| event.data.get().to_owned())
}

/// The id that an event names, and a text about it. `None` if the event has no such id.
fn about(event: &RunEvent, id: &str, says: impl FnOnce(&Value) -> String) -> Option<String> {
    let data = event.data_value();
    Some(format!("{}  {}", data.get(id)?.as_str()?, says(&data)))
}

fn failure(event: &RunEvent) -> Option<RunFailure> {
    serde_json::from_str(event.data.get()).ok()
}

/// Turns the events of a run into its running text: deltas as they come, and whole messages where no delta came.
#[derive(Debug, Default)]
pub(crate) struct RunningText {
    /// The message that the last text belongs to.
    open: Option<String>,
    /// Messages of which something was shown.
    started: Vec<String>,
}

impl RunningText {
    /// The text that an event adds to the message, if any.
    pub(crate) fn add(&mut self, event: &RunEvent) -> Option<String> {
        match ResultKind::from_name(&event.kind)? {
            ResultKind::MessageDelta => {
                let Delta { message_id, chunk } = read(event)?;
                Some(self.say(message_id, &chunk.content))
            }
            ResultKind::MessageCompleted => {
                let MessageEnd { message_id, message } = read(event)?;
                if self.started.contains(&message_id) {
                    return (self.open.as_ref() == Some(&message_id)).then(|| self.close());
                }
                let mut text = self.say(message_id, &message.text());
                text.push_str(&self.close());
                Some(text)
            }
            ResultKind::RunCompleted => {
                let mut text = self.close();
                let completion: Option<RunCompletion> = serde_json::from_str(event.data.get()).ok();
                if let Some(message) = completion.and_then(|completion| completion.message) {
                    let _ = writeln!(text, "{}", message.text());
                }
                Some(text)
            }
            ResultKind::RunFailed => Some(self.close()),
            _ => None,
        }
    }

    fn say(&mut self, message_id: String, text: &str) -> String {
        let mut line = if self.open.as_ref() == Some(&message_id) { String::new() } else { self.close() };
        line.push_str(text);
        if !self.started.contains(&message_id) {
            self.started.push(message_id.clone());
        }
        self.open = Some(message_id);
        line
    }

    /// Ends the line of the message that is open.
    fn close(&mut self) -> String {
        if self.open.take().is_some() { "\n".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::RunId;
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    fn event(kind: &str, data: &Value) -> RunEvent {
        RunEvent {
            run_id: RunId::new(),
            kind: kind.to_owned(),
            data: to_raw_value(data).unwrap(),
            sequence: 1,
            timestamp: 1_700_000_000_123,
            source: agent_host_protocol::EventSource::Runner,
            metadata: None,
        }
    }

    fn say(id: &str, text: &str) -> RunEvent {
        event("message.delta", &json!({ "message_id": id, "chunk": { "role": "assistant", "content": text } }))
    }

    fn whole(id: &str, text: &str) -> RunEvent {
        event("message.completed", &json!({ "message_id": id, "message": { "role": "assistant", "content": text } }))
    }

    fn text(events: &[RunEvent]) -> String {
        let mut running = RunningText::default();
        events.iter().filter_map(|event| running.add(event)).collect()
    }

    #[test]
    fn deltas_come_as_they_are_and_their_message_only_ends_the_line() {
        let stop = event("run.completed", &json!({ "finish_reason": "stop" }));
        assert_eq!(text(&[say("a", "hel"), say("a", "lo"), whole("a", "hello"), stop.clone()]), "hello\n");
        assert_eq!(text(&[whole("a", "hello"), stop.clone()]), "hello\n");
        assert_eq!(text(&[say("a", "one"), say("b", "two"), whole("a", "one"), whole("b", "two"), stop.clone()]), "one\ntwo\n");
        assert_eq!(text(&[stop]), "");
    }

    #[test]
    fn a_message_that_only_the_completion_carries_is_shown() {
        let stop =
            event("run.completed", &json!({ "finish_reason": "stop", "message": { "role": "assistant", "content": "bye" } }));
        assert_eq!(text(&[stop]), "bye\n");
        assert_eq!(text(&[say("a", "half a"), event("run.failed", &json!({ "code": "c", "message": "m" }))]), "half a\n");
        assert_eq!(text(&[event("message.delta", &json!(7)), event("x.y", &json!(1))]), "");
    }

    #[test]
    fn an_event_is_one_line() {
        let lines: String = [
            say("a", "two\nlines"),
            event("run.failed", &json!({ "code": "runner.trapped", "message": "a\u{1b}[2J" })),
            event(
                "run.failed",
                &json!({ "code": "runner.trapped", "message": "m", "details": { "log": "thread 't' panicked at src/lib.rs:1:2:\nno key" } }),
            ),
            event("x.y", &json!({ "k": 1 })),
            event("action.requested", &json!({ "action_id": "r.1", "kind": "question", "title": "Sure?" })),
            event("action.requested", &json!({ "action_id": "r.2", "action": "issue.close", "target": { "n": 4 } })),
            event("action.answered", &json!({ "action_id": "r.2", "decision": "deny", "by": "alice", "reason": "no" })),
            event("action.resolved", &json!({ "action_id": "r.2", "outcome": "denied", "reason": "no" })),
            event("action.resolved", &json!({ "action_id": "r.3", "outcome": "failed", "error": { "message": "refused" } })),
            event("steering.received", &json!({ "event_id": "e1", "run_id": "r2" })),
            event("run.child.started", &json!({ "run_id": "r3", "runner_id": "plugin:a/b/c", "objective": "count" })),
            event("run.child.ended", &json!({ "run_id": "r3", "status": "completed" })),
        ]
        .iter()
        .map(line)
        .collect();
        insta::assert_snapshot!(lines, @r#"
        1  2023-11-14T22:13:20.123Z  message.delta          "two\nlines"
        1  2023-11-14T22:13:20.123Z  run.failed             runner.trapped: a [2J
        1  2023-11-14T22:13:20.123Z  run.failed             runner.trapped: panicked at src/lib.rs:1:2: no key
        1  2023-11-14T22:13:20.123Z  x.y                    {"k":1}
        1  2023-11-14T22:13:20.123Z  action.requested       r.1  Sure?
        1  2023-11-14T22:13:20.123Z  action.requested       r.2  issue.close {"n":4}
        1  2023-11-14T22:13:20.123Z  action.answered        r.2  deny by alice: no
        1  2023-11-14T22:13:20.123Z  action.resolved        r.2  denied: no
        1  2023-11-14T22:13:20.123Z  action.resolved        r.3  failed: refused
        1  2023-11-14T22:13:20.123Z  steering.received      e1  would have been run r2
        1  2023-11-14T22:13:20.123Z  run.child.started      r3  plugin:a/b/c: count
        1  2023-11-14T22:13:20.123Z  run.child.ended        r3  completed
        "#);
    }
}
