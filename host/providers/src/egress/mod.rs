//! The one way out for guests: every request of a guest to the outside goes through an [`Egress`], whether it comes by the
//! contract's `http` or by `wasi:http`.
//!
//! The module checks a request once more, sends it, and bounds it. A request goes to a host and port that [`AllowedTargets`]
//! names, at an address that is public or that the operator allows; the address is checked after the resolution of the
//! name, and the connection uses the checked address. Redirects are followed here, each hop checked like the first. Secrets
//! are inserted into headers here (`{{secret:NAME}}`), for their hosts only, and removed from every response. The grant of
//! hosts is decided elsewhere; there is no cache, no cookie jar, no proxy.
//!
//! Beside `code`, each error has `details.code`:
//!
//! | `details.code` | `code` | retryable | |
//! |---|---|---|---|
//! | `invalid_request` | `invalid_argument` | no | The method, the URL or a header is none that is sent. |
//! | `host_not_allowed` | `unauthorized` | no | The host or the port is not allowed for this run. |
//! | `address_not_allowed` | `unauthorized` | no | The host has only addresses that are not public. |
//! | `redirect_not_allowed` | `unauthorized` | no | A redirect leads where the run may not go, or from https to http. |
//! | `too_many_redirects` | `runtime_error` | no | More than `egress.max_redirects`. |
//! | `secret_not_granted` | `unauthorized` | no | A header names a secret that the run may not use. |
//! | `secret_not_for_host` | `unauthorized` | no | The secret is not for this host. |
//! | `secret_needs_tls` | `unauthorized` | no | The secret would be sent in the open. |
//! | `secret_missing` | `runtime_error` | no | The secret is granted, and the operator has not provided it. |
//! | `request_too_large` | `payload_too_large` | no | The body of the request is too long. |
//! | `request_body_failed` | `runtime_error` | no | The guest did not send its body to the end. |
//! | `dns_failed` | `runtime_error` | yes | The name has no address. |
//! | `connect_failed` | `runtime_error` | yes | Nobody answers at the address. |
//! | `tls_failed` | `runtime_error` | yes | No secure connection: a certificate is not valid. |
//! | `connection_closed` | `runtime_error` | yes | The connection ended before the response. |
//! | `http_timeout` | `deadline_exceeded` | yes | The response was not at its end in time. |
//! | `invalid_response` | `runtime_error` | no | What came is no HTTP. |
//! | `response_head_too_large` | `runtime_error` | no | Too many or too long headers. |
//! | `response_too_large` | `payload_too_large` | no | The body of the response is too long. |
//! | `response_encoded` | `runtime_error` | no | A response to a secret is compressed, so it cannot be searched. |

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::AddressRules;
pub use agent_host_config::{EgressConfig, HttpSecretConfig};
use agent_host_protocol::{
    ApiError,
    http::{HttpHead, HttpRequest},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING},
};
use hyper::body::Body as _;
use reqwest::Client;
use tokio::time::timeout_at;

pub use self::body::{Body, Response};
use self::{
    body::{ResponseBody, State, Upload},
    failure::{Category, head_too_large, of_client, timed_out},
    request::{Hop, OutgoingRequest, Speaker, Target},
    resolve::{Lookup, Purpose, Resolver, System},
    secrets::{Secrets, SentSecrets},
};
use crate::{
    http_client,
    redact::stream::{CleanStream, Cleaner},
};

mod body;
mod failure;
mod request;
mod resolve;
mod secrets;
#[cfg(test)]
mod tests;

/// Names and values of the headers of a response, in bytes.
const MAX_RESPONSE_HEAD: usize = 64 << 10;
/// Idle connections to one host that are kept open for the next request.
const IDLE_CONNECTIONS: usize = 8;

/// The way out. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Egress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rules: Arc<AddressRules>,
    secrets: Secrets,
    max_redirects: usize,
    client: Client,
    /// A client for secrets without TLS: it connects to this machine only. The connections are its own, so none of another
    /// target is ever used.
    local: Client,
    /// True if requests carry the trace that they belong to.
    hands_on_traces: bool,
}

/// The targets of a run, and the secrets that it may use.
#[derive(Debug, Clone, Copy)]
pub struct AllowedTargets<'a> {
    /// Patterns of hosts ([`agent_host_protocol::hosts`]).
    pub hosts: &'a [String],
    /// Names of secrets.
    pub secrets: &'a [String],
}

