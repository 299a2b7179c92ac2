//! Executors register, are heard of, and go.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::queue::{
    desk::{Desk, host},
    support::Host,
};

fn impatient() -> Host {
    Host::limited(
        &["steps"],
        &format!(
            "{}\n[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\nmax_attempts = 3\n[bindings.queue]\nbackoff_ms \
             = 0\n[limits]\nmax_live_runs = 50\nexecutor_stale_ms = 1000\nexecutor_gone_ms = 3000\n",
            crate::queue::desk::OUTSIDE
        ),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runners_of_executors_are_listed_like_others() {
    let host = host("", "");
    let runners = host.get("/api/v1/runners").await;
    let ids: Vec<_> = runners["runners"].as_array().unwrap().iter().map(|runner| runner["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"plugin:test/outside/default") && ids.contains(&"plugin:test/steps/default"), "{ids:?}");
    assert_eq!(runners["external"], json!(["plugin:test/outside/default"]));
    let listed = runners["runners"].as_array().unwrap().iter().find(|runner| runner["id"] == "plugin:test/outside/default");
    let listed = listed.unwrap();
    assert_eq!((&listed["context"]["ownership"], &listed["permissions"]["history"]), (&json!("hybrid"), &json!(["page"])));
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_the_control_plane_are_in_the_audit() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("watched").await;
    let run = desk.job("watched", json!({})).await;
    let held = executor.claim().await;
    held.complete().await;
    assert_eq!(host.try_cancel(&run).await, 409, "it has ended");
    let list =
        async |query: &str| host.get(&format!("/api/v1/audit?limit=50&{query}")).await["items"].as_array().unwrap().clone();
    let of_run = list(&format!("run_id={run}")).await;
    let seen: Vec<_> =
        of_run.iter().map(|record| (record["action"].as_str().unwrap(), record["outcome"].as_str().unwrap())).collect();
    assert!(seen.contains(&("queue.finalize", "ok")) && seen.contains(&("runs.cancel", "conflict")), "{seen:?}");
    let registered = list("action=executors.&outcome=ok").await;
    assert_eq!((registered.len(), registered[0]["action"].as_str()), (1, Some("executors.register")), "{registered:#?}");
    assert_eq!(registered[0]["details"]["address"], "127.0.0.1");
    let claims = list(&format!("principal={}", executor.id)).await;
    assert!(claims.iter().any(|record| record["action"] == "queue.claim" && record["outcome"] == "ok"), "{claims:#?}");
    let heartbeat = async |body: serde_json::Value| {
        desk.post(&format!("/api/v1/executors/{}/heartbeat", executor.id), &executor.credential, &body).await
    };
    assert_eq!(heartbeat(json!({})).await.0, 200);
    let (_, changed) = heartbeat(json!({ "slots": 7, "labels": { "gpu": "yes" } })).await;
    assert_eq!((&changed["slots"], &changed["labels"]["gpu"]), (&json!(7), &json!("yes")), "{changed:#}");
    assert_eq!(heartbeat(json!({ "slots": 0 })).await.0, 400);
    let changes = list("action=executors.change").await;
    let outcomes: Vec<_> = changes.iter().map(|record| record["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["invalid_argument", "ok"], "{changes:#?}");
    let counts = host.get("/api/v1/executors/statistics").await;
    assert_eq!((&counts["online"], &counts["slots"], &counts["held"]), (&json!(1), &json!(7), &json!(0)), "{counts:#}");
    assert_eq!(counts["heartbeat_age_ms"]["count"], 1);
    assert!(!serde_json::to_string(&list("").await).unwrap().contains("ahx_"), "no credential is recorded");
    assert_eq!(list("since=99999999999999").await.len(), 0);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_leaves_its_executor_a_grace_to_append_and_finish() {
    let host = host("cancel_grace_ms = 5000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("polite").await;
    let run = desk.job("polite", json!({})).await;
    let held = executor.claim().await;
    held.does("append", crate::queue::desk::said(1, &["before"])).await;
    host.cancel(&run).await;
    held.refused("calls/state.get", json!({ "scope": "runner", "key": "k" }), 409, "cancelled").await;
    held.does("append", crate::queue::desk::said(2, &["after"])).await;
    held.does("finalize", json!({ "status": "cancelled", "reason": "stopped by its user" })).await;
    let ended = host.ended(&run).await.cancelled();
    assert_eq!(ended.said(), ["before", "after"]);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_online_then_stale_then_gone_and_loses_what_it_holds() {
    let host = impatient();
    let desk = Desk::of(&host);
    let silent = desk.register(json!({ "name": "silent", "version": "1.2", "labels": { "os": "linux" }, "slots": 2 })).await;
    let state = async || {
        let (_, list) = desk.get("/api/v1/executors").await;
        list["items"][0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state().await, "online");
    let run = desk.job("left alone", json!({})).await;
    let held = silent.claim().await;
    let (_, shown) = desk.get(&format!("/api/v1/executors/{}", silent.id)).await;
    assert_eq!((shown["held"][0].as_str(), shown["slots"].as_u64()), (Some(run.as_str()), Some(2)), "{shown:#}");
    assert!(!shown.to_string().contains("ahx_"), "no credential is shown again");
    // Heard of, it stays.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let (status, answer) =
            desk.post(&format!("/api/v1/executors/{}/heartbeat", silent.id), &silent.credential, &json!({})).await;
        assert_eq!(status, 200, "{answer:#}");
    }
    assert_eq!(host.run(&run).await["status"], "running");
    host.until_status(&run, "queued").await;
    assert_eq!(state().await, "gone");
    held.refused("renew", json!({}), 409, "claim_lost").await;
    // The executor returns, and may claim again.
    let again = silent.claim().await;
    assert_eq!((again.run.as_str(), state().await.as_str()), (run.as_str(), "online"));
    again.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deregistering_releases_claims_and_ends_the_credential() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let leaves = desk.executor("leaves").await;
    let stays = desk.executor("stays").await;
    let run = desk.job("passed on", json!({})).await;
    let held = leaves.claim().await;
    let path = format!("/api/v1/executors/{}", leaves.id);
    // A credential cannot deregister another executor.
    let foreign = desk.try_send(desk.request(Method::DELETE, &path, &stays.credential)).await.unwrap();
    assert_eq!(foreign.0, 404, "{foreign:?}");
    let gone = desk.try_send(desk.request(Method::DELETE, &path, &leaves.credential)).await.unwrap();
    assert_eq!(gone.0, 204);
    held.refused("renew", json!({}), 409, "claim_lost").await;
    let (status, problem) = desk.post("/api/v1/claims", &leaves.credential, &json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (401, Some("unauthenticated")));
    let held = stays.claim().await;
    assert_eq!(held.run, run);
    held.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_that_cannot_be_is_refused() {
    let host = host("", "");
    let desk = Desk::of(&host);
    for body in [
        json!({}),
        json!({ "name": "" }),
        json!({ "name": "a\nb" }),
        json!({ "name": "a", "slots": 0 }),
        json!({ "name": "a", "queues": ["a b"] }),
        json!({ "name": "a", "labels": { "": "x" } }),
        json!({ "name": "a", "runner_ids": ["echo"] }),
        json!({ "name": "a", "capabilities": { "x": "y".repeat(20_000) } }),
        json!({ "name": "a", "credential": "mine" }),
    ] {
        let (status, problem) = desk.post("/api/v1/executors", "", &body).await;
        assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_argument")), "{body}: {problem:#}");
    }
    assert_eq!(desk.get("/api/v1/executors").await.1["items"], json!([]));
    assert_eq!(desk.get("/api/v1/executors/nobody").await.0, 404);
    host.check();
}
