//! Runs over AG-UI, as front ends make them: each a request whose answer are the events of the run.

use std::{
    cell::Cell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::future::{try_join, try_join_all};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    arguments::Load,
    connection::Connection,
    model_server::{DIGITS, MARK, now_us},
    stream::Streams,
    window::{Report, Window, percentile_ms},
};

/// The agent that relays a model's stream, and the echo agent.
const RELAY: &str = "/agents/bench/run";
const ECHO: &str = "/agents/echo/run";
const THREADS: &str = "/agents/echo/threads";

/// Runs that keep a run going while clients come back to it: at this pace, and so many tokens that it lasts longer than they
/// take.
const REATTACH_PACE_US: u64 = 2_000;
const REATTACH_TOKENS: usize = 30_000;
/// Tokens that are there before the first comes back.
const REATTACH_AFTER: usize = 200;

/// Letters of a message in a long history: the answer has as many.
const HISTORY_LETTERS: usize = 1_000;

/// The rate of one run whose model is faster than the host.
#[derive(Debug, Serialize)]
pub(crate) struct Deltas {
    per_second: f64,
}

/// Durations.
#[derive(Debug, Serialize)]
pub(crate) struct Delays {
    p50_ms: f64,
    p99_ms: f64,
}

impl Delays {
    fn of(mut delays: Vec<Duration>) -> Self {
        delays.sort_unstable();
        Self { p50_ms: percentile_ms(&delays, 50), p99_ms: percentile_ms(&delays, 99) }
    }
}

/// The view of runs that take their time.
#[derive(Debug, Serialize)]
pub(crate) struct SeenEvents {
    /// From the request to the first event.
    first_event: Delays,
    /// From the moment in which the model server sends a token to that in which the client has read it.
    token: Delays,
}

/// The number of ended runs.
#[derive(Debug, Serialize)]
pub(crate) struct StreamEnd {
    runs: usize,
}

/// The first screen of a thread.
#[derive(Debug, Serialize)]
pub(crate) struct Screen {
    /// For a thread that was not read before.
    first_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// A request for a run with one message.
fn input(thread: &str, run: &str, text: &str) -> String {
    json!({
        "threadId": thread, "runId": run, "protocolVersion": "1.0", "state": {},
        "messages": [{ "id": format!("{run}-user"), "role": "user", "content": text }],
        "tools": [], "context": [], "forwardedProps": {},
    })
    .to_string()
}

/// The request for a run's model.
fn model_task(tokens: usize, pace_us: u64) -> String {
    json!({ "call": "relay", "times": tokens, "pace_us": pace_us }).to_string()
}

/// The view of a client on a run.
#[derive(Debug, Default)]
struct Reading {
    first: Option<Instant>,
    tokens: usize,
    delays: Vec<Duration>,
    finished: bool,
    last: String,
}

impl Reading {
    fn line(&mut self, line: &str) {
        let Some(data) = line.strip_prefix("data: ") else { return };
        self.first.get_or_insert_with(Instant::now);
        if data.contains("\"TEXT_MESSAGE_CONTENT\"") {
            let now = now_us();
            for (at, _) in data.match_indices(MARK) {
                self.tokens += 1;
                let sent =
                    data.get(at + MARK.len_utf8()..).and_then(|rest| rest.get(..DIGITS)).and_then(|digits| digits.parse().ok());
                self.delays.extend(sent.map(|sent: u64| Duration::from_micros(now.saturating_sub(sent))));
            }
        } else {
            self.finished |= data.contains("\"RUN_FINISHED\"");
            data.clone_into(&mut self.last);
        }
    }

    fn ended(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.finished, "a run did not finish: {}", self.last);
        Ok(())
    }
}

/// Keeps a run going on each connection, each in a thread of its own.
pub(crate) async fn load(address: SocketAddr, pid: u32, load: Load) -> anyhow::Result<Report> {
    let window = Window::new(load);
    let workers = try_join_all((0..load.in_flight).map(|worker| work(address, worker, window)));
    let (latencies, cpu) = try_join(workers, window.cpu(pid)).await?;
    window.report(latencies.concat(), cpu)
}

async fn work(address: SocketAddr, worker: usize, window: Window) -> anyhow::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let (mut latencies, mut turn) = (Vec::new(), 0);
    while window.is_open() {
        let started = Instant::now();
        run(&mut connection, &format!("{worker}-{turn}")).await?;
        latencies.extend(window.latency(started));
        turn += 1;
    }
    Ok(latencies)
}

