//! CPU time of an echo run: of the stages that have a thread of their own, and of all others together. The host runs in this
//! process, without HTTP.

use std::time::Duration;

use agent_host_runs::{Config, Host};
use serde::Serialize;

use crate::{arguments::Load, cpu, in_process};

/// Threads of the ledger: one writes, one merges what was written into the store.
const WRITER: &str = "ledger-writer";
const MERGE: &str = "ledger-merge";
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// Microseconds of CPU a run, if nothing else is said.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    runs_per_second: f64,
    /// All threads.
    cpu_us: f64,
    writer_us: f64,
    /// `None` if the writer makes checkpoints.
    merge_us: Option<f64>,
    /// The rest: accept, begin, the engine, host calls and the end, with the tasks and the runtime around them.
    workers_us: f64,
    /// Time of the clock in which the writer had operations to carry out.
    writer_wall_us: f64,
}

struct Reading {
    all: Duration,
    writer: Option<Duration>,
    merge: Option<Duration>,
    busy_us: u64,
}

impl Reading {
    fn now(host: &Host) -> anyhow::Result<Self> {
        Ok(Self {
            all: cpu::time(std::process::id())?,
            writer: cpu::thread_time(WRITER)?,
            merge: cpu::thread_time(MERGE)?,
            busy_us: host.ledger().activity().busy_us,
        })
    }
}

/// Measures one stretch.
pub(crate) async fn measure(config: Config, load: Load) -> anyhow::Result<Report> {
    let host = Host::start(config).await?;
    let stretch = in_process::read_stretch(&host, load, "stages", || Reading::now(&host)).await;
    host.shutdown(END).await;
    let (window, latencies, (before, after)) = stretch?;
    let runs = latencies.len() as f64;
    let us = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() * 1e6 / runs;
    let (Some(writer_before), Some(writer_after)) = (before.writer, after.writer) else {
        anyhow::bail!("the host has no thread {WRITER}");
    };
    let writer_us = us(writer_before, writer_after);
    let merge_us = before.merge.zip(after.merge).map(|(before, after)| us(before, after));
    let report = window.report(latencies, after.all.saturating_sub(before.all))?;
    Ok(Report {
        runs_per_second: report.runs_per_second,
        cpu_us: report.cpu_us_per_run,
        writer_us,
        merge_us,
        workers_us: report.cpu_us_per_run - writer_us - merge_us.unwrap_or_default(),
        writer_wall_us: after.busy_us.saturating_sub(before.busy_us) as f64 / runs,
    })
}
