//! The place of a connection between a request and its answer.
//!
//! hyper drops the answer of a client that has ended its side, since it cannot tell one that only sends no more from one that has left.
//! An answer of known length is written in either case; a stream ends, since it would have no reader for as long as it has nothing to
//! say.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::Response,
};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// No answer is awaited, or it is a stream.
    #[default]
    Open,
    /// A request has come, and its answer is not yet with hyper.
    Awaited,
    /// hyper has all of the answer; some of it may not be written.
    Given,
}

/// One for each connection.
#[derive(Debug, Default)]
pub(crate) struct AnswerState(Mutex<(Stage, Option<Waker>)>);

impl AnswerState {
    /// A request has come.
    pub(crate) fn begin(&self) {
        self.0.lock().0 = Stage::Awaited;
    }

    /// The answer, which tells when hyper has taken all of it.
    pub(crate) fn watch(self: &Arc<Self>, response: Response<Body>) -> Response<Body> {
        if response.body().size_hint().exact().is_none() {
            self.set(Stage::Open);
            return response;
        }
        response.map(|body| Body::new(WatchedBody { body, state: Arc::clone(self) }))
    }

    /// True if the end of the client's side is not to be seen yet; its reader is woken when it is.
    pub(crate) fn is_awaited(&self, context: &Context<'_>) -> bool {
        let (stage, waker) = &mut *self.0.lock();
        if *stage == Stage::Open {
            return false;
        }
        *waker = Some(context.waker().clone());
        true
    }

    /// Everything that hyper had is written.
    pub(crate) fn flushed(&self) {
        if self.0.lock().0 == Stage::Given {
            self.set(Stage::Open);
        }
    }

    fn set(&self, stage: Stage) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = stage;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A body of known length.
struct WatchedBody {
    body: Body,
    state: Arc<AnswerState>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.state.set(Stage::Given);
    }
}
