//! A host with a queue, and executors made of single requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::queue::support::Host;

/// A runner whose runs executors take.
pub const OUTSIDE: &str = r#"
[[external_runners]]
id = "plugin:test/outside/default"

[external_runners.permissions]
history = ["page"]
state = ["conversation", "runner"]
artifacts = ["metadata", "read", "create"]
"#;

/// A host whose messages go into a queue; `policy` goes into the queue of its binding, `more` behind.
pub fn host(policy: &str, more: &str) -> Host {
    Host::start(
        &["steps"],
        &format!(
            "{OUTSIDE}\n[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\nmatch = {{ event_type = \
             \"message\\\\..*\" }}\nmax_attempts = 3\n[bindings.queue]\nbackoff_ms = 0\n{policy}\n{more}"
        ),
    )
}

/// Sends requests to a host, wherever it is by now.
#[derive(Clone)]
pub struct Desk {
    http: reqwest::Client,
    urls: watch::Receiver<String>,
}

/// An executor.
#[derive(Clone)]
pub struct Executor {
    pub desk: Desk,
    pub id: String,
    pub credential: String,
}

/// A run that somebody holds.
#[derive(Clone)]
pub struct HeldRun {
    desk: Desk,
    pub run: String,
    pub token: Arc<str>,
    pub claim: u64,
}

impl Desk {
    pub fn of(host: &Host) -> Self {
        Self { http: reqwest::Client::new(), urls: host.urls() }
    }

    pub fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", *self.urls.borrow()));
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    /// The status and the JSON of an answer; nothing where there was none.
    pub async fn try_send(&self, request: RequestBuilder) -> Option<(u16, Value)> {
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    pub async fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        self.try_send(self.request(Method::POST, path, token).json(body)).await.expect("the host answers")
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.try_send(self.request(Method::GET, path, "")).await.expect("the host answers")
    }

    /// A run made by name.
    pub async fn create(&self, body: Value) -> Value {
        let (status, run) = self.post("/api/v1/runs", "", &body).await;
        assert_eq!(status, 202, "{body}: {run:#}");
        run
    }

    /// A job for the binding `outside`.
    pub async fn job(&self, text: &str, queue: Value) -> String {
        let run = self.create(json!({ "binding_id": "outside", "input": { "text": text }, "queue": queue })).await;
        run["run_id"].as_str().unwrap().to_owned()
    }

    pub async fn register(&self, registration: Value) -> Executor {
        let (status, answer) = self.post("/api/v1/executors", "", &registration).await;
        assert_eq!(status, 201, "{answer:#}");
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        Executor { desk: self.clone(), id: text("executor_id"), credential: text("credential") }
    }

    pub async fn executor(&self, name: &str) -> Executor {
        self.register(json!({ "name": name, "slots": 100 })).await
    }
}

impl Executor {
    /// The outcome of a claim; `None` if the host did not answer.
    pub async fn try_claim(&self, wish: &Value) -> Option<Option<HeldRun>> {
        let request = self.desk.request(Method::POST, "/api/v1/claims", &self.credential).json(wish);
        let (status, answer) = self.desk.try_send(request).await?;
        match status {
            200 => Some(Some(HeldRun {
                desk: self.desk.clone(),
                run: answer["run"]["run_id"].as_str().unwrap().to_owned(),
                token: answer["lease_token"].as_str().unwrap().into(),
                claim: answer["run"]["queue"]["claims"].as_u64().unwrap(),
            })),
            204 => Some(None),
            503 => None,
            other => panic!("{other}: {answer:#}"),
        }
    }

    /// Claims a run, waiting for one, and starts it.
    pub async fn claim(&self) -> HeldRun {
        self.claims(json!({ "wait_ms": 20_000, "start": true })).await.expect("there is a run")
    }

    pub async fn claims(&self, wish: Value) -> Option<HeldRun> {
        self.try_claim(&wish).await.expect("the host answers")
    }
}

impl HeldRun {
    pub async fn try_post(&self, what: &str, body: &Value) -> Option<(u16, Value)> {
        let path = format!("/api/v1/runs/{}/{what}", self.run);
        self.desk.try_send(self.desk.request(Method::POST, &path, &self.token).json(body)).await
    }

    pub async fn post(&self, what: &str, body: Value) -> (u16, Value) {
        self.try_post(what, &body).await.expect("the host answers")
    }

    /// Does something that is allowed. A host that was started a moment ago may ask to try again.
    pub async fn does(&self, what: &str, body: Value) -> Value {
        let began = Instant::now();
        loop {
            let (status, answer) = self.post(what, body.clone()).await;
            if status == 503 && began.elapsed() < PATIENCE {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            assert_eq!(status, 200, "{what} {body}: {answer:#}");
            return answer;
        }
    }

    /// Does something that is refused.
    pub async fn refused(&self, what: &str, body: Value, status: u16, code: &str) -> Value {
        let (got, problem) = self.post(what, body.clone()).await;
        assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{what} {body}: {problem:#}");
        problem
    }

    pub async fn complete(&self) -> Value {
        self.does("finalize", json!({ "status": "completed" })).await
    }
}

/// A batch of whole messages, numbered from `first`.
pub fn results_from(first: u64, texts: &[&str]) -> Value {
    let message = |(at, text): (usize, &&str)| {
        json!({ "type": "message.completed", "data": {
            "message_id": format!("m{}", first + at as u64),
            "message": { "role": "assistant", "content": [{ "type": "text", "text": text }] },
        } })
    };
    json!({ "first": first, "results": texts.iter().enumerate().map(message).collect::<Vec<_>>() })
}

/// The messages of a run, in order.
pub fn texts(events: &[Value]) -> Vec<String> {
    let completed = events.iter().filter(|event| event["type"] == "message.completed");
    completed.map(|event| event["data"]["message"]["content"].as_str().unwrap().to_owned()).collect()
}
