//! Any record, in any order, gives a legal stream.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use agent_host_protocol::{EventSource, ResultKind, RunEvent, RunId, fact};
use proptest::prelude::*;
use serde_json::{Value, json, value::to_raw_value};

use super::{ChildOutput, Children, Projector, Turn, tests};
use crate::{
    fact::Fact,
    kind::FactType,
    rules,
    safe::{MAX_TEXT_CHARS, is_secret_key},
    thread::ThreadReadModel,
};

/// The faults that a strict reader finds in a stream.
pub(crate) fn faults(facts: &[Fact], first: u64) -> Vec<String> {
    let mut faults = Vec::new();
    let mut ids = HashSet::new();
    let (mut tools, mut actions, mut tasks, mut streams) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let (mut used, mut steps, mut denied) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut terminal, mut submitted, mut has_status) = (false, false, false);
    for (fact, sequence) in facts.iter().zip(first..) {
        let mut fault = |what: &str| faults.push(format!("{what}: {}", serde_json::to_string(fact).unwrap()));
        if fact.sequence != sequence {
            fault("sequence");
        }
        if !ids.insert(fact.event_id.clone()) {
            fault("event id");
        }
        for (name, id) in fact.scope.entries() {
            if fact.text(name) != Some(id) {
                fault("scope id not in the payload");
            }
        }
        if !matches!(fact.text("source"), Some("host" | "runner" | "import")) {
            fault("source");
        }
        if has_secret_key(&Value::Object(fact.payload.clone())) {
            fault("secret key");
        }
        if serde_json::to_string(&fact.payload).unwrap().chars().count() > 32_000 || longest(&fact.payload) > MAX_TEXT_CHARS {
            fault("too large");
        }
        if terminal && fact.kind != FactType::SnapshotUpdated {
            fault("behind the end");
        }
        let of_thread = matches!(fact.kind, FactType::SessionCreated | FactType::ThreadStarted);
        if of_thread != fact.turn_id.is_none() {
            fault("turn id");
        }
        if !of_thread && !submitted && fact.kind != FactType::TurnSubmitted {
            fault("before turn.submitted");
        }
        let call = fact.scope.tool_call_id.clone();
        let action = fact.scope.action_id.clone();
        match fact.kind {
            FactType::TurnSubmitted => submitted = true,
            FactType::RunStatus => has_status = true,
            FactType::ModelDelta => {
                if !has_status {
                    fault("text before a status");
                }
                streams.insert(fact.text("messageId").unwrap().to_owned());
            }
            FactType::ModelCompleted => {
                streams.remove(fact.text("messageId").unwrap());
            }
            FactType::ModelFailed => {
                if fact.payload.get("failureCategory").is_none() {
                    fault("failure without a category");
                }
                if let Some(message) = fact.text("messageId") {
                    streams.remove(message);
                }
            }
            FactType::ToolStarted => {
                let call = call.unwrap();
                if !used.insert(call.clone()) || !steps.insert(fact.scope.step_id.clone().unwrap()) {
                    fault("tool call id used twice");
                }
                tools.insert(call);
            }
            FactType::ToolArgs | FactType::ToolProgress if !tools.contains(&call.clone().unwrap()) => fault("tool not open"),
            FactType::ToolResult | FactType::ToolFailed => {
                let call = call.unwrap();
                if !tools.remove(&call) {
                    fault("end of a tool that is not open");
                }
                if fact.kind == FactType::ToolResult {
                    if denied.contains(&call) {
                        fault("result after a denial");
                    }
                    if actions.values().any(|of| *of == Some(call.clone())) {
                        fault("result before the answer");
                    }
                } else if fact.text("failureCategory").is_none() || fact.text("error").is_none() {
                    fault("failure without a category");
                }
            }
            FactType::PermissionDenied => denied.extend(call),
            FactType::ActionRequired => {
                if actions.insert(action.clone().unwrap(), call).is_some() {
                    fault("action required twice");
                }
                if ["title", "actionType"].iter().any(|name| fact.text(name).is_none_or(str::is_empty)) {
                    fault("action without a title");
                }
            }
            kind if kind.is_action_terminal() && actions.remove(&action.clone().unwrap()).is_none() => {
                fault("end of an action that is not open");
            }
            FactType::SubagentStarted if !tasks.insert(fact.scope.subagent_id.clone().unwrap()) => {
                fault("subagent started twice");
            }
            FactType::SubagentCompleted | FactType::SubagentFailed if !tasks.remove(fact.scope.subagent_id.as_ref().unwrap()) => {
                fault("end of a subagent that is not open");
            }
            kind if kind.is_turn_terminal() => {
                if !tools.is_empty() || !actions.is_empty() || !tasks.is_empty() || !streams.is_empty() {
                    fault("something is open at the end");
                }
                terminal = true;
            }
            _ => {}
        }
    }
    faults
}

