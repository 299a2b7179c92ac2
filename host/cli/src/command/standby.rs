//! Opening a ledger that another process may still have, and taking that of a cluster for a command.

use std::time::{Duration, Instant};

use agent_host_config::Config;
use agent_host_ledger::OpenError;
use agent_host_runs::{Host, Ledger, Partition, Standby, StartError};

use crate::failure::Failure;

/// The exit code of a host that does not hold the ledger any more: whoever watches over it starts it again, as a warm one.
pub(crate) const LEASE_LOST: u8 = 75;

/// A host that was killed a moment ago may leave a process, which it was about to start, with the ledger open for as long.
const LEFT_OPEN: Duration = Duration::from_secs(1);
/// Pause between attempts to open the copy.
const PAUSE: Duration = Duration::from_millis(20);
/// A command waits so long for a ledger that nobody holds.
const ALONE: Duration = Duration::from_secs(15);

/// Opens a ledger, again where another process still has it.
pub(crate) async fn unless_in_use<T>(open: impl AsyncFn() -> Result<T, StartError>) -> Result<T, StartError> {
    let began = Instant::now();
    loop {
        match open().await {
            Err(StartError::Ledger(OpenError::AlreadyOpen { .. })) if began.elapsed() < LEFT_OPEN => {
                tokio::time::sleep(PAUSE).await
            }
            opened => return opened,
        }
    }
}

async fn follow_first(config: &Config) -> Result<Option<Standby>, StartError> {
    let Some(member) = Host::join(config, env!("CARGO_PKG_VERSION")).await? else { return Ok(None) };
    Host::follow_ledger(config, &member, Partition::new(0, member.partitions())).await.map(Some)
}

/// The ledger of the cluster for one command, where no host is active. `None` where one is.
pub(super) async fn take_now(config: &Config) -> anyhow::Result<Option<Ledger>> {
    let Some(standby) = follow_first(config).await? else { return Ok(None) };
    let (watch, began) = (standby.watch(), Instant::now());
    let watched = watch.clone();
    let is_stopped = move || watched.status().active.is_some() || began.elapsed() > ALONE;
    let taking = tokio::task::spawn_blocking(move || standby.activate(is_stopped, |_| std::process::exit(LEASE_LOST.into())));
    let taken = taking.await??;
    match watch.status().problem {
        Some(problem) if taken.is_none() => Err(Failure::new("cluster", problem).into()),
        _ => Ok(taken),
    }
}
