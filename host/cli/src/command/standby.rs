//! The beginning of `agent-host serve` in a cluster: following the ledger until this host takes it over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_ledger::OpenError;
use agent_host_runs::{ClusterMember, Host, Ledger, Standby, StartError, cluster_secret};
use agent_host_server::ClusterListeners;

use super::process::StartingProcess;
use crate::{failure::Failure, output::Output, settings::local_url, signals::Signals};

/// The exit code of a host that does not hold the ledger any more: whoever watches over it starts it again, as a warm one.
pub(crate) const LEASE_LOST: i32 = 75;

/// A host that was killed a moment ago may leave a process, which it was about to start, with the ledger open for as long.
const LEFT_OPEN: Duration = Duration::from_secs(1);
/// Readers of the ledger that a host has given away, such as an answer whose last bytes are under way, have so long to end.
const LAST_READERS: Duration = Duration::from_secs(10);
/// Pause between attempts to open the copy.
const PAUSE: Duration = Duration::from_millis(20);
/// A command waits so long for a ledger that nobody holds.
const ALONE: Duration = Duration::from_secs(15);

/// The ledger that the host has to serve with.
pub(crate) enum Followed {
    /// The ledger of the cluster, which this host has taken over, and the listeners at which it answers.
    Active(Ledger, ClusterListeners),
    /// The host was asked to end.
    Ended,
}

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

/// A host that has joined its cluster, follows the ledger, and answers requests.
pub(crate) struct Joined {
    pub(crate) member: ClusterMember,
    pub(crate) standby: Standby,
    pub(crate) listeners: ClusterListeners,
}

/// Joins the cluster of the configuration, and answers requests from then on. `config.listen` is afterwards the address at which that is.
/// `None` where the configuration has a ledger of its own.
pub(crate) async fn join(config: &mut Config, output: Output) -> anyhow::Result<Option<Joined>> {
    let secret = cluster_secret(config)?;
    let Some((member, standby)) = unless_in_use(async || follow_first(config).await).await? else { return Ok(None) };
    let listeners = ClusterListeners::bind(config, standby.watch(), secret).await?;
    config.listen = listeners.local_addr();
    output.remark(&format!("warm: following the ledger of the cluster, at {}", local_url(config.listen)));
    Ok(Some(Joined { member, standby, listeners }))
}

async fn follow_first(config: &Config) -> Result<Option<(ClusterMember, Standby)>, StartError> {
    let Some(member) = Host::join(config, env!("CARGO_PKG_VERSION")).await? else { return Ok(None) };
    let standby = Host::follow_ledger(config, &member).await?;
    Ok(Some((member, standby)))
}

/// Follows the ledger that this host has given away, with the listeners that it has had all the time.
pub(crate) async fn follow_again(
    member: &ClusterMember,
    mut listeners: ClusterListeners,
    process: &mut StartingProcess,
    signals: &mut Signals,
    output: Output,
) -> anyhow::Result<Followed> {
    let config = process.ready().await?.config();
    let Some(standby) = open_again(&config, member, signals).await? else {
        listeners.end().await;
        return Ok(Followed::Ended);
    };
    let standby = standby.shown_by(listeners.watch());
    listeners.follow();
    output.remark("drained: following the ledger of the cluster, and forwarding requests");
    until_active(standby, listeners, process, signals).await
}

/// Opens the copy again as soon as nothing of the time before has it open. `None` where the host is asked to end meanwhile.
async fn open_again(config: &Config, member: &ClusterMember, signals: &mut Signals) -> anyhow::Result<Option<Standby>> {
    let began = Instant::now();
    loop {
        match Host::follow_ledger(config, member).await {
            Err(StartError::Ledger(OpenError::AlreadyOpen { .. })) if began.elapsed() < LAST_READERS => {}
            followed => return Ok(Some(followed?)),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = signals.next() => return Ok(None),
        }
    }
}

/// Follows the ledger until it is this host's. A process that does not start ends the host.
pub(crate) async fn until_active(
    standby: Standby,
    mut listeners: ClusterListeners,
    process: &mut StartingProcess,
    signals: &mut Signals,
) -> anyhow::Result<Followed> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut activating = tokio::task::spawn_blocking(move || {
        standby.activate(
            || stopped.load(Ordering::Relaxed),
            // At once, whatever else is under way: no effect may begin any more.
            |_| std::process::exit(LEASE_LOST),
        )
    });
    let (activated, ended) = loop {
        tokio::select! {
            activated = &mut activating => break (Some(activated), Ok(())),
            error = listeners.failed() => break (None, Err(error.into())),
            started = process.ready(), if process.is_starting() => match started {
                Ok(_) => {}
                Err(error) => break (None, Err(error.into())),
            },
            () = signals.next() => break (None, Ok(())),
        }
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
    ended.map(|()| Followed::Ended)
}

/// The ledger of the cluster for one command, where no host is active. `None` where one is.
pub(super) async fn take_now(config: &Config) -> anyhow::Result<Option<Ledger>> {
    let Some((_, standby)) = follow_first(config).await? else { return Ok(None) };
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
