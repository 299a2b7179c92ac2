//! Runs that are made by name, and other attempts at runs that have ended.

use agent_host_protocol::{Run, RunId, Scope};
use agent_host_runs::{CreateRun, CreatedRun, DeadLetter};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};

use crate::{
    app::{App, json},
    body,
    caller::Caller,
    extract::Id,
    idempotency,
    openapi::{PageParams, refusals},
    problem::{Problem, ProblemCode},
    query::Query,
};

refusals!(CreateRefusals = [JSON, WRITE] + [NotFound, RunnerNotFound, InvalidConfig, IdempotencyConflict, QueueFull]);
refusals!(RetryRefusals = [WRITE] + [NotFound, Conflict, IdempotencyConflict, QueueFull, InvalidArgument]);
refusals!(LetterRefusals = [InvalidCursor]);

/// Makes a run
///
/// For a binding, or for a runner whatever is bound (scope `admin`); for a new event, or for one that is there. It starts at
/// once, waits in the queue, or is left to an executor outside. It is durable when this answers.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", security(("bearer" = ["runs:control"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body gives the same run.")),
    request_body = CreateRun,
    responses(
        (status = 202, description = "The run.", body = Run, headers(
            ("Location" = String, description = "The run."),
            ("Idempotency-Replayed" = Option<String>, description = "`true` where it was made before."),
        )),
        CreateRefusals,
    ))]
pub(crate) async fn create(State(app): State<App>, caller: Caller, query: Query, request: Request) -> Result<Response, Problem> {
    caller.may(Scope::RunsControl)?;
    query.finish()?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let body = body::read(body, app.host.config().limits.http_body_bytes).await?;
    let idempotency = idempotency::of(&caller, &parts.headers, &body)?;
    let wanted: CreateRun = body::parse(&body)?;
    Ok(made(app.host.create_run(wanted, &caller.0, idempotency).await?))
}

/// Tries a run again
///
/// Another attempt at a run that has ended: a new run for the same event, on the terms of the first and no more than its
/// binding allows now. `retry_of` names the first.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", security(("bearer" = ["runs:control"])),
    params(Id<RunId>, ("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same run.")),
    responses(
        (status = 202, description = "The new run.", body = Run, headers(("Location" = String, description = "The new run."))),
        RetryRefusals,
    ))]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsControl)?;
    query.finish()?;
    caller.run(&app, id)?;
    let idempotency = of_run(&caller, "retry", id, &request)?;
    Ok(made(app.host.retry_run(id, &caller.0, idempotency).await?))
}

/// Lists runs that were given up
///
/// All their attempts were lost, or nobody has claimed them in time. Oldest first.
#[utoipa::path(get, path = "/api/v1/dead-letters", tag = "queue", security(("bearer" = ["runs:read"])),
    params(PageParams, ("queue" = Option<String>, Query, description = "Only of this queue.")),
    responses((status = 200, description = "A page.", body = agent_host_protocol::Page<DeadLetter>), LetterRefusals))]
pub(crate) async fn dead_letters(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let queue = query.text("queue");
    let cursor = query.text("cursor");
    let limit = query.limit()? as usize;
    query.finish()?;
    let bad = |_| Problem::new(ProblemCode::InvalidCursor, "`cursor` is not one that this host gave");
    let after = cursor.map(|cursor| cursor.parse::<RunId>().map_err(bad)).transpose()?;
    let host = app.host.clone();
    let found = tokio::task::spawn_blocking(move || host.dead_letters(&caller.0, queue.as_deref(), after, limit + 1)).await;
    let mut items = found.map_err(Problem::internal)??;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = has_more.then(|| items.last().map(|letter| letter.run_id.to_string())).flatten();
    Ok(json(StatusCode::OK, &agent_host_protocol::Page { items, next_cursor, prev_cursor: None, has_more }))
}

/// Puts a run that was given up back into its queue
///
/// As another attempt: a new run, whose `retry_of` names the one that was given up.
#[utoipa::path(post, path = "/api/v1/dead-letters/{id}/requeue", tag = "queue", security(("bearer" = ["runs:control"])),
    params(Id<RunId>, ("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same run.")),
    responses(
        (status = 202, description = "The new run.", body = Run, headers(("Location" = String, description = "The new run."))),
        RetryRefusals,
    ))]
pub(crate) async fn requeue(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsControl)?;
    query.finish()?;
    caller.run(&app, id)?;
    let idempotency = of_run(&caller, "requeue", id, &request)?;
    Ok(made(app.host.put_back(id, &caller.0, idempotency).await?))
}

/// These requests have no body: what they are about stands for it.
fn of_run(caller: &Caller, what: &str, id: RunId, request: &Request) -> Result<Option<agent_host_runs::Idempotency>, Problem> {
    idempotency::of(caller, request.headers(), format!("{what}/{id}").as_bytes())
}

fn made(CreatedRun { run, repeated }: CreatedRun) -> Response {
    let mut response = json(StatusCode::ACCEPTED, &run);
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/runs/{}", run.run_id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    if repeated {
        response.headers_mut().insert(idempotency::IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
