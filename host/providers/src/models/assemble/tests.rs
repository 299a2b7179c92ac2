//! Answers put together from events.

use agent_host_protocol::sse::{EventReader, EventTooLarge};
use proptest::prelude::*;

use super::*;

/// The response that a stream of events makes. Checks that its deltas add up to the same.
fn assemble(events: &[Value]) -> Result<ModelResponse, ApiError> {
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    read(&[text.as_bytes()])
}

fn read(chunks: &[&[u8]]) -> Result<ModelResponse, ApiError> {
    let names = ToolNames::new(["files/read"]);
    let mut assembler = Assembler::new(Form::Completions, names, Redactor::default(), 3, 10_000);
    let (mut events, mut out) = (EventReader::new(10_000), vec![]);
    for chunk in chunks {
        events.push(chunk, |event| assembler.event(event.data, &mut out).map_err(TestFailure))?;
    }
    assembler.finish(&mut out)?;
    let Some(ModelChunk::Done(response)) = out.pop() else { panic!("the last chunk is the whole answer") };
    let text: String =
        out.iter().filter_map(|chunk| if let ModelChunk::Text(text) = chunk { Some(text.as_str()) } else { None }).collect();
    assert_eq!(response.message.text(), text);
    Ok(response)
}

struct TestFailure(ApiError);
impl From<EventTooLarge> for TestFailure {
    fn from(_: EventTooLarge) -> Self {
        Self(ApiError::invalid_argument("too large"))
    }
}
impl From<TestFailure> for ApiError {
    fn from(TestFailure(error): TestFailure) -> Self {
        error
    }
}

fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn calls(pieces: &[Value], reason: &str) -> Result<Vec<(String, String, Value)>, ApiError> {
    let mut events: Vec<Value> = pieces.iter().map(|piece| delta(json!({ "tool_calls": piece }))).collect();
    events.push(finish(reason));
    let calls = assemble(&events)?.message.tool_calls;
    Ok(calls.into_iter().map(|call| (call.call_id, call.tool_name, call.parameters)).collect())
}

fn code(error: &ApiError) -> &str {
    error.details.as_ref().unwrap()["code"].as_str().unwrap()
}

#[test]
fn calls_are_put_together_whatever_a_provider_leaves_out() {
    let one = || (String::from("a"), String::from("t"), json!({ "x": 1 }));
    let two = || (String::from("b"), String::from("u"), json!({ "y": 2 }));
    let f = |name: &str, arguments: &str| json!({ "name": name, "arguments": arguments });
    for (what, pieces) in [
        (
            "as OpenAI does",
            vec![
                json!([{ "index": 0, "id": "a", "function": f("t", "") }]),
                json!([{ "index": 0, "function": { "arguments": "{\"x\"" } }]),
                json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\"") }]),
                json!([{ "index": 0, "function": { "arguments": ":1}" } }, { "index": 1, "function": { "arguments": ":2}" } }]),
            ],
        ),
        (
            "at once, without index",
            vec![json!([
                { "id": "a", "function": f("t", "{\"x\":1}") }, { "id": "b", "function": f("u", "{\"y\":2}") },
            ])],
        ),
        (
            "all with the same index",
            vec![
                json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\":1}") }]),
                json!([{ "index": 0, "id": "b", "function": f("u", "{\"y\":2}") }]),
            ],
        ),
        (
            "pieces without index and id",
            vec![
                json!([{ "id": "a", "function": f("t", "{\"x\"") }]),
                json!([{ "function": { "arguments": ":1}" } }]),
                json!([{ "id": "b", "function": f("u", "") }]),
                json!([{ "function": { "arguments": "{\"y\":2}" } }]),
            ],
        ),
        (
            "id and name with every piece",
            vec![
                json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\"") }]),
                json!([{ "index": 0, "id": "a", "function": f("t", ":1}") }]),
                json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\":2}") }]),
            ],
        ),
        (
            "another id with every piece",
            vec![
                json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\"") }]),
                json!([{ "index": 0, "id": "a2", "function": { "name": null, "arguments": ":1}" } }]),
                json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\":2}") }]),
            ],
        ),
        (
            "arguments as an object",
            vec![
                json!([{ "index": 0, "id": "a", "function": { "name": "t", "arguments": { "x": 1 } } }]),
                json!([{ "index": 7, "id": "b", "function": { "name": "u", "arguments": { "y": 2 } } }]),
            ],
        ),
    ] {
        assert_eq!(calls(&pieces, "tool_calls").unwrap(), [one(), two()], "{what}");
    }
}

