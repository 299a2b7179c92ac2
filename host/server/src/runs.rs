//! Runs: found, shown, followed, called off.

use agent_host_ledger::{Ledger, RunFilter};
use agent_host_protocol::{RunId, RunStatus};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode},
    response::Response,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    accept::{Form, negotiate},
    app::{App, json, raw_json},
    body,
    events::run,
    extract::Id,
    problem::{Problem, ProblemCode},
    query::Query,
    sse,
};

/// Where a stream broke off, sent by clients that connect again.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The reason of a cancel is kept with the run and shown in lists.
const MAX_REASON_BYTES: usize = 1024;

/// JSON may spell each byte of a reason with six (`\u0000`), and has a few of its own.
const MAX_CANCEL_BODY_BYTES: usize = 6 * MAX_REASON_BYTES + 256;

/// `GET /api/v1/runs`: newest first.
pub(crate) async fn list(State(app): State<App>, mut query: Query) -> Result<Response, Problem> {
    let filter = RunFilter {
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
    let page = app.read(move |ledger| ledger.runs_page(&filter, cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

fn status(query: &mut Query) -> Result<Option<RunStatus>, Problem> {
    let Some(name) = query.text("status") else { return Ok(None) };
    let status = RunStatus::from_name(&name);
    if status.is_none() {
        let known = RunStatus::ALL.map(RunStatus::as_str).join(", ");
        return Err(Problem::invalid("status", format!("`status` must be one of: {known}")));
    }
    Ok(status)
}

/// `GET /api/v1/runs/{id}`.
pub(crate) async fn show(State(app): State<App>, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    Ok(json(StatusCode::OK, &run(&app, id)?))
}

/// `GET /api/v1/runs/{id}/context`: what the runner was given, as it was given.
pub(crate) async fn context(State(app): State<App>, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    match app.read(move |ledger| ledger.context(id)).await? {
        Some(context) => Ok(raw_json(StatusCode::OK, String::from(Box::<str>::from(context)))),
        None => {
            let status = run(&app, id)?.status;
            Err(Problem::not_found(format!(
                "run {id} has no context: it is {status}, and a context is made when the guest starts"
            )))
        }
    }
}

/// `GET /api/v1/runs/{id}/grant`: what the run may use, as it was frozen when the run was created.
pub(crate) async fn grant(State(app): State<App>, Id(id): Id<RunId>, query: Query) -> Result<Response, Problem> {
    #[derive(Deserialize)]
    struct Terms {
        #[serde(default)]
        grant: Option<Box<RawValue>>,
    }
    query.finish()?;
    let terms = app.read(move |ledger| ledger.terms(id)).await?;
    let grant = match terms {
        Some(terms) => serde_json::from_str::<Terms>(terms.get()).map_err(Problem::internal)?.grant,
        None => None,
    };
    match grant {
        Some(grant) => Ok(raw_json(StatusCode::OK, String::from(Box::<str>::from(grant)))),
        None => {
            run(&app, id)?;
            Err(Problem::not_found(format!("run {id} has no grant: it ended before one was made")))
        }
    }
}

/// `GET /api/v1/runs/{id}/audit`: its host calls and what became of them.
pub(crate) async fn audit(State(app): State<App>, Id(id): Id<RunId>, mut query: Query) -> Result<Response, Problem> {
    let cursor = query.text("cursor");
    let limit = query.limit()?;
    query.finish()?;
    run(&app, id)?;
    let page = app.read(move |ledger| ledger.audit_page(Some(id), cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

/// `GET /api/v1/runs/{id}/events`: a page, or a stream for those who name it in `Accept`.
pub(crate) async fn events(
    State(app): State<App>,
    Id(id): Id<RunId>,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = query.text("after");
    let limit = query.limit()?;
    query.finish()?;
    let form = negotiate(&headers)?;
    let run = run(&app, id)?;
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

/// `POST /api/v1/runs/{id}/cancel`: asked for when this answers; the run ends a moment later.
pub(crate) async fn cancel(
    State(app): State<App>,
    Id(id): Id<RunId>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields)]
    struct Cancel {
        #[serde(default)]
        reason: Option<String>,
    }
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
    let run = app.host.cancel(id, reason).await?;
    Ok(json(StatusCode::ACCEPTED, &run))
}
