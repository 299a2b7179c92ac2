//! Runs that leave memory and come back, and runs that come back after a crash.

use std::{pin::pin, time::Duration};

use agent_host_protocol::{RunEvent, RunId};
use agent_host_runs::{Config, Host};
use anyhow::Context;
use futures_util::{StreamExt, future::try_join_all};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::{in_process, model_server::now_us, window::percentile_ms};

/// A run that is alone sleeps so long, measured from its beginning: longer than the host looks away after it has woken one.
const ALONE_MS: u64 = 400;
/// The first of many sleeps so long, until all of them do; the others wake up one after the other.
const MANY_MS: u64 = 2_000;
const APART_MS: u64 = 5;
/// Time limit of the measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The measured values.
#[derive(Debug, Serialize)]
pub(crate) struct Parking {
    /// From the call of the guest until it is on disk that the run waits.
    park_p50_ms: f64,
    park_p99_ms: f64,
    /// From the time that the run waits for to its first result after it.
    return_p50_ms: f64,
    return_p99_ms: f64,
    /// The same of runs that wake up one shortly after the other.
    many_return_p50_ms: f64,
    many_return_p99_ms: f64,
}

/// Parks so many runs, one at a time, and then as many together.
pub(crate) async fn parking(config: Config, runs: u64) -> anyhow::Result<Parking> {
    let host = Host::start(config).await?;
    let mut alone = Slept::default();
    for run in 0..runs {
        let slept = slept(&host, format!("alone-{run}"), ALONE_MS).await?;
        // The first fills caches.
        if run > 0 {
            alone.add(slept);
        }
    }
    let many = (0..runs).map(|run| slept(&host, format!("many-{run}"), MANY_MS + run * APART_MS));
    let mut together = Slept::default();
    try_join_all(many).await?.into_iter().for_each(|slept| together.add(slept));
    host.shutdown(PATIENCE).await;
    let [alone, together] = [alone, together].map(Slept::sorted);
    Ok(Parking {
        park_p50_ms: percentile_ms(&alone.parked, 50),
        park_p99_ms: percentile_ms(&alone.parked, 99),
        return_p50_ms: percentile_ms(&alone.returned, 50),
        return_p99_ms: percentile_ms(&alone.returned, 99),
        many_return_p50_ms: percentile_ms(&together.returned, 50),
        many_return_p99_ms: percentile_ms(&together.returned, 99),
    })
}

#[derive(Debug, Default)]
struct Slept {
    parked: Vec<Duration>,
    returned: Vec<Duration>,
}

impl Slept {
    fn add(&mut self, (parked, returned): (Duration, Duration)) {
        self.parked.push(parked);
        self.returned.push(returned);
    }

    fn sorted(mut self) -> Self {
        self.parked.sort_unstable();
        self.returned.sort_unstable();
        self
    }
}

/// A run that sleeps; returns the time of leaving memory, and of coming back.
async fn slept(host: &Host, conversation: String, sleep_ms: u64) -> anyhow::Result<(Duration, Duration)> {
    let until_ms = now_us() / 1_000 + sleep_ms;
    let text = json!({ "call": "timers.now", "times": 1, "until_ms": until_ms }).to_string();
    let accepted = host.accept(in_process::message(&text, conversation), None).await?;
    let id = *accepted.runs.first().context("the event made no run")?;
    let mut events = pin!(host.follow(id, 0)?);
    let (mut asked, mut parked, mut returned) = (None, None, None);
    while let Some(event) = timeout(PATIENCE, events.next()).await.with_context(|| format!("run {id} does not go on"))? {
        let (event, now) = (event?, now_us());
        match Seen::of(&event) {
            Some(Seen::Asks(us)) => asked = Some(us),
            Some(Seen::Waits) => parked = Some(now),
            Some(Seen::Awake) => returned = Some(now),
            Some(Seen::Resumed) | None => {}
        }
    }
    let (Some(asked), Some(parked), Some(returned)) = (asked, parked, returned) else {
        anyhow::bail!("run {id} did not sleep as it should: {asked:?}, {parked:?}, {returned:?}");
    };
    let between = |from: u64, to: u64| Duration::from_micros(to.saturating_sub(from));
    Ok((between(asked, parked), between(until_ms * 1_000, returned)))
}

