//! `/api/v1/actions`: what runs ask people for.

use agent_host_protocol::{Page, RunId, Scope};
use agent_host_runs::{Action, Response as Answer};
use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};

use crate::{
    app::{App, json},
    body,
    caller::Caller,
    extract::{Id, Path},
    openapi::{PageParams, refusals},
    problem::{Problem, ProblemCode},
    query::Query,
};

/// Beside the answer itself: the names of its members, and a decision.
const MORE_BYTES: usize = 1024;

refusals!(OpenRefusals = [InvalidCursor]);

/// What waits for an answer now
///
/// Actions of later runs come later.
#[utoipa::path(get, path = "/api/v1/actions", tag = "actions", security(("bearer" = ["runs:read"])), params(PageParams),
    responses((status = 200, description = "A page of actions.", body = Page<Action>), OpenRefusals))]
pub(crate) async fn open(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let after = query.text("cursor");
    let limit = query.limit()? as usize;
    query.finish()?;
    // The cursor is the id of the last action, which is no secret.
    if after.as_deref().is_some_and(|after| after.len() > 128) {
        return Err(Problem::new(ProblemCode::InvalidCursor, "`cursor` is not one that this host gave"));
    }
    let host = app.host.clone();
    let found = tokio::task::spawn_blocking(move || host.open_actions(&caller.0, after.as_deref(), limit + 1)).await;
    let mut items = found.map_err(Problem::internal)??;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = has_more.then(|| items.last().map(|action| action.action_id.clone())).flatten();
    Ok(json(StatusCode::OK, &Page { items, next_cursor, prev_cursor: None, has_more }))
}

refusals!(OneRefusals = [NotFound]);

/// All that a run has asked people for, in order
#[utoipa::path(get, path = "/api/v1/runs/{id}/actions", tag = "actions", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "All of them, on one page.", body = Page<Action>), OneRefusals))]
pub(crate) async fn of_run(State(app): State<App>, caller: Caller, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    caller.run(&app, id)?;
    let host = app.host.clone();
    let actions: Vec<Action> = tokio::task::spawn_blocking(move || host.actions(id)).await.map_err(Problem::internal)??;
    Ok(json(StatusCode::OK, &Page { items: actions, next_cursor: None, prev_cursor: None, has_more: false }))
}

/// Shows an action, in whatever state
#[utoipa::path(get, path = "/api/v1/actions/{id}", tag = "actions", security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "Names the action.")),
    responses((status = 200, description = "The action.", body = Action), OneRefusals))]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    require(&app, &caller, &id)?;
    let host = app.host.clone();
    let action = tokio::task::spawn_blocking(move || host.action(&id)).await.map_err(Problem::internal)??;
    Ok(json(StatusCode::OK, &action))
}

refusals!(RespondRefusals = [JSON, WRITE] + [NotFound, AlreadyAnswered, Expired, Conflict]);

/// Answers an action
///
/// The answer is durable when this answers, and the run goes on by it.
#[utoipa::path(post, path = "/api/v1/actions/{id}/respond", tag = "actions", security(("bearer" = ["actions:respond"])),
    params(("id" = String, Path, description = "Names the action.")),
    request_body = Answer,
    responses((status = 200, description = "The action, with the answer.", body = Action), RespondRefusals))]
pub(crate) async fn respond(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::ActionsRespond)?;
    let by = app.host.answers_as(&caller.0)?;
    query.finish()?;
    require(&app, &caller, &id)?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let limit = app.host.config().limits.answer_bytes * 6 + MORE_BYTES;
    let answer: Answer = body::parse(&body::read(body, limit).await?)?;
    Ok(json(StatusCode::OK, &app.host.respond(&id, answer, by).await?))
}

/// Refuses who does not see the run that has asked for this, as if it had not. Who sees it is told by the host what there is.
fn require(app: &App, caller: &Caller, id: &str) -> Result<(), Problem> {
    let run = id.split_once('.').and_then(|(run, _)| run.parse::<RunId>().ok());
    match run.map(|run| caller.run(app, run)) {
        Some(Ok(_)) => Ok(()),
        Some(Err(problem)) if problem.code() != ProblemCode::NotFound => Err(problem),
        Some(Err(_)) | None => Err(Problem::not_found(format!("there is no action {}", id.escape_debug()))),
    }
}
