//! Scripted HTTP servers.

use serde_json::Value;

use super::TestHost;
use crate::contract::{ErrorCode, HttpRequest};
use crate::error::ApiError;

/// Scripted HTTP response. A text or a JSON value is a response with status 200; an [`ApiError`] is the error of the host
/// if no server was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpReply {
    pub(super) refused: Option<ApiError>,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) chunks: Vec<Result<Vec<u8>, ApiError>>,
}

impl HttpReply {
    /// Creates a response without a body.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { refused: None, status, headers: Vec::new(), chunks: Vec::new() }
    }

    /// Creates a response with a body that arrives in these parts.
    #[must_use]
    pub fn chunks<C: Into<Vec<u8>>>(chunks: impl IntoIterator<Item = C>) -> Self {
        // An empty part would mark the end of the body.
        let chunks = chunks.into_iter().map(Into::into).filter(|chunk: &Vec<u8>| !chunk.is_empty()).map(Ok).collect();
        Self { chunks, ..Self::status(200) }
    }

    /// Replaces the body with one part.
    #[must_use]
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { chunks: Self::chunks([body.into()]).chunks, ..self }
    }

    /// Adds a header. The name is converted to lower case, as in the host.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_lowercase(), value.to_owned()));
        self
    }

    /// Adds an error after the parts: a connection that breaks.
    #[must_use]
    pub fn then_fails(mut self, error: ApiError) -> Self {
        self.chunks.push(Err(error));
        self
    }
}

impl From<&str> for HttpReply {
    fn from(text: &str) -> Self {
        Self::status(200).body(text)
    }
}

impl From<String> for HttpReply {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Value> for HttpReply {
    fn from(value: Value) -> Self {
        Self::status(200).header("content-type", "application/json").body(value.to_string())
    }
}

impl From<ApiError> for HttpReply {
    fn from(error: ApiError) -> Self {
        Self { refused: Some(error), ..Self::status(0) }
    }
}

/// HTTP servers.
impl TestHost {
    /// Sets the response to requests with this method (`*` for any) and this URL; a URL that ends with `*` matches all
    /// URLs with this prefix. The manifest must name the host. A request without a script is not granted: `unauthorized`.
    ///
    /// The function receives the request of the runner: a secret is still a placeholder.
    pub fn http<R: Into<HttpReply>>(
        mut self,
        method: &str,
        url: &str,
        mut answer: impl FnMut(&HttpRequest) -> R + 'static,
    ) -> Self {
        let answer = Box::new(move |request: &HttpRequest| answer(request).into());
        self.host.beyond.servers.push(Server { method: method.to_owned(), url: url.to_owned(), answer });
        self
    }
}

pub(super) struct Server {
    method: String,
    url: String,
    pub(super) answer: Box<dyn FnMut(&HttpRequest) -> HttpReply>,
}

impl Server {
    pub(super) fn answers(&self, request: &HttpRequest) -> bool {
        let method = self.method == "*" || self.method == request.method;
        method
            && match self.url.strip_suffix('*') {
                Some(beginning) => request.url.starts_with(beginning),
                None => self.url == request.url,
            }
    }
}

/// Returns host and port of a request. Fails if the host would not send the request.
pub(super) fn destination(request: &HttpRequest) -> Result<(String, u16), ApiError> {
    let invalid = |message: &str| Err(ApiError::new(ErrorCode::InvalidArgument, format!("{message}: {}", request.url)));
    let (port, rest) = match (request.url.strip_prefix("https://"), request.url.strip_prefix("http://")) {
        (Some(rest), _) => (443, rest),
        (_, Some(rest)) => (80, rest),
        _ => return invalid("a URL begins with `https://` or `http://`"),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || authority.contains('@') {
        return invalid("a URL names a host, and no user");
    }
    let broken = |text: &str| text.contains(['\r', '\n', '\0']);
    if request.headers.iter().any(|(name, value)| name.is_empty() || broken(name) || broken(value)) {
        return Err(ApiError::new(ErrorCode::InvalidArgument, "a header has a line end in it, or no name"));
    }
    // `[::1]:80` has colons before its port too.
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) => Ok((host.to_lowercase(), port)),
            Err(_) => invalid("the port is no number"),
        },
        _ => Ok((authority.to_lowercase(), port)),
    }
}

/// Returns true if `HOST[:PORT]` of a manifest matches this host and port.
pub(super) fn names(pattern: &str, host: &str, port: u16) -> bool {
    let (name, ports) = match pattern.rsplit_once(':') {
        Some((name, ports)) if !ports.ends_with(']') => (name, ports),
        _ => (pattern, "443"),
    };
    let host_fits = name == "*"
        || name.eq_ignore_ascii_case(host)
        || name.strip_prefix('*').is_some_and(|below| below.starts_with('.') && host.ends_with(&below.to_lowercase()));
    host_fits && (ports == "*" || ports == port.to_string())
}
