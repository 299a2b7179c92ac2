//! `agent-host serve` in a cluster: a service for each partition, which follows it, serves it while this host owns it, and follows again; or looks on,
//! while other hosts own and follow it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_ledger::OpenError;
use agent_host_runs::{
    Bystander, ClusterMember, Host, HostError, HostProcess, LeaseEnd, Ledger, Partition, Standby, StartError, cluster_secret,
};
use agent_host_server::{ActivePartition, ClusterClient, ClusterListeners, ClusterPartition};
use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::{
    serve::{ENDING, GRACE, Harnesses, ReloadSource, end, end_at_once, say_listening, warn_without_keys, write_address},
    standby::{LEASE_LOST, unless_in_use},
};
use crate::{address::AddressFile, failure::Failure, output::Output, settings::local_url, signals::Signals};

/// Runs of a partition that is given to another host have so long to end: they go on there, and clients wait meanwhile.
const HANDOVER_GRACE: Duration = Duration::from_millis(500);
/// Pause between looks at whether a partition is to be given to another host.
const HANDOVER_LOOK: Duration = Duration::from_millis(100);
/// Readers of a ledger that the host has given away, such as an answer whose last bytes are under way, have so long to end.
const LAST_READERS: Duration = Duration::from_secs(10);
/// Pause between attempts to open a copy that something has open.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before another attempt to make a copy.
const RETRY: Duration = Duration::from_secs(5);

/// A host that has joined its cluster, knows the owners of all partitions, and answers requests.
pub(super) struct Joined {
    member: ClusterMember,
    roles: Vec<Role>,
    listeners: ClusterListeners,
}

/// The part of this host in a partition that it does not own.
enum Role {
    /// Following the partition into a copy.
    Standby(Box<Standby>),
    /// Looking on, without a copy.
    Bystander(Bystander),
}

impl Role {
    /// With a copy where there is one already, or each host is to have one.
    async fn of(config: &Config, member: &ClusterMember, partition: Partition) -> Result<Self, StartError> {
        match Host::look_on(config, member, partition).await? {
            Some(bystander) => Ok(Self::Bystander(bystander)),
            None => Host::follow_ledger(config, member, partition).await.map(|standby| Self::Standby(Box::new(standby))),
        }
    }

    /// The listeners see what is learned of the partition.
    fn shown_to(self, listeners: &ClusterPartition) -> Self {
        match self {
            Self::Standby(standby) => Self::Standby(Box::new(standby.shown_by(listeners.watch()))),
            Self::Bystander(bystander) => Self::Bystander(bystander.shown_by(listeners.watch())),
        }
    }
}

/// Joins the cluster of the configuration, and answers requests from then on. `config.listen` is afterwards the address at which that is.
/// `None` where the configuration has a ledger of its own.
pub(super) async fn join(config: &mut Config, output: Output) -> anyhow::Result<Option<Joined>> {
    let secret = cluster_secret(config)?;
    let Some((member, roles)) = unless_in_use(async || follow_all(config).await).await? else { return Ok(None) };
    let listeners = ClusterListeners::bind(config, member.partitions(), secret).await?;
    config.listen = listeners.local_addr();
    output.remark(&format!("warm: following the ledger of the cluster, at {}", local_url(config.listen)));
    let roles = roles.into_iter().zip(listeners.partitions());
    let roles = roles.map(|(role, partition)| begin_to_follow(role, partition)).collect();
    Ok(Some(Joined { member, roles, listeners }))
}

async fn follow_all(config: &Config) -> Result<Option<(ClusterMember, Vec<Role>)>, StartError> {
    let Some(member) = Host::join(config, env!("CARGO_PKG_VERSION")).await? else { return Ok(None) };
    let of = member.partitions();
    let mut roles = Vec::with_capacity(of as usize);
    for partition in 0..of {
        roles.push(Role::of(config, &member, Partition::new(partition, of)).await?);
    }
    Ok(Some((member, roles)))
}

/// The listeners follow the owner of a partition, which this host does not own.
fn begin_to_follow(role: Role, partition: &ClusterPartition) -> Role {
    let role = role.shown_to(partition);
    partition.follow();
    role
}

