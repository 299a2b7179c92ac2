//! The real binary, with its log kept.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use agent_host_tests::{component, process, world::PATIENCE};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A running host.
pub struct Host {
    child: Child,
    url: String,
    dir: TempDir,
    pub http: reqwest::Client,
}

impl Host {
    /// Starts one with these components and this configuration, and with more on its command line.
    pub async fn start(components: &[&str], config: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("plugins")).unwrap();
        for name in components {
            fs::copy(component(name), dir.path().join("plugins").join(format!("{name}.wasm"))).unwrap();
        }
        fs::write(
            dir.path().join("agent-host.toml"),
            format!("[server]\nlisten = \"127.0.0.1:0\"\nloopback_without_key = true\n{config}"),
        )
        .unwrap();
        fs::write(dir.path().join("token"), "Bearer collector-token\n").unwrap();
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        tokio::task::spawn_blocking(move || Self::start_in(dir, &args)).await.unwrap()
    }

    fn start_in(dir: TempDir, args: &[String]) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.path().join("log")).unwrap();
        let mut command = process::command(dir.path());
        command.env_remove("AGENT_HOST_LOG").arg("serve").args(args).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| {
            panic!("the host did not start: {line:?}\n{}", fs::read_to_string(dir.path().join("log")).unwrap())
        });
        Self { child, url: url.to_owned(), dir, http: reqwest::Client::new() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// All that was logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.http.get(self.url(path)).send().await.unwrap().json().await.unwrap()
    }

    /// Says something, with these headers, and gives the run as it ends.
    pub async fn say(&self, text: &str, headers: &[(&str, &str)]) -> Value {
        let event = json!({
            "event_type": "message.received",
            "conversation": { "conversation_id": "c-1" },
            "input": { "text": text },
        });
        let mut request = self.http.post(self.url("/api/v1/events")).header("prefer", "wait=60").json(&event);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer["runs"][0].clone()
    }

    /// Waits until a run has this status.
    pub async fn until(&self, run: &str, status: &str) -> Value {
        let began = Instant::now();
        loop {
            let found = self.get(&format!("/api/v1/runs/{run}")).await;
            if found["status"] == status {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{run} is not {status}: {found:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asks it to end; gives how long that took, and what was logged.
    pub async fn end(mut self) -> (Duration, String) {
        let began = Instant::now();
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "the host ended with {status}:\n{}", self.log());
                return (began.elapsed(), self.log());
            }
            assert!(began.elapsed() < PATIENCE, "the host does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