/// The content of an event of the guest `bench-calls` that sleeps.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// The run is about to sleep; the value is its clock.
    Asks(u64),
    Waits,
    Resumed,
    Awake,
}

impl Seen {
    fn of(event: &RunEvent) -> Option<Self> {
        Self::read(&event.kind, event.data.get())
    }

    fn read(kind: &str, data: &str) -> Option<Self> {
        let data: Value = serde_json::from_str(data).ok()?;
        let is = |place: &str, text: &str| data.pointer(place).and_then(Value::as_str) == Some(text);
        match kind {
            "run.status" if is("/status", "waiting") => Some(Self::Waits),
            "run.status" if is("/reason", "resumed") => Some(Self::Resumed),
            "message.delta" if is("/chunk/content", "awake") => Some(Self::Awake),
            "message.delta" => Some(Self::Asks(data.pointer("/chunk/content")?.as_str()?.parse().ok()?)),
            _ => None,
        }
    }
}

/// The measured values of a start.
#[derive(Debug, Serialize)]
pub(crate) struct Restart {
    runs: usize,
    /// Until the host has read its ledger and loaded its plugins.
    started_ms: f64,
    /// Until the last run is recorded as going on.
    resumed_ms: f64,
    /// Until the last run is where it was and has said something new.
    live_ms: f64,
}

/// Starts a host that a crash left with runs that sleep until a time that has passed; each then says so, and sleeps on.
pub(crate) async fn restart(config: Config) -> anyhow::Result<Restart> {
    let began = Instant::now();
    let host = Host::start(config).await?;
    let started = began.elapsed();
    let runs: Vec<RunId> = host.ledger().active_runs()?.into_iter().map(|record| record.run.run_id).collect();
    let followed = try_join_all(runs.iter().map(|id| back(&host, *id, began))).await?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let last = |times: fn(&(Duration, Duration)) -> Duration| followed.iter().map(times).max().map_or(f64::NAN, ms);
    Ok(Restart {
        runs: runs.len(),
        started_ms: ms(started),
        resumed_ms: last(|(resumed, _)| *resumed),
        live_ms: last(|(_, live)| *live),
    })
}

/// Waits until a run is about to sleep.
pub(crate) async fn sleeps(host: &Host, id: RunId) -> anyhow::Result<()> {
    let mut events = pin!(host.follow(id, 0)?);
    loop {
        let event = timeout(PATIENCE, events.next()).await.with_context(|| format!("run {id} does not go on"))?;
        let event = event.with_context(|| format!("run {id} ended instead of sleeping"))??;
        if let Some(Seen::Asks(_)) = Seen::of(&event) {
            return Ok(());
        }
    }
}

/// The times of a run's resumption and of its first result.
pub(crate) async fn back(host: &Host, id: RunId, began: Instant) -> anyhow::Result<(Duration, Duration)> {
    let mut events = pin!(host.follow(id, 0)?);
    let mut resumed = None;
    loop {
        let event = timeout(PATIENCE, events.next()).await.with_context(|| format!("run {id} does not come back"))?;
        let event = event.with_context(|| format!("run {id} ended instead of going on"))??;
        match Seen::of(&event) {
            Some(Seen::Resumed) => resumed = Some(began.elapsed()),
            Some(Seen::Awake) => {
                let resumed = resumed.with_context(|| format!("run {id} went on before the crash"))?;
                return Ok((resumed, began.elapsed()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_sleeping_run_are_parsed() {
        let delta = |text: &str| json!({ "message_id": "m1", "chunk": { "role": "assistant", "content": text } }).to_string();
        assert_eq!(Seen::read("message.delta", &delta("1700000000000000")), Some(Seen::Asks(1_700_000_000_000_000)));
        assert_eq!(Seen::read("message.delta", &delta("awake")), Some(Seen::Awake));
        assert_eq!(Seen::read("run.status", r#"{"status":"waiting","reason":"timer"}"#), Some(Seen::Waits));
        assert_eq!(Seen::read("run.status", r#"{"status":"running","reason":"resumed"}"#), Some(Seen::Resumed));
        assert_eq!(Seen::read("run.status", r#"{"status":"running","reason":"woken"}"#), None);
        assert_eq!(Seen::read("state.updated", &delta("awake")), None);
    }
}
