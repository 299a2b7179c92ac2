//! Accepting events, listing and following them.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{Event, EventId, Page, Run, RunId, Scope, Timestamp, event::Envelope};
use agent_host_runs::{AcceptedEvent, EventRecord};
use axum::{
    Extension,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use futures_util::future::try_join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    accepted::{Accepted, AcceptedRun},
    feed::{Follow, feed_stream},
    output,
};
use crate::{
    access::ApiRequest,
    app::App,
    http::{Id, Problem, forwarded::RequestPart, json, located, prefer, replayed},
    openapi::{FollowParams, PageParams, refusals},
};

refusals!(AcceptRefusals = [JSON, WRITE, BEGIN] + [IdempotencyConflict]);

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

    let charged_key = app.host.charged_key(&caller.0)?;
    let accepted = app.host.accept_charged(envelope, idempotency, charged_key).await?;
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
async fn ended(app: &App, ids: &[RunId], wait: Duration) -> Result<Vec<Arc<Run>>, Problem> {
    let ends = try_join_all(ids.iter().map(|id| app.host.wait(*id, wait)));
    tokio::select! {
        runs = ends => Ok(runs?),
        () = app.closing.cancelled() => current(app, ids),
    }
}

fn current(app: &App, ids: &[RunId]) -> Result<Vec<Arc<Run>>, Problem> {
    ids.iter().map(|id| run(app, *id)).collect()
}

/// The present record of a run.
fn run(app: &App, id: RunId) -> Result<Arc<Run>, Problem> {
    let record = app.host.records().run(id)?.ok_or_else(|| Problem::not_found(format!("there is no run {id}")))?;
    Ok(record.run)
}

async fn answer(app: &App, accepted: AcceptedEvent, runs: Vec<Arc<Run>>, wait: Option<Duration>) -> Result<Response, Problem> {
    let finished = wait.is_some() && runs.iter().all(|run| run.status.is_terminal());
    let location = match runs.as_slice() {
        [run] if !finished => Some(format!("/api/v1/runs/{}", run.run_id)),
        _ => None,
    };
    let mut answered = Vec::with_capacity(runs.len());
    for run in runs {
        let show_output = wait.is_some() && run.status.is_terminal();
        let output = if show_output { Some(output::of(app, &run).await?) } else { None };
        answered.push(AcceptedRun { run: Arc::unwrap_or_clone(run), output });
    }
    let status = if finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let repeated = accepted.repeated;
    let answer = Accepted::runs(accepted, answered);
    let response = location.map_or_else(|| json(status, &answer), |location| located(status, location, &answer));
    let mut response = replayed(response, repeated);
    if let Some(applied) = wait.and_then(|wait| HeaderValue::try_from(format!("wait={}", wait.as_secs())).ok()) {
        response.headers_mut().insert(prefer::PREFERENCE_APPLIED, applied);
    }
    Ok(response)
}

/// An event, with what came of it.
#[derive(Serialize, ToSchema)]
#[schema(as = EventWithRuns)]
struct EventView {
    #[serde(flatten)]
    event: Event,
    /// The runs that it was resolved to.
    runs: Vec<RunId>,
}

/// Events that one request reads at most. A page of a rare selection can be empty and have more after it.
const EXAMINED: usize = 10_000;

refusals!(ListRefusals = [InvalidCursor, NotAcceptable, TooManyStreams]);

/// Lists accepted events, newest first, or follows them
///
/// One request reads at most 10,000 events, so a page can have fewer items than `limit` although `has_more` is true.
///
/// With `Accept: text/event-stream` the answer is a stream of the events that are accepted from now on, or after the cursor
/// `after`, oldest first: `data` is an event with its runs, `id` its cursor, `event` is `accepted`. The `prev_cursor` of a page is
/// the cursor of its first event, so a program that reads a page and follows from there misses nothing.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", security(("bearer" = ["runs:read"])),
    params(
        PageParams,
        FollowParams,
        ("event_type" = Option<String>, Query, description = "Only events of this type, or with `*` at the end: only types that begin so."),
        ("source" = Option<String>, Query, description = "Only events of this source."),
        ("workspace_id" = Option<String>, Query, description = "Only events of this workspace."),
        ("conversation_id" = Option<String>, Query, description = "Only events of this conversation."),
        ("thread_id" = Option<String>, Query, description = "Only events of this thread."),
        ("since" = Option<Timestamp>, Query, description = "Only events that the host accepted at this time or later."),
        ("until" = Option<Timestamp>, Query, description = "Only events that the host accepted before this time."),
    ),
    responses(
        (status = 200, description = "A page of events, or the stream of them.", content(
            (Page<EventView> = "application/json"),
            (String = "text/event-stream"),
        )),
        ListRefusals,
    ))]
