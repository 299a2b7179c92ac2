//! Taking events.

use std::time::Duration;

use agent_host_protocol::{Event, EventId, Run, RunId, event::Envelope};
use agent_host_runs::AcceptedEvent;
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    app::{App, json},
    body,
    extract::Id,
    idempotency, output, prefer,
    problem::Problem,
    query::Query,
};

#[derive(Serialize)]
struct Accepted {
    event_id: EventId,
    runs: Vec<AcceptedRun>,
}

/// A run, with what it said in the end where the client waited for that.
#[derive(Serialize)]
struct AcceptedRun {
    #[serde(flatten)]
    run: Run,
    /// Absent while the run goes on; `null` where it ended without a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Option<Box<RawValue>>>,
}

/// `POST /api/v1/events`: the event is durable when this answers.
pub(crate) async fn accept(State(app): State<App>, query: Query, request: Request) -> Result<Response, Problem> {
    query.finish()?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let limits = &app.host.config().limits;
    let body = body::read(body, limits.http_body_bytes).await?;
    let idempotency = idempotency::of(&parts.headers, &body)?;
    let envelope: Envelope = body::parse(&body)?;
    envelope.check().map_err(malformed)?;
    let wait = prefer::wait(&parts.headers, Duration::from_millis(limits.http_wait_ms));

    let accepted = app.host.accept(envelope, idempotency).await?;
    let runs = match wait {
        Some(wait) => ended(&app, &accepted.runs, wait).await?,
        None => current(&app, &accepted.runs)?,
    };
    answer(&app, accepted, runs, wait).await
}

/// The envelope's own complaint begins with the field, in backticks.
fn malformed(complaint: String) -> Problem {
    let field = complaint.split('`').nth(1).unwrap_or("body").to_owned();
    Problem::invalid(field, complaint)
}

/// The runs once all have ended, or as they are when the time is up or the server goes down.
async fn ended(app: &App, ids: &[RunId], wait: Duration) -> Result<Vec<Run>, Problem> {
    let ends = try_join_all(ids.iter().map(|id| app.host.wait(*id, wait)));
    tokio::select! {
        runs = ends => Ok(runs?),
        () = app.closing.cancelled() => current(app, ids),
    }
}

fn current(app: &App, ids: &[RunId]) -> Result<Vec<Run>, Problem> {
    ids.iter().map(|id| run(app, *id)).collect()
}

/// One run as it is.
pub(crate) fn run(app: &App, id: RunId) -> Result<Run, Problem> {
    let record = app.host.ledger().run(id)?.ok_or_else(|| Problem::not_found(format!("there is no run {id}")))?;
    Ok(record.run)
}

async fn answer(app: &App, accepted: AcceptedEvent, runs: Vec<Run>, wait: Option<Duration>) -> Result<Response, Problem> {
    let finished = wait.is_some() && runs.iter().all(|run| run.status.is_terminal());
    let location = match runs.as_slice() {
        [run] if !finished => HeaderValue::try_from(format!("/api/v1/runs/{}", run.run_id)).ok(),
        _ => None,
    };
    let mut answered = Vec::with_capacity(runs.len());
    for run in runs {
        let show_output = wait.is_some() && run.status.is_terminal();
        let output = if show_output { Some(output::of(app, &run).await?) } else { None };
        answered.push(AcceptedRun { run, output });
    }
    let status = if finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = json(status, &Accepted { event_id: accepted.event_id, runs: answered });
    let headers = response.headers_mut();
    if let Some(location) = location {
        headers.insert(header::LOCATION, location);
    }
    if accepted.repeated {
        headers.insert(idempotency::IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    if let Some(applied) = wait.and_then(|wait| HeaderValue::try_from(format!("wait={}", wait.as_secs())).ok()) {
        headers.insert(prefer::PREFERENCE_APPLIED, applied);
    }
    Ok(response)
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    event: Event,
    /// The runs that it was resolved to.
    runs: Vec<RunId>,
}

/// `GET /api/v1/events/{id}`.
pub(crate) async fn show(State(app): State<App>, Id(id): Id<EventId>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let record = app.host.ledger().event(id)?.ok_or_else(|| Problem::not_found(format!("there is no event {id}")))?;
    Ok(json(StatusCode::OK, &Shown { event: record.event, runs: record.runs }))
}