/// An [`AllowedTargets`] that can be kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedOwned {
    /// Patterns of hosts ([`agent_host_protocol::hosts`]).
    pub hosts: Vec<String>,
    /// Names of secrets.
    pub secrets: Vec<String>,
}

impl AllowedOwned {
    /// The same, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> AllowedTargets<'_> {
        AllowedTargets { hosts: &self.hosts, secrets: &self.secrets }
    }
}

impl From<AllowedTargets<'_>> for AllowedOwned {
    fn from(allowed: AllowedTargets<'_>) -> Self {
        Self { hosts: allowed.hosts.to_vec(), secrets: allowed.secrets.to_vec() }
    }
}

/// Time and size limits of a request and its response.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Deadline of the last byte of the response.
    pub deadline: Instant,
    /// Bytes of the body of the request.
    pub request_bytes: usize,
    /// Bytes of the body of the response, as they come over the wire.
    pub response_bytes: u64,
}

impl Egress {
    /// The way out with these rules. A secret that cannot be read is a [problem](Self::problems) and no error: only the
    /// requests that need it fail.
    ///
    /// # Errors
    /// Fails with the problem of the configuration.
    pub fn open(config: &EgressConfig, secrets: &[HttpSecretConfig]) -> Result<Self, String> {
        Self::build(config, secrets, Arc::new(System), Vec::new())
    }

    fn build(
        config: &EgressConfig,
        secrets: &[HttpSecretConfig],
        lookup: Arc<dyn Lookup>,
        roots: Vec<reqwest::Certificate>,
    ) -> Result<Self, String> {
        config.check()?;
        let rules = Arc::new(AddressRules::new(&config.allow_addresses)?);
        let client = |purpose| {
            let resolver = Resolver { lookup: Arc::clone(&lookup), rules: Arc::clone(&rules), purpose };
            // A proxy would connect to addresses that nobody checked; redirects are judged here, and retries are for the
            // guest to decide.
            let client = http_client::builder()
                .dns_resolver(resolver)
                .http1_only()
                .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
                .pool_max_idle_per_host(IDLE_CONNECTIONS);
            let client = if roots.is_empty() { client } else { client.tls_certs_only(roots.clone()) };
            client.build().map_err(|error| format!("the HTTP client cannot be set up: {error}"))
        };
        Ok(Self(Arc::new(Inner {
            secrets: Secrets::open(secrets)?,
            max_redirects: config.max_redirects,
            client: client(Purpose::Plain)?,
            local: client(Purpose::UnencryptedSecrets)?,
            rules,
            hands_on_traces: false,
        })))
    }

