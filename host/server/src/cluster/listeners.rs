//! The listeners of a host in a cluster, which stay open while the host changes from a warm one to the active one.
//!
//! A warm host answers by itself what is about itself (`/healthz`, `/readyz`, `/metrics`), and forwards every other request to the active
//! host, if the cluster has a secret. The active host answers by its routes; its connections, and the streams of clients on them, are
//! those that it took when it was warm.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use agent_host_config::Config;
use agent_host_runs::{StandbyWatch, secret::Secret};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::future::select_all;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::ServiceExt;

use crate::{
    cluster::{
        client_request::may_be_stream,
        forward::Forwarder,
        host_listener::{self, HostRoutes},
        owner::{ActiveRoutes, Owner, OwnerSource, OwnerWatch},
    },
    http::{
        Problem, ProblemCode,
        connections::{self, Connections, LAST_BYTES, Share},
    },
    serve_error::{BindError, ServeError},
};

/// Requests that are under way when the host gives the ledger away have so long to be answered.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Interval between looks at whether the active host can be reached.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The listeners of a host in a cluster. Dropping the value closes them.
pub struct ClusterListeners {
    local_addr: SocketAddr,
    owner: Arc<OwnerSource>,
    /// Accepting connections, for clients and for hosts.
    accepting: Vec<AbortOnDropHandle<io::Error>>,
    connections: Vec<Connections>,
    follower: Follower,
    /// Following the active host.
    following: Vec<AbortOnDropHandle<()>>,
    closing: CancellationToken,
}

/// The means to follow the active host.
struct Follower {
    standby: StandbyWatch,
    advertise: String,
    forwarder: Option<Forwarder>,
    owner: OwnerWatch,
}

impl Follower {
    fn start(&self, source: &Arc<OwnerSource>) -> Vec<AbortOnDropHandle<()>> {
        let mut following = vec![spawn(follow(Arc::clone(source), self.standby.clone(), self.advertise.clone()))];
        following.extend(self.forwarder.clone().map(|forwarder| spawn(probe(forwarder, self.owner.clone()))));
        following
    }
}

/// The departure of a host that is active: it ends, or gives the ledger away. Cheap to clone.
#[derive(Clone)]
pub struct Departure(Option<Arc<OwnerSource>>);

impl std::fmt::Debug for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Departure")
    }
}

impl Departure {
    /// Of a host by itself, which nobody forwards requests to.
    pub(crate) const fn alone() -> Self {
        Self(None)
    }

    /// The host begins to end: requests that other hosts forward are refused, and their streams of events break off, to go on elsewhere.
    pub fn end(&self) {
        if let Some(source) = &self.0 {
            source.begin_to_leave();
        }
    }

    /// The host gives the ledger away: requests wait for the next active host, and streams of events go on there, also those of its own
    /// clients. Returns when what was begun before is answered, or after two seconds.
    pub async fn hand_over(&self) {
        let Some(routes) = self.0.as_ref().and_then(|source| source.leave()) else { return };
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
    /// Listens at the addresses of a host in a cluster, and answers as a warm one. With `secret`, requests are forwarded to the active
    /// host, and those of other hosts are taken at the listener for hosts.
    ///
    /// # Errors
    /// [`BindError`] when an address is taken, or not one of this machine.
    pub async fn bind(config: &Config, standby: StandbyWatch, secret: Option<Secret>) -> Result<Self, BindError> {
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

        let (source, owner) = OwnerSource::new();
        let source = Arc::new(source);
        let closing = CancellationToken::new();
        let forwarder = hosts.as_ref().map(|(secret, _)| {
            Forwarder::new(Arc::clone(secret), owner.clone(), config.clone(), local_addr.ip(), closing.clone())
        });
        let advertise = cluster.advertise;
        let follower = Follower { standby: standby.clone(), advertise, forwarder: forwarder.clone(), owner: owner.clone() };
        let following = follower.start(&source);

        let share = if forwarder.is_some() { Share::Half } else { Share::Whole };
        let warm = WarmHost { standby, forwarder: forwarder.clone() }.router();
        let clients = Router::new().fallback(answer).with_state(ClientRoutes { owner: owner.clone(), forwarder, warm });
        let clients = Connections::new(clients, &config.limits, share, closing.clone());
        let mut connections = vec![clients.clone()];
        let mut accepting = vec![accept(clients, listener)];
        if let Some((secret, listener)) = hosts {
            let hosts = Connections::new(HostRoutes { owner }.router(), &config.limits, share, closing.clone());
            let hosts = hosts.for_hosts(host_listener::connection_check(secret));
            connections.push(hosts.clone());
            accepting.push(accept(hosts, listener));
        }
        Ok(Self { local_addr, owner: source, accepting, connections, follower, following, closing })
    }

    /// Address of the listener for clients.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Fires when the server goes down.
    pub(crate) const fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Answers by the routes of this host from now on: it is the active one.
    pub(crate) fn activate(&self, routes: ActiveRoutes) {
        self.owner.is_here(routes);
    }

    /// True if this host is the active one.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.follower.owner.now(), Owner::Here(_))
    }

