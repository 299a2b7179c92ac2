//! Runs of executors, clients that follow a run, and deliveries to webhooks.

use std::fs;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    beside::Beside,
    calls::UNLIMITED,
    echo,
    parking::settled,
    people::{load, record},
    session::{Report, Session},
    site::{Site, target},
};
use crate::host::HostProcess;

/// Executors at one time.
const EXECUTORS: [u32; 3] = [1, 8, 64];
/// Runs that come while an executor waits, one after the other.
const ROUNDS: &str = "200";

/// Clients that follow one run.
const SUBSCRIBERS: u32 = 10_000;
/// Files that the host and those clients have open beside their connections.
pub(crate) const OTHER_FILES: u64 = 512;
/// Number of files of a process without a limit of the system.
const MANY_FILES: u64 = 65_536;
const MIB: f64 = 1024.0 * 1024.0;

/// Number of events with deliveries, and of concurrent runs.
const EVENTS: &str = "20000";
const IN_FLIGHT: &str = "64";
const SECRET: &str = "a secret of the benchmarks";

/// A binding whose runs are made by name, for executors, and which no event is for.
pub(crate) const OUTSIDE: &str = r#"
[[external_runners]]
id = "plugin:bench/outside/default"

[[bindings]]
id = "outside"
runner = "plugin:bench/outside/default"
match = { source = "nobody" }
deadline_ms = 14400000
[bindings.queue]
"#;

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    executors(session)?;
    wake(session)?;
    subscribers(session)?;
    deliveries(session)
}

/// Runs that are created, claimed, started and finished, with one result each.
fn executors(session: &mut Session) -> anyhow::Result<()> {
    for executors in EXECUTORS {
        let figure = format!("queue.{executors}");
        if !session.wants(&[&figure]) {
            continue;
        }
        let host = external_site(session, &figure)?.start(session)?.host;
        let report = load(session, &host, "queue", &["--in-flight", &executors.to_string()])?;
        host.kill();
        session.record(&figure, report.number("runs_per_second")?)?;
    }
    Ok(())
}

/// From a run that is made to the executor that waits for one.
fn wake(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 4] = [
        ("queue.wake_p50_ms", "p50_ms"),
        ("queue.wake_p99_ms", "p99_ms"),
        ("queue.wake_sent_p50_ms", "sent_p50_ms"),
        ("queue.wake_sent_p99_ms", "sent_p99_ms"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let host = external_site(session, "queue.wake")?.start(session)?.host;
    let report = load(session, &host, "wake", &["--rounds", ROUNDS])?;
    host.kill();
    record(session, &FIGURES, &report)
}

pub(crate) fn external_site(session: &Session, name: &str) -> anyhow::Result<Site> {
    Site::holding(session, name, &[], &format!("{OUTSIDE}lease_ms = 60000\n"))
}

/// The cost of clients that follow a run with many events, half of which never read, and the effect on other runs.
fn subscribers(session: &mut Session) -> anyhow::Result<()> {
    const MEMORY: &str = "subscribers.memory_bytes_each";
    const HONEST: [(&str, &str); 2] = [("subscribers.honest_p50_ms", "p50_ms"), ("subscribers.honest_p99_ms", "p99_ms")];
    const ALONE: [(&str, &str); 2] = [("subscribers.alone_p50_ms", "p50_ms"), ("subscribers.alone_p99_ms", "p99_ms")];
    let [of_honest, of_alone] = [HONEST, ALONE].map(|figures| session.wants(&figures.map(|(figure, _)| figure)));
    if !(session.wants(&[MEMORY]) || of_honest || of_alone) {
        return Ok(());
    }
    allow_files(u64::from(SUBSCRIBERS) + OTHER_FILES)?;
    let site = Site::configured(session, "subscribers", &session.echo, &crowded())?;
    let host = site.start(session)?.host;
    let alone = honest(session, &host)?;
    let before = settled(&host)?;

    let (target, subscribers) = (target(&host), SUBSCRIBERS.to_string());
    let mut arguments = vec!["subscribers"];
    arguments.extend(target.iter().map(String::as_str));
    arguments.extend(["--subscribers", subscribers.as_str()]);
    let mut crowd = Beside::start(session, &arguments)?;
    let ready = crowd.line()?;
    anyhow::ensure!(ready.number("unread")? > 0.0, "everybody reads: {ready:?}");
    let after = settled(&host)?;
    let beside = honest(session, &host)?;
    let left = crowd.end()?;
    host.kill();
    anyhow::ensure!(left.number("open")? == f64::from(SUBSCRIBERS), "not all clients were there until the end: {left:?}");

    session.record(MEMORY, (after - before) * MIB / f64::from(SUBSCRIBERS))?;
    record(session, &HONEST, &beside)?;
    record(session, &ALONE, &alone)
}

/// Clients that do not read stay, so that what they take is seen, and so do those who are silent.
fn crowded() -> String {
    let runner = echo::RUNNER;
    format!(
        r#"{UNLIMITED}http_connections = 20000
http_subscribers = 16000
http_slow_reader_ms = 3600000
http_header_ms = 3600000
executor_stale_ms = 3600000
executor_gone_ms = 3600000
{OUTSIDE}lease_ms = 3600000

[[bindings]]
id = "bench"
runner = "{runner}"
"#
    )
}

/// Echo runs over HTTP, one after the other.
fn honest(session: &Session, host: &HostProcess) -> anyhow::Result<Report> {
    load(session, host, "http", &["--in-flight", "1", "--measure", "10000"])
}

/// Lets this process, and those that it starts, have so many files open.
pub(crate) fn allow_files(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MANY_FILES);
    anyhow::ensure!(most >= wanted, "a process may have {most} files open here, and this takes {wanted}: raise `ulimit -Hn`");
    if limit.current.is_some_and(|current| current < most) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).context("the limit of open files stays as it is")?;
    }
    Ok(())
}

/// Deliveries of echo runs, while the runs are made.
fn deliveries(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 2] =
        [("deliveries.requests_per_s", "requests_per_second"), ("deliveries.events_per_s", "events_per_second")];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let mut load = Beside::start(session, &["deliveries", "--events", EVENTS, "--in-flight", IN_FLIGHT])?;
    let site = Site::configured(session, "deliveries", &session.echo, &configured(&load.line()?.text("address")?))?;
    fs::write(site.file("secret"), SECRET)?;
    let host = site.start(session)?.host;
    load.tell(host.url().trim_start_matches("http://"))?;
    let report = load.line()?;
    host.kill();
    record(session, &FIGURES, &report)
}

/// The configuration of a webhook at this address that receives every run.
fn configured(webhook: &str) -> String {
    let runner = echo::RUNNER;
    format!(
        r#"[[webhooks]]
name = "bench"
url = "http://{webhook}/"
secret = {{ file = "secret" }}
concurrency = 256
batch = 100

[[bindings]]
id = "bench"
runner = "{runner}"
deliver = ["bench"]
"#
    )
}
