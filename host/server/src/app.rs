//! What every request has at hand, and the table of routes.

use std::{net::SocketAddr, sync::Arc};

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_runs::Host;
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    actions,
    agui::{engine::Agui, profile, routes as agui},
    artifacts, calls, chat, claims, cors, create, deliveries, door, events, executors, health, hooks, keys,
    metrics::{self, HttpMetrics},
    openapi, operations, pipeline,
    problem::{Problem, ProblemCode},
    replay, runners, runs, schedules, statistics, watch,
};

/// Cheap to clone: each request has its own.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) http: HttpMetrics,
    /// Fires when the server goes down: streams end, and requests that wait answer at once.
    pub(crate) closing: CancellationToken,
    /// Where the server listens.
    pub(crate) local_addr: SocketAddr,
    pub(crate) agui: Arc<Agui>,
    /// One permit for each stream of events that may be open.
    subscribers: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(host: Host, local_addr: SocketAddr, closing: CancellationToken) -> Self {
        let subscribers = host.config().limits.http_subscribers.min(Semaphore::MAX_PERMITS);
        Self {
            host,
            http: HttpMetrics::default(),
            closing,
            local_addr,
            agui: Arc::default(),
            subscribers: Arc::new(Semaphore::new(subscribers)),
        }
    }

    /// A place for one stream of events, held for as long as it is open.
    pub(crate) fn subscribe(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.subscribers).try_acquire_owned().map_err(|_| {
            let limit = self.host.config().limits.http_subscribers;
            let detail = format!("{limit} streams of events are open, which is the most there may be: come back in a moment");
            Problem::new(ProblemCode::TooManyStreams, detail)
        })
    }

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

/// Every route of the server, with its description: a handler without one does not compile here.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::empty())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi::document))
        .routes(routes!(metrics::show))
        .routes(routes!(events::accept))
        .routes(routes!(events::show))
        .routes(routes!(runners::list))
        .routes(routes!(runs::list, create::create))
        .routes(routes!(runs::show))
        .routes(routes!(runs::context))
        .routes(routes!(runs::grant))
        .routes(routes!(runs::audit))
        .routes(routes!(runs::events))
        .routes(routes!(replay::journal))
        .routes(routes!(replay::recording))
        .routes(routes!(replay::fork))
        .routes(routes!(runs::cancel))
        .routes(routes!(create::retry))
        .routes(routes!(create::dead_letters))
        .routes(routes!(create::requeue))
        .routes(routes!(executors::list, executors::register))
        .routes(routes!(executors::show, executors::deregister))
        .routes(routes!(executors::heartbeat))
        .routes(routes!(executors::news))
        .routes(routes!(claims::claim))
        .routes(routes!(claims::start))
        .routes(routes!(claims::renew))
        .routes(routes!(claims::release))
        .routes(routes!(claims::append))
        .routes(routes!(claims::finalize))
        .routes(routes!(calls::call))
        .routes(routes!(calls::create_artifact))
        .routes(routes!(calls::artifact))
        .routes(routes!(actions::of_run))
        .routes(routes!(actions::open))
        .routes(routes!(actions::show))
        .routes(routes!(actions::respond))
        .routes(routes!(statistics::statistics))
        .routes(routes!(operations::reload))
        .routes(routes!(operations::backup))
        .routes(routes!(artifacts::upload))
        .routes(routes!(artifacts::content, artifacts::head))
        .routes(routes!(artifacts::metadata))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(schedules::schedules))
        .routes(routes!(hooks::webhook_sources))
        .routes(routes!(hooks::hook))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::retry))
        .routes(routes!(agui::agents))
        .routes(routes!(agui::capabilities))
        .routes(routes!(agui::run))
        .routes(routes!(agui::connect))
        .routes(routes!(agui::show, agui::forget))
        .routes(routes!(agui::events))
        .routes(routes!(agui::cancel))
        .routes(routes!(profile::runs::start_agent_run))
        .routes(routes!(profile::runs::agent_run_events))
        .routes(routes!(profile::runs::cancel_agent_run))
        .routes(routes!(profile::runs::delete_agent_thread))
        .routes(routes!(profile::runs::delete_agent_session))
        .routes(routes!(profile::history::history))
        .routes(routes!(profile::attachments::upload_attachment))
        .routes(routes!(profile::attachments::sign_attachment))
        .routes(routes!(profile::attachments::attachment_content))
        .routes(routes!(pipeline::pipeline_query))
        .routes(routes!(chat::page))
        .routes(routes!(chat::file))
}

/// Every path of the server.
pub(crate) fn router(app: App) -> Router {
    let (routes, _) = routes().split_for_parts();
    let routes = routes
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), door::door))
        .layer(axum::middleware::from_fn(profile::errors::dialect))
        .layer(axum::middleware::from_fn_with_state(app.clone(), watch::request));
    // Before the door: a browser asks whether it may send a key, without one.
    let routes = if app.host.config().cors_origins.is_empty() { routes } else { routes.layer(cors::layer(&app.host)) };
    routes.with_state(app)
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
