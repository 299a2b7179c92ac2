//! Each framework in each of its languages: what happened is in the facts, and nothing else.

use std::path::Path;

use serde_json::{Value, json};

use super::{AGENTS_JS, AGENTS_PY, AI_SDK, Desk, GRAPH_JS, GRAPH_PY, SESSION_JS, SESSION_PY, Script, of, record, succeeded};

/// Imports a capture twice; gives its run and its facts.
fn imported(desk: &Desk, form: &str, file: &Path) -> (Value, Vec<Value>) {
    let run = desk.import(form, file);
    assert_eq!(run["runner_id"], format!("plugin:agent-host/import/{form}"));
    let facts = desk.facts(run["run_id"].as_str().unwrap());
    let again = desk.import(form, file);
    assert_eq!((&run["run_id"], &run["last_sequence"]), (&again["run_id"], &again["last_sequence"]), "{run:#}");
    for kind in ["model.delta", "tool.started", "tool.result", "action.required", "model.requested"] {
        for fact in of(&facts, kind) {
            assert_eq!(fact["payload"]["source"], "import", "{fact:#}");
        }
    }
    // No capture names a model, and none a price.
    for fact in of(&facts, "model.requested") {
        assert_eq!(fact["payload"]["model"], Value::Null, "{fact:#}");
    }
    (run, facts)
}

fn texts(facts: &[Value]) -> Vec<&str> {
    of(facts, "model.completed").iter().filter_map(|fact| fact["payload"]["text"].as_str()).collect()
}

/// The tools that ended in this way, in order.
fn tools<'a>(facts: &'a [Value], kind: &str) -> Vec<&'a str> {
    of(facts, kind).iter().filter_map(|fact| fact["payload"]["toolName"].as_str()).collect()
}

fn decisions(facts: &[Value]) -> Vec<&str> {
    of(facts, "action.resolved").iter().filter_map(|fact| fact["payload"]["decision"].as_str()).collect()
}

/// Two cities at once, a city that is none, and a long book: one result and one output that is elsewhere.
fn has_the_errands(facts: &[Value], failed: &[&str]) {
    assert_eq!(texts(facts)[..2], ["Let me look.", "Clear in both."]);
    assert_eq!(tools(facts, "tool.failed"), failed);
    assert_eq!(of(facts, "artifact.changed").len(), 1);
    let book = of(facts, "tool.result").into_iter().find(|fact| fact["payload"]["toolName"] == "book").unwrap();
    assert!(book["refs"]["artifact"][0].as_str().unwrap().starts_with("/api/v1/artifacts/"), "{book:#}");
}

#[test]
fn streams_of_the_ai_sdk() {
    let (desk, captures) = (Desk::new(), record(AI_SDK));
    let import = |name: &str| imported(&desk, "ai-sdk", &captures.path().join(name));
    for name in ["ai-full.jsonl", "ai-ui.jsonl"] {
        let (run, facts) = import(name);
        assert_eq!(
            (&run["status"], &of(&facts, "turn.completed")[0]["payload"]["finishReason"]),
            (&json!("completed"), &json!("stop"))
        );
        has_the_errands(&facts, &["nosuch", "weather"]);
        // Two calls that began together end in another order.
        let started: Vec<_> = of(&facts, "tool.started").iter().map(|fact| fact["toolCallId"].clone()).collect();
        let ended: Vec<_> = of(&facts, "tool.result").iter().map(|fact| fact["toolCallId"].clone()).collect();
        assert_eq!((started.first(), ended.len()), (ended.last(), 3), "{started:?} {ended:?}");
        assert_eq!(of(&facts, "reasoning.delta").len(), 1);
        // The stream for front ends has no usage.
        assert_eq!(of(&facts, "cost.recorded").is_empty(), name == "ai-ui.jsonl");
    }
    for name in ["ai-approval-full.jsonl", "ai-approval-ui.jsonl"] {
        let (_, facts) = import(name);
        assert_eq!(decisions(&facts), ["deny", "approve"]);
        assert_eq!((tools(&facts, "tool.failed"), tools(&facts, "tool.result")), (vec!["pay"], vec!["pay"]));
        assert_eq!(of(&facts, "permission.denied").len(), 1);
    }
    let (run, facts) = import("ai-error.jsonl");
    assert_eq!((&run["status"], &run["failure"]["code"]), (&json!("failed"), &json!("import.failed")));
    assert_eq!(of(&facts, "turn.failed").len(), 1);
}

fn agents(script: Script, names: [&str; 2], answers: &[&str]) {
    let (desk, captures) = (Desk::new(), record(script));
    let (run, facts) = imported(&desk, "openai-agents", &captures.path().join(names[0]));
    // No event says that a function has failed: its words are its output.
    has_the_errands(&facts, &[]);
    assert_eq!(of(&facts, "handoff.completed")[0]["payload"]["target"], "Clerk");
    assert_eq!(of(&facts, "turn.completed")[0]["payload"]["finishReason"], "unknown", "{run:#}");
    let (_, facts) = imported(&desk, "openai-agents", &captures.path().join(names[1]));
    assert_eq!(decisions(&facts), answers, "no event says what a person has answered");
    assert_eq!(tools(&facts, "tool.result"), ["pay", "pay"]);
}

