//! Runs: found, shown, followed, called off.

use agent_host_protocol::{EventId, Grant, Page, Run, RunEvent, RunId, RunStatus, RunnerId, Scope, context::RunContext};
use agent_host_runs::{AuditRecord, ListedRun, Records, RunFilter};
use axum::{http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::run_stream;
use crate::{
    access::ApiRequest,
    http::{
        Id, Problem, ProblemCode, Query,
        accept::{Form, negotiate},
        body,
        headers::last_event_id,
        json, raw_json, whole_page,
    },
    openapi::{AfterParams, PageParams, refusals},
};

/// JSON may spell each byte of a reason with six (`\u0000`), and has a few of its own.
const MAX_CANCEL_BODY_BYTES: usize = 6 * body::MAX_REASON_BYTES + 256;

refusals!(ListRefusals = [InvalidCursor]);

/// Lists runs, newest first
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        ("status" = Option<RunStatus>, Query, description = "Only runs with this status."),
        ("runner_id" = Option<RunnerId>, Query, description = "Only runs of this runner."),
        ("binding_id" = Option<String>, Query, description = "Only runs of this binding."),
        ("conversation_id" = Option<String>, Query, description = "Only runs of this conversation."),
        ("workspace_id" = Option<String>, Query, description = "Only runs of this workspace."),
        ("event_id" = Option<EventId>, Query, description = "Only runs that answer this event."),
        ("parent_run_id" = Option<RunId>, Query, description = "Only runs that this run has started."),
        ("excerpts" = Option<bool>, Query, description = "With `true`, each run has the first words of its question and its answer."),
        PageParams,
    ),
    responses((status = 200, description = "A page of runs.", body = Page<ListedRun>), ListRefusals))]
