//! A request of a client on its way: to the active host, or, once that is this one, to its own routes.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_runs::PartitionUsage;
use axum::{
    body::{Body, Bytes, HttpBody, to_bytes},
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    client::{HostClient, SendError},
    client_request::{ClientRequest, remove_hop_by_hop, uri_at},
    host_listener::KEY_USAGE,
    owner::{Owner, OwnerWatch},
    resume,
};
use crate::http::{
    Problem, ProblemCode,
    connections::complain,
    forwarded::{self, ForwardedRequest, Locality},
};

/// A request that may wait for the next active host waits so much longer than a lease: the takeover and the start of that host.
const TAKEOVER: Duration = Duration::from_secs(5);
/// A stream of events likewise: its client waits anyway.
const STREAM_TAKEOVER: Duration = Duration::from_secs(20);
/// Pause before another attempt.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
/// The host before may still answer for so long what it has begun, once another one is active.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Time for the answer of the active host to the question whether it is there.
const PROBE_TIME: Duration = Duration::from_secs(3);
/// Bytes of the use of all keys that have a budget.
const USAGE_BYTES: usize = 8 << 20;

/// The number of forwarded requests, for `/readyz`.
#[derive(Debug, Default)]
pub(crate) struct ForwardCounts {
    /// Requests without the end of their answer.
    pub(crate) open: AtomicU64,
    /// Requests that the active host has answered.
    pub(crate) answered: AtomicU64,
    /// Requests that it has not.
    pub(crate) failed: AtomicU64,
}

/// Forwards requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Forwarder(Arc<Shared>);

struct Shared {
    client: HostClient,
    partition: u32,
    owner: OwnerWatch,
    config: Config,
    /// Address of the listener for clients.
    here: IpAddr,
    lease: Duration,
    closing: CancellationToken,
    counts: Arc<ForwardCounts>,
    /// The last time that the log had a line about the active host.
    complained: Mutex<Option<Instant>>,
    /// The last look at the active host.
    reached: Mutex<Option<ProbeOutcome>>,
}

/// The outcome of a look at a host.
struct ProbeOutcome {
    host: Arc<str>,
    /// The reason where the host cannot be reached.
    reached: Result<(), String>,
}

/// The answer to one attempt.
pub(super) enum Attempt {
    /// The active host is this one, and its routes have answered. The token is cancelled when the host gives the ledger away.
    Here(CancellationToken, Response),
    /// The active host has answered.
    At(Arc<str>, Response<Incoming>),
}

/// A request that no host has answered.
pub(super) struct Unanswered {
    problem: Problem,
    /// True if no host has begun with it.
    is_untouched: bool,
}

impl Unanswered {
    fn untouched() -> Self {
        Self { problem: moving(), is_untouched: true }
    }
}

impl From<Problem> for Unanswered {
    fn from(problem: Problem) -> Self {
        Self { problem, is_untouched: false }
    }
}

