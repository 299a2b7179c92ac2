//! Connections: taken up to a number, each bounded in the time that it may take for nothing.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::Limits;
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, header},
};
use futures_util::future::BoxFuture;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    paced_stream::PacedStream,
    problem::{Problem, ProblemCode},
};

/// Time for open connections to take their last bytes after the stop of the server. Streams and waiting requests end at
/// that moment, so only a client that does not read needs longer; its connection is closed.
pub(crate) const LAST_BYTES: Duration = Duration::from_secs(2);
/// Read and write buffer of one connection, in bytes. A client that does not read occupies this much, and the last piece.
const BUFFER_BYTES: usize = 64 * 1024;
/// The longest head of a request: common servers take 8 to 32 KiB.
const HEAD_BYTES: usize = 32 * 1024;
/// Headers of a request: the default of hyper.
const MAX_HEADERS: usize = 100;
/// Bytes and number of the headers that a host adds to a request that it forwards.
const MORE_HEAD_BYTES: usize = 4 * 1024;
const MORE_HEADERS: usize = 28;
/// Time without a request after which a connection of a host is closed. The other host closes it earlier.
const HOST_IDLE: Duration = Duration::from_secs(120);
/// Send buffer of the system, in bytes. The system reports room when a third of it is free, so the size also separates a
/// client that reads slowly (6 kB/s with 30 seconds) from one that does not read; the default is megabytes. With a delay of
/// 100 ms it allows 2.5 MB/s.
const SEND_BYTES: u32 = 256 * 1024;
/// Connections that wait to be taken, as in the standard library of tokio.
const BACKLOG: u32 = 1024;
/// Files that the process has open beside its connections: the ledger, artifacts, what runs reach outside.
const OTHER_FILES: u64 = 256;
/// Connections that are enough where the configuration asks for no number.
const ENOUGH: usize = 2_048;
/// Connections over the limit that receive an answer at the same time; others are closed.
const REFUSED_AT_ONCE: usize = 64;
/// A client that is refused has so long to read it.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause when no connection can be accepted because the process has no file descriptor left.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The log says so often that the limit is reached.
const COMPLAINT: Duration = Duration::from_secs(10);

/// The judgement of a new connection before its first request: the connection, or nothing where it is refused.
pub(crate) type ConnectionCheck = Arc<dyn Fn(PacedStream, SocketAddr) -> BoxFuture<'static, Option<PacedStream>> + Send + Sync>;

/// Connections of one process: its listeners share the files that it may open.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// The one listener, whose requests need no further connection.
    Whole,
    /// One of two listeners, or one whose requests need another connection each.
    Half,
}

/// The address of the other side of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A listener whose connections have what is said here.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A host that is started again need not wait until old connections are forgotten. On Windows it means something else.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// All connections of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections {
    router: Router,
    http: http1::Builder,
    slow_reader: Duration,
    places: Arc<Semaphore>,
    /// Number of places.
    limit: usize,
    refused: Arc<Semaphore>,
    /// For connections of hosts.
    check: Option<ConnectionCheck>,
    tasks: TaskTracker,
    /// Cancelled to stop accepting: open requests are answered first.
    closing: CancellationToken,
    /// Cancelled to close the remaining connections.
    cut: CancellationToken,
}

