//! Invalid bodies: too large, too deep, misspelt, no JSON, no function.

use agent_host_tests::grants::EVERYTHING;
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::calls::outside::{ClaimedRun, ExecutorHost};

async fn raw(outside: &ExecutorHost, held: &ClaimedRun, function: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let request = outside.request(Method::POST, &held.path(&format!("/calls/{function}")), &held.token);
    let answer = request.header(header::CONTENT_TYPE, "application/json").body(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn invalid_values_are_refused_without_effect() {
    let limits = "model_request_bytes = 2000\nhttp_request_bytes = 1000\nstorage_value_bytes = 1000\nask_bytes = 1000\n";
    let outside = ExecutorHost::limited(EVERYTHING, "", limits).await;
    let held = outside.claimed_run().await;
    let text = |bytes: usize| "x".repeat(bytes);
    let invoke =
        |content: &str| json!({ "model_id": "a-chat", "request": { "messages": [{ "role": "user", "content": content }] } });

    // The gate refuses a too large value with its limit; before it, the server refuses any larger body.
    let refused = outside.refused(&held, "models.invoke", invoke(&text(3_000)), 413, "payload_too_large").await;
    assert_eq!(refused["details"]["limit"], 2000, "{refused:#}");
    outside.refused(&held, "models.invoke", invoke(&text(200_000)), 413, "payload_too_large").await;
    outside
        .refused(&held, "models.embed", json!({ "model_id": "a-embed", "texts": [text(3_000)] }), 413, "payload_too_large")
        .await;
    let value = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text(1_001));
    outside
        .refused(&held, "storage.set", json!({ "area": "plugin", "key": "k", "value": value }), 413, "payload_too_large")
        .await;
    // A value beyond the body of the request is refused as the gate refuses it, and is in the audit.
    let value = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text(300_000));
    let arguments = json!({ "area": "plugin", "key": "k", "value": value });
    let refused = outside.refused(&held, "storage.set", arguments, 413, "payload_too_large").await;
    assert_eq!(refused["details"]["limit"], 1_000, "{refused:#}");
    assert!(refused["details"]["size"].as_u64().unwrap() >= 300_000, "{refused:#}");
    let audit = outside.audit(&held.run).await;
    let of_storage = audit.iter().filter(|(action, outcome)| action == "storage.set" && outcome == "payload_too_large");
    assert_eq!(of_storage.count(), 2, "{audit:?}");
    let question = json!({ "kind": "form", "title": "t", "description": text(1_001) });
    outside.refused(&held, "interactions.ask", question, 413, "payload_too_large").await;
    let send = json!({ "method": "POST", "url": outside.url, "text": text(1_001) });
    outside.refused(&held, "http.send", send, 413, "payload_too_large").await;
    // A moderately larger body is still read to its end, so that the client gets the reason.
    let (status, problem) = raw(&outside, &held, "state.list-keys", text(4_000_000)).await;
    assert_eq!((status, problem["code"].as_str()), (413, Some("payload_too_large")), "{problem:#}");

    // Deep, in a value that is kept and in one that is not.
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    for (function, body) in [
        ("state.set", r#"{"scope":"runner","key":"k","value":DEEP}"#),
        ("tools.call", r#"{"call_id":"1","tool_name":"a__add","parameters":{"a":DEEP}}"#),
        ("models.invoke", r#"{"model_id":"a-chat","request":{"messages":[{"role":"user","content":[{"type":"x","a":DEEP}]}]}}"#),
        ("history.search", r#"{"query":"a","top_k":1,"filters":{"roles":DEEP}}"#),
    ] {
        for levels in [100, 900] {
            let (status, problem) = raw(&outside, &held, function, body.replace("DEEP", &deep(levels))).await;
            assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_argument")), "{function}: {problem:#}");
        }
    }

    // Misspelt, missing, of another type.
    for (function, body) in [
        ("models.invoke", json!({ "model_id": "a-chat", "request": { "messages": [] }, "temperature": 0 })),
        ("models.invoke", json!({ "model_id": "a-chat", "request": { "messages": [], "temperature": 0 } })),
        ("models.invoke", json!({ "model_id": "a-chat", "request": { "messages": [{ "role": "user", "text": "a" }] } })),
        ("models.invoke", json!({ "model_id": "a-chat" })),
        ("knowledge.list", json!({ "limit": 1 })),
        ("state.get", json!({ "scope": "everywhere", "key": "k" })),
        ("state.set", json!({ "scope": "runner", "key": "k" })),
        ("storage.set", json!({ "area": "plugin", "key": "k", "value": "not base64!" })),
        ("tools.call-many", json!({ "calls": [] })),
        ("tools.call", json!({ "call_id": "1", "tool_name": "a__add", "parameters": [] })),
        ("runs.start", json!({ "runner_id": "plugin:test/steps/default", "objective": "o", "input": { "txet": "a" } })),
        ("http.send", json!({ "method": "GET", "url": outside.url, "text": "a", "body": "YQ==" })),
        ("interactions.ask", json!({ "kind": "riddle", "title": "t" })),
        ("steering.pull", json!({ "limit": 0 })),
        ("history.page", json!({ "limit": 1000 })),
        ("models.invoke", json!([])),
        ("knowledge.list", json!(null)),
    ] {
        outside.refused(&held, function, body, 400, "invalid_argument").await;
    }
    for body in ["{", "{} {}", "\u{0}", "nonsense"] {
        let (status, problem) = raw(&outside, &held, "knowledge.list", body).await;
        assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_argument")), "{body:?}: {problem:#}");
    }

    // No such function, no such type of body.
    for function in ["timers.now", "results.emit", "artifacts.open", "models", "models.think", "%00", "a.b.c"] {
        let problem = outside.refused(&held, function, json!({}), 404, "not_found").await;
        assert!(problem["detail"].as_str().unwrap().contains("models.invoke"), "it says what there is: {problem:#}");
    }
    let request = outside.request(Method::POST, &held.path("/calls/knowledge.list"), &held.token);
    assert_eq!(request.body("{}").send().await.unwrap().status(), 415);
    let query = outside.request(Method::POST, &held.path("/calls/knowledge.list?x=1"), &held.token);
    assert_eq!(query.json(&json!({})).send().await.unwrap().status(), 400);

    // The run is as it was.
    outside.answered(&held, "models.invoke", invoke("hello")).await;
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn too_frequent_calls_are_refused_with_a_wait() {
    let outside = ExecutorHost::limited(EVERYTHING, "", "host_calls_per_second = 1\nhost_calls_burst = 3\n").await;
    let held = outside.claimed_run().await;
    for _ in 0..10 {
        let request = outside.request(Method::POST, &held.path("/calls/state.list-keys"), &held.token);
        let answer = request.json(&json!({ "scope": "runner" })).send().await.unwrap();
        if answer.status() == 429 {
            assert!(answer.headers().contains_key(header::RETRY_AFTER));
            let problem: Value = answer.json().await.unwrap();
            assert_eq!((&problem["code"], &problem["retryable"]), (&json!("rate_limited"), &json!(true)), "{problem:#}");
            return;
        }
    }
    panic!("ten calls at once, and none was refused");
}
