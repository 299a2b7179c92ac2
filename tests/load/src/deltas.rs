//! Runs that stream, each followed by a client.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::Value;

use crate::{connection::Connection, cpu, echo, http};

/// The counts.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    deltas: usize,
    us_per_delta: f64,
    cpu_us_per_delta: f64,
}

/// Makes `runs` runs, `in_flight` of them at once. Each emits its deltas one by one, and a client reads them as
/// server-sent events; the time is that until the last of them is read.
pub(crate) async fn load(address: SocketAddr, pid: u32, in_flight: usize, runs: usize, deltas: usize) -> anyhow::Result<Report> {
    let each = runs.div_ceil(in_flight);
    // The first runs of a process fill caches.
    try_join_all((0..in_flight).map(|worker| work(address, worker, 1, deltas))).await?;
    let (started, before) = (Instant::now(), cpu::time(pid)?);
    try_join_all((0..in_flight).map(|worker| work(address, in_flight + worker, each, deltas))).await?;
    let (wall, cpu) = (started.elapsed(), cpu::time(pid)?.saturating_sub(before));
    let deltas = in_flight * each * deltas;
    let per_delta = |time: Duration| time.as_secs_f64() * 1e6 / deltas as f64;
    Ok(Report { deltas, us_per_delta: per_delta(wall), cpu_us_per_delta: per_delta(cpu) })
}

async fn work(address: SocketAddr, worker: usize, runs: usize, deltas: usize) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    for turn in 0..runs {
        let event = http::event(&format!("emit-n {deltas}"), &echo::conversation(worker, turn));
        let accepted: Value = serde_json::from_str(connection.post("/api/v1/events", "", &event, 202).await?)?;
        let id = accepted.pointer("/runs/0/run_id").and_then(Value::as_str).context("the event made no run")?;
        let (mut read, mut completed) = (0, false);
        let count = |line: &str| match line.trim_end() {
            "event: message.delta" => read += 1,
            "event: run.completed" => completed = true,
            _ => {}
        };
        connection.stream(&format!("/api/v1/runs/{id}/events"), count).await?;
        anyhow::ensure!(completed && read >= deltas, "run {id} showed {read} deltas of {deltas}, completed: {completed}");
    }
    Ok(())
}
