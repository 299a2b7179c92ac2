//! Runs and their events have the fields of the run ledger note (sections 4.1 and 4.2).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::queue::desk::{Desk, host, results_from};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_names_its_author_its_artifacts_and_what_the_executor_sent_beside() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let run = desk.job("make a file", json!({})).await;
    let held = desk.executor("e").await.claim().await;
    let file = json!({ "media_type": "text/plain", "name": "a.txt", "content": "aGVsbG8=" });
    let artifact = held.does("calls/artifacts.create", file).await;
    let part = json!({ "type": "artifact", "artifact": { "artifact_id": artifact["artifact_id"], "media_type": "text/plain" } });
    let message = json!({ "role": "assistant", "content": [{ "type": "text", "text": "here" }, part] });
    let result =
        json!({ "type": "message.completed", "data": { "message_id": "m", "message": message }, "metadata": { "step": 7 } });
    held.does("append", json!({ "first": 1, "results": [result] })).await;
    for (metadata, wanted) in [(json!([1]), "JSON object"), (json!("x"), "JSON object")] {
        let result = json!({ "type": "acme.note", "data": {}, "metadata": metadata });
        let problem = held.refused("append", json!({ "first": 2, "results": [result] }), 400, "invalid_argument").await;
        assert!(problem["detail"].as_str().unwrap().contains(wanted), "{problem:#}");
    }
    held.complete().await;

    let record = host.run(&run).await;
    assert_eq!((&record["agent_id"], &record["binding_id"]), (&json!("outside"), &json!("outside")), "{record:#}");
    let events = host.events(&run).await;
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event["id"], format!("{run}:{}", event["sequence"]), "{event:#}");
            assert_eq!(event["created_at"], event["timestamp"], "{event:#}");
            let refs = event["artifact_refs"].as_array().map_or(0, Vec::len);
            (event["type"].as_str().unwrap(), event["source"].as_str().unwrap(), refs, &event["metadata"])
        })
        .collect();
    let none = &Value::Null;
    let wanted = [
        ("artifact.created", "host", 1, none),
        ("message.completed", "executor", 1, &json!({ "step": 7 })),
        ("run.completed", "host", 0, none),
    ];
    assert_eq!(rows, wanted);
    assert_eq!(events[1]["artifact_refs"][0]["artifact_id"], artifact["artifact_id"]);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_results_of_a_guest_are_those_of_the_runner() {
    let host = host("", "[[bindings]]\nid = \"guest\"\nrunner = \"plugin:test/steps/default\"\nmatch = { event_type = \"x\" }");
    let desk = Desk::of(&host);
    let created = desk.create(json!({ "binding_id": "guest", "input": { "text": "say hello" } })).await;
    assert_eq!(created["agent_id"], "guest", "{created:#}");
    let ended = host.ended(created["run_id"].as_str().unwrap()).await.completed();
    let source = |kind: &str| ended.events.iter().find(|event| event["type"] == kind).map(|event| event["source"].clone());
    assert_eq!(source("message.completed"), Some(json!("runner")), "{ended}");
    assert_eq!(source("run.completed"), Some(json!("host")), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_offered_to_an_executor_is_dispatching() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("e").await;
    // The status lasts for one commit, so runs are claimed until a list shows one.
    let watcher = tokio::spawn({
        let desk = desk.clone();
        async move {
            let end = Instant::now() + Duration::from_secs(60);
            while Instant::now() < end {
                let (status, page) = desk.get("/api/v1/runs?status=dispatching").await;
                assert_eq!(status, 200, "{page:#}");
                if let Some(run) = page["items"].get(0) {
                    return Some(run.clone());
                }
            }
            None
        }
    });
    while !watcher.is_finished() {
        desk.job("quick", json!({})).await;
        let held = executor.claim().await;
        held.does("append", results_from(1, &["done"])).await;
        held.complete().await;
    }
    let seen = watcher.await.unwrap().expect("a list has shown a run that was dispatching");
    assert_eq!((&seen["status"], &seen["queue"]["executor_id"]), (&json!("dispatching"), &Value::Null), "{seen:#}");
    host.check();
}
