//! A host whose runs ask, the service that does what they may, and those who answer.

use std::{fmt::Write as _, fs};

use agent_host_tests::Webhook;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::asks::support::{EndedRun, Host, lines_of};

/// The secret that the host and the webhook share: the example of the specification.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The parts of a desk; each is TOML.
pub struct Setup<'a> {
    /// In `[limits]`.
    pub limits: &'a str,
    /// In the action hook.
    pub hook: &'a str,
    /// The names of the platform actions that the binding allows.
    pub actions: &'a [&'a str],
    /// In `resources` of the binding.
    pub resources: &'a str,
    /// The approval rules of the binding.
    pub approvals: &'a [&'a str],
    /// In the binding.
    pub binding: &'a str,
    /// Ids of approvers; the token of `alice` is `alice-token`.
    pub approvers: &'a [&'a str],
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            limits: "",
            hook: "timeout_ms = 30000\n",
            actions: &["message.send", "issue.close"],
            resources: "",
            approvals: &[],
            binding: "",
            approvers: &[],
        }
    }
}

/// A desk.
pub struct Desk {
    pub host: Host,
    pub hook: Webhook,
    http: reqwest::Client,
    /// Beside the directories of the host: the secrets.
    _world: TempDir,
}

impl Desk {
    pub async fn new(setup: Setup<'_>) -> Self {
        let hook = Webhook::start(SECRET).await;
        let world = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = world.path().join(name);
            fs::write(&path, format!("{text}\n")).unwrap();
            path
        };
        fs::write(world.path().join("script.toml"), SCRIPT).unwrap();
        let Setup { limits, hook: more, actions, resources, approvals, binding, approvers } = setup;
        let mut config = format!(
            r#"
[limits]
max_live_runs = 60
{limits}

[[action_hooks]]
actions = ["message.*", "issue.*"]
url = "{url}"
secret = {{ file = {secret:?} }}
{more}

[[models]]
id = "chat"
provider = "scripted"
script = {script:?}
"#,
            url = hook.url,
            secret = file("hook", SECRET),
            script = world.path().join("script.toml"),
        );
        for id in approvers {
            let token = file(id, &format!("{id}-token"));
            write!(config, "[[approvers]]\nid = \"{id}\"\ntoken = {{ file = {token:?} }}\n").unwrap();
        }
        write!(
            config,
            "[[bindings]]\nid = \"asks\"\nrunner = \"plugin:test/asks/default\"\nresources = {{ platform_api = {actions:?}{resources} }}\n\
             approvals = [{}]\n{binding}",
            approvals.join(", ")
        )
        .unwrap();
        let host = Host::limited(&["asks"], &config);
        Self { host, hook, http: reqwest::Client::new(), _world: world }
    }

    /// A desk with these approval rules.
    pub async fn ruled(approvals: &[&str]) -> Self {
        Self::new(Setup { approvals, ..Setup::default() }).await
    }

    /// Waits until the run has asked for so much, and gives the id of the last.
    pub async fn wait_for_asks(&self, run: &str, count: usize) -> String {
        self.host.until(run, |event| event["type"] == "action.requested").await;
        let began = std::time::Instant::now();
        loop {
            let found = self.requested(run).await;
            if found.len() >= count {
                return found[count - 1].clone();
            }
            let events = self.host.events(run).await;
            assert!(began.elapsed() < agent_host_tests::world::PATIENCE, "it asks for less than {count}: {}", lines_of(&events));
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// The ids of the run's actions.
    pub async fn requested(&self, run: &str) -> Vec<String> {
        let events = self.host.events(run).await;
        let asked = events.iter().filter(|event| event["type"] == "action.requested");
        asked.map(|event| event["data"]["action_id"].as_str().unwrap().to_owned()).collect()
    }

    /// Sends a message, and gives the run and the id of what it asks when it waits on disk.
    pub async fn waiting(&self, steps: &str, reason: &str) -> (String, String) {
        let run = self.host.send(steps).await;
        let id = self.wait_for_asks(&run, 1).await;
        let waiting = self.host.until_status(&run, "waiting").await;
        assert_eq!(waiting["status_reason"], reason, "{waiting:#}");
        (run, id)
    }

    /// Waits until so many runs are on disk, and none is in memory.
    pub async fn parked(&self, runs: u64) {
        self.host.until_ready(|ready| ready["parked_runs"] == runs && ready["live_runs"] == 0).await;
    }

    /// The response to an answer, of any status.
    pub async fn send(&self, token: Option<&str>, action: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let url = format!("{}/api/v1/actions/{action}/respond", *self.host.urls().borrow());
        let mut request = self.http.post(url).header("content-type", "application/json").body(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        assert_eq!(answer.headers()["content-type"], kind);
        if status == 401 {
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
        }
        let answer_body: Value = answer.json().await.unwrap();
        assert!(status == 200 || answer_body["status"] == status, "{answer_body:#}");
        (status, answer_body)
    }

    /// Answers, and gives the status and what is said.
    pub async fn respond(&self, action: &str, answer: Value) -> (u16, Value) {
        self.send(None, action, answer.to_string()).await
    }

    /// Answers as it has to be: with this decision.
    pub async fn decide(&self, action: &str, decision: &str) -> Value {
        let (status, answer_body) = self.respond(action, json!({ "decision": decision })).await;
        assert_eq!(status, 200, "{answer_body:#}");
        answer_body
    }

    /// An answer is refused, for this.
    pub async fn refuses(&self, action: &str, answer: Value, status: u16, code: &str) -> Value {
        let (got, answer_body) = self.respond(action, answer.clone()).await;
        assert_eq!((got, answer_body["code"].as_str()), (status, Some(code)), "{answer} → {answer_body:#}");
        answer_body
    }

    /// An action, as it is shown.
    pub async fn action(&self, id: &str) -> Value {
        self.host.get(&format!("/api/v1/actions/{id}")).await
    }

    /// The ids of all that waits for an answer, page by page.
    pub async fn open(&self, limit: usize) -> Vec<String> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.host.get(&format!("/api/v1/actions?limit={limit}{cursor}")).await;
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit && items.iter().all(|item| item["status"] == "open"), "{page:#}");
            ids.extend(items.iter().map(|item| item["action_id"].as_str().unwrap().to_owned()));
            if page["has_more"] == false {
                return ids;
            }
            cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
        }
    }

    /// The host calls of a run by this name: what they were about, and what came of them.
    pub async fn audit(&self, run: &str, action: &str) -> Vec<(Value, Value)> {
        let page = self.host.get(&format!("/api/v1/runs/{run}/audit?limit=100")).await;
        let records = page["items"].as_array().unwrap().iter().filter(|record| record["action"] == action);
        records.map(|record| (record["resource"].clone(), record["outcome"].clone())).collect()
    }

    /// Ends in good order: the ledger is sound, and the webhook was called as it should be.
    pub fn check(self) {
        self.hook.check();
        self.host.check();
    }
}

