//! Runs that wait for people, take what is said to them meanwhile, and start others.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use agent_host_protocol::event::Envelope;
use agent_host_runs::{Config, Host};
use anyhow::Context;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    arguments::Load,
    connection::Connection,
    echo, http, in_process,
    journal::median,
    window::{Window, percentile_ms},
};

/// Time limit of the measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first of a kind fill caches and are not counted.
const WARM_UP: usize = 5;

/// A person reads what a run asks before it is answered: by then the run is on disk and nothing of it in memory.
const READS: Duration = Duration::from_millis(20);
/// Many have asked, and the host is idle again.
const CALM: Duration = Duration::from_millis(500);

/// Between two messages to a run: it has called again for the next by then, and waits.
const APART: Duration = Duration::from_millis(5);
/// A run waits so long for a message.
const PULL_MS: u64 = 60_000;

/// Children of one parent: what a run may have at most by default is 256, and 16 at one time.
const CHILDREN: usize = 240;
const AT_ONCE: usize = 16;
/// Shorter than what a run leaves memory for (`park_after_ms`), and longer.
const SHORT_WAIT_MS: u64 = 4_000;
const LONG_WAIT_MS: u64 = 60_000;
/// Pairs of stretches, one of children and one of plain runs, and how long each is.
const PAIRS: usize = 7;
const STRETCH: Duration = Duration::from_millis(1_500);
/// The source of plain runs, by which their binding knows them.
const PLAIN: &str = "scheduler";

/// The measured values of answers.
#[derive(Debug, Serialize)]
pub(crate) struct Approval {
    /// From the answer to the first result that the run commits after it, one run at a time.
    p50_ms: f64,
    p99_ms: f64,
    /// Answers of many people at once, each with its run brought to its end.
    answers_per_second: f64,
}

/// Asks and answers `rounds` times, one after the other, and then `each` times for each of `in_flight` people.
pub(crate) async fn approval(address: SocketAddr, rounds: usize, in_flight: usize, each: usize) -> anyhow::Result<Approval> {
    let mut trips = Vec::new();
    for round in 0..WARM_UP + rounds {
        trips.push(round_trip(address, round).await?);
    }
    let mut trips = trips.split_off(WARM_UP);
    trips.sort_unstable();
    let asks = try_join_all((0..in_flight).map(|person| ask_many(address, person, each))).await?;
    sleep(CALM).await;
    let began = Instant::now();
    try_join_all(asks.into_iter().map(|(connection, asks)| answer_all(connection, asks))).await?;
    Ok(Approval {
        p50_ms: percentile_ms(&trips, 50),
        p99_ms: percentile_ms(&trips, 99),
        answers_per_second: (in_flight * each) as f64 / began.elapsed().as_secs_f64(),
    })
}

/// The time from an answer to the next result of the run.
async fn round_trip(address: SocketAddr, round: usize) -> anyhow::Result<Duration> {
    let mut connection = Connection::open(address).await?;
    let id = send_event(&mut connection, &json!({ "do": "ask" }), &format!("alone-{round}")).await?;
    let mut run = Followed::begin(address, id);
    let action = run.parked().await?;
    sleep(READS).await;
    let began = Instant::now();
    answer(&mut connection, &action).await?;
    let begun = run.until(|seen| matches!(seen, Seen::Says(_)).then_some(())).await?.0;
    run.completed().await?;
    Ok(begun.saturating_duration_since(began))
}

/// Questions of runs that wait on disk; each with its run.
async fn ask_many(address: SocketAddr, person: usize, each: usize) -> anyhow::Result<(Connection, Vec<(String, String)>)> {
    let mut connection = Connection::open(address).await?;
    let mut asks = Vec::new();
    for turn in 0..each {
        let id = send_event(&mut connection, &json!({ "do": "ask" }), &format!("many-{person}-{turn}")).await?;
        let action = Followed::begin(address, id.clone()).parked().await?;
        asks.push((id, action));
    }
    Ok((connection, asks))
}

async fn answer_all(mut connection: Connection, asks: Vec<(String, String)>) -> anyhow::Result<()> {
    for (id, action) in asks {
        answer(&mut connection, &action).await?;
        let mut last = None;
        let each = |line: &str| {
            if let Some(seen) = Seen::of_line(line) {
                last = Some(seen);
            }
        };
        timeout(PATIENCE, connection.stream(&events(&id), each)).await.with_context(|| format!("run {id} does not go on"))??;
        anyhow::ensure!(last == Some(Seen::Completed), "run {id} did not complete after its answer: {last:?}");
    }
    Ok(())
}

async fn answer(connection: &mut Connection, action: &str) -> anyhow::Result<()> {
    let body = json!({ "decision": "submit" }).to_string();
    connection.post(&format!("/api/v1/actions/{action}/respond"), "", &body, 200).await.map(drop)
}

