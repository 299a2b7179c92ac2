//! Listening, serving, and coming to an end.

use std::{future::Future, net::SocketAddr};

use agent_host_runs::Host;
use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    cluster::{
        listeners::{ClusterListeners, Departure},
        owner::ActiveRoutes,
    },
    http::connections::{self, Connections, LAST_BYTES, Share},
    local::LocalClient,
    router::router,
    serve_error::{BindError, ServeError},
};

/// A server that listens and does not answer yet: clients that connect now wait until [`Server::serve`]. In a cluster they are answered
/// already.
pub struct Server {
    host: Host,
    listeners: Listeners,
    local_addr: SocketAddr,
    router: Router,
    closing: CancellationToken,
}

/// The end of serving.
#[derive(Debug)]
pub enum Served {
    /// The listeners are closed.
    Ended,
    /// The host has given the ledger away ([`Departure::hand_over`]), and forwards requests.
    HandedOver(ClusterListeners),
}

/// The listeners of a server.
enum Listeners {
    /// Of a host by itself.
    Alone(TcpListener),
    /// Of a host in a cluster.
    Cluster(ClusterListeners),
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens at `host.config().listen`. Port 0 takes a free one: see [`Server::local_addr`].
    ///
    /// # Errors
    /// [`BindError`] when the address is taken, or not one of this machine.
    pub async fn bind(host: Host) -> Result<Self, BindError> {
        let listen = host.config().listen;
        let refused = |source| BindError::new(listen, source);
        let listener = connections::listen(listen).map_err(refused)?;
        let local_addr = listener.local_addr().map_err(refused)?;
        let closing = CancellationToken::new();
        let router = router(App::new(host.clone(), local_addr, closing.clone()));
        Ok(Self { host, listeners: Listeners::Alone(listener), local_addr, router, closing })
    }

    /// Serves at the listeners of a host that was warm, and is the active one now: from here on requests are answered.
    #[must_use]
    pub fn take_over(host: Host, cluster: ClusterListeners) -> Self {
        let (local_addr, closing) = (cluster.local_addr(), cluster.closing().child_token());
        let router = router(App::new(host.clone(), local_addr, closing.clone()));
        cluster.activate(ActiveRoutes::new(router.clone(), closing.clone()));
        Self { host, listeners: Listeners::Cluster(cluster), local_addr, router, closing }
    }

    /// To be used before the runs of a host in a cluster are ended: it ends, or gives the ledger away, and [`Self::serve`] gives the listeners
    /// back then. Does nothing for a host by itself.
    #[must_use]
    pub fn departure(&self) -> Departure {
        match &self.listeners {
            Listeners::Alone(_) => Departure::alone(),
            Listeners::Cluster(cluster) => cluster.departure(),
        }
    }

    /// Address of the listener.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// A client of this server within the process. It may send requests before [`Server::serve`], and until the host has shut down.
    #[must_use]
    pub fn local_client(&self) -> LocalClient {
        LocalClient::new(self.router.clone())
    }

    /// Answers requests until `shutdown` comes, then ends: no new connections, requests in flight are answered,
    /// streams and waits end at once. Returns within two seconds of that, whatever clients do.
    ///
    /// To let streams end with the last event of their run, end the runs first (`Host::shutdown`) and resolve
    /// `shutdown` after that.
    ///
    /// # Errors
    /// [`ServeError`] when the listener fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<Served, ServeError> {
        let Self { host, listeners, router, closing, .. } = self;
        let (served, overdue) = match listeners {
            Listeners::Alone(listener) => {
                let connections = Connections::new(router, &host.config().limits, Share::Whole, closing.clone());
                let served = tokio::select! {
                    error = connections.accept(listener) => Err(error.into()),
                    () = shutdown => Ok(()),
                };
                closing.cancel();
                (served, connections.end(LAST_BYTES).await)
            }
            Listeners::Cluster(mut cluster) => {
                let served = tokio::select! {
                    error = cluster.failed() => Err(error),
                    () = shutdown => Ok(()),
                };
                closing.cancel();
                if served.is_ok() && !cluster.is_active() {
                    return Ok(Served::HandedOver(cluster));
                }
                (served, cluster.end().await)
            }
        };
        if overdue {
            tracing::warn!("connections that did not end in time were cut off");
        }
        served.map(|()| Served::Ended)
    }
}
