//! For any record in any order, the projection is a legal stream.

use agent_host_protocol::result::host_data;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::agui::{
    event::{Outcome, PROTOCOL_VERSION},
    fold::View,
    verify::{Verifier, Violation},
};

/// Few, so that they meet.
fn id() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a",
        "b",
        "a:2",
        "a:reasoning",
        "2:a",
        "a:call",
        "a:result",
        "",
        "\n",
        "a:activity",
        "é\u{7f}",
        "/a",
        "~2",
    ])
    .prop_map(str::to_owned)
}

fn action() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["r.1", "r.2", "r.1099511627777"]).prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "x", "xy", "xyz", "no"]).prop_map(str::to_owned)
}

fn role() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["assistant", "assistant", "assistant", "user", "system", "developer", "tool"])
}

fn content() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(Value::from),
        Just(json!([{ "type": "artifact", "artifact": { "artifact_id": "x", "media_type": "image/png" } }, { "type": "odd" }])),
        Just(Value::Null),
    ]
}

/// Data of no form at all.
fn noise() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(1),
        json!([]),
        json!({}),
        json!({ "name": 1, "message_id": {}, "tool_call_id": [] }),
    ])
}

fn message() -> impl Strategy<Value = Value> {
    (role(), content(), prop::option::of(id()), prop::collection::vec(id(), 0..3)).prop_map(|(role, content, answers, calls)| {
        let calls = calls.into_iter().map(|id| json!({ "call_id": id, "tool_name": "t", "parameters": {} }));
        json!({ "role": role, "content": content, "tool_call_id": answers, "tool_calls": calls.collect::<Vec<_>>() })
    })
}

fn event() -> impl Strategy<Value = (String, Value)> {
    let chunk = || {
        (id(), role(), text())
            .prop_map(|(id, role, text)| json!({ "message_id": id, "chunk": { "role": role, "content": text } }))
    };
    let of = |kind: &'static str, data: BoxedStrategy<Value>| data.prop_map(move |data| (kind.to_owned(), data)).boxed();
    let spoken = || {
        vec![
            of("message.delta", chunk().boxed()),
            of(
                "message.completed",
                (id(), message()).prop_map(|(id, message)| json!({ "message_id": id, "message": message })).boxed(),
            ),
            of("reasoning.delta", chunk().boxed()),
            of(
                "tool.call.started",
                (id(), prop::option::of(id()))
                    .prop_map(|(id, of)| json!({ "tool_call_id": id, "tool_name": id, "parameters": {}, "message_id": of }))
                    .boxed(),
            ),
            of(
                "tool.call.completed",
                (id(), content()).prop_map(|(id, result)| json!({ "tool_call_id": id, "result": result })).boxed(),
            ),
            of("tool.call.completed", id().prop_map(|id| json!({ "tool_call_id": id, "tool_name": "t", "error": "e" })).boxed()),
            of("tool.call.started", id().prop_map(|id| json!({ "tool_call_id": id, "parameters_bytes": 9 })).boxed()),
            of(
                "tool.call.arguments",
                (id(), any::<bool>()).prop_map(|(id, last)| json!({ "tool_call_id": id, "delta": "d", "last": last })).boxed(),
            ),
            of("tool.call.progress", id().prop_map(|id| json!({ "tool_call_id": id, "progress": 1 })).boxed()),
            of("state.updated", id().prop_map(|key| json!({ "scope": "conversation", "key": key, "value": 1 })).boxed()),
        ]
    };
    let shown = vec![
        of("ui.step.started", id().prop_map(|name| json!({ "name": name })).boxed()),
        of("ui.step.finished", id().prop_map(|name| json!({ "name": name })).boxed()),
        of("ui.activity", id().prop_map(|id| json!({ "activity_id": id, "activity_type": "t", "content": {} })).boxed()),
        of(
            "ui.activity.delta",
            id().prop_map(|id| json!({ "activity_id": id, "activity_type": "t", "patch": [{ "op": "remove", "path": id }] }))
                .boxed(),
        ),
        of(
            "ui.subagent.started",
            (id(), id()).prop_map(|(id, of)| json!({ "subagent_id": id, "name": id, "parent_tool_call_id": of })).boxed(),
        ),
        of("ui.subagent.finished", id().prop_map(|id| json!({ "subagent_id": id })).boxed()),
        of("ui.subagent.failed", id().prop_map(|id| json!({ "subagent_id": id, "message": "m" })).boxed()),
        of("ui.schema", id().prop_map(|id| json!({ "message_id": id, "schema": {} })).boxed()),
        of("ui.schema", id().prop_map(|id| json!({ "tool_call_id": id, "schema": {} })).boxed()),
        of("ui.encrypted", id().prop_map(|id| json!({ "message_id": id, "encrypted_value": "e" })).boxed()),
        of("ui.encrypted", id().prop_map(|id| json!({ "tool_call_id": id, "encrypted_value": "e" })).boxed()),
        of("run.child.started", id().prop_map(|id| json!({ "run_id": id, "runner_id": "plugin:a/b/c" })).boxed()),
        of("run.child.ended", id().prop_map(|id| json!({ "run_id": id, "status": "failed" })).boxed()),
        of("acme.other", noise().boxed()),
    ];
    let kinds = ["question", "platform_action", "client_tool", "client_tool", "effect_in_doubt"];
    let asked = vec![
        of(
            "action.requested",
            (action(), prop::sample::select(kinds.to_vec()), id())
                .prop_map(
                    |(action, kind, call)| json!({ "action_id": action, "kind": kind, "tool_call_id": call, "tool_name": "t" }),
                )
                .boxed(),
        ),
        of(
            "action.answered",
            (action(), content())
                .prop_map(|(id, spoken)| json!({ "action_id": id, "decision": "submit", "answer": spoken }))
                .boxed(),
        ),
        of("action.answered", action().prop_map(|id| json!({ "action_id": id, "decision": "decline" })).boxed()),
        of("action.resolved", action().prop_map(|id| json!({ "action_id": id, "outcome": "expired" })).boxed()),
        of("run.status", Just(json!({ "status": "waiting", "reason": "question" })).boxed()),
        of("run.status", (1..4_u32).prop_map(|attempt| json!({ "status": "queued", "attempt": attempt })).boxed()),
        of("model.call.completed", Just(json!({ "model_id": "m", "usage": { "input": u64::MAX, "output": 1 } })).boxed()),
    ];
    let kinds: Vec<String> =
        ResultKind::ALL.iter().filter(|kind| !kind.is_terminal()).map(|kind| kind.as_str().to_owned()).collect();
    let malformed = (prop::sample::select(kinds), noise()).boxed();
    let any = |all: Vec<BoxedStrategy<(String, Value)>>| prop::strategy::Union::new(all).boxed();
    prop_oneof![8 => any(spoken()), 4 => any(shown), 4 => any(asked), 1 => malformed]
}