    /// Lets requests carry the trace that they belong to, where their runs say nothing of one. To be called before it is
    /// shared.
    #[must_use]
    pub fn handing_on_traces(mut self, hands_on: bool) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.hands_on_traces = hands_on;
        }
        self
    }

    /// Problems for the operator: secrets that cannot be read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.0.secrets.problems.clone()
    }

    /// The names of all secrets that are configured, there or not.
    #[must_use]
    pub fn secret_names(&self) -> Vec<String> {
        self.0.secrets.names()
    }

    /// Judges a request without sending it: method, URL, host and port, headers, secrets. An address that the URL itself
    /// names is judged too; those of a name are judged when it is resolved.
    ///
    /// # Errors
    /// As [`send`](Self::send) would refuse it.
    pub fn check(&self, request: &HttpRequest, allowed: &AllowedTargets<'_>) -> Result<(), ApiError> {
        let hop = first(request)?;
        self.0.admit(&hop.target, *allowed)?;
        self.0.fill(&hop, *allowed).map(|_| ())
    }

    /// Sends a request, follows its redirects, and gives the response when its head is there.
    ///
    /// # Errors
    /// Fails as the table of the [module](self) says.
    pub async fn send(&self, request: &HttpRequest, allowed: &AllowedTargets<'_>, bounds: &Bounds) -> Result<Response, ApiError> {
        let mut bounds = *bounds;
        if let Some(deadline) = request.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms.into()))) {
            bounds.deadline = bounds.deadline.min(deadline);
        }
        let mut hop = first(request)?;
        if request.body.len() > bounds.request_bytes {
            let limit = u64::try_from(bounds.request_bytes).unwrap_or(u64::MAX);
            return Err(Category::RequestTooLarge.too_many_bytes("the body of the request", limit));
        }
        hop.body = Bytes::copy_from_slice(&request.body);
        self.0.admit(&hop.target, *allowed)?;
        let (mut sent, mut followed) = (SentSecrets::new(), 0);
        loop {
            let outgoing = self.0.fill(&hop, *allowed)?;
            sent.extend(&outgoing.sent);
            let body = Some(hop.body.clone()).filter(|body| !body.is_empty()).map(reqwest::Body::from);
            let arrived = self.0.exchange(&hop, outgoing, body, &sent, &bounds, Upload::default()).await?;
            let Some(location) = arrived.location() else {
                let head = HttpHead { status: arrived.status.as_u16(), headers: lossy(&arrived.headers) };
                return Ok(Response::new(head, arrived.body));
            };
            if followed == self.0.max_redirects {
                return Err(Category::TooManyRedirects.error(format!("more than {followed} redirects, which is the limit")));
            }
            followed += 1;
            let from = hop.target.host.clone();
            hop = hop.follow(arrived.status, location.as_bytes())?;
            self.0.admit(&hop.target, *allowed).map_err(|error| redirected(error, &from))?;
        }
    }

    /// Fetches a file for the host itself: a GET without secrets, to these hosts, its redirects too. The response has the
    /// status of the last of them, whatever it is.
    ///
    /// # Errors
    /// Fails as the table of the [module](self) says.
    pub async fn fetch(&self, url: &str, hosts: &[String], max_bytes: u64, deadline: Instant) -> Result<Response, ApiError> {
        // An encoded body would be stored as if it were the file.
        let headers = [("accept", "*/*"), ("accept-encoding", "identity")];
        let request = HttpRequest {
            method: Method::GET.to_string(),
            url: url.to_owned(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            body: Vec::new(),
            timeout_ms: None,
        };
        let bounds = Bounds { deadline, request_bytes: 0, response_bytes: max_bytes };
        self.send(&request, &AllowedTargets { hosts, secrets: &[] }, &bounds).await
    }

    /// Sends a request whose body comes in pieces, and gives the response as it comes, for `wasi:http`. The rules are the
    /// same, and placeholders of secrets work. A redirect is given back: the library of the guest follows it, with a
    /// request that is judged like this one. Trailers are left out.
    ///
    /// # Errors
    /// Fails as the table of the [module](self) says, for errors of the response's body too.
    pub async fn send_streaming(
        &self,
        request: http::Request<Body>,
        allowed: &AllowedTargets<'_>,
        bounds: &Bounds,
    ) -> Result<http::Response<Body>, ApiError> {
        let (parts, body) = request.into_parts();
        let target = Target::parse(&parts.uri.to_string())?;
        let raw_headers = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let headers = request::headers(raw_headers, &target, Speaker::Library)?;
        let method = request::method(parts.method.as_str())?;
        self.0.admit(&target, *allowed)?;
        let hop = Hop { method, target, headers, body: Bytes::new() };
        let mut outgoing = self.0.fill(&hop, *allowed)?;
        let length = content_length(&outgoing.headers, body.size_hint().exact())?;
        if length.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > bounds.request_bytes)) {
            let limit = u64::try_from(bounds.request_bytes).unwrap_or(u64::MAX);
            return Err(Category::RequestTooLarge.too_many_bytes("the body of the request", limit));
        }
        outgoing.headers.remove(CONTENT_LENGTH);
        let upload = Upload::default();
        let body = match length {
            Some(0) => None,
            Some(length) => {
                outgoing.headers.insert(CONTENT_LENGTH, length.into());
                Some(upload.bounded(body, bounds.request_bytes))
            }
            None => Some(upload.bounded(body, bounds.request_bytes)),
        };
        let sent = outgoing.sent.clone();
        let arrived = self.0.exchange(&hop, outgoing, body, &sent, bounds, upload).await?;
        let mut response = http::Response::new(arrived.body.into_body());
        *response.status_mut() = arrived.status;
        *response.headers_mut() = arrived.headers;
        Ok(response)
    }
}

/// A response whose head has come, without secrets.
struct ReceivedResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: ResponseBody,
}

impl ReceivedResponse {
    /// The target of a redirect. A redirect without `Location` is an ordinary answer.
    fn location(&self) -> Option<&HeaderValue> {
        let redirects = matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308);
        self.headers.get(LOCATION).filter(|_| redirects)
    }
}

