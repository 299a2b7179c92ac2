//! The host is killed with runs that wait, are claimed, are executed by the host and by executors, and wait for people:
//! each continues, or ends by its policy.

use std::time::Duration;

use serde_json::json;

use crate::queue::desk::{Desk, host, results_from};

const INSIDE: &str =
    "[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nmatch = { event_type = \"inside\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_run_goes_on_after_a_kill_whoever_executes_it() {
    let mut host = host("lease_ms = 30000", INSIDE);
    let desk = Desk::of(&host);
    let executor = desk.executor("survives").await;
    let mut inside = json!({ "binding_id": "steps", "event": { "event_type": "inside", "input": { "text": "sleep 2000" } } });
    let mut made = Vec::new();
    for text in ["sleep 2000", "sleep 8000"] {
        inside["event"]["input"]["text"] = text.into();
        made.push(desk.create(inside.clone()).await["run_id"].as_str().unwrap().to_owned());
    }
    let [running, parked] = made.try_into().unwrap();
    let begun = desk.job("begun", json!({})).await;
    let held = executor.claim().await;
    held.does("append", results_from(1, &["before"])).await;
    // A piece of a message without an id, and metadata: both are there after the restart, and compared.
    let piece = |first: u64, text: &str| {
        let chunk = json!({ "role": "assistant", "content": text });
        json!({ "first": first, "results": [{ "type": "message.delta", "data": { "chunk": chunk }, "metadata": { "n": first } }] })
    };
    held.does("append", piece(2, "one ")).await;
    let claimed = desk.job("claimed", json!({})).await;
    let fresh = executor.claims(json!({ "wait_ms": 10_000 })).await.unwrap();
    let queued = desk.job("queued", json!({ "priority": 3 })).await;
    let line = [host.send_in("c", "first in line").await, host.send_in("c", "second in line").await];
    host.until_status(&parked, "waiting").await;
    host.until_status(&queued, "queued").await;

    host.kill_and_revive();
    assert_eq!(host.run(&begun).await["status"], "running");
    assert_eq!(host.run(&claimed).await["status"], "claimed");
    // Token and numbers are still valid; the unacknowledged results are there.
    let again = async || {
        for _ in 0..200 {
            match held.try_post("append", &results_from(1, &["before"])).await {
                Some((503, _)) | None => tokio::time::sleep(Duration::from_millis(20)).await,
                Some((status, answer)) => return (status, answer),
            }
        }
        panic!("the host has not brought the run back")
    };
    let (status, answer) = again().await;
    assert_eq!((status, answer["replayed"].as_bool()), (200, Some(true)), "{answer:#}");
    held.refused("append", results_from(1, &["other"]), 422, "idempotency_conflict").await;
    held.refused("append", piece(2, "two "), 422, "idempotency_conflict").await;
    assert_eq!(held.does("append", piece(2, "one ")).await["replayed"], true);
    held.does("append", piece(3, "two ")).await;
    let pieces: Vec<_> = host.events(&begun).await.into_iter().filter(|event| event["type"] == "message.delta").collect();
    assert_eq!(pieces[0]["data"]["message_id"], pieces[1]["data"]["message_id"], "one message before and after");
    assert_eq!((&pieces[0]["metadata"], &pieces[1]["metadata"]), (&json!({ "n": 2 }), &json!({ "n": 3 })));
    held.does("append", results_from(4, &["after"])).await;
    held.does("calls/state.set", json!({ "scope": "runner", "key": "k", "value": 1 })).await;
    held.complete().await;
    assert_eq!(host.ended(&begun).await.completed().message_texts(), ["before", "after"]);
    assert_eq!(fresh.does("start", json!({})).await["context"]["input"]["text"], "claimed");
    fresh.complete().await;
    let mut order = Vec::new();
    for _ in 0..3 {
        let held = executor.claim().await;
        held.complete().await;
        order.push(held.run);
    }
    assert_eq!(order, [queued, line[0].clone(), line[1].clone()]);
    host.ended(&running).await.completed();
    host.ended(&parked).await.completed();
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answered_call_of_an_executor_is_in_the_audit_after_a_kill() {
    let mut host = host("lease_ms = 30000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("audited").await;
    let run = desk.job("audited", json!({})).await;
    let held = executor.claim().await;
    for n in 0..10 {
        held.does("calls/state.get", json!({ "scope": "runner", "key": format!("k{n}") })).await;
        held.refused("calls/models.invoke", json!({ "model_id": "none", "request": {} }), 403, "unauthorized").await;
    }
    host.kill_and_revive();
    let audit = host.get(&format!("/api/v1/runs/{run}/audit?limit=100")).await;
    let count = |action: &str, outcome: &str| {
        let items = audit["items"].as_array().unwrap();
        items.iter().filter(|record| record["action"] == action && record["outcome"] == outcome).count()
    };
    assert_eq!((count("state.get", "ok"), count("models.invoke", "unauthorized")), (10, 10), "{audit:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_outlives_the_host_counts_for_the_limit_of_its_binding() {
    let mut host = host("lease_ms = 30000\nconcurrency = 1", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("one at a time").await;
    desk.job("first", json!({})).await;
    let held = executor.claim().await;
    let second = desk.job("second", json!({})).await;
    host.kill_and_revive();
    assert!(executor.claims(json!({ "wait_ms": 500 })).await.is_none(), "two runs at one time");
    held.complete().await;
    let held = executor.claim().await;
    assert_eq!(held.run, second);
    held.complete().await;
    host.check();
}

/// The host has forgotten which version of a shared value the run has seen: the run reads it again, and overwrites nothing unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_outlives_the_host_overwrites_nothing_that_it_has_not_seen() {
    let mut host = host("lease_ms = 30000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("reads").await;
    let value = |key: &str, value: u64| json!({ "scope": "runner", "key": key, "value": value });
    let place = |key: &str| json!({ "scope": "runner", "key": key });
    let mut held = Vec::new();
    for job in ["reads", "others"] {
        desk.job(job, json!({})).await;
        held.push(executor.claim().await);
    }
    let [reads, others] = held.try_into().ok().unwrap();
    assert_eq!(reads.does("calls/state.get", place("read")).await["value"], json!(null));
    reads.does("calls/state.set", value("set", 1)).await;
    let update = json!({ "type": "state.updated", "data": value("updated", 1) });
    reads.does("append", json!({ "first": 1, "results": [update] })).await;
    for key in ["read", "set", "updated", "new"] {
        others.does("calls/state.get", place(key)).await;
        others.does("calls/state.set", value(key, 2)).await;
    }
    host.kill_and_revive();
    reads.does("calls/state.list-keys", json!({ "scope": "runner" })).await;
    for key in ["read", "set", "updated"] {
        reads.refused("calls/state.set", value(key, 3), 409, "conflict").await;
        let update = json!({ "type": "state.updated", "data": value(key, 3) });
        reads.refused("append", json!({ "first": 2, "results": [update] }), 409, "conflict").await;
        assert_eq!(reads.does("calls/state.get", place(key)).await["value"], 2);
        reads.does("calls/state.set", value(key, 3)).await;
    }
    // A value that it has never seen is set without a look.
    reads.does("calls/state.set", value("new", 3)).await;
    for key in ["read", "set", "updated", "new"] {
        assert_eq!(others.does("calls/state.get", place(key)).await["value"], 3);
    }
    reads.complete().await;
    others.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_died_with_the_host_loses_its_claim_a_while_after_the_start() {
    let mut host = host("lease_ms = 1000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("dies too").await;
    let run = desk.job("orphan", json!({})).await;
    let held = executor.claim().await;
    host.cancel(&desk.job("cancelled while down", json!({})).await).await;
    host.kill_and_revive();
    // The executor has a whole lease for its next request.
    let next = executor.claims(json!({ "wait_ms": 30_000, "start": true })).await.unwrap();
    assert_eq!((next.run.as_str(), next.claim), (run.as_str(), held.claim + 1));
    held.refused("append", results_from(1, &["too late"]), 409, "claim_lost").await;
    next.complete().await;
    host.ended(&run).await.completed();
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_moment_of_a_kill_a_job_is_done_once() {
    let mut host = host("lease_ms = 30000\ndispatch_timeout_ms = 2000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("persistent").await;
    for round in 0..8_u64 {
        let run = desk.job("work", json!({})).await;
        let work = {
            let executor = executor.clone();
            tokio::spawn(async move {
                // A claim whose answer was lost is given back by its dispatch timeout; here the run is not started by it.
                let held = loop {
                    match executor.try_claim(&json!({ "wait_ms": 2_000 })).await {
                        Some(Some(held)) => break held,
                        _ => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                };
                let mut n = 0;
                for (what, body) in [
                    ("start", json!({})),
                    ("append", results_from(1, &["a"])),
                    ("append", results_from(2, &["b"])),
                    ("finalize", json!({ "status": "completed" })),
                ] {
                    loop {
                        n += 1;
                        assert!(n < 3_000, "{what} is never answered");
                        match held.try_post(what, &body).await {
                            Some((200, _)) => break,
                            Some((503, _)) | None => tokio::time::sleep(Duration::from_millis(10)).await,
                            Some((status, answer)) => panic!("{what}: {status} {answer:#}"),
                        }
                    }
                }
            })
        };
        // A claim is waited for, so that its answer is not lost: what then happens is tested with moments of its own.
        for _ in 0..2_000 {
            let status = host.run(&run).await["status"].clone();
            if status != "queued" && status != "created" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        host.kill_and_revive();
        work.await.unwrap();
        assert_eq!(host.ended(&run).await.completed().message_texts(), ["a", "b"], "round {round}");
    }
    host.check();
}
