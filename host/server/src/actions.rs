//! `/api/v1/actions`: what runs ask people for.

use agent_host_protocol::{Page, RunId};
use agent_host_runs::{Action, Response as Answer};
use axum::{
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};

use crate::{
    app::{App, json},
    body,
    extract::Id,
    problem::{Problem, ProblemCode},
    query::Query,
};

/// Beside the answer itself: the names of its members, and a decision.
const MORE_BYTES: usize = 1024;

/// `GET /api/v1/actions`: what waits for an answer now. Actions of later runs come later.
pub(crate) async fn open(State(app): State<App>, mut query: Query) -> Result<Response, Problem> {
    let after = query.text("cursor");
    let limit = query.limit()? as usize;
    query.finish()?;
    // The cursor is the id of the last action, which is no secret.
    if after.as_deref().is_some_and(|after| after.len() > 128) {
        return Err(Problem::new(ProblemCode::InvalidCursor, "`cursor` is not one that this host gave"));
    }
    let host = app.host.clone();
    let found = tokio::task::spawn_blocking(move || host.open_actions(after.as_deref(), limit + 1)).await;
    let mut items = found.map_err(Problem::internal)??;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = has_more.then(|| items.last().map(|action| action.action_id.clone())).flatten();
    Ok(json(StatusCode::OK, &Page { items, next_cursor, prev_cursor: None, has_more }))
}

/// `GET /api/v1/runs/{id}/actions`: all that a run has asked, in order.
pub(crate) async fn of_run(State(app): State<App>, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let host = app.host.clone();
    let actions: Vec<Action> = tokio::task::spawn_blocking(move || host.actions(id)).await.map_err(Problem::internal)??;
    Ok(json(StatusCode::OK, &Page { items: actions, next_cursor: None, prev_cursor: None, has_more: false }))
}

/// `GET /api/v1/actions/{id}`.
pub(crate) async fn show(State(app): State<App>, Path(id): Path<String>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let host = app.host.clone();
    let action = tokio::task::spawn_blocking(move || host.action(&id)).await.map_err(Problem::internal)??;
    Ok(json(StatusCode::OK, &action))
}

/// `POST /api/v1/actions/{id}/respond`: the answer is durable when this answers, and the run goes on by it.
pub(crate) async fn respond(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    query.finish()?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let by = app.host.approver(bearer(&parts.headers))?;
    let limit = app.host.config().limits.answer_bytes * 6 + MORE_BYTES;
    let answer: Answer = body::parse(&body::read(body, limit).await?)?;
    Ok(json(StatusCode::OK, &app.host.respond(&id, answer, by).await?))
}

/// The token of `Authorization: Bearer TOKEN` (RFC 6750).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
