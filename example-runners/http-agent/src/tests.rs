use agent_host_sdk::testing::{HttpReply, Permission, TestHost, TestRun};
use agent_host_sdk::{ApiError, ErrorCode};
use serde_json::{Value, json};

use super::HttpAgent;

const URL: &str = "https://agent.example.com/run";

fn ask(reply: HttpReply) -> TestRun {
    ask_as(json!({"url": URL}), reply)
}

fn ask_as(config: Value, reply: HttpReply) -> TestRun {
    TestHost::new().config(config).http("POST", URL, move |_| reply.clone()).run::<HttpAgent>("Hi")
}

fn down() -> ApiError {
    ApiError { retryable: true, ..ApiError::new(ErrorCode::RuntimeError, "the connection broke") }
}

#[test]
fn events_are_streamed_back_until_the_other_side_is_done() {
    let run = ask(HttpReply::chunks([
        "data: {\"delta\": \"Hel\"}\n\nda",
        "ta: lo, \n\n: still there\n\n",
        "data: {\"kind\": \"usage\", \"tokens\": 3}\n\n",
        "data: wör",
        "ld\r\n\r\ndata: [DONE]\n\ndata: never seen\n\n",
    ]));
    assert_eq!(run.text(), "Hello, wörld");
    assert_eq!(run.streamed(), "Hello, wörld");
    assert_eq!(run.completion().contract().finish_reason, "stop");
    // The first words were emitted before the rest arrived.
    assert!(run.batches.len() > 1);
}

#[test]
fn the_request_says_who_asks_and_holds_no_secret() {
    let run = ask_as(json!({"url": URL, "secret": "AGENT_KEY"}), "data: ok\n\n".into());
    let sent = &run.http[0];
    let body: Value = serde_json::from_slice(&sent.body).unwrap();
    assert_eq!(body, json!({"input": "Hi", "thread_id": "conversation-1", "run_id": "run-1"}));
    let header = |name: &str| sent.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(header("authorization"), Some("Bearer {{secret:AGENT_KEY}}"));
    assert_eq!(header("accept"), Some("text/event-stream"));
    assert_eq!(header("content-type"), Some("application/json"));

    let run = ask_as(json!({"url": URL, "secret": ""}), "data: ok\n\n".into());
    assert!(!run.http[0].headers.iter().any(|(name, _)| name == "authorization"));
}

#[test]
fn text_is_streamed_back_in_whole_characters() {
    let text = "größer 🦀";
    let chunks: Vec<_> = text.as_bytes().chunks(1).map(<[u8]>::to_vec).collect();
    let run = ask_as(json!({"url": URL, "format": "text"}), HttpReply::chunks(chunks));
    assert_eq!((run.text().as_str(), run.streamed().as_str()), (text, text));
}

#[test]
fn an_error_of_the_other_side_is_a_clear_failure() {
    let run = ask(HttpReply::status(503).body("overloaded, come back"));
    assert_eq!((run.failure().code.as_str(), run.failure().retryable), ("http_status", true));
    assert!(run.failure().message.contains("503: overloaded"), "{}", run.failure().message);

    for stream in ["event: error\ndata: no credit\n\n", "data: a\n\ndata: {\"error\": \"no credit\"}\n\n"] {
        let run = ask(stream.into());
        assert_eq!(run.failure().code, "http_agent.failed");
        assert!(run.failure().message.ends_with("no credit"), "{}", run.failure().message);
    }

    for nothing in ["", "data: [DONE]\n\n", "data: {\"delta\": \"\"}\n\n"] {
        assert_eq!(ask(nothing.into()).failure().code, "http_agent.no_answer", "{nothing:?}");
    }
}

#[test]
fn text_before_a_broken_stream_is_shown_and_not_completed() {
    for format in ["sse", "text"] {
        let reply = HttpReply::chunks(["data: half an\n\n"]).then_fails(down());
        let run = ask_as(json!({"url": URL, "format": format}), reply);
        assert_eq!((run.failure().code.as_str(), run.failure().retryable), ("runtime_error", true));
        assert!(run.streamed().contains("half an"));
        assert!(run.messages().is_empty());
    }
}

#[test]
fn an_unreachable_server_is_reported_with_the_reason() {
    assert_eq!(ask_as(json!({}), "x".into()).failure().code, "http_agent.no_url");
    assert_eq!(ask_as(json!({"url": URL, "format": "xml"}), "x".into()).failure().code, "runner.invalid_config");
    assert_eq!(ask_as(json!({"url": "https://elsewhere.example/"}), "x".into()).failure().code, "unauthorized");
    assert_eq!(ask(down().into()).failure().message, "the connection broke");
    let mut host = TestHost::new().config(json!({"url": URL})).http("POST", URL, |_| "x").deny(Permission::Http);
    assert_eq!(host.run::<HttpAgent>("Hi").failure().code, "unauthorized");
}

#[test]
fn text_that_looks_like_json_is_text() {
    assert_eq!(ask("data: {not json\n\ndata: [1]\n\n".into()).text(), "{not json[1]");
}

#[test]
fn an_event_that_belongs_to_no_conversation_has_no_thread() {
    let mut host = TestHost::new().config(json!({"url": URL})).without_conversation().http("POST", URL, |_| "data: ok\n\n");
    let body: Value = serde_json::from_slice(&host.run::<HttpAgent>("Hi").http[0].body).unwrap();
    assert_eq!(body["thread_id"], Value::Null);
}
