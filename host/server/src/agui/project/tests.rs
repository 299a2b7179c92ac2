mod asks;
mod children;
mod ui;

use agent_host_protocol::{Event as HostEvent, EventId, event::Envelope, result::host_data};
use serde_json::json;

use super::*;
use crate::agui::event::{Content, MessageBody, Part, Source, TextRole};

/// Projects a record of these events, and shows the steps: ids without the run, one line for each step.
fn project(outside: bool, events: &[(&str, Value)]) -> Vec<String> {
    let run = RunId::new();
    let mut projector = Projector::new(run, outside);
    let prefix = format!("{run}:");
    let steps = events.iter().zip(1..).flat_map(|((kind, data), sequence)| {
        let data = host_data(&serde_json::from_str(&data.to_string().replace("RUN", &run.to_string())).unwrap());
        projector.push(&RunEvent {
            run_id: run,
            kind: (*kind).to_owned(),
            data,
            sequence,
            timestamp: sequence,
            source: agent_host_protocol::EventSource::Host,
            metadata: None,
        })
    });
    steps.map(|step| outline_of(&step).replace(&prefix, "").replace(&run.to_string(), "RUN")).collect()
}

fn outline_of(step: &Step) -> String {
    match step {
        Step::Event(stamped) => event(&stamped.event.kind),
        Step::Past(stamped) => format!("past {}", event(&stamped.event.kind)),
        Step::Correct(message, _) => {
            format!("correct {} {}", message.id, serde_json::to_value(message).unwrap()["content"].as_str().unwrap())
        }
        Step::End(end, _) => match end {
            End::Success { result, pending, .. } => match result {
                Some(result) => format!("SUCCESS {result}"),
                None => format!("SUCCESS pending {}", pending.join(" ")),
            },
            End::Interrupt { interrupts, .. } => {
                let outline_of = interrupts.iter().map(|asked| {
                    let call = asked.tool_call_id.as_ref().map(|call| format!("({call})")).unwrap_or_default();
                    format!("{}={}{call}", asked.id, asked.reason)
                });
                format!("INTERRUPT {}", outline_of.collect::<Vec<_>>().join(" "))
            }
            End::Cancelled { .. } => "CANCELLED".to_owned(),
            End::Error { message, code, .. } => format!("ERROR {} {message}", code.as_deref().unwrap_or_default()),
        },
    }
}

fn event(kind: &Kind) -> String {
    match kind {
        Kind::TextMessageStart { message_id, role: TextRole::Assistant, .. } => format!("t[{message_id}"),
        Kind::TextMessageStart { message_id, role, .. } => format!("t[{message_id} {role:?}"),
        Kind::TextMessageContent { message_id, delta } => format!("t.{message_id} {delta}"),
        Kind::TextMessageEnd { message_id } => format!("t]{message_id}"),
        Kind::ReasoningStart { message_id } => format!("R[{message_id}"),
        Kind::ReasoningMessageStart { message_id, .. } => format!("r[{message_id}"),
        Kind::ReasoningMessageContent { message_id, delta } => format!("r.{message_id} {delta}"),
        Kind::ReasoningMessageEnd { message_id } => format!("r]{message_id}"),
        Kind::ReasoningEnd { message_id } => format!("R]{message_id}"),
        Kind::ToolCallStart { tool_call_id, tool_call_name, parent_message_id } => {
            let parent = parent_message_id.as_ref().map(|parent| format!("<{parent}")).unwrap_or_default();
            format!("c[{tool_call_id}{parent} {tool_call_name}")
        }
        Kind::ToolCallArgs { tool_call_id, delta } => format!("c.{tool_call_id} {delta}"),
        Kind::ToolCallEnd { tool_call_id } => format!("c]{tool_call_id}"),
        Kind::ToolCallResult { message_id, tool_call_id, content: Content::Text(text), .. } => {
            let beside = message_id.strip_prefix(tool_call_id.as_str()).filter(|rest| *rest == ":result");
            let named = if beside.is_some() { String::new() } else { format!("({message_id})") };
            format!("x.{tool_call_id}{named} {text}")
        }
        Kind::StepStarted { step_name } => format!("s[{step_name}"),
        Kind::StepFinished { step_name } => format!("s]{step_name}"),
        Kind::SubagentStarted { subagent_run_id, name, description, parent_tool_call_id, .. } => {
            format!("g[{subagent_run_id} {name} {description:?} {parent_tool_call_id:?}")
        }
        Kind::SubagentFinished { subagent_run_id, outcome: Some(_), .. } => format!("g~{subagent_run_id}"),
        Kind::SubagentFinished { subagent_run_id, .. } => format!("g]{subagent_run_id}"),
        Kind::SubagentError { subagent_run_id, code, .. } => format!("g!{subagent_run_id} {code:?}"),
        Kind::Custom { name, value } => format!("{name} {value}"),
        other => serde_json::to_string(other).unwrap(),
    }
}

