//! `cargo xtask bench`: what the host does in numbers, on the machine at hand.
//!
//! Each measurement builds its own site (configuration, plugins, data) under `target/bench`, works on release builds
//! and real processes, and is bounded in time. Load comes from `agent-host-load`.

mod agui;
mod artifacts;
mod beside;
mod calls;
mod echo;
mod journal;
mod knowledge;
mod ledger;
mod machine;
mod memory;
mod outside;
mod parking;
mod people;
mod queue;
mod session;
mod site;
mod start;
mod stream;
mod table;
mod variant;

use std::process::ExitCode;

use clap::Args;

use crate::workspace::Workspace;
use session::Session;

/// Every figure and its unit, in the order of the table.
const FIGURES: [(&str, &str); 171] = [
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
    ("call.log.write.us", "us"),
    ("call.log.write.allocations", "allocations"),
    ("call.timers.now.us", "us"),
    ("call.timers.now.allocations", "allocations"),
    ("call.results.emit.us", "us"),
    ("call.results.emit.allocations", "allocations"),
    ("call.state.get.us", "us"),
    ("call.state.get.allocations", "allocations"),
    ("call.state.set.us", "us"),
    ("call.state.set.allocations", "allocations"),
    ("call.storage.get.us", "us"),
    ("call.storage.get.allocations", "allocations"),
    ("call.storage.set.us", "us"),
    ("call.storage.set.allocations", "allocations"),
    ("call.history.page.us", "us"),
    ("call.history.page.allocations", "allocations"),
    ("call.history.search.us", "us"),
    ("call.history.search.allocations", "allocations"),
    ("call.events.get.us", "us"),
    ("call.events.get.allocations", "allocations"),
    ("call.events.page.us", "us"),
    ("call.events.page.allocations", "allocations"),
    ("call.artifacts.metadata.us", "us"),
    ("call.artifacts.metadata.allocations", "allocations"),
    ("call.artifacts.read-range.us", "us"),
    ("call.artifacts.read-range.allocations", "allocations"),
    ("call.artifacts.create.us", "us"),
    ("call.artifacts.create.allocations", "allocations"),
    ("call.knowledge.list.us", "us"),
    ("call.knowledge.list.allocations", "allocations"),
    ("call.knowledge.retrieve.us", "us"),
    ("call.knowledge.retrieve.allocations", "allocations"),
    ("call.tools.get-detail.us", "us"),
    ("call.tools.get-detail.allocations", "allocations"),
    ("call.tools.call.us", "us"),
    ("call.tools.call.allocations", "allocations"),
    ("call.models.invoke.us", "us"),
    ("call.models.invoke.allocations", "allocations"),
    ("call.models.stream.us", "us"),
    ("call.models.stream.allocations", "allocations"),
    ("call.models.embed.us", "us"),
    ("call.models.embed.allocations", "allocations"),
    ("call.models.rerank.us", "us"),
    ("call.models.rerank.allocations", "allocations"),
    ("call.models.count-tokens.us", "us"),
    ("call.models.count-tokens.allocations", "allocations"),
    ("tools.calls_per_second", "calls/s"),
    ("stream.1.tokens_per_second", "tokens/s"),
    ("stream.64.tokens_per_second", "tokens/s"),
    ("stream.512.tokens_per_second", "tokens/s"),
    ("stream.added_ms_per_token.p50", "ms"),
    ("stream.added_ms_per_token.p99", "ms"),
    ("knowledge.add.passages_per_second", "passages/s"),
    ("knowledge.retrieve.100k.p50_ms", "ms"),
    ("knowledge.retrieve.100k.p99_ms", "ms"),
    ("artifact.write.mb_per_second", "MB/s"),
    ("artifact.write.ratio", "x"),
    ("artifact.read.mb_per_second", "MB/s"),
    ("artifact.read.ratio", "x"),
    ("start.cold.1.ms", "ms"),
    ("start.cold.10.ms", "ms"),
    ("start.cold.100.ms", "ms"),
    ("start.warm.1.ms", "ms"),
    ("start.warm.10.ms", "ms"),
    ("start.warm.100.ms", "ms"),
    ("memory.per_plugin.kib", "KiB"),
    ("memory.per_waiting_run.kib", "KiB"),
    ("journal.echo.1.runs_per_second", "runs/s"),
    ("journal.echo.1.off.runs_per_second", "runs/s"),
    ("journal.echo.1.ratio", "x"),
    ("journal.echo.1.cpu_ratio", "x"),
    ("journal.echo.256.runs_per_second", "runs/s"),
    ("journal.echo.256.off.runs_per_second", "runs/s"),
    ("journal.echo.256.ratio", "x"),
    ("journal.echo.256.cpu_ratio", "x"),
    ("journal.call.timers.now.us", "us"),
    ("journal.call.timers.now.off.us", "us"),
    ("journal.call.state.get.us", "us"),
    ("journal.call.state.get.off.us", "us"),
    ("journal.call.state.set.us", "us"),
    ("journal.call.state.set.off.us", "us"),
    ("journal.bytes_per_call.echo", "bytes"),
    ("journal.bytes_per_call.state", "bytes"),
    ("journal.bytes_per_call.stream", "bytes"),
    ("journal.bytes_per_run.echo", "bytes"),
    ("replay.timers.now.calls_per_second", "calls/s"),
    ("replay.timers.now.whole.calls_per_second", "calls/s"),
    ("replay.state.get.calls_per_second", "calls/s"),
    ("replay.state.get.whole.calls_per_second", "calls/s"),
    ("replay.state.set.calls_per_second", "calls/s"),
    ("replay.state.set.whole.calls_per_second", "calls/s"),
    ("restart.1000.started.ms", "ms"),
    ("restart.1000.resumed.ms", "ms"),
    ("restart.1000.live.ms", "ms"),
    ("park.p50_ms", "ms"),
    ("park.p99_ms", "ms"),
    ("park.return.p50_ms", "ms"),
    ("park.return.p99_ms", "ms"),
    ("park.return.many.p50_ms", "ms"),
    ("park.return.many.p99_ms", "ms"),
    ("park.10000.rss_mib", "MiB"),
    ("park.10000.added_mib", "MiB"),
    ("park.10000.restarted.added_mib", "MiB"),
    ("park.10000.active_in_memory", "runs"),
    ("waiting.runs.in_2gib", "runs"),
    ("waiting.in_memory.kib_per_run", "KiB"),
    ("waiting.parked.10000.added_mib", "MiB"),
    ("waiting.honest.p50_ms", "ms"),
    ("waiting.honest.p99_ms", "ms"),
    ("waiting.honest.alone.p50_ms", "ms"),
    ("waiting.honest.alone.p99_ms", "ms"),
    ("approval.round_trip.p50_ms", "ms"),
    ("approval.round_trip.p99_ms", "ms"),
    ("approval.answers_per_second", "answers/s"),
    ("steering.p50_ms", "ms"),
    ("steering.p99_ms", "ms"),
    ("child.runs_per_second", "runs/s"),
    ("child.long_wait.runs_per_second", "runs/s"),
    ("child.cost_ratio", "x"),
    ("egress.requests_per_second", "requests/s"),
    ("egress.post.requests_per_second", "requests/s"),
    ("egress.direct.requests_per_second", "requests/s"),
    ("egress.ratio", "x"),
    ("queue.1", "runs/s"),
    ("queue.8", "runs/s"),
    ("queue.64", "runs/s"),
    ("queue.wake_p50_ms", "ms"),
    ("queue.wake_p99_ms", "ms"),
    ("queue.wake_sent_p50_ms", "ms"),
    ("queue.wake_sent_p99_ms", "ms"),
    ("subscribers.memory_bytes_each", "bytes"),
    ("subscribers.honest_p50_ms", "ms"),
    ("subscribers.honest_p99_ms", "ms"),
    ("subscribers.alone_p50_ms", "ms"),
    ("subscribers.alone_p99_ms", "ms"),
    ("deliveries.requests_per_s", "requests/s"),
    ("deliveries.events_per_s", "events/s"),
    ("agui.runs.1", "runs/s"),
    ("agui.runs.20", "runs/s"),
    ("agui.runs.200", "runs/s"),
    ("agui.first_event.1.p50_ms", "ms"),
    ("agui.first_event.1.p99_ms", "ms"),
    ("agui.first_event.20.p50_ms", "ms"),
    ("agui.first_event.20.p99_ms", "ms"),
    ("agui.first_event.200.p50_ms", "ms"),
    ("agui.first_event.200.p99_ms", "ms"),
    ("agui.token_delay.1.p50_ms", "ms"),
    ("agui.token_delay.1.p99_ms", "ms"),
    ("agui.token_delay.20.p50_ms", "ms"),
    ("agui.token_delay.20.p99_ms", "ms"),
    ("agui.token_delay.200.p50_ms", "ms"),
    ("agui.token_delay.200.p99_ms", "ms"),
    ("agui.reattach.p50_ms", "ms"),
    ("agui.reattach.p99_ms", "ms"),
    ("agui.thread_10000.first_ms", "ms"),
    ("agui.thread_10000.p50_ms", "ms"),
    ("agui.thread_10000.p99_ms", "ms"),
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
    calls::measure(session)?;
    stream::measure(session)?;
    artifacts::measure(session)?;
    knowledge::measure(session)?;
    start::measure(session)?;
    memory::waiting_runs(session)?;
    journal::measure(session)?;
    parking::measure(session)?;
    people::measure(session)?;
    outside::measure(session)?;
    queue::measure(session)?;
    agui::measure(session)?;
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
