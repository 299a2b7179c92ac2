//! Echo runs over HTTP, in conversations that are new or have a history.

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

/// Keeps `in_flight` runs going, each on a connection of its own. With a history, each connection stays in one conversation,
/// which has had so many runs before anything is counted; without, each run has a new conversation.
pub(crate) async fn load(address: SocketAddr, pid: u32, load: Load, history: Option<usize>) -> anyhow::Result<Report> {
    let mut workers = Vec::with_capacity(load.in_flight);
    for worker in 0..load.in_flight {
        let connection = Connection::open(address).await?;
        workers.push(Worker { connection, worker, turn: 0, has_history: history.is_some() });
    }
    if let Some(runs) = history {
        try_join_all(workers.iter_mut().map(|worker| worker.prepare(runs))).await?;
    }
    let window = Window::new(load);
    let (latencies, cpu) = try_join(try_join_all(workers.iter_mut().map(|worker| worker.work(window))), window.cpu(pid)).await?;
    window.report(latencies.concat(), cpu)
}

struct Worker {
    connection: Connection,
    worker: usize,
    turn: usize,
    has_history: bool,
}

impl Worker {
    async fn prepare(&mut self, runs: usize) -> anyhow::Result<()> {
        for _ in 0..runs {
            self.run().await?;
        }
        Ok(())
    }

    async fn work(&mut self, window: Window) -> anyhow::Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while window.is_open() {
            let started = Instant::now();
            self.run().await?;
            latencies.extend(window.latency(started));
        }
        Ok(latencies)
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let conversation = echo::conversation(self.worker, if self.has_history { 0 } else { self.turn });
        let body = event(echo::TEXT, &conversation);
        let answer = self.connection.post("/api/v1/events", "prefer: wait=30\r\n", &body, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a run did not complete: {answer}");
        self.turn += 1;
        Ok(())
    }
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
