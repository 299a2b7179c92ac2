//! Threads as facts, and evidence, through the proxy.

use reqwest::{Method, header::ETAG};
use serde_json::{Value, json};

use crate::openapi::conversation::{HostAnswer, Talk};

const THREADS: &str = "/api/v1/threads";

/// Asks for the content at this path again, which is as it was.
async fn unchanged(talk: &Talk, path: &str) {
    let host_answer = talk.send(talk.request(Method::GET, path)).await;
    assert_eq!(host_answer.status, 200, "{path}: {:#}", host_answer.body);
    let again = talk.request(Method::GET, path).header("if-none-match", &host_answer.headers[ETAG]);
    assert_eq!(talk.send(again).await.status, 304, "{path}");
}

async fn turn(talk: &Talk, thread: &str, body: Value) -> HostAnswer {
    talk.post(&format!("{THREADS}/{thread}/turns"), body, 202).await
}

pub async fn threads(talk: &Talk) {
    let asks = json!({ "agent": "asks", "turnId": "one", "input": { "text": "ask confirmation - sure" } });
    let started = turn(talk, "facts", asks.clone()).await.body;
    turn(talk, "facts", asks).await;
    let path = format!("{THREADS}/facts");
    let waiting = talk.until(&path, |model| model["status"] == "waiting").await;
    let action = waiting["pendingActions"][0]["actionId"].as_str().unwrap_or_else(|| panic!("{waiting:#}")).to_owned();
    let respond = format!("{path}/actions/{action}/respond");
    talk.post(&respond, json!({ "decision": "decline" }), 400).await;
    let scope = json!({ "sessionId": "facts", "threadId": "facts", "turnId": "one" });
    talk.post(&respond, json!({ "decision": "decline", "actionScope": scope }), 200).await;
    talk.until(&path, |model| model["status"] == "completed").await;
    unchanged(talk, &path).await;
    talk.get(&format!("{path}?at=3"), 200).await;
    talk.get(&format!("{path}?at=x"), 400).await;
    talk.get(&format!("{THREADS}/nobody-was-here"), 404).await;
    let page = talk.get(&format!("{path}/events?limit=2"), 200).await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(2), "{page:#}");
    talk.get(&format!("{path}/events?after=x"), 400).await;
    unchanged(talk, &format!("{path}/tasks/one")).await;
    talk.get(&format!("{path}/tasks/none"), 404).await;
    talk.get(&format!("{THREADS}?limit=1"), 200).await;
    talk.get(&format!("{THREADS}?cursor=x"), 400).await;

    // The facts of a turn, as a stream that ends with it.
    let says = json!({ "agent": "echo", "input": { "text": "hello" } });
    let request = talk.request(Method::POST, &format!("{path}/turns")).header("accept", "text/event-stream").json(&says);
    let streamed = talk.send(request).await;
    assert_eq!(streamed.status, 200, "{:#}", streamed.body);
    assert!(streamed.body.as_str().is_some_and(|text| text.contains("turn.completed")), "{:#}", streamed.body);

    // A turn is cancelled while it works, and one while it waits behind.
    let sleeps = json!({ "agent": "asks", "turnId": "long", "input": { "text": "say one;;sleep 600000" } });
    turn(talk, "facts", sleeps).await;
    turn(talk, "facts", json!({ "agent": "asks", "turnId": "behind", "queueIfBusy": true, "input": { "text": "say two" } }))
        .await;
    talk.until(&path, |model| model["activeTurnId"] == "long" && model["queuedTurns"][0]["turnId"] == "behind").await;
    talk.post(&format!("{path}/turns/behind/cancel"), json!({}), 202).await;
    talk.post(&format!("{path}/turns/long/cancel"), json!({}), 200).await;
    talk.post(&format!("{path}/turns/long/cancel"), json!({}), 409).await;
    talk.post(&format!("{path}/turns/none/cancel"), json!({}), 404).await;

    let run = started["runId"].as_str().unwrap();
    let evidence = talk.get(&format!("/api/v1/runs/{run}/evidence"), 200).await;
    assert!(evidence.as_str().is_some_and(|text| text.lines().count() > 5), "{evidence:#}");
    talk.get("/api/v1/runs/00000000-0000-7000-8000-000000000000/evidence", 404).await;
    let evidence = talk.get(&format!("{path}/evidence"), 200).await;
    assert!(evidence.as_str().is_some_and(|text| text.starts_with("{\"type\":\"thread\"")), "{evidence:#}");
    talk.get(&format!("{THREADS}/nobody/evidence"), 404).await;
}
