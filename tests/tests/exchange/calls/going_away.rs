//! Callers that go away: their questions are withdrawn, and no taken input is lost.

use std::time::Duration;

use agent_host_tests::grants::EVERYTHING;
use reqwest::Method;
use serde_json::json;

use crate::calls::outside::ExecutorHost;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_question_that_nobody_waits_for_is_withdrawn_and_the_run_goes_on() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let question = json!({ "kind": "confirmation", "title": "Shall I?" });
    let asking = outside.request(Method::POST, &held.path("/calls/interactions.ask"), &held.token);
    let asking = asking.json(&question).timeout(Duration::from_secs(1)).send();
    assert!(asking.await.unwrap_err().is_timeout(), "nobody has answered");
    let resolved = outside.host.until(&held.run, |event| event["type"] == "action.resolved").await;
    assert_eq!(resolved["data"]["outcome"], "cancelled", "{resolved:#}");
    let id = resolved["data"]["action_id"].as_str().unwrap().to_owned();
    assert_eq!(outside.host.get("/api/v1/actions").await["items"], json!([]));
    let (status, response) = outside.post(&format!("/api/v1/actions/{id}/respond"), "", &json!({ "decision": "submit" })).await;
    assert_eq!((status, response["code"].as_str()), (409, Some("already_answered")), "{response:#}");
    assert_eq!(outside.host.run(&held.run).await["status"], "running", "somebody outside still works on it");

    // The question is asked again, and answered.
    let (answer, ()) = tokio::join!(outside.call(&held, "interactions.ask", &question), async {
        let asked =
            outside.host.until(&held.run, |event| event["type"] == "action.requested" && event["data"]["action_id"] != id);
        let id = asked.await["data"]["action_id"].as_str().unwrap().to_owned();
        let (status, response) =
            outside.post(&format!("/api/v1/actions/{id}/respond"), "", &json!({ "decision": "decline", "reason": "no" })).await;
        assert_eq!(status, 200, "{response:#}");
    });
    assert_eq!(answer, (200, json!({ "outcome": "declined", "reason": "no" })));
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_that_comes_meanwhile_is_taken_once_and_not_lost() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    // The caller goes away before the input comes.
    let pulling = outside.request(Method::POST, &held.path("/calls/steering.pull"), &held.token);
    let pulling = pulling.json(&json!({ "wait_ms": 60_000 })).timeout(Duration::from_millis(500)).send();
    assert!(pulling.await.unwrap_err().is_timeout());
    let (answer, run) = tokio::join!(outside.answered(&held, "steering.pull", json!({ "wait_ms": 20_000 })), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        outside.host.send_in("c", "and another thing").await
    });
    assert_eq!(answer["inputs"][0]["input"]["text"], "and another thing", "{answer:#}");
    assert_eq!(outside.answered(&held, "steering.pull", json!({})).await, json!({ "inputs": [] }));
    outside.host.until_status(&run, "completed").await;
    outside.complete(&held).await;
    outside.host.check();
}
