//! Executors register, are heard of, and go.

use std::time::{Duration, Instant};

use agent_host_tests::world::PATIENCE;
use reqwest::Method;
use serde_json::json;

use crate::queue::{
    desk::{Desk, host, results_from},
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

/// A binding of a runner whose manifest executors bring.
const BROUGHT: &str = r#"
[[executor_runners]]
runner_ids = ["plugin:acme/*"]
[executor_runners.permissions]
state = ["conversation"]
http_hosts = ["api.example.com:443"]

[[bindings]]
id = "coder"
runner = "plugin:acme/coder/default"
state = { scopes = ["conversation", "runner"] }
resources = { http_hosts = ["api.example.com:443"] }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_bring_manifests_that_the_operator_allows() {
    let mut host = Host::start(&["steps"], &format!("{}{BROUGHT}", crate::queue::desk::OUTSIDE));
    let desk = Desk::of(&host);
    let manifest = json!({
        "id": "plugin:acme/coder/default", "version": "2.1.0", "label": { "en": "Coder" }, "description": { "en": "Writes code." },
        "capabilities": { "streaming": true },
        "permissions": { "state": ["conversation"], "http_hosts": ["api.example.com:443"] },
        "config_schema": [{ "type": "string", "name": "tone", "label": {}, "default": "dry" }], "metadata": { "team": "tools" },
    });
    let with = |pointer: &str, value: serde_json::Value| {
        let mut changed = manifest.clone();
        changed[pointer] = value;
        changed
    };
    let ready = async || host.get("/api/v1/runners").await["bindings"][0].clone();
    assert_eq!(ready().await["ready"], false);
    for (manifests, status, says) in [
        (json!([with("permissions", json!({ "state": ["conversation", "runner"] }))]), 403, "state: runner"),
        (json!([with("permissions", json!({ "http_hosts": ["*:443"] }))]), 403, "http_hosts: *:443"),
        (json!([with("id", json!("plugin:other/coder/default"))]), 403, "[[executor_runners]]"),
        (json!([with("id", json!("plugin:test/outside/default"))]), 409, "of the operator's already"),
        (json!([with("id", json!("plugin:test/steps/default"))]), 409, "of the operator's already"),
        (json!([with("name", json!("other"))]), 400, "`name`"),
        (json!([with("metadata", json!("x".repeat(40_000)))]), 400, "bytes"),
        (json!([manifest, manifest]), 400, "two of"),
        (json!([with("permission", json!({}))]), 400, "permission"),
    ] {
        let (got, problem) = desk.post("/api/v1/executors", "", &json!({ "name": "x", "manifests": manifests })).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(got == status && detail.contains(says), "{got} {problem:#}\nfor {manifests}");
    }
    assert_eq!(host.get("/api/v1/executors").await["items"], json!([]), "a refused registration leaves nothing");

    let executor = desk.register(json!({ "name": "coder", "manifests": [manifest] })).await;
    assert_eq!(ready().await["ready"], true);
    let runners = host.get("/api/v1/runners").await;
    let listed =
        runners["runners"].as_array().unwrap().iter().find(|runner| runner["id"] == "plugin:acme/coder/default").unwrap();
    assert_eq!((&listed["version"], &listed["metadata"]["team"]), (&json!("2.1.0"), &json!("tools")));
    assert!(runners["external"].as_array().unwrap().contains(&json!("plugin:acme/coder/default")));
    // Another with the same manifest joins; a different one is refused.
    let other = desk.register(json!({ "name": "twin", "manifests": [manifest] })).await;
    let different = json!({ "name": "x", "manifests": [with("version", json!("3.0.0"))] });
    assert_eq!(desk.post("/api/v1/executors", "", &different).await.0, 409);

    // Its runs are granted what manifest and binding allow together.
    let job = async || {
        let run = desk
            .create(json!({ "binding_id": "coder", "input": { "text": "x" }, "conversation": { "conversation_id": "c" } }))
            .await;
        run["run_id"].as_str().unwrap().to_owned()
    };
    let run = job().await;
    let held = executor.claim().await;
    assert_eq!(held.run, run);
    let grant = host.get(&format!("/api/v1/runs/{run}/grant")).await;
    assert_eq!(grant["permissions"]["state"], json!(["conversation"]), "{grant:#}");
    let context = host.get(&format!("/api/v1/runs/{run}/context")).await;
    assert_eq!(context["config"], json!({ "tone": "dry" }), "{context:#}");
    // The executor hears of the hosts, also where it asks again.
    let started = held.does("start", json!({})).await;
    assert_eq!(started["http_hosts"], json!(["api.example.com:443"]), "{started:#}");
    held.complete().await;

    // It is there after a restart, until the last executor with it has gone, and as long as the configuration allows it.
    host.kill_and_revive();
    let ready = async |host: &Host| host.get("/api/v1/runners").await["bindings"][0]["ready"].clone();
    assert_eq!(ready(&host).await, true);
    for (executor, is_ready) in [(&executor, true), (&other, false)] {
        let path = format!("/api/v1/executors/{}", executor.id);
        let gone = desk.request(Method::DELETE, &path, &executor.credential).send().await.unwrap();
        assert_eq!((gone.status().as_u16(), ready(&host).await), (204, json!(is_ready)));
    }
    desk.register(json!({ "name": "coder", "manifests": [manifest] })).await;
    assert_eq!(ready(&host).await, true);
    host.terminate();
    host.reconfigure(|config| config.replace("plugin:acme/*", "plugin:acme/other/*"));
    host.revive();
    assert_eq!(ready(&host).await, false, "the operator does not allow it any more");
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
    // A record is committed a moment after its answer.
    let until = async |query: &str, count: usize| {
        let began = Instant::now();
        loop {
            let records = list(query).await;
            if records.len() >= count {
                return records;
            }
            assert!(began.elapsed() < PATIENCE, "{query}: {records:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let finalized = until(&format!("run_id={run}&action=queue.finalize"), 1).await;
    assert_eq!(finalized[0]["outcome"], "ok");
    let cancelled = until(&format!("run_id={run}&action=runs.cancel"), 1).await;
    assert_eq!(cancelled[0]["outcome"], "conflict");
    // The end of a run by its last result is an end as well; other results are in the record of the run.
    let appended = desk.job("appended", json!({})).await;
    let held = executor.claim().await;
    held.does("append", results_from(1, &["one"])).await;
    held.does("append", json!({ "results": [{ "type": "run.completed", "data": { "finish_reason": "stop" } }] })).await;
    let ends = until(&format!("run_id={appended}&action=queue.finalize"), 1).await;
    assert_eq!((ends.len(), &ends[0]["outcome"]), (1, &json!("ok")), "{ends:#?}");
    assert_eq!(list("action=queue.append").await.len(), 0);
    let registered = until("action=executors.&outcome=ok", 1).await;
    assert_eq!((registered.len(), registered[0]["action"].as_str()), (1, Some("executors.register")), "{registered:#?}");
    assert_eq!(registered[0]["details"]["address"], "127.0.0.1");
    let claims = list(&format!("principal={}", executor.id)).await;
    assert!(claims.iter().any(|record| record["action"] == "queue.claim" && record["outcome"] == "ok"), "{claims:#?}");
    let heartbeat = async |body: serde_json::Value| {
        desk.post(&format!("/api/v1/executors/{}/heartbeat", executor.id), &executor.credential, &body).await
    };
    assert_eq!(heartbeat(json!({})).await.0, 200);
    let (_, changed) = heartbeat(json!({ "slots": 7, "labels": { "gpu": "yes" }, "capabilities": { "gpus": 2 } })).await;
    assert_eq!((&changed["slots"], &changed["labels"]["gpu"]), (&json!(7), &json!("yes")), "{changed:#}");
    let shown = host.get(&format!("/api/v1/executors/{}", executor.id)).await;
    assert_eq!((&shown["slots"], &shown["capabilities"]), (&json!(7), &json!({ "gpus": 2 })), "{shown:#}");
    assert_eq!(heartbeat(json!({ "slots": 0 })).await.0, 400);
    let changes = until("action=executors.change", 2).await;
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
    held.does("append", crate::queue::desk::results_from(1, &["before"])).await;
    host.cancel(&run).await;
    held.refused("calls/state.get", json!({ "scope": "runner", "key": "k" }), 409, "cancelled").await;
    held.does("append", crate::queue::desk::results_from(2, &["after"])).await;
    held.does("finalize", json!({ "status": "cancelled", "reason": "stopped by its user" })).await;
    let ended = host.ended(&run).await.cancelled();
    assert_eq!(ended.message_texts(), ["before", "after"]);
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
    let counts = host.get("/api/v1/executors/statistics").await;
    let counted = ["executors", "online", "stale", "gone", "held"].map(|name| counts[name].as_u64().unwrap());
    assert_eq!(counted, [1, 0, 0, 1, 0], "{counts:#}");
    assert!(counts["heartbeat_age_ms"]["max"].as_u64() >= Some(3_000), "{counts:#}");
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
