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

const SCRIPT: &str =
    "[[reply]]\ntext = \"A model says this.\"\nusage = { input = 11, output = 7, cached_input = 3, reasoning = 2 }\n";

/// A host with the runner `stage` as four bindings, and a model with a price. Two are without a budget: `free`, and `short` with little
/// time. `bounded` has few tokens, and `cheap` has money for a call and a half.
fn stage() -> Host {
    let dir = agent_host_tests::Process::lay_out(&["stage"]);
    std::fs::write(dir.path().join("script.toml"), SCRIPT).unwrap();
    stage_in(dir)
}

/// The same in these directories.
fn stage_in(dir: tempfile::TempDir) -> Host {
    let binding = |id: &str, more: &str| {
        format!(
            "[[bindings]]\nid = \"{id}\"\nrunner = \"plugin:test/stage/default\"\nmatch = {{ event_type = \"{id}\" }}\n\
             resources = {{ runs = [\"start\", \"get\", \"events\"] }}\n{more}\n"
        )
    };
    let model =
        "[[models]]\nid = \"chat\"\nprovider = \"scripted\"\nscript = \"script.toml\"\nprice = { input = 2.0, output = 10.0 }\n";
    let bindings = [
        binding("free", ""),
        binding("short", "deadline_ms = 700"),
        binding("bounded", "max_tokens = 30\nmax_cost = 5.0"),
        binding("cheap", "max_cost = 0.00015"),
    ];
    let config = format!("{LIMITS}{model}{}", bindings.concat());
    Host::of(tokio::task::block_in_place(|| agent_host_tests::Process::start_as(dir, "loopback_without_key = true", &config)))
}