fn last() -> impl Strategy<Value = (String, Value)> {
    prop_oneof![
        message().prop_map(|message| ("run.completed".to_owned(), json!({ "finish_reason": "stop", "message": message }))),
        Just(("run.completed".to_owned(), json!({ "finish_reason": "stop" }))),
        Just(("run.failed".to_owned(), json!({ "code": "cancelled", "message": "m" }))),
        Just(("run.failed".to_owned(), json!({ "code": "x", "message": "m" }))),
    ]
}

prop_compose! {
    fn record()(
        run in any::<[u8; 16]>(),
        events in prop::collection::vec(event(), 0..60),
        last in prop::option::weighted(0.9, last()),
    ) -> Vec<RunEvent> {
        let run_id = RunId::from_bytes(run);
        let event = |((kind, data), sequence): ((String, Value), u64)| RunEvent {
            run_id, kind, data: host_data(&data), sequence, timestamp: sequence,
            source: agent_host_protocol::EventSource::Host, metadata: None,
        };
        events.into_iter().chain(last).zip(1..).map(event).collect()
    }
}

fn project(record: &[RunEvent], outside: bool) -> Vec<Step> {
    let Some(first) = record.first() else { return Vec::new() };
    let mut projector = Projector::new(first.run_id, outside);
    record.iter().flat_map(|event| projector.push(event)).collect()
}

fn start(number: usize) -> Event {
    let (thread_id, run_id) = ("t".to_owned(), number.to_string());
    Kind::RunStarted { thread_id, run_id, protocol_version: Some(PROTOCOL_VERSION), parent_run_id: None }.into()
}

fn finish(number: usize, end: End) -> Event {
    let (thread_id, run_id) = ("t".to_owned(), number.to_string());
    let (outcome, usage) = match end {
        End::Success { pending, usage, .. } => (Outcome::Success { pending_tool_call_ids: pending }, usage),
        End::Interrupt { interrupts, usage } => (Outcome::Interrupt { interrupts }, usage),
        End::Cancelled { usage } => (Outcome::Cancelled, usage),
        End::Error { message, code, usage } => return Kind::RunError { message, code, usage }.into(),
    };
    Kind::RunFinished { thread_id, run_id, result: None, outcome: Some(outcome), usage }.into()
}

