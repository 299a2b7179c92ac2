//! Listening, serving, and coming to an end.

use std::{future::Future, net::SocketAddr};

use agent_host_runs::Host;
use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, ProcessShares},
    cluster::{
        listeners::{ClusterPartition, Departure},
        owner::ActiveRoutes,
    },
    http::connections::{self, Connections, LAST_BYTES, Share},
    local::LocalClient,
    router::router,
    serve_error::{BindError, ServeError},
};

/// A server of a host by itself, which listens and does not answer yet: clients that connect now wait until [`Server::serve`].
pub struct Server {
    host: Host,
    listener: TcpListener,
    local_addr: SocketAddr,
    router: Router,
    closing: CancellationToken,
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
        let shares = ProcessShares::new(&host.config());
        let router = router(App::new(host.clone(), local_addr, closing.clone(), shares));
        Ok(Self { host, listener, local_addr, router, closing })
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
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        let Self { host, listener, router, closing, .. } = self;
        let connections = Connections::new(router, &host.config().limits, Share::Whole, closing.clone());
        let served = tokio::select! {
            error = connections.accept(listener) => Err(error.into()),
            () = shutdown => Ok(()),
        };
        closing.cancel();
        if connections.end(LAST_BYTES).await {
            tracing::warn!("connections that did not end in time were cut off");
        }
        served
    }
}

/// A partition of a cluster that this host owns, and whose requests it answers at the listeners of the host.
pub struct ActivePartition {
    partition: ClusterPartition,
    router: Router,
    closing: CancellationToken,
}

impl std::fmt::Debug for ActivePartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ActivePartition")
    }
}

impl ActivePartition {
    /// Answers the requests of a partition, which is this host's, from now on.
    #[must_use]
    pub fn begin(host: Host, partition: ClusterPartition) -> Self {
        let closing = partition.closing().child_token();
        let app = App::new(host, partition.local_addr(), closing.clone(), partition.shares());
        let router = router(app);
        partition.activate(ActiveRoutes::new(router.clone(), closing.clone()));
        Self { partition, router, closing }
    }

    /// A client of the partition within the process. It may send requests until the host of the partition is closed.
    #[must_use]
    pub fn local_client(&self) -> LocalClient {
        LocalClient::new(self.router.clone())
    }

    /// To be used before the runs of the partition are ended: the host ends, or gives the partition away.
    #[must_use]
    pub fn departure(&self) -> Departure {
        self.partition.departure()
    }

    /// Ends what requests still wait for. The host of the partition is closed.
    pub fn end(self) {
        self.closing.cancel();
    }
}
