//! Taking events.

use std::time::Duration;

use agent_host_protocol::{Event, EventId, Run, RunId, Scope, event::Envelope, message::Message};
use agent_host_runs::AcceptedEvent;
use axum::{
    http::{HeaderValue, StatusCode},
    response::Response,
};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::output;
use crate::{
    access::ApiRequest,
    app::App,
    http::{Id, Problem, json, located, prefer, replayed},
    openapi::refusals,
};

/// An event that was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = AcceptedEvent)]
struct Accepted {
    /// Id of the event.
    event_id: EventId,
    /// The runs that answer it: none where no binding matches.
    runs: Vec<AcceptedRun>,
}

/// A run, with what it said in the end where the client waited for that.
#[derive(Serialize, ToSchema)]
struct AcceptedRun {
    #[serde(flatten)]
    run: Run,
    /// Absent while the run is active; `null` if it ended without a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Message>)]
    output: Option<Option<Box<RawValue>>>,
}

refusals!(AcceptRefusals = [JSON, WRITE] + [NotFound, RunnerNotFound, InvalidConfig, IdempotencyConflict, QueueFull]);

/// Takes an event
///
/// The event and its runs are durable when this answers.
#[utoipa::path(post, path = "/api/v1/events", tag = "events", security(("bearer" = ["events:write"])),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body gives the same answer, and does nothing."),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS` waits for the end of the runs (RFC 7240)."),
    ),
    request_body = Envelope,
    responses(
        (status = 200, description = "The client waited, and all runs have ended.", body = Accepted, headers(
            ("Preference-Applied" = String, description = "How long it waits at most."),
            ("Idempotency-Replayed" = String, description = "`true` where the same request was made before."),
        )),
        (status = 202, description = "Its runs continue, or no run was waiting.", body = Accepted, headers(
            ("Location" = String, description = "The run, where there is one."),
            ("Preference-Applied" = String, description = "How long it has waited at most."),
            ("Idempotency-Replayed" = String, description = "`true` where the same request was made before."),
        )),
        AcceptRefusals,
    ))]
pub(crate) async fn accept(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::EventsWrite)?;
    let (mut envelope, idempotency): (Envelope, _) = request.idempotent_json().await?;
    let ApiRequest { app, caller, headers, .. } = request;
    envelope.check().map_err(malformed)?;
    caller.place(&mut envelope)?;
    let wait = prefer::wait(&headers, Duration::from_millis(app.host.config().limits.http_wait_ms));

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

/// The present record of a run.
fn run(app: &App, id: RunId) -> Result<Run, Problem> {
    let record = app.host.records().run(id)?.ok_or_else(|| Problem::not_found(format!("there is no run {id}")))?;
    Ok(record.run)
}

async fn answer(app: &App, accepted: AcceptedEvent, runs: Vec<Run>, wait: Option<Duration>) -> Result<Response, Problem> {
    let finished = wait.is_some() && runs.iter().all(|run| run.status.is_terminal());
    let location = match runs.as_slice() {
        [run] if !finished => Some(format!("/api/v1/runs/{}", run.run_id)),
        _ => None,
    };
    let mut answered = Vec::with_capacity(runs.len());
    for run in runs {
        let show_output = wait.is_some() && run.status.is_terminal();
        let output = if show_output { Some(output::of(app, &run).await?) } else { None };
        answered.push(AcceptedRun { run, output });
    }
    let status = if finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let answer = Accepted { event_id: accepted.event_id, runs: answered };
    let response = location.map_or_else(|| json(status, &answer), |location| located(status, location, &answer));
    let mut response = replayed(response, accepted.repeated);
    if let Some(applied) = wait.and_then(|wait| HeaderValue::try_from(format!("wait={}", wait.as_secs())).ok()) {
        response.headers_mut().insert(prefer::PREFERENCE_APPLIED, applied);
    }
    Ok(response)
}

/// An event, with what came of it.
#[derive(Serialize, ToSchema)]
#[schema(as = EventWithRuns)]
struct Shown {
    #[serde(flatten)]
    event: Event,
    /// The runs that it was resolved to.
    runs: Vec<RunId>,
}

refusals!(ShowRefusals = [NotFound]);

/// Shows an event, and names the runs that answer it
#[utoipa::path(get, path = "/api/v1/events/{id}", tag = "events", security(("bearer" = ["runs:read"])), params(Id<EventId>),
    responses((status = 200, description = "The event.", body = Shown), ShowRefusals))]
pub(crate) async fn show(Id(id): Id<EventId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let workspace = |event: &Event| event.envelope.conversation.as_ref().and_then(|it| it.workspace_id.clone());
    let record = request.app.host.records().event(id)?;
    let record = record.filter(|record| request.caller.sees(workspace(&record.event).as_deref()));
    let record = record.ok_or_else(|| Problem::not_found(format!("there is no event {id}")))?;
    Ok(json(StatusCode::OK, &Shown { event: record.event, runs: record.runs }))
}
