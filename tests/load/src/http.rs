//! Echo runs over HTTP, in conversations that are new or have a history.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::future::{try_join, try_join_all};
use serde_json::json;

use crate::{
    arguments::Load,
    connection::Connection,
    echo,
    window::{Report, Window},
};

/// Keeps `in_flight` runs going, each on a connection of its own to one of the addresses. With a history, each connection stays in one
/// conversation, which has had so many runs before anything is counted; without, each run has a new conversation. With `workspaces`, each
/// connection is for one of so many.
pub(crate) async fn load(
    addresses: &[SocketAddr],
    pid: u32,
    load: Load,
    history: Option<usize>,
    workspaces: Option<usize>,
) -> anyhow::Result<Report> {
    let mut workers = Vec::with_capacity(load.in_flight);
    for (worker, address) in (0..load.in_flight).zip(addresses.iter().cycle()) {
        let connection = Connection::open(*address).await?;
        // Connections to one address are for all of them.
        let workspace = workspaces.map(|count| format!("workspace-{}", worker / addresses.len() % count));
        workers.push(Worker { connection, worker, turn: 0, has_history: history.is_some(), workspace });
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
    workspace: Option<String>,
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
        let workspace = self.workspace.as_deref();
        let mut headers = "prefer: wait=30\r\n".to_owned();
        headers.extend(workspace.map(|workspace| format!("x-workspace: {workspace}\r\n")));
        let body = event_in(workspace, echo::TEXT, &conversation);
        let answer = self.connection.post("/api/v1/events", &headers, &body, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a run did not complete: {answer}");
        self.turn += 1;
        Ok(())
    }
}

/// A message with this text.
pub(crate) fn event(text: &str, conversation: &str) -> String {
    event_in(None, text, conversation)
}

fn event_in(workspace: Option<&str>, text: &str, conversation: &str) -> String {
    json!({
        "event_type": "message.received",
        "conversation": { "workspace_id": workspace, "conversation_id": conversation },
        "actor": { "actor_type": "user", "actor_id": "bench" },
        "input": { "text": text },
    })
    .to_string()
}
