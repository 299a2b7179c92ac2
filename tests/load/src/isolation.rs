//! Honest runs and `/healthz` beside hostile guests, and the end of these.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures_util::future::{try_join, try_join_all};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Load,
    connection::Connection,
    echo, http,
    window::{Window, percentile_ms},
};

/// All of the guests compute by then.
const BEGUN: Duration = Duration::from_millis(500);
/// Between two requests of a client, so that the load leaves the cores to those that are measured.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks at a run that was cancelled.
const LOOK: Duration = Duration::from_millis(5);

/// The measured values.
#[derive(Debug, Serialize)]
pub(crate) struct Isolation {
    echo_p50_ms: f64,
    echo_p99_ms: f64,
    health_p50_ms: f64,
    health_p99_ms: f64,
    /// From the first request to cancel until the last of the guests has ended; `None` without guests.
    cancel_ms: Option<f64>,
}

/// Starts so many runs of `attack`, the text of the message, measures honest clients for `measure`, and cancels the runs.
pub(crate) async fn measure(address: SocketAddr, attack: &str, guests: usize, measure: Duration) -> anyhow::Result<Isolation> {
    let mut connection = Connection::open(address).await?;
    let mut runs = Vec::with_capacity(guests);
    for guest in 0..guests {
        let event = json!({
            "event_type": "attack",
            "conversation": { "conversation_id": format!("attack-{guest}") },
            "input": { "text": attack },
        });
        let accepted: Value = serde_json::from_str(connection.post("/api/v1/events", "", &event.to_string(), 202).await?)?;
        runs.push(accepted.pointer("/runs/0/run_id").and_then(Value::as_str).context("the event made no run")?.to_owned());
    }
    sleep(BEGUN).await;
    let window = Window::new(Load { in_flight: 1, warm_up: Duration::from_millis(500), measure });
    let (echo, health) = try_join(echoes(address, window), healths(address, window)).await?;
    let cancel_ms = if runs.is_empty() { None } else { Some(cancel_all(address, &runs).await?) };
    Ok(Isolation {
        echo_p50_ms: percentile_ms(&echo, 50),
        echo_p99_ms: percentile_ms(&echo, 99),
        health_p50_ms: percentile_ms(&health, 50),
        health_p99_ms: percentile_ms(&health, 99),
        cancel_ms,
    })
}

/// Sorted times of echo runs, one after the other.
async fn echoes(address: SocketAddr, window: Window) -> anyhow::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let (mut times, mut turn) = (Vec::new(), 0);
    while window.is_open() {
        let body = http::event(echo::TEXT, &echo::conversation(0, turn));
        let began = Instant::now();
        let answer = connection.post("/api/v1/events", "prefer: wait=30\r\n", &body, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a run did not complete: {answer}");
        times.extend(window.latency(began));
        turn += 1;
        sleep(PAUSE).await;
    }
    times.sort_unstable();
    Ok(times)
}

async fn healths(address: SocketAddr, window: Window) -> anyhow::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let mut times = Vec::new();
    while window.is_open() {
        let began = Instant::now();
        connection.get("/healthz").await?;
        times.extend(window.latency(began));
        sleep(PAUSE).await;
    }
    times.sort_unstable();
    Ok(times)
}

async fn cancel_all(address: SocketAddr, runs: &[String]) -> anyhow::Result<f64> {
    let connections = try_join_all(runs.iter().map(|_| Connection::open(address))).await?;
    let began = Instant::now();
    try_join_all(connections.into_iter().zip(runs).map(|(connection, run)| cancel(connection, run))).await?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

async fn cancel(mut connection: Connection, run: &str) -> anyhow::Result<()> {
    let path = format!("/api/v1/runs/{run}");
    // 409 for a run that has ended by itself.
    let (status, answer) = connection.send(&format!("{path}/cancel"), "", "{}").await?;
    anyhow::ensure!(matches!(status, 200 | 202 | 409), "run {run} is not cancelled: {status} {answer}");
    loop {
        let run: Value = serde_json::from_str(connection.get(&path).await?)?;
        if run
            .get("status")
            .and_then(Value::as_str)
            .is_some_and(|status| !matches!(status, "created" | "queued" | "running" | "waiting"))
        {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}
