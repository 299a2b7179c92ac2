//! `schemathesis`, a program that knows the description and nothing else, sends what it allows and what it does not, follows
//! what it is answered to what can be asked next, and holds each answer against the description.

use std::{fmt::Write as _, fs, process::Command};

use agent_host_tests::{Process, process};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::openapi::{GUESTS, programs};

/// Every event is answered by a runner, so what is sent has effects. Queues are long enough for all that is sent.
const CONFIG: &str = r#"
[limits]
max_live_runs = 20
conversation_queue = 100000
claim_wait_ms = 200

[[bindings]]
id = "echo"
runner = "plugin:agent-host/echo/default"

[[external_runners]]
id = "plugin:test/outside/default"
[external_runners.permissions]
state = ["runner"]

[[bindings]]
id = "outside"
runner = "plugin:test/outside/default"
match = { event_type = "outside" }

[agui.api]
agent = "echo"
profile = "plain"
"#;

/// Operations that are not tried, each with its reason.
const NOT_TRIED: &[(&str, &str)] = &[
    ("keys_revoke", "it finds the key by which it came in, and locks itself out"),
    ("queue_news", "a stream without end: no answer of it is ever whole"),
    ("runs_import", "its body is JSON lines, which this program cannot write; a property test of the translation does"),
    ("mcp_message", "its messages are described by MCP, and its answers are streams, which no header of this program asks for"),
    ("mcp_follow", "the same"),
    ("mcp_end", "a session that MCP has begun"),
    ("mcp_agents_message", "as `mcp_message`"),
    ("mcp_agents_follow", "the same"),
    ("mcp_agents_end", "as `mcp_end`"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_knows_only_the_description_finds_no_fault_with_the_host() {
    let dir = Process::lay_out(&["echo", "steps", "asks"]);
    // On the ledger, before the host has ever run. Without `loopback_without_key`, nobody gets in without it.
    let made = process::command(dir.path()).args(["keys", "create", "--scope", "admin", "--json"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
    let key = made["token"].as_str().unwrap();
    let host = Process::start_as(dir, "", &format!("{CONFIG}{GUESTS}"));
    fill(&host, key).await;

    let document = reqwest::get(host.url("/api/v1/openapi.json")).await.unwrap().json().await.unwrap();
    fs::write(host.dir.path().join("schemathesis.toml"), documented(&document)).unwrap();
    let mut schemathesis = Command::new(programs().join("schemathesis"));
    schemathesis.current_dir(host.dir.path()).args(["run", &host.url("/api/v1/openapi.json"), "--checks", "all"]);
    for (operation, _) in NOT_TRIED {
        schemathesis.args(["--exclude-operation-id", operation]);
    }
    schemathesis.args(["--header", &format!("Authorization: Bearer {key}")]);
    // It has a key, and no stream token.
    schemathesis.args(["--generation-with-security-parameters", "false"]);
    // A stream would be followed until its run ends.
    schemathesis.args(["--header", "Accept: application/json"]);
    schemathesis.args(["--seed", "6", "--max-examples", "60", "--request-timeout", "20", "--workers", "1"]);
    schemathesis.args(["--no-color", "--continue-on-failure", "--generation-database", "none", "--warnings", "off"]);
    let printed = tokio::task::block_in_place(|| schemathesis.output().unwrap());
    let text = String::from_utf8_lossy(&printed.stdout);
    assert!(printed.status.success(), "{text}\n{}", String::from_utf8_lossy(&printed.stderr));
    // Some requests succeeded, so the fuzzer did not only meet refusals.
    let runs = authorized(reqwest::Client::new().get(host.url("/api/v1/runs?limit=100")), key).await;
    assert!(runs["items"].as_array().unwrap().len() > 20, "{runs:#}");
}

/// A well-formed body may still name a missing object, contradict itself, or have `7.0` as a number of calls: the answer is 400, as
/// for a foreign cursor, a thread without a conversation, and a time that ends before it begins. A description cannot express the
/// earlier use of an idempotency key or of a run's id. The profile under `/api/v1/agent` answers all of these with 422, an image of
/// another type with 415, and an expired address with 410. A thread whose content was deleted is 410. Other operations accept all that the description allows.
fn documented(document: &Value) -> String {
    let mut documented = String::new();
    let paths = document["paths"].as_object().unwrap().iter();
    for (path, operation) in paths.flat_map(|(path, item)| item.as_object().unwrap().values().map(move |one| (path, one))) {
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has = |name: &str| parameters.iter().any(|parameter| parameter["name"] == name);
        let mut statuses = vec!["2xx", "3xx", "401", "403", "404", "409", "429", "5xx"];
        let body = operation.get("requestBody").is_some();
        if body || ["cursor", "before", "after", "at", "Last-Event-ID", "since", "thread_id"].into_iter().any(has) {
            statuses.push("400");
        }
        if body || path.starts_with("/api/v1/threads/") {
            statuses.push("410");
        }
        if has("Idempotency-Key") || path.starts_with("/agents/") && body {
            statuses.push("422");
        }
        if path.starts_with("/api/v1/agent/") {
            statuses.extend(["410", "415", "422"]);
        }
        if has("Range") {
            statuses.push("416");
        }
        let id = &operation["operationId"];
        writeln!(documented, "[[operations]]\ninclude-operation-id = {id}").unwrap();
        // The description has the protocol's own names. Those of LangBot have tests of their own, and one answer that has a place for both.
        if has("dialect") && path != "/api/v1/pipeline/queries" {
            documented.push_str("parameters = { \"query.dialect\" = \"v1\" }\n");
        }
        writeln!(documented, "checks.positive_data_acceptance.expected-statuses = {}", json!(statuses)).unwrap();
        // A body over the limit may not even be read.
        let refused = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"];
        writeln!(documented, "checks.negative_data_rejection.expected-statuses = {}", json!(refused)).unwrap();
    }
    documented
}

async fn authorized(request: RequestBuilder, key: &str) -> Value {
    let answer = request.bearer_auth(key).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    answer.json().await.unwrap()
}

/// Something of everything, so that there is something to find.
async fn fill(host: &Process, key: &str) {
    let http = reqwest::Client::new();
    for (event_type, text) in [
        ("message.received", "hello"),
        ("steps", "set a b; write abc 3; finish"),
        ("steps", "fail"),
        ("steps", "timer 600000"),
        ("asks", "ask form - name"),
        ("outside", "work"),
    ] {
        let event = json!({ "event_type": event_type, "input": { "text": text } });
        authorized(http.post(host.url("/api/v1/events")).json(&event), key).await;
    }
    let upload = http.post(host.url("/api/v1/artifacts?name=a.txt")).header("content-type", "text/plain").body("some text");
    authorized(upload, key).await;
    authorized(http.post(host.url("/api/v1/executors")).json(&json!({ "name": "one" })), key).await;
}
