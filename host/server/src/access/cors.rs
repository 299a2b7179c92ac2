//! Pages of other origins that may use the API from a browser (CORS, the Fetch standard).

use std::time::Duration;

use agent_host_runs::Host;
use axum::http::{HeaderName, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::authentication::is_allowed_origin;
use crate::{
    http::{headers, prefer},
    langbot,
};

/// Browsers remember for so long what they may send; longer than a few minutes they do not.
const MAX_AGE: Duration = Duration::from_secs(600);

const TRACE: [HeaderName; 2] = [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];

/// The headers that pages may send and read. Cookies are never used: a key is a header.
pub(crate) fn layer(host: &Host) -> CorsLayer {
    let host = host.clone();
    let sent = [
        header::ACCEPT,
        header::AUTHORIZATION,
        header::CONTENT_DISPOSITION,
        header::CONTENT_TYPE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_RANGE,
        header::RANGE,
        headers::IDEMPOTENCY_KEY,
        prefer::PREFER,
        headers::LAST_EVENT_ID,
        headers::REQUEST_ID,
        headers::MCP_SESSION_ID,
        headers::MCP_PROTOCOL_VERSION,
        HeaderName::from_static(langbot::HEADER),
    ];
    let read = [
        header::ACCEPT_RANGES,
        header::ALLOW,
        header::CONTENT_DISPOSITION,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::ETAG,
        header::LOCATION,
        header::RETRY_AFTER,
        header::WWW_AUTHENTICATE,
        headers::IDEMPOTENCY_REPLAYED,
        prefer::PREFERENCE_APPLIED,
        headers::REQUEST_ID,
        headers::MCP_SESSION_ID,
    ];
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| is_allowed_origin(&host.config(), origin)))
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers(sent.into_iter().chain(TRACE).collect::<Vec<_>>())
        .expose_headers(read.into_iter().chain(TRACE).collect::<Vec<_>>())
        .max_age(MAX_AGE)
}
