//! Before and at the first start of a host: its plugins are compiled, its first configuration is made.

use std::{fs, path::Path, process::Output};

use agent_host_tests::{
    Process, component,
    process::{self, Served},
    world::PATIENCE,
};
use serde_json::{Value, json};

const ECHO: &str = "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n";

fn run(dir: &Path, arguments: &[&str]) -> Output {
    process::command(dir).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each file, with its readiness and the origin of its code: true if the cache had it.
fn plugins(output: &Output) -> Vec<(String, bool, bool)> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let plugins = report["plugins"].as_array().unwrap().iter();
    let one =
        |plugin: &Value| (plugin["file"].as_str().unwrap().to_owned(), plugin["status"] == "ready", plugin["from_cache"] == true);
    plugins.map(one).collect()
}

#[test]
fn plugins_are_compiled_before_a_start() {
    let dir = Process::lay_out(&["echo", "unknown_import"]);
    let compiled = run(dir.path(), &["plugins", "compile", "--json"]);
    assert_eq!(compiled.status.code(), Some(1), "one is refused: {compiled:?}");
    assert_eq!(plugins(&compiled), [("echo.wasm".to_owned(), true, false), ("unknown_import.wasm".to_owned(), false, false)]);
    let again = run(dir.path(), &["plugins", "compile"]);
    let shown = text(&again);
    assert!(shown.contains("there already") && shown.contains("unknown_import: "), "{shown}");
    fs::remove_file(dir.path().join("plugins/unknown_import.wasm")).unwrap();
    assert!(run(dir.path(), &["plugins", "compile"]).status.success());
    assert!(!dir.path().join("data/ledger").exists(), "nothing else is made");

    // Another folder, and the host that starts then.
    fs::create_dir(dir.path().join("next")).unwrap();
    let none = run(dir.path(), &["plugins", "compile", "--plugins", "next"]);
    assert!(none.status.success() && text(&none).starts_with("no .wasm file in "), "{none:?}");
    let host = Process::start_in(dir, ECHO);
    let served = run(host.dir.path(), &["runners", "--json", "--server", &host.url]);
    assert_eq!(plugins(&served), [("echo.wasm".to_owned(), true, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_plugins_that_are_still_compiled_wait_for_them() {
    let limits = "[limits]\nmax_live_runs = 50\nplugins_wait_ms = 1\nrunner_wait_ms = 120000\n";
    for (path, body, runs) in [
        ("/api/v1/events", json!({ "event_type": "message.received", "input": { "text": "hi" } }), "/runs/0/run_id"),
        ("/api/v1/runs", json!({ "binding_id": "echo", "input": { "text": "hi" } }), "/run_id"),
    ] {
        // Nothing is in the cache of a new directory: the host serves before its plugin is compiled.
        let host = tokio::task::block_in_place(|| Process::start(&["echo"], &format!("{ECHO}{limits}")));
        let answer = reqwest::Client::new().post(host.url(path)).json(&body).timeout(PATIENCE * 3).send().await.unwrap();
        let status = answer.status();
        let answer: Value = answer.json().await.unwrap();
        assert!(status.is_success() && answer.pointer(runs).is_some(), "{path}: {status} {answer}");
    }
}

/// A host of a configuration that `init` made.
fn served(dir: &Path) -> Served {
    tokio::task::block_in_place(|| Served::start(process::command(dir).args(["serve", "--listen", "0", "--json"])))
}

/// The status of the answer to a message, and what was said.
async fn say(host: &Served, text: &str, key: Option<&str>) -> (u16, Value) {
    let event = json!({ "event_type": "message.received", "input": { "text": text } });
    let mut request = reqwest::Client::new().post(host.url("/api/v1/events")).json(&event);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let answer = request.header("prefer", "wait=60").timeout(PATIENCE * 2).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_configuration_is_made_accepted_and_served() {
    let dir = tempfile::tempdir().unwrap();
    let runners = component("local_agent").parent().unwrap().display().to_string();
    let asked = run(dir.path(), &["init", "--runners", &runners]);
    assert!(!asked.status.success() && String::from_utf8_lossy(&asked.stderr).contains("--yes"), "{asked:?}");
    let empty = run(dir.path(), &["init", "--yes", "--runners", "."]);
    assert!(!empty.status.success() && String::from_utf8_lossy(&empty.stderr).contains("--runners DIR"), "{empty:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");

    fs::write(dir.path().join("script.toml"), "[[reply]]\ntext = \"mine: {{last_user:100}}\"\n").unwrap();
    let made = run(dir.path(), &["init", "--yes", "--runners", &runners, "--json"]);
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!((&made["page"], &made["key"]), (&json!("http://127.0.0.1:7070/"), &Value::Null));
    assert!(!made["made"].to_string().contains("script.toml"), "the file of the operator stays: {made}");
    let checked = run(dir.path(), &["config", "check"]);
    assert!(checked.status.success(), "{checked:?}");
    let written = fs::read_to_string(dir.path().join("agent-host.toml")).unwrap();
    let again = run(dir.path(), &["init", "--yes", "--agent", "echo", "--runners", &runners]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("is there already"), "{again:?}");
    assert_eq!(fs::read_to_string(dir.path().join("agent-host.toml")).unwrap(), written);

    let host = served(dir.path());
    let page = host.line["page"].as_str().unwrap();
    assert_eq!(page, host.url("/"));
    assert_eq!(reqwest::get(page).await.unwrap().status(), 200);
    let (status, answer) = say(&host, "hello there", None).await;
    assert_eq!((status, &answer["runs"][0]["output"]["content"]), (200, &json!("mine: hello there")), "{answer:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_configuration_can_have_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let runners = component("echo").parent().unwrap().display().to_string();
    let made = run(dir.path(), &["init", "first", "--agent", "echo", "--access", "key", "--runners", &runners, "--json"]);
    assert!(made.status.success(), "options for all questions: {made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let key = made["key"].as_str().unwrap();
    let host = served(&dir.path().join("first"));
    assert_eq!(say(&host, "hello there", None).await.0, 401);
    let (status, answer) = say(&host, "hello there", Some(key)).await;
    assert_eq!(status, 200, "{answer:#}");
    assert!(answer["runs"][0]["output"]["content"].as_str().unwrap().contains("hello there"), "{answer:#}");
    let written = fs::read_to_string(dir.path().join("first/agent-host.toml")).unwrap();
    assert!(!written.contains(key), "{written}");
}
