//! The secrets of webhooks and approvers occur nowhere except at their receiver.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

use agent_host_tests::{Webhook, component, process, world::PATIENCE};
use reqwest::Client;
use serde_json::{Value, json};

use crate::asks::desk::{act, emit};

/// In every canary, and in nothing else.
const MARK: &str = "k4n4rY";
const HOOK: &str = "hook-k4n4rY-secret-91c7";
const TOKEN: &str = "tok-k4n4rY-of-alice-03aa";
const WRONG: &str = "tok-k4n4rY-of-nobody-55de";

#[track_caller]
fn clean(what: &str, bytes: &[u8]) {
    if let Some(place) = bytes.windows(MARK.len()).position(|window| window == MARK.as_bytes()) {
        let around = String::from_utf8_lossy(&bytes[place.saturating_sub(200)..bytes.len().min(place + 100)]).into_owned();
        panic!("a secret is in {what}: …{around}…");
    }
}

fn clean_files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let looked = entries.map(|entry| {
        if entry.file_type().unwrap().is_dir() {
            return clean_files(&entry.path());
        }
        clean(&entry.path().display().to_string(), &fs::read(entry.path()).unwrap());
        1
    });
    looked.sum()
}

/// The real binary with its most verbose log. Dropping the value kills it.
struct Loud(Child);

impl Drop for Loud {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_secrets(dir: &Path) -> std::process::Command {
    let mut command = process::command(dir);
    command.env("AGENT_HOST_LOG", "trace").env("HOOK_SECRET", HOOK).env("ALICE", TOKEN);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_secret_is_anywhere_but_where_it_is_sent() {
    let hook = Webhook::start(HOOK).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("plugins")).unwrap();
    fs::copy(component("asks"), at("plugins").join("asks.wasm")).unwrap();
    let config = format!(
        r#"
[server]
listen = "127.0.0.1:0"
loopback_without_key = true

[[action_hooks]]
actions = ["*"]
url = "{}"
secret = {{ env = "HOOK_SECRET" }}
timeout_ms = 400
max_attempts = 2

[[approvers]]
id = "alice"
token = {{ env = "ALICE" }}

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
resources = {{ platform_api = ["message.send", "message.edit"] }}
approvals = [{{ action = "message.edit", policy = "allow" }}]
"#,
        hook.url
    );
    fs::write(at("agent-host.toml"), config).unwrap();
    let log = at("log.txt");
    let mut command = with_secrets(dir.path());
    command.args(["serve", "--json"]).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let mut host = Loud(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(host.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = serde_json::from_str::<Value>(&line).unwrap()["listening"].as_str().unwrap().to_owned();

    let http = Client::new();
    let steps: Vec<_> = ["leak", "fails:9", "hang", "break", "nonsense", "redirect", "garbage", "refuse", ""]
        .iter()
        .map(|how| act("message.edit", json!({ "how": how })))
        .chain([emit("message.edit", json!({ "how": "leak" })), act("message.send", json!({ "how": "leak" }))])
        .collect();
    let event = json!({ "event_type": "message.received", "input": { "text": steps.join(";;") } });
    let accepted = http.post(format!("{url}/api/v1/events")).json(&event).send().await.unwrap();
    assert_eq!(accepted.status(), 202);
    let run = accepted.json::<Value>().await.unwrap()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let began = std::time::Instant::now();
    let action = loop {
        let open: Value = http.get(format!("{url}/api/v1/actions")).send().await.unwrap().json().await.unwrap();
        if let Some(id) = open["items"][0]["action_id"].as_str() {
            break id.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "it does not ask");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let respond = format!("{url}/api/v1/actions/{action}/respond");
    for (token, status) in [(WRONG, 401), (TOKEN, 200), (TOKEN, 409)] {
        let answer = http.post(&respond).bearer_auth(token).json(&json!({ "decision": "approve" })).send().await.unwrap();
        assert_eq!(answer.status(), status);
        clean("an answer to an approver", &answer.bytes().await.unwrap());
    }
    let again =
        with_secrets(dir.path()).args(["runs", "respond", "--server", &url, &action, "deny", "--token", TOKEN]).output().unwrap();
    clean("the output of the command line", &[again.stdout, again.stderr].concat());
    let answer = http.post(&respond).body(format!("{{\"token\":\"{WRONG}")).bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(answer.status(), 415);

    loop {
        let shown: Value = http.get(format!("{url}/api/v1/runs/{run}")).send().await.unwrap().json().await.unwrap();
        if shown["status"] == "completed" {
            break;
        }
        assert!(began.elapsed() < PATIENCE && shown["status"] != "failed", "{shown:#}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for path in ["events?limit=100", "actions", "audit?limit=100"] {
        let body = http.get(format!("{url}/api/v1/runs/{run}/{path}")).send().await.unwrap().bytes().await.unwrap();
        assert!(body.len() > 500, "{path} says nothing");
        clean(path, &body);
    }
    for path in ["/readyz", "/api/v1/bindings", "/api/v1/runners", &format!("/api/v1/actions/{action}")] {
        let answer = http.get(format!("{url}{path}")).send().await.unwrap();
        clean(path, &answer.bytes().await.unwrap());
    }
    hook.check();
    assert!(hook.seen().len() >= 15, "{:?}", hook.seen().len());
    // The request has a signature, never the secret.
    for delivery in hook.seen() {
        clean("an order", &delivery.bytes);
    }
    // A power failure: what is on disk is all there is.
    drop(host);
    let log = fs::read(&log).unwrap();
    assert!(log.len() > 10_000, "the log says little: {} bytes", log.len());
    clean("the log", &log);
    let export = process::command(dir.path())
        .args(["ledger", "export", "--out", "export.jsonl"])
        .envs([("HOOK_SECRET", HOOK), ("ALICE", TOKEN)])
        .output()
        .unwrap();
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let text = fs::read_to_string(at("export.jsonl")).unwrap();
    assert!(text.contains("action.resolved") && text.contains("alice"), "the export has another content made of");
    for command in [&["doctor"][..], &["config"], &["ledger", "check"]] {
        let output = with_secrets(dir.path()).args(command).output().unwrap();
        clean(command[0], &[output.stdout, output.stderr].concat());
    }
    assert!(clean_files(dir.path()) > 5);
}