fn has_secret_key(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(key, value)| is_secret_key(key) || has_secret_key(value)),
        Value::Array(items) => items.iter().any(has_secret_key),
        _ => false,
    }
}

fn longest(members: &serde_json::Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        match value {
            Value::String(text) => text.chars().count(),
            Value::Array(items) => items.iter().map(of).max().unwrap_or(0),
            Value::Object(members) => longest(members),
            _ => 0,
        }
    }
    members.values().map(of).max().unwrap_or(0)
}

struct Outputs;

impl Children for Outputs {
    fn output(&self, _: RunId) -> ChildOutput {
        let artifact = json!({ "artifact_id": "child-artifact", "media_type": "text/plain", "size": 3 });
        ChildOutput { artifacts: vec![serde_json::from_value(artifact).unwrap()] }
    }
}

const CHILDREN: [&str; 2] = ["01890a5d-ac96-774b-bcce-b302099a8057", "not-a-run"];

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "a:2", "", "\n"]).prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z é]{0,12}",
        1 => Just("Bearer abcdefghijkl".to_owned()),
        1 => Just("é".repeat(MAX_TEXT_CHARS + 5)),
    ]
}

fn data(kind: ResultKind) -> BoxedStrategy<Value> {
    let role = || prop::sample::select(vec!["assistant", "user", "tool", "system"]);
    let action = || prop::sample::select(vec!["x.1", "x.2", "a"]);
    match kind {
        ResultKind::MessageDelta | ResultKind::ReasoningDelta => (name(), role(), text())
            .prop_map(|(id, role, text)| json!({ "message_id": id, "chunk": { "role": role, "content": text } }))
            .boxed(),
        ResultKind::MessageCompleted => (name(), role(), text(), name())
            .prop_map(|(id, role, text, call)| {
                json!({ "message_id": id, "message": { "role": role, "content": text, "tool_call_id": call,
                    "tool_calls": [{ "call_id": call, "tool_name": "t", "parameters": {} }] } })
            })
            .boxed(),
        ResultKind::ToolCallStarted => (name(), text(), prop::option::of(name()))
            .prop_map(|(id, text, message)| {
                json!({ "tool_call_id": id, "tool_name": "t", "parameters": { "q": text, "api_key": "canary" }, "message_id": message })
            })
            .boxed(),
        ResultKind::ToolCallProgress => name().prop_map(|id| json!({ "tool_call_id": id, "progress": 0.5, "message": "m" })).boxed(),
        ResultKind::ToolCallCompleted => (name(), text(), any::<bool>())
            .prop_map(|(id, text, ok)| {
                if ok {
                    json!({ "tool_call_id": id, "tool_name": "t", "result": [{ "type": "text", "text": text },
                        { "type": "artifact", "artifact": { "artifact_id": "x", "media_type": "text/plain" } }, { "type": "odd", "token": 1 }] })
                } else {
                    json!({ "tool_call_id": id, "tool_name": "t", "error": text, "code": "unauthorized" })
                }
            })
            .boxed(),
        ResultKind::ActionRequested => (action(), prop::sample::select(vec!["platform_action", "question", "effect_in_doubt", "client_tool"]), name(), any::<bool>(), prop::sample::select(vec![None, Some(""), Some("message.edit")]))
            .prop_map(|(id, kind, call, allowed, text)| {
                json!({ "action_id": id, "kind": kind, "action": text, "title": text, "tool_call_id": call, "tool_name": "t",
                    "target": { "secret": 1 }, "payload": {}, "decisions": ["approve", "deny"], "expires_at": 5,
                    "policy": if allowed { "allow" } else { "ask" } })
            })
            .boxed(),
        ResultKind::ActionAnswered => (action(), prop::sample::select(vec!["approve", "deny", "submit", "decline", "repeat", "skip"]))
            .prop_map(|(id, decision)| json!({ "action_id": id, "decision": decision, "answer": { "content": "c" }, "at": 3 }))
            .boxed(),
        ResultKind::ActionResolved => {
            (action(), prop::sample::select(vec!["executed", "failed", "denied", "expired", "cancelled", "submitted", "?"]))
                .prop_map(|(id, outcome)| json!({ "action_id": id, "outcome": outcome, "result": { "password": 1 } }))
                .boxed()
        }
        ResultKind::ChildStarted => prop::sample::select(CHILDREN.to_vec())
            .prop_map(|run| json!({ "run_id": run, "objective": "o", "runner_id": "plugin:a/b/c" }))
            .boxed(),
        ResultKind::ChildEnded => (prop::sample::select(CHILDREN.to_vec()), prop::sample::select(vec!["completed", "failed", "cancelled", "timeout"]))
            .prop_map(|(run, status)| json!({ "run_id": run, "status": status }))
            .boxed(),
        ResultKind::ModelCallStarted => name().prop_map(|id| json!({ "model_call_id": id, "model_id": "m", "operation": "invoke" })).boxed(),
        ResultKind::ModelCallCompleted => (name(), 0..4_u8)
            .prop_map(|(id, how)| match how {
                0 => json!({ "model_call_id": id, "model_id": "m", "usage": { "input": 1, "output": 2 }, "cost_micros": 5 }),
                1 => json!({ "model_call_id": id, "model_id": "m", "usage": "unknown" }),
                2 => json!({ "model_call_id": id, "model_id": "m", "error": { "category": "provider_rate_limited", "code": "rate_limited", "message": "m" } }),
                _ => json!({ "model_call_id": id }),
            })
            .boxed(),
        ResultKind::RunStatus => (prop::sample::select(vec!["waiting", "running", "queued"]), prop::option::of(1..4_u32), prop::option::of(1..3_u32))
            .prop_map(|(status, attempt, resumes)| json!({ "status": status, "reason": "r", "attempt": attempt, "resumes": resumes }))
            .boxed(),
        ResultKind::RunCompleted => text()
            .prop_map(|text| json!({ "finish_reason": "stop", "message": { "role": "assistant", "content": text }, "usage": { "input": 1, "output": 1 } }))
            .boxed(),
        ResultKind::RunFailed => prop::sample::select(vec!["cancelled", "runner.trapped", "my.code"])
            .prop_map(|code| json!({ "code": code, "message": "m", "retryable": false }))
            .boxed(),
        ResultKind::StateUpdated => text().prop_map(|text| json!({ "scope": "conversation", "key": "k", "value": { "token": 1, "v": text } })).boxed(),
        ResultKind::PermissionDenied => Just(json!({ "code": "unauthorized", "function": "tools.call", "message": "m" })).boxed(),
        ResultKind::LimitReached => Just(json!({ "limit": "host_calls_per_second", "value": 5 })).boxed(),
        ResultKind::SandboxViolation => Just(json!({ "code": "runner.trapped", "message": "m" })).boxed(),
        ResultKind::SteeringReceived => Just(json!({ "event_id": CHILDREN[0], "run_id": CHILDREN[0] })).boxed(),
        ResultKind::ConversationBranched => Just(json!({ "from_event_id": CHILDREN[0], "message_id": "m", "reason": "edit" })).boxed(),
        ResultKind::ArtifactCreated => Just(json!({ "artifact": { "artifact_id": "a", "media_type": "text/plain", "size": 5 } })).boxed(),
        _ => Just(json!({ "tool_call_id": "a", "delta": "{", "last": false })).boxed(),
    }
}

