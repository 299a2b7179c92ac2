//! `cargo xtask bench`: figures of the host on this machine.
//!
//! Each measurement builds its own site (configuration, plugins, data) under `target/bench`, works on release builds
//! and real processes, and is bounded in time. Load comes from `agent-host-load`.

mod agui;
mod artifacts;
mod beside;
mod bomb;
mod bounds;
mod calls;
mod cluster;
mod compare;
mod count;
mod echo;
mod figures;
mod harness;
pub(crate) mod isolation;
mod journal;
mod keep;
mod knowledge;
mod ledger;
mod machine;
pub(crate) mod memory;
mod outside;
mod parking;
pub(crate) mod people;
mod plot;
#[path = "../../../host/ledger/tests/common/postgres.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "the server of the tests, which use the rest"
)]
mod postgres;
mod python;
mod queue;
mod revision;
mod sample;
pub(crate) mod session;
pub(crate) mod site;
mod stage;
mod start;
mod stream;
mod table;
mod threads;
mod usage;
mod variant;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use crate::workspace::Workspace;
use figures::FIGURES;
use session::Session;

/// Stretches of a figure that is kept.
pub(crate) const STRETCHES: usize = 5;

/// Measure the host, print each figure beside its bound or the last one, and keep them in docs/PERFORMANCE.md
#[derive(Debug, Args)]
#[command(after_help = help(), args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    command: Option<Command>,
    /// Beginning of the names of the figures
    #[arg(default_value = "")]
    prefix: String,
    /// Stretches of each figure. With fewer than five, figures are shown and not kept
    #[arg(long, value_name = "N", default_value_t = STRETCHES, value_parser = stretches)]
    stretches: usize,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure another revision and this one in turn, and print both and their ratio; nothing is kept
    Compare {
        /// A commit, as git names it
        revision: String,
        /// Beginning of the names of the figures
        prefix: String,
        /// A directory with release binaries of that revision, so that it is not built
        #[arg(long, value_name = "DIR")]
        binaries: Option<PathBuf>,
        /// Pairs of stretches
        #[arg(long, value_name = "N", default_value_t = STRETCHES, value_parser = stretches)]
        pairs: usize,
    },
}

fn stretches(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "write a number of stretches, at least 1".to_owned())
}

fn help() -> String {
    let names: Vec<_> = FIGURES.iter().map(|(name, _)| format!("  {name}")).collect();
    format!(
        "Figures:\n{}\n\nCounts (echo.count.*, agui.count.*) have bounds in {}; one that is over its bound makes this fail.\n\
         The ledger.* figures take a ledger with a million runs (about a minute and 6 GB of disk, for each stretch). {}=N makes it \
         N runs for a quick try, which is not kept.",
        names.join("\n"),
        bounds::FILE,
        session::MILLION_VARIABLE
    )
}

/// Figures that are measured together.
pub(crate) type Group = fn(&mut Session) -> anyhow::Result<()>;

const GROUPS: &[Group] = &[
    // The disk right before the runs that wait for nothing else: shared disks change from minute to minute.
    echo::disk,
    echo::over_http,
    echo::in_process,
    count::echo,
    stage::measure,
    stage::merges,
    echo::deltas,
    calls::measure,
    stream::measure,
    artifacts::measure,
    knowledge::measure,
    start::measure,
    memory::waiting_runs,
    journal::measure,
    parking::measure,
    people::measure,
    outside::measure,
    queue::measure,
    count::agui,
    agui::measure,
    threads::measure,
    isolation::measure,
    harness::measure,
    cluster::measure,
    ledger::measure,
];

impl Bench {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let prefix = match &self.command {
            Some(Command::Compare { prefix, .. }) => prefix.clone(),
            None => self.prefix.clone(),
        };
        anyhow::ensure!(
            FIGURES.iter().any(|(name, _)| name.starts_with(&prefix)),
            "no figure starts with `{prefix}`; `cargo xtask bench --help` lists them"
        );
        let mut session = Session::open(workspace, prefix)?;
        let busy = usage::others_now()?;
        if busy > 0.1 {
            eprintln!("warning: other work takes {busy:.2} cores of this machine: times will be worse than they are");
        }
        match self.command {
            Some(Command::Compare { revision, binaries, pairs, .. }) => {
                compare::measure(&mut session, workspace, &revision, binaries.as_deref(), pairs)
            }
            None => measure(&mut session, workspace, self.stretches),
        }
    }
}

fn measure(session: &mut Session, workspace: &Workspace, stretches: usize) -> anyhow::Result<ExitCode> {
    let mut report = keep::Keeper::open(workspace, session, stretches)?;
    for group in GROUPS {
        let mut samples = sample::Samples::default();
        for _ in 0..stretches {
            samples.add(session.stretch(*group)?);
        }
        // After each group: what was measured before something fails, or someone stops it, is worth keeping.
        report.take(&samples.figures())?;
    }
    Ok(report.end())
}
