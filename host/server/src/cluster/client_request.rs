//! A request of a client, which may be sent several times: to another host, or to the routes of this one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use agent_host_config::Config;
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, response, uri},
};

use super::{host_listener::is_event_stream, repeatable::RepeatableBody};
use crate::{
    access::authentication,
    http::{
        Problem, ProblemCode,
        connections::Peer,
        forwarded::{self, FailFast, ForwardedRequest, RequestPart},
        headers::{IDEMPOTENCY_KEY, LAST_EVENT_ID},
    },
};

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
    /// The partition that it is for.
    partition: u32,
    /// The partition's part in a request to all of them.
    part: Option<RequestPart>,
    waits_for_owner: bool,
    body: RepeatableBody,
    repetition: Repetition,
}

impl ClientRequest {
    pub(super) fn new(config: &Config, here: IpAddr, partition: u32, request: Request) -> Self {
        let locality = authentication::locality(config, here, &request);
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let client = request.extensions().get::<Peer>().map_or(unknown, |peer| peer.0);
        let part = request.extensions().get::<RequestPart>().cloned();
        let waits_for_owner = request.extensions().get::<FailFast>().is_none();
        let (mut parts, body) = request.into_parts();
        forwarded::remove(&mut parts.headers);
        let repetition = match part {
            // To peek, or to register an executor again, has no effect the second time.
            Some(_) => Repetition::Safe,
            None => Repetition::of(&parts.method, parts.uri.path(), &parts.headers),
        };
        Self {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            facts: ForwardedRequest { client, locality },
            partition,
            part,
            waits_for_owner,
            body: RepeatableBody::new(body),
            repetition,
        }
    }

    /// True if the request may be sent, or sent again, where `is_untouched` says that no host has begun with it.
    pub(super) fn may_be_sent(&self, is_untouched: bool) -> bool {
        self.waits_for_owner && self.body.is_whole() && (is_untouched || self.repetition != Repetition::Never)
    }

    /// True if the answer is a stream, and the request again, with `Last-Event-ID`, is the rest of it.
    pub(super) fn is_resumable(&self, answer: &response::Parts) -> bool {
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
    pub(super) fn for_this_host(&self, last_event_id: Option<&str>) -> Option<Request> {
        let mut request = Request::new(self.body.attempt()?);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        set_last_event_id(request.headers_mut(), last_event_id);
        request.extensions_mut().insert(Peer(self.facts.client));
        if let Some(part) = &self.part {
            request.extensions_mut().insert(part.clone());
        }
        Some(request)
    }

    /// The request for another host. `None` where its body is gone.
    ///
    /// # Errors
    /// Fails for a request that has no path, which no route takes.
    pub(super) fn for_host(&self, host: &str, last_event_id: Option<&str>) -> Result<Option<Request>, Problem> {
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
        forwarded::set_partition(headers, self.partition);
        if let Some(part) = &self.part {
            part.write(headers);
        }
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

pub(super) fn uri_at(host: &str, path: &str) -> Result<Uri, axum::http::Error> {
    let mut parts = uri::Parts::default();
    parts.scheme = Some(uri::Scheme::HTTP);
    parts.authority = Some(host.parse()?);
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// Leaves out what is between two neighbours, also what `Connection` names as such.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
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

#[cfg(test)]
mod tests {
    use axum::body::Body;

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
        ClientRequest::new(&config, Ipv4Addr::LOCALHOST.into(), 3, request)
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
            ("agent-host-partition", "3"),
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
