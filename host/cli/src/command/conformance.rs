//! `agent-host conformance`.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use agent_host_facts::rules::{Checker, Finding, Options, Report, Scenario};
use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value};

use crate::{failure::Failure, output::Output};

/// The largest read model or task snapshot. The host writes far smaller ones.
const MAX_MODEL_BYTES: u64 = 64 << 20;

/// Bytes that are read at a time.
const CHUNK: usize = 64 * 1024;

/// Check a log of runtime events against the rules of docs/CONFORMANCE.md
///
/// The log is JSON Lines of one thread, from any runtime. Each finding names the rule, the line and the event. Needs no
/// configuration and no ledger. Exits with 1 if there is a finding.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  \
    agent-host conformance thread.jsonl --expect tool-success\n  \
    curl -s \"$HOST/api/v1/threads/c1/events\" | jq -c '.items[]' | agent-host conformance - --open")]
pub(crate) struct Conformance {
    /// The log; `-` is standard input
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
    /// Compare this read model of the thread with the log
    #[arg(long, value_name = "FILE")]
    read_model: Option<PathBuf>,
    /// Compare this snapshot of a task of the thread with the log
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Refuse a log that is no fixture of this scenario: text-basic, tool-success, tool-failure, hitl-action,
    /// artifact-evidence, stream-repair, subagent-handoff, turn-failure or cancel
    #[arg(long, value_name = "SCENARIO", value_parser = scenario)]
    expect: Option<Scenario>,
    /// Allow an open turn at the end of the log: the thread goes on
    #[arg(long)]
    open: bool,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let names = || Scenario::ALL.map(Scenario::as_str).join(", ");
    Scenario::from_name(name).ok_or_else(|| format!("the scenarios are {}", names()))
}

impl Conformance {
    pub(crate) fn execute(&self, output: Output) -> anyhow::Result<ExitCode> {
        let options = Options {
            open: self.open,
            expect: self.expect,
            read_model: self.read_model.as_deref().map(object).transpose()?,
            task: self.task.as_deref().map(object).transpose()?,
        };
        let report = if self.file.as_os_str() == "-" {
            check(io::stdin().lock(), options).context("standard input cannot be read")?
        } else {
            let cannot_read = || format!("{} cannot be read", self.file.display());
            check(File::open(&self.file).with_context(cannot_read)?, options).with_context(cannot_read)?
        };
        output.result(&report, || text(&report))?;
        Ok(if report.conforms { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn check(mut log: impl Read, options: Options) -> io::Result<Report> {
    let mut checker = Checker::new(options);
    let mut chunk = vec![0; CHUNK];
    loop {
        match log.read(&mut chunk) {
            Ok(0) => return Ok(checker.finish()),
            Ok(read) => checker.push(chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The object of a file.
fn object(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let cannot_read = || format!("{} cannot be read", path.display());
    let file = File::open(path).with_context(cannot_read)?;
    let mut text = String::new();
    let read = file.take(MAX_MODEL_BYTES + 1).read_to_string(&mut text).with_context(cannot_read)?;
    let refused = |why: String| Failure::new("invalid_file", format!("{}: {why}", path.display()));
    if read as u64 > MAX_MODEL_BYTES {
        return Err(refused(format!("the file has more than {MAX_MODEL_BYTES} bytes; no read model has so many")).into());
    }
    match agent_host_facts::json::parse(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(refused("the file is no JSON object: save the answer of the route as it is".to_owned()).into()),
        Err(error) => Err(refused(format!("{error}: save the answer of the route as it is")).into()),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for Finding { rule, line, event_id, message, fix } in &report.findings {
        let line = line.map(|line| format!("  line {line}")).unwrap_or_default();
        let event = event_id.as_ref().map(|id| format!("  {id}")).unwrap_or_default();
        text += &format!("{rule}{line}{event}\n  {message}\n  fix: {fix}\n");
    }
    if report.unlisted > 0 {
        text += &format!("and {} more findings\n", report.unlisted);
    }
    let findings = report.findings.len() as u64 + report.unlisted;
    let verdict = if report.conforms { "conforms".to_owned() } else { format!("{findings} findings") };
    text + &format!("{} events, {} turns: {verdict}\n", report.events, report.turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_rule_line_event_and_remedy() {
        let log: &[u8] = b"{\"eventId\":\"e1\",\"sequence\":1,\"payload\":{}}\nnothing";
        let report = check(log, Options::default()).unwrap();
        let text = text(&report);
        assert!(text.contains("line.json  line 2\n"), "{text}");
        assert!(
            text.starts_with("envelope.schema_version  line 1  e1\n  `schemaVersion` is missing or no text\n  fix: "),
            "{text}"
        );
        assert!(text.ends_with(&format!("1 events, 0 turns: {} findings\n", report.findings.len())), "{text}");
    }
}
