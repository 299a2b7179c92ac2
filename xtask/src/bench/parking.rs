//! Runs that outlive their process, and runs that wait on disk.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    calls::{RUNNER, UNLIMITED},
    memory::resident_kib,
    session::Session,
    site::Site,
};
use crate::{host::HostProcess, http::Client, process};

/// Runs that a crash interrupts, and calls that each has made by then.
const INTERRUPTED: u64 = 1_000;
const CALLS: u32 = 20;
/// Time from the start of the first run to its wake-up; the host is killed before.
const NAP: Duration = Duration::from_secs(25);
/// Runs that are parked for a short time.
const PARKED_SHORTLY: &str = "200";
/// Runs that are parked while memory is looked at, and how long each is.
const PARKED: u64 = 10_000;
const NIGHT: Duration = Duration::from_secs(3_600);
/// Time limit of the measurement.
const PATIENCE: Duration = Duration::from_secs(120);
/// Memory is looked at when things have calmed down.
const CALM: Duration = Duration::from_secs(3);

const RSS: &str = "park.10000.rss_mib";
const ADDED: &str = "park.10000.added_mib";
const RESTARTED: &str = "park.10000.restarted.added_mib";
const ACTIVE: &str = "park.10000.active_in_memory";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    restart(session)?;
    latency(session)?;
    memory(session)
}

/// The start after a crash, until every run is where it was.
fn restart(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 3] = [
        ("restart.1000.started.ms", "started_ms"),
        ("restart.1000.resumed.ms", "resumed_ms"),
        ("restart.1000.live.ms", "live_ms"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let site = site(session, "restart", 600_000)?;
    let host = site.start(session)?.host;
    let client = Client::new(host.url());
    let wake = SystemTime::now() + NAP;
    for run in 0..INTERRUPTED {
        send(&client, run, &json!({ "call": "state.set", "times": CALLS, "until_ms": ms(wake)?, "stay_ms": 600_000 }))?;
    }
    until(&client, "live_runs", INTERRUPTED)?;
    thread::sleep(CALM);
    anyhow::ensure!(SystemTime::now() < wake, "this machine takes more than {NAP:?} for {INTERRUPTED} runs");
    host.kill();
    thread::sleep(wake.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(100));
    let report = session.load(&["restart", "--config", &site.config()])?;
    anyhow::ensure!(report.number("runs")? == INTERRUPTED as f64, "not every run outlived the host: {report:?}");
    for (figure, name) in FIGURES {
        session.record(figure, report.number(name)?)?;
    }
    Ok(())
}

/// The time of leaving memory, and of coming back.
fn latency(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 6] = [
        ("park.p50_ms", "park_p50_ms"),
        ("park.p99_ms", "park_p99_ms"),
        ("park.return.p50_ms", "return_p50_ms"),
        ("park.return.p99_ms", "return_p99_ms"),
        ("park.return.many.p50_ms", "many_return_p50_ms"),
        ("park.return.many.p99_ms", "many_return_p99_ms"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let site = site(session, "park", 100)?;
    let report = session.load(&["parking", "--config", &site.config(), "--runs", PARKED_SHORTLY])?;
    for (figure, name) in FIGURES {
        session.record(figure, report.number(name)?)?;
    }
    Ok(())
}

/// The memory of parked runs: a process that has parked them is compared with one that has completed as many, and a process
/// that found them on disk with one that found none.
fn memory(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&[RSS, ADDED, RESTARTED, ACTIVE]) {
        return Ok(());
    }
    let site = site(session, "parked", 1_000)?;
    let host = site.start(session)?.host;
    let client = Client::new(host.url());
    for run in 0..PARKED {
        send(&client, run, &json!({ "call": "timers.now", "times": 10 }))?;
    }
    until(&client, "live_runs", 0)?;
    let ended = settled(&host)?;
    host.stop()?;

    let host = site.start(session)?.host;
    let none = settled(&host)?;
    let client = Client::new(host.url());
    let wake = ms(SystemTime::now() + NIGHT)?;
    for run in 0..PARKED {
        send(&client, PARKED + run, &json!({ "call": "timers.now", "times": 10, "until_ms": wake }))?;
    }
    until(&client, "parked_runs", PARKED)?;
    let parked = settled(&host)?;
    host.stop()?;

    let host = site.start(session)?.host;
    until(&Client::new(host.url()), "parked_runs", PARKED)?;
    let found = settled(&host)?;
    host.stop()?;

    session.record(RSS, parked)?;
    session.record(ADDED, parked - ended)?;
    session.record(RESTARTED, found - none)?;
    let mut stats = Command::new(session.host_binary());
    stats.args(["ledger", "stats", "--json", "--config", &site.config()]);
    let stats: Value = serde_json::from_str(&process::output(&mut stats)?)?;
    let number = |name: &str| stats.get(name).and_then(Value::as_u64).with_context(|| format!("there is no {name}: {stats}"));
    anyhow::ensure!(number("parked_runs")? == PARKED, "not every run is parked: {stats}");
    session.record(ACTIVE, number("active_in_memory")? as f64)
}

/// A site whose runs may last long, and leave memory where they sleep for so long.
fn site(session: &Session, name: &str, park_after_ms: u64) -> anyhow::Result<Site> {
    let config = format!(
        "{UNLIMITED}park_after_ms = {park_after_ms}\n\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\ndeadline_ms = 14400000\n"
    );
    Site::configured(session, name, &session.calls, &config)
}

fn send(client: &Client, conversation: u64, task: &Value) -> anyhow::Result<Value> {
    let event = json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": format!("parking-{conversation}") },
        "input": { "text": task.to_string() },
    });
    client.post("/api/v1/events", &[], &event)
}

/// Waits until the host says that it has so many.
pub(crate) fn until(client: &Client, what: &str, expected: u64) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let there = client.get("/readyz")?.get(what).and_then(Value::as_u64);
        if there == Some(expected) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "{what} should be {expected}, the host says {there:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The memory of the idle host, in MiB.
pub(crate) fn settled(host: &HostProcess) -> anyhow::Result<f64> {
    thread::sleep(CALM);
    Ok(resident_kib(host.id())? as f64 / 1024.0)
}

fn ms(time: SystemTime) -> anyhow::Result<u64> {
    Ok(u64::try_from(time.duration_since(UNIX_EPOCH)?.as_millis())?)
}
