//! Streams of what the whole host has accepted or recorded, as server-sent events.

use std::future;

use agent_host_runs::FollowedFeed;
use axum::{
    Extension,
    http::HeaderMap,
    response::{Response, sse::Event},
};
use futures_util::{StreamExt, stream};
use serde::Serialize;

use crate::{
    app::App,
    http::{
        Problem, Query,
        accept::{Form, negotiate},
        forwarded::RequestPart,
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

/// A stream of items, each shown as `show` has it, with its cursor as `id`. The next item is read when the client has taken the one before. As a part of
/// the stream of all partitions it begins with its place.
pub(super) fn feed_stream<T: Send + 'static, S: Serialize>(
    app: &App,
    name: &'static str,
    feed: FollowedFeed<T>,
    show: impl Fn(T) -> S + Send + 'static,
    part: Option<Extension<RequestPart>>,
) -> Result<Response, Problem> {
    let FollowedFeed { after, items } = feed;
    let place = app.subscribe()?;
    let open = app.http.streaming();
    let events = items.scan(false, move |broken, item| {
        if *broken {
            return future::ready(None);
        }
        let event = item
            .map_err(Problem::from)
            .and_then(|(cursor, item)| Event::default().id(cursor).event(name).json_data(show(item)).map_err(Problem::internal));
        future::ready(Some(event.unwrap_or_else(|problem| {
            *broken = true;
            // Without an `id`, so that a client continues from its last position after a reconnect.
            Event::default().event("problem").data(problem.to_json())
        })))
    });
    let begin = part.is_some_and(|Extension(part)| part == RequestPart::Feed).then(|| Event::default().id(after));
    let events = stream::iter(begin).chain(sse::with_retry(events)).take_until(app.closing.clone().cancelled_owned());
    Ok(sse::respond(events, (place, open)))
}
