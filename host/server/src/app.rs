//! What every request has at hand, and the table of routes.

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_runs::Host;
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    actions, artifacts, events, health,
    problem::{Problem, ProblemCode},
    replay, runners, runs,
};

/// Cheap to clone: each request has its own.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    /// Fires when the server goes down: streams end, and requests that wait answer at once.
    pub(crate) closing: CancellationToken,
}

impl App {
    /// Reads something of unknown size from the ledger, off the threads that serve.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Problem> {
        let host = self.host.clone();
        match tokio::task::spawn_blocking(move || read(host.ledger())).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(Problem::internal(error)),
        }
    }
}

/// Every path of the server.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/api/v1/events", post(events::accept))
        .route("/api/v1/events/{id}", get(events::show))
        .route("/api/v1/runners", get(runners::list))
        .route("/api/v1/runs", get(runs::list))
        .route("/api/v1/runs/{id}", get(runs::show))
        .route("/api/v1/runs/{id}/context", get(runs::context))
        .route("/api/v1/runs/{id}/grant", get(runs::grant))
        .route("/api/v1/runs/{id}/audit", get(runs::audit))
        .route("/api/v1/runs/{id}/events", get(runs::events))
        .route("/api/v1/runs/{id}/journal", get(replay::journal))
        .route("/api/v1/runs/{id}/recording", get(replay::recording))
        .route("/api/v1/runs/{id}/fork", post(replay::fork))
        .route("/api/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/api/v1/runs/{id}/actions", get(actions::of_run))
        .route("/api/v1/actions", get(actions::open))
        .route("/api/v1/actions/{id}", get(actions::show))
        .route("/api/v1/actions/{id}/respond", post(actions::respond))
        .route("/api/v1/artifacts", post(artifacts::upload))
        .route("/api/v1/artifacts/{id}", get(artifacts::content))
        .route("/api/v1/artifacts/{id}/metadata", get(artifacts::metadata))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn unknown_path(uri: Uri) -> Problem {
    Problem::not_found(format!("there is nothing at {}; the API is under /api/v1, such as /api/v1/runs", shown(uri.path())))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        ProblemCode::MethodNotAllowed,
        format!("{} does not take {}; the header `Allow` says what it takes", shown(uri.path()), shown(method.as_str())),
    )
}

/// A foreign text, short enough for a message. Paths and methods have no control characters.
fn shown(text: &str) -> String {
    const MAX: usize = 200;
    let mut short: String = text.chars().take(MAX).collect();
    if text.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => raw_json(status, body),
        Err(error) => Problem::internal(error).into_response(),
    }
}

/// An answer that is JSON already.
pub(crate) fn raw_json(status: StatusCode, body: impl Into<Body>) -> Response {
    let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Runs change from one moment to the next.
    let cache_control = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (status, [content_type, cache_control], body.into()).into_response()
}