impl Connections {
    pub(crate) fn new(router: Router, limits: &Limits, share: Share, closing: CancellationToken) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(limits.http_header_ms))
            .max_buf_size(BUFFER_BYTES)
            .max_header_size(HEAD_BYTES);
        let limit = affordable(limits.http_connections, share);
        Self {
            router,
            http,
            slow_reader: Duration::from_millis(limits.http_slow_reader_ms),
            places: Arc::new(Semaphore::new(limit)),
            limit,
            refused: Arc::new(Semaphore::new(REFUSED_AT_ONCE)),
            check: None,
            tasks: TaskTracker::new(),
            closing,
            cut: CancellationToken::new(),
        }
    }

    /// The same for connections of other hosts, which are kept for the next request: `check` judges each before its first one.
    pub(crate) fn for_hosts(mut self, check: ConnectionCheck) -> Self {
        self.http
            .header_read_timeout(HOST_IDLE)
            .max_header_size(HEAD_BYTES + MORE_HEAD_BYTES)
            .max_headers(MAX_HEADERS + MORE_HEADERS);
        self.check = Some(check);
        self
    }

    /// Takes connections. Returns only when the listener is broken.
    pub(crate) async fn accept(&self, listener: TcpListener) -> io::Error {
        let mut complained: Option<Instant> = None;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer, &mut complained),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return error,
                Err(error) => {
                    complain(&mut complained, || tracing::error!(%error, "no connection can be accepted now"));
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr, complained: &mut Option<Instant>) {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => drop(self.tasks.spawn(self.clone().serve(stream, peer, place))),
            Err(_) => {
                let limit = self.limit;
                complain(complained, || {
                    tracing::warn!(limit, "there are as many connections as there may be: others are refused")
                });
                if let Ok(turn) = Arc::clone(&self.refused).try_acquire_owned() {
                    drop(self.tasks.spawn(self.clone().refuse(stream, turn)));
                }
            }
        }
    }

    async fn serve(self, stream: TcpStream, peer: SocketAddr, _place: OwnedSemaphorePermit) {
        // Without this a small answer waits for the client's acknowledgement: 44 ms instead of 2.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection stays without TCP_NODELAY");
        }
        let mut stream = PacedStream::new(stream, self.slow_reader);
        if let Some(check) = &self.check {
            let checked = tokio::select! {
                checked = check(stream, peer) => checked,
                () = self.closing.cancelled() => None,
            };
            let Some(checked) = checked else { return };
            stream = checked;
        }
        let io = TokioIo::new(stream);
        let router = self.router;
        let service = service_fn(move |request: Request<Incoming>| {
            // A request with a length besides is read by this, as it must be, and is the last of its connection: whoever stands in
            // between may have read it by the length (RFC 9112, section 6.1).
            let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer));
            let answering = router.clone().oneshot(request);
            async move {
                let mut response = answering.await?;
                if is_chunked {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(self.http.serve_connection(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = self.cut.cancelled() => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection broke off");
        }
    }

    /// Says why before it closes. Closed with unread bytes, the connection would be reset, and the client would not see it.
    async fn refuse(self, mut stream: TcpStream, _turn: OwnedSemaphorePermit) {
        let refusal = async {
            let mut unread = [0; 1024];
            // An answer that comes before the request is none to most clients.
            if stream.read(&mut unread).await? == 0 {
                return Ok(());
            }
            stream.write_all(refusal().as_bytes()).await?;
            stream.shutdown().await?;
            while stream.read(&mut unread).await? > 0 {}
            Ok::<(), io::Error>(())
        };
        tokio::select! {
            // The connection sends nothing else, even if the client did not read the answer.
            _ = tokio::time::timeout(REFUSAL, refusal) => {}
            () = self.closing.cancelled() => {}
        }
    }

    /// Waits for the ends of all connections after the stop of the server; after `patience` the remaining ones are closed.
    /// Returns true if some were closed.
    pub(crate) async fn end(self, patience: Duration) -> bool {
        self.tasks.close();
        let overdue = tokio::time::timeout(patience, self.tasks.wait()).await.is_err();
        self.cut.cancel();
        overdue
    }
}

fn refusal() -> String {
    let problem =
        Problem::new(ProblemCode::Unavailable, "the host has as many connections as it may have: come back in a moment");
    let body = problem.to_json();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n\
         retry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// As many connections as the process may have open files for, at most what is wanted.
fn affordable(wanted: usize, share: Share) -> usize {
    let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current else { return wanted };
    let shares = match share {
        Share::Whole => 1,
        Share::Half => 2,
    };
    let affordable = usize::try_from(files.saturating_sub(OTHER_FILES) / shares).unwrap_or(usize::MAX).max(1);
    if is_too_few(affordable, wanted) {
        tracing::warn!(
            "the process may open {files} files, so there can be {affordable} connections and not {wanted}: raise the limit \
             (`ulimit -n`, LimitNOFILE=), or lower `limits.http_connections`"
        );
    }
    wanted.min(affordable).min(Semaphore::MAX_PERMITS)
}

/// True for fewer connections than an operator asked for, or than clients need. A system that gives a process fewer files than the
/// default of `limits.http_connections` takes is no fault of anybody: most hosts never have so many connections.
fn is_too_few(affordable: usize, wanted: usize) -> bool {
    let needed = if wanted == Limits::default().http_connections { ENOUGH } else { wanted };
    affordable < needed
}

pub(crate) fn complain(last: &mut Option<Instant>, say: impl FnOnce()) {
    if last.is_none_or(|last| last.elapsed() >= COMPLAINT) {
        *last = Some(Instant::now());
        say();
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_files_is_too_low_for_what_the_configuration_asks_for_or_for_anybody() {
        let default = Limits::default().http_connections;
        for (affordable, wanted, expect) in [
            (default - 256, default, false),
            (ENOUGH, default, false),
            (768, default, true),
            (768, 1_000, true),
            (768, 768, false),
        ] {
            assert_eq!(is_too_few(affordable, wanted), expect, "{affordable} of {wanted}");
        }
    }
}
