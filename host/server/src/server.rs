//! Listening, serving, and coming to an end.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use agent_host_runs::Host;
use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    http::connections::{self, Connections},
    local::LocalClient,
    router::router,
};

/// Time for open connections to take their last bytes after the stop of the server. Streams and waiting requests end at
/// that moment, so only a client that does not read needs longer; its connection is closed.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// The address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {listen}: {source}{}", hint(source))]
pub struct BindError {
    listen: SocketAddr,
    source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process has the port: end it, or set another in [server] listen (port 0 takes a free one)"
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: set a higher one in [server] listen",
        io::ErrorKind::AddrNotAvailable => "; the machine does not have this address: set one that it has in [server] listen",
        _ => "",
    }
}

/// Serving failed.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP server failed: {0}")]
pub struct ServeError(#[from] io::Error);

/// A server that listens and does not answer yet: clients that connect now wait until [`Server::serve`].
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
        let refused = |source| BindError { listen, source };
        let listener = connections::listen(listen).map_err(refused)?;
        let local_addr = listener.local_addr().map_err(refused)?;
        let closing = CancellationToken::new();
        let router = router(App::new(host.clone(), local_addr, closing.clone()));
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
        let limits = host.config().limits.clone();
        let connections = Connections::new(router, &limits, closing.clone());
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
