//! A host whose runs are executed outside, and an executor made of single requests.

use std::fs;

use agent_host_tests::{Webhook, outside::serve_empty_objects};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::calls::support::Host;

/// The secret that the host and the webhook share: the example of the specification.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const SCRIPT: &str = r#"
[[reply]]
text = "a scripted answer in some words"
"#;

/// A host, the service behind it, and an executor.
pub struct ExecutorHost {
    pub host: Host,
    /// An executor.
    pub url: String,
    http: reqwest::Client,
    credential: String,
    _hook: Webhook,
    _world: TempDir,
}

/// A run that the executor holds.
pub struct ClaimedRun {
    pub run: String,
    pub token: String,
    pub answer: Value,
}

impl ExecutorHost {
    /// A host with two of everything, the first of each granted to the binding, and this much of the operations.
    pub async fn new(resources: &str, state: &str) -> Self {
        Self::limited(resources, state, "").await
    }

    /// As [`Outside::new`], with limits.
    pub async fn limited(resources: &str, state: &str, limits: &str) -> Self {
        Self::with(resources, state, limits, "").await
    }

    /// As [`Outside::limited`], with more of the configuration.
    pub async fn with(resources: &str, state: &str, limits: &str, more: &str) -> Self {
        Self::with_tools("\"a__add\"", resources, state, limits, more).await
    }

    /// As [`Outside::with`], with these tools granted.
    pub async fn with_tools(tools: &str, resources: &str, state: &str, limits: &str, more: &str) -> Self {
        let hook = Webhook::start(SECRET).await;
        let port = serve_empty_objects().await;
        let world = tempfile::tempdir().unwrap();
        fs::write(world.path().join("script.toml"), SCRIPT).unwrap();
        fs::write(world.path().join("secret"), SECRET).unwrap();
        let config = format!(
            r#"
[limits]
max_live_runs = 50
{limits}

{more}

[egress]
allow_addresses = ["127.0.0.0/8"]

[[action_hooks]]
actions = ["*"]
url = "{url}"
secret = {{ file = {secret:?} }}

[[models]]
id = "a-chat"
provider = "scripted"
script = {script:?}

[[models]]
id = "a-embed"
type = "embedding"
provider = "scripted"

[[models]]
id = "a-rerank"
type = "rerank"
provider = "scripted"

[[models]]
id = "b-chat"
provider = "scripted"
script = {script:?}

[[mcp_servers]]
id = "a"
command = "{server}"

[[knowledge_bases]]
id = "a-base"

[[external_runners]]
id = "plugin:test/outside/default"

[external_runners.capabilities]
steering = true

[external_runners.permissions]
models = ["invoke", "stream", "rerank", "embed", "count_tokens"]
tools = ["detail", "call"]
knowledge_bases = ["list", "retrieve"]
history = ["page", "search"]
events = ["get", "page"]
conversations = ["threads", "workspace"]
artifacts = ["metadata", "read", "create"]
state = ["conversation", "actor", "subject", "runner", "binding"]
storage = ["plugin", "workspace", "binding"]
runs = ["start", "get", "list", "events", "cancel"]
platform_api = ["message.edit"]
interactions = true
http_hosts = ["127.0.0.1:*"]

[[bindings]]
id = "outside"
runner = "plugin:test/outside/default"
max_attempts = 5
{state}
[bindings.resources]
model_ids = ["a-*"]
tool_names = [{tools}]
kb_ids = ["a-base"]
runner_ids = ["plugin:test/steps/*"]
{resources}

[bindings.queue]
backoff_ms = 1

[[bindings.approvals]]
action = "message.edit"
policy = "allow"
"#,
            url = hook.url,
            secret = world.path().join("secret"),
            script = world.path().join("script.toml"),
            server = env!("CARGO_BIN_EXE_mcp-server"),
        );
        let host = Host::limited(&["steps"], &config);
        let mut this = Self {
            host,
            url: format!("http://127.0.0.1:{port}/"),
            _hook: hook,
            http: reqwest::Client::new(),
            credential: String::new(),
            _world: world,
        };
        let registration = json!({ "name": "a test", "slots": 100 });
        let registered = this.request(Method::POST, "/api/v1/executors", "").json(&registration).send().await.unwrap();
        assert_eq!(registered.status(), 201);
        this.credential = registered.json::<Value>().await.unwrap()["credential"].as_str().unwrap().to_owned();
        this
    }

