//! Runs: asked for, followed, cancelled; and threads, deleted.

use std::time::Duration;

use agent_host_protocol::Scope;
use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    ThreadId,
    errors::{Code, Refusal, agent_refusals},
    run_id,
};
use crate::{
    access::ApiRequest,
    agents::{
        engine::{self, ReadMode, StartedRun},
        media,
        read::{self, ReadInput},
        routes,
        store::Thread,
    },
    agui::{cursor::Place, strict},
    http::{ProblemCode, body, headers::LAST_EVENT_ID, json, located, percent::encode},
};

/// Default time, in s, that a stream stays open without events.
const IDLE_LIMIT: u64 = 300;
/// Largest value of that time, in s.
const MAX_IDLE_LIMIT: u64 = 3_600;
/// The forms of a stream, as a client names them.
const STREAMS: [&str; 2] = ["text/event-stream", "application/vnd.ag-ui.event+proto"];

/// A run that was taken.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AgentTaskAccepted)]
struct TaskAccepted {
    /// The run of the host: `GET /api/v1/runs/{id}` shows it.
    task_id: String,
    /// The thread.
    thread_id: String,
    /// The run.
    run_id: String,
    /// True if the thread is new.
    created: bool,
}

/// A run whose end was asked for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AgentCancelAccepted)]
struct CancelAccepted {
    /// The thread.
    thread_id: String,
    /// The run.
    run_id: String,
    /// The value is always `true`.
    accepted: bool,
}

agent_refusals!(
    StartRefusals = [
        SessionNotFound,
        NotAcceptable,
        RequestTimeout,
        RunLimitExceeded,
        RunIdConflict,
        InterruptsOpen,
        Conflict,
        Expired,
        PayloadTooLarge,
        UnsupportedMediaType,
        RunMessagesInvalid,
        InvalidRunId,
        InvalidLastEventId,
        SessionIdInvalid,
        UnknownInterrupt,
        SseConnectionLimit,
        QueueFull,
        UpstreamFailed,
        InsufficientStorage,
    ]
);

/// Asks the agent for a run
///
/// The body is a `RunAgentInput` of AG-UI. The run is durable when this answers: with 202, or, where `Accept` names a stream,
/// with its events. The same `runId` again is the same run.
#[utoipa::path(post, path = "/api/v1/agent/runs", tag = "agent",
    security(("bearer" = ["events:write"])),
    params(("Accept" = Option<String>, Header, description = "`text/event-stream` streams the events at once.")),
    request_body(content = Object, description = "A `RunAgentInput` (<https://ag-ui.com/spec/1.0/schema.json>).",
        example = routes::run_example),
    responses(
        (status = 200, description = "The events of the run, as a stream.", content(
            (routes::EventStream = "text/event-stream"),
            (String = "application/vnd.ag-ui.event+proto"),
        )),
        (status = 202, description = "The run.", body = TaskAccepted,
            headers(("Location" = String, description = "Its events."))),
        StartRefusals,
    ))]
pub(crate) async fn start_agent_run(request: ApiRequest) -> Result<Response, Refusal> {
    request.allow(Scope::EventsWrite)?;
    let ApiRequest { app, caller, headers, body, .. } = request;
    let agent = super::agent(&app)?;
    body::require_json(&headers)?;
    let strict = super::is_strict(&app);
    let read = if strict {
        let body = match body::read(body, app.host.config().limits.http_body_bytes).await {
            Err(problem) if problem.code() == ProblemCode::PayloadTooLarge => {
                return Err(Refusal::new(Code::RunInputInvalid, "RunAgentInput payload exceeds size limit").with("field", "body"));
            }
            body => body?,
        };
        let input = strict::parse(&body)?;
        media::check_signed(&app, &headers, &input)?;
        ReadInput::strict(input)
    } else {
        read::read(&app, &headers, body).await?
    };
    let props = routes::ForwardedProps::of(&read.input)?;
    let reading = if names_stream(&headers) { ReadMode::Stream } else { ReadMode::Elsewhere };
    let started = engine::begin(&app, &caller, &agent, &read, reading).await?;
    if reading == ReadMode::Stream {
        return Ok(routes::follow(&app, started, &read.input, props, &headers).await?);
    }
    Ok(accepted(&started))
}

