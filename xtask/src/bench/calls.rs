//! The cost of host calls, one kind after the other.

use std::fs;

use super::{
    figures::FIGURES,
    session::{Report, Session},
    site::Site,
};

/// The runner that makes them.
pub(crate) const RUNNER: &str = "plugin:test/bench-calls/default";

/// Limits that no measurement comes near; more of them may follow.
pub(crate) const UNLIMITED: &str = "[limits]
host_calls_per_second = 1000000000
host_calls_burst = 1000000000
results_per_second = 1000000000
results_burst = 1000000000
run_events = 1000000000
run_artifact_bytes = 1000000000000
log_bytes_per_second = 1000000000
log_bytes = 1000000000
";

const TOOLS: &str = "tools.calls_per_second";
/// The call behind it, and how many calls of tools it makes: `CALLS_AT_ONCE` of the guest.
const CALL_MANY: &str = "tools.call-many";
const CALLS_AT_ONCE: f64 = 16.0;

const SCRIPT: &str = "[[reply]]\ntext = \"A scripted model answers with one sentence of some words.\"\n";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    let mut calls: Vec<&str> = FIGURES
        .iter()
        .filter_map(|(name, _)| call(name))
        .filter(|call| session.wants(&[&us(call), &allocations(call)]))
        .collect();
    if session.wants(&[TOOLS]) {
        calls.push(CALL_MANY);
    }
    if calls.is_empty() {
        return Ok(());
    }
    let report = report(session, "calls", &calls)?;
    for call in calls {
        if call == CALL_MANY {
            session.record(TOOLS, CALLS_AT_ONCE * 1e6 / report.number(&format!("{call}.us"))?)?;
            continue;
        }
        session.record(&us(call), report.number(&format!("{call}.us"))?)?;
        session.record(&allocations(call), report.number(&format!("{call}.allocations"))?)?;
    }
    Ok(())
}

/// The time of one call of a guest, in microseconds. `name` is that of the site.
pub(crate) fn guest_call_us(session: &Session, name: &str, call: &str) -> anyhow::Result<f64> {
    report(session, name, &[call])?.number(&format!("{call}.us"))
}

/// The report of the load generator on these calls.
fn report(session: &Session, name: &str, calls: &[&str]) -> anyhow::Result<Report> {
    let site = Site::configured(session, name, &session.calls, &config(session))?;
    fs::write(site.file("script.toml"), SCRIPT)?;
    let documents = site.file("documents").display().to_string();
    session.load(&[&["calls", "--config", &site.config(), "--documents", &documents], calls].concat())
}

/// The call that a figure is the time of.
fn call(figure: &'static str) -> Option<&'static str> {
    figure.strip_prefix("call.")?.strip_suffix(".us")
}

fn us(call: &str) -> String {
    format!("call.{call}.us")
}

fn allocations(call: &str) -> String {
    format!("call.{call}.allocations")
}

/// One of each resource, and limits that no measurement reaches.
fn config(session: &Session) -> String {
    format!(
        r#"
{UNLIMITED}
[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[models]]
id = "embed"
type = "embedding"
provider = "scripted"

[[models]]
id = "rerank"
type = "rerank"
provider = "scripted"

[[mcp_servers]]
id = "bench"
command = {load:?}
args = ["tool-server"]

[[knowledge_bases]]
id = "bench"

[[bindings]]
id = "bench"
runner = "{RUNNER}"
[bindings.resources]
tool_names = ["*"]
"#,
        load = session.load_binary,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_both_figures() {
        let calls: Vec<_> = FIGURES.iter().filter_map(|(name, _)| call(name)).collect();
        assert!(calls.len() > 20, "{calls:?}");
        for call in &calls {
            assert!(FIGURES.iter().any(|(name, _)| *name == allocations(call)), "{call}");
        }
        assert_eq!(FIGURES.iter().filter(|(name, _)| name.starts_with("call.")).count(), 2 * calls.len());
    }
}
