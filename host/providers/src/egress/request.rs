//! The checked form of a guest's request: an allowed target, and allowed headers.

use agent_host_protocol::{ApiError, hosts};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST},
};
use url::{Host, Url};

use super::{
    AllowedTargets, Inner,
    failure::{Category, address_not_allowed, needs_tls},
    secrets::{SentSecrets, has_placeholder},
};
use crate::trace;

/// The longest URL.
const MAX_URL: usize = 8 << 10;
/// The longest method. The longest that is registered has 17 letters.
const MAX_METHOD: usize = 32;
/// Headers of a request.
const MAX_HEADERS: usize = 100;
/// Names and values of the headers of a request, in bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// Headers that belong to the connection. `proxy-*` is refused too.
const CONNECTION_HEADERS: [&str; 9] =
    ["host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"];
/// Headers of the body, which goes where a redirect makes a GET of a request.
const BODY_HEADERS: [&str; 5] = ["content-type", "content-encoding", "content-language", "content-location", "digest"];

/// The target of a request.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) url: Url,
    /// As the URL has it; IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        if text.len() > MAX_URL {
            return Err(Category::InvalidRequest.error(format!("the URL has more than {MAX_URL} bytes")));
        }
        let url = Url::parse(text).map_err(|error| Category::InvalidRequest.error(format!("the URL cannot be read: {error}")))?;
        Self::new(url)
    }

    fn new(mut url: Url) -> Result<Self, ApiError> {
        let refuse = |why: &str| Err(Category::InvalidRequest.error(why));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("the URL must begin with http:// or https://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("the URL has user information: send an `Authorization` header, with `{{secret:NAME}}`");
        }
        url.set_fragment(None);
        if url.as_str().len() > MAX_URL {
            return refuse("the URL is too long");
        }
        match (url.host_str().map(str::to_owned), url.port_or_known_default()) {
            (Some(host), Some(port)) if port > 0 => Ok(Self { url, host, port }),
            _ => refuse("the URL names no host, or port 0"),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    fn is_same_origin(&self, other: &Self) -> bool {
        self.url.origin() == other.url.origin()
    }

    fn address(&self) -> Option<std::net::IpAddr> {
        match self.url.host()? {
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
            Host::Domain(_) => None,
        }
    }
}

/// One request of a chain of redirects, with placeholders for its secrets.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) headers: Vec<(HeaderName, Vec<u8>)>,
    /// All of it; empty where it is streamed.
    pub(super) body: Bytes,
}

/// The request that is sent.
#[derive(Debug)]
pub(super) struct OutgoingRequest {
    pub(super) headers: HeaderMap,
    /// The secrets in it.
    pub(super) sent: SentSecrets,
}

/// The method of a request.
pub(super) fn method(text: &str) -> Result<Method, ApiError> {
    let method = Method::from_bytes(text.as_bytes())
        .ok()
        .filter(|_| text.len() <= MAX_METHOD)
        .ok_or_else(|| Category::InvalidRequest.error("the method is no method of HTTP, such as `GET`"))?;
    let upper = text.to_ascii_uppercase();
    if matches!(upper.as_str(), "CONNECT" | "TRACE") {
        return Err(Category::InvalidRequest.error(format!("requests with {upper} are not sent")));
    }
    Ok(method)
}

/// The author of a request, who decides which headers of the connection are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The contract's `http`, where the host makes all of them.
    Contract,
    /// A library over wasi:http, which sets `host` and `content-length` itself. Both are checked.
    Library,
}