fn delta(id: &str, text: &str) -> (&'static str, Value) {
    ("message.delta", json!({ "message_id": id, "chunk": { "role": "assistant", "content": text } }))
}

fn thought(id: &str, text: &str) -> (&'static str, Value) {
    ("reasoning.delta", json!({ "message_id": id, "chunk": { "role": "assistant", "content": text } }))
}

fn completed(id: &str, text: &str) -> (&'static str, Value) {
    ("message.completed", json!({ "message_id": id, "message": { "role": "assistant", "content": text } }))
}

fn started(id: &str) -> (&'static str, Value) {
    ("tool.call.started", json!({ "tool_call_id": id, "tool_name": "look", "parameters": { "at": 1.0 } }))
}

fn ended(id: &str, result: &str) -> (&'static str, Value) {
    ("tool.call.completed", json!({ "tool_call_id": id, "tool_name": "look", "duration_ms": 3, "result": result }))
}

fn asked(number: u32) -> (&'static str, Value) {
    ("action.requested", json!({ "action_id": format!("RUN.{number}"), "kind": "question", "question": "form", "title": "?" }))
}

fn called(number: u32, id: &str) -> (&'static str, Value) {
    let data = json!({ "action_id": format!("RUN.{number}"), "kind": "client_tool", "tool_call_id": id, "tool_name": "look",
        "parameters": {}, "decisions": ["submit", "decline"], "expires_at": 1 });
    ("action.requested", data)
}

fn answered(number: u32, answer: Value) -> (&'static str, Value) {
    ("action.answered", json!({ "action_id": format!("RUN.{number}"), "decision": "submit", "answer": answer, "at": 1 }))
}

fn resolved(number: u32, outcome: &str) -> (&'static str, Value) {
    ("action.resolved", json!({ "action_id": format!("RUN.{number}"), "outcome": outcome }))
}

fn waiting(reason: &str) -> (&'static str, Value) {
    ("run.status", json!({ "status": "waiting", "reason": reason }))
}

fn done() -> (&'static str, Value) {
    ("run.completed", json!({ "finish_reason": "stop" }))
}

const SUCCESS: &str = r#"SUCCESS {"finishReason":"stop"}"#;

#[track_caller]
fn check(events: &[(&str, Value)], expect: &[&str]) {
    assert_eq!(project(false, events), expect);
}

#[test]
fn a_streamed_message_is_a_text_with_the_rest_at_its_end() {
    check(
        &[delta("m", "hel"), delta("m", ""), delta("m", "lo"), completed("m", "hello you"), done()],
        &["t[m", "t.m hel", "t.m lo", "t.m  you", "t]m", SUCCESS],
    );
    check(&[completed("m", "hello"), done()], &["t[m", "t.m hello", "t]m", SUCCESS]);
    check(&[delta("m", "hello"), completed("m", "hello"), done()], &["t[m", "t.m hello", "t]m", SUCCESS]);
}

