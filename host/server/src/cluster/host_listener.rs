//! The listener for hosts alone.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use agent_host_runs::secret::Secret;
use axum::{
    Json, Router,
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{
    handshake::{self, HandshakeError},
    listeners::ClusterPartition,
    owner::Owner,
};
use crate::http::{
    Problem, ProblemCode,
    connections::{ConnectionCheck, Peer, complain},
    forwarded::{self, ForwardedRequest, RequestPart},
    paced_stream::PacedStream,
};

/// A host proves itself within this time.
const PROOF_TIME: Duration = Duration::from_secs(3);
/// Connections that prove themselves at the same time; others wait for a place as long as for a proof.
const PROVING_AT_ONCE: usize = 64;
/// A client that is refused has so long to read it.
const REFUSAL: Duration = Duration::from_secs(1);

/// The judgement of new connections: those of hosts with the secret are let in.
pub(crate) fn connection_check(secret: Arc<Secret>) -> ConnectionCheck {
    let places = Arc::new(Semaphore::new(PROVING_AT_ONCE));
    let complained = Arc::new(Mutex::new(None::<Instant>));
    Arc::new(move |mut stream, peer| {
        let (secret, places, complained) = (Arc::clone(&secret), Arc::clone(&places), Arc::clone(&complained));
        Box::pin(async move {
            let _place = tokio::time::timeout(PROOF_TIME, places.acquire()).await.ok()?.ok()?;
            let proved = tokio::time::timeout(PROOF_TIME, handshake::demand(&mut stream, &secret)).await;
            match proved {
                Ok(Ok(())) => Some(stream),
                Ok(Err(error)) => {
                    log_refusal(&complained, peer, &error);
                    if matches!(error, HandshakeError::NoHost) {
                        drop(tokio::time::timeout(REFUSAL, refuse(&mut stream)).await);
                    }
                    None
                }
                Err(_late) => None,
            }
        })
    })
}

fn log_refusal(complained: &Mutex<Option<Instant>>, peer: SocketAddr, error: &HandshakeError) {
    if let HandshakeError::Io(error) = error {
        tracing::debug!(%peer, %error, "a connection to the listener for hosts broke off");
        return;
    }
    complain(&mut complained.lock(), || {
        tracing::warn!(%peer, %error, "a connection to the listener for hosts is refused: it is none of a host with the cluster's secret");
    });
}

/// Tells a client of HTTP that this is the wrong address. Closed with unread bytes, the connection would be reset, and the client would
/// not see it.
async fn refuse(stream: &mut PacedStream) -> std::io::Result<()> {
    let problem = Problem::new(
        ProblemCode::Forbidden,
        "this is the listener for the other hosts of the cluster: clients send their requests to [server] listen",
    );
    let body = problem.to_json();
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// The path at which an owner says what runs of a partition have used for keys. A host that gets any answer has reached it.
pub(crate) const KEY_USAGE: &str = "/cluster/key-usage";

/// The answers to requests of other hosts.
#[derive(Clone)]
pub(crate) struct HostRoutes {
    pub(super) partitions: Arc<[ClusterPartition]>,
}

impl HostRoutes {
    pub(crate) fn router(self) -> Router {
        Router::new().fallback(answer).with_state(self)
    }
}

async fn answer(State(routes): State<HostRoutes>, mut request: Request) -> Response {
    let (number, part) = (forwarded::partition(request.headers()), RequestPart::read(request.headers()));
    let Some(forwarded) = ForwardedRequest::take(request.headers_mut()) else {
        let detail =
            "a host that forwards a request says of which client it is, and this one does not: give all hosts one version";
        return Problem::new(ProblemCode::Forbidden, detail).into_response();
    };
    let Some(partition) = number.and_then(|number| routes.partitions.get(number as usize)) else { return moved() };
    let Owner::Here(active) = partition.owner() else { return moved() };
    let leaving = active.leaving().clone();
    if leaving.is_cancelled() {
        return moved();
    }
    if request.uri().path() == KEY_USAGE {
        return Json(partition.key_usage()).into_response();
    }
    request.extensions_mut().insert(Peer(forwarded.client));
    request.extensions_mut().insert(forwarded);
    if let Some(part) = part {
        request.extensions_mut().insert(part);
    }
    let response = active.answer(request).await;
    if is_event_stream(response.headers()) {
        response.map(|body| Body::new(UntilLeaving { body, left: Box::pin(leaving.cancelled_owned()) }))
    } else {
        response
    }
}

/// The answer of a host that is asked as the active one and is not. It forwards nothing itself.
fn moved() -> Response {
    let detail =
        "this host was asked as the active one, and is not: the ledger is being taken over; send the request again in a moment";
    let mut response = Problem::new(ProblemCode::PartitionMoving, detail).into_response();
    forwarded::mark_moved(response.headers_mut());
    response
}

/// True for an answer of server-sent events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// A stream of events for another host. It breaks off when this host begins to end or to give the ledger away, goes on at the next active
/// host, and so differs from a stream that has come to its
/// end.
struct UntilLeaving {
    body: Body,
    left: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpBody for UntilLeaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.left.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new("the host ends"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