#[test]
fn a_call_without_id_gets_one_and_ids_differ() {
    let pieces = [json!([
        { "index": 0, "function": { "name": "files_read" } },
        { "index": 1, "id": "call_3_2", "function": { "name": "t", "arguments": " " } },
        { "index": 2, "function": { "name": "t", "arguments": null } },
    ])];
    let calls = calls(&pieces, "stop").unwrap();
    let ids: Vec<&str> = calls.iter().map(|call| call.0.as_str()).collect();
    assert_eq!(ids, ["call_3_0", "call_3_2", "call_3_2_"]);
    assert_eq!((calls[0].1.as_str(), &calls[0].2), ("files/read", &json!({})));
}

#[test]
fn parameters_that_are_not_an_object_are_an_error() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    for arguments in ["{\"x\":", "[1]", "null", "\"a\"", "{} {}", &deep] {
        let error = calls(&[json!([{ "index": 0, "id": "a", "function": { "name": "t", "arguments": arguments } }])], "length");
        let error = error.unwrap_err();
        assert_eq!((code(&error), error.retryable), ("invalid_tool_call", true), "{arguments}");
        assert_eq!(error.details.as_ref().unwrap()["tool_name"], "t");
        assert!(error.message.contains("cut off"), "{error}");
    }
    let error = calls(&[json!([{ "index": 0, "id": "a", "function": { "arguments": "{}" } }])], "stop").unwrap_err();
    assert!(error.message.contains("without naming it"), "{error}");
}

#[test]
fn calls_without_end_are_bounded() {
    let flood = |call: fn(usize) -> Value| calls(&(0..2000).map(|at| json!([call(at)])).collect::<Vec<_>>(), "stop").unwrap_err();
    assert_eq!(code(&flood(|at| json!({ "index": at, "function": { "name": "t" } }))), "invalid_response");
    assert_eq!(code(&flood(|_| json!({ "index": 0, "function": { "arguments": "123456789" } }))), "response_too_large");
    assert_eq!(code(&flood(|at| json!({ "index": 0, "function": { "name": format!("t{at}") } }))), "invalid_tool_call");
}

