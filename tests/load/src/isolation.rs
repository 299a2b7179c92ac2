//! Honest runs and `/healthz` beside hostile guests, and the end of these.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures_util::future::{try_join, try_join_all};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use crate::{
    arguments::Load,
    connection::Connection,
    echo, http,
    window::{Window, percentile_ms},
};

/// All of the guests compute by then.
const BEGUN: Duration = Duration::from_millis(500);
/// Between two requests of a client, so that the load leaves the cores to those that are measured.
const PAUSE: Duration = Duration::from_millis(5);
/// A tree grows, and ends, within this time on any machine.
const TREE_GROWS: Duration = Duration::from_secs(60);
/// Between two looks at a run that was cancelled.
const LOOK: Duration = Duration::from_millis(5);

/// The measured values.
#[derive(Debug, Serialize)]
pub(crate) struct Isolation {
    echo_p50_ms: f64,
    echo_p99_ms: f64,
    health_p50_ms: f64,
    health_p99_ms: f64,
    /// From the first request to cancel until the last of the guests has ended; `None` where all end by themselves.
    cancel_ms: Option<f64>,
}

/// Keeps so many runs of `attack`, the text of the message, under way, measures honest clients for `measure`, and cancels the runs.
pub(crate) async fn measure(address: SocketAddr, attack: &str, guests: usize, measure: Duration) -> anyhow::Result<Isolation> {
    let (stop, stopped) = watch::channel(false);
    let attacks = try_join_all((0..guests).map(|guest| keep_attacking(address, attack, guest, stopped.clone())));
    let honest = async {
        sleep(BEGUN).await;
        let window = Window::new(Load { in_flight: 1, warm_up: Duration::from_millis(500), measure });
        let times = try_join(echoes(address, window), healths(address, window)).await;
        stop.send_replace(true);
        times
    };
    let (runs, (echo, health)) = try_join(attacks, honest).await?;
    let runs: Vec<String> = runs.into_iter().flatten().collect();
    let cancel_ms = if runs.is_empty() { None } else { Some(cancel_all(address, &runs).await?) };
    Ok(Isolation {
        echo_p50_ms: percentile_ms(&echo, 50),
        echo_p99_ms: percentile_ms(&echo, 99),
        health_p50_ms: percentile_ms(&health, 50),
        health_p99_ms: percentile_ms(&health, 99),
        cancel_ms,
    })
}

/// The end of a tree of runs after its root was cancelled.
#[derive(Debug, Serialize)]
pub(crate) struct TreeEnd {
    /// From the request to cancel the root until its answer.
    accepted_ms: f64,
    /// From the same until the last run of the tree has ended, in times of the host.
    cancel_ms: f64,
}

/// Starts a tree with an event of this text, waits until it has `runs` runs that are under way below its root, and cancels the root.
pub(crate) async fn cancel_tree(address: SocketAddr, text: &str, runs: usize) -> anyhow::Result<TreeEnd> {
    let mut connection = Connection::open(address).await?;
    let event = json!({ "event_type": "tree", "input": { "text": text } });
    let accepted: Value = serde_json::from_str(connection.post("/api/v1/events", "", &event.to_string(), 202).await?)?;
    let root = accepted.pointer("/runs/0/run_id").and_then(Value::as_str).context("the event made no run")?.to_owned();
    let patience = Instant::now();
    loop {
        let tree = below(&mut connection, &root).await?;
        if tree.len() == runs && tree.iter().all(|run| run.get("status").is_some_and(|status| status == "running")) {
            break;
        }
        anyhow::ensure!(patience.elapsed() < TREE_GROWS, "the tree has {} of {runs} runs", tree.len());
        sleep(LOOK).await;
    }
    // All that compute do so by then.
    sleep(BEGUN).await;
    let began = Instant::now();
    connection.send(&format!("/api/v1/runs/{root}/cancel"), "", "{}").await?;
    let accepted_ms = began.elapsed().as_secs_f64() * 1e3;
    let ended = loop {
        let tree = below(&mut connection, &root).await?;
        if !tree.iter().any(is_live) {
            break tree;
        }
        anyhow::ensure!(began.elapsed() < TREE_GROWS, "the tree does not end");
        sleep(LOOK * 10).await;
    };
    let root: Value = serde_json::from_str(connection.get(&format!("/api/v1/runs/{root}")).await?)?;
    let asked = root.get("cancel_requested_at").and_then(Value::as_f64).context("the root was not cancelled")?;
    let last = ended.iter().chain([&root]).filter_map(|run| run.get("finished_at")?.as_f64()).fold(asked, f64::max);
    Ok(TreeEnd { accepted_ms, cancel_ms: last - asked })
}

/// The runs below a run, on all levels.
async fn below(connection: &mut Connection, root: &str) -> anyhow::Result<Vec<Value>> {
    let (mut found, mut parents) = (Vec::new(), vec![root.to_owned()]);
    while let Some(parent) = parents.pop() {
        let page: Value = serde_json::from_str(connection.get(&format!("/api/v1/runs?parent_run_id={parent}&limit=100")).await?)?;
        let runs = page.get("items").and_then(Value::as_array).context("the list has no runs")?;
        parents.extend(runs.iter().filter_map(|run| run.get("run_id")?.as_str().map(str::to_owned)));
        found.extend(runs.iter().cloned());
    }
    Ok(found)
}

/// Attacks until it is told to stop: where a run ends, the next one begins. Gives the run that does not end by itself.
async fn keep_attacking(
    address: SocketAddr,
    attack: &str,
    guest: usize,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Option<String>> {
    let mut connection = Connection::open(address).await?;
    let event = json!({
        "event_type": "attack",
        "conversation": { "conversation_id": format!("attack-{guest}") },
        "input": { "text": attack },
    });
    while !*stopped.borrow() {
        let (status, answer) = connection.send("/api/v1/events", "prefer: wait=1\r\n", &event.to_string()).await?;
        anyhow::ensure!(matches!(status, 200 | 202), "an attack is not accepted: {status} {answer}");
        let answer: Value = serde_json::from_str(answer)?;
        let run = answer.pointer("/runs/0").context("the event made no run")?;
        if is_live(run) {
            let id = run.get("run_id").and_then(Value::as_str).context("a run has an id")?.to_owned();
            stopped.wait_for(|stopped| *stopped).await?;
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn is_live(run: &Value) -> bool {
    run.get("status").and_then(Value::as_str).is_some_and(|status| matches!(status, "created" | "queued" | "running" | "waiting"))
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
        if !is_live(&run) {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}