#[test]
fn a_message_that_says_otherwise_than_was_streamed_is_corrected() {
    check(&[delta("m", "hellp"), completed("m", "hello"), done()], &["t[m", "t.m hellp", "t]m", "correct m hello", SUCCESS]);
}

#[test]
fn a_name_that_is_used_again_is_another_message() {
    check(
        &[completed("m", "a"), delta("m", "b"), completed("m", "bc"), completed("m", "bc"), done()],
        &["t[m", "t.m a", "t]m", "t[m:2", "t.m:2 b", "t.m:2 c", "t]m:2", "t[m:3", "t.m:3 bc", "t]m:3", SUCCESS],
    );
}

#[test]
fn messages_interleave_and_what_is_left_open_ends_with_the_run() {
    check(
        &[delta("b", "1"), delta("a", "2"), delta("b", "3"), done()],
        &["t[b", "t.b 1", "t[a", "t.a 2", "t.b 3", "t]b", "t]a", SUCCESS],
    );
}

#[test]
fn roles_are_those_that_texts_have() {
    let spoken = |role: &str| ("message.delta", json!({ "message_id": role, "chunk": { "role": role, "content": "x" } }));
    check(
        &[spoken("user"), spoken("tool"), spoken("system"), done()],
        &["t[user User", "t.user x", "t[system System", "t.system x", "t]user", "t]system", SUCCESS],
    );
}

#[test]
fn the_last_message_is_said_once() {
    let end =
        |text: &str| ("run.completed", json!({ "finish_reason": "stop", "message": { "role": "assistant", "content": text } }));
    check(&[end("hi")], &["t[final", "t.final hi", "t]final", SUCCESS]);
    check(&[completed("m", "hi"), end("hi")], &["t[m", "t.m hi", "t]m", SUCCESS]);
    check(&[delta("m", "h"), end("hi")], &["t[m", "t.m h", "t.m i", "t]m", SUCCESS]);
    check(&[delta("m", "no"), end("hi")], &["t[m", "t.m no", "t[final", "t.final hi", "t]final", "t]m", SUCCESS]);
    check(
        &[delta("m", "h"), asked(1), waiting("question"), resolved(1, "declined"), end("hi")],
        &["t[m", "t.m h", "t]m", "INTERRUPT RUN.1=input_required", "t[m", "t.m i", "t]m", SUCCESS],
    );
    check(&[end("")], &[SUCCESS]);
}

#[test]
fn artifacts_of_a_message_stand_beside_it() {
    let content = json!([{ "type": "text", "text": "see" }, { "type": "artifact", "artifact": { "artifact_id": "a1", "media_type": "image/png" } },
        { "type": "sticker", "id": 1 }]);
    check(
        &[("message.completed", json!({ "message_id": "m", "message": { "role": "assistant", "content": content } })), done()],
        &[
            "t[m",
            "t.m see",
            "t]m",
            r#"agent-host.artifact {"artifactId":"a1","mediaType":"image/png","messageId":"m","url":"/api/v1/artifacts/a1"}"#,
            r#"agent-host.content {"messageId":"m","part":{"id":1,"type":"sticker"}}"#,
            SUCCESS,
        ],
    );
}

#[test]
fn reasoning_ends_with_the_next_thing_of_another_kind() {
    check(
        &[
            thought("m", ""),
            thought("m", "a"),
            ("model.call.started", json!({})),
            thought("m", "b"),
            delta("m", "x"),
            thought("m", "c"),
            thought("n", "d"),
            done(),
        ],
        &[
            "R[m:reasoning",
            "r[m:reasoning",
            "r.m:reasoning a",
            "r.m:reasoning b",
            "r]m:reasoning",
            "R]m:reasoning",
            "t[m",
            "t.m x",
            "R[m:reasoning:2",
            "r[m:reasoning:2",
            "r.m:reasoning:2 c",
            "r]m:reasoning:2",
            "R]m:reasoning:2",
            "R[n:reasoning",
            "r[n:reasoning",
            "r.n:reasoning d",
            "r]n:reasoning",
            "R]n:reasoning",
            "t]m",
            SUCCESS,
        ],
    );
}