/// True if `Accept` names a stream. `*/*` does not count, because clients that read no streams send it.
fn names_stream(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|kind| STREAMS.iter().any(|stream| kind.eq_ignore_ascii_case(stream)));
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q=")));
        named && weight.is_none_or(|weight| weight.trim().parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

fn accepted(started: &StartedRun) -> Response {
    let (thread_id, run_id) = (started.thread.id.clone(), started.run.run_id.clone());
    let location = format!("/api/v1/agent/runs/{}/events?runId={}", encode(&thread_id), encode(&run_id));
    let task = TaskAccepted {
        task_id: started.run.host_run.to_string(),
        thread_id,
        run_id,
        created: started.thread_created && !started.repeated,
    };
    located(StatusCode::ACCEPTED, location, &task)
}

agent_refusals!(EventRefusals = [SessionNotFound, InvalidRunId, InvalidLastEventId, SessionIdInvalid, SseConnectionLimit]);

/// Follows the events of a run
///
/// The past events of the run, then new ones until its end. Each event has an `id`, from which a client continues after a
/// reconnect.
#[utoipa::path(get, path = "/api/v1/agent/runs/{threadId}/events", tag = "agent",
    security(("bearer" = ["runs:read"]), ("stream_token" = [])),
    params(
        ThreadId,
        ("runId" = String, Query, description = "The run.", max_length = 128),
        ("after" = Option<String>, Query, description = "The `id` of the last event that was seen."),
        ("idle_limit" = Option<u64>, Query, description = "Seconds without an event after which the stream ends.", minimum = 1, maximum = 3600),
        ("Last-Event-ID" = Option<String>, Header, description = "The same as `after`, and wins over it."),
    ),
    responses(
        (status = 200, description = "The events.", content((routes::EventStream = "text/event-stream"))),
        (status = 204, description = "That was the last event: nothing follows."),
        EventRefusals,
    ))]
pub(crate) async fn agent_run_events(ThreadId(thread_id): ThreadId, request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, mut query, headers, .. } = request;
    caller.may(Scope::RunsRead)?;
    super::agent(&app)?;
    let run_id = run_id(&mut query)?;
    let after = query.text("after");
    let idle = idle_limit(query.value("idle_limit").as_deref())?;
    query.finish()?;
    let after = last_event_id(&headers)?.or(after).map(|id| cursor(&run_id, &id)).transpose()?;
    let thread = Thread::of(&caller, &thread_id);
    Ok(routes::read_on(&app, thread, &run_id, after, Some(idle)).await?)
}

/// The header wins over the query: a browser sends it when it connects again to the address that it had.
fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.to_str().map(|text| Some(text.to_owned())).map_err(|_| no_event_id("it is not ASCII"))
}

/// The place that the `id` of an event names: `{runId}:{sequence}.{part}`, of this run.
fn cursor(run_id: &str, id: &str) -> Result<Place, Refusal> {
    let (of, at) = id.rsplit_once(':').ok_or_else(|| no_event_id("it is the `id` of an event of the stream"))?;
    if of != run_id {
        return Err(no_event_id("it is that of an event of another run"));
    }
    at.parse().map_err(no_event_id)
}

fn no_event_id(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::InvalidLastEventId, format!("`Last-Event-ID` is not an event of this run: {why}"))
}

fn idle_limit(given: Option<&str>) -> Result<Duration, Refusal> {
    let seconds = given.map_or(Some(IDLE_LIMIT), |text| text.parse().ok());
    match seconds.filter(|seconds| (1..=MAX_IDLE_LIMIT).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => {
            let detail = format!("`idle_limit` is a number of seconds from 1 to {MAX_IDLE_LIMIT}");
            Err(Refusal::new(Code::PayloadInvalid, detail).with("field", "idle_limit"))
        }
    }
}

agent_refusals!(CancelRefusals = [SessionNotFound, InvalidRunId, SessionIdInvalid, InsufficientStorage]);

