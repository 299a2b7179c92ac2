//! Interrupts: until when they are answered, and what becomes of those that are not.

use std::time::Duration;

use agent_host_protocol::time;
use serde_json::{Value, json};

use crate::agui::support::{Host, View, config, input, problem, sound, with};

const ASK: &str = "confirmation";

fn script() -> Value {
    json!([{ "do": "ask", "kind": ASK, "title": "May I?" }, { "do": "say", "text": "Thank you." }])
}

/// Begins a run that asks, and gives its interrupt.
async fn interrupt_of(host: &Host, thread: &str) -> Value {
    let events = host.run(&input(thread, "r1", &script())).await.rest().await;
    sound(&events, thread, "r1");
    events.last().unwrap()["outcome"]["interrupts"][0].clone()
}

fn resumed(thread: &str, interrupt: &Value) -> Value {
    let resume = json!([{ "interruptId": interrupt["id"], "status": "resolved", "payload": true }]);
    with(input(thread, "r2", &json!([])), json!({ "messages": [], "resume": resume }))
}

/// Milliseconds from now to the expiry of an interrupt, which is that of its action.
async fn ms_until_expiry(host: &Host, interrupt: &Value) -> i64 {
    let path = format!("/api/v1/actions/{}", interrupt["id"].as_str().unwrap());
    let action: Value = host.http.get(host.url(&path)).send().await.unwrap().json().await.unwrap();
    let at = action["request"]["expires_at"].as_u64().unwrap_or_else(|| panic!("{action:#}"));
    assert_eq!(interrupt["expiresAt"], time::display(at), "{interrupt}");
    i64::try_from(at).unwrap() - i64::try_from(time::now()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_is_answered_until_it_says_it_expires() {
    // The wait does not count, so the deadline of the run is no limit for people.
    let binding = |more: &str| config("", "").replace("[[bindings]]", &format!("[[bindings]]\n{more}"));
    let host = Host::with_config("loopback_without_key = true", &binding("deadline_ms = 1500")).await;
    let interrupt = interrupt_of(&host, "waits").await;
    assert!(ms_until_expiry(&host, &interrupt).await > 23 * 60 * 60 * 1_000, "{interrupt}");
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    let events = host.run(&resumed("waits", &interrupt)).await.rest().await;
    sound(&events, "waits", "r2");
    assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Thank you.");
    // Where it counts, people have as long as the run.
    let host = Host::with_config("loopback_without_key = true", &binding("deadline_ms = 1500\nwaiting_counts = true")).await;
    let interrupt = interrupt_of(&host, "late").await;
    assert!(ms_until_expiry(&host, &interrupt).await <= 1_500, "{interrupt}");
    host.until("late", |thread| thread["pendingInterrupts"] == json!([])).await;
    assert!(ms_until_expiry(&host, &interrupt).await <= 0, "it was closed too early");
    let (status, response) = problem(host.post("/agents/stage/run", &resumed("late", &interrupt)).await).await;
    assert_eq!((status, &response["code"]), (410, &json!("expired")), "{response:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_has_its_fields_in_the_order_of_the_runner() {
    let mut host = Host::start("").await;
    // White space in it would break lines of the stream.
    let schema = r#"{"type":"object","required":["zip"],"properties":{"zip":{"type":"string"},"name":{"type":"string"},"age":{"type":"integer"}}}"#;
    let written = schema.replace(',', ",\n  ").replace("\"zip\":{", "\"zip\" :\t{");
    let script = json!([{ "do": "ask", "kind": "form", "title": "Who?", "schema": written }, { "do": "say", "text": "Hello." }]);
    let stream = host.post("/agents/stage/run", &input("form", "r1", &script)).await.text().await.unwrap();
    assert!(stream.contains(&format!("\"responseSchema\":{schema}")), "{stream}");
    // The thread has it so too, after a power failure as before.
    host.kill();
    host.revive();
    let thread = host.http.get(host.url("/agents/stage/threads/form")).send().await.unwrap().text().await.unwrap();
    assert!(thread.contains(&format!("\"responseSchema\":{schema}")), "{thread}");
    let interrupt = serde_json::from_str::<Value>(&thread).unwrap()["pendingInterrupts"][0].clone();
    let answer = |payload: Value| {
        let resume = json!([{ "interruptId": interrupt["id"], "status": "resolved", "payload": payload }]);
        with(input("form", "r2", &json!([])), json!({ "messages": [], "resume": resume }))
    };
    let (status, response) = problem(host.post("/agents/stage/run", &answer(json!({ "name": "Ada" }))).await).await;
    assert!((400..500).contains(&status), "the schema counts: {response:#}");
    let events = host.run(&answer(json!({ "zip": "1010", "name": "Ada" }))).await.rest().await;
    sound(&events, "form", "r2");
    assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Hello.");
}