/// The measured values of messages to an active run.
#[derive(Debug, Serialize)]
pub(crate) struct Steering {
    /// From the message to the result with which the run answers it.
    p50_ms: f64,
    p99_ms: f64,
}

/// Sends so many messages to one run that waits for them, one after the other.
pub(crate) async fn steering(address: SocketAddr, rounds: usize) -> anyhow::Result<Steering> {
    const CONVERSATION: &str = "steered";
    let mut connection = Connection::open(address).await?;
    let times = WARM_UP + rounds;
    let id = send_event(&mut connection, &json!({ "do": "pull", "times": times, "wait_ms": PULL_MS }), CONVERSATION).await?;
    let mut run = Followed::begin(address, id);
    run.until(|seen| (seen == Seen::Says("pulls".to_owned())).then_some(())).await?;
    let mut trips = Vec::new();
    for round in 0..times {
        sleep(APART).await;
        let (text, began) = (format!("message {round}"), Instant::now());
        connection.post("/api/v1/events", "", &http::event(&text, CONVERSATION), 202).await?;
        let answered = run.until(|seen| (seen == Seen::Says(text.clone())).then_some(())).await?.0;
        trips.push(answered.saturating_duration_since(began));
    }
    run.completed().await?;
    let mut trips = trips.split_off(WARM_UP);
    trips.sort_unstable();
    Ok(Steering { p50_ms: percentile_ms(&trips, 50), p99_ms: percentile_ms(&trips, 99) })
}

/// The measured values of children.
#[derive(Debug, Serialize)]
pub(crate) struct Children {
    runs_per_second: f64,
    /// The same with a parent that waits for so long that it may leave memory.
    long_wait_runs_per_second: f64,
    plain_runs_per_second: f64,
    /// Time of a child over that of a plain run with as many at once; the median of pairs.
    ratio: f64,
}

/// Echo runs that a run starts, 16 at one time, and plain ones without a conversation (children have none), in turn.
/// Conversations whose names start with `parent` are answered by the parent.
pub(crate) async fn children(config: Config) -> anyhow::Result<Children> {
    let host = Host::start(config).await?;
    // The first of a process fills caches.
    parents(&host, "parent-first", SHORT_WAIT_MS).await?;
    plain(&host).await?;
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let name = format!("parent-{pair}");
        // In turn the one and the other comes first.
        let (child, alone) = if pair % 2 == 0 {
            let child = parents(&host, &name, SHORT_WAIT_MS).await?;
            (child, plain(&host).await?)
        } else {
            let alone = plain(&host).await?;
            (parents(&host, &name, SHORT_WAIT_MS).await?, alone)
        };
        with.push(child);
        without.push(alone);
        ratios.push(alone / child);
    }
    let long = parents(&host, "parent-long", LONG_WAIT_MS).await?;
    host.shutdown(PATIENCE).await;
    Ok(Children {
        runs_per_second: median(with),
        long_wait_runs_per_second: long,
        plain_runs_per_second: median(without),
        ratio: median(ratios),
    })
}

/// Runs one parent after the other; returns the children per second.
async fn parents(host: &Host, name: &str, wait_ms: u64) -> anyhow::Result<f64> {
    let task = json!({
        "do": "start", "runner": "plugin:agent-host/echo/default", "text": echo::TEXT,
        "times": CHILDREN, "at_once": AT_ONCE, "wait_ms": wait_ms,
    });
    let (began, mut started) = (Instant::now(), 0);
    while began.elapsed() < STRETCH {
        in_process::run(host, in_process::message(&task.to_string(), format!("{name}-{started}"))).await?;
        started += CHILDREN;
    }
    Ok(started as f64 / began.elapsed().as_secs_f64())
}

/// As many runs at once that nobody has started; gives the runs a second.
async fn plain(host: &Host) -> anyhow::Result<f64> {
    let window = Window::new(Load { in_flight: AT_ONCE, warm_up: Duration::ZERO, measure: STRETCH });
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let host = host.clone();
        workers.spawn(async move {
            let mut runs = 0;
            while window.is_open() {
                let began = Instant::now();
                in_process::run(&host, Envelope::message(echo::TEXT, PLAIN)).await?;
                runs += window.latency(began).into_iter().count();
            }
            anyhow::Ok(runs)
        });
    }
    let mut runs = 0;
    while let Some(worker) = workers.join_next().await {
        runs += worker??;
    }
    Ok(runs as f64 / STRETCH.as_secs_f64())
}

/// Sends a task; gives the id of its run.
async fn send_event(connection: &mut Connection, task: &Value, conversation: &str) -> anyhow::Result<String> {
    let event = http::event(&task.to_string(), conversation);
    let accepted: Value = serde_json::from_str(connection.post("/api/v1/events", "", &event, 202).await?)?;
    Ok(accepted.pointer("/runs/0/run_id").and_then(Value::as_str).context("the event made no run")?.to_owned())
}

