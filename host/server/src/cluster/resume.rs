//! A stream of events that a client keeps while the active host changes.
//!
//! When the stream breaks off, the client gets comments, and the request is sent again to the next active host with the id of the last
//! event that the client got. An event is held back until it is whole, so none is cut and none is sent twice.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
};
use futures_util::{
    Stream, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::{
    client_request::ClientRequest,
    events::EventSplitter,
    forward::{Attempt, Forwarder, OpenRequest, PAUSE},
    host_listener::is_event_stream,
};
use crate::http::{forwarded, sse::KEEP_ALIVE};

/// Comments of a stream that has no host.
const COMMENT: Bytes = Bytes::from_static(b": the stream goes on at the next active host\n\n");
/// Interval of these comments: often, because they also tell that the client is gone.
const COMMENT_INTERVAL: Duration = Duration::from_secs(2);
/// A stream of another host that is silent for so long has lost its connection: hosts send comments.
const SILENCE: Duration = KEEP_ALIVE.saturating_mul(3);

/// The source of the events at the moment.
enum Source {
    /// A host has the stream. `left` comes when that is this one and gives the ledger away, from when on its routes break off, `gone` when
    /// it is another one that is not the active one any more.
    Host {
        bytes: BoxStream<'static, Result<Bytes, axum::Error>>,
        left: BoxFuture<'static, ()>,
        gone: BoxFuture<'static, ()>,
        silence: Option<Duration>,
    },
    /// The stream has broken off, and its rest is asked for.
    Resuming(BoxFuture<'static, Resumption>),
    /// The stream has ended.
    Over,
}

/// The outcome of asking for the rest of a stream.
enum Resumption {
    On(Source),
    /// There is no rest.
    Complete,
    /// The rest cannot be had.
    Failed(&'static str),
}

struct ResumingStream {
    forwarder: Forwarder,
    request: Arc<ClientRequest>,
    source: Source,
    events: EventSplitter,
    /// Of a request that was forwarded.
    _open: Option<OpenRequest>,
}

/// The events of a stream that `host` has begun, over all changes of the active host.
pub(super) fn stream(
    forwarder: Forwarder,
    request: Arc<ClientRequest>,
    host: Arc<str>,
    body: Incoming,
    open: OpenRequest,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let source = Source::of_host(&forwarder, host, Body::new(body));
    ResumingStream { forwarder, request, source, events: EventSplitter::default(), _open: Some(open) }.pieces()
}

/// The events of a stream that this host has begun, also after the host has `left`.
pub(super) fn stream_of_this_host(
    forwarder: Forwarder,
    request: Arc<ClientRequest>,
    left: CancellationToken,
    body: Body,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let source = Source::of_this_host(left, body);
    ResumingStream { forwarder, request, source, events: EventSplitter::default(), _open: None }.pieces()
}

impl Source {
    fn of_host(forwarder: &Forwarder, host: Arc<str>, body: Body) -> Self {
        let left = Box::pin(std::future::pending());
        Self::Host { bytes: body.into_data_stream().boxed(), left, gone: forwarder.gone(host), silence: Some(SILENCE) }
    }

    /// The stream of the routes of this host, until the host leaves.
    fn of_this_host(left: CancellationToken, body: Body) -> Self {
        let (left, gone) = (Box::pin(left.cancelled_owned()), Box::pin(std::future::pending()));
        Self::Host { bytes: body.into_data_stream().boxed(), left, gone, silence: None }
    }
}

impl ResumingStream {
    fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::unfold(self, |mut stream| async move { stream.next().await.map(|piece| (piece, stream)) })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match &mut self.source {
                Source::Over => return None,
                Source::Host { bytes, left, gone, silence } => {
                    let silent = async {
                        match *silence {
                            Some(silence) => tokio::time::sleep(silence).await,
                            None => std::future::pending().await,
                        }
                    };
                    let piece = tokio::select! {
                        biased;
                        () = left => Some(Err(axum::Error::new("this host gives the ledger away"))),
                        piece = bytes.next() => piece,
                        () = self.forwarder.closing().cancelled() => {
                            self.source = Source::Over;
                            return Some(Err(io::Error::other("the host is going down")));
                        }
                        () = gone => Some(Err(axum::Error::new("another host is the active one now"))),
                        () = silent => Some(Err(axum::Error::new("the host is silent"))),
                    };
                    match piece {
                        Some(Ok(bytes)) => {
                            let whole = self.events.push(&bytes);
                            if !whole.is_empty() {
                                return Some(Ok(whole.into()));
                            }
                        }
                        None => {
                            self.source = Source::Over;
                            let rest = self.events.rest();
                            return (!rest.is_empty()).then(|| Ok(rest.into()));
                        }
                        Some(Err(error)) => return Some(self.break_off(&error)),
                    }
                }
                Source::Resuming(resuming) => match tokio::time::timeout(COMMENT_INTERVAL, resuming).await {
                    Err(_waiting) => return Some(Ok(COMMENT)),
                    Ok(Resumption::On(source)) => {
                        tracing::debug!("a stream of events goes on at the next active host");
                        self.source = source;
                    }
                    Ok(Resumption::Complete) => self.source = Source::Over,
                    Ok(Resumption::Failed(reason)) => {
                        self.source = Source::Over;
                        return Some(Err(io::Error::other(reason)));
                    }
                },
            }
        }
    }

    /// Begins to ask for the rest, where there is a place from which it goes on. Gives a comment, or the end of the stream.
    fn break_off(&mut self, error: &axum::Error) -> io::Result<Bytes> {
        tracing::debug!(%error, "a stream of events broke off at the active host");
        let is_between_events = self.events.break_off();
        let has_place = self.events.last_id().is_some() || (!self.events.has_events() && self.request.begins_at_a_place());
        if !is_between_events || !has_place {
            self.source = Source::Over;
            return Err(io::Error::other("the stream broke off at the active host, and has no place from which it goes on"));
        }
        let last_id = self.events.last_id().map(str::to_owned);
        self.source = Source::Resuming(Box::pin(resume(self.forwarder.clone(), Arc::clone(&self.request), last_id)));
        Ok(COMMENT)
    }
}

/// Asks for the rest of a stream until a host has it, or the time is over.
async fn resume(forwarder: Forwarder, request: Arc<ClientRequest>, last_id: Option<String>) -> Resumption {
    let deadline = Instant::now() + forwarder.stream_patience();
    let mut owner = forwarder.owner().clone();
    loop {
        let closing = forwarder.closing().cancelled();
        let attempt = tokio::select! {
            attempt = forwarder.attempt(&request, last_id.as_deref()) => attempt,
            () = closing => return Resumption::Failed("the host is going down"),
        };
        let (status, is_stream) = match &attempt {
            Ok(Attempt::Here(_, response)) => (response.status(), is_event_stream(response.headers())),
            Ok(Attempt::At(_, response)) if forwarded::is_moved(response.headers()) => (StatusCode::SERVICE_UNAVAILABLE, false),
            Ok(Attempt::At(_, response)) => (response.status(), is_event_stream(response.headers())),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, false),
        };
        match (status, is_stream, attempt) {
            (StatusCode::OK, true, Ok(Attempt::Here(left, response))) => {
                return Resumption::On(Source::of_this_host(left, response.into_body()));
            }
            (StatusCode::OK, true, Ok(Attempt::At(host, response))) => {
                return Resumption::On(Source::of_host(&forwarder, host, Body::new(response.into_body())));
            }
            (StatusCode::NO_CONTENT, ..) => return Resumption::Complete,
            // A host that has just begun, or has no place for one more stream at the moment.
            (StatusCode::SERVICE_UNAVAILABLE, ..) if Instant::now() < deadline => {}
            (StatusCode::SERVICE_UNAVAILABLE, ..) => return Resumption::Failed("no host has become active in time"),
            _ => return Resumption::Failed("the next active host does not have the rest of the stream"),
        }
        tokio::select! {
            () = owner.changed_within(PAUSE) => {}
            () = forwarder.closing().cancelled() => return Resumption::Failed("the host is going down"),
        }
    }
}