impl Inner {
    /// Sends one request, and waits for the head of its response. `sent` are the secrets that went out by now, on earlier
    /// hops too.
    async fn exchange(
        &self,
        hop: &Hop,
        outgoing: OutgoingRequest,
        body: Option<reqwest::Body>,
        sent: &SentSecrets,
        bounds: &Bounds,
        upload: Upload,
    ) -> Result<ReceivedResponse, ApiError> {
        let Hop { method, target, .. } = hop;
        let OutgoingRequest { mut headers, sent: now } = outgoing;
        if body.is_none() && matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
            // Some servers refuse a request that could have a body and does not say that it has none.
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let mut request = reqwest::Request::new(method.clone(), target.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = body;
        let client = if now.is_empty() || target.is_encrypted() { &self.client } else { &self.local };
        let mut response = timeout_at(bounds.deadline.into(), client.execute(request))
            .await
            .map_err(|_| timed_out())?
            .map_err(|error| upload.error().unwrap_or_else(|| of_client(&error, &target.host)))?;
        let (status, mut headers) = (response.status(), std::mem::take(response.headers_mut()));
        if headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() > MAX_RESPONSE_HEAD {
            return Err(head_too_large());
        }
        // A server may have kept a secret from an earlier request, so what is for its host is looked for as well.
        let known = self.secrets.known_to(&target.host, target.port);
        let cleaner = self.secrets.cleaner(sent | &known)?;
        if let Some(cleaner) = &cleaner {
            if !sent.is_empty() && *method != Method::HEAD && is_encoded(&headers) {
                return Err(Category::ResponseEncoded
                    .error("the response to a request with a secret is compressed, so the secret could not be found in it"));
            }
            headers = clean(&headers, cleaner);
            if *method != Method::HEAD {
                // The length of the inserted secret differs.
                headers.remove(CONTENT_LENGTH);
            }
        }
        let body = ResponseBody {
            clean: cleaner.map(CleanStream::new),
            host: target.host.clone(),
            deadline: bounds.deadline,
            limit: bounds.response_bytes,
            came: 0,
            upload,
            state: State::Open(response),
        };
        Ok(ReceivedResponse { status, headers, body })
    }
}

/// The first hop of a request.
fn first(request: &HttpRequest) -> Result<Hop, ApiError> {
    let method = request::method(&request.method)?;
    let target = Target::parse(&request.url)?;
    let raw_headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let headers = request::headers(raw_headers, &target, Speaker::Contract)?;
    Ok(Hop { method, target, headers, body: Bytes::new() })
}

/// A hop that may not be reached, where it is the host that is not allowed.
fn redirected(error: ApiError, from: &str) -> ApiError {
    let is_host =
        error.details.as_ref().and_then(|details| details.get("code")?.as_str()) == Some(Category::HostNotAllowed.as_str());
    if is_host { Category::RedirectNotAllowed.error(format!("{from} redirects: {}", error.message)) } else { error }
}

/// The length of a body, as its headers say or as it is known.
fn content_length(headers: &HeaderMap, known: Option<u64>) -> Result<Option<u64>, ApiError> {
    let mut length = known;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let seconds = digits.and_then(|text| text.parse::<u64>().ok());
        if seconds.is_none() || length.is_some_and(|length| Some(length) != seconds) {
            return Err(Category::InvalidRequest.error("the header `content-length` is not the length of the body"));
        }
        length = seconds;
    }
    Ok(length)
}

/// True if the body is encoded, so that a secret could not be found in it.
fn is_encoded(headers: &HeaderMap) -> bool {
    let other_than = |name, plain: &str| {
        headers.get_all(name).iter().any(|value| {
            value.as_bytes().split(|byte| *byte == b',').any(|coding| {
                let coding = coding.trim_ascii();
                !coding.is_empty() && !coding.eq_ignore_ascii_case(plain.as_bytes())
            })
        })
    };
    other_than(CONTENT_ENCODING, "identity") || other_than(TRANSFER_ENCODING, "chunked")
}

/// Headers without secrets. A name that has one is left out.
fn clean(headers: &HeaderMap, cleaner: &Cleaner) -> HeaderMap {
    let mut clean = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| !cleaner.is_in_any_case(name.as_str())) {
        if let Ok(value) = HeaderValue::from_bytes(&cleaner.clean(value.as_bytes())) {
            clean.append(name.clone(), value);
        }
    }
    clean
}

/// Headers as text.
fn lossy(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