#[test]
fn calls_have_all_their_arguments_and_one_result() {
    check(
        &[started("a"), started("b"), started("a"), ended("b", "two"), ended("a", "one"), ended("a", "again"), done()],
        &["c[a look", r#"c.a {"at":1.0}"#, "c]a", "c[b look", r#"c.b {"at":1.0}"#, "c]b", "x.b two", "x.a one", SUCCESS],
    );
    // Models name their calls alike, turn by turn.
    check(
        &[started("a"), ended("a", "one"), started("a"), ended("a", "two"), done()],
        &["c[a look", r#"c.a {"at":1.0}"#, "c]a", "x.a one", "c[a:2 look", r#"c.a:2 {"at":1.0}"#, "c]a:2", "x.a:2 two", SUCCESS],
    );
    let failed = json!({ "tool_call_id": "a", "tool_name": "look", "error": "no such place" });
    check(&[("tool.call.completed", failed), done()], &["c[a look", "c.a {}", "c]a", "x.a no such place", SUCCESS]);
    check(
        &[started("a"), done()],
        &["c[a look", r#"c.a {"at":1.0}"#, "c]a", "x.a the run ended before the call had a result", SUCCESS],
    );
}

#[test]
fn a_call_belongs_to_the_message_that_asks_for_it() {
    let calls = |text: &str| {
        let call = json!({ "call_id": "a", "tool_name": "look", "parameters": { "at": 1 } });
        let message = json!({ "role": "assistant", "content": text, "tool_calls": [call] });
        ("message.completed", json!({ "message_id": "m", "message": message }))
    };
    let of = |message: &str| {
        let data = json!({ "tool_call_id": "b", "tool_name": "look", "parameters": {}, "message_id": message });
        ("tool.call.started", data)
    };
    let result = json!({ "message_id": "r", "message": { "role": "tool", "content": "here", "tool_call_id": "a" } });
    check(
        &[calls(""), started("a"), ended("a", "x"), of("m"), of("b"), done()],
        &[
            "c[a<m look",
            r#"c.a {"at":1.0}"#,
            "c]a",
            "x.a x",
            "c[b<m look",
            "c.b {}",
            "c]b",
            "x.b the run ended before the call had a result",
            SUCCESS,
        ],
    );
    check(
        &[calls("wait"), ("message.completed", result.clone()), ("message.completed", result), done()],
        &["t[m", "t.m wait", "t]m", "c[a<m look", r#"c.a {"at":1}"#, "c]a", "x.a here", SUCCESS],
    );
    // A later message has the id that the call named.
    check(
        &[of("m"), completed("m", "hi"), done()],
        &["c[b<m look", "c.b {}", "c]b", "t[m", "t.m hi", "t]m", "x.b the run ended before the call had a result", SUCCESS],
    );
    // Clients make a message of the id of a call that belongs to none.
    check(
        &[completed("a", "hi"), started("a"), completed("a", "ho"), done()],
        &[
            "t[a",
            "t.a hi",
            "t]a",
            "c[a<a:call look",
            r#"c.a {"at":1.0}"#,
            "c]a",
            "t[a:2",
            "t.a:2 ho",
            "t]a:2",
            "x.a the run ended before the call had a result",
            SUCCESS,
        ],
    );
}

#[test]
fn results_of_tools_are_texts_or_parts() {
    let artifact = json!({ "artifact_id": "a1", "media_type": "image/png" });
    let result = json!([{ "type": "text", "text": "see" }, { "type": "artifact", "artifact": artifact }]);
    let source = Source::Url { value: "/api/v1/artifacts/a1".to_owned(), mime_type: Some("image/png".to_owned()) };
    assert_eq!(
        content::content(result),
        Content::Parts(vec![Part::Text { text: "see".to_owned() }, Part::Image { source: source.clone() }])
    );
    let text = |text: &str| Content::Text(text.to_owned());
    assert_eq!(content::content(json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }])), text("ab"));
    assert_eq!(content::content(json!([{ "type": "x", "y": 1 }])), text(r#"{"type":"x","y":1}"#));
    assert_eq!(content::content(json!({ "a": 1 })), text(r#"{"a":1}"#));
    assert_eq!(content::content(Value::Null), text(""));
    let of_client =
        json!([{ "type": "image", "source": { "type": "url", "value": "/api/v1/artifacts/a1", "mimeType": "image/png" } }]);
    assert_eq!(content::content(of_client), Content::Parts(vec![Part::Image { source }]));
}

#[test]
fn progress_and_artifacts_are_events_of_the_host() {
    check(
        &[
            started("a"),
            (
                "tool.call.progress",
                json!({ "tool_call_id": "a", "tool_name": "look", "progress": 1.0, "total": 2.0, "message": "half" }),
            ),
            ("tool.call.progress", json!({ "tool_call_id": "zz", "progress": 1.0 })),
            (
                "artifact.created",
                json!({ "artifact": { "artifact_id": "x", "media_type": "text/plain", "size": 3, "name": "n" } }),
            ),
            ended("a", ""),
            done(),
        ],
        &[
            "c[a look",
            r#"c.a {"at":1.0}"#,
            "c]a",
            r#"agent-host.tool.progress {"message":"half","progress":1.0,"toolCallId":"a","total":2.0}"#,
            r#"agent-host.artifact {"artifactId":"x","mediaType":"text/plain","name":"n","size":3,"url":"/api/v1/artifacts/x"}"#,
            "x.a ",
            SUCCESS,
        ],
    );
}

#[test]
fn shared_state_is_patched_and_other_state_is_not_shown() {
    check(
        &[
            ("state.updated", json!({ "scope": "conversation", "key": "a/b~c", "value": [1] })),
            ("state.updated", json!({ "scope": "actor", "key": "k", "value": 1 })),
            done(),
        ],
        &[r#"{"type":"STATE_DELTA","delta":[{"op":"add","path":"/a~1b~0c","value":[1]}]}"#, SUCCESS],
    );
}

#[test]
fn facts_of_the_host_are_not_shown_and_unknown_results_are() {
    check(
        &[
            ("permission.denied", json!({})),
            ("limit.reached", json!({})),
            ("steering.received", json!({})),
            ("run.status", json!({ "status": "running", "reason": "woken" })),
            ("acme.score", json!({ "points": 3 })),
            done(),
        ],
        &[r#"acme.score {"points":3}"#, SUCCESS],
    );
}

#[test]
fn another_attempt_has_other_ids() {
    let again = ("run.status", json!({ "status": "running", "reason": "retried", "attempt": 2 }));
    check(
        &[
            delta("m", "hal"),
            started("a"),
            ("ui.step.started", json!({ "name": "s" })),
            ("run.child.started", json!({ "run_id": "c1", "runner_id": "plugin:a/b/helper", "objective": "" })),
            asked(1),
            again.clone(),
            again,
            completed("m", "whole"),
            started("a"),
            ended("a", "x"),
            waiting("question"),
            done(),
        ],
        &[
            "t[m",
            "t.m hal",
            "c[a look",
            r#"c.a {"at":1.0}"#,
            "c]a",
            "s[s",
            "g[c1 helper None None",
            "t]m",
            "x.a another attempt of the run began before the call had a result",
            "s]s",
            "g!c1 None",
            "t[2:m",
            "t.2:m whole",
            "t]2:m",
            "c[2:a look",
            r#"c.2:a {"at":1.0}"#,
            "c]2:a",
            "x.2:a x",
            SUCCESS,
        ],
    );
}

#[test]
fn runs_end_in_the_ways_of_the_protocol() {
    let failed = |code: &str| ("run.failed", json!({ "code": code, "message": "m", "retryable": false }));
    check(&[failed("cancelled"), delta("m", "x")], &["CANCELLED"]);
    check(&[delta("m", "x"), failed("deadline_exceeded")], &["t[m", "t.m x", "t]m", "ERROR deadline_exceeded m"]);
    check(&[("run.failed", Value::Null)], &["ERROR  the run failed"]);
    check(&[("run.completed", Value::Null)], &["SUCCESS pending "]);
    check(
        &[("run.completed", json!({ "finish_reason": "steered", "metadata": { "steered_into": "r" } }))],
        &[r#"SUCCESS {"finishReason":"steered","metadata":{"steered_into":"r"}}"#],
    );
}

#[test]
fn repeated_events_give_no_step() {
    let run = RunId::new();
    let mut projector = Projector::new(run, false);
    let (kind, data) = delta("m", "x");
    let event = RunEvent {
        run_id: run,
        kind: kind.to_owned(),
        data: host_data(&data),
        sequence: 4,
        timestamp: 7,
        source: agent_host_protocol::EventSource::Host,
        metadata: None,
    };
    let steps = projector.push(&event);
    let at = [Cursor { sequence: 4, part: 0 }, Cursor { sequence: 4, part: 1 }];
    assert_eq!(steps.iter().map(|step| step.at().cursor).collect::<Vec<_>>(), at);
    assert!(steps.iter().all(|step| matches!(step, Step::Event(stamped) if stamped.event.timestamp == Some(7))));
    assert_eq!(projector.push(&event), []);
    assert_eq!(projector.push(&RunEvent { sequence: 3, ..event }), []);
}

#[test]
fn an_event_that_says_something_is_a_message_of_the_user() {
    let spoken = |data: Value| {
        let envelope: Envelope = serde_json::from_value(data).unwrap();
        user_message(&HostEvent { event_id: EventId::new(), received_at: 1, envelope })
    };
    let artifact = |id: &str, media_type: &str| json!({ "artifact_id": id, "media_type": media_type });
    let message = spoken(json!({
        "event_type": "message.received",
        "data": { "agui": { "message_id": "u1", "name": "Ada" } },
        "input": {
            "text": "look",
            "contents": [{ "type": "artifact", "artifact": artifact("a1", "image/png") }],
            "attachments": [artifact("a2", "application/pdf"), artifact("a3", "audio/wav"), artifact("a4", "video/mp4")],
        },
    }));
    let part = |kind: &str, id: &str, media_type: &str| json!({ "type": kind, "source": { "type": "url", "value": format!("/api/v1/artifacts/{id}"), "mimeType": media_type } });
    assert_eq!(
        serde_json::to_value(message).unwrap(),
        json!({ "id": "u1", "role": "user", "name": "Ada", "content": [
            { "type": "text", "text": "look" },
            part("image", "a1", "image/png"),
            part("document", "a2", "application/pdf"),
            part("audio", "a3", "audio/wav"),
            part("video", "a4", "video/mp4"),
        ] })
    );

    let plain =
        spoken(json!({ "event_type": "message.received", "input": { "text": "hi" }, "data": { "message_id": "platform's" } }))
            .unwrap();
    assert!(plain.id.parse::<EventId>().is_ok(), "{}", plain.id);
    assert_eq!(plain.body, MessageBody::User { content: Content::Text("hi".to_owned()), name: None });
    let beside = spoken(json!({ "event_type": "message.received", "input": { "text": "hi" }, "data": { "message_id": "u2" },
        "delivery": { "surface": "agui" } }));
    assert_eq!(beside.unwrap().id, "u2");
    assert_eq!(spoken(json!({ "event_type": "issue.opened", "input": { "text": "" } })), None);
}
