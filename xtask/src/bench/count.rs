//! Figures of runs that are counted and not timed.

use super::{agui, echo, session::Session};

/// Names of the counts, in figures and in the reports of `agent-host-load`.
const COUNTS: [&str; 7] = ["allocations", "allocated_kib", "rows", "log_bytes", "disk_bytes", "context_switches", "commits"];
/// Counted where the kernel lets us.
const SYSCALLS: &str = "syscalls";

/// Echo runs in flight, and how many are counted: several checkpoints of the ledger, or some seconds.
const ECHO: [(u32, &str); 3] = [(1, "3000"), (16, "10000"), (256, "15000")];
/// Tokens of a run over AG-UI, and how many runs are counted.
const AGUI: [(u32, &str); 2] = [(2, "4000"), (200, "2000")];
/// Connections of those clients.
const CONNECTIONS: &str = "20";

/// Echo runs of a host in the process that counts.
pub(crate) fn echo(session: &mut Session) -> anyhow::Result<()> {
    for (in_flight, runs) in ECHO {
        let group = format!("echo.count.{in_flight}");
        if wants(session, &group) {
            let config = echo::site(session, &group)?.config();
            count(session, &group, &["count-echo", "--config", &config, "--in-flight", &in_flight.to_string(), "--runs", runs])?;
        }
    }
    Ok(())
}

/// Runs over AG-UI of such a host.
pub(crate) fn agui(session: &mut Session) -> anyhow::Result<()> {
    for (tokens, runs) in AGUI {
        let group = format!("agui.count.{tokens}");
        if wants(session, &group) {
            let config = agui::scripted(session, &group, tokens)?.config();
            count(session, &group, &["count-agui", "--config", &config, "--in-flight", CONNECTIONS, "--runs", runs])?;
        }
    }
    Ok(())
}

fn wants(session: &Session, group: &str) -> bool {
    COUNTS.iter().chain([&SYSCALLS]).any(|count| session.wants(&[&format!("{group}.{count}")]))
}

fn count(session: &mut Session, group: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let report = session.load(arguments)?;
    for count in COUNTS {
        session.record(&format!("{group}.{count}"), report.number(count)?)?;
    }
    // The load generator says why there is none.
    match report.number_or_null(SYSCALLS)? {
        Some(calls) => session.record(&format!("{group}.{SYSCALLS}"), calls),
        None => Ok(()),
    }
}
