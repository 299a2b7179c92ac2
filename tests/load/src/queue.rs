//! Runs that executors take from a queue.

use std::{
    collections::HashSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use futures_util::future::{try_join, try_join_all, try_join3};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    arguments::Load,
    connection::Connection,
    echo,
    window::{Report, Window, percentile_ms},
};

/// The binding whose runs they are.
const BINDING: &str = "outside";
/// Runs that one executor may hold: more than any does.
const SLOTS: u32 = 1_000;
/// A run is made by one request and executed by three: one client makes the runs of so many executors.
const EXECUTORS_EACH: usize = 3;
/// Runs for each executor that are made and not finished: the one it works on, and those that wait. Without a bound, those
/// who make runs would take the host from those who finish them.
const AHEAD: usize = 3;
/// An executor that finds no run waits so long, and looks whether the time is over.
const CLAIM_WAIT_MS: u64 = 1_000;
/// The results of an executor: one message.
const SAID: &str = r#"{"first":1,"results":[{"type":"message.completed","data":{"message_id":"m","message":{"role":"assistant","content":[{"type":"text","text":"ok"}]}}}]}"#;
const COMPLETED: &str = r#"{"status":"completed"}"#;

/// An idle executor waits so long; the run comes long before.
const IDLE_WAIT_MS: u64 = 20_000;
/// After the claim is sent: it has arrived by then, and waits.
const APART: Duration = Duration::from_millis(20);
/// Time limit of the measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first of a kind fill caches and are not counted.
const WARM_UP: usize = 5;

/// An executor of the host, on a connection of its own.
pub(crate) struct Executor {
    connection: Connection,
    /// Credential, as a header.
    authorization: String,
}

/// A run that an executor holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldRun {
    pub(crate) run_id: String,
    /// The token of the claim, as a header.
    authorization: String,
}

#[derive(Deserialize)]
struct Registered {
    credential: String,
}

#[derive(Deserialize)]
struct Claimed {
    run: MadeRuns,
    lease_token: String,
}

#[derive(Deserialize)]
struct MadeRuns {
    run_id: String,
}

fn authorization(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

impl Executor {
    pub(crate) async fn register(address: SocketAddr, name: &str) -> anyhow::Result<Self> {
        let mut connection = Connection::open(address).await?;
        let registration = json!({ "name": name, "slots": SLOTS }).to_string();
        let registered: Registered = serde_json::from_str(connection.post("/api/v1/executors", "", &registration, 201).await?)?;
        Ok(Self { connection, authorization: authorization(&registered.credential) })
    }

    /// Takes a run and starts it; none where none comes in time.
    pub(crate) async fn claim(&mut self, wait_ms: u64) -> anyhow::Result<Option<HeldRun>> {
        let wish = json!({ "wait_ms": wait_ms, "start": true }).to_string();
        let (status, answer) = self.connection.send("/api/v1/claims", &self.authorization, &wish).await?;
        match status {
            200 => Ok(Some(parse_claim(answer)?)),
            204 => Ok(None),
            _ => bail!("the host answers a claim with {status}: {answer}"),
        }
    }

    /// Appends results: the body of the request.
    pub(crate) async fn append(&mut self, claim: &HeldRun, results: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/runs/{}/append", claim.run_id);
        self.connection.post(&path, &claim.authorization, results, 200).await.map(drop)
    }

    /// Says one message, and brings the run to its end.
    async fn finish(&mut self, claim: &HeldRun) -> anyhow::Result<()> {
        self.append(claim, SAID).await?;
        let path = format!("/api/v1/runs/{}/finalize", claim.run_id);
        self.connection.post(&path, &claim.authorization, COMPLETED, 200).await.map(drop)
    }
}

fn parse_claim(answer: &str) -> anyhow::Result<HeldRun> {
    let Claimed { run, lease_token } = serde_json::from_str(answer)?;
    Ok(HeldRun { run_id: run.run_id, authorization: authorization(&lease_token) })
}

/// Makes a run that waits for an executor; gives its id.
pub(crate) async fn make(connection: &mut Connection) -> anyhow::Result<String> {
    send(connection, &json!({ "binding_id": BINDING, "input": { "text": echo::TEXT } })).await
}

/// The same in a conversation.
pub(crate) async fn make_in(connection: &mut Connection, conversation: &str) -> anyhow::Result<String> {
    let conversation = json!({ "conversation_id": conversation });
    send(connection, &json!({ "binding_id": BINDING, "input": { "text": echo::TEXT }, "conversation": conversation })).await
}

async fn send(connection: &mut Connection, run: &Value) -> anyhow::Result<String> {
    let body = run.to_string();
    let made: MadeRuns = serde_json::from_str(connection.post("/api/v1/runs", "", &body, 202).await?)?;
    Ok(made.run_id)
}

/// As many executors as are in flight, and clients that make runs for them.
pub(crate) async fn load(address: SocketAddr, pid: u32, load: Load) -> anyhow::Result<Report> {
    let mut executors = Vec::new();
    for number in 0..load.in_flight {
        executors.push(Executor::register(address, &format!("bench-{number}")).await?);
    }
    let (window, room) = (Window::new(load), Semaphore::new(load.in_flight * AHEAD));
    let executing = async {
        let done = try_join_all(executors.into_iter().map(|executor| execute(executor, window, &room))).await;
        // No more places become free for waiting requests.
        room.close();
        done
    };
    let making = try_join_all((0..load.in_flight.div_ceil(EXECUTORS_EACH)).map(|_| keep_making(address, window, &room)));
    let (latencies, _made, cpu) = try_join3(executing, making, window.cpu(pid)).await?;
    window.report(latencies.concat(), cpu)
}

/// Takes one run after the other; gives how long each took, the wait for it included.
async fn execute(mut executor: Executor, window: Window, room: &Semaphore) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while window.is_open() {
        let began = Instant::now();
        let Some(claim) = executor.claim(CLAIM_WAIT_MS).await? else { continue };
        executor.finish(&claim).await?;
        room.add_permits(1);
        latencies.extend(window.latency(began));
    }
    Ok(latencies)
}

