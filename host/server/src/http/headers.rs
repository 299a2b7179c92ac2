//! Headers that the standard list has not, or that several routes read.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::problem::{Problem, ProblemCode};

pub(crate) const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// `true` on the answer to a request that was done before.
pub(crate) const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The place of a stream that broke off, sent by clients that connect again.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The version of MCP that a client speaks.
pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The session of MCP that a request belongs to.
pub(crate) const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Names a request, for who looks for it in a log.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The longest `Idempotency-Key`: a UUID has 36 characters and a digest 64, and keys are kept in an index of the ledger.
pub(crate) const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

/// `Last-Event-ID`. The header takes precedence over the query: a browser sends it when it reconnects to the same address.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Problem::new(ProblemCode::InvalidCursor, "`Last-Event-ID` is not an id that this host gave")),
    }
}

/// The token of `Authorization: Bearer TOKEN` (RFC 6750).
pub(crate) fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// `Content-Length`, where it is a number.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// True if the client has this content already (`If-None-Match`, compared weakly).
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag))
}
