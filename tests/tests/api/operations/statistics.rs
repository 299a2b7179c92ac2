//! The statistics match the runs.

use serde_json::{Value, json};

use crate::operations::host::{Host, LIMITS, echo, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_counted_by_what_became_of_them() {
    let missing =
        "[[bindings]]\nid = \"nobody\"\nrunner = \"plugin:no/body/here\"\nmatch = { event_type = \"test\\\\.fails\" }\n";
    let spoken = "match = { event_type = \"message\\\\..*\" }\n";
    let host = Host::start(&["echo"], &format!("{LIMITS}{}{spoken}{}{spoken}{missing}", echo("one", "a"), echo("two", "b")));
    for _ in 0..3 {
        assert_eq!(host.say("x").await.len(), 2);
    }
    let (_, answer) = host.post("/api/v1/events", &json!({ "event_type": "test.fails" })).await;
    let failed = answer["runs"][0]["run_id"].as_str().unwrap().to_owned();
    crate::operations::host::until("it fails", async || host.run(&failed).await["status"] == "failed").await;

    let (status, all) = host.get("/api/v1/statistics?group_by=binding").await;
    assert_eq!(status, 200, "{all}");
    assert_eq!((&all["total"]["runs"], &all["truncated"]), (&json!(7), &json!(false)));
    assert_eq!(all["total"]["by_status"], json!({ "completed": 6, "failed": 1 }));
    assert!((all["total"]["success_rate"].as_f64().unwrap() - 6.0 / 7.0).abs() < 1e-9);
    let groups: Vec<_> =
        all["groups"].as_array().unwrap().iter().map(|group| (group["key"].clone(), group["runs"].clone())).collect();
    assert_eq!(groups, [(json!("one"), json!(3)), (json!("two"), json!(3)), (json!("nobody"), json!(1))]);

    // Against the records themselves.
    let (_, runs) = host.get("/api/v1/runs?binding_id=one").await;
    let mut took: Vec<u64> =
        runs["items"].as_array().unwrap().iter().map(|run| at(run, "finished_at") - at(run, "started_at")).collect();
    took.sort_unstable();
    let one = &all["groups"][0];
    assert_eq!(
        one["duration_ms"],
        json!({ "count": 3, "p50": took[1], "p90": took[2], "p95": took[2], "p99": took[2], "max": took[2] })
    );
    assert_eq!(one["queue_wait_ms"]["count"], 3);

    let last = runs["items"].as_array().unwrap().iter().map(|run| at(run, "created_at")).max().unwrap();
    let total = async |query: &str| host.get(&format!("/api/v1/statistics?{query}")).await.1["total"]["runs"].clone();
    assert_eq!(total("binding_id=one").await, 3);
    assert_eq!(total("runner_id=plugin:no/body/here").await, 1);
    assert_eq!(total(&format!("since={}", last + 60_000)).await, 0);
    assert_eq!(total(&format!("binding_id=one&until={last}")).await, 2);
    assert_eq!(total("workspace_id=w").await, 0);
    assert_eq!(total("queue=q").await, 0);
    assert_eq!(total("since=5&until=4").await, 0);
    for (query, field) in [
        ("group_by=day", "group_by"),
        ("since=yesterday", "since"),
        ("until=-1", "until"),
        ("runner_id=echo", "runner_id"),
        ("binding=one", "binding"),
    ] {
        let (status, problem) = host.get(&format!("/api/v1/statistics?{query}")).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
    }

    let shown = host.command(&["statistics", "--by", "runner", "--since", "1h"]);
    assert!(shown.status.success() && text(&shown).contains("plugin:agent-host/echo/default"), "{}", text(&shown));
    let shown = host.command(&["statistics", "--binding", "two", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["total"]["ended"], 3);
}

fn at(run: &Value, field: &str) -> u64 {
    run[field].as_u64().unwrap_or_else(|| panic!("no {field}: {run}"))
}
