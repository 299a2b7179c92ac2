//! Endpoints of MCP: one for each owner, with its own sessions, so that no owner reaches the session of another.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    io,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::Request,
    http::{Method, StatusCode, header},
    response::Response,
};
use http_body_util::Full;
use parking_lot::Mutex;
use rmcp::{
    ServerHandler,
    transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::http::{
    Problem, ProblemCode, body,
    headers::MCP_SESSION_ID,
    sse::{KEEP_ALIVE, NO_BUFFERING},
};

/// Sessions of one owner, and requests without a session. An agent opens one; each of its parts may open one more.
pub(crate) const MAX_SESSIONS: usize = 32;
/// A session without a message in either direction ends after this time.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// Longest text of a refusal by the transport.
const MAX_REFUSAL_BYTES: usize = 4 * 1024;

/// The place of one session, held by its server.
#[derive(Clone)]
pub(crate) struct SessionPlace {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// The endpoint of one owner.
pub(crate) struct Endpoint<S> {
    service: StreamableHttpService<S, LocalSessionManager>,
    places: Arc<Semaphore>,
    /// Cancelled when the endpoint ends: its sessions and streams end with it.
    closing: CancellationToken,
    body_bytes: usize,
}

impl<S: ServerHandler + Send + 'static> Endpoint<S> {
    /// An endpoint that makes a server for each session. `body_bytes` is the largest message.
    pub(crate) fn new(
        closing: CancellationToken,
        body_bytes: usize,
        server: impl Fn(SessionPlace) -> S + Send + Sync + 'static,
    ) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        // No empty events at the beginning of streams (MCP 2025-11-25, "priming"): clients of earlier versions take them for broken
        // JSON, and Gemini CLI then closes its session.
        sessions.session_config.sse_retry = None;
        // Names of the host and pages of other origins are judged with the sender (`access/authentication`).
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_sse_retry(None)
            .with_max_request_body_bytes(body_bytes)
            .with_cancellation_token(closing.clone());
        let places = Arc::new(Semaphore::new(MAX_SESSIONS));
        let free = Arc::clone(&places);
        let make = move || {
            let permit = Arc::clone(&free).try_acquire_owned().map_err(io::Error::other)?;
            Ok(server(SessionPlace { _permit: Arc::new(permit) }))
        };
        Self { service: StreamableHttpService::new(make, Arc::new(sessions), config), places, closing, body_bytes }
    }

    fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    fn is_unused(&self) -> bool {
        self.places.available_permits() == MAX_SESSIONS
    }

    /// Answers a request of the transport.
    pub(crate) async fn answer(&self, request: Request) -> Result<Response, Problem> {
        let (parts, sent) = request.into_parts();
        let mut content = Bytes::new();
        if parts.method == Method::POST {
            body::require_json(&parts.headers)?;
            content = body::read(sent, self.body_bytes).await?;
        }
        if self.is_full() && !parts.headers.contains_key(MCP_SESSION_ID) {
            return Err(too_many_sessions());
        }
        let answered = self.service.handle(Request::from_parts(parts, Full::new(content))).await;
        let mut response = answered.map(Body::new);
        let status = response.status();
        if status.is_success() {
            response.headers_mut().extend([NO_BUFFERING]);
            return Ok(response);
        }
        let is_json =
            response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        if is_json {
            // An error of JSON-RPC.
            return Ok(response);
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR && self.is_full() {
            return Err(too_many_sessions());
        }
        let text = to_bytes(response.into_body(), MAX_REFUSAL_BYTES).await.unwrap_or_default();
        Err(refusal(status, &String::from_utf8_lossy(&text)))
    }
}

fn too_many_sessions() -> Problem {
    let detail =
        format!("{MAX_SESSIONS} sessions are open, which is the most there may be: end one (DELETE), or use one of them");
    Problem::new(ProblemCode::TooManyStreams, detail)
}

/// A refusal of the transport, with the code of its status.
fn refusal(status: StatusCode, text: &str) -> Problem {
    let code = match status {
        StatusCode::NOT_FOUND => ProblemCode::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => ProblemCode::MethodNotAllowed,
        StatusCode::NOT_ACCEPTABLE => ProblemCode::NotAcceptable,
        StatusCode::PAYLOAD_TOO_LARGE => ProblemCode::PayloadTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ProblemCode::UnsupportedMediaType,
        status if status.is_client_error() => ProblemCode::InvalidArgument,
        _ => return Problem::internal(text),
    };
    Problem::new(code, text)
}

/// The endpoints that are in use, by their owners.
pub(crate) struct Endpoints<K, S>(Mutex<HashMap<K, Arc<Endpoint<S>>>>);

impl<K, S> Default for Endpoints<K, S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, S: ServerHandler + Send + 'static> Endpoints<K, S> {
    /// The endpoint of an owner, which `make` makes at its first request. Gives true if the endpoint is new.
    pub(crate) fn of(&self, owner: &K, make: impl FnOnce() -> Endpoint<S>) -> (Arc<Endpoint<S>>, bool) {
        match self.0.lock().entry(owner.clone()) {
            Entry::Occupied(endpoint) => (Arc::clone(endpoint.get()), false),
            Entry::Vacant(place) => (Arc::clone(place.insert(Arc::new(make()))), true),
        }
    }

    /// Ends the endpoint of an owner with its sessions.
    pub(crate) fn end(&self, owner: &K) {
        if let Some(endpoint) = self.0.lock().remove(owner) {
            endpoint.closing.cancel();
        }
    }

    /// Ends the endpoint of an owner unless a session is open; gives true if there is none any more.
    pub(crate) fn end_unused(&self, owner: &K) -> bool {
        let mut endpoints = self.0.lock();
        // A request that has found its endpoint holds it, and may open a session yet.
        let is_unused = endpoints.get(owner).is_none_or(|endpoint| endpoint.is_unused() && Arc::strong_count(endpoint) == 1);
        if is_unused && let Some(endpoint) = endpoints.remove(owner) {
            endpoint.closing.cancel();
        }
        is_unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_transport_have_a_code() {
        for (status, code) in [
            (404, ProblemCode::NotFound),
            (405, ProblemCode::MethodNotAllowed),
            (406, ProblemCode::NotAcceptable),
            (413, ProblemCode::PayloadTooLarge),
            (415, ProblemCode::UnsupportedMediaType),
            (400, ProblemCode::InvalidArgument),
            (422, ProblemCode::InvalidArgument),
            (500, ProblemCode::Internal),
        ] {
            assert_eq!(refusal(StatusCode::from_u16(status).unwrap(), "text").code(), code, "{status}");
        }
    }
}
