//! Transport to the host: requests of the executor API, over HTTP or within the process.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use serde_json::Value;

/// A request to the host.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// Path and query, from `/api/v1/` on.
    pub path: &'a str,
    /// The bearer token: the credential of the executor, or the lease token of a claim.
    pub token: &'a str,
    /// Type and content of the body.
    pub body: Option<(&'a str, Bytes)>,
    /// Largest answer that is read, in bytes. A larger one is an error.
    pub max_bytes: usize,
}

/// The answer of the host.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The body.
    pub body: Bytes,
}

/// A request that was not answered. The same request may be sent again.
#[derive(Debug, thiserror::Error)]
#[error("the host did not answer: {0}")]
pub struct TransportError(pub String);

/// An executor that has registered.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Registered {
    /// Id of the executor.
    pub executor_id: String,
    /// Credential of the executor.
    pub credential: String,
}

/// A transport to the host.
pub trait Transport: Send + Sync + 'static {
    /// Registers an executor; `registration` is the body of `POST /api/v1/executors`, with the manifest of the
    /// runner, for a host that does not have it.
    ///
    /// # Errors
    /// Fails if the host does not answer or refuses.
    fn register(&self, registration: Value) -> BoxFuture<'_, Result<Registered, TransportError>>;

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    /// Fails if the host does not answer.
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Answer, TransportError>>;

    /// The address of the host as processes of this machine reach it, such as `http://127.0.0.1:7070`.
    fn base_url(&self) -> &str;
}
