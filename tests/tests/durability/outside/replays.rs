//! A recording is executed without the outside.

use std::fs;

use agent_host_tests::{OutsideServer, Process, component, process};
use serde_json::{Value, json};

use crate::outside::{LOCAL, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replay_makes_no_request() {
    let outside = OutsideServer::start().await;
    let host = {
        let text = config("outside/default", &[&outside.authority], LOCAL);
        tokio::task::spawn_blocking(move || Process::start(&["outside"], &text)).await.unwrap()
    };
    let steps = [
        format!("get {}; rest", outside.url("pieces/5/1")),
        format!("post {} x; read 4", outside.url("halves")),
        format!("get {}; rest", outside.url("broken")),
        format!("get {}; rest", outside.url("bytes/200000")),
        "get http://127.0.0.1:1/".to_owned(),
    ];
    let event = json!({ "event_type": "message.received", "input": { "text": steps.join("; ") } });
    let request = reqwest::Client::new().post(host.url("/api/v1/events")).header("prefer", "wait=50").json(&event);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let run = answer["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{answer:#}")).to_owned();
    let made = outside.seen().len();
    assert_eq!(made, 4);

    let dir = tokio::task::spawn_blocking(move || host.terminate()).await.unwrap();
    let replay = |arguments: &[&str]| {
        let output = process::command(dir.path()).args(arguments).output().unwrap();
        let step_outcomes = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {step_outcomes}");
        step_outcomes
    };
    let step_outcomes = replay(&["replay", &run]);
    assert!(step_outcomes.starts_with("the same: ") && step_outcomes.ends_with("then run.completed\n"), "{step_outcomes}");
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("recording.json");
    replay(&["runs", "record", &run, "--out", file.to_str().unwrap()]);
    let step_outcomes = replay(&["replay", file.to_str().unwrap(), "--component", component("outside").to_str().unwrap()]);
    assert!(step_outcomes.starts_with("the same: "), "{step_outcomes}");
    let traced = replay(&["replay", &run, "--trace"]);
    assert!(traced.contains("http.send") && traced.contains("http.response.read"), "{traced}");

    // A runner with another request is reported, and gets no answer.
    let mut recording: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let context = recording["context"].to_string();
    assert!(context.contains("pieces/5/1"), "what the guest was asked is in what it was given: {context}");
    recording["context"] = serde_json::from_str(&context.replace("pieces/5/1", "pieces/5/2")).unwrap();
    let other = elsewhere.path().join("other.json");
    fs::write(&other, recording.to_string()).unwrap();
    let output = process::command(dir.path()).args(["replay", other.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("different at call 1: another request of http.send"), "{output:?}");
    assert_eq!(outside.seen().len(), made, "{:#?}", outside.seen());
}
