//! Runs that are made by name, and other attempts at those that have ended.

use reqwest::Method;
use serde_json::{Value, json};

use crate::queue::{
    desk::{Desk, OUTSIDE},
    support::Host,
};

fn two() -> Host {
    Host::start(
        &["steps"],
        &format!(
            "{OUTSIDE}\n[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n[[bindings]]\nid = \"outside\"\nrunner \
             = \"plugin:test/outside/default\"\nmatch = {{ event_type = \"job\\\\..*\" }}\n"
        ),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_made_for_a_binding_a_runner_a_message_or_an_event() {
    let host = two();
    let desk = Desk::of(&host);
    let id = |run: &Value| run["run_id"].as_str().unwrap().to_owned();
    let run = desk
        .create(json!({ "binding_id": "steps", "input": { "text": "say hi" }, "metadata": { "ticket": 7 }, "deadline_ms": 9000 }))
        .await;
    assert_eq!((run["binding_id"].as_str(), run["metadata"]["ticket"].as_u64()), (Some("steps"), Some(7)), "{run:#}");
    host.ended(&id(&run)).await.completed();
    let ended = host.run(&id(&run)).await;
    assert_eq!(ended["deadline_at"].as_u64().unwrap() - ended["started_at"].as_u64().unwrap(), 9000);

    let event = run["event_id"].as_str().unwrap();
    let second = desk.create(json!({ "binding_id": "steps", "event_id": event })).await;
    assert_eq!(second["event_id"], event);
    host.ended(&id(&second)).await.completed();
    assert_eq!(host.get(&format!("/api/v1/events/{event}")).await["runs"].as_array().unwrap().len(), 2);

    let named = desk.create(json!({ "runner_id": "plugin:test/steps/default", "input": { "text": "say hi" } })).await;
    assert_eq!(named["binding_id"], "ad-hoc");
    host.ended(&id(&named)).await.completed();

    // A runner that the host has may be left to an executor.
    let outside = desk.create(json!({ "binding_id": "steps", "input": { "text": "job" }, "start": "external" })).await;
    assert_eq!(
        (outside["execution"].as_str(), outside["queue"]["name"].as_str()),
        (Some("external"), Some("default")),
        "{outside:#}"
    );
    desk.executor("e").await.claim().await.complete().await;

    let event = json!({ "event_type": "job.requested", "data": { "n": 1 } });
    let run = desk.create(json!({ "binding_id": "outside", "event": event })).await;
    assert_eq!(run["execution"], "external");
    host.cancel(&id(&run)).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_a_repeated_request_harmless() {
    let host = two();
    let desk = Desk::of(&host);
    let send = async |body: &Value, path: &str, key: &str| {
        let request = desk.request(Method::POST, path, "").header("idempotency-key", key).json(body);
        desk.try_send(request).await.unwrap()
    };
    let new = json!({ "binding_id": "steps", "input": { "text": "say hi" } });
    let (status, first) = send(&new, "/api/v1/runs", "k1").await;
    assert_eq!(status, 202, "{first:#}");
    let (_, again) = send(&new, "/api/v1/runs", "k1").await;
    assert_eq!(first["run_id"], again["run_id"]);
    let (status, problem) = send(&json!({ "binding_id": "steps", "input": { "text": "say ho" } }), "/api/v1/runs", "k1").await;
    assert_eq!((status, problem["code"].as_str()), (422, Some("idempotency_conflict")));
    let run = first["run_id"].as_str().unwrap().to_owned();
    host.ended(&run).await.completed();

    let of = json!({ "binding_id": "steps", "event_id": first["event_id"] });
    let retry = format!("/api/v1/runs/{run}/retry");
    for (path, body) in [("/api/v1/runs", &of), (retry.as_str(), &json!({}))] {
        // Ten at once make one.
        let key = format!("k2{}", path.len());
        let made = futures_util::future::join_all((0..10).map(|_| send(body, path, &key))).await;
        let ids: std::collections::BTreeSet<_> = made.iter().map(|(_, run)| run["run_id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), 1, "{path}: {made:#?}");
    }
    let (status, problem) =
        send(&json!({ "binding_id": "outside", "event_id": first["event_id"] }), "/api/v1/runs", "k212").await;
    assert_eq!((status, problem["code"].as_str()), (422, Some("idempotency_conflict")), "{problem:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_has_ended_is_tried_again_and_the_two_are_linked() {
    let host = two();
    let desk = Desk::of(&host);
    let first = host.send("fail broken").await;
    let retry = async |run: &str| desk.post(&format!("/api/v1/runs/{run}/retry"), "", &json!({})).await;
    host.ended(&first).await.failed("steps.failed");
    let (status, second) = retry(&first).await;
    assert_eq!((status, second["retry_of"].as_str()), (202, Some(first.as_str())), "{second:#}");
    assert_eq!(second["event_id"], host.run(&first).await["event_id"]);
    let second = second["run_id"].as_str().unwrap().to_owned();
    host.ended(&second).await.failed("steps.failed");

    let slow = host.send("sleep 60000").await;
    host.until_status(&slow, "waiting").await;
    let (status, problem) = retry(&slow).await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("conflict")), "{problem:#}");
    host.cancel(&slow).await;
    let (status, _) = retry("0197e7e0-0000-7000-8000-000000000000").await;
    assert_eq!(status, 404);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_gets_no_more_than_the_binding_gives() {
    let host = Host::start(
        &["steps"],
        "[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nresources = { history = [\"page\"], runs = [] }\n",
    );
    let desk = Desk::of(&host);
    let grant = async |resources: Value| {
        let run = desk
            .create(json!({ "binding_id": "steps", "input": { "text": "say hi" }, "resources": resources,
                "conversation": { "conversation_id": "c" } }))
            .await;
        let id = run["run_id"].as_str().unwrap().to_owned();
        host.ended(&id).await.completed();
        host.get(&format!("/api/v1/runs/{id}/grant")).await
    };
    let as_bound = grant(json!({})).await;
    let more = grant(json!({ "history": ["page", "search"], "runs": ["start", "list"], "runner_ids": ["*"], "http_hosts": ["api.example.com:443"] })).await;
    assert_eq!(as_bound["permissions"], more["permissions"], "{more:#}");
    let less = grant(json!({ "history": [], "artifacts": [] })).await;
    assert_eq!((&less["permissions"]["history"], &less["permissions"]["artifacts"]), (&json!([]), &json!([])), "{less:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_contradicts_itself_is_refused() {
    let host = two();
    let desk = Desk::of(&host);
    let input = json!({ "text": "x" });
    for (body, status, code) in [
        (json!({ "input": input }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps" }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "runner_id": "plugin:test/steps/default", "input": input }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "input": input, "event": { "event_type": "a" } }), 400, "invalid_argument"),
        (
            json!({ "binding_id": "steps", "event": { "event_type": "a" }, "actor": { "actor_type": "user" } }),
            400,
            "invalid_argument",
        ),
        (json!({ "binding_id": "nobody", "input": input }), 404, "not_found"),
        (json!({ "binding_id": "steps", "event_id": "0197e7e0-0000-7000-8000-000000000000" }), 404, "not_found"),
        (json!({ "runner_id": "plugin:a/b/c", "input": input }), 404, "runner_not_found"),
        (json!({ "binding_id": "outside", "input": input, "start": "now" }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "input": input, "start": "now", "queue": { "priority": 1 } }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "input": input, "queue": { "name": "a b" } }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "input": input, "deadline_ms": 0 }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "input": input, "deliver": ["nobody"] }), 400, "invalid_argument"),
        (json!({ "binding_id": "steps", "inputs": input }), 400, "invalid_argument"),
    ] {
        let (got, problem) = desk.post("/api/v1/runs", "", &body).await;
        assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{body}: {problem:#}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    host.check();
}
