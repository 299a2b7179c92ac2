//! A host that lets nobody in without a key, and those who have one.

use std::{
    path::Path,
    process::Output,
    time::{Duration, Instant},
};

use agent_host_tests::{Process, process, world::PATIENCE};
use reqwest::{Client, Method, header::HeaderMap};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs that ask and wait, in whatever conversation.
pub const ASKS: &str = "[[bindings]]\nid = \"asks\"\nrunner = \"plugin:test/asks/default\"\n";

/// The same runs answer for agents too, in threads of any name.
pub const AGENT: &str =
    "[[bindings]]\nid = \"asks\"\nrunner = \"plugin:test/asks/default\"\n[agui.api]\nagent = \"asks\"\nprofile = \"plain\"\n";

/// An answer that was read.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub json: Value,
}

impl Answer {
    pub async fn of(answer: reqwest::Response) -> Self {
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { status, headers, text, json }
    }

    /// Checks that the answer is this problem.
    #[track_caller]
    pub fn is(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{self:#?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        if status == 401 {
            assert_eq!(self.headers["www-authenticate"], "Bearer");
        }
    }

    /// The body of a successful answer.
    #[track_caller]
    pub fn good(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:#?}");
        self.json
    }
}

/// A host, and the key that may do everything.
pub struct Guarded {
    pub process: Process,
    pub http: Client,
    pub root: String,
}

impl Guarded {
    /// The first key is made on the ledger, before the first start of the host.
    pub fn start(components: &[&str], server: &str, config: &str) -> Self {
        let dir = Process::lay_out(components);
        let made = cli(dir.path(), &["keys", "create", "--scope", "admin", "--json"]);
        let root = made["token"].as_str().unwrap().to_owned();
        Self { process: Process::start_as(dir, server, config), http: Client::new(), root }
    }

    /// With small limits, for tests that need no more.
    pub fn small(components: &[&str], limits: &str, config: &str) -> Self {
        Self::start(components, "", &format!("{config}\n[limits]\nmax_live_runs = 50\n{limits}"))
    }

    pub fn url(&self, path: &str) -> String {
        self.process.url(path)
    }

    /// Sends a request with a token, and JSON where there is some.
    pub async fn ask(&self, token: Option<&str>, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, self.url(path)).timeout(PATIENCE);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn get(&self, token: &str, path: &str) -> Answer {
        self.ask(Some(token), Method::GET, path, None).await
    }

    pub async fn post(&self, token: &str, path: &str, body: &Value) -> Answer {
        self.ask(Some(token), Method::POST, path, Some(body)).await
    }

    /// A key with these scopes.
    pub async fn key(&self, scopes: &[&str], workspace: Option<&str>) -> String {
        self.key_like(json!({ "name": "test", "scopes": scopes, "workspace": workspace })).await.1
    }

    /// The id and the token of a key.
    pub async fn key_like(&self, wanted: Value) -> (String, String) {
        let made = self.post(&self.root, "/api/v1/keys", &wanted).await;
        assert_eq!(made.headers["location"], format!("/api/v1/keys/{}", made.json["key_id"].as_str().unwrap()));
        let made = made.good();
        (made["key_id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
    }

    /// Sends a message, and gives the event and its one run.
    pub async fn send(&self, token: &str, text: &str) -> (String, String) {
        let accepted = self.post(token, "/api/v1/events", &message(text)).await.good();
        let id = |at: &str| accepted.pointer(at).and_then(Value::as_str).unwrap_or_else(|| panic!("{accepted}")).to_owned();
        (id("/event_id"), id("/runs/0/run_id"))
    }

    /// Waits until the run is in this status.
    pub async fn until(&self, run: &str, status: &str) {
        let began = Instant::now();
        loop {
            let shown = self.get(&self.root, &format!("/api/v1/runs/{run}")).await.good();
            if shown["status"] == status {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "it does not come to be {status}: {shown:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub fn message(text: &str) -> Value {
    json!({ "event_type": "message.received", "input": { "text": text } })
}

/// A command line that works, with `--json`.
pub fn cli(dir: &Path, line: &[&str]) -> Value {
    let output = run(dir, line, &[]);
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A command line in an environment.
pub fn run(dir: &Path, line: &[&str], environment: &[(&str, &str)]) -> Output {
    process::command(dir).args(line).envs(environment.iter().copied()).output().unwrap()
}

/// True if a file of the directory contains this text.
pub fn is_anywhere(dir: &TempDir, text: &str) -> bool {
    fn within(dir: &Path, text: &[u8]) -> bool {
        std::fs::read_dir(dir).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                return within(&path, text);
            }
            std::fs::read(&path).unwrap().windows(text.len()).any(|window| window == text)
        })
    }
    within(dir.path(), text.as_bytes())
}
