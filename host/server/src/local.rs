//! Requests from within the process, through the same layers and routes as those of a connection.

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{HeaderName, HeaderValue, Method, Request, header},
};
use tower::ServiceExt as _;

/// A request from within the process. It carries a token like any other: the process has no rights of its own.
#[derive(Debug)]
pub struct LocalRequest<'a> {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// The bearer token.
    pub token: &'a str,
    /// Type and content of the body.
    pub body: Option<(&'a str, Bytes)>,
    /// Largest answer that is read, in bytes.
    pub max_bytes: usize,
}

/// The answer to a request from within the process.
#[derive(Debug)]
pub struct LocalAnswer {
    /// The status of HTTP.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The body.
    pub body: Bytes,
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The request cannot be one.
    #[error("the request is not one of HTTP: {0}")]
    Request(String),
    /// The answer is longer than the request allows, or broke off.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
}

/// Sends requests to a server of the same process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LocalClient {
    router: Router,
}

impl LocalClient {
    pub(crate) const fn new(router: Router) -> Self {
        Self { router }
    }

    /// Sends a request and waits for the whole answer. A future that is dropped is a client that has gone.
    ///
    /// # Errors
    /// Fails if the request cannot be one of HTTP, or the answer is too long.
    pub async fn send(&self, request: LocalRequest<'_>) -> Result<LocalAnswer, LocalError> {
        let LocalRequest { method, path, token, body, max_bytes } = request;
        let (media_type, body) = body.map_or((None, Body::empty()), |(media_type, body)| (Some(media_type), Body::from(body)));
        let refused = |error: axum::http::Error| LocalError::Request(error.to_string());
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| LocalError::Request(error.to_string()));
        let mut request = Request::builder().method(method).uri(path).body(body).map_err(refused)?;
        let mut put = |name: HeaderName, value: HeaderValue| drop(request.headers_mut().insert(name, value));
        put(header::AUTHORIZATION, value(&format!("Bearer {token}"))?);
        if let Some(media_type) = media_type {
            put(header::CONTENT_TYPE, value(media_type)?);
        }
        // The error of a router is infallible.
        let response = self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), max_bytes).await.map_err(|error| LocalError::Answer(error.to_string()))?;
        Ok(LocalAnswer { status, retry_after, body })
    }
}
