//! Events of each form, and their results. Captures of the real packages are translated in the tests of the whole host.

use agent_host_protocol::RunResult;
use serde_json::{Value, json};

use super::{
    Form, NativeEnd, NativeError, Translator, events, lines,
    lines::{MAX_EVENT_BYTES, MAX_EVENTS},
};

/// The results of events, each as its type and its data, and the end.
fn translate(form: Form, events: &[Value]) -> (Vec<(String, Value)>, Option<NativeEnd>) {
    let mut translator = Translator::new(form);
    let results = events
        .iter()
        .flat_map(|event| translator.push(event))
        .map(|result: RunResult| (result.kind().into_owned(), serde_json::from_str(result.data().unwrap().get()).unwrap()));
    let results = results.collect();
    (results, translator.end().cloned())
}

fn kinds(results: &[(String, Value)]) -> Vec<&str> {
    results.iter().map(|(kind, _)| kind.as_str()).collect()
}

#[test]
fn a_denied_call_of_the_ai_sdk_is_a_question_with_its_answer() {
    let (results, end) = translate(
        Form::AiSdk,
        &[
            json!({ "type": "tool-input-available", "toolCallId": "c", "toolName": "pay", "input": { "amount": 5 } }),
            json!({ "type": "tool-approval-request", "approvalId": "p", "toolCallId": "c" }),
            json!({ "type": "tool-approval-response", "approvalId": "p", "approved": false, "reason": "too much" }),
            json!({ "type": "finish", "finishReason": "stop" }),
        ],
    );
    assert_eq!(kinds(&results), ["tool.call.started", "import.action.requested", "import.action.resolved"]);
    assert_eq!(results[1].1, json!({ "action_id": "p", "tool_call_id": "c" }));
    assert_eq!(results[2].1, json!({ "action_id": "p", "decision": "deny", "reason": "too much" }));
    assert_eq!(end, Some(NativeEnd::Completed { finish_reason: Some("stop".to_owned()) }));
}

#[test]
fn the_agents_sdk_of_each_language_gives_the_same_results() {
    let python = [
        json!({ "type": "raw_response_event", "data": { "type": "response.output_text.delta", "item_id": "m", "delta": "hi" } }),
        json!({ "type": "raw_response_event", "data": { "type": "response.output_item.done",
            "item": { "type": "message", "id": "m", "content": [{ "type": "output_text", "text": "hi" }] } } }),
        json!({ "type": "run_item_stream_event", "name": "message_output_created",
            "item": { "raw_item": { "id": "m", "content": [{ "type": "output_text", "text": "hi" }] } } }),
        json!({ "type": "run_item_stream_event", "name": "handoff_occured",
            "item": { "raw_item": { "call_id": "h" }, "target_agent": { "name": "Clerk" } } }),
    ];
    let script = [
        json!({ "type": "raw_model_stream_event", "data": { "type": "output_text_delta", "delta": "hi" } }),
        json!({ "type": "run_item_stream_event", "name": "message_output_created",
            "item": { "rawItem": { "id": "m", "content": [{ "type": "output_text", "text": "hi" }] } } }),
        json!({ "type": "run_item_stream_event", "name": "handoff_occurred",
            "item": { "rawItem": { "callId": "h" }, "targetAgent": { "name": "Clerk" } } }),
    ];
    for events in [&python[..], &script] {
        let (results, end) = translate(Form::OpenAiAgents, events);
        assert_eq!(kinds(&results), ["message.delta", "message.completed", "fact.handoff.completed"]);
        assert_eq!(results[1].1["message"]["content"], "hi");
        assert_eq!(results[2].1, json!({ "handoff_id": "h", "target": "Clerk" }));
        assert_eq!(end, None, "these events say no end");
    }
}

#[test]
fn a_task_of_langgraph_waits_and_begins_again_under_its_id() {
    let start = json!(["tasks", { "id": "t", "name": "approve", "input": {}, "triggers": [] }]);
    let asked = json!({ "id": "q", "value": { "question": "Send it?" } });
    let (results, _) = translate(
        Form::LangGraph,
        &[
            start.clone(),
            json!(["tasks", { "id": "t", "name": "approve", "result": {}, "interrupts": [asked] }]),
            json!(["updates", { "__interrupt__": [asked] }]),
            start,
            json!(["tasks", { "id": "t", "name": "approve", "result": {}, "interrupts": [] }]),
        ],
    );
    let expected = [
        "import.task.started",
        "import.action.requested",
        "import.task.ended",
        "import.action.resolved",
        "import.task.started",
        "import.task.ended",
    ];
    assert_eq!(kinds(&results), expected);
    assert_eq!(results[3].1, json!({ "action_id": "q", "decision": "unknown" }), "the answer is in no event");
    assert_eq!((&results[2].1["outcome"], &results[5].1["outcome"]), (&json!("waiting"), &json!("completed")));
}

