//! The listeners of a host in a cluster, which stay open while partitions become the host's and leave it.
//!
//! A request is for one partition ([`Routing`]). The host answers it by the routes of that partition, where it owns that, and else forwards it to
//! the owner, if the cluster has a secret. Connections, and the streams of clients on them, outlive a change of the owner.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use agent_host_config::Config;
use agent_host_runs::{HostProcess, Partition, PartitionUsage, StandbyWatch, secret::Secret};
use axum::{
    Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::future::select_all;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    app::ProcessShares,
    cluster::{
        client::HostClient,
        client_request::may_be_stream,
        executors, feeds,
        forward::Forwarder,
        host_listener::{self, HostRoutes},
        lists,
        local_client::ClusterClient,
        own_routes::OwnRoutes,
        owner::{ActiveRoutes, Owner, OwnerSource, OwnerWatch},
        routing::{Destination, Routing},
        statistics,
    },
    http::{
        Problem, ProblemCode,
        connections::{self, Connections, LAST_BYTES, Share},
    },
    local::LocalClient,
    serve_error::{BindError, ServeError},
};

/// Requests that are under way when the host gives a partition away have so long to be answered.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Interval between looks at whether the owner of a partition can be reached.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The listeners of a host in a cluster. Dropping the value closes them.
pub struct ClusterListeners {
    local_addr: SocketAddr,
    partitions: Arc<[ClusterPartition]>,
    process: Arc<OnceLock<HostProcess>>,
    client: ClusterClient,
    /// Accepting connections, for clients and for hosts.
    accepting: Vec<AbortOnDropHandle<io::Error>>,
    connections: Vec<Connections>,
    closing: CancellationToken,
}

/// A partition as this host knows it: its owner, and the way to that. Cheap to clone.
#[derive(Clone)]
pub struct ClusterPartition(Arc<PartitionState>);

struct PartitionState {
    partition: Partition,
    /// Empty until the process has started.
    process: Arc<OnceLock<HostProcess>>,
    local_addr: SocketAddr,
    advertise: String,
    standby: StandbyWatch,
    source: Arc<OwnerSource>,
    owner: OwnerWatch,
    forwarder: Option<Forwarder>,
    /// Following the owner.
    following: Mutex<Vec<AbortOnDropHandle<()>>>,
    shares: ProcessShares,
    closing: CancellationToken,
}

impl std::fmt::Debug for ClusterPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterPartition").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

impl ClusterPartition {
    /// Follows the owner: the standby of this host says who that is. To be called when this host begins to follow the partition, also again.
    pub fn follow(&self) {
        let (source, standby, advertise) = (Arc::clone(&self.0.source), self.0.standby.clone(), self.0.advertise.clone());
        let mut following = vec![spawn(async move { source.follow(&standby, &advertise).await })];
        following.extend(self.0.forwarder.clone().map(|forwarder| {
            let (owner, process) = (self.0.owner.clone(), Arc::clone(&self.0.process));
            spawn(probe(forwarder, owner, self.0.partition, process))
        }));
        *self.0.following.lock() = following;
    }

    /// The place where the standby of this host shows its state.
    #[must_use]
    pub fn watch(&self) -> StandbyWatch {
        self.0.standby.clone()
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// Fires when the server goes down.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    pub(crate) fn shares(&self) -> ProcessShares {
        self.0.shares.clone()
    }

    pub(super) fn owner(&self) -> Owner {
        self.0.owner.now()
    }

