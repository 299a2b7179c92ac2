//! Echo runs, and the disk under them.

use super::{
    session::Session,
    site::{Site, target},
};
use crate::host::HostProcess;

/// The runner that answers, and how many runs are in flight.
pub(crate) const RUNNER: &str = "plugin:agent-host/echo/default";
const IN_FLIGHT: [u32; 3] = [1, 16, 256];

/// Runs that a conversation with a history has had: more than a page of it.
const HISTORY: &str = "10";

/// Runs that stream deltas: enough of them to last some seconds.
const DELTA_RUNS: &str = "256";
const DELTA_RUNS_IN_FLIGHT: &str = "16";
const DELTAS: &str = "1000";

/// Over HTTP, with the load generator as a process of its own.
pub(crate) fn over_http(session: &mut Session) -> anyhow::Result<()> {
    for in_flight in IN_FLIGHT {
        let rate = format!("echo.http.{in_flight}.runs_per_second");
        let names: &[&str] = match in_flight {
            1 => &[&rate, "echo.unloaded.p50_ms", "echo.unloaded.p99_ms"],
            256 => &[&rate, "echo.cpu_us_per_run"],
            _ => &[&rate],
        };
        if !session.wants(names) {
            continue;
        }
        let site = site(session, &format!("http-{in_flight}"))?;
        let host = site.start(session)?.host;
        let report = load(session, &host, "http", &["--in-flight", &in_flight.to_string()])?;
        host.kill();
        session.record(&rate, report.number("runs_per_second")?)?;
        match in_flight {
            1 => {
                session.record("echo.unloaded.p50_ms", report.number("p50_ms")?)?;
                session.record("echo.unloaded.p99_ms", report.number("p99_ms")?)?;
            }
            256 => session.record("echo.cpu_us_per_run", report.number("cpu_us_per_run")?)?,
            _ => {}
        }
    }
    with_history(session)
}

/// The same in conversations that are not new.
fn with_history(session: &mut Session) -> anyhow::Result<()> {
    const RATE: &str = "echo.http.256.history.runs_per_second";
    if !session.wants(&[RATE]) {
        return Ok(());
    }
    let host = site(session, "http-history")?.start(session)?.host;
    let report = load(session, &host, "http", &["--in-flight", "256", "--history", HISTORY])?;
    host.kill();
    session.record(RATE, report.number("runs_per_second")?)
}

/// Without HTTP, the load in the process of the host.
pub(crate) fn in_process(session: &mut Session) -> anyhow::Result<()> {
    for in_flight in IN_FLIGHT {
        let rate = format!("echo.inproc.{in_flight}.runs_per_second");
        if session.wants(&[&rate]) {
            let site = site(session, &format!("inproc-{in_flight}"))?;
            let report = session.load(&["in-process", "--config", &site.config(), "--in-flight", &in_flight.to_string()])?;
            session.record(&rate, report.number("runs_per_second")?)?;
        }
    }
    Ok(())
}

/// The cost of one commit on the disk of the ledgers.
pub(crate) fn disk(session: &mut Session) -> anyhow::Result<()> {
    if session.wants(&["disk.commit.p50_ms"]) {
        let dir = session.dir("disk")?.display().to_string();
        let report = session.load(&["commit", "--dir", &dir])?;
        session.record("disk.commit.p50_ms", report.number("p50_ms")?)?;
    }
    Ok(())
}

/// A runner that emits one delta after the other, each by a call of its own, and clients that read them.
pub(crate) fn deltas(session: &mut Session) -> anyhow::Result<()> {
    if session.wants(&["delta.us_per_event"]) {
        let site = Site::new(session, "deltas", "plugin:test/hostile/default", &session.hostile)?;
        let host = site.start(session)?.host;
        let arguments = ["--in-flight", DELTA_RUNS_IN_FLIGHT, "--runs", DELTA_RUNS, "--deltas", DELTAS];
        let report = load(session, &host, "deltas", &arguments)?;
        host.kill();
        session.record("delta.us_per_event", report.number("us_per_delta")?)?;
    }
    Ok(())
}

/// A site whose host echoes.
pub(crate) fn site(session: &Session, name: &str) -> anyhow::Result<Site> {
    Site::new(session, name, RUNNER, &session.echo)
}

pub(crate) fn load(
    session: &Session,
    host: &HostProcess,
    command: &str,
    arguments: &[&str],
) -> anyhow::Result<super::session::Report> {
    let target = target(host);
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    session.load(&[&[command][..], &target, arguments].concat())
}
