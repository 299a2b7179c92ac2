//! `http`, and `wasi:http`: the two ways to the outside, and one gate behind both.

use agent_host_protocol::{ApiError, http::HttpRequest};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;

use crate::handles::HttpResponse;

/// `http`, and what is under `wasi:http/outgoing-handler`.
pub trait HttpCalls: Send {
    /// `http.send`: returns when the beginning of the response is there.
    fn http_send(&mut self, request: HttpRequest) -> BoxFuture<'_, Result<Box<dyn HttpResponse>, ApiError>>;

    /// `wasi:http/outgoing-handler.handle`. The guest continues while the request is open, so the future outlives the call;
    /// dropping it ends the request. Runs of a component with `wasi:http` are not journaled.
    ///
    /// `timeout` is the time limit until the last byte is read; `None` for the limit of the host. An [`ApiError`] of a body
    /// reaches the guest like an error of the call.
    fn http_outgoing(
        &mut self,
        request: http::Request<HttpBody>,
    ) -> BoxFuture<'static, Result<http::Response<HttpBody>, ApiError>>;
}

/// A body that arrives, or leaves, in pieces.
pub type HttpBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;
