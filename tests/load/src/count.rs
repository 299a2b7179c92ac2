//! Counts of runs that do not depend on the hour: memory asked for, rows, bytes, system calls, commits. All of them for the
//! whole process of the host; of echo runs the event and the wait for its run are in the same process.

use std::{process::Stdio, time::Duration};

use agent_host_runs::{Config, Host};
use agent_host_server::Server;
use anyhow::Context;
use serde::Serialize;
use tokio::{process::Command, sync::oneshot};

use crate::{allocations, arguments::Batch, cpu, in_process, syscalls::Syscalls};

/// Of the runs that are counted, so many more go before: they fill caches.
const WARM_UP: usize = 4;
/// Time for remaining work after the last run.
const CALM: Duration = Duration::from_millis(100);
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// The average counts of a run.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    runs: usize,
    allocations: f64,
    allocated_kib: f64,
    rows: f64,
    log_bytes: f64,
    /// Bytes that the process made the file systems write.
    disk_bytes: f64,
    /// `null` where the kernel does not count.
    syscalls: Option<f64>,
    context_switches: f64,
    commits: f64,
}

/// Counts at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    allocations: u64,
    allocated_bytes: u64,
    rows: u64,
    log_bytes: u64,
    disk_bytes: u64,
    syscalls: Option<u64>,
    context_switches: u64,
    commits: u64,
}

impl Counts {
    fn now(host: &Host, syscalls: &mut Syscalls) -> anyhow::Result<Self> {
        let ledger = host.ledger().activity();
        Ok(Self {
            allocations: allocations::count(),
            allocated_bytes: allocations::bytes(),
            rows: ledger.rows,
            log_bytes: ledger.logged_bytes,
            disk_bytes: cpu::disk_bytes()?,
            syscalls: syscalls.now()?,
            context_switches: cpu::context_switches()?,
            commits: ledger.batches,
        })
    }

    fn per_run(before: Self, after: Self, runs: usize) -> Report {
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / runs.max(1) as f64;
        Report {
            runs,
            allocations: each(before.allocations, after.allocations),
            allocated_kib: each(before.allocated_bytes, after.allocated_bytes) / 1024.0,
            rows: each(before.rows, after.rows),
            log_bytes: each(before.log_bytes, after.log_bytes),
            disk_bytes: each(before.disk_bytes, after.disk_bytes),
            syscalls: before.syscalls.zip(after.syscalls).map(|(before, after)| each(before, after)),
            context_switches: each(before.context_switches, after.context_switches),
            commits: each(before.commits, after.commits),
        }
    }
}

/// Counts echo runs of a host in this process.
pub(crate) async fn echo(config: Config, batch: Batch, mut syscalls: Syscalls) -> anyhow::Result<Report> {
    let host = Host::start(config).await?;
    let report =
        count(&host, batch, &mut syscalls, async |runs, name| in_process::runs(&host, batch.in_flight, runs, name).await).await;
    host.shutdown(END).await;
    report
}

/// Counts runs over AG-UI of a host that serves in this process. The clients have a process of their own, so that nothing of
/// them is counted.
pub(crate) async fn agui(config: Config, batch: Batch, mut syscalls: Syscalls) -> anyhow::Result<Report> {
    let host = Host::start(config).await?;
    let server = Server::bind(host.clone()).await?;
    let address = server.local_addr();
    let (end, ended) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async {
        // Ended, or this function has failed: either way nobody asks any more.
        let _ended = ended.await;
    }));
    let report = count(&host, batch, &mut syscalls, async |runs, _| {
        let mut clients = Command::new(std::env::current_exe().context("this program does not know where it is")?);
        clients.arg("agui-runs").args(["--address", &address.to_string()]);
        clients.args(["--in-flight", &batch.in_flight.to_string(), "--runs", &runs.to_string()]);
        let ended = clients.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null()).status().await?;
        anyhow::ensure!(ended.success(), "the clients failed");
        Ok(())
    })
    .await;
    host.shutdown(END).await;
    drop(end);
    served.await??;
    report
}

/// Counts while `make` makes runs; it gets their number and a name for them.
async fn count(
    host: &Host,
    batch: Batch,
    syscalls: &mut Syscalls,
    make: impl AsyncFn(usize, &str) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    make(batch.runs / WARM_UP, "warm").await?;
    tokio::time::sleep(CALM).await;
    let before = Counts::now(host, syscalls)?;
    allocations::start();
    let made = make(batch.runs, "count").await;
    tokio::time::sleep(CALM).await;
    allocations::stop();
    let after = Counts::now(host, syscalls)?;
    made.map(|()| Counts::per_run(before, after, batch.runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_divided_by_runs() {
        let before = Counts { rows: 10, syscalls: Some(1), ..Counts::default() };
        let after = Counts { rows: 62, allocated_bytes: 4096, syscalls: None, ..before };
        let report = Counts::per_run(before, after, 2);
        assert!((report.rows - 26.0).abs() < 1e-9 && (report.allocated_kib - 2.0).abs() < 1e-9, "{report:?}");
        assert!(report.syscalls.is_none() && report.commits.abs() < 1e-9, "{report:?}");
    }
}
