//! Requests to the outside.

use agent_host_protocol::http::HttpRequest;

use crate::bindings::http as wh;

/// As the guest wrote it: whoever sends it says what is wrong with it.
pub(crate) fn http_request(request: wh::Request) -> HttpRequest {
    let wh::Request { method, url, headers, body, timeout_ms } = request;
    HttpRequest { method, url, headers, body, timeout_ms }
}