/// Serves until a signal comes. A process that does not start, and a partition that cannot be followed, end the host.
pub(super) async fn serve(
    joined: Joined,
    config: Config,
    source: ReloadSource,
    mut signals: Signals,
    output: Output,
) -> anyhow::Result<()> {
    let Joined { member, roles, mut listeners } = joined;
    let of = member.partitions();
    let mut starting: Option<JoinHandle<Result<HostProcess, StartError>>> = Some(tokio::spawn(async move {
        let process = HostProcess::start(config, super::compiler()).await?;
        source.follow(&process);
        Ok(process)
    }));
    let (started, process) = watch::channel(None);
    let stopping = CancellationToken::new();
    let (url, owned) = (local_url(listeners.local_addr()), Arc::<Mutex<Owned>>::default());
    let mut services = JoinSet::new();
    for (number, (role, partition)) in (0..of).zip(roles.into_iter().zip(listeners.partitions())) {
        let service = Service {
            member: member.clone(),
            partition: Partition::new(number, of),
            routes: partition.clone(),
            cluster: listeners.local_client(),
            process: process.clone(),
            stopping: stopping.clone(),
            owned: Arc::clone(&owned),
            url: url.clone(),
            output,
        };
        services.spawn(service.execute(role));
    }
    let mut ended = loop {
        let start = async {
            match &mut starting {
                Some(starting) => starting.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            outcome = start => {
                starting = None;
                match outcome.map_err(|error| StartError::from(HostError::Internal(error.to_string()))).flatten() {
                    Ok(process) => {
                        listeners.show(process.clone());
                        started.send_replace(Some(process));
                    }
                    Err(error) => break Err(error.into()),
                }
            }
            error = listeners.failed() => break Err(error.into()),
            service = services.join_next() => break service.map_or(Ok(()), |service| service?),
            () = signals.next() => {
                output.remark(ENDING);
                tokio::spawn(end_at_once(signals));
                break Ok(());
            }
        }
    };
    stopping.cancel();
    while let Some(service) = services.join_next().await {
        ended = ended.and(service.map_err(Into::into).flatten());
    }
    if listeners.end().await {
        tracing::warn!("connections that did not end in time were cut off");
    }
    let running = started.borrow().clone();
    if let Some(process) = running {
        process.shutdown().await;
    }
    ended
}

/// The number of partitions that this host owns, and its address in the data directory while it owns one.
#[derive(Default)]
struct Owned {
    count: usize,
    address: Option<AddressFile>,
}

/// The service for one partition.
struct Service {
    member: ClusterMember,
    partition: Partition,
    routes: ClusterPartition,
    /// The way to all partitions, where there are several.
    cluster: Option<ClusterClient>,
    /// Has the process as soon as that has started.
    process: watch::Receiver<Option<HostProcess>>,
    /// Cancelled when the host ends.
    stopping: CancellationToken,
    owned: Arc<Mutex<Owned>>,
    url: String,
    output: Output,
}

impl Service {
    /// Looks on at the partition, follows it and serves it, in turns, until the host ends.
    async fn execute(mut self, role: Role) -> anyhow::Result<()> {
        let mut next = Some(role);
        while let Some(role) = next {
            next = match role {
                Role::Standby(standby) => self.follow(*standby).await?,
                Role::Bystander(bystander) => self.look_on(bystander).await?,
            };
        }
        Ok(())
    }

    /// Follows the partition, and serves it when it is this host's, until it is another one's or the copy is not needed any more. `None` where the host
    /// ends.
    async fn follow(&mut self, standby: Standby) -> anyhow::Result<Option<Role>> {
        self.follow_keys(&standby);
        let (lost, is_lost) = oneshot::channel();
        let taken = self.until_owned(standby, lost).await?;
        let Some(process) = self.started().await else { return Ok(None) };
        let config = process.config();
        let Some(ledger) = taken else {
            if self.stopping.is_cancelled() {
                return Ok(None);
            }
            return Ok(Some(Role::of(&config, &self.member, self.partition).await?.shown_to(&self.routes)));
        };
        let host = process.open(ledger, self.partition).await?;
        if !self.serve(host, is_lost).await? {
            return Ok(None);
        }
        let Some(again) = self.open_again(&config).await? else { return Ok(None) };
        let role = begin_to_follow(Role::Standby(Box::new(again)), &self.routes);
        if self.partition.is_only() {
            self.output.remark("drained: following the ledger of the cluster, and forwarding requests");
        }
        Ok(Some(role))
    }

    /// Looks on at the partition until this host is to have a copy, and makes that. `None` where the host ends.
    async fn look_on(&mut self, bystander: Bystander) -> anyhow::Result<Option<Role>> {
        let stopping = self.stopping.clone();
        if !tokio::task::spawn_blocking(move || bystander.wait(|| stopping.is_cancelled())).await? {
            return Ok(None);
        }
        let Some(process) = self.started().await else { return Ok(None) };
        loop {
            match Host::follow_ledger(&process.config(), &self.member, self.partition).await {
                Ok(standby) => return Ok(Some(Role::Standby(Box::new(standby)).shown_to(&self.routes))),
                // The host may own other partitions.
                Err(error) => {
                    let partition = self.partition.number();
                    tracing::warn!(partition, %error, "a copy of a partition could not be made: this host tries again in 5 s");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = self.stopping.cancelled() => return Ok(None),
            }
        }
    }

    /// Of several partitions, the first has the keys, which each host needs to know whom a request is of.
    fn follow_keys(&self, standby: &Standby) {
        if self.partition.is_only() || !self.partition.is_first() {
            return;
        }
        let (copy, mut process) = (standby.reader(), self.process.clone());
        tokio::spawn(async move {
            if let Ok(process) = process.wait_for(Option::is_some).await
                && let Some(process) = &*process
            {
                process.follow_keys(copy);
            }
        });
    }

    /// The process, when it has started. `None` where the host ends before.
    async fn started(&mut self) -> Option<HostProcess> {
        tokio::select! {
            process = self.process.wait_for(Option::is_some) => process.ok()?.clone(),
            () = self.stopping.cancelled() => None,
        }
    }

    /// Follows until the partition is this host's. `None` where the host ends. `lost` hears that the database has lost batches.
    async fn until_owned(&self, standby: Standby, lost: oneshot::Sender<String>) -> anyhow::Result<Option<Ledger>> {
        let (stopping, departure) = (self.stopping.clone(), self.routes.departure());
        let owning = tokio::task::spawn_blocking(move || {
            standby.activate(
                || stopping.is_cancelled(),
                move |end| match end {
                    LeaseEnd::LostCommits(reason) => {
                        departure.leave();
                        drop(lost.send(reason.clone()));
                    }
                    // At once, whatever else is under way: no effect may begin any more.
                    _ => std::process::exit(LEASE_LOST.into()),
                },
            )
        });
        Ok(owning.await??)
    }

    /// Serves until the host ends, or gives the partition away: true.
    ///
    /// # Errors
    /// Where the database has lost batches, which ends the host.
    async fn serve(&self, host: Host, is_lost: oneshot::Receiver<String>) -> anyhow::Result<bool> {
        if self.partition.is_first() {
            warn_without_keys(&host);
        }
        let active = ActivePartition::begin(host.clone(), self.routes.clone());
        let started = self.note_owned(&host).and_then(|()| self.start_agents(&host, &active));
        let agents = match started {
            Ok(agents) => agents,
            Err(error) => {
                end(host.close(Duration::ZERO)).await;
                return Err(error);
            }
        };
        say_listening(self.output, &self.url, (!self.partition.is_only()).then(|| self.partition.number()))?;
        let departure = active.departure();
        let (goes_on, grace) = tokio::select! {
            () = self.stopping.cancelled() => {
                // While it can still be told from a stream that has come to its end.
                departure.end();
                (Ok(false), GRACE)
            }
            Ok(reason) = is_lost => {
                (Err(Failure::new("engine_lost_commits", reason).exiting_with(LEASE_LOST).into()), Duration::ZERO)
            }
            () = is_to_give_way(&host) => {
                if self.partition.is_only() {
                    self.output.remark("drained: another host of the cluster takes the ledger");
                }
                departure.hand_over().await;
                (Ok(true), HANDOVER_GRACE)
            }
        };
        let closing = end(host.close(grace));
        match agents {
            Some(agents) => agents.end_before(closing).await,
            None => closing.await,
        }
        active.end();
        self.note_left();
        goes_on
    }

    /// The owner of the first partition has the coding agents of the configuration, which take runs of all of them.
    fn start_agents(&self, host: &Host, active: &ActivePartition) -> anyhow::Result<Option<Harnesses>> {
        if !self.partition.is_first() {
            return Ok(None);
        }
        Harnesses::start(host, || active.local_client(), self.cluster.clone(), &self.url).map(Some)
    }

    fn note_owned(&self, host: &Host) -> anyhow::Result<()> {
        let mut owned = self.owned.lock();
        if owned.address.is_none() {
            owned.address = Some(write_address(host, &self.url)?);
        }
        owned.count += 1;
        Ok(())
    }

    fn note_left(&self) {
        let mut owned = self.owned.lock();
        owned.count -= 1;
        if owned.count == 0 {
            owned.address = None;
        }
    }

    /// Opens the copy again as soon as nothing of the time before has it open. `None` where the host ends meanwhile.
    async fn open_again(&self, config: &Config) -> anyhow::Result<Option<Standby>> {
        let began = Instant::now();
        loop {
            match Host::follow_ledger(config, &self.member, self.partition).await {
                Err(StartError::Ledger(OpenError::AlreadyOpen { .. })) if began.elapsed() < LAST_READERS => {}
                followed => return Ok(Some(followed?)),
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = self.stopping.cancelled() => return Ok(None),
            }
        }
    }
}

/// Waits until the partition is to be given to another host.
async fn is_to_give_way(host: &Host) {
    while !host.gives_way() {
        tokio::time::sleep(HANDOVER_LOOK).await;
    }
}