/// Asks for the end of a run
///
/// The run ends a moment later. An ended run stays as it is.
#[utoipa::path(post, path = "/api/v1/agent/runs/{threadId}/cancel", tag = "agent", security(("bearer" = ["runs:control"])),
    params(ThreadId, ("runId" = String, Query, description = "The run.", max_length = 128)),
    responses((status = 202, description = "It is asked for.", body = CancelAccepted), CancelRefusals))]
pub(crate) async fn cancel_agent_run(ThreadId(thread_id): ThreadId, request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, mut query, .. } = request;
    caller.may(Scope::RunsControl)?;
    super::agent(&app)?;
    let run_id = run_id(&mut query)?;
    query.finish()?;
    engine::cancel(&app, &caller, &Thread::of(&caller, &thread_id), &run_id).await?;
    Ok(json(StatusCode::ACCEPTED, &CancelAccepted { thread_id, run_id, accepted: true }))
}

agent_refusals!(DeleteRefusals = [SessionIdInvalid, Conflict, RunLimitExceeded, InsufficientStorage]);

/// Deletes a thread
///
/// Deletes the messages, the state and the artifacts. Deleting a missing thread succeeds.
#[utoipa::path(delete, path = "/api/v1/agent/threads/{threadId}", tag = "agent", security(("bearer" = ["runs:control"])),
    params(ThreadId), responses((status = 204, description = "It is gone."), DeleteRefusals))]
pub(crate) async fn delete_agent_thread(ThreadId(thread_id): ThreadId, request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, query, .. } = request;
    caller.may(Scope::RunsControl)?;
    super::agent(&app)?;
    query.finish()?;
    engine::forget(&app, &caller, &Thread::of(&caller, &thread_id)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Deletes a thread, by its other name
///
/// The same as `DELETE /api/v1/agent/threads/{threadId}`.
#[utoipa::path(delete, path = "/api/v1/agent/sessions/{threadId}", tag = "agent", security(("bearer" = ["runs:control"])),
    params(ThreadId), responses((status = 204, description = "It is gone."), DeleteRefusals))]
pub(crate) async fn delete_agent_session(thread: ThreadId, request: ApiRequest) -> Result<Response, Refusal> {
    delete_agent_thread(thread, request).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_stream_is_given_to_who_names_one() {
        let names = |accept: &[&str]| {
            let headers = accept.iter().map(|accept| (header::ACCEPT, HeaderValue::from_str(accept).unwrap())).collect();
            names_stream(&headers)
        };
        for accept in [
            &["text/event-stream"][..],
            &["Text/Event-Stream; q=0.5"],
            &["application/json, text/event-stream"],
            &["application/json", "application/vnd.ag-ui.event+proto"],
        ] {
            assert!(names(accept), "{accept:?}");
        }
        for accept in [&[][..], &["*/*"], &["text/*"], &["application/json"], &["text/event-stream;q=0"], &["text/event-streams"]]
        {
            assert!(!names(accept), "{accept:?}");
        }
    }

    #[test]
    fn the_id_of_an_event_is_one_of_its_run() {
        assert_eq!(cursor("run:1", "run:1:12.3").unwrap().to_string(), "12.3");
        for id in ["", "12.3", "run:2:12.3", "run:1:12", "run:1:a.b", "run:1:12.3 "] {
            assert_eq!(cursor("run:1", id).unwrap_err().code(), Code::InvalidLastEventId, "{id}");
        }
    }

    #[test]
    fn a_stream_waits_for_an_event_as_long_as_it_is_told() {
        assert_eq!(idle_limit(None).unwrap().as_secs(), 300);
        assert_eq!((idle_limit(Some("1")).unwrap().as_secs(), idle_limit(Some("3600")).unwrap().as_secs()), (1, 3600));
        for text in ["", "0", "3601", "-1", "1.5", "long"] {
            assert_eq!(idle_limit(Some(text)).unwrap_err().code(), Code::PayloadInvalid, "{text}");
        }
    }

    #[test]
    fn a_location_leads_to_its_thread_whatever_that_is_called() {
        assert_eq!(encode("a b/c?d#é"), "a%20b%2Fc%3Fd%23%C3%A9");
        assert_eq!(encode("550e8400-e29b.~_"), "550e8400-e29b.~_");
    }
}
