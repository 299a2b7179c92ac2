//! Requests to the outside.

use agent_host_protocol::http::HttpRequest;

use crate::bindings::http as wh;

/// The request as the guest wrote it; the sender checks it.
pub(crate) fn http_request(request: wh::Request) -> HttpRequest {
    let wh::Request { method, url, headers, body, timeout_ms } = request;
    HttpRequest { method, url, headers, body, timeout_ms }
}