#[test]
fn streams_of_the_agents_sdk_for_javascript() {
    agents(AGENTS_JS, ["oa-js.jsonl", "oa-js-approval.jsonl"], &["approve", "unknown"]);
}

#[test]
fn streams_of_the_agents_sdk_for_python() {
    // No event says that a person is asked.
    agents(AGENTS_PY, ["oa-py.jsonl", "oa-py-approval.jsonl"], &[]);
}

fn graph(script: Script, name: &str) {
    let (desk, captures) = (Desk::new(), record(script));
    let (_, facts) = imported(&desk, "langgraph", &captures.path().join(name));
    has_the_errands(&facts, &["weather"]);
    assert_eq!(texts(&facts)[2], "answered yes");
    assert_eq!(decisions(&facts), ["unknown"], "the answer is in no event");
    assert_eq!(of(&facts, "action.required")[0]["payload"]["value"]["question"], "Send it?");
    // A task that waits begins again under its id.
    let attempts: Vec<_> = of(&facts, "task.attempt.started").iter().map(|fact| fact["payload"]["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 1, 1, 1, 2]);
    assert_eq!((of(&facts, "task.created").len(), of(&facts, "task.completed").len()), (4, 4));
}

#[test]
fn a_stream_of_langgraph_for_javascript() {
    graph(GRAPH_JS, "lg-js.jsonl");
}

#[test]
fn a_stream_of_langgraph_for_python() {
    graph(GRAPH_PY, "lg-py.jsonl");
}

fn session(script: Script, name: &str, failed: &[&str]) {
    let (desk, captures) = (Desk::new(), record(script));
    let (_, facts) = imported(&desk, "mcp", &captures.path().join(name));
    let mut failures = tools(&facts, "tool.failed");
    failures.sort_unstable();
    assert_eq!(failures, failed);
    assert_eq!(tools(&facts, "tool.result"), ["weather", "weather", "book", "pay", "pay"]);
    assert_eq!(decisions(&facts), ["approve", "deny"]);
    assert_eq!(of(&facts, "tool.progress").len(), 1);
    assert_eq!(of(&facts, "artifact.changed").len(), 1);
    assert!(of(&facts, "model.requested").is_empty(), "a session has no model");
}

#[test]
fn a_session_of_mcp_for_javascript() {
    session(SESSION_JS, "mcp-js.jsonl", &["nosuch", "tool", "weather"]);
}

#[test]
fn a_session_of_mcp_for_python() {
    session(SESSION_PY, "mcp-py.jsonl", &["nosuch", "weather"]);
}

#[test]
fn a_recording_that_cannot_be_read_is_refused_and_makes_no_run() {
    let desk = Desk::new();
    let refused = |form: &str, content: &[u8], says: &str| {
        let file = desk.0.path().join("capture");
        std::fs::write(&file, content).unwrap();
        let output = desk.command(&["import", "--json", "--from", form]).arg(&file).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{error}");
    };
    refused("ai-sdk", b"", "there is no native event");
    refused("ai-sdk", b"{\"type\":\"start\"}\n{\"type\":", "native event 2 is no JSON value");
    refused("mcp", "[".repeat(5_000).as_bytes(), "native event 1 is no JSON value");
    refused("langgraph", &[0xff, 0xfe], "not UTF-8");
    refused("openai-agents", format!("{{}}\n\"{}\"", "x".repeat(4 << 20)).as_bytes(), "native event 2 has");
    refused("of-tomorrow", b"{}", "the form is one of ai-sdk, openai-agents, langgraph, mcp");
    let runs = succeeded(&mut desk.command(&["runs", "list", "--json"]));
    let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(runs["items"], json!([]), "{runs:#}");

    // Events of tomorrow, out of order: kept, and the stream stays legal.
    let strange = [
        json!({ "type": "tool-output-available", "toolCallId": "c", "output": 1 }),
        json!({ "type": "of-tomorrow", "n": 1 }),
        json!({ "type": "text-end", "id": "t" }),
        json!(["not", "an", "object"]),
        json!({ "type": "tool-input-available", "toolCallId": "c", "toolName": "late", "input": {} }),
    ];
    let file = desk.0.path().join("strange.json");
    std::fs::write(&file, json!(strange).to_string()).unwrap();
    let run = desk.import("ai-sdk", &file);
    let facts = desk.facts(run["run_id"].as_str().unwrap());
    let foreign = of(&facts, "runtime.warning").iter().filter(|fact| fact["payload"]["code"] == "foreign_event").count();
    assert_eq!(foreign, 2, "{facts:#?}");
}
