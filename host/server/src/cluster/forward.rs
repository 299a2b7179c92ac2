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
use agent_host_runs::secret::Secret;
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, response, uri},
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    client::{HostClient, SendError},
    host_listener::is_event_stream,
    owner::{Owner, OwnerWatch},
    repeatable::RepeatableBody,
    resume,
};
use crate::{
    access::authentication,
    http::{
        Problem, ProblemCode,
        connections::{Peer, complain},
        forwarded::{self, ForwardedRequest, Locality},
        headers::{IDEMPOTENCY_KEY, LAST_EVENT_ID},
    },
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

/// Headers between two neighbours (RFC 9110, section 7.6.1, and what HTTP/1.1 had before), and `Expect`, which the listener has answered.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

const VIA: HeaderValue = HeaderValue::from_static("1.1 agent-host");

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

/// The right to send a request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repetition {
    /// The method changes nothing.
    Safe,
    /// The request names what it does, and the host does that once: an `Idempotency-Key`, or the `runId` of AG-UI.
    Named,
    /// The request is done as often as it is sent.
    Never,
}

/// A request of a client, which may be sent several times.
#[derive(Debug)]
pub(super) struct ClientRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    facts: ForwardedRequest,
    body: RepeatableBody,
    repetition: Repetition,
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
    pub(crate) fn new(secret: Arc<Secret>, owner: OwnerWatch, config: Config, here: IpAddr, closing: CancellationToken) -> Self {
        let lease = Duration::from_millis(config.cluster.as_ref().map_or(0, |cluster| cluster.lease_ms));
        let client = HostClient::new(secret);
        Self(Arc::new(Shared {
            client,
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
        let request = Arc::new(ClientRequest::new(&self.0.config, self.0.here, request));
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
            let may_be_sent = request.body.is_whole() && (unanswered.is_untouched || request.repetition != Repetition::Never);
            if !may_be_sent || Instant::now() >= deadline {
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

    /// Asks the active host whether it is there. [`Self::reached`] has the answer afterwards.
    pub(crate) async fn probe(&self) {
        let Owner::At(host) = self.0.owner.now() else { return };
        let facts = ForwardedRequest { client: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), locality: Locality::Elsewhere };
        let mut request = Request::new(Body::empty());
        facts.write(request.headers_mut());
        let reached = match uri_at(&host, "/healthz") {
            Err(_) => Err("`advertise` of that host is no address".to_owned()),
            Ok(uri) => {
                *request.uri_mut() = uri;
                match tokio::time::timeout(PROBE_TIME, self.0.client.send(request)).await {
                    // A host that is about to be the active one, or not any more, is reached too.
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_late) => Err(format!("it has not answered in {} s", PROBE_TIME.as_secs())),
                }
            }
        };
        if let Err(error) = &reached {
            complain(&mut self.0.complained.lock(), || {
                tracing::warn!(%host, %error, "the active host cannot be reached: requests of clients are not forwarded to it");
            });
        }
        *self.0.reached.lock() = Some(ProbeOutcome { host, reached });
    }

    /// The last look at the active host: an error says why it cannot be reached. `None` where there was none.
    pub(crate) fn reached(&self) -> Option<Result<(), String>> {
        let Owner::At(now) = self.0.owner.now() else { return None };
        self.0.reached.lock().as_ref().filter(|outcome| outcome.host == now).map(|outcome| outcome.reached.clone())
    }
}

impl ClientRequest {
    fn new(config: &Config, here: IpAddr, request: Request) -> Self {
        let locality = authentication::locality(config, here, &request);
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let client = request.extensions().get::<Peer>().map_or(unknown, |peer| peer.0);
        let (mut parts, body) = request.into_parts();
        forwarded::remove(&mut parts.headers);
        let repetition = Repetition::of(&parts.method, parts.uri.path(), &parts.headers);
        Self {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            facts: ForwardedRequest { client, locality },
            body: RepeatableBody::new(body),
            repetition,
        }
    }

    /// True if the answer is a stream, and the request again, with `Last-Event-ID`, is the rest of it.
    fn is_resumable(&self, answer: &response::Parts) -> bool {
        answer.status == StatusCode::OK && is_event_stream(&answer.headers) && may_be_stream(&self.method, &self.uri)
    }

    /// True if the stream of the request, sent again, begins where it began before: at its place, or at the begin of a run or a thread.
    /// Streams of all that happens begin now.
    pub(super) fn begins_at_a_place(&self) -> bool {
        let query = self.uri.query().unwrap_or_default();
        let has_place = self.headers.contains_key(LAST_EVENT_ID) || query.split('&').any(|part| part.starts_with("after="));
        let of_one = ["/api/v1/runs/", "/api/v1/threads/", "/api/v1/agent/", "/agents/"];
        has_place || of_one.iter().any(|path| self.uri.path().starts_with(path))
    }

    /// The request for the routes of this host. `None` where its body is gone.
    fn for_this_host(&self, last_event_id: Option<&str>) -> Option<Request> {
        let mut request = Request::new(self.body.attempt()?);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        set_last_event_id(request.headers_mut(), last_event_id);
        request.extensions_mut().insert(Peer(self.facts.client));
        Some(request)
    }

    /// The request for another host. `None` where its body is gone.
    ///
    /// # Errors
    /// Fails for a request that has no path, which no route takes.
    fn for_host(&self, host: &str, last_event_id: Option<&str>) -> Result<Option<Request>, Problem> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = uri_at(host, path)
            .map_err(|_| Problem::new(ProblemCode::NotFound, "there is nothing at this address; the API is under /api/v1"))?;
        let Some(body) = self.body.attempt() else { return Ok(None) };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        remove_hop_by_hop(headers);
        set_last_event_id(headers, last_event_id);
        headers.append(header::VIA, VIA);
        // The address of a client that comes by a proxy is in the element before.
        if let Ok(element) = HeaderValue::try_from(format!("for=\"{}\"", self.facts.client)) {
            headers.append(header::FORWARDED, element);
        }
        self.facts.write(headers);
        Ok(Some(request))
    }
}

impl Repetition {
    fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        if method.is_safe() {
            Self::Safe
        } else if headers.contains_key(IDEMPOTENCY_KEY) || is_agent_run(method, path) {
            Self::Named
        } else {
            Self::Never
        }
    }
}

