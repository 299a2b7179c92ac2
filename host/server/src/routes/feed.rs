//! Streams of what the whole host has accepted or recorded, as server-sent events.

use std::future;

use agent_host_runs::HostError;
use axum::{
    http::HeaderMap,
    response::{Response, sse::Event},
};
use futures_util::{Stream, StreamExt};
use serde::Serialize;

use crate::{
    app::App,
    http::{
        Problem, Query,
        accept::{Form, negotiate},
        headers::last_event_id,
        sse,
    },
};

/// The form that a client asks for.
pub(super) enum Follow {
    /// A page.
    No,
    /// A stream after this cursor; `None` for what comes from now on.
    From(Option<String>),
}

impl Follow {
    /// Reads `Accept`, `Last-Event-ID` and `after`.
    pub(super) fn read(headers: &HeaderMap, query: &mut Query) -> Result<Self, Problem> {
        let after = query.text("after");
        match negotiate(headers)? {
            Form::Page if after.is_some() => Err(Problem::invalid(
                "after",
                "`after` is for streams (`Accept: text/event-stream`); a page continues with `cursor`",
            )),
            Form::Page => Ok(Self::No),
            Form::Stream => Ok(Self::From(last_event_id(headers)?.or(after))),
        }
    }
}

/// A stream of items, each with its cursor as `id`. The next item is read when the client has taken the one before.
pub(super) fn feed_stream<T: Serialize + Send + 'static>(
    app: &App,
    name: &'static str,
    items: impl Stream<Item = Result<(String, T), HostError>> + Send + 'static,
) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    let open = app.http.streaming();
    let events = items.scan(false, move |broken, item| {
        if *broken {
            return future::ready(None);
        }
        let event = item
            .map_err(Problem::from)
            .and_then(|(cursor, item)| Event::default().id(cursor).event(name).json_data(&item).map_err(Problem::internal));
        future::ready(Some(event.unwrap_or_else(|problem| {
            *broken = true;
            // Without an `id`, so that a client continues from its last position after a reconnect.
            Event::default().event("problem").data(problem.to_json())
        })))
    });
    let events = sse::with_retry(events).take_until(app.closing.clone().cancelled_owned());
    Ok(sse::respond(events, (place, open)))
}
