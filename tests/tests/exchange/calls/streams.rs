//! A model answers piece by piece.

use agent_host_tests::grants::EVERYTHING;
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::calls::outside::ExecutorHost;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_streams_and_ends_with_the_whole() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let request = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let asked = outside.request(Method::POST, &held.path("/calls/models.stream"), &held.token);
    let answer = asked.json(&json!({ "model_id": "a-chat", "request": request })).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let events: Vec<_> = answer.bytes_stream().eventsource().map(Result::unwrap).collect().await;
    let (last, pieces) = events.split_last().unwrap();
    let data = |event: &eventsource_stream::Event| serde_json::from_str::<Value>(&event.data).unwrap();
    let mut text = String::new();
    for piece in pieces {
        assert_eq!(piece.event, "chunk");
        text.push_str(data(piece)["text"].as_str().unwrap());
    }
    assert_eq!(last.event, "done");
    let whole = data(last);
    assert_eq!(whole["message"]["content"], "a scripted answer in some words", "{whole:#}");
    assert_eq!(whole["message"]["content"], text.as_str());
    let completed = outside.host.until(&held.run, |event| event["type"] == "model.call.completed").await;
    assert_eq!(completed["data"]["finish_reason"], whole["finish_reason"], "{completed:#}");

    // A refusal before the start is a problem document, and no stream.
    let broken = json!({ "model_id": "a-chat", "request": { "messages": "none" } });
    outside.refused(&held, "models.stream", broken, 400, "invalid_argument").await;
    outside.complete(&held).await;
    outside.host.check();
}
