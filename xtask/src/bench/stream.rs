//! Tokens from a model server through the host to clients.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use anyhow::Context;
use serde_json::Value;

use super::{
    calls::{RUNNER, UNLIMITED},
    session::{Report, Session},
    site::{Site, target},
};

/// Numbers of concurrent runs, and of tokens in each: enough for some seconds.
const STREAMS: [(u32, u32); 3] = [(1, 50_000), (64, 2_000), (512, 400)];
/// At a rate that models have and the host is not busy with: 64 runs, each with 50 tokens a second, for five seconds.
const MODERATE: [&str; 6] = ["--in-flight", "64", "--tokens", "250", "--pace-us", "20000"];

const ADDED_P50: &str = "stream.added_ms_per_token.p50";
const ADDED_P99: &str = "stream.added_ms_per_token.p99";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    for (in_flight, tokens) in STREAMS {
        let rate = format!("stream.{in_flight}.tokens_per_second");
        if session.wants(&[&rate]) {
            let arguments = ["--in-flight", &in_flight.to_string(), "--tokens", &tokens.to_string()];
            let report = stream(session, &format!("stream-{in_flight}"), &arguments)?;
            session.record(&rate, report.number("tokens_per_second")?)?;
        }
    }
    if session.wants(&[ADDED_P50, ADDED_P99]) {
        let report = stream(session, "stream-moderate", &MODERATE)?;
        session.record(ADDED_P50, report.number("p50_ms")?)?;
        session.record(ADDED_P99, report.number("p99_ms")?)?;
    }
    Ok(())
}

fn stream(session: &Session, name: &str, arguments: &[&str]) -> anyhow::Result<Report> {
    let models = ModelServer::start(session)?;
    let site = Site::configured(session, name, &session.calls, &config(&models))?;
    let host = site.start(session)?.host;
    let target = target(&host);
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    let report = session.load(&[&["stream"], target.as_slice(), arguments].concat());
    host.kill();
    report
}

/// A run may pass on tokens faster than one of a real model: what is measured is not its limits.
fn config(models: &ModelServer) -> String {
    format!("{UNLIMITED}\n{}\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n", models.config())
}

/// The model server of `agent-host-load`, which ends with its input: with this.
pub(crate) struct ModelServer {
    child: Child,
    address: String,
}

impl ModelServer {
    pub(crate) fn start(session: &Session) -> anyhow::Result<Self> {
        let mut command = session.load_command(&["model-server"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let listening: Value = serde_json::from_str(&line).with_context(|| format!("the model server says `{line}`"))?;
        let address = listening.get("address").and_then(Value::as_str).context("the model server does not say where it is")?;
        Ok(Self { address: address.to_owned(), child })
    }

    /// The configuration of the model.
    pub(crate) fn config(&self) -> String {
        format!(
            "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nbase_url = \"http://{}/v1\"\nmax_concurrent = 1000\n",
            self.address
        )
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The process may have ended; in both cases it is gone afterwards.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