/// Makes `runs` runs and no more, so that what they cost can be divided by them.
pub(crate) async fn runs(address: SocketAddr, in_flight: usize, runs: usize) -> anyhow::Result<StreamEnd> {
    let started_runs = Cell::new(0);
    let next = || (started_runs.get() < runs).then(|| started_runs.replace(started_runs.get() + 1));
    let workers = (0..in_flight).map(|_| async {
        let mut connection = Connection::open(address).await?;
        while let Some(number) = next() {
            // Two processes may do this on one host.
            run(&mut connection, &format!("{}-{number}", std::process::id())).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(workers).await?;
    Ok(StreamEnd { runs: started_runs.get() })
}

/// A run in a thread of its own, read to its end.
async fn run(connection: &mut Connection, name: &str) -> anyhow::Result<()> {
    let body = input(&format!("load-{name}"), &format!("run-{name}"), &model_task(0, 0));
    let mut reading = Reading::default();
    connection.post_stream(RELAY, &body, |line| reading.line(line)).await?;
    reading.ended()
}

/// Runs whose model sends one token at a time. Their starts are spread over the time of a run.
pub(crate) async fn tokens(address: SocketAddr, streams: Streams, each: usize) -> anyhow::Result<SeenEvents> {
    let Streams { in_flight, tokens, pace_us } = streams;
    let lasts = Duration::from_micros(pace_us).saturating_mul(u32::try_from(tokens)?);
    let apart = lasts / u32::try_from(in_flight.max(1))?;
    let workers = (0..in_flight).map(|worker| async move {
        sleep(apart.saturating_mul(u32::try_from(worker)?)).await;
        let mut connection = Connection::open(address).await?;
        let (mut firsts, mut delays) = (Vec::new(), Vec::new());
        for turn in 0..=each {
            let body = input(&format!("tokens-{worker}"), &format!("run-{worker}-{turn}"), &model_task(tokens, pace_us));
            let (started, mut reading) = (Instant::now(), Reading::default());
            connection.post_stream(RELAY, &body, |line| reading.line(line)).await?;
            reading.ended()?;
            anyhow::ensure!(reading.tokens == tokens, "a run showed {} tokens of {tokens}", reading.tokens);
            // The first run of a connection fills caches.
            if turn > 0 {
                firsts.extend(reading.first.map(|first| first - started));
                delays.extend(reading.delays);
            }
        }
        anyhow::Ok((firsts, delays))
    });
    let (firsts, delays): (Vec<_>, Vec<_>) = try_join_all(workers).await?.into_iter().unzip();
    Ok(SeenEvents { first_event: Delays::of(firsts.concat()), token: Delays::of(delays.concat()) })
}

/// Clients that ask for a run again in the middle of it, each on a new connection; the time is that until they have read all
/// that was said before.
pub(crate) async fn reattach(address: SocketAddr, rounds: usize) -> anyhow::Result<Delays> {
    let body = input("reattach", "reattach", &model_task(REATTACH_TOKENS, REATTACH_PACE_US));
    let mut first = Connection::open(address).await?;
    first.post_subscribe(RELAY, &body).await?;
    let mut reading = Reading::default();
    first
        .lines_while(|line| {
            reading.line(line);
            reading.tokens < REATTACH_AFTER
        })
        .await?;
    let mut delays = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        let mut connection = Connection::open(address).await?;
        connection.post_subscribe(RELAY, &body).await?;
        let mut whole = false;
        connection
            .lines_while(|line| {
                whole |= line.contains("\"MESSAGES_SNAPSHOT\"");
                !whole
            })
            .await?;
        anyhow::ensure!(whole, "a client that came back was not told what was said before");
        delays.push(started.elapsed());
    }
    let mut connection = Connection::open(address).await?;
    connection.post("/agents/bench/threads/reattach/runs/reattach/cancel", "", "", 202).await?;
    Ok(Delays::of(delays))
}

/// The first screen of a thread of so many messages.
pub(crate) async fn thread(address: SocketAddr, messages: usize, rounds: usize) -> anyhow::Result<Screen> {
    let mut connection = Connection::open(address).await?;
    // A message of the user, and one of the agent.
    for turn in 0..messages.div_ceil(2) {
        let body = input("long", &format!("turn-{turn}"), &format!("message {turn} of a long conversation"));
        let mut reading = Reading::default();
        connection.post_stream(ECHO, &body, |line| reading.line(line)).await?;
        reading.ended()?;
    }
    let mut delays = Vec::new();
    for _ in 0..=rounds {
        let started = Instant::now();
        let screen: Value = serde_json::from_str(connection.get(&format!("{THREADS}/long")).await?)?;
        delays.push(started.elapsed());
        let count = screen.get("messages").and_then(Value::as_array).map_or(0, Vec::len);
        let has_more = screen.get("hasMore") == Some(&Value::Bool(true));
        anyhow::ensure!(count > 0 && has_more, "the thread shows {count} messages, and more: {has_more}");
    }
    let first_ms = delays.remove(0).as_secs_f64() * 1e3;
    let Delays { p50_ms, p99_ms } = Delays::of(delays);
    Ok(Screen { first_ms, p50_ms, p99_ms })
}

/// Runs of one client whose model says `tokens` tokens at once: the median of their rates, from the request to the end of the
/// stream.
pub(crate) async fn deltas(address: SocketAddr, tokens: usize, rounds: usize) -> anyhow::Result<Deltas> {
    let mut connection = Connection::open(address).await?;
    let mut rates = Vec::new();
    for round in 0..rounds {
        let body = input(&format!("deltas-{round}"), &format!("deltas-run-{round}"), "say it");
        let (started, mut reading, mut letters) = (Instant::now(), Reading::default(), 0);
        let each = |line: &str| {
            reading.line(line);
            letters += delta_len(line);
        };
        connection.post_stream(RELAY, &body, each).await?;
        reading.ended()?;
        anyhow::ensure!(letters >= tokens, "a run showed {letters} letters of {tokens} tokens: {}", reading.last);
        #[allow(clippy::cast_precision_loss, reason = "there are some thousands")]
        rates.push(tokens as f64 / started.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(Deltas { per_second: rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN) })
}

/// The length of the text that a line brings.
fn delta_len(line: &str) -> usize {
    let Some(data) = line.strip_prefix("data: ").filter(|data| data.contains("\"TEXT_MESSAGE_CONTENT\"")) else { return 0 };
    let event: Value = serde_json::from_str(data).unwrap_or_default();
    event.get("delta").and_then(Value::as_str).map_or(0, str::len)
}

/// Runs in one thread whose client sends all that was said before along, as stock clients do: the time from the request to the
/// first event.
pub(crate) async fn history(address: SocketAddr, turns: usize, rounds: usize) -> anyhow::Result<Delays> {
    let mut connection = Connection::open(address).await?;
    let (mut messages, mut delays) = (Vec::new(), Vec::new());
    for turn in 0..turns + rounds {
        let text = format!("{turn} {}", "x".repeat(HISTORY_LETTERS));
        let run = format!("history-{turn}");
        messages.push(json!({ "id": format!("{run}-user"), "role": "user", "content": text }));
        // Short requests until the history is there: a client may leave out what the host knows.
        let sent = if turn < turns { messages.get(turn * 2..).unwrap_or_default() } else { &messages[..] };
        let body = json!({
            "threadId": "history", "runId": run, "protocolVersion": "1.0", "state": {},
            "messages": sent, "tools": [], "context": [], "forwardedProps": {},
        });
        let body = body.to_string();
        let (started, mut reading, mut streamed) = (Instant::now(), Reading::default(), StreamedMessage::default());
        let each = |line: &str| {
            reading.line(line);
            streamed.line(line);
        };
        connection.post_stream(ECHO, &body, each).await?;
        reading.ended()?;
        messages.push(streamed.message()?);
        if turn >= turns {
            delays.extend(reading.first.map(|first| first - started));
        }
    }
    Ok(Delays::of(delays))
}

/// The message of a run, collected from its deltas.
#[derive(Debug, Default)]
struct StreamedMessage {
    id: Option<String>,
    text: String,
}

impl StreamedMessage {
    fn line(&mut self, line: &str) {
        let Some(data) = line.strip_prefix("data: ").filter(|data| data.contains("\"TEXT_MESSAGE_")) else { return };
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        self.id = self.id.take().or_else(|| event.get("messageId").and_then(Value::as_str).map(str::to_owned));
        self.text.push_str(event.get("delta").and_then(Value::as_str).unwrap_or_default());
    }

    /// As a client sends it along.
    fn message(&self) -> anyhow::Result<Value> {
        let id = self.id.as_ref().ok_or_else(|| anyhow::anyhow!("a run has no message"))?;
        Ok(json!({ "id": id, "role": "assistant", "content": self.text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_texts() {
        let mut reading = Reading::default();
        reading.line(": keep-alive");
        assert!(reading.first.is_none());
        for line in [
            r#"data: {"type":"RUN_STARTED"}"#,
            r#"data: {"type":"MESSAGES_SNAPSHOT","messages":["@0000000000000001 "]}"#,
            r#"data: {"type":"TEXT_MESSAGE_CONTENT","delta":"@0000000000000100 @0000000000000200 "}"#,
        ] {
            reading.line(line);
        }
        assert_eq!((reading.tokens, reading.delays.len(), reading.first.is_some()), (2, 2, true));
        assert!(reading.ended().is_err());
        reading.line(r#"data: {"type":"RUN_FINISHED"}"#);
        assert!(reading.ended().is_ok());
    }

    #[test]
    fn an_answer_is_put_together_from_its_deltas() {
        let mut streamed = StreamedMessage::default();
        assert!(streamed.message().is_err());
        for line in [
            r#"data: {"type":"RUN_STARTED","runId":"r"}"#,
            r#"data: {"type":"TEXT_MESSAGE_START","messageId":"m1"}"#,
            r#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"m1","delta":"one "}"#,
            r#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"m1","delta":"two"}"#,
        ] {
            streamed.line(line);
        }
        assert_eq!(streamed.message().unwrap(), json!({ "id": "m1", "role": "assistant", "content": "one two" }));
        assert_eq!(delta_len(r#"data: {"type":"TEXT_MESSAGE_CONTENT","delta":"one "}"#), 4);
    }
}
