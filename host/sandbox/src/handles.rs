//! Resources of the contract: the object of the kernel behind each handle of a guest.

#![allow(unreachable_pub, reason = "named by the generated traits, which are public")]

use agent_host_protocol::{ApiError, http::HttpHead, message::ArtifactRef, model::ModelChunk};
use futures_util::future::BoxFuture;

/// `models.response-stream`. Dropping it ends the call.
pub trait ResponseStream: Send {
    /// `next`: waits for the next chunks and gives all that have arrived; none is the end.
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<ModelChunk>, ApiError>>;
}

/// `artifacts.reader`.
pub trait ArtifactReader: Send {
    /// `read`: at most `max_bytes`; none is the end.
    fn read(&mut self, max_bytes: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>>;
}

/// `artifacts.writer`. Dropping it forgets what was written.
pub trait ArtifactWriter: Send {
    /// `write`.
    fn write(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `finish`: keeps the content and gives the reference.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<ArtifactRef, ApiError>>;
}

/// `http.response`. Dropping it ends the request.
pub trait HttpResponse: Send {
    /// The beginning of the response; it does not change.
    fn head(&self) -> &HttpHead;

    /// `read`: at most `max_bytes`; none is the end.
    fn read(&mut self, max_bytes: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>>;
}

/// The handle of a [`ResponseStream`].
pub struct Responses(pub(crate) Box<dyn ResponseStream>);

/// The handle of an [`ArtifactReader`].
pub struct Reader(pub(crate) Box<dyn ArtifactReader>);

/// The handle of an [`ArtifactWriter`].
pub struct Writer(pub(crate) Box<dyn ArtifactWriter>);

/// The handle of an [`HttpResponse`].
pub struct Response(pub(crate) Box<dyn HttpResponse>);