    /// A request, with a token where there is one.
    pub fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", *self.host.urls().borrow()));
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    /// A POST with a JSON body: gives the status and the answer.
    pub async fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let answer = self.request(Method::POST, path, token).json(body).send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Claims a run and starts it.
    pub async fn claim(&self) -> ClaimedRun {
        self.claim_with(json!({ "start": true, "wait_ms": 10_000, "lease_ms": 60_000 })).await
    }

    /// Claims a run, with this wish.
    pub async fn claim_with(&self, body: Value) -> ClaimedRun {
        self.claim_at("/api/v1/claims", body).await
    }

    /// Claims a run, with this wish, at this path.
    pub async fn claim_at(&self, path: &str, body: Value) -> ClaimedRun {
        let (status, answer) = self.post(path, &self.credential, &body).await;
        assert_eq!(status, 200, "{answer:#}");
        let text = |at: &str| answer.pointer(at).and_then(Value::as_str).unwrap().to_owned();
        ClaimedRun { run: text("/run/run_id"), token: text("/lease_token"), answer: answer.clone() }
    }

    /// A run in this conversation, claimed and started.
    pub async fn held_in(&self, workspace: &str, conversation: &str, thread: &str, text: &str) -> ClaimedRun {
        let mut place = json!({ "conversation_id": conversation });
        for (name, id) in [("workspace_id", workspace), ("thread_id", thread)] {
            if !id.is_empty() {
                place[name] = id.into();
            }
        }
        let event = json!({ "event_type": "message.received", "conversation": place, "input": { "text": text } });
        assert_eq!(self.post("/api/v1/events", "", &event).await.0, 202);
        self.claim().await
    }

    /// A run in a conversation, claimed and started.
    pub async fn claimed_run(&self) -> ClaimedRun {
        let run = self.host.send_in("c", "hello from a person").await;
        let claimed = self.claim().await;
        assert_eq!(claimed.run, run);
        claimed
    }

    /// A host call of a held run.
    pub async fn call(&self, held: &ClaimedRun, function: &str, arguments: &Value) -> (u16, Value) {
        self.post(&held.path(&format!("/calls/{function}")), &held.token, arguments).await
    }

    /// A host call that is answered.
    pub async fn answered(&self, held: &ClaimedRun, function: &str, arguments: Value) -> Value {
        let (status, answer) = self.call(held, function, &arguments).await;
        assert_eq!(status, 200, "{function}: {answer:#}");
        answer
    }

    /// A host call that is refused so.
    pub async fn refused(&self, held: &ClaimedRun, function: &str, arguments: Value, status: u16, code: &str) -> Value {
        let (got, problem) = self.call(held, function, &arguments).await;
        assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{function} {arguments}: {problem:#}");
        assert!(!problem["detail"].as_str().unwrap_or_default().is_empty(), "{problem:#}");
        problem
    }

    /// The record of what it called, its outcomes by action.
    pub async fn audit(&self, run: &str) -> Vec<(String, String)> {
        let mut records = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.host.get(&format!("/api/v1/runs/{run}/audit?limit=100{cursor}")).await;
            let text = |record: &Value, name: &str| record[name].as_str().unwrap().to_owned();
            let items = page["items"].as_array().unwrap();
            records.extend(items.iter().map(|record| (text(record, "action"), text(record, "outcome"))));
            if page["has_more"] == false {
                return records;
            }
            cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
        }
    }

    /// Ends a held run well.
    pub async fn complete(&self, held: &ClaimedRun) {
        let (status, answer) = self.post(&held.path("/finalize"), &held.token, &json!({ "status": "completed" })).await;
        assert_eq!((status, &answer["status"]), (200, &json!("completed")), "{answer:#}");
    }
}

impl ClaimedRun {
    /// A path of the run.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/runs/{}{rest}", self.run)
    }
}