    /// See [`Departure`].
    pub(crate) fn departure(&self) -> Departure {
        Departure(Some(Arc::clone(&self.owner)))
    }

    /// The place where a standby of this host shows its state.
    #[must_use]
    pub fn watch(&self) -> StandbyWatch {
        self.follower.standby.clone()
    }

    /// Follows the active host again, after this one was that. Its standby shows its state at [`Self::watch`].
    pub fn follow(&mut self) {
        self.following = self.follower.start(&self.owner);
    }

    /// Waits until a listener fails.
    pub async fn failed(&mut self) -> ServeError {
        let (failed, ..) = select_all(&mut self.accepting).await;
        failed.unwrap_or_else(io::Error::other).into()
    }

    /// Closes the listeners. Returns within two seconds, whatever clients do; true if connections were cut off.
    pub async fn end(self) -> bool {
        drop(self.owner.leave());
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

async fn follow(source: Arc<OwnerSource>, standby: StandbyWatch, advertise: String) {
    source.follow(&standby, &advertise).await;
}

/// Asks the active host whether it is there, as long as it is another one.
async fn probe(forwarder: Forwarder, owner: OwnerWatch) {
    let mut owner = owner;
    while !matches!(owner.now(), Owner::Here(_)) {
        forwarder.probe().await;
        owner.changed_within(PROBE_INTERVAL).await;
    }
}

/// The routes for requests of clients.
#[derive(Clone)]
struct ClientRoutes {
    owner: OwnerWatch,
    forwarder: Option<Forwarder>,
    warm: Router,
}

async fn answer(State(routes): State<ClientRoutes>, request: Request) -> Response {
    match (routes.owner.now(), routes.forwarder) {
        // A stream goes on elsewhere when this host gives the ledger away.
        (Owner::Here(_), Some(forwarder)) if may_be_stream(request.method(), request.uri()) => forwarder.answer(request).await,
        (Owner::Here(active), _) => active.answer(request).await,
        (Owner::At(_) | Owner::Nobody, _) => routes.warm.oneshot(request).await.unwrap_or_else(|never| match never {}),
    }
}

/// The answers of a host that only follows.
#[derive(Clone)]
struct WarmHost {
    standby: StandbyWatch,
    forwarder: Option<Forwarder>,
}

impl WarmHost {
    fn router(self) -> Router {
        let own =
            Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(readyz)).route("/metrics", get(metrics));
        own.fallback(elsewhere).method_not_allowed_fallback(elsewhere).with_state(self)
    }
}

/// Readiness of a warm host: the place of the active one, whether requests reach it, and the state of the copy.
async fn readyz(State(host): State<WarmHost>) -> Response {
    let status = host.standby.status();
    // Errors name the database and never its password.
    let mut problems: Vec<String> = status.problem.into_iter().collect();
    let reached = host.forwarder.as_ref().and_then(Forwarder::reached);
    if let Some(Err(error)) = &reached {
        problems.push(format!("the active host cannot be reached: {error}"));
    }
    if status.is_drained {
        problems.push("this host is drained: it forwards requests, and takes the ledger only where no other host would, until it is started again".to_owned());
    }
    let is_ready = matches!(reached, Some(Ok(()))) && !status.is_drained;
    let forwarding = host.forwarder.as_ref().map_or(Value::Null, |forwarder| {
        let counts = forwarder.counts();
        json!({
            "open": counts.open.load(Ordering::Relaxed),
            "answered": counts.answered.load(Ordering::Relaxed),
            "failed": counts.failed.load(Ordering::Relaxed),
        })
    });
    let body = json!({
        "ready": is_ready,
        "ledger": "warm: this host follows the ledger and takes over when the active host is gone",
        "active_host": status.active,
        "drained": status.is_drained,
        "last_batch": status.last_batch,
        "forwarding": forwarding,
        "problems": problems,
    });
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body)).into_response()
}

async fn metrics() -> Problem {
    let detail =
        "this host is warm and counts nothing: its state is in `/readyz`, and the numbers of runs are those of the active host";
    Problem::new(ProblemCode::PartitionMoving, detail)
}

/// Everything that is not about this host.
async fn elsewhere(State(host): State<WarmHost>, request: Request) -> Response {
    if let Some(forwarder) = &host.forwarder {
        return forwarder.answer(request).await;
    }
    let detail = match host.standby.status().active {
        Some(active) => format!(
            "this host is warm and forwards nothing ([cluster] secret is not set): send the request to the active host, {active}, or \
             again in a moment"
        ),
        None => {
            "no host is active at the moment, and this one is about to take over: send the request again in a moment".to_owned()
        }
    };
    Problem::new(ProblemCode::PartitionMoving, detail).into_response()
}
