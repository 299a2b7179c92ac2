//! The dialect of LangBot 4.11, tried with the classes that LangBot released (`langbot.py`, `langbot-plugin` from PyPI).

use std::{fs, path::Path, process::Command};

use agent_host_tests::{grants::EVERYTHING, pip};
use serde_json::{Value, json};

use crate::calls::outside::{ClaimedRun, ExecutorHost};

/// The packages of the environment.
const PACKAGES: &str = include_str!("langbot.txt");

/// A query of a pipeline whose run an executor takes.
fn query(text: &str) -> Value {
    json!({
        "query": {
            "query_id": 7, "launcher_type": "person", "launcher_id": "42", "sender_id": "42", "pipeline_uuid": "5f0c",
            "message_chain": [{ "type": "Source", "id": 31 }, { "type": "Plain", "text": text }],
            "variables": { "city": "Berlin" },
            "prompt": { "messages": [{ "role": "system", "content": "Be brief." }] },
        },
        "pipeline_config": { "ai": { "runner": { "runner": "outside" } } },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_released_classes_of_langbot_read_and_write_what_the_host_does() {
    // The name of the pipeline is an alias of the runner. A query brings its own binding, so the event of the test takes that of the
    // configuration, which grants everything.
    let outside = ExecutorHost::with(EVERYTHING, "", "", "[runner_aliases]\noutside = \"plugin:test/outside/default\"\n").await;
    let (status, taken) = outside.post("/api/v1/pipeline/queries", "", &query("only the first")).await;
    assert_eq!(status, 202, "{taken:#}");
    assert_eq!(taken["run"]["runner_id"], "plugin:test/outside/default");
    assert!(taken["run"]["created_at"].as_u64().unwrap() < 10_000_000_000, "seconds: {taken:#}");
    let first = outside.claim_with(json!({ "start": true, "wait_ms": 10_000 })).await;
    // The protocol's own names, and its example of a trigger (section 4.3).
    let examples: Vec<Value> = serde_json::from_str(include_str!("example.json")).unwrap();
    let trigger = &first.answer["context"]["trigger"];
    for (name, value) in examples[0].as_object().unwrap() {
        assert_eq!(&trigger[name], value, "{:#}", first.answer);
    }
    outside.complete(&first).await;

    // Earlier runs of the conversation, for pages of runs.
    let mut earlier = vec![first.run];
    let failed = json!({ "status": "failed", "message": "no luck" });
    for end in [json!({ "status": "completed" }), failed, json!({ "status": "completed" })] {
        let held = outside.held_in("", "person_42", "", "earlier").await;
        let (answer, run) = outside.post(&held.path("/finalize"), &held.token, &end).await;
        assert_eq!(answer, 200, "{run:#}");
        earlier.insert(0, held.run);
    }
    let event = json!({
        "event_type": "message.received", "source": "pipeline_adapter",
        "conversation": { "conversation_id": "person_42", "launcher_type": "person", "launcher_id": "42" },
        "actor": { "actor_type": "user", "actor_id": "42" },
        "input": { "text": "hello from LangBot" },
        "adapter": { "pipeline_uuid": "5f0c", "params": { "city": "Berlin" },
                     "prompt": [{ "role": "system", "content": "Be brief." }] },
    });
    let (status, accepted) = outside.post("/api/v1/events", "", &event).await;
    assert_eq!(status, 202, "{accepted:#}");
    let claim = json!({ "start": true, "wait_ms": 10_000, "lease_ms": 120_000 });
    let held = outside.claim_at("/api/v1/claims?dialect=langbot-4.11", claim).await;
    assert_eq!(held.answer["run"]["claim_token"], held.token.as_str());

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claim.json");
    let mut claim = held.answer.clone();
    claim["earlier"] = json!(earlier);
    fs::write(&path, claim.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exchange/calls/langbot.py");
    let python = tokio::task::spawn_blocking(|| pip::programs(PACKAGES).join("python")).await.unwrap();
    let server = outside.host.urls().borrow().clone();
    let output = tokio::task::spawn_blocking(move || Command::new(python).arg("-B").arg(script).arg(server).arg(path).output());
    let output = output.await.unwrap().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));

    // The record has the protocol's own names, whoever wrote it.
    let ended = outside.host.ended(&held.run).await;
    assert_eq!(ended.run["status"], "completed", "{ended}");
    assert_eq!(ended.run["claimed_usage"]["input"], 5, "{ended}");
    let deltas = ended.of("message.delta");
    assert_eq!((&deltas[0]["message_id"], &deltas[0]["chunk"]["content"]), (&json!("m1"), &json!("he")));
    assert_eq!(ended.of("message.completed")[0]["message"]["content"][0], json!({ "type": "text", "text": "here " }));
    let states = ended.of("state.updated");
    assert_eq!((states.len(), &states[0]["key"]), (1, &json!("external.count")), "calls of state are no results: {ended}");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failures_are_finalized_in_the_dialect() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let finalize = async |held: &ClaimedRun, path: &str, body: Value| outside.post(&held.path(path), &held.token, &body).await;
    let dialect = "/finalize?dialect=langbot-4.11";
    let (status, problem) = finalize(&held, dialect, json!({ "status": "completed", "run_id": "another" })).await;
    assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_argument")), "{problem:#}");
    let (status, run) = finalize(&held, dialect, json!({ "run_id": held.run, "status": "failed", "reason": "no luck" })).await;
    assert_eq!((status, run["status"].as_str()), (200, Some("failed")), "{run:#}");
    let ended = outside.host.ended(&held.run).await;
    assert_eq!(ended.run["failure"]["message"], "no luck");
    let events = outside.host.get(&format!("/api/v1/runs/{}/events?dialect=langbot-4.11", held.run)).await;
    let last = events["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["data"], json!({ "error": "no luck", "code": "runner.error", "retryable": false }), "{last:#}");
    outside.host.check();
}
