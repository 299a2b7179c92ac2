//! The real binary, and those who ask it.

use std::{path::Path, process::Output, time::Instant};

use agent_host_tests::{Process, process, world::PATIENCE};
use serde_json::{Value, json};

/// A host whose configuration changes while it runs.
pub struct Host {
    pub process: Process,
    http: reqwest::Client,
}

/// The section that keeps the pool of guests small.
pub const LIMITS: &str = "[limits]\nmax_live_runs = 50\n";

/// A binding of the echo, which says this before what it hears.
pub fn echo(id: &str, prefix: &str) -> String {
    format!("[[bindings]]\nid = \"{id}\"\nrunner = \"plugin:agent-host/echo/default\"\nconfig = {{ prefix = \"{prefix}\" }}\n")
}

impl Host {
    pub fn start(components: &[&str], config: &str) -> Self {
        Self::of(tokio::task::block_in_place(|| Process::start(components, config)))
    }

    pub fn of(process: Process) -> Self {
        Self { process, http: reqwest::Client::new() }
    }

    pub fn dir(&self) -> &Path {
        self.process.dir.path()
    }

    /// Writes the file anew, without telling the host.
    pub fn write(&self, config: &str) {
        self.process.write(config);
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.http.get(self.process.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.http.post(self.process.url(path)).json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub async fn reload(&self) -> (u16, Value) {
        self.post("/api/v1/config/reload", &json!({})).await
    }

    /// Sends a message, and gives its runs when they have ended.
    pub async fn say(&self, text: &str) -> Vec<Value> {
        let event = json!({ "event_type": "message.received", "input": { "text": text } });
        let url = self.process.url("/api/v1/events");
        let answer = self.http.post(url).header("prefer", "wait=30").json(&event).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer["runs"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// Sends a message, and gives its one run at once.
    pub async fn send(&self, text: &str) -> String {
        let event = json!({ "event_type": "message.received", "input": { "text": text } });
        let (_, answer) = self.post("/api/v1/events", &event).await;
        answer["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub async fn run(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{id}")).await.1
    }

    pub async fn events(&self, id: &str) -> Vec<Value> {
        self.get(&format!("/api/v1/runs/{id}/events?limit=100")).await.1["items"].as_array().unwrap().clone()
    }

    /// The command line beside the host: it knows the configuration, and where the server is.
    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = process::command(self.dir());
        tokio::task::block_in_place(|| command.env("AGENT_HOST_SERVER", &self.process.url).args(arguments).output().unwrap())
    }
}

/// The message of a run.
pub fn output_text(run: &Value) -> &str {
    let content = &run["output"]["content"];
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_else(|| panic!("it said nothing: {run}"))
}

/// Waits until it is so.
pub async fn until<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let began = Instant::now();
    while !so().await {
        assert!(began.elapsed() < PATIENCE, "{what}: it does not become so");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
