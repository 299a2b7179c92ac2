//! Runs that pass on what a model streams, each followed by a client.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    connection::Connection,
    cpu, echo, http,
    model_server::{DIGITS, MARK, now_us},
    window::percentile_ms,
};

/// Tokens of the runs before anything is counted: enough for caches and connections.
const WARM_UP_TOKENS: usize = 20;

/// The counts.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    tokens: usize,
    tokens_per_second: f64,
    /// From the moment in which the model server sends a token to that in which the client has read it.
    p50_ms: f64,
    p99_ms: f64,
    cpu_us_per_token: f64,
}

/// The size of the load.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Streams {
    /// Number of concurrent runs
    #[arg(long)]
    pub(crate) in_flight: usize,
    /// Number of tokens in each run
    #[arg(long)]
    pub(crate) tokens: usize,
    /// Time between two tokens; 0 is as fast as the model server can
    #[arg(long, default_value = "0")]
    pub(crate) pace_us: u64,
}

/// Makes the runs; the time is that until the last token is read.
pub(crate) async fn load(address: SocketAddr, pid: u32, streams: Streams) -> anyhow::Result<Report> {
    let Streams { in_flight, tokens, pace_us } = streams;
    try_join_all((0..in_flight).map(|worker| follow(address, worker, WARM_UP_TOKENS, 0))).await?;
    let (started, before) = (Instant::now(), cpu::time(pid)?);
    let read = try_join_all((0..in_flight).map(|worker| follow(address, in_flight + worker, tokens, pace_us))).await?;
    let (wall, cpu) = (started.elapsed(), cpu::time(pid)?.saturating_sub(before));
    let mut latencies = read.concat();
    latencies.sort_unstable();
    let tokens = in_flight * tokens;
    Ok(Report {
        tokens,
        tokens_per_second: tokens as f64 / wall.as_secs_f64(),
        p50_ms: percentile_ms(&latencies, 50),
        p99_ms: percentile_ms(&latencies, 99),
        cpu_us_per_token: cpu.as_secs_f64() * 1e6 / tokens as f64,
    })
}

/// Follows a run; returns the delay of each token.
async fn follow(address: SocketAddr, worker: usize, tokens: usize, pace_us: u64) -> anyhow::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let text = json!({ "call": "relay", "times": tokens, "pace_us": pace_us }).to_string();
    let event = http::event(&text, &echo::conversation(worker, 0));
    let accepted: Value = serde_json::from_str(connection.post("/api/v1/events", "", &event, 202).await?)?;
    let id = accepted.pointer("/runs/0/run_id").and_then(Value::as_str).context("the event made no run")?.to_owned();
    let mut reading = Reading::default();
    connection.stream(&format!("/api/v1/runs/{id}/events"), |line| reading.line(line)).await?;
    let Reading { tokens: read, completed, latencies, last, .. } = reading;
    anyhow::ensure!(completed && read == tokens, "run {id} showed {read} tokens of {tokens}, completed: {completed}; {last}");
    Ok(latencies)
}

/// The view of a client on a run.
#[derive(Default)]
struct Reading {
    /// True if the present event is a delta.
    delta: bool,
    tokens: usize,
    completed: bool,
    latencies: Vec<Duration>,
    /// The data of the last event, for a person who asks why.
    last: String,
}

impl Reading {
    fn line(&mut self, line: &str) {
        if let Some(kind) = line.strip_prefix("event: ") {
            self.delta = kind.trim_end() == "message.delta";
            self.completed |= kind.trim_end() == "run.completed";
        } else if let Some(data) = line.strip_prefix("data: ") {
            if self.delta {
                self.data(data, now_us());
            } else {
                data.clone_into(&mut self.last);
            }
        }
    }

    fn data(&mut self, data: &str, now: u64) {
        for (at, _) in data.match_indices(MARK) {
            self.tokens += 1;
            // A token may be cut where a message is full.
            let sent =
                data.get(at + MARK.len_utf8()..).and_then(|rest| rest.get(..DIGITS)).and_then(|digits| digits.parse().ok());
            self.latencies.extend(sent.map(|sent: u64| Duration::from_micros(now.saturating_sub(sent))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_deltas() {
        let mut reading = Reading::default();
        for line in ["event: message.completed", "data: @0000000000000001 ", "", "event: message.delta", "id: 1", "data: {@00"] {
            reading.line(line);
        }
        reading.data("{\"content\":\"@0000000000000100 @0000000000000200 \"}", 300);
        reading.line("event: run.completed");
        let expected: Vec<_> = [200, 100].map(Duration::from_micros).into();
        assert_eq!((reading.tokens, reading.latencies, reading.completed), (3, expected, true));
    }
}
