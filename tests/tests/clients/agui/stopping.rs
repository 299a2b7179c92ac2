//! A client that stops only hangs up: its run ends, the next message goes through, and a client that lost its connection
//! finds its run.

use std::time::Duration;

use futures_util::future::join;
use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    support::{Host, View, Wire, config, input, problem, sound},
};

/// Half a minute of text.
fn endless() -> Value {
    json!([{ "do": "say", "text": "word ".repeat(600), "pieces": 600, "delay_ms": 50 }])
}

fn quick(text: &str) -> Value {
    json!([{ "do": "say", "text": text }])
}

/// Begins a run, and reads until it says something.
async fn begin_run(host: &Host, thread: &str, run: &str, script: &Value) -> Wire {
    let mut wire = host.run(&input(thread, run, script)).await;
    wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    wire
}

/// The end of a run, as its log has it.
async fn end_of(host: &Host, thread: &str, run: &str) -> Value {
    let events = host.events(thread, run, None).await.expect("it is there").rest().await;
    events.last().unwrap().clone()
}

fn is_cancelled(end: &Value) -> bool {
    end["type"] == "RUN_FINISHED" && end["outcome"] == json!({ "type": "cancelled" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_clients_stop_a_run_and_send_the_next_message_at_once() {
    let host = Host::start("").await;
    for (client, name) in [(Client::Today, "today"), (Client::Old, "old")] {
        let turns: Vec<Value> = (0..4)
            .flat_map(|n| {
                let stopped = json!({ "runId": format!("{name}-stopped-{n}"), "say": "Talk.", "abortOn": "TEXT_MESSAGE_CONTENT",
                    "props": { "script": endless() } });
                let next =
                    json!({ "runId": format!("{name}-next-{n}"), "say": "Enough.", "props": { "script": quick("Here.") } });
                [stopped, next]
            })
            .collect();
        let scenario = json!({ "name": name, "url": host.url("/agents/stage/run"), "threadId": name, "turns": turns });
        let played = &play(client, &[scenario])[0];
        for n in 0..4 {
            let next = played.turn(2 * n + 1);
            next.ended_without_fault("RUN_FINISHED");
            assert_eq!(next.texts("assistant").last(), Some(&"Here."), "{client:?}");
            let end = end_of(&host, name, &format!("{name}-stopped-{n}")).await;
            assert!(is_cancelled(&end), "{client:?}: {end}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_client_has_a_grace_to_come_back_in() {
    let host = Host::start("disconnect_grace_ms = 1500").await;
    // Cut, and back within the grace: the same run, whole.
    let script = json!([{ "do": "say", "text": "Nothing is lost of this.", "pieces": 24, "delay_ms": 100 }]);
    drop(begin_run(&host, "cut", "r", &script).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let events = host.run(&input("cut", "r", &script)).await.rest().await;
    sound(&events, "cut", "r");
    assert_eq!(View::of(&events).texts("assistant"), ["Nothing is lost of this."]);
    assert_eq!(events.last().unwrap()["outcome"]["type"], "success");
    // Never back: it ends, and not before the grace is over.
    drop(begin_run(&host, "gone", "r", &endless()).await);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(host.thread("gone").await["activeRun"]["runId"], "r");
    host.until("gone", |thread| thread.get("activeRun").is_none()).await;
    assert!(is_cancelled(&end_of(&host, "gone", "r").await));
    // A client that reads nothing of its stream has left as well.
    let body = input("unread", "r", &endless());
    let host_run = host.http.post(host.url("/agents/stage/run")).header("accept", "text/event-stream").json(&body);
    drop(host_run.send().await.unwrap());
    host.until("unread", |thread| thread.get("activeRun").is_none()).await;
    assert!(is_cancelled(&end_of(&host, "unread", "r").await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_people_is_not_cancelled_because_its_client_left() {
    let host = Host::start("disconnect_grace_ms = 300").await;
    let script = json!([
        { "do": "say", "text": "One moment.", "pieces": 11, "delay_ms": 20 },
        { "do": "ask", "kind": "confirmation", "title": "May I?" },
        { "do": "say", "text": "Done." },
    ]);
    drop(begin_run(&host, "asks", "r", &script).await);
    let asked = |thread: &Value| thread["pendingInterrupts"].as_array().is_some_and(|open| !open.is_empty());
    let thread = host.until("asks", asked).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    let thread_now = host.thread("asks").await;
    assert!(asked(&thread_now), "{thread_now:#}");
    let answer = json!([{ "interruptId": thread["pendingInterrupts"][0]["id"], "status": "resolved", "payload": true }]);
    let mut body = input("asks", "r2", &json!([]));
    (body["messages"], body["resume"]) = (json!([]), answer);
    let events = host.run(&body).await.rest().await;
    sound(&events, "asks", "r2");
    assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Done.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_another_tab_watches_is_not_replaced() {
    let mut host = Host::start("").await;
    let refused = async |host: &Host, run: &str| {
        let (status, response) = problem(host.post("/agents/stage/run", &input("tabs", run, &quick("x"))).await).await;
        assert_eq!(
            (status, &response["code"], &response["details"]["activeRunId"]),
            (409, &json!("thread_busy"), &json!("r1")),
            "{response:#}"
        );
    };
    let first = begin_run(&host, "tabs", "r1", &endless()).await;
    refused(&host, "r2").await;
    // The tab that asked is closed, and another one watches.
    let other = host.connect(&input("tabs", "look", &json!([]))).await;
    drop(first);
    tokio::time::sleep(Duration::from_millis(100)).await;
    refused(&host, "r3").await;
    drop(other);
    let events = host.run(&input("tabs", "r4", &quick("Mine now."))).await.rest().await;
    sound(&events, "tabs", "r4");
    assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Mine now.");
    assert!(is_cancelled(&end_of(&host, "tabs", "r1").await));
    // The refused messages left nothing behind.
    let users =
        host.thread("tabs").await["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user").count();
    assert_eq!(users, 2);
    // Also after a host that was killed: it does not know that somebody left, only that nobody is there.
    drop(begin_run(&host, "tabs", "r5", &endless()).await);
    host.kill();
    host.revive();
    let events = host.run(&input("tabs", "r6", &quick("Still mine."))).await.rest().await;
    sound(&events, "tabs", "r6");
    assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Still mine.");
}

/// An event of another API and a message race for a conversation whose client has left: the message is refused or next. It
/// never waits behind the other, and exactly the abandoned run is cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_abandoned_run_is_replaced_once_whatever_endpoint_another_event_uses() {
    let fixed = "\n[[bindings]]\nid = \"fixed\"\nrunner = \"plugin:test/stage/default\"\nmatch = { event_type = \"message[.]received\" }\n";
    let host = Host::with_config("loopback_without_key = true", &format!("{}{fixed}", config("", ""))).await;
    let mut replaced = 0;
    for n in 0..16 {
        let thread = format!("race{n}");
        drop(begin_run(&host, &thread, "left", &endless()).await);
        tokio::time::sleep(Duration::from_millis(n % 4)).await;
        let text = quick("from elsewhere").to_string();
        let event =
            json!({ "event_type": "message.received", "conversation": { "conversation_id": thread }, "input": { "text": text } });
        let other = host.http.post(host.url("/api/v1/events")).json(&event).send();
        let (answer, other) = join(host.post("/agents/stage/run", &input(&thread, "next", &quick("next"))), other).await;
        let other: Value = other.unwrap().json().await.unwrap();
        let other = other["runs"][0]["run_id"].as_str().unwrap().to_owned();
        if answer.status() != 200 {
            let (status, response) = problem(answer).await;
            assert_eq!((status, &response["code"]), (409, &json!("thread_busy")), "{response:#}");
            assert_eq!(host.cancel(&thread, "left").await, 202);
            continue;
        }
        replaced += 1;
        sound(&Wire::open(answer).await.rest().await, &thread, "next");
        assert!(is_cancelled(&end_of(&host, &thread, "left").await));
        host.until(&thread, |thread| thread.get("activeRun").is_none()).await;
        let other: Value = host.http.get(host.url(&format!("/api/v1/runs/{other}"))).send().await.unwrap().json().await.unwrap();
        assert_eq!(other["status"], "completed", "{other:#}");
    }
    assert!(replaced > 0, "the event was always first");
}
