//! The facts of a thread: a page, a stream of server-sent events, or a stream of lines.

use std::convert::Infallible;

use agent_host_protocol::{Page, Scope};
use agent_host_runs::{
    HostError, ThreadKey,
    facts::{Fact, FactType, Shape},
};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::value::RawValue;

use super::{ThreadName, cursor};
use crate::{
    access::ApiRequest,
    app::App,
    http::{
        Path, Problem,
        accept::{Form, negotiate},
        headers::last_event_id,
        json, sse,
    },
    openapi::{AfterParams, ThreadParams, refusals},
};

/// The media type of a stream of lines.
const NDJSON: &str = "application/x-ndjson";

refusals!(EventRefusals = [NotFound, InvalidCursor, ProjectionChanged, ThreadForgotten, NotAcceptable, TooManyStreams]);

/// The facts of a thread: a page, or a stream for those who name it in `Accept`
///
/// A stream has the facts that are there, then those that come, each after it was committed, on through later turns. The `id`
/// of a server-sent event is the number of its fact.
#[utoipa::path(get, path = "/api/v1/threads/{id}/events", tag = "threads",
    security(("bearer" = ["runs:read"]), ("stream_token" = [])),
    params(
        ThreadParams,
        AfterParams,
        ("shape" = Option<String>, Query, description = "`seed`, `contracts` or `profile-0.4.0`."),
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream: the `id` of the last event that was seen. It wins over `after`."),
    ),
    responses(
        (status = 200, description = "A page of facts, or the stream of them.", content(
            (Page<Fact> = "application/json"),
            (String = "text/event-stream"),
            (String = "application/x-ndjson"),
        )),
        EventRefusals,
    ))]
pub(crate) async fn events(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let name = request.thread(&id)?;
    let after = request.query.text("after");
    let limit = request.query.limit()?;
    let shape = shape(&mut request)?;
    request.query.finish()?;
    let form = stream_form(&request.headers)?;
    let after = match form {
        StreamForm::Page => after,
        StreamForm::Sse | StreamForm::Lines => last_event_id(&request.headers)?.or(after),
    };
    let after = after.map(|text| cursor(&text, "after")).transpose()?.unwrap_or(0);
    if form == StreamForm::Page {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let facts = super::read(&request.app, name, move |threads, thread| threads.facts(thread, after, limit + 1)).await?;
        return page(facts, after, limit, shape);
    }
    let key = checked(&request.app, name, after).await?;
    respond(&request.app, form, shape, request.app.host.follow_thread(key, after)?)
}

/// The key of a thread that has a fact with this number, or whose next fact follows it.
async fn checked(app: &App, name: ThreadName, after: u64) -> Result<ThreadKey, Problem> {
    super::read(app, name, move |threads, thread| {
        threads.facts(thread, after, 1)?;
        Ok(thread.key().clone())
    })
    .await
}

/// The form of an answer with facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamForm {
    Page,
    Sse,
    Lines,
}

pub(super) fn stream_form(headers: &HeaderMap) -> Result<StreamForm, Problem> {
    let mut lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    if lines.any(|line| line.split(',').any(|range| range.split(';').next().is_some_and(|range| range.trim() == NDJSON))) {
        return Ok(StreamForm::Lines);
    }
    Ok(match negotiate(headers)? {
        Form::Page => StreamForm::Page,
        Form::Stream => StreamForm::Sse,
    })
}

/// The shape that a request asks for.
pub(super) fn shape(request: &mut ApiRequest) -> Result<Shape, Problem> {
    let Some(name) = request.query.text("shape") else { return Ok(Shape::Seed) };
    Shape::from_name(&name).ok_or_else(|| {
        let known = Shape::ALL.map(Shape::as_str).join(", ");
        Problem::invalid("shape", format!("`shape` must be one of: {known}"))
    })
}

fn page(mut facts: Vec<Fact>, after: u64, limit: usize, shape: Shape) -> Result<Response, Problem> {
    let has_more = facts.len() > limit;
    facts.truncate(limit);
    let next = facts.last().map_or(after, |fact| fact.sequence);
    let shown = |fact: &Fact| RawValue::from_string(shape.json(fact)?);
    let items = facts.iter().map(shown).collect::<Result<Vec<_>, _>>().map_err(Problem::internal)?;
    Ok(json(StatusCode::OK, &Page { items, next_cursor: Some(next.to_string()), prev_cursor: None, has_more }))
}

/// A stream of facts. The next fact is read when the client has taken the one before, so a slow reader holds one fact and
/// nothing else in the host.
pub(super) fn respond(
    app: &App,
    form: StreamForm,
    shape: Shape,
    facts: impl Stream<Item = Result<Fact, HostError>> + Send + 'static,
) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    let open = app.http.streaming();
    let facts = facts.map(move |fact| {
        let fact = fact?;
        let text = shape.json(&fact).map_err(Problem::internal)?;
        Ok::<_, Problem>((fact.sequence, text))
    });
    let facts = facts.take_until(app.closing.clone().cancelled_owned());
    if form == StreamForm::Lines {
        let lines = facts.map(|fact| {
            let line = fact.map_or_else(|problem| problem.to_json(), |(_, text)| text);
            Ok::<_, Infallible>(Bytes::from(format!("{line}\n")))
        });
        let held = (place, open);
        let lines = lines.map(move |line| {
            let _held = &held;
            line
        });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(NDJSON)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            sse::NO_BUFFERING,
        ];
        return Ok((StatusCode::OK, headers, Body::from_stream(lines)).into_response());
    }
    let events = facts.map(|fact| match fact {
        Ok((sequence, text)) => Event::default().id(sequence.to_string()).event("fact").data(text),
        // Without an `id`, so that a client continues from its last position after a reconnect.
        Err(problem) => Event::default().event("problem").data(problem.to_json()),
    });
    Ok(sse::respond(sse::with_retry(events), (place, open)))
}

/// The facts of one turn: until the snapshot behind the end of the turn.
pub(super) fn of_turn(
    facts: impl Stream<Item = Result<Fact, HostError>> + Send + 'static,
    turn: String,
) -> impl Stream<Item = Result<Fact, HostError>> + Send + 'static {
    // Ends without waiting for another fact, which may never come.
    stream::unfold(Some((Box::pin(facts), false)), move |state| {
        let turn = turn.clone();
        async move {
            let (mut facts, mut has_ended) = state?;
            let fact = facts.next().await?;
            let mut is_over = fact.is_err();
            if let Ok(fact) = &fact
                && fact.turn_id.as_deref() == Some(turn.as_str())
            {
                has_ended |= fact.kind.is_turn_terminal();
                is_over = has_ended && fact.kind == FactType::SnapshotUpdated;
            }
            Some((fact, (!is_over).then_some((facts, has_ended))))
        }
    })
}