/// The one case that no stream can express: a tool of the host is at work while the client is asked to execute a call. The
/// client's call is named as pending; the host's call is not, and gets its result in the next run.
fn is_at_work(event: &Event, violation: &Violation) -> bool {
    let waits =
        |outcome: &Outcome| matches!(outcome, Outcome::Success { pending_tool_call_ids } if !pending_tool_call_ids.is_empty());
    matches!(violation, Violation::Unanswered { .. })
        && matches!(&event.kind, Kind::RunFinished { outcome: Some(outcome), .. } if waits(outcome))
}

fn admit(verifier: &mut Verifier, event: &Event) -> Result<(), TestCaseError> {
    match verifier.admit(event) {
        Err(violation) if !is_at_work(event, &violation) => Err(TestCaseError::fail(format!("{violation}: {event:?}"))),
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// As one stream of several runs, and with each segment as a stream of its own.
    #[test]
    fn any_record_is_a_legal_stream(record in record(), outside in any::<bool>()) {
        let mut whole = Verifier::new();
        let mut one = Verifier::new();
        let mut number = 0;
        for verifier in [&mut whole, &mut one] {
            // A client knows its thread, and that is empty.
            verifier.know(&[]);
            admit(verifier, &start(number))?;
        }
        let mut view = View::default();
        for step in project(&record, outside) {
            prop_assert!(!one.is_over());
            match step {
                Step::Event(StampedEvent { event, .. }) => {
                    view.apply(&event);
                    admit(&mut whole, &event)?;
                    admit(&mut one, &event)?;
                }
                Step::Past(StampedEvent { event, .. }) => {
                    view.apply(&event);
                    whole.know(&view.messages);
                    one.know(&view.messages);
                }
                Step::Correct(message, _) => {
                    let id = message.id.clone();
                    prop_assert!(view.messages.iter().any(|message| message.id == id));
                    view.correct(message);
                    let snapshot = Event::from(Kind::MessagesSnapshot { messages: view.messages.clone() });
                    admit(&mut whole, &snapshot)?;
                    admit(&mut one, &snapshot)?;
                }
                Step::End(end, _) => {
                    let end = finish(number, end);
                    admit(&mut whole, &end)?;
                    admit(&mut one, &end)?;
                    number += 1;
                    one = Verifier::new();
                    one.know(&view.messages);
                    admit(&mut one, &start(number))?;
                    if !matches!(end.kind, Kind::RunError { .. }) {
                        prop_assert!(whole.closing().is_empty());
                    }
                    admit(&mut whole, &start(number))?;
                }
            }
        }
        let ended = record.last().is_some_and(RunEvent::is_terminal);
        prop_assert!(!ended || one.closing().is_empty());
        prop_assert!(!ended || view.unanswered_calls().is_empty(), "{:?}", view.unanswered_calls());
    }

    /// A client that joins late receives the same events after that position as a client from the beginning.
    #[test]
    fn a_projection_does_not_depend_on_where_it_is_cut(record in record(), outside in any::<bool>(), cut in 0..60_usize) {
        let whole = project(&record, outside);
        prop_assert_eq!(&project(&record, outside), &whole);
        prop_assert!(whole.windows(2).all(|pair| pair[0].at().cursor < pair[1].at().cursor));
        let cut = cut.min(record.len());
        let before = project(&record[..cut], outside);
        prop_assert_eq!(&whole[..before.len()], &before);
        let after = whole[before.len()..].iter();
        let sequence = cut as u64;
        prop_assert!(after.clone().all(|step| step.at().cursor.sequence > sequence) && before.iter().all(|step| step.at().cursor.sequence <= sequence));
    }

    /// Ids are such as clients may send back, and say whose they are.
    #[test]
    fn ids_come_back(record in record()) {
        let Some(first) = record.first() else { return Ok(()) };
        let mut view = View::default();
        for step in project(&record, false) {
            if let Step::Event(stamped) = step {
                view.apply(&stamped.event);
            }
        }
        for message in &view.messages {
            prop_assert!(message.id.len() <= 256 && !message.id.chars().any(char::is_control));
            prop_assert_eq!(run_of(&message.id), Some(first.run_id));
        }
        let mut ids: Vec<_> = view.messages.iter().map(|message| &message.id).collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), count);
    }
}
