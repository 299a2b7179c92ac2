//! Runs: found, shown, followed, called off.

use agent_host_ledger::{AuditRecord, Ledger, RunFilter};
use agent_host_protocol::{EventId, Grant, Page, Run, RunEvent, RunId, RunStatus, RunnerId, Scope, context::RunContext};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode},
    response::Response,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    accept::{Form, negotiate},
    app::{App, json, raw_json},
    body,
    caller::Caller,
    extract::Id,
    openapi::{AfterParams, PageParams, refusals},
    problem::{Problem, ProblemCode},
    query::Query,
    sse,
};

/// Where a stream broke off, sent by clients that connect again.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The reason of a cancel is kept with the run and shown in lists.
const MAX_REASON_BYTES: usize = 1024;

/// JSON may spell each byte of a reason with six (`\u0000`), and has a few of its own.
const MAX_CANCEL_BODY_BYTES: usize = 6 * MAX_REASON_BYTES + 256;

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
        PageParams,
    ),
    responses((status = 200, description = "A page of runs.", body = Page<Run>), ListRefusals))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut filter = RunFilter {
        status: status(&mut query)?,
        runner_id: query.parsed("runner_id")?,
        binding_id: query.text("binding_id"),
        conversation_id: query.text("conversation_id"),
        workspace_id: query.text("workspace_id"),
        event_id: query.parsed("event_id")?,
        parent_run_id: query.parsed("parent_run_id")?,
    };
    let cursor = query.text("cursor");
    let limit = query.limit()?;
    query.finish()?;
    if let Some(own) = &caller.0.workspace {
        let asked = filter.workspace_id.replace(own.clone());
        if asked.is_some_and(|asked| asked != *own) {
            // There are none that this caller sees.
            let nothing: Page<Run> = Page { items: Vec::new(), next_cursor: None, prev_cursor: None, has_more: false };
            return Ok(json(StatusCode::OK, &nothing));
        }
    }
    let page = app.read(move |ledger| ledger.runs_page(&filter, cursor.as_deref(), limit)).await?;
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
pub(crate) async fn show(State(app): State<App>, caller: Caller, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    Ok(json(StatusCode::OK, &caller.run(&app, id)?))
}

/// What the runner was given, as it was given
///
/// A context is made when the guest starts: before that there is none.
#[utoipa::path(get, path = "/api/v1/runs/{id}/context", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The context.", body = RunContext), OfRun))]
pub(crate) async fn context(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    let status = caller.run(&app, id)?.status;
    match app.read(move |ledger| ledger.context(id)).await? {
        Some(context) => Ok(raw_json(StatusCode::OK, String::from(Box::<str>::from(context)))),
        None => Err(Problem::not_found(format!(
            "run {id} has no context: it is {status}, and a context is made when the guest starts"
        ))),
    }
}

/// What the run may use, as it was frozen when the run was created
#[utoipa::path(get, path = "/api/v1/runs/{id}/grant", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The grant.", body = Grant), OfRun))]
pub(crate) async fn grant(State(app): State<App>, caller: Caller, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    #[derive(Deserialize)]
    struct Terms {
        #[serde(default)]
        grant: Option<Box<RawValue>>,
    }
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    caller.run(&app, id)?;
    let terms = app.read(move |ledger| ledger.terms(id)).await?;
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
pub(crate) async fn audit(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    mut query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let cursor = query.text("cursor");
    let limit = query.limit()?;
    query.finish()?;
    caller.run(&app, id)?;
    let page = app.read(move |ledger| ledger.audit_page(Some(id), cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

refusals!(EventRefusals = [NotFound, InvalidCursor, NotAcceptable, TooManyStreams]);

/// The events of a run: a page, or a stream for those who name it in `Accept`
///
/// The stream has those that are there, then those that come, each after it was committed, until the terminal one. Each
/// event is a `RunEvent` as `data`, with its type as `event` and a cursor as `id`.
#[utoipa::path(get, path = "/api/v1/runs/{id}/events", tag = "runs", security(("bearer" = ["runs:read"])),
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
pub(crate) async fn events(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let after = query.text("after");
    let limit = query.limit()?;
    query.finish()?;
    let form = negotiate(&headers)?;
    let run = caller.run(&app, id)?;
    match form {
        Form::Page => {
            let page = app.read(move |ledger| ledger.run_events(id, after.as_deref(), limit)).await?;
            Ok(json(StatusCode::OK, &page))
        }
        Form::Stream => {
            let after = last_event_id(&headers)?.or(after);
            let sequence = after.as_deref().map(|cursor| Ledger::parse_run_cursor(id, cursor)).transpose()?.unwrap_or(0);
            if run.status.is_terminal() && sequence > run.last_sequence {
                return Err(Problem::new(ProblemCode::InvalidCursor, format!("run {id} ended before that cursor")));
            }
            sse::stream(&app, id, sequence)
        }
    }
}

/// The header wins over the query: a browser sends it when it connects again to the address that it had.
fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Problem::new(ProblemCode::InvalidCursor, "`Last-Event-ID` is not an id that this host gave")),
    }
}

/// Why a run is to end.
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
    responses((status = 202, description = "The run, of which the end is asked for.", body = Run), CancelRefusals))]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsControl)?;
    query.finish()?;
    let (parts, body) = request.into_parts();
    let body = body::read(body, MAX_CANCEL_BODY_BYTES).await?;
    let cancel = if body.is_empty() {
        Cancel::default()
    } else {
        body::require_json(&parts.headers)?;
        body::parse(&body)?
    };
    let reason = cancel.reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "cancelled by a client".to_owned());
    if reason.len() > MAX_REASON_BYTES {
        return Err(Problem::invalid("reason", format!("`reason` has {} bytes; the limit is {MAX_REASON_BYTES}", reason.len())));
    }
    caller.run(&app, id)?;
    let run = app.host.cancel(id, reason).await?;
    Ok(json(StatusCode::ACCEPTED, &run))
}
