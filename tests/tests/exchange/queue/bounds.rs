//! Runs of the host are in the same queue.

use serde_json::json;

use crate::queue::{desk::Desk, support::Host};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_runs_so_many_at_a_time_and_the_most_urgent_next() {
    let host = Host::steps("[bindings.queue]\nconcurrency = 1\n");
    let desk = Desk::of(&host);
    let make = async |text: &str, priority: i32, start: &str| {
        let body = json!({ "binding_id": "steps", "input": { "text": text }, "start": start });
        let mut body = body;
        if start == "queue" {
            body["queue"] = json!({ "priority": priority });
        }
        desk.create(body).await["run_id"].as_str().unwrap().to_owned()
    };
    let first = make("sleep 4500", 0, "queue").await;
    host.until_status(&first, "running").await;
    let second = make("say two", 0, "queue").await;
    let urgent = make("say urgent", 9, "queue").await;
    host.until_status(&second, "queued").await;
    host.until_status(&urgent, "queued").await;
    let at_once = make("say now", 0, "now").await;
    host.ended(&at_once).await.completed();
    assert_eq!(host.run(&first).await["status"], "running", "what starts now does not wait for its binding");
    host.ended(&second).await.completed();
    let started = async |run: &str| host.run(run).await["started_at"].as_u64().unwrap();
    assert!(started(&urgent).await <= started(&second).await);
    assert!(started(&urgent).await >= host.run(&first).await["finished_at"].as_u64().unwrap());
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_its_binding_survives_a_kill_and_can_be_cancelled() {
    let mut host = Host::steps("[bindings.queue]\nconcurrency = 1\n");
    let slow = host.send("sleep 2500").await;
    host.until_status(&slow, "running").await;
    let waits = host.send("say waited").await;
    let off = host.send("say never").await;
    host.until_status(&off, "queued").await;
    host.kill_and_revive();
    host.cancel(&off).await;
    host.ended(&off).await.cancelled();
    host.ended(&slow).await.completed();
    host.ended(&waits).await.completed();
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_begins_so_many_in_a_minute() {
    let host = Host::steps("[bindings.queue]\nper_minute = 120\n");
    let runs = futures_util::future::join_all((0..4).map(|_| host.send("say hi"))).await;
    let mut started = Vec::new();
    for run in runs {
        host.ended(&run).await.completed();
        started.push(host.run(&run).await["started_at"].as_u64().unwrap());
    }
    started.sort_unstable();
    // Two a second: the fourth begins a second and a half after the first, or later.
    assert!(started[3] - started[0] >= 1_400, "{started:?}");
    host.check();
}
