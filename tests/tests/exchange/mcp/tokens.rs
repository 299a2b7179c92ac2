//! The token of an MCP endpoint is good for one claim of one run, for this endpoint alone, and dies with the claim.

use agent_host_tests::grants::EVERYTHING;
use reqwest::Method;
use serde_json::json;

use crate::mcp::{
    client::{Client, access},
    outside::ExecutorHost,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_good_for_one_run_and_as_long_as_its_claim() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    outside.host.send("one").await;
    let one = outside.claim().await;
    outside.host.send("another").await;
    let other = outside.claim().await;
    let open = Client::open(&outside, &one).await;
    let session = open.session.clone();
    let initialization = Client::initialization();

    // Of another run, of the executor, of nobody.
    let mut client = Client::new(&outside, &one);
    let own = client.token.clone();
    assert_eq!(client.path, format!("/mcp/runs/{}", one.run));
    let renamed = own.replacen("ahm_", "ahl_", 1);
    let cut = own[..own.len() - 1].to_owned();
    for token in [&access(&other).1, &one.token, &one.token.replacen("ahl_", "ahm_", 1), &renamed, &cut, "ahm_", "ahk_x", ""] {
        client.token = token.to_owned();
        assert_eq!(client.refused(&initialization).await, (401, "unauthenticated".to_owned()), "{token}");
        for method in [Method::GET, Method::DELETE] {
            assert_eq!(client.http(method).send().await.unwrap().status(), 401, "{token}");
        }
    }
    client.token = own.clone();
    client.path = format!("/mcp/runs/{}", other.run);
    assert_eq!(client.refused(&initialization).await, (401, "unauthenticated".to_owned()));
    client.path = "/mcp/runs/nonsense".to_owned();
    assert_eq!(client.refused(&initialization).await, (404, "not_found".to_owned()));

    // The session of one run is nothing at another.
    let mut thief = Client::open(&outside, &other).await;
    thief.session.clone_from(&session);
    assert_eq!(thief.refused(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).await, (404, "not_found".to_owned()));

    // It is no lease token.
    for (path, body) in [
        ("/append", json!({ "first": 1, "results": [{ "type": "x.y", "data": {} }] })),
        ("/renew", json!({})),
        ("/start", json!({})),
        ("/release", json!({})),
        ("/finalize", json!({ "status": "completed" })),
        ("/calls/state.get", json!({ "scope": "runner", "key": "k" })),
    ] {
        let (status, problem) = outside.post(&one.path(path), &own, &body).await;
        assert_eq!((status, problem["code"].as_str()), (401, Some("unauthenticated")), "{path}: {problem:#}");
    }
    for path in ["/api/v1/runs", "/api/v1/executors", "/api/v1/keys"] {
        let status = outside.request(Method::GET, path, &own).send().await.unwrap().status();
        assert_eq!(status, 403, "{path}");
    }

    // Given back, the run is claimed anew: the first token is no longer good, the second is, and has no session yet.
    assert_eq!(outside.post(&one.path("/release"), &one.token, &json!({})).await.0, 200);
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert_eq!(open.refused(&list).await, (409, "claim_lost".to_owned()));
    let again = outside.claim().await;
    assert_eq!(again.run, one.run);
    assert_eq!(open.refused(&list).await, (409, "claim_lost".to_owned()));
    let mut fresh = Client::open(&outside, &again).await;
    assert_ne!(fresh.token, own);
    assert!(fresh.tools().await.contains(&"a__add".to_owned()));
    fresh.session = session;
    assert_eq!(fresh.refused(&list).await, (404, "not_found".to_owned()));

    // The token of an ended run is invalid.
    outside.complete(&again).await;
    assert_eq!(fresh.refused(&list).await, (409, "claim_lost".to_owned()));
    outside.complete(&other).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn start_gives_the_token_and_repeats_it() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    outside.host.send("one").await;
    let mut held = outside.claim_with(json!({ "start": false, "wait_ms": 10_000 })).await;
    assert!(held.answer.get("mcp").is_none(), "a run that has not begun has no endpoint: {:#}", held.answer);
    let (status, started) = outside.post(&held.path("/start"), &held.token, &json!({})).await;
    assert_eq!(status, 200, "{started:#}");
    let (_, repeated) = outside.post(&held.path("/start"), &held.token, &json!({})).await;
    assert_eq!(started["mcp"], repeated["mcp"]);
    held.answer = started;
    let client = Client::open(&outside, &held).await;
    assert!(client.tools().await.contains(&"a__add".to_owned()));
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_waits_ends_with_its_claim_and_so_do_streams() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    let stream = client.http(Method::GET).send().await.unwrap();
    assert_eq!((stream.status().as_u16(), &stream.headers()["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    let (asked, (), followed) = tokio::join!(
        client.call("ask_user", json!({ "title": "Shall I?" })),
        async {
            outside.host.until(&held.run, |event| event["type"] == "action.requested").await;
            assert_eq!(outside.post(&held.path("/release"), &held.token, &json!({})).await.0, 200);
        },
        stream.text()
    );
    assert_eq!(asked.code(), (-32000, "claim_lost"), "{:#}", asked.response);
    drop(followed);
    let withdrawn = outside.host.until(&held.run, |event| event["type"] == "action.resolved").await;
    assert_eq!(withdrawn["data"]["outcome"], "cancelled", "{withdrawn:#}");
    let again = outside.claim().await;
    outside.complete(&again).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_run_calls_nothing_more() {
    let outside = ExecutorHost::with(EVERYTHING, "", "", "").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    outside.host.cancel(&held.run).await;
    // In the grace of the cancellation the claim still counts, and the gate refuses.
    let list =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "history_page", "arguments": {} } });
    let (status, body) = client.send(&list).await;
    assert!(status == 200 && body.contains("cancelled") || status == 409 && body.contains("claim_lost"), "{status}: {body}");
    outside.host.until_status(&held.run, "cancelled").await;
    assert_eq!(client.refused(&list).await, (409, "claim_lost".to_owned()));
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_of_the_host_keeps_the_token_and_ends_the_sessions() {
    let mut outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let mut client = Client::open(&outside, &held).await;
    outside.host.kill_and_revive();
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let refused = loop {
        match client.refused(&list).await {
            // The host is bringing the run back.
            (503, _) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            refused => break refused,
        }
    };
    assert_eq!(refused, (404, "not_found".to_owned()));
    client.session = None;
    client.initialize().await;
    assert!(client.tools().await.contains(&"a__add".to_owned()));
    outside.complete(&held).await;
    outside.host.check();
}
