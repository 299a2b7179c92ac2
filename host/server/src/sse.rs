//! A run as a stream of server-sent events.

use std::{convert::Infallible, future, time::Duration};

use agent_host_ledger::Ledger;
use agent_host_protocol::{RunEvent, RunId};
use agent_host_runs::HostError;
use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{StreamExt, stream};

use crate::{app::App, problem::Problem};

/// How long a client waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// Proxies close what is silent for 30 seconds or more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Events after sequence `after`, each with its cursor as `id`; ends after the terminal event, or when the
/// server goes down. The next event is read from the ledger when the client has taken the one before, so a slow
/// reader holds one event and nothing in the host.
pub(crate) fn stream(app: &App, id: RunId, after: u64) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    let events = app.host.follow(id, after)?;
    let open = app.http.streaming();
    let events = events.scan(Reading::On, move |reading, event| future::ready(step(reading, id, event)));
    let stream = stream::once(future::ready(Event::default().retry(RETRY)))
        .chain(events)
        .take_until(app.closing.clone().cancelled_owned())
        .map(move |event| {
            let _counts = &open;
            // Held for as long as the stream is.
            let _ = &place;
            Ok::<_, Infallible>(event)
        });
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // nginx collects answers by default, which would hold back every event.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Whether the stream goes on.
enum Reading {
    On,
    Broken,
}

fn step(reading: &mut Reading, id: RunId, event: Result<RunEvent, HostError>) -> Option<Event> {
    if matches!(reading, Reading::Broken) {
        return None;
    }
    Some(encode(id, event).unwrap_or_else(|problem| {
        *reading = Reading::Broken;
        // Without an `id`, so a client that connects again goes on where it was.
        Event::default().event("problem").data(problem.to_json())
    }))
}

fn encode(id: RunId, event: Result<RunEvent, HostError>) -> Result<Event, Problem> {
    let event = event?;
    let encoded = Event::default().id(Ledger::run_cursor(id, event.sequence));
    // A type with a line break would break the frame. The host refuses such types; `data` has it in any case.
    let encoded = if event.kind.contains(['\r', '\n']) { encoded } else { encoded.event(&event.kind) };
    encoded.json_data(&event).map_err(Problem::internal)
}
