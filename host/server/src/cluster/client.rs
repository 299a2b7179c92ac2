//! Requests to the active host.

use std::{
    error::Error,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use agent_host_runs::secret::Secret;
use axum::{
    body::Body,
    http::{Request, Response, Uri},
};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

use super::handshake::{self, HandshakeError};

/// Time to connect to a host.
const CONNECT: Duration = Duration::from_secs(2);
/// Time in which the other host proves itself: one that is stopped has its connections made by the system.
const PROOF_TIME: Duration = Duration::from_secs(2);
/// Idle connections to a host that are kept, and for how long. The other host keeps them for longer.
const IDLE_CONNECTIONS: usize = 256;
const IDLE: Duration = Duration::from_secs(60);
/// A connection whose machine is gone is noticed after about 25 seconds.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
/// Buffer of one connection, in bytes, and so the longest head of an answer.
const BUFFER_BYTES: usize = 64 * 1024;

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No byte of the request was sent.
    #[error("{0}")]
    NotSent(String),
    /// The connection broke off before the answer came.
    #[error("{0}")]
    BrokeOff(String),
}

/// Connections to other hosts. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HostClient(Client<HostConnector, Body>);

impl HostClient {
    pub(crate) fn new(secret: Arc<Secret>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PROBE_AFTER));
        tcp.set_keepalive_interval(Some(PROBE_INTERVAL));
        tcp.set_keepalive_retries(Some(PROBES));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(BUFFER_BYTES)
            .build(HostConnector { tcp, secret });
        Self(client)
    }

    /// Sends a request, whose URI names the host, and waits for the head of the answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        self.0.request(request).await.map_err(|error| {
            let text = innermost(&error);
            if error.is_connect() { SendError::NotSent(text) } else { SendError::BrokeOff(text) }
        })
    }
}

/// The message of the first cause, which says most.
fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Makes connections that begin with the proof of both hosts.
#[derive(Debug, Clone)]
struct HostConnector {
    tcp: HttpConnector,
    secret: Arc<Secret>,
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Tcp(String),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the host did not prove itself in {} s: it is stopped, or overloaded", PROOF_TIME.as_secs())]
    NoProof,
}

impl Service<Uri> for HostConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, host: Uri) -> Self::Future {
        let Self { tcp, secret } = self.clone();
        Box::pin(async move { connect(tcp, &secret, host).await.map_err(io::Error::other) })
    }
}

async fn connect(tcp: HttpConnector, secret: &Secret, host: Uri) -> Result<TokioIo<TcpStream>, ConnectError> {
    let mut stream = tcp.oneshot(host).await.map_err(|error| ConnectError::Tcp(innermost(&error)))?;
    match tokio::time::timeout(PROOF_TIME, handshake::prove(stream.inner_mut(), secret)).await {
        Ok(proved) => proved?,
        Err(_late) => return Err(ConnectError::NoProof),
    }
    Ok(stream)
}