/// The headers of a request.
pub(super) fn headers<'a>(
    raw: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    target: &Target,
    speaker: Speaker,
) -> Result<Vec<(HeaderName, Vec<u8>)>, ApiError> {
    let refuse = |why: String| Err(Category::InvalidRequest.error(why));
    let (mut headers, mut bytes) = (Vec::new(), 0_usize);
    for (name, value) in raw {
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            let name: String = name.chars().take(64).collect();
            return refuse(format!("\"{}\" is no name of a header", name.escape_debug()));
        };
        let name = parsed;
        if HeaderValue::from_bytes(value).is_err() {
            return refuse(format!("the value of the header `{name}` has control characters, such as line breaks"));
        }
        if speaker == Speaker::Library && name == HOST {
            if !is_authority(value, target) {
                return refuse("the header `host` is not the host of the URL".into());
            }
            continue;
        }
        let is_accepted = speaker == Speaker::Library && name == CONTENT_LENGTH;
        if !is_accepted && (CONNECTION_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("proxy-")) {
            return refuse(format!("the header `{name}` belongs to the host: leave it out"));
        }
        bytes += name.as_str().len() + value.len();
        headers.push((name, value.to_vec()));
    }
    if headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return refuse(format!("a request has at most {MAX_HEADERS} headers, and {MAX_HEADER_BYTES} bytes of them"));
    }
    Ok(headers)
}

fn is_authority(value: &[u8], target: &Target) -> bool {
    let Ok(value) = std::str::from_utf8(value) else { return false };
    Url::parse(&format!("{}://{value}", target.url.scheme())).is_ok_and(|url| {
        url.host_str() == Some(&target.host)
            && url.port_or_known_default() == Some(target.port)
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

impl Inner {
    /// Checks a target, as far as possible without resolving its name.
    pub(super) fn admit(&self, target: &Target, allowed: AllowedTargets<'_>) -> Result<(), ApiError> {
        let Target { host, port, .. } = target;
        if !hosts::any_matches(allowed.hosts, host, *port) {
            return Err(Category::HostNotAllowed.error(format!(
                "{host}:{port} is not among the hosts that this run may reach: manifest and binding must both allow it"
            )));
        }
        match target.address() {
            Some(address) if !self.rules.permits(address) => Err(address_not_allowed(host)),
            _ => Ok(()),
        }
    }

    /// The headers of a hop with their secrets.
    pub(super) fn fill(&self, hop: &Hop, allowed: AllowedTargets<'_>) -> Result<OutgoingRequest, ApiError> {
        let Target { host, port, .. } = &hop.target;
        let (mut headers, mut sent) = (HeaderMap::with_capacity(hop.headers.len() + 2), SentSecrets::new());
        for (name, value) in &hop.headers {
            headers.append(name.clone(), self.secrets.fill(value, host, *port, allowed, &mut sent)?);
        }
        if self.hands_on_traces && !headers.contains_key(trace::TRACEPARENT) {
            headers.extend(trace::headers());
        }
        if !sent.is_empty() {
            if !hop.target.is_encrypted()
                && hop.target.address().is_some_and(|address| !self.rules.permits_plain_secrets(address))
            {
                return Err(needs_tls(host));
            }
            // In what is compressed, a secret that comes back could not be found.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        Ok(OutgoingRequest { headers, sent })
    }
}

impl Hop {
    /// The next hop, where a response with this status says that it is at `location`.
    pub(super) fn follow(self, status: StatusCode, location: &[u8]) -> Result<Self, ApiError> {
        let refuse = |why: &str| Err(Category::RedirectNotAllowed.error(format!("{} redirects to {why}", self.target.host)));
        let url = std::str::from_utf8(location).ok().filter(|text| text.len() <= MAX_URL);
        let Some(url) = url.and_then(|text| self.target.url.join(text).ok()) else {
            return refuse("something that is no URL");
        };
        let Ok(target) = Target::new(url) else {
            return refuse("a URL that is too long, has user information, or is not of http");
        };
        if self.target.is_encrypted() && !target.is_encrypted() {
            return refuse("http, but the request used https");
        }
        let becomes_get = match status {
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => self.method == Method::POST,
            StatusCode::SEE_OTHER => !matches!(self.method, Method::GET | Method::HEAD),
            _ => false,
        };
        let stays = self.target.is_same_origin(&target);
        let mut next = Self { target, ..self };
        if becomes_get {
            next.method = Method::GET;
            next.body = Bytes::new();
            next.headers.retain(|(name, _)| !BODY_HEADERS.contains(&name.as_str()));
        }
        if !stays {
            // Credentials are for whom they were meant. Once gone, they do not come back.
            next.headers.retain(|(name, value)| *name != AUTHORIZATION && *name != COOKIE && !has_placeholder(value));
        }
        Ok(next)
    }
}