fn open_result() -> impl Strategy<Value = (String, Value)> {
    prop_oneof![
        Just((fact::PLAN.to_owned(), json!({ "steps": [{ "step": "look", "status": "done" }] }))),
        Just((fact::TASK_PROGRESS.to_owned(), json!({ "task_id": "t1", "completed": 1, "total": 2 }))),
        Just((fact::TASK_DEPENDENCY.to_owned(), json!({ "task_id": "t1", "depends_on": ["t2"] }))),
        Just((fact::HANDOFF_REQUESTED.to_owned(), json!({ "handoff_id": "h", "target": "x" }))),
        Just((fact::CONTEXT_COMPACTED.to_owned(), json!({ "items": 7, "summary": "s" }))),
        Just((fact::USAGE.to_owned(), json!({ "input": 1, "output": 2 }))),
        Just(("ui.subagent.started".to_owned(), json!({ "subagent_id": "s", "name": "n" }))),
        Just(("ui.subagent.finished".to_owned(), json!({ "subagent_id": "s" }))),
        Just(("ui.subagent.failed".to_owned(), json!({ "subagent_id": "s", "message": "m" }))),
        Just(("acme.odd".to_owned(), json!([1, { "token": 2 }]))),
        Just(("tool.call.started".to_owned(), json!("not an object"))),
    ]
}

