//! The JSON of the protocol's own document (v1, sections 6 to 8), verbatim: an executor sends it, and it is taken. The examples
//! are those of `example.json` beside this file, which has them from the document.

use serde_json::{Value, json};

use agent_host_tests::grants::EVERYTHING;

use crate::calls::outside::ExecutorHost;

/// The examples of results in section 6 of the document. Its example of a trigger is in the same file (`langbot.rs`).
fn example(kind: &str) -> Value {
    let all: Vec<Value> = serde_json::from_str(include_str!("example.json")).unwrap();
    all.into_iter().find(|example| example["type"] == kind).unwrap_or_else(|| panic!("no example of {kind}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_of_the_protocol_are_appended_as_they_stand() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let append = async |body: Value| outside.post(&held.path("/append"), &held.token, &body).await;
    let done = async |body: Value| {
        let (status, answer) = append(body.clone()).await;
        assert_eq!(status, 200, "{body}: {answer:#}");
        answer
    };
    // Two pieces and the whole of a message without an id are one message; another piece begins the next.
    let (delta, whole) = (example("message.delta"), example("message.completed"));
    done(json!({ "first": 1, "results": [delta, delta] })).await;
    done(json!({ "first": 3, "results": [whole, delta] })).await;
    // The whole envelope, one result at a time, as `append_run_result(run_id, result, sequence)` sends it.
    let mut envelope = example("state.updated");
    envelope["run_id"] = held.run.clone().into();
    envelope["sequence"] = 5.into();
    envelope["timestamp"] = 1_700_000_000.into();
    for replayed in [false, true] {
        let answer = done(json!({ "result": envelope, "sequence": 5 })).await;
        assert_eq!((&answer["appended"], &answer["replayed"]), (&json!(5), &json!(replayed)));
    }
    envelope["run_id"] = "01890000-0000-7000-8000-000000000000".into();
    for wrong in [json!({ "result": envelope }), json!({ "first": 7, "results": [example("state.updated")] }), json!({})] {
        let (status, problem) = append(wrong.clone()).await;
        assert!(status == 400 || status == 409, "{wrong}: {problem:#}");
        assert_eq!(problem["message"], problem["detail"]);
    }
    let action = append(json!({ "result": example("action.requested"), "sequence": 6 })).await;
    assert_eq!(action.0, 200, "{:#}", action.1);
    // The end has the next number, and is of this run; what lies far behind is a gap and no accident.
    let mut stray = example("run.failed");
    stray["run_id"] = "01890000-0000-7000-8000-000000000000".into();
    for (wrong, status) in [
        (json!({ "first": 99, "results": [example("run.failed")] }), 409),
        (json!({ "first": u64::MAX, "results": [example("message.delta"), example("message.delta")] }), 409),
        (json!({ "first": 2, "results": [example("run.failed")] }), 422),
        (json!({ "results": [stray] }), 400),
    ] {
        let (got, problem) = append(wrong.clone()).await;
        assert_eq!(got, status, "{wrong}: {problem:#}");
    }
    let failed = json!({ "results": [example("run.failed")] });
    for replayed in [false, true] {
        assert_eq!(done(failed.clone()).await["replayed"], replayed);
    }
    let ended = outside.host.ended(&held.run).await.failed("runner.error");
    assert_eq!(ended.run["failure"]["message"], "failed to call external agent");
    let ids = |kind: &str| ended.of(kind).iter().map(|data| data["message_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let (deltas, completed) = (ids("message.delta"), ids("message.completed"));
    assert_eq!((deltas.len(), completed.len()), (3, 1));
    assert!(deltas[0] == deltas[1] && deltas[0] == completed[0] && deltas[2] != deltas[0], "{deltas:?} {completed:?}");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_of_the_protocol_are_taken_as_they_stand() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let run = held.run.clone();
    let message = json!({ "role": "user", "content": "hello" });
    let artifact =
        outside.answered(&held, "artifacts.create", json!({ "media_type": "text/plain", "content": "aGVsbG8=" })).await;
    let artifact = artifact["artifact_id"].as_str().unwrap();
    for (function, arguments) in [
        (
            "models.invoke",
            json!({ "run_id": run, "model_id": "a-chat", "messages": [message], "tools": null, "extra_args": null }),
        ),
        ("models.rerank", json!({ "run_id": run, "model_id": "a-rerank", "query": "q", "documents": ["a"], "top_k": null })),
        ("tools.get_detail", json!({ "run_id": run, "tool_name": "a__add" })),
        ("tools.call", json!({ "run_id": run, "tool_name": "a__add", "parameters": { "a": 1, "b": 2 } })),
        ("knowledge.retrieve", json!({ "run_id": run, "kb_id": "a-base", "query_text": "q", "filters": null })),
        (
            "history.page",
            json!({ "run_id": run, "conversation_id": null, "before_cursor": null, "after_cursor": null, "limit": 50,
                    "direction": "backward", "include_artifacts": false }),
        ),
        ("history.search", json!({ "run_id": run, "query": "hello", "filters": null })),
        ("events.page", json!({ "run_id": run, "before_cursor": null, "limit": 50 })),
        ("artifacts.metadata", json!({ "run_id": run, "artifact_id": artifact })),
        ("artifacts.read_range", json!({ "run_id": run, "artifact_id": artifact, "offset": 0, "length": 65536 })),
        ("state.set", json!({ "run_id": run, "scope": "runner", "key": "k", "value": 1 })),
        ("storage.list", json!({ "run_id": run, "area": "plugin", "prefix": null })),
        ("platform.request_action", json!({ "action": "message.edit", "target": {}, "payload": {} })),
    ] {
        let (status, answer) = outside.call(&held, function, &arguments).await;
        assert_eq!(status, 200, "{function}: {answer:#}");
    }
    let stream = outside.request(reqwest::Method::POST, &held.path("/calls/artifacts.open_stream"), &held.token);
    let content = stream.json(&json!({ "artifact_id": artifact })).send().await.unwrap();
    assert_eq!((content.status().as_u16(), &*content.bytes().await.unwrap()), (200, &b"hello"[..]));
    let other = json!({ "run_id": "01890000-0000-7000-8000-000000000000", "scope": "runner", "key": "k" });
    let problem = outside.refused(&held, "state.get", other, 400, "invalid_argument").await;
    assert_eq!(problem["message"], problem["detail"]);
    outside.complete(&held).await;
    outside.host.check();
}
