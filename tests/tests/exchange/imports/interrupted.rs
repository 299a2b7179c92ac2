//! A host that is killed while it imports: nothing of the capture is lost, and nothing of it is there twice.

use std::time::Instant;

use agent_host_tests::{support::Host, world::PATIENCE};
use serde_json::Value;

/// Pieces of text of a capture: work for some time.
const PIECES: usize = 200_000;
/// A host may be faster than its killer.
const ATTEMPTS: usize = 5;

/// A capture of one answer in many pieces.
fn capture(attempt: usize) -> String {
    let mut lines = String::from("{\"type\":\"start\"}\n{\"type\":\"start-step\"}\n{\"type\":\"text-start\",\"id\":\"t\"}\n");
    for piece in 0..PIECES {
        lines.push_str(&format!("{{\"type\":\"text-delta\",\"id\":\"t\",\"delta\":\"{attempt}.{piece} \"}}\n"));
    }
    lines.push_str(
        "{\"type\":\"text-end\",\"id\":\"t\"}\n{\"type\":\"finish-step\"}\n{\"type\":\"finish\",\"finishReason\":\"stop\"}\n",
    );
    lines
}

fn text(attempt: usize) -> String {
    (0..PIECES).map(|piece| format!("{attempt}.{piece} ")).collect()
}

/// Sends a capture to a host; gives the id of its run, and whether it had one before. `None` if the host went away.
async fn import(url: String, capture: String) -> Option<(String, bool)> {
    let url = format!("{url}/api/v1/imports?form=ai-sdk");
    let request = reqwest::Client::new().post(url).header("content-type", "application/x-ndjson").body(capture);
    let answer = request.send().await.ok()?;
    let status = answer.status().as_u16();
    let answer: Value = answer.json().await.ok()?;
    let run = answer["run_id"].as_str().unwrap_or_else(|| panic!("{status}: {answer}"));
    Some((run.to_owned(), status == 200))
}

/// The newest run of an import.
async fn newest(host: &Host) -> Option<String> {
    let runs = host.get("/api/v1/runs?binding_id=import-ai-sdk&limit=1").await;
    runs["items"][0]["run_id"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_whose_import_was_interrupted_is_imported_again_and_once() {
    let mut host = Host::start(&[], "");
    let url = |host: &Host| host.urls().borrow().clone();
    for attempt in 0..ATTEMPTS {
        let capture = capture(attempt);
        let before = newest(&host).await;
        let importing = tokio::spawn(import(url(&host), capture.clone()));
        let began = Instant::now();
        let first = loop {
            match newest(&host).await {
                Some(run) if Some(&run) != before.as_ref() => break run,
                _ => assert!(began.elapsed() < PATIENCE, "the import makes no run"),
            }
        };
        host.kill_and_revive();
        let _ = importing.await;
        let was_complete = host.ended(&first).await.run["status"] == "completed";
        let (second, repeated) = import(url(&host), capture.clone()).await.unwrap();
        assert_eq!((repeated, second == first), (was_complete, was_complete), "a run that the host could not end does not count");
        let ended = host.ended(&second).await.completed();
        let deltas = ended.events.iter().filter(|event| event["type"] == "message.delta");
        let said: String = deltas.filter_map(|event| event["data"]["chunk"]["content"].as_str()).collect();
        assert!(said == text(attempt), "the whole text is there once");
        assert_eq!(import(url(&host), capture).await, Some((second, true)));
        if !was_complete {
            return host.check();
        }
    }
    panic!("no import was interrupted in {ATTEMPTS} attempts");
}
