//! The token of a claim is good for that claim of that run, and dies with it.

use agent_host_tests::grants::EVERYTHING;
use reqwest::Method;
use serde_json::json;

use crate::calls::outside::ExecutorHost;

const LIST: &str = "state.list-keys";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_good_for_one_run_and_as_long_as_its_claim() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let keys = json!({ "scope": "runner" });
    outside.host.send("one").await;
    let mut one = outside.claim().await;
    outside.host.send("another").await;
    let other = outside.claim().await;
    outside.answered(&one, LIST, keys.clone()).await;
    let own = one.token.clone();

    one.token = other.token.clone();
    outside.refused(&one, LIST, keys.clone(), 401, "unauthenticated").await;
    for nobody in ["ahl_AAAA", "ahl_", "ahk_x", "ahx_x", &own[..own.len() - 1]] {
        one.token = nobody.to_owned();
        let (status, problem) = outside.call(&one, LIST, &keys).await;
        assert!(status == 401, "{nobody}: {status} {problem:#}");
    }
    one.token = String::new();
    outside.refused(&one, LIST, keys.clone(), 401, "unauthenticated").await;
    for path in ["/calls/artifacts", "/calls/artifacts/a"] {
        let method = if path.ends_with("/a") { Method::GET } else { Method::POST };
        let answer = outside.request(method, &one.path(path), "").send().await.unwrap();
        assert_eq!(answer.status(), 401, "{path}");
    }

    // Given back, the run is claimed anew: the first token is no longer good, the second is.
    one.token = own;
    let (status, answer) = outside.post(&one.path("/release"), &one.token, &json!({ "reason": "enough" })).await;
    assert_eq!(status, 200, "{answer:#}");
    outside.refused(&one, LIST, keys.clone(), 409, "claim_lost").await;
    let again = outside.claim().await;
    assert_eq!(again.run, one.run);
    outside.refused(&one, LIST, keys.clone(), 409, "claim_lost").await;
    outside.answered(&again, LIST, keys.clone()).await;

    // The token of an ended run is invalid.
    outside.complete(&again).await;
    for token in [&again, &one] {
        outside.refused(token, LIST, keys.clone(), 409, "claim_lost").await;
    }
    outside.answered(&other, LIST, keys).await;
    outside.complete(&other).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_has_not_begun_and_one_that_is_cancelled_call_nothing() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    outside.host.send_in("another", "not begun").await;
    let claimed = outside.claim_with(json!({ "start": false, "wait_ms": 10_000 })).await;
    outside.refused(&claimed, LIST, json!({ "scope": "runner" }), 409, "conflict").await;
    let held = outside.claimed_run().await;
    outside.host.cancel(&held.run).await;
    outside.host.until_status(&held.run, "cancelled").await;
    let (status, problem) = outside.call(&held, LIST, &json!({ "scope": "runner" })).await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("claim_lost")), "{problem:#}");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_waits_ends_with_its_claim() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let question = json!({ "kind": "confirmation", "title": "Shall I?" });
    let (asked, ()) = tokio::join!(outside.call(&held, "interactions.ask", &question), async {
        outside.host.until(&held.run, |event| event["type"] == "action.requested").await;
        let (status, _) = outside.post(&held.path("/release"), &held.token, &json!({})).await;
        assert_eq!(status, 200);
    });
    assert_eq!((asked.0, asked.1["code"].as_str()), (409, Some("claim_lost")), "{:#}", asked.1);
    let withdrawn = outside.host.until(&held.run, |event| event["type"] == "action.resolved").await;
    assert_eq!(withdrawn["data"]["outcome"], "cancelled", "{withdrawn:#}");
    let again = outside.claim().await;
    outside.complete(&again).await;
    outside.host.check();
}