/// A request that is open, counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<ForwardCounts>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Forwarder {
    /// Forwards the requests of one partition.
    pub(crate) fn new(
        client: HostClient,
        partition: u32,
        owner: OwnerWatch,
        config: Config,
        here: IpAddr,
        closing: CancellationToken,
    ) -> Self {
        let lease = Duration::from_millis(config.cluster.as_ref().map_or(0, |cluster| cluster.lease_ms));
        Self(Arc::new(Shared {
            client,
            partition,
            owner,
            config,
            here,
            lease,
            closing,
            counts: Arc::default(),
            complained: Mutex::default(),
            reached: Mutex::default(),
        }))
    }

    pub(crate) fn counts(&self) -> &ForwardCounts {
        &self.0.counts
    }

    pub(super) fn owner(&self) -> &OwnerWatch {
        &self.0.owner
    }

    pub(super) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// The longest time without an active host that a stream of events waits for.
    pub(super) fn stream_patience(&self) -> Duration {
        self.0.lease + STREAM_TAKEOVER
    }

    /// Answers a request of a client. One that may be sent again waits for the next active host, where there is none; so does one that no
    /// host has begun.
    pub(crate) async fn answer(&self, request: Request) -> Response {
        let request = Arc::new(ClientRequest::new(&self.0.config, self.0.here, self.0.partition, request));
        let deadline = Instant::now() + self.0.lease + TAKEOVER;
        let mut owner = self.0.owner.clone();
        loop {
            let unanswered = match self.attempt(&request, None).await {
                // It takes no more, as it says.
                Ok(Attempt::Here(left, response))
                    if left.is_cancelled() && response.status() == StatusCode::SERVICE_UNAVAILABLE =>
                {
                    Unanswered::untouched()
                }
                Ok(Attempt::Here(left, response)) => return self.keep(left, request, response),
                Ok(Attempt::At(_, response)) if forwarded::is_moved(response.headers()) => Unanswered::untouched(),
                Ok(Attempt::At(host, response)) => return self.relay(host, request, response),
                Err(unanswered) => unanswered,
            };
            if !request.may_be_sent(unanswered.is_untouched) || Instant::now() >= deadline {
                return unanswered.problem.into_response();
            }
            tokio::select! {
                () = owner.changed_within(PAUSE) => {}
                () = self.0.closing.cancelled() => return shutting_down().into_response(),
            }
        }
    }

    /// Sends a request once, after the event `last_event_id` of a stream where one is given.
    pub(super) async fn attempt(&self, request: &ClientRequest, last_event_id: Option<&str>) -> Result<Attempt, Unanswered> {
        let owner = self.0.owner.now();
        match owner {
            Owner::Nobody => Err(Unanswered::untouched()),
            Owner::Here(routes) => {
                let request = request.for_this_host(last_event_id).ok_or_else(outcome_unknown)?;
                let left = routes.left().clone();
                Ok(Attempt::Here(left, routes.answer(request).await))
            }
            Owner::At(host) => {
                let request = request.for_host(&host, last_event_id)?.ok_or_else(outcome_unknown)?;
                match self.send(&host, request).await {
                    Ok(response) => {
                        self.0.counts.answered.fetch_add(1, Ordering::Relaxed);
                        Ok(Attempt::At(host, response))
                    }
                    Err(error) => {
                        self.0.counts.failed.fetch_add(1, Ordering::Relaxed);
                        Err(self.problem(&host, &error).into())
                    }
                }
            }
        }
    }

    /// Sends a request to a host, and waits for the head of its answer for as long as that host is the active one.
    async fn send(&self, host: &Arc<str>, request: Request) -> Result<Response<Incoming>, SendError> {
        tokio::select! {
            answered = self.0.client.send(request) => answered,
            () = self.gone(Arc::clone(host)) => Err(SendError::BrokeOff("another host is the active one now".to_owned())),
        }
    }

    /// Waits until another host is the active one, and the one before has had the time for its last answers.
    pub(super) fn gone(&self, host: Arc<str>) -> BoxFuture<'static, ()> {
        let owner = self.0.owner.clone();
        Box::pin(async move {
            owner.has_moved_from(host).await;
            tokio::time::sleep(LAST_ANSWERS).await;
        })
    }

    fn problem(&self, host: &str, error: &SendError) -> Problem {
        complain(&mut self.0.complained.lock(), || {
            tracing::warn!(host, %error, "a request could not be forwarded to the active host");
        });
        match error {
            SendError::NotSent(_) => {
                let detail = format!(
                    "the active host, {host}, cannot be reached from this one, and nothing was done: send the request again in a moment; \
                     the log of this host has the reason"
                );
                Problem::new(ProblemCode::PartitionUnreachable, detail)
            }
            SendError::BrokeOff(_) => outcome_unknown(),
        }
    }

    fn open(&self) -> OpenRequest {
        self.0.counts.open.fetch_add(1, Ordering::Relaxed);
        OpenRequest(Arc::clone(&self.0.counts))
    }

    /// The answer of this host for the client, whose stream of events goes on at the next active host once this one has left.
    fn keep(&self, left: CancellationToken, request: Arc<ClientRequest>, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let body = if request.is_resumable(&parts) {
            Body::from_stream(resume::stream_of_this_host(self.clone(), request, left, body))
        } else {
            body
        };
        Response::from_parts(parts, body)
    }

    /// The answer of the active host for the client.
    fn relay(&self, host: Arc<str>, request: Arc<ClientRequest>, response: Response<Incoming>) -> Response {
        let (mut parts, body) = response.into_parts();
        remove_hop_by_hop(&mut parts.headers);
        forwarded::remove(&mut parts.headers);
        let body = if request.is_resumable(&parts) {
            Body::from_stream(resume::stream(self.clone(), request, host, body, self.open()))
        } else {
            Body::new(RelayedBody { body, gone: self.gone(host), _open: self.open() })
        };
        Response::from_parts(parts, body)
    }

    /// Asks the active host whether it is there, and what runs of the partition have used for keys. [`Self::reached`] says afterwards whether it has
    /// answered.
    pub(crate) async fn probe(&self) -> Option<PartitionUsage> {
        let Owner::At(host) = self.0.owner.now() else { return None };
        let facts = ForwardedRequest { client: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), locality: Locality::Elsewhere };
        let mut request = Request::new(Body::empty());
        facts.write(request.headers_mut());
        forwarded::set_partition(request.headers_mut(), self.0.partition);
        let (reached, usage) = match uri_at(&host, KEY_USAGE) {
            Err(_) => (Err("`advertise` of that host is no address".to_owned()), None),
            Ok(uri) => {
                *request.uri_mut() = uri;
                let asked = async { Ok::<_, SendError>(usage_in(self.0.client.send(request).await?).await) };
                match tokio::time::timeout(PROBE_TIME, asked).await {
                    // A host that is about to be the active one, or not any more, is reached too.
                    Ok(Ok(usage)) => (Ok(()), usage),
                    Ok(Err(error)) => (Err(error.to_string()), None),
                    Err(_late) => (Err(format!("it has not answered in {} s", PROBE_TIME.as_secs())), None),
                }
            }
        };
        if let Err(error) = &reached {
            complain(&mut self.0.complained.lock(), || {
                tracing::warn!(%host, %error, "the active host cannot be reached: requests of clients are not forwarded to it");
            });
        }
        *self.0.reached.lock() = Some(ProbeOutcome { host, reached });
        usage
    }

    /// The last look at the active host: an error says why it cannot be reached. `None` where there was none.
    pub(crate) fn reached(&self) -> Option<Result<(), String>> {
        let Owner::At(now) = self.0.owner.now() else { return None };
        self.0.reached.lock().as_ref().filter(|outcome| outcome.host == now).map(|outcome| outcome.reached.clone())
    }
}

