//! The assignment of runs to executors, leases, and invalid claims.

use std::time::Duration;

use serde_json::json;

use crate::queue::desk::{Desk, host, results_from};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_urgent_run_comes_first_then_the_oldest_and_only_to_who_can_execute_it() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let plain = desk.job("plain", json!({})).await;
    let low = desk.job("low", json!({ "priority": -5 })).await;
    let high = desk.job("high", json!({ "priority": 7 })).await;
    let gpu = desk.job("gpu", json!({ "priority": 100, "labels": { "gpu": "a100" } })).await;
    let other = desk.job("other", json!({ "name": "other" })).await;
    let run = host.run(&high).await;
    assert_eq!((run["status"].as_str(), run["execution"].as_str()), (Some("queued"), Some("external")), "{run:#}");

    let executor = desk.executor("any").await;
    let now = json!({ "queues": ["default"] });
    let mut given = Vec::new();
    while let Some(held) = executor.claims(now.clone()).await {
        assert_eq!(host.run(&held.run).await["status"], "claimed");
        given.push(held.run);
    }
    assert_eq!(given, [high, plain, low], "labels that it has not are not for it");
    let special = desk.register(json!({ "name": "special", "labels": { "gpu": "a100", "zone": "eu" }, "slots": 5 })).await;
    assert_eq!(special.claims(now.clone()).await.unwrap().run, gpu);
    let elsewhere = json!({ "runner_ids": ["plugin:test/another/default"] });
    assert!(special.claims(elsewhere).await.is_none());
    assert_eq!(executor.claims(json!({ "queues": ["other", "third"] })).await.unwrap().run, other);
    assert!(executor.claims(json!({})).await.is_none());
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_executor_gets_the_next_run_and_unheard_runs_go_to_the_next() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("waits").await;
    let waits = {
        let executor = executor.clone();
        tokio::spawn(async move { executor.claim().await })
    };
    // An executor that goes away while it waits gets no run, or the run comes back.
    let gone = {
        let executor = executor.clone();
        tokio::spawn(async move { executor.claims(json!({ "wait_ms": 20_000 })).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    gone.abort();
    let first = desk.job("one", json!({})).await;
    let second = desk.job("two", json!({})).await;
    let held = waits.await.unwrap();
    let other = executor.claim().await;
    let mut both = [held.run.clone(), other.run.clone()];
    both.sort();
    let mut wanted = [first, second];
    wanted.sort();
    assert_eq!(both, wanted);
    held.complete().await;
    other.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_not_renewed_is_lost_and_its_holder_writes_nothing_more() {
    let host = host("lease_ms = 4000", "");
    let desk = Desk::of(&host);
    let run = desk.job("slow", json!({})).await;
    let executor = desk.executor("slow").await;
    let first = executor.claim().await;
    first.does("append", results_from(1, &["one"])).await;
    // Renewed, it lasts.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let renewed = first.does("renew", json!({})).await;
        assert!(renewed["lease_expires_at"].as_u64() > renewed["cancel_requested_at"].as_u64());
    }
    host.until_status(&run, "queued").await;
    for (what, body) in [
        ("append", results_from(2, &["late"])),
        ("renew", json!({})),
        ("start", json!({})),
        ("release", json!({})),
        ("finalize", json!({ "status": "completed" })),
        ("calls/state.get", json!({ "scope": "runner", "key": "k" })),
    ] {
        first.refused(what, body, 409, "claim_lost").await;
    }
    let second = executor.claim().await;
    assert_eq!((&second.run, second.claim), (&run, first.claim + 1));
    first.refused("append", results_from(2, &["later"]), 409, "claim_lost").await;
    second.does("append", results_from(1, &["two"])).await;
    second.complete().await;
    first.refused("append", results_from(2, &["last"]), 409, "claim_lost").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.message_texts(), ["one", "two"]);
    let run = host.run(&run).await;
    assert_eq!((run["attempt"].as_u64(), run["queue"]["claims"].as_u64()), (Some(2), Some(2)), "{run:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_claims_are_lost_too_often_is_a_dead_letter_that_can_be_put_back() {
    let host = host("lease_ms = 1000\ndispatch_timeout_ms = 200", "");
    let desk = Desk::of(&host);
    let run = desk.job("poison", json!({ "name": "p" })).await;
    let executor = desk.executor("dies").await;
    for attempt in 1..=3 {
        let held = executor.claims(json!({ "wait_ms": 20_000, "start": attempt == 2 })).await.unwrap();
        assert_eq!(held.run, run);
    }
    let ended = host.ended(&run).await.failed("lease_lost");
    assert_eq!(ended.statuses("dispatch_timeout").len() + ended.statuses("lease_expired").len(), 2, "two were put back");
    let (_, letters) = desk.get("/api/v1/dead-letters?queue=p").await;
    assert_eq!(letters["items"][0]["run_id"], run.as_str(), "{letters:#}");
    assert_eq!(letters["items"][0]["attempts"], 3);
    assert_eq!(desk.get("/api/v1/dead-letters?queue=another").await.1["items"], json!([]));

    let (status, again) = desk.post(&format!("/api/v1/dead-letters/{run}/requeue"), "", &json!({})).await;
    assert_eq!((status, again["retry_of"].as_str()), (202, Some(run.as_str())), "{again:#}");
    assert_eq!(desk.get("/api/v1/dead-letters").await.1["items"], json!([]));
    let (status, problem) = desk.post(&format!("/api/v1/dead-letters/{run}/requeue"), "", &json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (404, Some("not_found")));
    let held = executor.claim().await;
    assert_eq!(again["run_id"], held.run.as_str());
    held.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_nobody_claims_in_time_is_given_up_and_one_that_must_not_be_tried_twice_fails() {
    let host = host("claim_timeout_ms = 300\non_lost = \"fail\"\nlease_ms = 1000", "");
    let desk = Desk::of(&host);
    let nobody = desk.job("for nobody", json!({})).await;
    host.ended(&nobody).await.failed("claim_timeout");
    let executor = desk.executor("dies").await;
    let waits = tokio::spawn(async move { executor.claim().await });
    let once = desk.job("once", json!({})).await;
    waits.await.unwrap();
    host.ended(&once).await.failed("lease_lost");
    let (_, letters) = desk.get("/api/v1/dead-letters").await;
    assert_eq!(letters["items"].as_array().unwrap().len(), 2, "{letters:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_given_back_counts_only_where_the_run_had_begun() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let run = desk.job("hot potato", json!({})).await;
    let executor = desk.executor("passes on").await;
    for _ in 0..5 {
        let held = executor.claims(json!({})).await.unwrap();
        held.does("release", json!({ "reason": "not mine" })).await;
        held.refused("start", json!({}), 409, "claim_lost").await;
    }
    assert_eq!(host.run(&run).await["attempt"], 1);
    let held = executor.claim().await;
    let (first, again) = (held.does("start", json!({})).await, held.does("start", json!({})).await);
    assert_eq!(first["context"], again["context"], "starting twice is harmless");
    assert_eq!(first["context"]["input"]["text"], "hot potato");
    let released = held.does("release", json!({ "reason": "broken disk" })).await;
    assert_eq!((released["status"].as_str(), released["attempt"].as_u64()), (Some("queued"), Some(2)), "{released:#}");
    let held = executor.claim().await;
    held.complete().await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.statuses("broken disk").len(), 1);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_values_are_refused_with_the_reason() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.register(json!({ "name": "narrow", "queues": ["a"], "slots": 1 })).await;
    for (body, field) in
        [(json!({ "queue": "a" }), "queue"), (json!({ "wait_ms": -1 }), "wait_ms"), (json!({ "start": 1 }), "start")]
    {
        let (status, problem) = desk.post("/api/v1/claims", &executor.credential, &body).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{body}: {problem:#}");
    }
    let (status, problem) = desk.post("/api/v1/claims", &executor.credential, &json!({ "queues": ["b"] })).await;
    assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_argument")), "{problem:#}");
    let (status, problem) = desk.post("/api/v1/claims", "", &json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{problem:#}");
    let (status, _) = desk.post("/api/v1/claims", "ahx_0000_nobody", &json!({})).await;
    assert_eq!(status, 401);
    // The executor has one slot.
    desk.job("one", json!({ "name": "a" })).await;
    desk.job("two", json!({ "name": "a" })).await;
    let held = executor.claims(json!({ "start": true })).await.unwrap();
    let (status, problem) = desk.post("/api/v1/claims", &executor.credential, &json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("conflict")), "{problem:#}");
    held.complete().await;
    executor.claims(json!({ "start": true, "wait_ms": 5_000 })).await.unwrap().complete().await;
    host.check();
}