/// The run of a script.
async fn begin(host: &Host, event_type: &str, script: Value) -> String {
    let event = json!({ "event_type": event_type, "input": { "text": script.to_string() } });
    let (_, answer) = host.post("/api/v1/events", &event).await;
    answer["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The ended run of a script.
async fn act(host: &Host, event_type: &str, script: Value) -> Value {
    let id = begin(host, event_type, script).await;
    crate::operations::host::until("it ends", async || host.run(&id).await["finished_at"].is_number()).await;
    host.run(&id).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_what_the_host_measured_and_claims_are_apart() {
    let host = stage();
    let model = json!({ "do": "model", "prompt": "Say something." });
    let once = json!({ "calls": 1, "input": 11, "output": 7, "cached_input": 3, "reasoning": 2, "cost_micros": 92 });
    let sleep = json!({ "do": "sleep", "ms": 60_000 });

    let failed = act(&host, "free", json!([model, { "do": "fail", "code": "stage.failed", "message": "as asked" }])).await;
    assert_eq!((&failed["status"], &failed["usage"], &failed["usage_by_model"]["chat"]), (&json!("failed"), &once, &once));

    let usage = json!({ "input": 1_000, "output": 2_000 });
    let late = act(&host, "short", json!([model, sleep])).await;
    assert_eq!((&late["status"], &late["usage"]), (&json!("timeout"), &once), "{late:#}");
    let id = begin(&host, "free", json!([model, sleep])).await;
    crate::operations::host::until("a run that goes on shows its use", async || host.run(&id).await["usage"] == once).await;
    assert_eq!(host.post(&format!("/api/v1/runs/{id}/cancel"), &json!({})).await.0, 202);
    crate::operations::host::until("it ends", async || host.run(&id).await["finished_at"].is_number()).await;
    let cancelled = host.run(&id).await;
    assert_eq!((&cancelled["status"], &cancelled["usage"]), (&json!("cancelled"), &once), "{cancelled:#}");

    let boasts = act(&host, "free", json!([model, { "do": "finish", "text": "done", "usage": usage }])).await;
    assert_eq!((&boasts["usage"], &boasts["claimed_usage"]), (&once, &usage), "{boasts:#}");

    let silent = act(&host, "free", json!([model, model])).await;
    assert_eq!((&silent["usage"]["calls"], &silent["usage"]["input"]), (&json!(2), &json!(22)), "{silent:#}");

    for end in [json!({ "do": "finish" }), json!({ "do": "fail" })] {
        let parent = act(&host, "free", json!([{ "do": "child", "script": [model, end] }])).await;
        assert_eq!((&parent["children_usage"], parent.get("usage")), (&once, None), "{parent:#}");
    }

    let (_, all) = host.get("/api/v1/statistics").await;
    let total = &all["total"];
    assert_eq!((&total["tokens"]["input"], &total["tokens"]["output"]), (&json!(8 * 11), &json!(8 * 7)), "{total:#}");
    assert_eq!((&total["cost_micros"], &total["claimed_tokens"]["output"]), (&json!(8 * 92), &json!(2_000)), "{total:#}");
    let metrics = reqwest::get(host.process.url("/metrics")).await.unwrap().text().await.unwrap();
    for (direction, tokens) in [("input", 8 * 11), ("output", 8 * 7)] {
        let line = metrics.lines().find(|line| line.starts_with("agent_host_model_tokens_total") && line.contains(direction));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {tokens}"))), "{direction}: {line:?}");
    }
    let shown = host.command(&["runs", "show", failed["run_id"].as_str().unwrap()]);
    assert!(text(&shown).contains("11 in, 7 out in 1 calls, cost 0.000092"), "{}", text(&shown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_has_used_its_budget_gets_no_further_model_calls() {
    let host = stage();
    let model = json!({ "do": "model", "prompt": "Say something." });
    // 18 tokens each: the second call reaches the limit, the third is refused.
    let run = act(&host, "bounded", json!([model, model, model])).await;
    assert_eq!((&run["status"], &run["usage"]["calls"]), (&json!("failed"), &json!(2)), "{run:#}");
    assert!(run["failure"]["message"].as_str().unwrap().contains("`max_tokens`"), "{run:#}");
    let events = host.events(run["run_id"].as_str().unwrap()).await;
    let reached: Vec<_> = events.iter().filter(|event| event["type"] == "limit.reached").map(|event| &event["data"]).collect();
    assert_eq!(reached.len(), 1, "{events:#?}");
    assert_eq!((&reached[0]["limit"], &reached[0]["value"]), (&json!("max_tokens"), &json!(30)));

    let run = act(&host, "cheap", json!([model, model, model])).await;
    assert_eq!((&run["usage"]["calls"], &run["failure"]["code"]), (&json!(2), &json!("budget_exhausted")), "{run:#}");
    assert_eq!(run["failure"]["details"], json!({ "code": "budget_exhausted", "limit": "max_cost_micros", "value": 150 }));

    // A child has what is left of its parent's budget.
    let run = act(&host, "bounded", json!([model, { "do": "child", "script": [model, model] }, model])).await;
    assert_eq!((&run["usage"]["calls"], &run["children_usage"]["calls"]), (&json!(1), &json!(1)), "{run:#}");
    assert_eq!(run["status"], "failed", "{run:#}");

    // Children who work at the same time share it, and a host that was killed knows what they have used.
    let late = json!([{ "do": "sleep", "ms": 3_000 }, model, model]);
    let id = begin(&host, "bounded", json!([{ "do": "children", "scripts": [[model], late] }, model])).await;
    let children = format!("/api/v1/runs?parent_run_id={id}");
    crate::operations::host::until("a child has used its part", async || {
        let (_, listed) = host.get(&children).await;
        listed["items"].as_array().is_some_and(|runs| runs.iter().any(|run| run["status"] == "completed"))
    })
    .await;
    let host = stage_in(tokio::task::block_in_place(|| host.process.kill()));
    crate::operations::host::until("it ends", async || host.run(&id).await["finished_at"].is_number()).await;
    let run = host.run(&id).await;
    assert_eq!((run.get("usage"), &run["children_usage"]["calls"]), (None, &json!(2)), "{run:#}");
    assert_eq!(run["failure"]["details"]["code"], "budget_exhausted", "{run:#}");
}
