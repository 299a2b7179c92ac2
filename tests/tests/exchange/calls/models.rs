//! The output of the host, compared with classes that are written after the documents of the protocol and of the run ledger
//! (`models.py`, with pydantic).

use std::{fmt::Write, fs, path::Path, process::Command};

use agent_host_tests::{grants::EVERYTHING, pip};
use serde_json::{Value, json};

use crate::calls::outside::ExecutorHost;

/// The packages of the environment; the tests of AG-UI use the same.
const PACKAGES: &str = include_str!("../../clients/agui/requirements.txt");

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn classes_after_the_documents_read_manifests_contexts_results_rows_and_errors() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let mut lines = String::new();
    let mut give = |model: &str, value: &Value| writeln!(lines, "{}", json!({ "model": model, "value": value })).unwrap();

    // Three runs: one that does what it can, one that fails, one without a conversation.
    let event = json!({
        "event_type": "message.received", "source": "platform", "event_time": 1_700_000_000_000_u64, "locale": "en", "timezone": "UTC",
        "conversation": { "conversation_id": "c", "thread_id": "t", "launcher_type": "group", "launcher_id": "g" },
        "actor": { "actor_type": "user", "actor_id": "u", "actor_name": "Ann" },
        "subject": { "subject_type": "message", "subject_id": "m" },
        "input": { "text": "hello", "message_chain": { "type": "chain" } },
        "adapter": { "query_id": 1 },
    });
    let (status, accepted) = outside.post("/api/v1/events", "", &event).await;
    assert_eq!(status, 202, "{accepted:#}");
    let held = outside.claim().await;
    give("AgentRunContext", &held.answer["context"]);
    let artifact = json!({ "media_type": "text/plain", "name": "a.txt", "content": "aGVsbG8=" });
    let artifact = outside.answered(&held, "artifacts.create", artifact).await;
    outside.answered(&held, "tools.call", json!({ "tool_name": "a__add", "parameters": { "a": 1, "b": 2 } })).await;
    outside
        .answered(&held, "models.invoke", json!({ "model_id": "a-chat", "messages": [{ "role": "user", "content": "x" }] }))
        .await;
    outside.answered(&held, "platform.request_action", json!({ "action": "message.edit", "target": {}, "payload": {} })).await;
    let part = json!({ "type": "artifact", "artifact": { "artifact_id": artifact["artifact_id"], "media_type": "text/plain" } });
    let message = json!({ "role": "assistant", "content": [{ "type": "text", "text": "here" }, part] });
    let results = [
        json!({ "type": "message.delta", "data": { "chunk": { "role": "assistant", "content": "he" } } }),
        json!({ "type": "message.completed", "data": { "message": message }, "metadata": { "step": 1 } }),
        json!({ "type": "state.updated", "data": { "scope": "runner", "key": "k", "value": { "a": 1 } } }),
        json!({ "type": "acme.note", "data": { "any": "thing" } }),
    ];
    let (status, answer) = outside.post(&held.path("/append"), &held.token, &json!({ "first": 1, "results": results })).await;
    assert_eq!(status, 200, "{answer:#}");
    for (function, arguments) in [
        ("models.invoke", json!({ "model_id": "nothing", "messages": [] })),
        ("state.get", json!({ "scope": "nothing", "key": "k" })),
        ("tools.call", json!({ "tool_name": "b__nothing", "parameters": {} })),
        ("storage.set", json!({ "area": "plugin", "key": "", "value": "aGk=" })),
    ] {
        let (status, problem) = outside.call(&held, function, &arguments).await;
        assert!(status >= 400, "{function}: {problem:#}");
        give("AgentAPIError", &problem);
    }
    let (status, problem) = outside.post(&held.path("/append"), "ahl_wrong", &json!({})).await;
    assert!(status >= 400, "{problem:#}");
    give("AgentAPIError", &problem);
    outside.complete(&held).await;
    let (_, second) = outside.post("/api/v1/events", "", &json!({ "event_type": "ticket.opened", "data": { "n": 1 } })).await;
    let failing = outside.claim().await;
    give("AgentRunContext", &failing.answer["context"]);
    let end = json!({ "status": "failed", "code": "acme.broken", "message": "it broke", "details": { "a": 1 } });
    outside.post(&failing.path("/finalize"), &failing.token, &end).await;
    assert!(second["event_id"].is_string());

    let runners = outside.host.get("/api/v1/runners").await;
    for runner in runners["runners"].as_array().unwrap() {
        give("AgentRunnerManifest", runner.get("manifest").unwrap_or(runner));
    }
    let runs = outside.host.get("/api/v1/runs").await;
    for run in runs["items"].as_array().unwrap() {
        give("AgentRun", run);
        for event in outside.host.events(run["run_id"].as_str().unwrap()).await {
            give("AgentRunEvent", &event);
            give("AgentRunResult", &event);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("values.jsonl");
    fs::write(&path, &lines).unwrap();
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exchange/calls/models.py");
    let python = tokio::task::spawn_blocking(|| pip::programs(PACKAGES).join("python")).await.unwrap();
    let output = tokio::task::block_in_place(|| Command::new(python).arg(checker).arg(&path).output().unwrap());
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(lines.lines().count() > 30, "{lines}");
    outside.host.check();
}