#[test]
fn finish_reasons_have_the_names_of_the_contract() {
    let call = || delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "t" } }] }));
    let text = || delta(json!({ "content": "a" }));
    for (events, expect) in [
        (vec![text(), finish("stop")], "stop"),
        (vec![text(), finish("length")], "length"),
        (vec![text(), finish("content_filter")], "content-filter"),
        (vec![text(), finish("end_turn")], "end_turn"),
        (vec![call(), finish("tool_calls")], "tool-calls"),
        (vec![call(), finish("stop")], "tool-calls"),
        (vec![delta(json!({ "function_call": { "name": "t", "arguments": "{}" } })), finish("function_call")], "tool-calls"),
        (vec![delta(json!({ "refusal": "no" })), finish("stop")], "refusal"),
    ] {
        assert_eq!(assemble(&events).unwrap().finish_reason, expect);
    }
    assert_eq!(
        read(&[b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"]).unwrap().finish_reason,
        "unknown"
    );
    assert_eq!(code(&assemble(&[text()]).unwrap_err()), "stream_interrupted");
}

#[test]
fn usage_is_known_only_where_it_can_be_true() {
    let usage = |usage: Value| {
        assemble(&[delta(json!({ "content": "a" })), finish("stop"), json!({ "choices": [], "usage": usage })]).unwrap().usage
    };
    let known = usage(json!({ "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 4 },
        "completion_tokens_details": { "reasoning_tokens": 1 } }));
    assert_eq!(known, Some(TokenUsage { input: 5, output: 2, cached_input: Some(4), reasoning: Some(1) }));
    let partly = usage(json!({ "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 6 },
        "completion_tokens_details": { "reasoning_tokens": -1 } }));
    assert_eq!(partly, Some(TokenUsage { input: 5, output: 2, cached_input: None, reasoning: None }));
    for lie in [
        json!({ "prompt_tokens": -5, "completion_tokens": 2 }),
        json!({ "prompt_tokens": 5.5, "completion_tokens": 2 }),
        json!({ "prompt_tokens": "5", "completion_tokens": 2 }),
        json!({ "prompt_tokens": 5, "completion_tokens": 1e30 }),
        json!({ "prompt_tokens": 5, "completion_tokens": 100_000_001 }),
        json!({ "prompt_tokens": 0, "completion_tokens": 0 }),
        json!({ "prompt_tokens": 5, "completion_tokens": 0 }),
        json!({ "prompt_tokens": 5 }),
        json!([1, 2]),
        json!("many"),
    ] {
        assert_eq!(usage(lie.clone()), None, "{lie}");
    }
}

#[test]
fn invalid_answers_are_errors_and_unknown_parts_are_ignored() {
    for (data, expect) in [
        ("{\"choices\":", "invalid_response"),
        ("[]", "invalid_response"),
        ("{\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}", "provider_error"),
        ("{\"object\":\"error\",\"message\":\"x\"}", "provider_error"),
    ] {
        let error = read(&[format!("data: {data}\n\n").as_bytes()]).unwrap_err();
        assert_eq!(code(&error), expect, "{data}");
    }
    let odd = assemble(&[
        json!({}),
        json!({ "choices": null }),
        json!({ "choices": [{ "index": 1, "delta": { "content": "other" } }] }),
        json!({ "choices": [{ "delta": null }] }),
        json!({ "choices": [{ "delta": { "content": 7, "tool_calls": "no", "reasoning": {} } }] }),
        delta(json!({ "content": [{ "type": "thinking", "thinking": [] }, { "type": "text", "text": "a" }] })),
        finish("stop"),
    ]);
    assert_eq!(odd.unwrap().message.text(), "a");
}

proptest! {
    #[test]
    fn a_stream_cut_anywhere_gives_the_same_response(cuts in prop::collection::vec(1usize..40, 0..60), crlf in any::<bool>()) {
        let events = [
            delta(json!({ "role": "assistant", "content": "" })),
            delta(json!({ "reasoning_content": "héh 語" })),
            delta(json!({ "content": "Grüße, 世界 \u{1f600}" })),
            delta(json!({ "content": "\n\ndata: x\r\n" })),
            delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "t", "arguments": "{\"x\":\"" } }] })),
            delta(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "語\"}" } }] })),
            finish("tool_calls"),
            json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 2 } }),
        ];
        let end = if crlf { "\r\n" } else { "\n" };
        let mut text: String = events.iter().map(|event| format!(": note{end}data: {event}{end}{end}")).collect();
        text += &format!("data: [DONE]{end}{end}");
        let (mut chunks, mut rest) = (vec![], text.as_bytes());
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        chunks.push(rest);
        prop_assert_eq!(read(&chunks).unwrap(), assemble(&events).unwrap());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), json in "[\\{\\}\\[\\]:,\"a-z0-9 ]{0,60}") {
        let _any = read(&[&bytes]);
        let _any = read(&[format!("data: {json}\n\ndata: [DONE]\n\n").as_bytes()]);
    }
}
