//! `http`, and `wasi:http`: the two ways to the outside, and one gate behind both.

use agent_host_protocol::{ApiError, http::HttpRequest};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;

use crate::handles::HttpResponse;

/// `http`, and what is under `wasi:http/outgoing-handler`.
#[async_trait]
pub trait HttpCalls: Send {
    /// `http.send`: returns when the beginning of the response is there.
    async fn http_send(&mut self, request: HttpRequest) -> Result<Box<dyn HttpResponse>, ApiError>;

    /// `wasi:http/outgoing-handler.handle`. The guest goes on while the request is on its way, so the future
    /// outlives the call; dropping it ends the request. Runs of a component with `wasi:http` are not journaled.
    ///
    /// `timeout` is how long it may take until the last byte is read; nothing is as long as the host allows. An error of
    /// a body that is an [`ApiError`] is told to the guest as one of the call is.
    fn http_outgoing(
        &mut self,
        request: http::Request<HttpBody>,
    ) -> BoxFuture<'static, Result<http::Response<HttpBody>, ApiError>>;
}

/// A body that arrives, or leaves, in pieces.
pub type HttpBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;