fn event() -> impl Strategy<Value = (String, Value, EventSource)> {
    let known = prop::sample::select(ResultKind::ALL.to_vec())
        .prop_flat_map(|kind| data(kind).prop_map(move |data| (kind.as_str().to_owned(), data)));
    let source = prop::sample::select(EventSource::ALL.to_vec());
    (prop_oneof![6 => known, 1 => open_result()], source).prop_map(|((kind, data), source)| (kind, data, source))
}

pub(crate) fn record(run: RunId, events: &[(String, Value, EventSource)]) -> Vec<RunEvent> {
    (1..)
        .zip(events)
        .map(|(sequence, (kind, data, source))| RunEvent {
            run_id: run,
            kind: kind.clone(),
            data: to_raw_value(data).unwrap(),
            sequence,
            timestamp: 1_700_000_000_000 + sequence,
            source: *source,
            metadata: None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_record_gives_a_legal_stream(events in prop::collection::vec(event(), 0..40), started in any::<bool>(), first in 1..1_000_u64) {
        let turn = tests::turn(first, started);
        let run = turn.run_id;
        let mut events = events;
        events.push(("run.failed".to_owned(), json!({ "code": "runner.error", "message": "m" }), EventSource::Host));
        let record = record(run, &events);
        let mut projector = Projector::new(turn.clone());
        let mut facts = projector.begin();
        for event in &record {
            facts.extend(projector.push(event, &Outputs));
        }
        prop_assert!(projector.is_over());
        let faults = faults(&facts, first);
        prop_assert!(faults.is_empty(), "{}", faults.join("\n"));
        prop_assert_eq!(facts.iter().filter(|fact| fact.kind.is_turn_terminal()).count(), 1);
        prop_assert_eq!(facts.last().unwrap().kind, FactType::SnapshotUpdated);
        prop_assert_eq!(projector.next_sequence(), first + facts.len() as u64);

        // The rules for logs from outside find nothing either.
        let mut from_first = Projector::new(Turn { first_sequence: 1, ..turn.clone() });
        let mut log = from_first.begin();
        for event in &record {
            log.extend(from_first.push(event, &Outputs));
        }
        let lines: String = log.iter().map(|fact| serde_json::to_string(fact).unwrap() + "\n").collect();
        let report = rules::check(lines.as_bytes(), rules::Options::default());
        // A run without a start has no results: such a record is only of this test.
        prop_assert!(report.conforms || !started, "{:#?}\n{}", report.findings, lines);

        // A reader that sees events twice, and cuts the record anywhere, has the same facts.
        let mut again = Projector::new(turn);
        let mut doubled = Vec::new();
        for event in &record {
            doubled.extend(again.push(event, &Outputs));
            doubled.extend(again.push(event, &Outputs));
        }
        prop_assert_eq!(&doubled, &facts);
        // The read model is the fold of the stream: exact at any cut, however often facts are delivered, and bounded.
        let mut model = ThreadReadModel::new("agent-host", "c1", "c1");
        model.event_cursor = (first - 1).to_string();
        let mut repeated = model.clone();
        for fact in &facts {
            model.apply(fact);
            repeated.apply(fact);
            repeated.apply(fact);
            prop_assert_eq!(&model.event_cursor, &fact.sequence.to_string());
        }
        prop_assert_eq!(&model, &repeated);
        prop_assert!(model.active_turn_id.is_none() && model.pending_actions.is_empty());
        prop_assert!(model.tool_calls.iter().all(|call| matches!(call.status.as_str(), "completed" | "failed")));
        prop_assert_eq!(model.last_outcome.as_ref().map(|outcome| outcome.turn_id.clone()), Some(run.to_string()));
        prop_assert_eq!(&model.history_cursor, &model.event_cursor);

        let json = serde_json::to_string(&facts).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<Fact>>(&json).unwrap(), facts.clone());
        prop_assert!(!json.contains("canary"), "a secret got through");
        // What a runner says is its own; what goes into tools and comes out of them is cleaned.
        let of_tools = facts.iter().filter(|fact| fact.kind.family() == "tool");
        prop_assert!(of_tools.map(|fact| serde_json::to_string(fact).unwrap()).all(|text| !text.contains("abcdefghijkl")));
    }
}
