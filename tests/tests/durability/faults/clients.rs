//! Clients that send each request to any host, and send it again where they do not know whether it was done.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::{Random, follow_at};

/// A request without an answer is sent to another host after so long.
const TIMEOUT: Duration = Duration::from_secs(6);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// A conversation goes on for so many messages of each of its clients.
const MESSAGES: usize = 6;

/// A client with a connection to every host.
#[derive(Clone)]
pub struct Client {
    urls: Arc<[String]>,
    http: reqwest::Client,
    /// Sent with each request.
    credential: Option<String>,
    /// The answer of a host that could do nothing.
    refused: Arc<std::sync::Mutex<String>>,
    random: Arc<std::sync::Mutex<Random>>,
}

/// A request that was acknowledged, and the run that it made.
pub struct Sent {
    /// Names the message.
    pub task: String,
    pub run: String,
    /// The events that the client was shown, to the end.
    pub seen: Vec<Value>,
    client: Client,
    path: &'static str,
    key: String,
    body: Value,
}

impl Client {
    pub fn new(urls: Vec<String>, seed: u64) -> Self {
        let http = reqwest::Client::builder().read_timeout(TIMEOUT).connect_timeout(TIMEOUT).build().unwrap();
        Self {
            urls: urls.into(),
            http,
            credential: None,
            refused: Arc::default(),
            random: Arc::new(std::sync::Mutex::new(Random(seed))),
        }
    }

    /// The client with a credential.
    pub fn with(self, credential: Option<String>) -> Self {
        Self { credential, ..self }
    }

    /// Makes a key of a workspace.
    pub async fn make_key(&self, workspace: &str) -> String {
        let scopes = ["events:write", "runs:read", "runs:execute", "admin"];
        let wanted = json!({ "name": workspace, "scopes": scopes, "workspace": workspace });
        let (status, made) = self.surely(|client| client.request(&Method::POST, "/api/v1/keys").json(&wanted)).await;
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.random.lock().unwrap().below(bound)
    }

    /// A request to any host.
    pub fn request(&self, method: &Method, path: &str) -> RequestBuilder {
        let at = usize::try_from(self.below(self.urls.len() as u64)).unwrap();
        let request = self.http.request(method.clone(), format!("{}{path}", self.urls[at]));
        match &self.credential {
            Some(credential) => request.bearer_auth(credential),
            None => request,
        }
    }

    /// The answer to a request, with its status. `None` where nobody knows whether the request was done.
    pub async fn answer(&self, request: RequestBuilder) -> Option<(u16, Value)> {
        let answer = request.timeout(TIMEOUT).send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        // No host that knows is there, or it broke off, or its disk is full.
        if matches!(status, 502..=504 | 507) {
            *self.refused.lock().unwrap() = text;
            return None;
        }
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// The answer to a request that may be repeated, of whichever host gives one.
    pub async fn surely(&self, request: impl Fn(&Self) -> RequestBuilder) -> (u16, Value) {
        let began = Instant::now();
        loop {
            if let Some(answer) = self.answer(request(self)).await {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "no host answers, and the last one said {}", self.refused.lock().unwrap());
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.surely(|client| client.request(&Method::GET, path)).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Makes something once, whatever it takes.
    async fn make(&self, path: &str, key: &str, body: &Value) -> Value {
        let request = |client: &Self| client.request(&Method::POST, path).header("idempotency-key", key).json(body);
        let (status, answer) = self.surely(request).await;
        assert_eq!(status, 202, "{path}: {body}: {answer}");
        answer
    }

    /// An event that nobody answers.
    pub async fn probe(&self, key: &str) -> String {
        let body = json!({ "event_type": "probe.sent", "data": { "key": key } });
        self.make("/api/v1/events", key, &body).await["event_id"].as_str().unwrap().to_owned()
    }

    /// Sends a request, and follows its run to the end.
    async fn send(&self, path: &'static str, task: String, body: Value) -> Sent {
        let key = format!("key-{task}");
        let run = run_of(&self.make(path, &key, &body).await);
        // Each time at any host.
        let following = follow_at(&run, |path| self.request(&Method::GET, path));
        let seen = tokio::time::timeout(PATIENCE * 2, following).await;
        let seen = seen.unwrap_or_else(|_| panic!("the run {run} of {task} does not end"));
        Sent { task, run, seen, client: self.clone(), path, key, body }
    }

    /// Messages to an agent, one after the other, every other one in the conversation `long` with others.
    pub async fn talk(self, name: usize, long: usize, stop: Arc<AtomicBool>) -> Vec<Sent> {
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let (task, count) = (format!("a{name}-{}", sent.len()), sent.len());
            let conversation = if count % 2 == 0 { format!("long-{long}-{}", count / MESSAGES) } else { task.clone() };
            let body = json!({ "event_type": "message.received", "conversation": { "conversation_id": conversation },
                "input": { "text": format!("task:{task}") } });
            sent.push(self.send("/api/v1/events", task, body).await);
        }
        sent
    }

    /// Jobs for executors in one conversation, one after the other.
    pub async fn give_jobs(self, name: usize, conversation: &str, stop: Arc<AtomicBool>) -> Vec<Sent> {
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let task = format!("j{name}-{}", sent.len());
            let body = json!({ "binding_id": "lists", "input": { "text": task },
                "conversation": { "conversation_id": conversation } });
            sent.push(self.send("/api/v1/runs", task, body).await);
        }
        sent
    }
}

fn run_of(answer: &Value) -> String {
    let id = answer["runs"][0]["run_id"].as_str().or_else(|| answer["run_id"].as_str());
    id.unwrap_or_else(|| panic!("no run: {answer}")).to_owned()
}

impl Sent {
    /// The run. The same request again makes no other.
    pub async fn is_made_once(&self) -> Value {
        assert_eq!(run_of(&self.client.make(self.path, &self.key, &self.body).await), self.run, "{} was made twice", self.task);
        self.client.get(&format!("/api/v1/runs/{}", self.run)).await
    }
}