    /// True if no host owns the partition at the moment.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.owner(), Owner::Nobody)
    }

    pub(super) fn forwarder(&self) -> Option<&Forwarder> {
        self.0.forwarder.as_ref()
    }

    /// The use of keys by the runs of the partition, as this host knows it.
    pub(super) fn key_usage(&self) -> Option<PartitionUsage> {
        self.0.process.get().map(|process| process.key_usage(self.0.partition))
    }

    /// Answers by the routes of this host from now on: it owns the partition.
    pub(crate) fn activate(&self, routes: ActiveRoutes) {
        self.0.source.is_here(routes);
    }

    /// See [`Departure`].
    #[must_use]
    pub fn departure(&self) -> Departure {
        Departure(Arc::clone(&self.0.source))
    }

    /// The answer to a request for this partition.
    pub(super) async fn answer(&self, request: Request) -> Response {
        match (self.owner(), &self.0.forwarder) {
            // A stream goes on elsewhere when this host gives the partition away.
            (Owner::Here(_), Some(forwarder)) if may_be_stream(request.method(), request.uri()) => {
                forwarder.answer(request).await
            }
            (Owner::Here(active), _) => active.answer(request).await,
            (Owner::At(_) | Owner::Nobody, Some(forwarder)) => forwarder.answer(request).await,
            (Owner::At(_) | Owner::Nobody, None) => self.elsewhere().into_response(),
        }
    }

    /// The answer of a host that forwards nothing.
    fn elsewhere(&self) -> Problem {
        let detail = match self.0.standby.status().active {
            Some(active) => format!(
                "this host is warm and forwards nothing ([cluster] secret is not set): send the request to the active host, {active}, \
                 or again in a moment"
            ),
            None => "no host is active at the moment, and this one is about to take over: send the request again in a moment"
                .to_owned(),
        };
        Problem::new(ProblemCode::PartitionMoving, detail)
    }
}

/// The departure of a host from a partition that it owns: it ends, or gives the partition away. Cheap to clone.
#[derive(Clone)]
pub struct Departure(Arc<OwnerSource>);

impl std::fmt::Debug for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Departure")
    }
}

impl Departure {
    /// The host begins to end: requests that other hosts forward are refused, and their streams of events break off, to go on elsewhere.
    pub fn end(&self) {
        self.0.begin_to_leave();
    }

    /// The host cannot answer for the partition any more: requests wait for the next owner, and streams of events break off, before anybody
    /// is told of an error.
    pub fn leave(&self) {
        drop(self.0.leave());
    }

    /// The host gives the partition away: requests wait for the next owner, and streams of events go on there, also those of its own
    /// clients. Returns when what was begun before is answered, or after two seconds.
    pub async fn hand_over(&self) {
        let Some(routes) = self.0.leave() else { return };
        if tokio::time::timeout(LAST_ANSWERS, routes.answered()).await.is_err() {
            tracing::debug!("requests that were begun have no answer yet");
        }
    }
}

impl std::fmt::Debug for ClusterListeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterListeners").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

impl ClusterListeners {
    /// Listens at the addresses of a host in a cluster with so many partitions, and owns none yet. With `secret`, requests are forwarded to the
    /// owners, and those of other hosts are taken at the listener for hosts.
    ///
    /// # Errors
    /// [`BindError`] when an address is taken, or not one of this machine.
    pub async fn bind(config: &Config, partitions: u32, secret: Option<Secret>) -> Result<Self, BindError> {
        let refused = |source| BindError::new(config.listen, source);
        let listener = connections::listen(config.listen).map_err(refused)?;
        let local_addr = listener.local_addr().map_err(refused)?;
        let cluster = config.cluster.clone().unwrap_or_default();
        let hosts = match (&secret, cluster.hosts_listen()) {
            (Some(secret), Some(listen)) => {
                let listener = connections::listen(listen).map_err(|source| BindError::for_hosts(listen, source))?;
                Some((Arc::new(secret.clone()), listener))
            }
            _ => None,
        };

        let closing = CancellationToken::new();
        let client = hosts.as_ref().map(|(secret, _)| HostClient::new(Arc::clone(secret)));
        let shares = ProcessShares::new(config);
        let process = Arc::<OnceLock<HostProcess>>::default();
        let partition = |number| {
            let (source, owner) = OwnerSource::new();
            let forwarder = client
                .clone()
                .map(|client| Forwarder::new(client, number, owner.clone(), config.clone(), local_addr.ip(), closing.clone()));
            ClusterPartition(Arc::new(PartitionState {
                partition: Partition::new(number, partitions),
                process: Arc::clone(&process),
                local_addr,
                advertise: cluster.advertise.clone(),
                standby: StandbyWatch::default(),
                source: Arc::new(source),
                owner,
                forwarder,
                following: Mutex::default(),
                shares: shares.clone(),
                closing: closing.clone(),
            }))
        };
        let first = partition(0);
        let partitions: Arc<[_]> = std::iter::once(first.clone()).chain((1..partitions).map(partition)).collect();

        let share = if client.is_some() { Share::Half } else { Share::Whole };
        let routing = Routing::new(first, Arc::clone(&partitions), Arc::clone(&process));
        let own = OwnRoutes { partitions: Arc::clone(&partitions), process: Arc::clone(&process) };
        let clients = Router::new().fallback(answer).with_state(ClientRoutes { own, routing: routing.clone() });
        let client = ClusterClient::new(LocalClient::new(clients.clone()), routing, Arc::clone(&partitions));
        let clients = Connections::new(clients, &config.limits, share, closing.clone());
        let mut connections = vec![clients.clone()];
        let mut accepting = vec![accept(clients, listener)];
        if let Some((secret, listener)) = hosts {
            let hosts = HostRoutes { partitions: Arc::clone(&partitions) }.router();
            let hosts = Connections::new(hosts, &config.limits, share, closing.clone());
            let hosts = hosts.for_hosts(host_listener::connection_check(secret));
            connections.push(hosts.clone());
            accepting.push(accept(hosts, listener));
        }
        Ok(Self { local_addr, partitions, process, client, accepting, connections, closing })
    }