/// The use of keys in the answer of the owner of a partition.
async fn usage_in(response: Response<Incoming>) -> Option<PartitionUsage> {
    if response.status() != StatusCode::OK {
        return None;
    }
    let body = to_bytes(Body::new(response.into_body()), USAGE_BYTES).await;
    let usage =
        body.map_err(|error| error.to_string()).and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()));
    usage.inspect_err(|error| tracing::debug!(error, "the use of keys that another host knows of cannot be read")).ok()
}

fn moving() -> Problem {
    let detail = "no host is active at the moment, or another one is about to be: send the request again in a moment";
    Problem::new(ProblemCode::PartitionMoving, detail)
}

fn outcome_unknown() -> Problem {
    let detail = "the active host broke off before it answered, so it is not known whether the request was done: look, or send it again \
                  with the same `Idempotency-Key`";
    Problem::new(ProblemCode::OutcomeUnknown, detail)
}

fn shutting_down() -> Problem {
    Problem::new(ProblemCode::ShuttingDown, "the host is going down: send the request to another one, or again in a moment")
}

/// The body of an answer, which breaks off when its host is not the active one any more.
struct RelayedBody {
    body: Incoming,
    gone: BoxFuture<'static, ()>,
    _open: OpenRequest,
}

impl HttpBody for RelayedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new))),
            Poll::Pending if self.gone.as_mut().poll(context).is_ready() => {
                Poll::Ready(Some(Err(axum::Error::new("another host is the active one now"))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