#[test]
fn both_sides_of_an_mcp_session_count_their_requests() {
    let (results, _) = translate(
        Form::Mcp,
        &[
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "pay", "arguments": {} } }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": { "message": "Pay?" } }),
            json!({ "jsonrpc": "2.0", "id": 1, "result": { "action": "accept", "content": { "ok": true } } }),
            json!({ "jsonrpc": "2.0", "id": 1, "result": { "content": [{ "type": "text", "text": "paid" }], "structuredContent": { "result": "paid" } } }),
        ],
    );
    assert_eq!(
        kinds(&results),
        ["tool.call.started", "import.action.requested", "import.action.resolved", "tool.call.completed"]
    );
    assert_eq!(results[3].1["result"], "paid", "structured content repeats the text");
}

#[test]
fn the_model_of_a_call_is_named_where_its_event_names_it() {
    let cases = [
        (
            Form::AiSdk,
            json!({ "type": "finish-step", "usage": { "inputTokens": 1, "outputTokens": 2 }, "response": { "modelId": "m" } }),
        ),
        (
            Form::OpenAiAgents,
            json!({ "type": "raw_response_event", "data": { "type": "response.completed",
                "response": { "model": "m", "usage": { "input_tokens": 1, "output_tokens": 2 } } } }),
        ),
        (
            Form::LangGraph,
            json!(["updates", { "n": { "messages": [{ "type": "ai", "id": "a", "content": "x",
                "response_metadata": { "model_name": "m" }, "usage_metadata": { "input_tokens": 1, "output_tokens": 2 } }] } }]),
        ),
    ];
    for (form, event) in cases {
        let usage = |event: &Value| {
            let (results, _) = translate(form, std::slice::from_ref(event));
            results.into_iter().find(|(kind, _)| kind == "fact.usage").unwrap().1
        };
        assert_eq!(usage(&event), json!({ "input": 1, "output": 2, "model": "m" }), "{}", form.as_str());
        let unnamed: Value = serde_json::from_str(&event.to_string().replace("model", "other")).unwrap();
        assert_eq!(usage(&unnamed), json!({ "input": 1, "output": 2 }), "{}", form.as_str());
    }
}

#[test]
fn an_unknown_event_is_kept() {
    for form in Form::ALL.iter().copied() {
        let (results, end) = translate(form, &[json!({ "type": "of-tomorrow", "n": 1 }), json!("a text"), json!([1])]);
        assert_eq!(kinds(&results), ["import.native"; 3], "{}", form.as_str());
        assert_eq!(results[0].1["event"], json!({ "type": "of-tomorrow", "n": 1 }));
        assert_eq!(end, None);
        let (results, _) = translate(form, &[json!({ "type": "of-tomorrow", "blob": "x".repeat(10_000) })]);
        assert!(results[0].1.get("event").is_none() && results[0].1["bytes"].as_u64().unwrap() > 10_000);
    }
}

#[test]
fn a_text_has_lines_one_array_or_server_sent_events() {
    let of = |text: &str| events(text, 1).map(|events| events.into_iter().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(of("{\"a\":1}\n\n {\"b\":2}\r\n").unwrap(), ["{\"a\":1}", "{\"b\":2}"]);
    assert_eq!(of("[{\"a\":1}, {\"b\":2}]").unwrap(), ["{\"a\":1}", "{\"b\":2}"]);
    assert_eq!(of("event: x\ndata: {\"a\":1}\n\n: ping\ndata: [DONE]\n").unwrap(), ["{\"a\":1}"]);
    assert_eq!(of("[\"updates\", {}]").unwrap(), ["[\"updates\", {}]"], "one event of LangGraph");
    assert_eq!(of("[[], \"updates\", {}]\n[[], \"tasks\", {}]").unwrap().len(), 2);
    assert_eq!(of(" \n"), Err(NativeError::Empty));
    let large = format!("{{}}\n\"{}\"", "x".repeat(MAX_EVENT_BYTES));
    assert!(matches!(of(&large), Err(NativeError::TooLarge { number: 2, .. })));
    for many in ["1\n".repeat(MAX_EVENTS + 1), format!("[1{}]", ",1".repeat(MAX_EVENTS))] {
        assert_eq!(of(&many), Err(NativeError::TooMany));
        assert_eq!(events(&many.replacen("1\n", "", 1).replacen("1,", "", 1), 1).map(|events| events.len()), Ok(MAX_EVENTS));
    }
    for torn in ["{\"a\":", "nonsense", &"[".repeat(200)] {
        let events = events(torn, 7).unwrap();
        assert!(matches!(lines::parse(events[0], 7), Err(NativeError::Syntax { number: 7, .. })), "{torn}");
    }
}