    /// Address of the listener for clients.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The partitions, by number.
    #[must_use]
    pub fn partitions(&self) -> &[ClusterPartition] {
        &self.partitions
    }

    /// A client of all partitions within the process; `None` where there is one, which has a client of its own.
    #[must_use]
    pub fn local_client(&self) -> Option<ClusterClient> {
        (self.partitions.len() > 1).then(|| self.client.clone())
    }

    /// The process of this host has started: it knows the keys, and readiness shows what it would serve with.
    pub fn show(&self, process: HostProcess) {
        // A process starts once.
        let _ = self.process.set(process);
    }

    /// Waits until a listener fails.
    pub async fn failed(&mut self) -> ServeError {
        let (failed, ..) = select_all(&mut self.accepting).await;
        failed.unwrap_or_else(io::Error::other).into()
    }

    /// Closes the listeners. Returns within two seconds, whatever clients do; true if connections were cut off.
    pub async fn end(self) -> bool {
        self.partitions.iter().for_each(|partition| drop(partition.0.source.leave()));
        self.closing.cancel();
        drop(self.accepting);
        let ends = self.connections.into_iter().map(|connections| connections.end(LAST_BYTES));
        futures_util::future::join_all(ends).await.contains(&true)
    }
}

fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<T> {
    let task: JoinHandle<T> = tokio::spawn(task);
    AbortOnDropHandle::new(task)
}

fn accept(connections: Connections, listener: TcpListener) -> AbortOnDropHandle<io::Error> {
    spawn(async move { connections.accept(listener).await })
}

/// Asks the owner of a partition whether it is there, as long as it is another host, and what it knows of the use of keys.
async fn probe(forwarder: Forwarder, owner: OwnerWatch, partition: Partition, process: Arc<OnceLock<HostProcess>>) {
    let mut owner = owner;
    while !matches!(owner.now(), Owner::Here(_)) {
        if let (Some(usage), Some(process)) = (forwarder.probe().await, process.get()) {
            process.note_key_usage(partition, usage);
        }
        owner.changed_within(PROBE_INTERVAL).await;
    }
}

/// The routes for requests of clients.
#[derive(Clone)]
struct ClientRoutes {
    own: OwnRoutes,
    routing: Routing,
}

async fn answer(State(routes): State<ClientRoutes>, request: Request) -> Response {
    if let Some(answer) = routes.own.answer(&request) {
        return answer;
    }
    match routes.routing.destination_of(&request) {
        Ok(Destination::Of(partition)) => partition.answer(request).await,
        Ok(Destination::All(partitions, order)) => lists::answer(partitions, order, request).await,
        Ok(Destination::Feeds(partitions)) => feeds::answer(partitions, request).await,
        Ok(Destination::Counted(partitions, counted)) => statistics::answer(partitions, counted, request).await,
        Ok(Destination::OfExecutor(partitions, process, kind)) => executors::answer(partitions, process, kind, request).await,
        Err(problem) => problem.into_response(),
    }
}
