//! The results of an executor have the effects of a guest's, once.

use serde_json::{Value, json};

use crate::queue::desk::{Desk, host, results_from, texts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_numbered_without_a_gap_and_repeating_them_is_harmless() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let run = desk.job("count", json!({})).await;
    let held = desk.executor("e").await.claim().await;
    let gap = held.refused("append", results_from(2, &["two"]), 409, "sequence_gap").await;
    assert!(gap["detail"].as_str().unwrap().contains("result 1"), "{gap:#}");
    let first = held.does("append", results_from(1, &["one", "two"])).await;
    assert_eq!((first["appended"].as_u64(), first["replayed"].as_bool()), (Some(2), Some(false)));
    for _ in 0..3 {
        let again = held.does("append", results_from(1, &["one", "two"])).await;
        assert_eq!((again["appended"].as_u64(), again["replayed"].as_bool()), (Some(2), Some(true)));
        assert_eq!(again["last_sequence"], first["last_sequence"]);
    }
    // A part is new: only that is appended. The same number with another content is refused, and nothing of its batch is taken.
    let overlap = held.does("append", results_from(2, &["two", "three"])).await;
    assert_eq!((overlap["appended"].as_u64(), overlap["replayed"].as_bool()), (Some(3), Some(false)));
    for body in [results_from(1, &["other", "two"]), results_from(3, &["other", "four"])] {
        let problem = held.refused("append", body, 422, "idempotency_conflict").await;
        assert!(problem["detail"].as_str().unwrap().starts_with("result "), "{problem:#}");
    }
    // Twenty of them at once, each three times: in some order they are refused or taken, and each is there once.
    let mut tasks = Vec::new();
    for first in 4..24_u64 {
        for _ in 0..3 {
            let held = held.clone();
            tasks.push(tokio::spawn(async move {
                loop {
                    let (status, answer) = held.post("append", results_from(first, &[&format!("n{first}")])).await;
                    match status {
                        200 => return,
                        409 => assert_eq!(answer["code"], "sequence_gap", "{answer:#}"),
                        other => panic!("{other}: {answer:#}"),
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    held.complete().await;
    let stored_texts = texts(&host.events(&run).await);
    let wanted = ["one", "two", "three"].map(str::to_owned).into_iter().chain((4..24).map(|n| format!("n{n}")));
    let wanted: Vec<_> = wanted.collect();
    assert_eq!(stored_texts, wanted);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_judged_whole_and_by_the_grant_of_the_run() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let run = desk.job("judge", json!({})).await;
    let held = desk.executor("e").await.claim().await;
    let one = |kind: &str, data: Value| json!({ "type": kind, "data": data });
    let good = results_from(1, &["kept?"])["results"][0].clone();
    for (bad, status, code) in [
        (one("run.status", json!({ "status": "running" })), 400, "invalid_argument"),
        (one("message.delta", json!({ "message_id": 5 })), 400, "invalid_argument"),
        (
            one("message.delta", json!({ "message_id": "m", "chunk": { "role": "assistant", "content": "x", "more": 1 } })),
            400,
            "invalid_argument",
        ),
        (one("state.updated", json!({ "scope": "actor", "key": "k", "value": 1 })), 403, "unauthorized"),
        (one("artifact.created", json!({ "artifact": { "artifact_id": "0190", "media_type": "text/plain" } })), 404, "not_found"),
        (one("acme.progress", json!({ "text": "x".repeat(40_000) })), 413, "payload_too_large"),
    ] {
        let batch = json!({ "first": 1, "results": [good, bad] });
        let (got, problem) = held.post("append", batch).await;
        assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{problem:#}");
    }
    // The end of a run is the last result, or none.
    let early = json!({ "first": 1, "results": [one("run.completed", json!({ "finish_reason": "stop" })), good] });
    held.refused("append", early, 400, "invalid_argument").await;
    let batch = json!({ "first": 1, "results": [
        good, one("state.updated", json!({ "scope": "runner", "key": "k", "value": { "n": 1 } })), one("acme.progress", json!({ "at": 1 })),
    ] });
    held.does("append", batch).await;
    let value = held.does("calls/state.get", json!({ "scope": "runner", "key": "k" })).await;
    assert!(value.to_string().contains("{\"n\":1}"), "{value:#}");
    held.complete().await;
    let kinds: Vec<_> = host.events(&run).await.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["message.completed", "state.updated", "acme.progress", "run.completed"]);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_an_executor_join_the_conversation_and_its_runs_wait_in_line() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let (first, second) = (host.send_in("c", "hello").await, host.send_in("c", "and again").await);
    let executor = desk.executor("e").await;
    let held = executor.claim().await;
    assert_eq!(held.run, first);
    assert!(executor.claims(json!({})).await.is_none(), "one run of a conversation at a time");
    held.does("append", results_from(1, &["good day"])).await;
    let done = held
        .does("finalize", json!({ "status": "completed", "finish_reason": "stop", "usage": { "input": 3, "output": 4 } }))
        .await;
    assert_eq!((done["status"].as_str(), done["claimed_usage"]["output"].as_u64()), (Some("completed"), Some(4)), "{done:#}");
    // The answer may have been lost.
    assert_eq!(held.does("finalize", json!({ "status": "completed" })).await["status"], "completed");
    held.refused("finalize", json!({ "status": "failed", "message": "or not" }), 409, "claim_lost").await;
    let held = executor.claim().await;
    assert_eq!(held.run, second);
    let page = held.does("calls/history.page", json!({ "limit": 10, "direction": "backward" })).await;
    let page = page.to_string();
    assert!(page.contains("hello") && page.contains("good day"), "{page}");
    held.complete().await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_may_pass_is_tried_again_as_often_as_the_binding_says() {
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("e").await;
    let run = desk.job("flaky", json!({})).await;
    let failed = json!({ "status": "failed", "code": "acme.busy", "message": "the model is busy", "retryable": true });
    for attempt in 1..=2 {
        let held = executor.claim().await;
        assert_eq!(host.run(&run).await["attempt"], attempt);
        assert_eq!(held.does("finalize", failed.clone()).await["status"], "queued");
    }
    let held = executor.claim().await;
    let last = held.does("finalize", failed).await;
    assert_eq!((last["status"].as_str(), last["failure"]["code"].as_str()), (Some("failed"), Some("acme.busy")), "{last:#}");

    let run = desk.job("broken", json!({})).await;
    let held = executor.claim().await;
    held.does("finalize", json!({ "status": "failed", "message": "no such file" })).await;
    host.ended(&run).await.failed("runner.error");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_run_wherever_it_is_and_its_executor_hears_of_it() {
    use eventsource_stream::Eventsource;
    use futures_util::StreamExt;
    let host = host("", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("e").await;
    let queued = desk.job("queued", json!({})).await;
    host.cancel(&queued).await;
    host.ended(&queued).await.cancelled();

    let path = format!("/api/v1/executors/{}/events", executor.id);
    let news = desk.request(reqwest::Method::GET, &path, &executor.credential).send().await.unwrap();
    assert_eq!(news.status(), 200);
    let mut news = news.bytes_stream().eventsource();
    for start in [false, true] {
        let run = desk.job("held", json!({})).await;
        let held = executor.claims(json!({ "wait_ms": 10_000, "start": start })).await.unwrap();
        if start {
            held.does("append", results_from(1, &["so far"])).await;
        }
        host.cancel(&run).await;
        let news_item: Value = serde_json::from_str(&news.next().await.unwrap().unwrap().data).unwrap();
        assert_eq!(
            (news_item["type"].as_str(), news_item["run_id"].as_str()),
            (Some("run.cancel_requested"), Some(run.as_str())),
            "{news_item:#}"
        );
        let ended = host.ended(&run).await.cancelled();
        assert_eq!(ended.message_texts().len(), usize::from(start));
        held.refused("append", results_from(2, &["more"]), 409, "claim_lost").await;
        held.refused("renew", json!({}), 409, "claim_lost").await;
    }
    host.check();
}
