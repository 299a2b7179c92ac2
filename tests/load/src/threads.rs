//! Threads of facts over HTTP: read models, pages, whole streams, and clients that follow.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    connection::Connection,
    cpu, http,
    queue::{Executor, make_in},
    window::percentile_ms,
};

const THREADS: &str = "/api/v1/threads";
/// Facts of one page.
const PAGE: u64 = 100;
/// Wait of a run for its executor, in ms.
const CLAIM_WAIT_MS: u64 = 20_000;
/// The first of a kind fill caches and are not counted.
const WARM_UP: usize = 5;
/// Time between two results that are followed.
const APART: Duration = Duration::from_millis(20);
/// Time limit of one thing that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// The size of a thread.
#[derive(Debug, Serialize)]
pub(crate) struct FilledThread {
    facts: u64,
}

/// Adds turns of `deltas` deltas to a thread until it has so many facts.
pub(crate) async fn fill(address: SocketAddr, thread: &str, facts: u64, deltas: usize) -> anyhow::Result<FilledThread> {
    let mut connection = Connection::open(address).await?;
    let event = http::event(&format!("emit-n {deltas}"), thread);
    loop {
        let answer = connection.post("/api/v1/events", "prefer: wait=30\r\n", &event, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a turn did not complete: {answer}");
        let reached = last_fact(&mut connection, thread).await?;
        if reached >= facts {
            return Ok(FilledThread { facts: reached });
        }
    }
}

/// The number of the last fact, from the read model.
async fn last_fact(connection: &mut Connection, thread: &str) -> anyhow::Result<u64> {
    let model: Value = serde_json::from_str(connection.get(&format!("{THREADS}/{thread}")).await?)?;
    let cursor = model.get("eventCursor").and_then(Value::as_str).context("a read model has no `eventCursor`")?;
    Ok(cursor.parse()?)
}

/// The times of reads.
#[derive(Debug, Serialize)]
pub(crate) struct Reads {
    /// The first read model after the start of the host.
    model_first_ms: f64,
    model_p50_ms: f64,
    /// Pages at places all over the thread.
    page_p50_ms: f64,
    page_p99_ms: f64,
    /// Facts of the whole stream, over the CPU time that the host took for them.
    facts_per_cpu_second: f64,
}

/// Reads a thread of a host that has just started: `rounds` read models, as many pages, and once all facts.
pub(crate) async fn read(address: SocketAddr, pid: u32, thread: &str, rounds: usize) -> anyhow::Result<Reads> {
    let mut connection = Connection::open(address).await?;
    let (mut models, mut pages) = (Vec::new(), Vec::new());
    let mut last = 0;
    for _ in 0..=rounds {
        let started = Instant::now();
        last = last_fact(&mut connection, thread).await?;
        models.push(started.elapsed());
    }
    let model_first_ms = models.remove(0).as_secs_f64() * 1e3;
    for round in 0..rounds as u64 {
        // Neighbouring rounds read places far apart.
        let after = last.saturating_sub(PAGE) * (round * 7 % rounds as u64) / rounds as u64;
        let started = Instant::now();
        let page: Value =
            serde_json::from_str(connection.get(&format!("{THREADS}/{thread}/events?after={after}&limit={PAGE}")).await?)?;
        pages.push(started.elapsed());
        let first = page.pointer("/items/0/sequence").and_then(Value::as_u64);
        anyhow::ensure!(first == Some(after + 1), "the page after {after} begins with {first:?}");
    }
    models.sort_unstable();
    pages.sort_unstable();
    let before = cpu::time(pid)?;
    connection.subscribe(&format!("{THREADS}/{thread}/events")).await?;
    let mut facts = 0;
    connection
        .lines_while(|line| {
            facts += u64::from(line.starts_with("data: "));
            facts < last
        })
        .await?;
    anyhow::ensure!(facts == last, "the stream has {facts} facts of {last}");
    let cpu = cpu::time(pid)?.saturating_sub(before);
    #[allow(clippy::cast_precision_loss, reason = "there are some millions")]
    let facts_per_cpu_second = facts as f64 / cpu.as_secs_f64();
    Ok(Reads {
        model_first_ms,
        model_p50_ms: percentile_ms(&models, 50),
        page_p50_ms: percentile_ms(&pages, 50),
        page_p99_ms: percentile_ms(&pages, 99),
        facts_per_cpu_second,
    })
}

/// The delays of clients that follow a thread.
#[derive(Debug, Serialize)]
pub(crate) struct Delays {
    p50_ms: f64,
    p99_ms: f64,
}

/// One client and the moment in which a result came to it.
type Arrival = (usize, Instant);

/// The threads of the clients that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Followed {
    /// All follow one thread: each result goes to all of them.
    One,
    /// Each follows a thread of its own: each result goes to one of them.
    Own,
}

