//! Any values, in any order, give results that a host accepts and a legal stream of facts.

use agent_host_protocol::{
    EventSource, ResultKind, RunResult, SentResult, encoded::JsonText, limits::MAX_JSON_DEPTH, message::ArtifactRef,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Form, Translator, fit, lines};
use crate::{
    project::{NoChildren, Projector, tests::turn},
    rules,
};

/// Limits of a host as it comes.
const BOUNDS: fit::Bounds = fit::Bounds { result_bytes: 32 * 1024, tool_output_chars: 8_000, preview_chars: 1_200 };

/// Events of each form whose members are changed.
fn templates(form: Form) -> Vec<Value> {
    match form {
        Form::AiSdk => vec![
            json!({ "type": "start" }),
            json!({ "type": "text-start", "id": "a" }),
            json!({ "type": "text-delta", "id": "a", "delta": "x" }),
            json!({ "type": "text-end", "id": "a" }),
            json!({ "type": "reasoning-delta", "id": "a", "text": "x" }),
            json!({ "type": "tool-input-available", "toolCallId": "a", "toolName": "t", "input": { "q": 1 } }),
            json!({ "type": "tool-call", "toolCallId": "b", "toolName": "t", "input": { "q": 1 } }),
            json!({ "type": "tool-input-error", "toolCallId": "a", "toolName": "t", "input": 1, "errorText": "e" }),
            json!({ "type": "tool-approval-request", "approvalId": "p", "toolCallId": "a" }),
            json!({ "type": "tool-approval-response", "approvalId": "p", "approved": true }),
            json!({ "type": "tool-output-available", "toolCallId": "a", "output": { "ok": 1 } }),
            json!({ "type": "tool-output-error", "toolCallId": "a", "errorText": "e" }),
            json!({ "type": "tool-output-denied", "toolCallId": "a" }),
            json!({ "type": "finish-step", "usage": { "inputTokens": 1, "outputTokens": 2 }, "response": { "modelId": "m" } }),
            json!({ "type": "data-weather", "data": 1 }),
            json!({ "type": "error", "errorText": "e" }),
            json!({ "type": "abort" }),
            json!({ "type": "finish", "finishReason": "stop" }),
        ],
        Form::OpenAiAgents => vec![
            json!({ "type": "raw_model_stream_event", "data": { "type": "output_text_delta", "delta": "x" } }),
            json!({ "type": "raw_response_event", "data": { "type": "response.output_text.delta", "item_id": "a", "delta": "x" } }),
            json!({ "type": "raw_response_event", "data": { "type": "response.reasoning_text.delta", "item_id": "a", "delta": "x" } }),
            json!({ "type": "raw_response_event", "data": { "type": "response.output_item.done",
                "item": { "type": "message", "id": "a", "content": [{ "type": "output_text", "text": "x" }] } } }),
            json!({ "type": "raw_response_event", "data": { "type": "response.completed", "response": { "usage": { "input_tokens": 1, "output_tokens": 2 } } } }),
            json!({ "type": "raw_response_event", "data": { "type": "response.failed", "response": { "error": { "message": "e" } } } }),
            json!({ "type": "agent_updated_stream_event", "new_agent": { "name": "n" } }),
            item(
                "message_output_created",
                json!({ "raw_item": { "id": "a", "content": [{ "type": "output_text", "text": "x" }] } }),
            ),
            item("reasoning_item_created", json!({ "rawItem": { "id": "a", "summary": [{ "text": "x" }] } })),
            item(
                "tool_called",
                json!({ "raw_item": { "type": "function_call", "call_id": "a", "name": "t", "arguments": "{}" } }),
            ),
            item(
                "tool_called",
                json!({ "rawItem": { "type": "hosted_tool_call", "callId": "b", "name": "t", "status": "completed" } }),
            ),
            item("tool_output", json!({ "output": "x", "rawItem": { "callId": "a" }, "executionStatus": "executed" })),
            item("tool_approval_requested", json!({ "raw_item": { "call_id": "a" } })),
            item("handoff_requested", json!({ "raw_item": { "call_id": "h" } })),
            item("handoff_occured", json!({ "raw_item": { "call_id": "h" }, "target_agent": { "name": "n" } })),
        ],
        Form::LangGraph => vec![
            json!(["tasks", { "id": "a", "name": "n", "input": {} }]),
            json!(["tasks", { "id": "a", "name": "n", "result": {}, "interrupts": [{ "id": "q", "value": 1 }] }]),
            json!([[], "tasks", { "id": "a", "name": "n", "error": "e" }]),
            json!({ "type": "tasks", "ns": [], "data": { "id": "b", "name": "n" } }),
            json!(["messages", [{ "type": "AIMessageChunk", "id": "m", "content": "x" }, {}]]),
            json!(["messages", [{ "lc": 1, "id": ["x", "AIMessageChunk"], "kwargs": { "id": "m", "content": [{ "type": "reasoning", "reasoning": "x" }] } }, {}]]),
            json!(["updates", { "n": { "messages": [{ "type": "ai", "id": "m", "content": "x",
                "tool_calls": [{ "id": "a", "name": "t", "args": {} }], "usage_metadata": { "input_tokens": 1, "output_tokens": 2 } }] } }]),
            json!(["updates", { "n": { "messages": [{ "type": "tool", "id": "r", "tool_call_id": "a", "content": "x", "name": "t" }] } }]),
            json!(["updates", { "__interrupt__": [{ "id": "q", "value": { "question": "?" } }] }]),
            json!(["values", { "messages": [{ "type": "human", "content": "x" }, { "type": "ai", "id": "m2", "content": "y" }] }]),
            json!(["debug", { "type": "task_result", "payload": { "id": "a", "result": {} } }]),
            json!(["custom", { "progress": 1 }]),
        ],
        Form::Mcp => vec![
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "t", "arguments": {}, "_meta": { "progressToken": 1 } } }),
            json!({ "direction": "in", "message": { "jsonrpc": "2.0", "id": 1, "result": { "content": [{ "type": "text", "text": "x" }] } } }),
            json!({ "jsonrpc": "2.0", "id": 1, "result": { "isError": true, "content": [] } }),
            json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -1, "message": "e" } }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "elicitation/create", "params": { "message": "?", "requestedSchema": {} } }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "elicitation/create", "params": { "message": "" } }),
            json!({ "jsonrpc": "2.0", "id": 2, "result": { "action": "accept", "content": {} } }),
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": 1, "progress": 0.5, "total": 1 } }),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }),
            json!({ "jsonrpc": "2.0", "id": 3, "method": "sampling/createMessage", "params": {} }),
            json!([{ "jsonrpc": "2.0", "method": "notifications/message", "params": {} }]),
        ],
    }
}