/// True for requests that may be answered by a stream of events which goes on elsewhere.
pub(crate) fn may_be_stream(method: &Method, uri: &Uri) -> bool {
    method == Method::GET || is_agent_run(method, uri.path())
}

/// True for requests whose body has the `runId` of AG-UI: the same again attaches to the run.
fn is_agent_run(method: &Method, path: &str) -> bool {
    let is_run =
        path.strip_prefix("/agents/").and_then(|rest| rest.strip_suffix("/run")).is_some_and(|agent| !agent.contains('/'));
    method == Method::POST && (is_run || path == "/api/v1/agent/runs")
}

fn set_last_event_id(headers: &mut HeaderMap, last_event_id: Option<&str>) {
    if let Some(value) = last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(LAST_EVENT_ID, value);
    }
}

fn uri_at(host: &str, path: &str) -> Result<Uri, axum::http::Error> {
    let mut parts = uri::Parts::default();
    parts.scheme = Some(uri::Scheme::HTTP);
    parts.authority = Some(host.parse()?);
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// Leaves out what is between two neighbours, also what `Connection` names as such.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn request(method: Method, path: &str, pairs: &[(&'static str, &'static str)], body: Body) -> ClientRequest {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        *request.headers_mut() = headers(pairs);
        request.extensions_mut().insert(Peer("203.0.113.7:4000".parse().unwrap()));
        let config = Config::default_in(std::path::Path::new("."));
        ClientRequest::new(&config, Ipv4Addr::LOCALHOST.into(), request)
    }

    #[test]
    fn headers_between_neighbours_end_at_the_host() {
        let sent = request(
            Method::POST,
            "/api/v1/events?x=1",
            &[
                ("connection", "keep-alive, X-Hop, agent-host-client"),
                ("x-hop", "1"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("te", "trailers"),
                ("trailer", "x"),
                ("upgrade", "h2c"),
                ("proxy-authorization", "Basic x"),
                ("expect", "100-continue"),
                ("agent-host-client", "127.0.0.1:1 this-machine"),
                ("agent-host-moved", "1"),
                ("via", "1.1 other"),
                ("forwarded", "for=192.0.2.1"),
                ("host", "agents.example"),
                ("authorization", "Bearer k"),
            ],
            Body::from("x"),
        );
        let sent = sent.for_host("10.0.0.7:7071", None).unwrap().unwrap();
        assert_eq!(sent.uri(), "http://10.0.0.7:7071/api/v1/events?x=1");
        let mut found: Vec<_> = sent.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        found.sort_unstable();
        let expect = [
            ("agent-host-client", "203.0.113.7:4000 elsewhere"),
            ("authorization", "Bearer k"),
            ("forwarded", "for=\"203.0.113.7:4000\""),
            ("forwarded", "for=192.0.2.1"),
            ("host", "agents.example"),
            ("via", "1.1 agent-host"),
            ("via", "1.1 other"),
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn only_a_request_that_harms_nobody_twice_is_sent_twice() {
        for (method, path, pairs, may) in [
            (Method::GET, "/api/v1/runs", &[][..], true),
            (Method::HEAD, "/api/v1/artifacts/a", &[], true),
            (Method::POST, "/api/v1/events", &[], false),
            (Method::POST, "/api/v1/events", &[("idempotency-key", "k")], true),
            (Method::DELETE, "/api/v1/keys/k", &[], false),
            (Method::POST, "/agents/chat/run", &[], true),
            (Method::POST, "/agents/chat/threads/run", &[], false),
            (Method::POST, "/api/v1/agent/runs", &[], true),
            (Method::POST, "/mcp", &[], false),
        ] {
            let repetition = request(method.clone(), path, pairs, Body::empty()).repetition;
            assert_eq!(repetition != Repetition::Never, may, "{method} {path}");
        }
    }

    #[test]
    fn a_stream_without_an_event_begins_again_where_it_began_or_not_at_all() {
        for (path, pairs, has_place) in [
            ("/api/v1/runs/r/events", &[][..], true),
            ("/api/v1/threads/t/events", &[], true),
            ("/agents/chat/threads/t/runs/r/events", &[], true),
            ("/api/v1/events", &[], false),
            ("/api/v1/events?after=c", &[], true),
            ("/api/v1/audit", &[("last-event-id", "c")], true),
            ("/api/v1/executors/e/events", &[], false),
        ] {
            assert_eq!(request(Method::GET, path, pairs, Body::empty()).begins_at_a_place(), has_place, "{path}");
        }
    }
}
