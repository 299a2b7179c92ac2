//! `cargo xtask bench`: what the host does in numbers, on the machine at hand.
//!
//! Each measurement builds its own site (configuration, plugins, data) under `target/bench`, works on release builds
//! and real processes, and is bounded in time. Load comes from `agent-host-load`.

mod echo;
mod ledger;
mod machine;
mod memory;
mod session;
mod site;
mod start;
mod table;
mod variant;

use std::process::ExitCode;

use clap::Args;

use crate::workspace::Workspace;
use session::Session;

/// Every figure and its unit, in the order of the table.
const FIGURES: [(&str, &str); 22] = [
    ("echo.http.1.runs_per_second", "runs/s"),
    ("echo.http.16.runs_per_second", "runs/s"),
    ("echo.http.256.runs_per_second", "runs/s"),
    ("echo.inproc.1.runs_per_second", "runs/s"),
    ("echo.inproc.16.runs_per_second", "runs/s"),
    ("echo.inproc.256.runs_per_second", "runs/s"),
    ("echo.cpu_us_per_run", "us"),
    ("echo.unloaded.p50_ms", "ms"),
    ("echo.unloaded.p99_ms", "ms"),
    ("disk.commit.p50_ms", "ms"),
    ("delta.us_per_event", "us"),
    ("start.cold.1.ms", "ms"),
    ("start.cold.10.ms", "ms"),
    ("start.cold.100.ms", "ms"),
    ("start.warm.1.ms", "ms"),
    ("start.warm.10.ms", "ms"),
    ("start.warm.100.ms", "ms"),
    ("memory.per_plugin.kib", "KiB"),
    ("memory.per_waiting_run.kib", "KiB"),
    ("ledger.million.ratio", "x"),
    ("ledger.bytes_per_run", "bytes"),
    ("ledger.open.million.ms", "ms"),
];

/// Measure the host, print `name value unit` for each figure, and keep them in docs/PERFORMANCE.md
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct Bench {
    /// Only figures whose names start with this
    #[arg(default_value = "")]
    prefix: String,
}

fn help() -> String {
    let names: Vec<_> = FIGURES.iter().map(|(name, _)| format!("  {name}")).collect();
    format!(
        "Figures:\n{}\n\nThe ledger.* figures take a ledger with a million runs (about a minute and 6 GB of disk). {}=N makes it N runs \
         for a quick try, which is not kept.",
        names.join("\n"),
        session::MILLION_VARIABLE
    )
}

impl Bench {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            FIGURES.iter().any(|(name, _)| name.starts_with(&self.prefix)),
            "no figure starts with `{}`; `cargo xtask bench --help` lists them",
            self.prefix
        );
        let mut session = Session::open(workspace, self.prefix)?;
        let busy = machine::busy()?;
        if busy > 0.1 {
            eprintln!("warning: other work takes {:.0}% of this machine: the figures will be worse than they are", busy * 100.0);
        }
        measure(&mut session)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn measure(session: &mut Session<'_>) -> anyhow::Result<()> {
    // The disk right before the runs that wait for nothing else: shared disks change from minute to minute.
    echo::disk(session)?;
    echo::over_http(session)?;
    echo::in_process(session)?;
    echo::deltas(session)?;
    start::measure(session)?;
    memory::waiting_runs(session)?;
    ledger::measure(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_names_of_their_own() {
        for (place, (name, unit)) in FIGURES.iter().enumerate() {
            assert!(!name.contains(' ') && !unit.is_empty());
            assert!(FIGURES[..place].iter().all(|(other, _)| other != name), "{name} twice");
        }
    }
}
