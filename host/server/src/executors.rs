//! Executors: they register, say that they live, and hear what is new.

use std::{convert::Infallible, time::Duration};

use agent_host_protocol::{Page, PrincipalKind, Scope};
use agent_host_runs::{Executor, Registration};
use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::StreamExt;
use serde::Serialize;

use crate::{
    app::{App, json},
    body,
    caller::Caller,
    extract::Path,
    openapi::refusals,
    problem::{Problem, ProblemCode},
    query::Query,
};

/// What an executor says of itself is small.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Proxies close what is silent for 30 seconds or more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

refusals!(RegisterRefusals = [JSON, WRITE] + [Conflict]);
refusals!(ExecutorRefusals = [NotFound]);
refusals!(DeregisterRefusals = [WRITE] + [NotFound]);

/// An executor that has registered.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Registered {
    #[serde(flatten)]
    executor: Executor,
    /// What proves it, sent as `Authorization: Bearer`. It is shown this once.
    credential: String,
}

/// Registers an executor
///
/// Its credential is good for claiming runs and for nothing else. It sees the workspace of the key that registers it.
#[utoipa::path(post, path = "/api/v1/executors", tag = "queue", security(("bearer" = ["runs:execute"])),
    request_body = Registration,
    responses(
        (status = 201, description = "The executor, with its credential.", body = Registered,
            headers(("Location" = String, description = "The executor."))),
        RegisterRefusals,
    ))]
pub(crate) async fn register(
    State(app): State<App>,
    caller: Caller,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsExecute)?;
    query.finish()?;
    if matches!(caller.0.kind, PrincipalKind::Executor(_)) {
        return Err(Problem::new(
            ProblemCode::Forbidden,
            "an executor does not register others: use an API key with the scope `runs:execute`",
        ));
    }
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let registration: Registration = body::parse(&body::read(body, MAX_BODY_BYTES).await?)?;
    let (executor, credential) = app.host.register_executor(registration, caller.0.workspace).await?;
    let location = HeaderValue::try_from(format!("/api/v1/executors/{}", executor.executor_id));
    let mut response = json(StatusCode::CREATED, &Registered { executor, credential });
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

refusals!(ListRefusals = []);

/// Lists executors
///
/// Whether each is there is the host's own finding.
#[utoipa::path(get, path = "/api/v1/executors", tag = "queue", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "All in one page, in the order in which they came.", body = Page<Executor>), ListRefusals))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    let mut items = app.host.executors();
    items.retain(|executor| caller.0.sees(executor.workspace.as_deref()));
    Ok(json(StatusCode::OK, &Page { items, next_cursor: None, prev_cursor: None, has_more: false }))
}

/// An executor that the caller sees: itself, or one of its workspace.
fn seen(app: &App, caller: &Caller, id: &str, scope: Scope) -> Result<Executor, Problem> {
    let is_another = !matches!(&caller.0.kind, PrincipalKind::Executor(own) if own == id);
    if is_another {
        // Before it is looked for: what there is, is not for those who may not ask.
        caller.may(scope)?;
    }
    let executor = app.host.executor(id)?;
    let sees = match &caller.0.kind {
        PrincipalKind::Executor(_) => !is_another,
        _ => caller.0.sees(executor.workspace.as_deref()),
    };
    if sees { Ok(executor) } else { Err(Problem::not_found(format!("there is no executor `{}`", executor.executor_id))) }
}

/// Shows an executor
#[utoipa::path(get, path = "/api/v1/executors/{id}", tag = "queue", security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 200, description = "The executor.", body = Executor), ExecutorRefusals))]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    Ok(json(StatusCode::OK, &seen(&app, &caller, &id, Scope::RunsRead)?))
}

/// Says that an executor lives
///
/// Every request with its credential or with the token of one of its claims says the same.
#[utoipa::path(post, path = "/api/v1/executors/{id}/heartbeat", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 200, description = "The executor, with what it holds.", body = Executor), ExecutorRefusals))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    seen(&app, &caller, &id, Scope::RunsExecute)?;
    Ok(json(StatusCode::OK, &app.host.heartbeat(&id)?))
}

/// Deregisters an executor
///
/// What it holds goes back to the queue, or fails, as the policy of each run says; its credential is no longer good.
#[utoipa::path(delete, path = "/api/v1/executors/{id}", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 204, description = "It is gone."), DeregisterRefusals))]
pub(crate) async fn deregister(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    seen(&app, &caller, &id, Scope::RunsExecute)?;
    app.host.deregister_executor(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Follows what is new for an executor
///
/// `run.cancel_requested` and `run.claim_lost`, as they come. What was missed it hears with its next request for that run.
#[utoipa::path(get, path = "/api/v1/executors/{id}/events", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 200, description = "News, without end.", body = String, content_type = "text/event-stream"), ExecutorRefusals))]
pub(crate) async fn news(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    seen(&app, &caller, &id, Scope::RunsExecute)?;
    let place = app.subscribe()?;
    let news = app.host.executor_news(&id)?;
    let stream = news
        .map(|news| Event::default().event("news").json_data(&news).unwrap_or_default())
        .take_until(app.closing.clone().cancelled_owned())
        .map(move |event| {
            // Held for as long as the stream is.
            let _ = &place;
            Ok::<_, Infallible>(event)
        });
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}
