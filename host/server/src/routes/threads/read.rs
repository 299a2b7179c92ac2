//! Threads listed and read, and their evidence.

use agent_host_protocol::{
    Page, Scope,
    grant::{ConversationKey, of_end_user},
    hex,
};
use agent_host_runs::{
    Evidence, ListedThread, ThreadError,
    facts::{TaskSnapshot, ThreadReadModel},
};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{super::evidence, cursor};
use crate::{
    access::ApiRequest,
    app::off_thread,
    http::{Path, Problem, headers::matches_etag, json},
    openapi::{PageParams, ThreadParams, refusals},
};

refusals!(ListRefusals = [InvalidCursor]);

/// Lists threads
///
/// The conversations of the workspace of the key, or of the end user, in a fixed order. A page may be empty and yet have more.
#[utoipa::path(get, path = "/api/v1/threads", tag = "threads", security(("bearer" = ["runs:read"])), params(PageParams),
    responses((status = 200, description = "A page of threads.", body = Page<ListedThread>), ListRefusals))]
pub(crate) async fn list(mut request: ApiRequest) -> Result<Response, Problem> {
    let (after, limit) = request.page(Scope::RunsRead)?;
    let after = after.map(|text| parse_key(&text).ok_or_else(Problem::foreign_cursor)).transpose()?;
    let caller = request.caller.0.clone();
    let sees = move |key: &ConversationKey| {
        let workspace = Some(key.workspace()).filter(|workspace| !workspace.is_empty());
        let is_own = match &caller.end_user {
            Some(user) => key.thread() == of_end_user(user),
            None => !key.thread().starts_with(&of_end_user("")),
        };
        is_own && caller.sees(workspace)
    };
    let threads = request.app.host.threads();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = off_thread::<_, ThreadError>(move || threads.list(after.as_ref(), limit, sees));
    let (items, next) = found.await?;
    let next_cursor = next.and_then(|key| serde_json::to_vec(&key).ok()).map(|key| hex::encode(&key));
    Ok(json(StatusCode::OK, &Page { has_more: next_cursor.is_some(), items, next_cursor, prev_cursor: None }))
}

fn parse_key(text: &str) -> Option<ConversationKey> {
    serde_json::from_slice(&hex::decode(text)?).ok()
}

refusals!(ReadRefusals = [NotFound, InvalidCursor, ProjectionChanged, ThreadForgotten]);

/// Reads a thread
///
/// The status, the active turn, what it waits for, the calls of tools, the end of the last turn: the fold of the facts up to
/// `at`, or up to now. `eventCursor` is where `events?after=` goes on.
#[utoipa::path(get, path = "/api/v1/threads/{id}", tag = "threads", security(("bearer" = ["runs:read"])),
    params(
        ThreadParams,
        ("at" = Option<String>, Query, description = "The thread as it was after this fact."),
        ("If-None-Match" = Option<String>, Header, description = "An `ETag` that was seen."),
    ),
    responses(
        (status = 200, description = "The thread.", body = ThreadReadModel, headers(("ETag" = String, description = "Of the content."))),
        (status = 304, description = "The thread is as it was."),
        ReadRefusals,
    ))]
pub(crate) async fn show(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let name = request.thread(&id)?;
    let at = request.query.text("at").map(|text| cursor(&text, "at")).transpose()?;
    request.query.finish()?;
    let model = super::read(&request.app, name, move |threads, thread| threads.model(thread, at)).await?;
    tagged(&request, &model)
}

refusals!(TaskRefusals = [NotFound, InvalidCursor, ProjectionChanged, ThreadForgotten]);

/// Reads a task of a thread
///
/// A child run, a subagent that a runner claims, or a turn with its attempts.
#[utoipa::path(get, path = "/api/v1/threads/{id}/tasks/{task}", tag = "threads", security(("bearer" = ["runs:read"])),
    params(
        ThreadParams,
        ("task" = String, Path, description = "The task: a `taskId` of a fact, or the id of a turn."),
        ("at" = Option<String>, Query, description = "The task as it was after this fact."),
        ("If-None-Match" = Option<String>, Header, description = "An `ETag` that was seen."),
    ),
    responses(
        (status = 200, description = "The task.", body = TaskSnapshot, headers(("ETag" = String, description = "Of the content."))),
        (status = 304, description = "The task is as it was."),
        TaskRefusals,
    ))]
pub(crate) async fn task(Path((id, task)): Path<(String, String)>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let name = request.thread(&id)?;
    let at = request.query.text("at").map(|text| cursor(&text, "at")).transpose()?;
    request.query.finish()?;
    let missing = Problem::not_found(format!("this thread has no task `{}`", task.escape_debug()));
    let found = super::read(&request.app, name, move |threads, thread| threads.task(thread, &task, at)).await?;
    tagged(&request, &found.ok_or(missing)?)
}

refusals!(EvidenceRefusals = [NotFound, ThreadForgotten, TooManyStreams]);

/// The evidence of a thread, as a file of lines that are chained by hashes
///
/// JSON Lines: a line of the thread with its turns, then the evidence of each turn as that of its run, in one chain. `agent-host evidence
/// verify` names the first line that is wrong. The file has all that was said in the thread: treat it like the conversation.
#[utoipa::path(get, path = "/api/v1/threads/{id}/evidence", tag = "threads", security(("bearer" = ["runs:read"])), params(ThreadParams),
    responses((status = 200, description = "The lines.", body = String, content_type = "application/x-ndjson",
        headers(("Content-Disposition" = String, description = "A download, with a name."))), EvidenceRefusals))]
pub(crate) async fn evidence(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let name = request.thread(&id)?;
    request.query.finish()?;
    let evidence = super::read(&request.app, name, |threads, thread| Ok(Evidence::of_thread(threads, thread))).await?;
    // Ids of threads are those of clients, and no names of files.
    evidence::lines(&request.app, evidence, "thread")
}

/// An answer with an `ETag` of its content; none where the client has it.
fn tagged(request: &ApiRequest, value: &impl Serialize) -> Result<Response, Problem> {
    let body = serde_json::to_vec(value).map_err(Problem::internal)?;
    let etag = format!("\"{}\"", hex::encode(&Sha256::digest(&body)));
    let tag = HeaderValue::try_from(&etag).map_err(Problem::internal)?;
    let headers = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
    ];
    if matches_etag(&request.headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Ok((StatusCode::OK, headers, body).into_response())
}