/// Makes runs as long as there is room for them.
async fn keep_making(address: SocketAddr, window: Window, room: &Semaphore) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    while window.is_open() {
        let Ok(place) = room.acquire().await else { break };
        place.forget();
        make(&mut connection).await?;
    }
    Ok(())
}

/// The measured values of claims.
#[derive(Debug, Serialize)]
pub(crate) struct Claims {
    claims_per_second: f64,
}

/// Makes so many runs, and lets executors claim and start all of them, each executor at one of the addresses in turn.
pub(crate) async fn claims(addresses: &[SocketAddr], executors: usize, runs: usize) -> anyhow::Result<Claims> {
    let first = *addresses.first().context("no address")?;
    let making = (0..executors).map(async |maker| {
        let mut connection = Connection::open(first).await?;
        for _ in (maker..runs).step_by(executors) {
            make(&mut connection).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(making).await?;
    let mut claiming = Vec::new();
    for (number, address) in addresses.iter().cycle().take(executors).enumerate() {
        claiming.push(Executor::register(*address, &format!("bench-{number}")).await?);
    }
    let began = Instant::now();
    let claimed = try_join_all(claiming.into_iter().map(async |mut executor| {
        let mut claimed = Vec::new();
        while let Some(claim) = executor.claim(0).await? {
            claimed.push(claim.run_id);
        }
        anyhow::Ok(claimed)
    }));
    let claimed = claimed.await?.concat();
    let took = began.elapsed();
    let distinct: HashSet<_> = claimed.iter().collect();
    anyhow::ensure!(
        distinct.len() == runs && claimed.len() == runs,
        "{} claims of {} of {runs} runs",
        claimed.len(),
        distinct.len()
    );
    Ok(Claims { claims_per_second: runs as f64 / took.as_secs_f64() })
}

/// The measured values of a waiting executor.
#[derive(Debug, Serialize)]
pub(crate) struct Wake {
    /// Time from the answer to the creator of the run to the answer to the executor, which has started the run.
    p50_ms: f64,
    p99_ms: f64,
    /// From the request that made the run.
    sent_p50_ms: f64,
    sent_p99_ms: f64,
}

/// Makes so many runs, one after the other, each while an executor waits for it.
pub(crate) async fn wake(address: SocketAddr, rounds: usize) -> anyhow::Result<Wake> {
    let mut executor = Executor::register(address, "idle").await?;
    let mut connection = Connection::open(address).await?;
    let (mut from_answer, mut from_request) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + rounds {
        let claiming = async {
            let claim = executor.claim(IDLE_WAIT_MS).await?;
            anyhow::Ok((claim, Instant::now()))
        };
        let making = async {
            sleep(APART).await;
            let sent = Instant::now();
            make(&mut connection).await?;
            anyhow::Ok((sent, Instant::now()))
        };
        let woken = timeout(PATIENCE, try_join(claiming, making)).await.context("an executor waits, and gets no answer")?;
        let ((claim, has_it), (sent, made)) = woken?;
        let claim = claim.context("an executor waited, and did not get the run that was made meanwhile")?;
        executor.finish(&claim).await?;
        // The executor may have its answer before the creator.
        from_answer.push(has_it.saturating_duration_since(made));
        from_request.push(has_it.saturating_duration_since(sent));
    }
    let [from_answer, from_request] = [from_answer, from_request].map(|mut all| {
        let mut counted = all.split_off(WARM_UP);
        counted.sort_unstable();
        counted
    });
    Ok(Wake {
        p50_ms: percentile_ms(&from_answer, 50),
        p99_ms: percentile_ms(&from_answer, 99),
        sent_p50_ms: percentile_ms(&from_request, 50),
        sent_p99_ms: percentile_ms(&from_request, 99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_understood() {
        let answer = json!({ "run": { "run_id": "r", "status": "running" }, "lease_token": "ahl_x", "context": {} });
        let expected = HeldRun { run_id: "r".to_owned(), authorization: "authorization: Bearer ahl_x\r\n".to_owned() };
        assert_eq!(parse_claim(&answer.to_string()).unwrap(), expected);
        assert!(parse_claim("{}").is_err());
    }

    #[test]
    fn request_bodies_are_json() {
        for body in [SAID, COMPLETED] {
            assert!(serde_json::from_str::<Value>(body).unwrap().is_object(), "{body}");
        }
    }
}
