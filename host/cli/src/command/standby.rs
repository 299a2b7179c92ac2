//! The beginning of `agent-host serve` in a cluster: following the ledger until this host takes it over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_runs::{Host, Ledger, cluster_secret};
use agent_host_server::ClusterListeners;

use crate::{failure::Failure, output::Output, settings::local_url, signals::Signals};

/// The exit code of a host that does not hold the ledger any more: whoever watches over it starts it again, as a warm one.
pub(crate) const LEASE_LOST: i32 = 75;

/// A command waits so long for a ledger that nobody holds.
const ALONE: Duration = Duration::from_secs(15);

/// The ledger that the host has to serve with.
pub(crate) enum Followed {
    /// The ledger is in the data directory.
    Embedded,
    /// The ledger of the cluster, which this host has taken over, and the listeners at which it answers.
    Active(Ledger, ClusterListeners),
    /// The host was asked to end.
    Ended,
}

/// Follows the ledger of the cluster, if the configuration has one, and answers requests meanwhile. `config.listen` is afterwards the
/// address at which that was.
pub(crate) async fn follow(config: &mut Config, signals: &mut Signals, output: Output) -> anyhow::Result<Followed> {
    let secret = cluster_secret(config)?;
    let Some(standby) = Host::join(config, env!("CARGO_PKG_VERSION")).await? else { return Ok(Followed::Embedded) };
    let mut listeners = ClusterListeners::bind(config, standby.watch(), secret).await?;
    config.listen = listeners.local_addr();
    output.remark(&format!("warm: following the ledger of the cluster, at {}", local_url(config.listen)));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut activating = tokio::task::spawn_blocking(move || {
        standby.activate(
            || stopped.load(Ordering::Relaxed),
            // At once, whatever else is under way: no effect may begin any more.
            |_| std::process::exit(LEASE_LOST),
        )
    });
    let (activated, served) = tokio::select! {
        activated = &mut activating => (Some(activated), Ok(())),
        error = listeners.failed() => (None, Err(error)),
        () = signals.next() => (None, Ok(())),
    };
    if let Some(activated) = activated {
        return Ok(match activated?? {
            Some(ledger) => Followed::Active(ledger, listeners),
            None => Followed::Ended,
        });
    }
    stop.store(true, Ordering::Relaxed);
    listeners.end().await;
    // A ledger that has become this host's meanwhile is given back by this.
    drop(activating.await??);
    served?;
    Ok(Followed::Ended)
}

/// The ledger of the cluster for one command, where no host is active. `None` where one is.
pub(super) async fn take_now(config: &Config) -> anyhow::Result<Option<Ledger>> {
    let Some(standby) = Host::join(config, env!("CARGO_PKG_VERSION")).await? else { return Ok(None) };
    let (watch, began) = (standby.watch(), Instant::now());
    let watched = watch.clone();
    let is_stopped = move || watched.status().active.is_some() || began.elapsed() > ALONE;
    let taking = tokio::task::spawn_blocking(move || standby.activate(is_stopped, |_| std::process::exit(LEASE_LOST)));
    let taken = taking.await??;
    match watch.status().problem {
        Some(problem) if taken.is_none() => Err(Failure::new("cluster", problem).into()),
        _ => Ok(taken),
    }
}
