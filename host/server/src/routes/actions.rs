//! `/api/v1/actions`: what runs ask people for.

use agent_host_protocol::{Page, RunId, Scope};
use agent_host_runs::{Action, Response as Answer};
use axum::{http::StatusCode, response::Response};

use crate::{
    access::ApiRequest,
    app::off_thread,
    http::{Id, Path, Problem, ProblemCode, json, page, whole_page},
    openapi::{PageParams, refusals},
};

/// Beside the answer itself: the names of its members, and a decision.
const MORE_BYTES: usize = 1024;

refusals!(OpenRefusals = [InvalidCursor]);

/// Actions that wait for an answer
///
/// Actions of later runs come later.
#[utoipa::path(get, path = "/api/v1/actions", tag = "actions", security(("bearer" = ["runs:read"])), params(PageParams),
    responses((status = 200, description = "A page of actions.", body = Page<Action>), OpenRefusals))]
pub(crate) async fn open(mut request: ApiRequest) -> Result<Response, Problem> {
    let (after, limit) = request.page(Scope::RunsRead)?;
    // The cursor is the id of the last action, which is no secret.
    if after.as_deref().is_some_and(|after| after.len() > 128) {
        return Err(Problem::foreign_cursor());
    }
    let (host, caller) = (request.app.host.clone(), request.caller);
    let found = off_thread(move || host.open_actions(&caller.0, after.as_deref(), limit as usize + 1)).await?;
    Ok(page(found, limit, |action| action.action_id.clone()))
}

refusals!(OneRefusals = [NotFound]);

/// All that a run has asked people for, in order
#[utoipa::path(get, path = "/api/v1/runs/{id}/actions", tag = "actions", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "All of them, on one page.", body = Page<Action>), OneRefusals))]
pub(crate) async fn of_run(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    request.run(id)?;
    Ok(whole_page(off_thread(move || request.app.host.actions(id)).await?))
}

/// Shows an action, in whatever state
#[utoipa::path(get, path = "/api/v1/actions/{id}", tag = "actions", security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "Names the action.")),
    responses((status = 200, description = "The action.", body = Action), OneRefusals))]
pub(crate) async fn show(Path(id): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    require(&request, &id)?;
    Ok(json(StatusCode::OK, &off_thread(move || request.app.host.action(&id)).await?))
}

refusals!(RespondRefusals = [JSON, WRITE] + [NotFound, AlreadyAnswered, Expired, Conflict]);

/// Answers an action
///
/// The answer is durable when this request returns, and the run continues with the answer.
#[utoipa::path(post, path = "/api/v1/actions/{id}/respond", tag = "actions", security(("bearer" = ["actions:respond"])),
    params(("id" = String, Path, description = "Names the action.")),
    request_body = Answer,
    responses((status = 200, description = "The action, with the answer.", body = Action), RespondRefusals))]
pub(crate) async fn respond(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::ActionsRespond)?;
    let by = request.app.host.answers_as(&request.caller.0)?;
    request.query.finish()?;
    require(&request, &id)?;
    let limit = request.app.host.config().limits.answer_bytes * 6 + MORE_BYTES;
    let answer: Answer = request.json(limit).await?;
    Ok(json(StatusCode::OK, &request.app.host.respond(&id, answer, by).await?))
}

/// Answers `404` to a caller that may not see the run of this action.
fn require(request: &ApiRequest, id: &str) -> Result<(), Problem> {
    let run = id.split_once('.').and_then(|(run, _)| run.parse::<RunId>().ok());
    match run.map(|run| request.run(run)) {
        Some(Ok(_)) => Ok(()),
        Some(Err(problem)) if problem.code() != ProblemCode::NotFound => Err(problem),
        Some(Err(_)) | None => Err(Problem::not_found(format!("there is no action {}", id.escape_debug()))),
    }
}
