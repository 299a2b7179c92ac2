//! Echo runs over HTTP.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::future::{try_join, try_join_all};
use serde_json::json;

use crate::{
    Load,
    connection::Connection,
    echo,
    window::{Report, Window},
};

/// Keeps `in_flight` runs going, each on a connection of its own.
pub(crate) async fn load(address: SocketAddr, pid: u32, load: Load) -> anyhow::Result<Report> {
    let window = Window::new(load);
    let workers = try_join_all((0..load.in_flight).map(|worker| work(address, worker, window)));
    let (latencies, cpu) = try_join(workers, window.cpu(pid)).await?;
    window.report(latencies.concat(), cpu)
}

async fn work(address: SocketAddr, worker: usize, window: Window) -> anyhow::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let mut latencies = Vec::new();
    let mut turn = 0;
    while window.is_open() {
        let body = event(echo::TEXT, &echo::conversation(worker, turn));
        let started = Instant::now();
        let answer = connection.post("/api/v1/events", "prefer: wait=30\r\n", &body, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a run did not complete: {answer}");
        latencies.extend(window.latency(started));
        turn += 1;
    }
    Ok(latencies)
}

/// A message with this text.
pub(crate) fn event(text: &str, conversation: &str) -> String {
    json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": conversation },
        "actor": { "actor_type": "user", "actor_id": "bench" },
        "input": { "text": text },
    })
    .to_string()
}