/// A model that takes its time.
const SCRIPT: &str = "[[reply]]\ntext = \"one two three four five six seven eight nine ten\"\nchunk_chars = 4\ndelay_ms = 20\n";

/// An action with this payload, as a step.
pub fn act(action: &str, payload: Value) -> String {
    format!("act {action} {} {payload}", json!({ "channel": "general" }))
}

/// An action that is not waited for, as a step.
pub fn emit(action: &str, payload: Value) -> String {
    format!("emit-{}", act(action, payload))
}

/// The record of an action: the types of its facts, and its outcome.
#[track_caller]
pub fn record(ended: &EndedRun, id: &str) -> (Vec<String>, Value) {
    let facts: Vec<&Value> = ended
        .events
        .iter()
        .filter(|event| event["type"].as_str().unwrap().starts_with("action.") && event["data"]["action_id"] == id)
        .collect();
    let kinds: Vec<String> = facts.iter().map(|fact| fact["type"].as_str().unwrap()["action.".len()..].to_owned()).collect();
    let last = facts.last().unwrap_or_else(|| panic!("nothing about {id}: {ended}"));
    assert_eq!(kinds.iter().filter(|kind| *kind == "resolved").count(), 1, "{id} has no one end: {ended}");
    assert_eq!(last["type"], "action.resolved", "{ended}");
    (kinds, last["data"].clone())
}

/// Checks that the action was requested, answered, and had this outcome.
#[track_caller]
pub fn answered(ended: &EndedRun, id: &str, outcome: &str) -> Value {
    let (kinds, resolved) = record(ended, id);
    assert_eq!(kinds, ["requested", "answered", "resolved"], "{ended}");
    assert_eq!(resolved["outcome"], outcome, "{ended}");
    resolved
}

/// Checks that the action was requested, not answered, and ended with its run: of the two clocks that run out in one moment,
/// either may be first.
#[track_caller]
pub fn ran_out(ended: &EndedRun, id: &str) {
    let (kinds, resolved) = record(ended, id);
    assert_eq!(kinds, ["requested", "resolved"], "{ended}");
    assert!(["cancelled", "expired"].contains(&resolved["outcome"].as_str().unwrap()), "{ended}");
}

/// Checks that the action was requested, not answered, and had this outcome.
#[track_caller]
pub fn unanswered(ended: &EndedRun, id: &str, outcome: &str) -> Value {
    let (kinds, resolved) = record(ended, id);
    assert_eq!(kinds, ["requested", "resolved"], "{ended}");
    assert_eq!(resolved["outcome"], outcome, "{ended}");
    resolved
}
