//! The recorded streams pass two foreign implementations: the models of the Python SDK, and the verifier of a Rust crate.
//! Streams for clients before 1.0 have none of the events on which these throw.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use agent_host_tests::pip;
use serde_json::{Value, json};

use crate::agui::{
    scenarios::{self, PIXEL, everything, pick, picker},
    support::{Host, Wire, input, is_terminal, sound, with},
};

/// A recording: what a client asked for, and what it got.
struct Recorded {
    name: String,
    input: Value,
    events: Vec<Value>,
}

/// All scenarios, recorded once for a client of this version.
async fn recorded(version: Option<&str>) -> Vec<Recorded> {
    let host = Host::start("").await;
    let mut all = Vec::new();
    let run_input = |thread: &str, run: &str, script: &Value| match version {
        Some(version) => with(input(thread, run, script), json!({ "protocolVersion": version })),
        None => {
            let mut input = input(thread, run, script);
            input.as_object_mut().unwrap().remove("protocolVersion");
            input
        }
    };
    for (n, scenario) in scenarios::all().into_iter().enumerate() {
        let input = run_input(&format!("t{n}"), &format!("r{n}"), &scenario.script);
        let events = host.run(&input).await.rest().await;
        sound(&events, &format!("t{n}"), &format!("r{n}"));
        all.push(Recorded { name: scenario.name.to_owned(), input, events });
    }
    let mut record = async |name: &str, input: Value| {
        let wire = if name.starts_with("connect") { host.connect(&input).await } else { host.run(&input).await };
        let events = wire.rest().await;
        sound(&events, input["threadId"].as_str().unwrap(), input["runId"].as_str().unwrap());
        all.push(Recorded { name: name.to_owned(), input, events: events.clone() });
        events
    };
    let ask = json!([{ "do": "say", "text": "Before." }, { "do": "ask", "kind": "form", "title": "Who?", "schema": { "type": "object" } }]);
    let events = record("interrupt", run_input("i", "i1", &ask)).await;
    let interrupts = &events.last().unwrap()["outcome"]["interrupts"];
    let resume = json!([{ "interruptId": interrupts[0]["id"], "status": "resolved", "payload": { "name": "Ada" } }]);
    record("connect to an interrupt", run_input("i", "look", &json!([]))).await;
    record("resume", with(run_input("i", "i2", &json!([])), json!({ "messages": [], "resume": resume }))).await;
    record("resume again", with(run_input("i", "i2", &json!([])), json!({ "messages": [], "resume": resume }))).await;

    let act = json!([{ "do": "act", "action": "message.edit", "target": { "id": 1 }, "payload": { "text": "x" } }]);
    record("approval", run_input("a", "a1", &act)).await;

    let events = record("frontend tool", with(run_input("f", "f1", &json!([pick()])), json!({ "tools": [picker()] }))).await;
    let call = &events.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap()["toolCallId"];
    record("connect to a frontend tool", run_input("f", "look", &json!([]))).await;
    let parts = json!([{ "type": "text", "text": "blue" }]);
    let answer = json!([{ "id": "answer", "role": "tool", "toolCallId": call, "content": parts }]);
    record("answer in parts", with(run_input("f", "f2", &json!([])), json!({ "messages": answer }))).await;
    record("connect afterwards", run_input("f", "look-2", &json!([]))).await;

    let content = json!([
        { "type": "text", "text": "Look." }, { "type": "image", "source": { "type": "data", "value": PIXEL, "mimeType": "image/png" } },
    ]);
    let images = json!({ "messages": [{ "id": "img", "role": "user", "content": content }] });
    record("image", with(run_input("p", "p1", &json!([{ "do": "input" }])), images)).await;
    record("connect to an image", run_input("p", "look", &json!([]))).await;

    record("everything", run_input("e", "e1", &everything(1))).await;
    record("the same run again", run_input("e", "e1", &everything(1))).await;
    record("connect to everything", run_input("e", "look", &json!([]))).await;

    // Two that need a hand: one that is cancelled, and the log of a run.
    let slow = run_input(
        "c",
        "c1",
        &json!([scenarios::tools(0), { "do": "say", "text": "x".repeat(500), "pieces": 500, "delay_ms": 30 }]),
    );
    let mut wire: Wire = host.run(&slow).await;
    let mut events = wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    assert_eq!(host.cancel("c", "c1").await, 202);
    events.extend(wire.rest().await);
    sound(&events, "c", "c1");
    all.push(Recorded { name: "cancel".to_owned(), input: slow, events });
    if version.is_some() {
        let events = host.events("e", "e1", None).await.expect("it is from the beginning").rest().await;
        sound(&events, "e", "e1");
        all.push(Recorded { name: "log".to_owned(), input: run_input("e", "e1", &everything(1)), events });
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_models_of_the_python_sdk_take_all_that_was_ever_sent() {
    let mut lines = String::new();
    for recorded in [recorded(Some("1.0")).await, recorded(None).await].into_iter().flatten() {
        writeln!(lines, "{}", json!({ "input": recorded.input })).unwrap();
        for event in recorded.events {
            writeln!(lines, "{}", json!({ "event": event, "of": recorded.name })).unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let wire = dir.path().join("wire.jsonl");
    fs::write(&wire, &lines).unwrap();
    let python = pip::programs(include_str!("requirements.txt")).join("python");
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/agui/models.py");
    let checker_output = tokio::task::block_in_place(|| Command::new(python).arg(checker).arg(&wire).output().unwrap());
    let text = String::from_utf8_lossy(&checker_output.stdout);
    assert!(checker_output.status.success(), "{text}\n{}", String::from_utf8_lossy(&checker_output.stderr));
    assert!(lines.lines().count() > 300, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_from_before_1_0_never_sees_what_it_throws_on() {
    let (today, old) = (recorded(Some("1.0")).await, recorded(None).await);
    for recorded in &old {
        for event in &recorded.events {
            assert!(!is_novel(event), "{}: {event}", recorded.name);
        }
    }
    // The streams of today have such events.
    let novel = today.iter().flat_map(|recorded| &recorded.events).filter(|event| is_novel(event)).count();
    assert!(novel >= 3, "{novel}");
    // The old streams lack nothing that they can express.
    for (today, old) in today.iter().zip(&old) {
        assert_eq!(today.name, old.name);
        let kinds = |recorded: &crate::agui::wire::Recorded| -> Vec<Value> {
            let kinds = recorded.events.iter().map(|event| &event["type"]);
            let mut kinds: Vec<_> = kinds.filter(|kind| !kind.as_str().unwrap().ends_with("CONTENT")).cloned().collect();
            // A cancelled run is a failed one there.
            kinds.pop();
            // The time at which the end of a child is known varies.
            kinds.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            kinds
        };
        assert_eq!(kinds(today), kinds(old), "{}", today.name);
        assert!(is_terminal(old.events.last().unwrap()));
    }
}

/// The events on which 0.0.59 throws.
fn is_novel(event: &Value) -> bool {
    let outcome = &event["outcome"];
    let in_messages =
        |look: &dyn Fn(&Value) -> bool| event["messages"].as_array().is_some_and(|messages| messages.iter().any(look));
    let has_file = |message: &Value| {
        message["content"].as_array().is_some_and(|parts| parts.iter().any(|part| part["source"]["type"] == "file"))
    };
    outcome.get("pendingToolCallIds").is_some()
        || outcome["type"] == "cancelled"
        || (event["type"] == "TOOL_CALL_RESULT" && event["content"].is_array())
        || in_messages(&|message| message["role"] == "tool" && message["content"].is_array())
        || in_messages(&has_file)
}
