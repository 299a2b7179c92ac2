//! Server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt};

/// Proxies close what is silent for 30 seconds or more.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// nginx collects answers by default, which would hold back every event.
pub(crate) const NO_BUFFERING: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// Time that a client waits before it reconnects.
const RETRY: Duration = Duration::from_secs(1);

/// Events for clients that reconnect: `retry` is a field of the first one. An event with no other field has no data, and some
/// parsers give their program an empty event for it.
pub(crate) fn with_retry(events: impl Stream<Item = Event> + Send + 'static) -> impl Stream<Item = Event> + Send + 'static {
    let mut retry = Some(RETRY);
    events.map(move |event| match retry.take() {
        Some(retry) => event.retry(retry),
        None => event,
    })
}

/// An answer of events. `held` lives as long as the stream does.
pub(crate) fn respond(events: impl Stream<Item = Event> + Send + 'static, held: impl Send + 'static) -> Response {
    let events = events.map(move |event| {
        let _held = &held;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().extend([NO_BUFFERING]);
    response
}
