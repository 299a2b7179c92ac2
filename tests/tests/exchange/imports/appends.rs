//! An executor appends native events to its claim, and a host imports captures while it serves.

use serde_json::{Value, json};

use super::{AI_SDK, record};
use crate::queue::desk::{Desk, HeldRun, host};

/// Appends native events; the status and the JSON of the answer.
async fn append(desk: &Desk, held: &HeldRun, query: &str, body: &str) -> (u16, Value) {
    let path = format!("/api/v1/runs/{}/append?{query}", held.run);
    let request = desk.request(reqwest::Method::POST, &path, &held.token);
    let request = request.header("content-type", "application/x-ndjson").body(body.to_owned());
    desk.try_send(request).await.expect("the host answers")
}

/// As [`append`], for a host that may still be bringing the run back.
async fn append_again(desk: &Desk, held: &HeldRun, query: &str, body: &str) -> (u16, Value) {
    for _ in 0..200 {
        match append(desk, held, query, body).await {
            (503, _) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
    panic!("the host has not brought the run back")
}

/// Types and data of the events that were translated.
async fn translated(desk: &Desk, run: &str) -> Vec<(String, Value)> {
    let (_, page) = desk.get(&format!("/api/v1/runs/{run}/events?limit=100")).await;
    let events = page["items"].as_array().unwrap().iter();
    let own = events.filter(|event| event["source"] == "import" && event["type"] != "import.events");
    own.map(|event| (event["type"].as_str().unwrap().to_owned(), without_artifacts(event["data"].clone()))).collect()
}

/// Artifacts are named by chance.
fn without_artifacts(mut data: Value) -> Value {
    match &mut data {
        Value::Object(members) => {
            members.remove("artifact_id");
            members.values_mut().for_each(|value| *value = without_artifacts(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_artifacts(item.take())),
        Value::String(text) if text.contains("all of them are in artifact") => *text = String::new(),
        _ => {}
    }
    data
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_events_are_results_of_the_claim_in_any_portions() {
    let captures = tokio::task::spawn_blocking(|| record(AI_SDK)).await.unwrap();
    let text = std::fs::read_to_string(captures.path().join("ai-full.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut host = host("lease_ms = 30000", "");
    let desk = Desk::of(&host);
    let executor = desk.executor("native").await;
    let run = desk.job("go", json!({})).await;
    let held = executor.claim().await;

    // In the middle of a text, and of a call.
    let (first, rest) = lines.split_at(8);
    let (second, third) = rest.split_at(10);
    let (status, answer) = append(&desk, &held, "form=ai-sdk&first=1", &first.join("\n")).await;
    assert_eq!((status, &answer["appended"], &answer["replayed"]), (200, &json!(8), &json!(false)), "{answer:#}");
    assert!(answer.get("end").is_none(), "{answer:#}");
    let (status, answer) = append(&desk, &held, "form=ai-sdk&first=1", &first.join("\n")).await;
    assert_eq!((status, &answer["replayed"]), (200, &json!(true)), "{answer:#}");
    let refusals = [
        ("form=ai-sdk&first=1", json!({ "type": "other" }).to_string(), 422, "idempotency_conflict"),
        ("form=ai-sdk&first=11", second.join("\n"), 409, "sequence_gap"),
        ("form=mcp", second.join("\n"), 409, "conflict"),
        ("form=of-tomorrow", second.join("\n"), 400, "invalid_argument"),
        ("form=ai-sdk", "{\"type\":\"start\"}\n{\"type\":".to_owned(), 400, "invalid_argument"),
        ("form=ai-sdk&first=0", second.join("\n"), 400, "invalid_argument"),
        ("form=ai-sdk", format!("\"{}\"", "x".repeat(1 << 20)), 413, "payload_too_large"),
    ];
    for (query, body, expected, code) in refusals {
        let (status, problem) = append(&desk, &held, query, &body).await;
        assert_eq!((status, problem["code"].as_str()), (expected, Some(code)), "{query}: {problem:#}");
    }
    held.refused("append", json!({ "results": [{ "type": "x.y" }] }), 409, "conflict").await;
    let plain = desk.request(reqwest::Method::POST, &format!("/api/v1/runs/{run}/append?form=ai-sdk"), &held.token);
    let (status, problem) = desk.try_send(plain.header("content-type", "text/plain").body("{}")).await.unwrap();
    assert_eq!((status, &problem["code"]), (415, &json!("unsupported_media_type")), "{problem:#}");

    // One array, which repeats the end of what is there.
    let array = format!("[{}]", first[6..].iter().chain(second).copied().collect::<Vec<_>>().join(",\n"));
    let (status, answer) = append(&desk, &held, "form=ai-sdk&first=7", &array).await;
    assert_eq!((status, &answer["appended"]), (200, &json!(18)), "{answer:#}");

    // What is open is still known after a restart, and so is what was appended.
    host.kill_and_revive();
    let (status, problem) = append_again(&desk, &held, "form=ai-sdk&first=9", &third.join("\n")).await;
    assert_eq!((status, &problem["code"]), (422, &json!("idempotency_conflict")), "{problem:#}");
    let (status, answer) = append(&desk, &held, "form=ai-sdk&first=9", &rest.join("\n")).await;
    assert_eq!((status, &answer["appended"], &answer["replayed"]), (200, &json!(lines.len()), &json!(false)), "{answer:#}");
    assert_eq!(answer["end"], json!({ "status": "completed", "finish_reason": "stop" }));
    held.does("finalize", json!({ "status": "completed", "finish_reason": "stop" })).await;

    // The same capture in one piece, imported by the running host.
    let import = async || {
        let request = desk.request(reqwest::Method::POST, "/api/v1/imports?form=ai-sdk&name=ai-full.jsonl", "");
        let request = request.header("content-type", "application/x-ndjson").body(text.clone());
        desk.try_send(request).await.unwrap()
    };
    let (status, imported) = import().await;
    assert_eq!((status, &imported["status"]), (201, &json!("completed")), "{imported:#}");
    let whole = translated(&desk, imported["run_id"].as_str().unwrap()).await;
    assert_eq!(translated(&desk, &run).await, whole);
    assert!(whole.len() > 15, "{whole:#?}");
    let (status, again) = import().await;
    assert_eq!((status, &again["run_id"]), (200, &imported["run_id"]), "{again:#}");

    // The raw lines are there as they came.
    let (_, event) = desk.get(&format!("/api/v1/events/{}", imported["event_id"].as_str().unwrap())).await;
    let raw = event["raw_ref"]["artifact_id"].as_str().unwrap_or_else(|| panic!("{event:#}"));
    let kept = desk.request(reqwest::Method::GET, &format!("/api/v1/artifacts/{raw}"), "").send().await.unwrap();
    assert_eq!(kept.text().await.unwrap(), text);
    host.check();
}