pub(crate) async fn list(mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let query = &mut request.query;
    let mut filter = RunFilter {
        status: status(query)?,
        runner_id: query.parsed("runner_id")?,
        binding_id: query.text("binding_id"),
        conversation_id: query.text("conversation_id"),
        workspace_id: query.text("workspace_id"),
        event_id: query.parsed("event_id")?,
        parent_run_id: query.parsed("parent_run_id")?,
    };
    let has_excerpts = query.parsed("excerpts")?.unwrap_or(false);
    let (cursor, limit) = query.page()?;
    if let Some(own) = &request.caller.0.workspace {
        let requested = filter.workspace_id.replace(own.clone());
        if requested.is_some_and(|requested| requested != *own) {
            // The caller sees no such runs.
            return Ok(whole_page(Vec::<Run>::new()));
        }
    }
    if has_excerpts {
        let read = move |records: &Records| records.runs_with_excerpts(&filter, cursor.as_deref(), limit);
        return Ok(json(StatusCode::OK, &request.app.read(read).await?));
    }
    let page = request.app.read(move |records| records.runs(&filter, cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

fn status(query: &mut Query) -> Result<Option<RunStatus>, Problem> {
    let Some(name) = query.value("status") else { return Ok(None) };
    let status = RunStatus::from_name(&name);
    if status.is_none() {
        let known = RunStatus::ALL.map(RunStatus::as_str).join(", ");
        return Err(Problem::invalid("status", format!("`status` must be one of: {known}")));
    }
    Ok(status)
}

refusals!(OfRun = [NotFound]);

/// Shows a run
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The run, as it is now.", body = Run), OfRun))]
pub(crate) async fn show(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    Ok(json(StatusCode::OK, &request.run(id)?))
}

/// Returns the context of a run
///
/// A context is made when the guest starts: before that there is none.
#[utoipa::path(get, path = "/api/v1/runs/{id}/context", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The context.", body = RunContext), OfRun))]
pub(crate) async fn context(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let status = request.run(id)?.status;
    match request.app.read(move |records| records.context(id)).await? {
        Some(context) => Ok(raw_json(StatusCode::OK, String::from(Box::<str>::from(context)))),
        None => Err(Problem::not_found(format!(
            "run {id} has no context: it is {status}, and a context is made when the guest starts"
        ))),
    }
}

/// Returns the grant of a run, frozen at its creation
#[utoipa::path(get, path = "/api/v1/runs/{id}/grant", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The grant.", body = Grant), OfRun))]
pub(crate) async fn grant(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    #[derive(Deserialize)]
    struct Terms {
        #[serde(default)]
        grant: Option<Box<RawValue>>,
    }
    request.allow(Scope::RunsRead)?;
    request.run(id)?;
    let terms = request.app.read(move |records| records.terms(id)).await?;
    let grant = match terms {
        Some(terms) => serde_json::from_str::<Terms>(terms.get()).map_err(Problem::internal)?.grant,
        None => None,
    };
    match grant {
        Some(grant) => Ok(raw_json(StatusCode::OK, String::from(Box::<str>::from(grant)))),
        None => Err(Problem::not_found(format!("run {id} has no grant: it ended before one was made"))),
    }
}

refusals!(PagesOfRun = [NotFound, InvalidCursor]);

/// The host calls of a run, and what became of them
#[utoipa::path(get, path = "/api/v1/runs/{id}/audit", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>, PageParams),
    responses((status = 200, description = "A page of the record.", body = Page<AuditRecord>), PagesOfRun))]
pub(crate) async fn audit(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    let (cursor, limit) = request.page(Scope::RunsRead)?;
    request.run(id)?;
    let page = request.app.read(move |records| records.audit(id, cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

refusals!(EventRefusals = [NotFound, InvalidCursor, NotAcceptable, TooManyStreams]);

/// The events of a run: a page, or a stream for those who name it in `Accept`
///
/// The stream has those that are there, then those that come, each after it was committed, until the terminal one. Each
/// event is a `RunEvent` as `data`, with its type as `event` and a cursor as `id`.
#[utoipa::path(get, path = "/api/v1/runs/{id}/events", tag = "runs",
    security(("bearer" = ["runs:read"]), ("stream_token" = [])),
    params(
        Id<RunId>,
        AfterParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream: the `id` of the last event that was seen. It wins over `after`."),
    ),
    responses(
        (status = 200, description = "A page of events, or the stream of them.", content(
            (Page<RunEvent> = "application/json"),
            (String = "text/event-stream"),
        )),
        EventRefusals,
    ))]
pub(crate) async fn events(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let after = request.query.text("after");
    let limit = request.query.limit()?;
    request.query.finish()?;
    let form = negotiate(&request.headers)?;
    let run = request.run(id)?;
    match form {
        Form::Page => {
            let page = request.app.read(move |records| records.run_events(id, after.as_deref(), limit)).await?;
            Ok(json(StatusCode::OK, &page))
        }
        Form::Stream => {
            let after = last_event_id(&request.headers)?.or(after);
            let sequence = after.as_deref().map(|cursor| Records::run_sequence(id, cursor)).transpose()?.unwrap_or(0);
            if run.status.is_terminal() && sequence > run.last_sequence {
                return Err(Problem::new(ProblemCode::InvalidCursor, format!("run {id} ended before that cursor")));
            }
            run_stream::stream(&request.app, id, sequence, request.dialect)
        }
    }
}

/// The reason of a cancellation.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
struct Cancel {
    /// Kept with the run, and shown in lists.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

refusals!(CancelRefusals = [JSON, WRITE] + [NotFound, Conflict]);

/// Asks for the end of a run
///
/// Asked for when this answers; the run ends a moment later. The body may be left out.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", security(("bearer" = ["runs:control"])), params(Id<RunId>),
    request_body = Option<Cancel>,
    responses((status = 202, description = "The run, with the requested cancel.", body = Run), CancelRefusals))]
pub(crate) async fn cancel(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let Cancel { reason } = request.optional_json(MAX_CANCEL_BODY_BYTES).await?;
    let reason = body::reason(reason, "cancelled by a client")?;
    request.run(id)?;
    let run = request.app.host.cancel(id, reason).await?;
    Ok(json(StatusCode::ACCEPTED, &run))
}
