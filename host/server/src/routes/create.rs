//! Runs that are made by name, and other attempts at runs that have ended.

use agent_host_protocol::{Run, RunId, Scope};
use agent_host_runs::{CreateRun, CreatedRun, DeadLetter};
use axum::{http::StatusCode, response::Response};

use crate::{
    access::ApiRequest,
    app::off_thread,
    http::{Id, Problem, located, page, replayed},
    openapi::{PageParams, refusals},
};

refusals!(CreateRefusals = [JSON, WRITE, BEGIN] + [IdempotencyConflict]);
refusals!(
    RetryRefusals = [WRITE]
        + [
            WorkspaceFull,
            NotFound,
            RunnerCompiling,
            TokenBudgetExhausted,
            Conflict,
            IdempotencyConflict,
            QueueFull,
            InvalidArgument
        ]
);
refusals!(LetterRefusals = [InvalidCursor]);

/// Makes a run
///
/// The run belongs to a binding, or to a runner without a binding (scope `admin`); it answers a new event, or an existing
/// one. It starts at once, waits in the queue, or is left to an executor. The run is durable when this request returns.
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
pub(crate) async fn create(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let (create, idempotency): (CreateRun, _) = request.idempotent_json().await?;
    Ok(created(request.app.host.create_run(create, &request.caller.0, idempotency).await?))
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
pub(crate) async fn retry(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    request.run(id)?;
    let idempotency = request.idempotency(&format!("retry/{id}"))?;
    Ok(created(request.app.host.retry_run(id, &request.caller.0, idempotency).await?))
}

/// Lists runs that were given up
///
/// All their attempts were lost, or nobody has claimed them in time. Oldest first.
#[utoipa::path(get, path = "/api/v1/dead-letters", tag = "queue", security(("bearer" = ["runs:read"])),
    params(PageParams, ("queue" = Option<String>, Query, description = "Only of this queue.")),
    responses((status = 200, description = "A page.", body = agent_host_protocol::Page<DeadLetter>), LetterRefusals))]
pub(crate) async fn dead_letters(mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let queue = request.query.text("queue");
    let (cursor, limit) = request.query.page()?;
    let after = cursor.map(|cursor| cursor.parse::<RunId>().map_err(|_| Problem::foreign_cursor())).transpose()?;
    let (host, caller) = (request.app.host.clone(), request.caller);
    let found = off_thread(move || host.dead_letters(&caller.0, queue.as_deref(), after, limit as usize + 1)).await?;
    Ok(page(found, limit, |letter| letter.run_id.to_string()))
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
pub(crate) async fn requeue(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    request.run(id)?;
    let idempotency = request.idempotency(&format!("requeue/{id}"))?;
    Ok(created(request.app.host.put_back(id, &request.caller.0, idempotency).await?))
}

fn created(CreatedRun { run, repeated }: CreatedRun) -> Response {
    replayed(located(StatusCode::ACCEPTED, format!("/api/v1/runs/{}", run.run_id), &run), repeated)
}