/// `followers` clients follow threads whose executor says `rounds` results, one after the other. A delay is the time from the
/// request with a result to its fact at a client, the commit between them included.
pub(crate) async fn follow(
    address: SocketAddr,
    thread: &str,
    followed: Followed,
    followers: usize,
    rounds: usize,
) -> anyhow::Result<Delays> {
    let mut executor = Executor::register(address, "speaker").await?;
    let mut making = Connection::open(address).await?;
    let threads: Vec<_> = match followed {
        Followed::One => vec![thread.to_owned()],
        Followed::Own => (0..followers).map(|number| format!("{thread}-{number}")).collect(),
    };
    let mut held = Vec::with_capacity(threads.len());
    for thread in &threads {
        make_in(&mut making, thread).await?;
        held.push(executor.claim(CLAIM_WAIT_MS).await?.context("the turn does not come to its executor")?);
    }
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let mut clients = JoinSet::new();
    let errors = Arc::new(Mutex::new(Vec::new()));
    for thread in threads.iter().cycle().take(followers) {
        let mut connection = Connection::open(address).await?;
        connection.subscribe(&format!("{THREADS}/{thread}/events")).await?;
        let (sender, errors) = (sender.clone(), Arc::clone(&errors));
        clients.spawn(async move {
            let each = |line: &str| {
                if let Some(round) = round_of(line) {
                    let _gone = sender.send((round, Instant::now()));
                }
            };
            if let Err(error) = connection.lines(each).await
                && let Ok(mut errors) = errors.lock()
            {
                errors.push(error);
            }
        });
    }
    let hearers = followers / threads.len();
    let mut delays = Vec::with_capacity(hearers * rounds);
    for (round, held) in (0..WARM_UP + rounds).zip(held.iter().cycle()) {
        let first = if followed == Followed::One { round + 1 } else { round / threads.len() + 1 };
        let sent = Instant::now();
        executor.append(held, &result(round, first)).await?;
        for _ in 0..hearers {
            let arrived = timeout(PATIENCE, arrivals.recv()).await;
            let (at, moment): Arrival = arrived
                .with_context(|| format!("a follower waits for result {round}: {errors:?}"))?
                .context("no follower is left")?;
            anyhow::ensure!(at == round, "result {at} came while {round} was due");
            if round >= WARM_UP {
                delays.push(moment.saturating_duration_since(sent));
            }
        }
        tokio::time::sleep(APART).await;
    }
    delays.sort_unstable();
    Ok(Delays { p50_ms: percentile_ms(&delays, 50), p99_ms: percentile_ms(&delays, 99) })
}

/// The body of a request with one result, by its number among those of its run.
fn result(round: usize, first: usize) -> String {
    let content = format!("round {round}.");
    let data = json!({ "message_id": "m", "chunk": { "role": "assistant", "content": content } });
    json!({ "first": first, "results": [{ "type": "message.delta", "data": data }] }).to_string()
}

/// The round that a line of a stream shows.
fn round_of(line: &str) -> Option<usize> {
    let fact = line.strip_prefix("data: ")?;
    let (_, text) = fact.split_once("round ")?;
    text.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_found_in_its_fact() {
        let body: Value = serde_json::from_str(&result(7, 8)).unwrap();
        assert_eq!(body["first"], 8);
        let text = body["results"][0]["data"]["chunk"]["content"].as_str().unwrap();
        assert_eq!(round_of(&format!("data: {{\"type\":\"model.delta\",\"payload\":{{\"delta\":\"{text}\"}}}}")), Some(7));
        assert_eq!(round_of("data: {\"type\":\"turn.started\"}"), None);
        assert_eq!(round_of("id: 12"), None);
    }
}