fn events(run_id: &str) -> String {
    format!("/api/v1/runs/{run_id}/events")
}

/// The view of a follower on a run.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// The run asks people; the value is the id of the action.
    Asks(String),
    /// The run waits, durably.
    Waits,
    /// A delta, and its text.
    Says(String),
    Completed,
    /// The run ended in another way than expected.
    Failed(String),
}

impl Seen {
    fn of_line(line: &str) -> Option<Self> {
        Self::of(&serde_json::from_str(line.strip_prefix("data: ")?).ok()?)
    }

    fn of(event: &Value) -> Option<Self> {
        let text = |place: &str| event.pointer(place).and_then(Value::as_str);
        match text("/type")? {
            "action.requested" => Some(Self::Asks(text("/data/action_id")?.to_owned())),
            "run.status" if text("/data/status") == Some("waiting") => Some(Self::Waits),
            "message.delta" => Some(Self::Says(text("/data/chunk/content")?.to_owned())),
            "run.completed" => Some(Self::Completed),
            "run.failed" | "run.cancelled" | "run.timeout" => Some(Self::Failed(event.to_string())),
            _ => None,
        }
    }
}

/// A run with a client that follows it, as long as this lives.
struct Followed {
    id: String,
    seen: mpsc::UnboundedReceiver<anyhow::Result<(Instant, Seen)>>,
    _follower: JoinSet<()>,
}

impl Followed {
    fn begin(address: SocketAddr, id: String) -> Self {
        let (sender, seen) = mpsc::unbounded_channel();
        let (mut follower, path) = (JoinSet::new(), events(&id));
        follower.spawn(async move {
            let followed = async {
                let mut connection = Connection::open(address).await?;
                let each = |line: &str| {
                    if let Some(seen) = Seen::of_line(line) {
                        let _gone = sender.send(Ok((Instant::now(), seen)));
                    }
                };
                connection.stream(&path, each).await
            };
            if let Err(error) = followed.await {
                let _gone = sender.send(Err(error));
            }
        });
        Self { id, seen, _follower: follower }
    }

    /// Waits until something is seen; gives when that was.
    async fn until<T>(&mut self, wanted: impl Fn(Seen) -> Option<T>) -> anyhow::Result<(Instant, T)> {
        let id = &self.id;
        loop {
            let next = timeout(PATIENCE, self.seen.recv()).await.with_context(|| format!("run {id} does not go on"))?;
            let (at, seen) = next.with_context(|| format!("the stream of run {id} is at its end"))??;
            if let Seen::Failed(end) = &seen {
                anyhow::bail!("run {id} did not complete: {end}");
            }
            if let Some(found) = wanted(seen) {
                return Ok((at, found));
            }
        }
    }

    /// Waits until it is parked; gives what it asks.
    async fn parked(&mut self) -> anyhow::Result<String> {
        let asks = |seen| if let Seen::Asks(action) = seen { Some(action) } else { None };
        let (_, action) = self.until(asks).await?;
        self.until(|seen| (seen == Seen::Waits).then_some(())).await?;
        Ok(action)
    }

    async fn completed(&mut self) -> anyhow::Result<()> {
        self.until(|seen| (seen == Seen::Completed).then_some(())).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(kind: &str, data: &Value) -> Option<Seen> {
        Seen::of_line(&format!("data: {}", json!({ "type": kind, "data": data })))
    }

    #[test]
    fn events_of_a_run_are_parsed() {
        assert_eq!(seen("action.requested", &json!({ "action_id": "r.1" })), Some(Seen::Asks("r.1".to_owned())));
        assert_eq!(seen("run.status", &json!({ "status": "waiting", "reason": "question" })), Some(Seen::Waits));
        assert_eq!(seen("run.status", &json!({ "status": "running" })), None);
        assert_eq!(seen("message.delta", &json!({ "chunk": { "content": "true" } })), Some(Seen::Says("true".to_owned())));
        assert_eq!(seen("run.completed", &json!({})), Some(Seen::Completed));
        assert!(matches!(seen("run.failed", &json!({ "code": "x" })), Some(Seen::Failed(_))));
        assert_eq!(Seen::of_line("event: run.completed"), None);
    }

    #[tokio::test]
    async fn a_run_that_fails_is_not_waited_for() {
        let (sender, seen) = mpsc::unbounded_channel();
        let mut run = Followed { id: "r".to_owned(), seen, _follower: JoinSet::new() };
        for seen in [Seen::Asks("r.1".to_owned()), Seen::Waits, Seen::Failed("end".to_owned())] {
            sender.send(Ok((Instant::now(), seen))).unwrap();
        }
        assert_eq!(run.parked().await.unwrap(), "r.1");
        assert!(run.completed().await.unwrap_err().to_string().contains("end"));
    }
}
