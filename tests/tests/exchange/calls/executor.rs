//! The example executor in Python, as people start it.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::Value;

use crate::calls::support::Host;

/// `executor.py`, in a process of its own. Dropping the value kills it.
struct Python {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Python {
    fn start(host: &Host, delay: &str, lease_ms: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/external-executor/executor.py");
        let mut child = Command::new("python3")
            .arg("-B")
            .arg(script)
            .env("AGENT_HOST_SERVER", host.urls().borrow().as_str())
            .env("EXECUTOR_DELAY", delay)
            .env("EXECUTOR_LEASE_MS", lease_ms)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Waits for a line that has this in it.
    fn says(&self, wanted: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = tokio::task::block_in_place(|| self.lines.recv_timeout(left));
            let line = line.unwrap_or_else(|error| panic!("it does not say {wanted:?}: {error}"));
            if line.contains(wanted) {
                return;
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end; waits until it has, well.
    fn terminate(mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let status = tokio::task::block_in_place(|| self.child.wait()).unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host with the configuration of the example.
fn host() -> Host {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/external-executor");
    let config = std::fs::read_to_string(example.join("agent-host.toml")).unwrap();
    let script = example.join("script.toml");
    let config = config.replace("\"script.toml\"", &format!("{:?}", script.to_str().unwrap()));
    Host::limited(&[], &config)
}

fn text(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == "message.delta");
    deltas.map(|event| event["data"]["chunk"]["content"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_takes_runs_streams_counts_and_leaves_in_good_order() {
    let host = host();
    let python = Python::start(&host, "0.001", "5000");
    for number in 1..=2 {
        let run = host.send_in("c", "hello").await;
        let ended = host.ended(&run).await;
        assert_eq!(ended.run["status"], "completed", "{ended}");
        let message = ended.of("message.completed")[0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(message.contains("You said: hello."), "{message}");
        assert!(message.contains(&format!("message {number} of this conversation")), "it keeps state: {message}");
        assert!(message.contains("an executor outside has asked a model"), "{message}");
        assert_eq!(text(&ended.events).trim_end(), message, "what was streamed is what was said");
    }
    // Without a conversation there is no such state, and the answer comes all the same.
    let run = host.send("alone").await;
    assert_eq!(host.ended(&run).await.run["status"], "completed");
    python.says("completed");
    python.terminate();
    let executors = host.get("/api/v1/executors").await;
    assert!(executors["items"].as_array().unwrap().iter().all(|executor| executor["state"] != "online"), "{executors:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_of_a_killed_executor_goes_to_another() {
    let host = host();
    let first = Python::start(&host, "0.5", "2000");
    let run = host.send_in("c", "hello").await;
    host.until(&run, |event| event["type"] == "message.delta").await;
    first.kill();
    let _second = Python::start(&host, "0.001", "5000");
    let ended = host.ended(&run).await;
    assert_eq!((&ended.run["status"], &ended.run["attempt"]), (&"completed".into(), &2.into()), "{ended}");
    let message = ended.of("message.completed");
    assert_eq!(message.len(), 1, "{ended}");
    let message = message[0]["message"]["content"].as_str().unwrap();
    assert!(message.contains("message 1 of this conversation"), "the attempt that died has counted nothing: {message}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_run_is_let_go_of_and_the_next_is_taken() {
    let host = host();
    let python = Python::start(&host, "0.2", "2000");
    let run = host.send_in("c", "hello").await;
    host.until(&run, |event| event["type"] == "message.delta").await;
    host.cancel(&run).await;
    let ended = host.ended(&run).await;
    assert_eq!(ended.run["status"], "cancelled", "{ended}");
    python.says("given up");
    let next = host.send_in("c", "again").await;
    assert_eq!(host.ended(&next).await.run["status"], "completed");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_outlives_its_host_and_its_executor() {
    let mut host = host();
    let python = Python::start(&host, "0.2", "15000");
    let run = host.send_in("c", "hello").await;
    host.until(&run, |event| event["type"] == "message.delta").await;
    host.kill();
    // The host comes back elsewhere, and the executor knows one address: another takes over what it held.
    host.revive();
    python.kill();
    let _other = Python::start(&host, "0.001", "5000");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let ended = host.ended(&run).await;
    assert_eq!(ended.run["status"], "completed", "{ended}");
    host.check();
}
