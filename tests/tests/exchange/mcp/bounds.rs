//! Bad messages, large ones and too many of them.

use agent_host_tests::grants::EVERYTHING;
use reqwest::Method;
use serde_json::json;

use crate::mcp::{client::Client, outside::ExecutorHost};

const STATE: &str = "state = { scopes = [\"runner\"] }";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_too_large_is_refused_by_the_gate_and_what_is_far_too_large_before() {
    let outside = ExecutorHost::limited(EVERYTHING, STATE, "state_value_bytes = 1000\ntool_parameters_bytes = 2000").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    let set = |bytes: usize| json!({ "scope": "runner", "key": "k", "value": "x".repeat(bytes) });
    client.done("state_set", set(900)).await;
    assert_eq!(client.call("state_set", set(1100)).await.refusal(), "payload_too_large");
    assert_eq!(client.call("state_set", set(200_000)).await.refusal(), "payload_too_large");
    let add = json!({ "a": 1, "b": 2, "note": "x".repeat(3000) });
    assert_eq!(client.call("a__add", add).await.refusal(), "payload_too_large");
    let audit = outside.audit(&held.run).await;
    let refused =
        |called: &str| audit.iter().filter(|(action, outcome)| action == called && outcome == "payload_too_large").count();
    assert_eq!((refused("state.set"), refused("tools.call")), (2, 1), "{audit:?}");

    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let deep: serde_json::Value = serde_json::from_str(&deep).unwrap();
    let answered = client.call("state_set", json!({ "scope": "runner", "key": "k", "value": deep })).await;
    assert_eq!(answered.refusal(), "invalid_argument");

    let huge = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "x".repeat(100 << 20) } });
    // The host reads some of it to answer, and no more.
    match client.http(Method::POST).json(&huge).send().await {
        Ok(answer) => assert_eq!(answer.status(), 413),
        Err(error) => assert!(error.is_request() && !error.is_connect(), "{error}"),
    }
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "x".repeat(17 << 20) } });
    assert_eq!(client.refused(&large).await, (413, "payload_too_large".to_owned()));
    assert!(client.tools().await.contains(&"state_set".to_owned()), "the session is still good");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn malformed_messages_have_typed_refusals() {
    let outside = ExecutorHost::new(EVERYTHING, STATE).await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });

    let post = |client: &Client| client.http(Method::POST);
    let answered = async |request: reqwest::RequestBuilder| {
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let code =
            serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|problem| problem["code"].as_str().map(str::to_owned));
        (status, code.unwrap_or(text))
    };
    let typed = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(answered(post(&client).body("x")).await, typed(415, "unsupported_media_type"));
    let accept = outside.request(Method::POST, &client.path, &client.token).json(&list);
    assert_eq!(answered(accept).await, typed(406, "not_acceptable"));
    for body in ["", "x", "{", "[]", "{}", "{\"jsonrpc\":\"2.0\"}", "null"] {
        let (status, _) = answered(post(&client).header("content-type", "application/json").body(body)).await;
        assert!((400..500).contains(&status), "{body}: {status}");
    }
    let stranger = Client::new(&outside, &held);
    assert_eq!(stranger.refused(&list).await, typed(400, "invalid_argument"), "a session is needed");
    assert_eq!(answered(stranger.http(Method::GET)).await, typed(400, "invalid_argument"));
    let version = stranger.http(Method::POST).header("mcp-protocol-version", "1999-01-01");
    let version = version.header("mcp-session-id", client.session.as_deref().unwrap()).json(&list);
    assert_eq!(answered(version).await.0, 400);
    assert_eq!(answered(client.http(Method::PUT)).await, typed(405, "method_not_allowed"));

    let unknown = client.request("nonsense/method", json!({})).await;
    assert_eq!(unknown.response["error"]["code"], -32601, "{:#}", unknown.response);
    let wrong = client.request("tools/call", json!({ "name": "a__add", "arguments": [1, 2] })).await;
    assert!(wrong.response["error"].is_object(), "{:#}", wrong.response);
    let cursor = client.request("resources/list", json!({ "cursor": "x" })).await;
    assert_eq!(cursor.code(), (-32602, "invalid_argument"));
    let uri = client.request("resources/read", json!({ "uri": "file:///etc/passwd" })).await;
    assert_eq!(uri.code(), (-32602, "invalid_argument"));
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_are_bounded_and_end_when_they_are_told_to() {
    let outside = ExecutorHost::new(EVERYTHING, STATE).await;
    let held = outside.claimed_run().await;
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(Client::open(&outside, &held).await);
    }
    let mut late = Client::new(&outside, &held);
    assert_eq!(late.refused(&Client::initialization()).await, (503, "too_many_streams".to_owned()));
    let first = clients.remove(0);
    assert!(first.tools().await.contains(&"a__add".to_owned()), "sessions that are open go on");
    assert_eq!(first.http(Method::DELETE).send().await.unwrap().status(), 202);
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert_eq!(first.refused(&list).await, (404, "not_found".to_owned()));
    // The place is free a moment later.
    while late.send(&Client::initialization()).await.0 == 503 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    late.session = None;
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_rate_of_calls_is_that_of_the_run() {
    let outside = ExecutorHost::limited(EVERYTHING, STATE, "host_calls_per_second = 5\nhost_calls_burst = 5").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    let get = || client.call("state_get", json!({ "scope": "runner", "key": "k" }));
    let mut refused = 0;
    for _ in 0..20 {
        let answered = get().await;
        if answered.result()["isError"] == true {
            assert_eq!(answered.refusal(), "rate_limited");
            refused += 1;
        }
    }
    assert!(refused >= 5, "{refused}");
    outside.host.check();
}
