//! Queries of chat pipelines, sent to the real binary.

use agent_host_tests::{Process, world::PATIENCE};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

const ECHO: &str = "plugin:agent-host/echo/default";
const QUERIES: &str = "/api/v1/pipeline/queries";

/// A query that says something, and the configuration of a pipeline that keeps so many rounds.
fn request(text: &str, rounds: u32) -> Value {
    json!({
        "query": {
            "query_id": 7,
            "launcher_type": "person",
            "launcher_id": "42",
            "sender_id": 42,
            "bot_uuid": "bot-1",
            "pipeline_uuid": "5f0c",
            "message_event": { "type": "FriendMessage", "time": 1_700_000_000, "sender": { "id": 42, "nickname": "Ada" } },
            "message_chain": [{ "type": "Source", "id": 31 }, { "type": "Plain", "text": text }],
            "variables": { "city": "Berlin", "api_token": "hush" },
            "prompt": { "messages": [{ "role": "system", "content": "Be brief." }] },
            "messages": [{ "role": "user", "content": "of the pipeline" }],
        },
        "pipeline_config": {
            "trigger": { "misc": { "combine-quote-message": true } },
            "ai": {
                "runner": { "runner": "local-agent" },
                "local-agent": { "max-round": rounds, "prefix": "> ", "model": "m-1" },
                "dify-service-api": { "api-key": "hush" },
            },
            "output": { "long-text-processing": { "threshold": 500, "strategy": "forward" }, "misc": { "at-sender": true } },
        },
        "runner_id": ECHO,
    })
}

/// The binary with `echo`, and nothing bound.
struct Host {
    process: Process,
    http: Client,
}

impl Host {
    fn start() -> Self {
        Self { process: Process::start(&["echo", "stage"], "[limits]\nmax_live_runs = 20\n"), http: Client::new() }
    }

