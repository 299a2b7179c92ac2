//! A run as a stream of server-sent events.

use std::future;

use agent_host_protocol::{RunEvent, RunId};
use agent_host_runs::{HostError, Records};
use axum::response::{Response, sse::Event};
use futures_util::StreamExt;

use crate::{
    app::App,
    http::{Problem, sse},
    langbot::Dialect,
};

/// Events after sequence `after`, each with its cursor as `id`; ends after the terminal event, or when the
/// server goes down. The next event is read from the ledger when the client has taken the one before, so a slow
/// reader holds one event and nothing in the host.
pub(crate) fn stream(app: &App, id: RunId, after: u64, dialect: Option<Dialect>) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    let events = app.host.follow(id, after)?;
    let watch = app.host.watch(id).looking();
    let open = app.http.streaming();
    let events = events.scan(StreamState::On, move |reading, event| future::ready(step(reading, id, event, dialect)));
    let events = sse::with_retry(events).take_until(app.closing.clone().cancelled_owned());
    Ok(sse::respond(events, (place, open, watch)))
}

/// The state of the stream.
enum StreamState {
    On,
    Broken,
}

fn step(reading: &mut StreamState, id: RunId, event: Result<RunEvent, HostError>, dialect: Option<Dialect>) -> Option<Event> {
    if matches!(reading, StreamState::Broken) {
        return None;
    }
    Some(encode(id, event, dialect).unwrap_or_else(|problem| {
        *reading = StreamState::Broken;
        // Without an `id`, so that a client continues from its last position after a reconnect.
        Event::default().event("problem").data(problem.to_json())
    }))
}

fn encode(id: RunId, event: Result<RunEvent, HostError>, dialect: Option<Dialect>) -> Result<Event, Problem> {
    let event = event?;
    let encoded = Event::default().id(Records::run_cursor(id, event.sequence));
    // A type with a line break would break the frame. The host refuses such types; `data` has it in any case.
    let encoded = if event.kind.contains(['\r', '\n']) { encoded } else { encoded.event(&event.kind) };
    match dialect {
        Some(dialect) => encoded.json_data(dialect.run_event(&event)?),
        None => encoded.json_data(&event),
    }
    .map_err(Problem::internal)
}