pub(crate) async fn list(part: Option<Extension<RequestPart>>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let query = &mut request.query;
    let selection = Selection {
        event_type: query.text("event_type"),
        source: query.text("source"),
        workspace_id: query.text("workspace_id"),
        conversation_id: query.text("conversation_id"),
        thread_id: query.text("thread_id"),
        since: query.parsed("since")?,
        until: query.parsed("until")?,
        own: request.caller.0.workspace.clone(),
    };
    let follow = Follow::read(&request.headers, query)?;
    let (cursor, limit) = query.page()?;
    if let Follow::From(after) = follow {
        let feed = request.app.host.follow_events(after.as_deref(), move |record| selection.has(&record.event))?;
        return feed_stream(&request.app, "accepted", feed, EventView::from, part);
    }
    let read = move |records: &agent_host_runs::Records| {
        records.events_of_host(cursor.as_deref(), limit, EXAMINED, |record| selection.has(&record.event))
    };
    let Page { items, next_cursor, prev_cursor, has_more } = request.app.read(read).await?;
    let items = items.into_iter().map(EventView::from).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor, prev_cursor, has_more }))
}

/// The selection of events.
struct Selection {
    event_type: Option<String>,
    source: Option<String>,
    workspace_id: Option<String>,
    conversation_id: Option<String>,
    thread_id: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    /// The workspace of the key: no event of another one is shown.
    own: Option<String>,
}

impl Selection {
    fn has(&self, event: &Event) -> bool {
        let envelope = &event.envelope;
        let conversation = envelope.conversation.as_ref();
        let workspace = conversation.and_then(|it| it.workspace_id.as_ref());
        let same = |wanted: &Option<String>, has: Option<&String>| wanted.is_none() || wanted.as_ref() == has;
        self.event_type.as_ref().is_none_or(|wanted| match wanted.strip_suffix('*') {
            Some(prefix) => envelope.event_type.starts_with(prefix),
            None => envelope.event_type == *wanted,
        }) && same(&self.source, Some(&envelope.source))
            && same(&self.own, workspace)
            && same(&self.workspace_id, workspace)
            && same(&self.conversation_id, conversation.and_then(|it| it.conversation_id.as_ref()))
            && same(&self.thread_id, conversation.and_then(|it| it.thread_id.as_ref()))
            && self.since.is_none_or(|since| event.received_at >= since)
            && self.until.is_none_or(|until| event.received_at < until)
    }
}

impl From<EventRecord> for EventView {
    fn from(EventRecord { event, runs, .. }: EventRecord) -> Self {
        Self { event, runs }
    }
}

refusals!(ShowRefusals = [NotFound]);

/// Shows an event, and names the runs that answer it
#[utoipa::path(get, path = "/api/v1/events/{id}", tag = "events", security(("bearer" = ["runs:read"])), params(Id<EventId>),
    responses((status = 200, description = "The event.", body = EventView), ShowRefusals))]
pub(crate) async fn show(Id(id): Id<EventId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let workspace = |event: &Event| event.envelope.workspace().map(ToOwned::to_owned);
    let record = request.app.host.records().event(id)?;
    let record = record.filter(|record| request.caller.sees(workspace(&record.event).as_deref()));
    let record = record.ok_or_else(|| Problem::not_found(format!("there is no event {id}")))?;
    Ok(json(StatusCode::OK, &EventView::from(record)))
}
