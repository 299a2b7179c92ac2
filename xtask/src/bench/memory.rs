//! Memory of the host.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::{Value, json};

use super::{session::Session, site::Site};
use crate::http::Client;

const PER_RUN: &str = "memory.per_waiting_run.kib";
/// Runs that wait, and how long each does: longer than it takes to look.
const RUNS: u64 = 500;
const SLEEP_MS: u64 = 120_000;
/// All of them should have started by then.
const START: Duration = Duration::from_secs(60);
/// Memory is looked at when things have calmed down.
const CALM: Duration = Duration::from_secs(1);

/// The resident memory of a process, mapped files included (proc(5), `VmRSS`).
pub(crate) fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    field_kib(pid, "VmRSS")
}

/// The most resident memory that a process has had (proc(5), `VmHWM`).
pub(crate) fn peak_kib(pid: u32) -> anyhow::Result<u64> {
    field_kib(pid, "VmHWM")
}

fn field_kib(pid: u32, name: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    field(&status, name).with_context(|| format!("{path} has no {name}"))
}

fn field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// The memory of a live run that waits: instance, fiber, and the host's own data.
pub(crate) fn waiting_runs(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&[PER_RUN]) {
        return Ok(());
    }
    let site = Site::new(session, "waiting", "plugin:test/hostile/default", &session.hostile)?;
    let host = site.start(session)?.host;
    let client = Client::new(host.url());
    let send = |conversation: u64, text: &str, headers: &[(&str, &str)]| {
        let event = json!({
            "event_type": "message.received",
            "conversation": { "conversation_id": format!("waiting-{conversation}") },
            "input": { "text": text },
        });
        client.post("/api/v1/events", headers, &event)
    };
    // The first run of a process sets up more than itself.
    send(0, "ok", &[("Prefer", "wait=30")])?;
    thread::sleep(CALM);
    let idle = resident_kib(host.id())?;
    for conversation in 1..=RUNS {
        send(conversation, &format!("sleep {SLEEP_MS}"), &[])?;
    }
    let deadline = Instant::now() + START;
    loop {
        let live = client.get("/readyz")?.get("live_runs").and_then(Value::as_u64);
        if live == Some(RUNS) {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "{RUNS} runs should wait, the host says {live:?}");
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(CALM);
    let busy = resident_kib(host.id())?;
    host.kill();
    session.record(PER_RUN, busy.saturating_sub(idle) as f64 / RUNS as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn resident_memory_is_read() {
        assert_eq!(super::field("Name:\tx\nVmRSS:\t   12345 kB\nVmData: 1 kB\n", "VmRSS"), Some(12345));
        assert_eq!(super::field("Name: x\n", "VmRSS"), None);
        assert!(super::resident_kib(std::process::id()).unwrap() > 0);
    }
}