    fn post(&self, body: &Value) -> RequestBuilder {
        self.http.post(self.process.url(QUERIES)).json(body)
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(self.process.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    /// Sends a query, waits for the end of its run, and gives the run.
    async fn query(&self, body: &Value) -> Value {
        let answer = self.post(body).send().await.unwrap();
        let (status, location) = (answer.status().as_u16(), answer.headers().get("location").cloned());
        let taken: Value = answer.json().await.unwrap();
        assert_eq!(status, 202, "{taken:#}");
        let path = format!("/api/v1/runs/{}", taken["run"]["run_id"].as_str().unwrap());
        // The location keeps the names of the client: those of LangBot where it did not ask for others.
        let location = location.unwrap().to_str().unwrap().to_owned();
        assert_eq!(location, format!("{path}?dialect=langbot-4.11"));
        let theirs = self.get(&location).await;
        assert_eq!(theirs["created_at"], theirs["created_at_ms"].as_u64().unwrap() / 1_000, "{theirs:#}");
        assert_eq!(taken["event_id"], taken["run"]["event_id"]);
        assert_eq!(taken["run_ids"], json!([taken["run"]["run_id"]]));
        let began = std::time::Instant::now();
        loop {
            let run = self.get(&path).await;
            if run["finished_at"].is_u64() {
                assert_eq!(run["status"], "completed", "{run:#}");
                return run;
            }
            assert!(began.elapsed() < PATIENCE, "the run does not end: {run:#}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn context(&self, run: &Value) -> Value {
        self.get(&format!("/api/v1/runs/{}/context", run["run_id"].as_str().unwrap())).await
    }
}

async fn refused(request: RequestBuilder) -> (u16, Value) {
    let answer: Response = request.send().await.unwrap();
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/problem+json", "{status}");
    (status, answer.json().await.unwrap())
}

/// The texts of the messages that a context brings along.
fn bootstrap(context: &Value) -> Vec<&str> {
    let messages = context["bootstrap"]["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    messages.iter().map(|message| message["content"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_an_event_with_a_binding_of_its_own() {
    let host = Host::start();
    let run = host.query(&request("hi there", 10)).await;
    assert_eq!((&run["binding_id"], &run["runner_id"]), (&json!("pipeline.5f0c"), &json!(ECHO)));
    let event = host.get(&format!("/api/v1/events/{}", run["event_id"].as_str().unwrap())).await;
    let field = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        [field("event_type"), field("source"), field("source_event_type")],
        ["message.received", "pipeline_adapter", "FriendMessage"]
    );
    assert_eq!(event["event_time"], 1_700_000_000_000_u64);

    let context = host.context(&run).await;
    assert_eq!(context["trigger"]["source"], "pipeline_adapter", "{context:#}");
    assert_eq!(context["input"]["text"], "hi there");
    assert_eq!(context["conversation"]["conversation_id"], "person_42");
    assert_eq!((&context["actor"]["actor_id"], &context["actor"]["actor_name"]), (&json!("42"), &json!("Ada")));
    assert_eq!(context["config"], json!({ "prefix": "> ", "chunk": 0 }), "what the form has, and its defaults");
    assert_eq!(context["delivery"]["max_message_size"], 500);
    assert_eq!(context["delivery"]["platform_capabilities"]["output"]["misc"]["at-sender"], true);
    assert_eq!(context["resources"]["platform_capabilities"], context["delivery"]["platform_capabilities"]);
    assert_eq!(
        context["adapter"],
        json!({
            "query_id": "7",
            "pipeline_uuid": "5f0c",
            "params": { "city": "Berlin" },
            "prompt": [{ "role": "system", "content": "Be brief." }],
            "pipeline": { "trigger": { "misc": { "combine-quote-message": true } } },
            "config": { "model": "m-1" },
        })
    );
    let all = format!("{context}{event}");
    for word in ["max-round", "max_round", "hush", "of the pipeline"] {
        assert!(!all.contains(word), "{word} is behind the adapter: {all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_are_the_tail_of_the_transcript() {
    let host = Host::start();
    // A runner that takes messages from the host.
    let request = |text: &str, rounds: u32| {
        let mut request = request(text, rounds);
        request["runner_id"] = "plugin:test/stage/default".into();
        request
    };
    for text in ["one", "two", "three"] {
        host.query(&request(text, 1)).await;
    }
    // Two messages of a round, and what the platform thinks was said is not among them.
    let context = host.context(&host.query(&request("four", 1)).await).await;
    let tail = bootstrap(&context);
    assert!(tail.len() == 2 && tail[0] == "three" && tail[1].contains("three"), "{tail:?}");
    let context = host.context(&host.query(&request("five", 100)).await).await;
    assert_eq!(bootstrap(&context).len(), 8, "all that there is");
    let context = host.context(&host.query(&request("six", 0)).await).await;
    assert_eq!(bootstrap(&context).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_taken_once_under_its_key() {
    let host = Host::start();
    let body = request("hi", 1);
    let send = |body: &Value| host.post(body).header("idempotency-key", "q-7");
    let first: Value = send(&body).send().await.unwrap().json().await.unwrap();
    let again = send(&body).send().await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    let again: Value = again.json().await.unwrap();
    assert_eq!((&again["event_id"], &again["run"]["run_id"]), (&first["event_id"], &first["run"]["run_id"]));
    let (status, problem) = refused(send(&request("ho", 1))).await;
    assert_eq!((status, problem["code"].as_str()), (422, Some("idempotency_conflict")));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_and_unknown_values_are_named() {
    let host = Host::start();
    let good = request("hi", 1);
    let with = |pointer: &str, value: Value| {
        let mut body = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { &mut body } else { body.pointer_mut(parent).unwrap() };
        parent[name] = value;
        body
    };
    for (body, field) in [
        (with("/pipeline_config/ai/local-agent/max-round", json!(-1)), "pipeline_config.ai.local-agent.max-round"),
        (with("/query/message_chain", json!([])), "query"),
        (with("/query/launcher_id", json!({})), "query.launcher_id"),
        (with("/query/variables", json!("x")), "query.variables"),
        (with("/query", json!("x")), "query"),
        (with("/quarry", json!({})), "quarry"),
        (with("/runner_id", json!("echo")), "runner_id"),
    ] {
        let (status, problem) = refused(host.post(&body)).await;
        assert_eq!(
            (status, problem["code"].as_str(), problem["field"].as_str()),
            (400, Some("invalid_argument"), Some(field)),
            "{problem:#}"
        );
    }
    let (status, problem) = refused(host.post(&with("/pipeline_config/ai/local-agent/prefix", json!(7)))).await;
    assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_config")), "{problem:#}");
    // The pipeline's own name of the runner means a plugin that does not exist here.
    let (status, problem) = refused(host.post(&with("/runner_id", Value::Null))).await;
    assert_eq!((status, problem["code"].as_str()), (404, Some("runner_not_found")), "{problem:#}");
    assert!(problem["detail"].as_str().unwrap().contains(ECHO), "it says what there is: {problem:#}");
    let (status, _) = refused(host.http.post(host.process.url(QUERIES)).body("{}")).await;
    assert_eq!(status, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_a_query_become_artifacts() {
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let host = Host::start();
    let saying = |part: Value| {
        let mut body = request("hi", 0);
        body["query"]["user_message"] = json!({ "role": "user", "content": [{ "type": "text", "text": "look" }, part] });
        body
    };
    let good = saying(json!({ "type": "image_base64", "image_base64": format!("data:image/png;base64,{PNG}") }));
    let context = host.context(&host.query(&good).await).await;
    let part = &context["input"]["contents"][1];
    assert_eq!((&part["type"], &part["artifact"]["media_type"]), (&json!("artifact"), &json!("image/png")), "{context:#}");
    assert!(!context.to_string().contains(PNG), "the bytes are in the event");
    for (bytes, status) in
        [(format!("data:image/jpeg;base64,{PNG}"), 422), (PNG.to_owned(), 400), ("data:image/png;base64,!".to_owned(), 422)]
    {
        let (got, problem) = refused(host.post(&saying(json!({ "type": "image_base64", "image_base64": bytes })))).await;
        assert_eq!((got, problem["field"].as_str()), (status, Some("query.user_message.content[1]")), "{problem:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_bring_bindings_along() {
    let host = Host::start();
    let keys = host.process.url("/api/v1/keys");
    for (scopes, workspace, status) in [
        (json!(["events:write", "runs:control", "runs:read"]), Value::Null, 403),
        (json!(["admin"]), Value::Null, 202),
        (json!(["admin", "runs:read"]), json!("acme"), 202),
    ] {
        let key = json!({ "name": "k", "scopes": scopes, "workspace": workspace });
        let made: Value = host.http.post(&keys).json(&key).send().await.unwrap().json().await.unwrap();
        let token = made["token"].as_str().unwrap_or_else(|| panic!("{made:#}"));
        let answer = host.post(&request("hi", 1)).bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.status(), status, "{scopes}");
        if status == 202 {
            let taken: Value = answer.json().await.unwrap();
            assert_eq!(taken["run"].get("workspace_id").cloned().unwrap_or_default(), workspace);
        }
    }
}

/// The default configuration of a pipeline of LangBot 4.11 for its local agent, with a prompt and a model.
fn unchanged(runner: Value) -> Value {
    json!({
        "query": {
            "query_id": 1, "launcher_type": "person", "launcher_id": "42", "sender_id": "42", "pipeline_uuid": "5f0c",
            "message_event": { "type": "FriendMessage", "time": 1_700_000_000, "sender": { "id": 42, "nickname": "Ada" } },
            "message_chain": [{ "type": "Source", "id": 31 }, { "type": "Plain", "text": "hi there" }],
        },
        "pipeline_config": {
            "trigger": { "ignore-rules": { "prefix": [], "regexp": [] }, "misc": { "combine-quote-message": true } },
            "safety": { "content-filter": { "scope": "all" }, "rate-limit": { "window-length": 60, "limitation": 60 } },
            "ai": {
                "runner": runner,
                "local-agent": {
                    "model": { "primary": "m-1", "fallbacks": [] },
                    "max-round": 10,
                    "prompt": [{ "role": "system", "content": "You are a parrot." }],
                    "knowledge-bases": [],
                    "rerank-model": "",
                },
                "dify-service-api": { "base-url": "https://api.dify.ai/v1", "api-key": "hush" },
            },
            "output": { "long-text-processing": { "threshold": 1000, "strategy": "none" }, "force-delay": { "min": 0, "max": 0 } },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_pipeline_finds_the_local_agent() {
    let script = tempfile::tempdir().unwrap();
    std::fs::write(script.path().join("s.toml"), "[[reply]]\ntext = \"a scripted answer\"\n").unwrap();
    let more = format!(
        "[limits]\nmax_live_runs = 20\n[[models]]\nid = \"m-0\"\nprovider = \"scripted\"\nscript = {path:?}\n\
         [[models]]\nid = \"m-1\"\nprovider = \"scripted\"\nscript = {path:?}\n",
        path = script.path().join("s.toml")
    );
    let host = Host { process: Process::start(&["local_agent"], &more), http: Client::new() };
    for runner in [
        json!({ "runner": "local-agent", "expire-time": 0 }),
        json!({ "id": "plugin:langbot/local-agent/default", "runner": "local-agent" }),
    ] {
        let run = host.query(&unchanged(runner.clone())).await;
        assert_eq!(run["runner_id"], "plugin:agent-host/local-agent/default", "{runner}");
        assert_eq!(run["usage_by_model"].as_object().unwrap().keys().collect::<Vec<_>>(), ["m-1"], "{run:#}");
        let context = host.context(&run).await;
        let config = &context["config"];
        assert_eq!((&config["model"], &config["system_prompt"]), (&json!("m-1"), &json!("You are a parrot.")), "{config:#}");
        assert_eq!(context["adapter"]["config"], json!({ "knowledge-bases": [], "rerank-model": "" }), "{context:#}");
    }
    // The names of the protocol, for those who ask for them.
    let own = host.http.post(host.process.url(&format!("{QUERIES}?dialect=v1")));
    let answer = own.json(&unchanged(json!({ "runner": "local-agent" }))).send().await.unwrap();
    assert!(!answer.headers()["location"].to_str().unwrap().contains("dialect"));
    let taken: Value = answer.json().await.unwrap();
    assert!(taken["run"]["created_at"].as_u64().unwrap() > 1_700_000_000_000, "{taken:#}");
}