fn item(name: &str, item: Value) -> Value {
    json!({ "type": "run_item_stream_event", "name": name, "item": item })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\u{0}é \"]{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["a", "b", "m", "q", ""]).prop_map(Value::from),
        Just(Value::from("\u{1}".repeat(40_000))),
        Just((0..MAX_JSON_DEPTH + 5).fold(json!(1), |inner, _| json!([inner]))),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        let names = prop::sample::select(vec!["type", "id", "content", "message", "data", "item", "name", "result", "x"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())),
        ]
    })
}

/// Changes one member anywhere in a value: the `place`-th of all.
fn change(value: &mut Value, place: &mut usize, by: &Option<Value>) {
    if let Value::Array(items) = value {
        return items.iter_mut().for_each(|item| change(item, place, by));
    }
    let Value::Object(members) = value else { return };
    let mut changed = Map::new();
    for (name, mut member) in std::mem::take(members) {
        let is_here = *place == 0;
        *place = place.wrapping_sub(1);
        if !is_here {
            change(&mut member, place, by);
            changed.insert(name, member);
        } else if let Some(by) = by {
            changed.insert(name, by.clone());
        }
    }
    *members = changed;
}

fn native(form: Form) -> impl Strategy<Value = Value> {
    let changed =
        (prop::sample::select(templates(form)), 0..12_usize, prop::option::of(value())).prop_map(|(mut event, place, by)| {
            change(&mut event, &mut { place }, &by);
            event
        });
    prop_oneof![6 => prop::sample::select(templates(form)), 3 => changed, 1 => value()]
}

fn capture() -> impl Strategy<Value = (Form, Vec<Value>)> {
    prop::sample::select(Form::ALL.to_vec())
        .prop_flat_map(|form| prop::collection::vec(native(form), 0..24).prop_map(move |events| (form, events)))
}

/// A result as the host takes it.
fn accepted(result: RunResult) -> RunResult {
    let result = fit::fit(result, BOUNDS).unwrap_or_else(|large| {
        let bytes = large.bytes();
        assert!(!bytes.is_empty() && !large.name().is_empty() && !large.media_type().is_empty());
        let artifact = json!({ "artifact_id": "x".repeat(64), "media_type": large.media_type(), "size": bytes.len() });
        large.with(serde_json::from_value::<ArtifactRef>(artifact).unwrap())
    });
    let kind = result.kind().into_owned();
    assert!(!ResultKind::from_name(&kind).is_some_and(ResultKind::is_host_only), "{kind}");
    let data = result.data().unwrap();
    assert!(data.get().len() <= BOUNDS.result_bytes, "{kind} has {} bytes", data.get().len());
    let sent = json!({ "type": kind, "data": serde_json::from_str::<Value>(data.get()).unwrap() });
    serde_json::from_value::<SentResult>(sent).unwrap().parse().unwrap_or_else(|error| panic!("{kind}: {error}\n{}", data.get()))
}

fn stored(kind: &str, data: &JsonText) -> (String, Value, EventSource) {
    (kind.to_owned(), serde_json::from_str(data.get()).unwrap(), EventSource::Import)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn any_values_give_results_that_the_host_accepts((form, events) in capture()) {
        let mut translator = Translator::new(form);
        let mut record = Vec::new();
        for event in &events {
            for result in translator.push(event) {
                let result = accepted(result);
                record.push(stored(&result.kind(), &result.data().unwrap()));
            }
        }
        record.push(("run.completed".to_owned(), json!({ "finish_reason": "unknown" }), EventSource::Host));

        let turn = turn(1, true);
        let run = turn.run_id;
        let mut projector = Projector::new(turn);
        let mut facts = projector.begin();
        for event in crate::project::properties::record(run, &record) {
            facts.extend(projector.push(&event, &NoChildren));
        }
        let faults = crate::project::properties::faults(&facts, 1);
        prop_assert!(faults.is_empty(), "{}", faults.join("\n"));
        let lines: String = facts.iter().map(|fact| serde_json::to_string(fact).unwrap() + "\n").collect();
        let report = rules::check(lines.as_bytes(), rules::Options::default());
        prop_assert!(report.conforms, "{:#?}\n{}", report.findings, lines);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(\\[|\\]|\\{|\\}|\"|a|:|,|1|data: |event: |\n|\u{feff}| ){0,60}") {
        if let Ok(events) = lines::events(&text, 1) {
            prop_assert!(!events.is_empty());
            for (number, event) in (1..).zip(events) {
                let _ = lines::parse(event, number);
            }
        }
    }
}
