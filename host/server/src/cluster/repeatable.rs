//! The body of a request that may have to be sent again.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest body that is kept for another attempt: the default of `limits.http_body_bytes`.
const KEPT_BYTES: usize = 256 * 1024;
/// Bytes of all bodies that are kept at one time.
const ALL_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// The body of a request of a client, of which [`Self::attempt`] gives one attempt after the other.
#[derive(Debug, Clone)]
pub(super) struct RepeatableBody(Arc<Mutex<BodyState>>);

#[derive(Debug)]
struct BodyState {
    body: Body,
    /// The pieces that came so far, if all of them were kept.
    kept: Vec<Bytes>,
    room: Option<OwnedSemaphorePermit>,
    /// True if a piece came that was not kept.
    is_lost: bool,
    /// Number of the attempt that may read.
    attempt: u64,
}

fn all_room() -> &'static Arc<Semaphore> {
    static ROOM: OnceLock<Arc<Semaphore>> = OnceLock::new();
    ROOM.get_or_init(|| Arc::new(Semaphore::new(ALL_KEPT_BYTES)))
}

impl RepeatableBody {
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(BodyState { body, kept: Vec::new(), room: None, is_lost: false, attempt: 0 })))
    }

    /// True if the body can be sent from its begin.
    pub(super) fn is_whole(&self) -> bool {
        !self.0.lock().is_lost
    }

    /// The body from its begin, for one more attempt; the attempt before reads nothing any more. `None` where a part of it is gone.
    pub(super) fn attempt(&self) -> Option<Body> {
        let mut state = self.0.lock();
        if state.is_lost {
            return None;
        }
        state.attempt += 1;
        // An untouched body says its length, or that there is none.
        let length = state.kept.is_empty().then(|| state.body.size_hint());
        let is_empty = state.kept.is_empty() && state.body.is_end_stream();
        let attempt = Attempt { state: Arc::clone(&self.0), number: state.attempt, next: 0, length, is_empty };
        drop(state);
        Some(Body::new(attempt))
    }
}

impl BodyState {
    fn keep(&mut self, piece: &Bytes) {
        if self.is_lost || piece.is_empty() {
            return;
        }
        let bytes: usize = self.kept.iter().map(Bytes::len).sum();
        let has_room = bytes + piece.len() <= KEPT_BYTES;
        let more = u32::try_from(piece.len()).ok().filter(|_| has_room);
        let more = more.and_then(|more| Arc::clone(all_room()).try_acquire_many_owned(more).ok());
        let Some(more) = more else {
            self.is_lost = true;
            self.kept = Vec::new();
            self.room = None;
            return;
        };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        self.kept.push(piece.clone());
    }
}

/// One attempt: what was kept, and then the rest.
struct Attempt {
    state: Arc<Mutex<BodyState>>,
    number: u64,
    /// Index of the next kept piece.
    next: usize,
    length: Option<SizeHint>,
    is_empty: bool,
}

impl HttpBody for Attempt {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        this.length = None;
        let mut state = this.state.lock();
        if state.attempt != this.number {
            return Poll::Ready(Some(Err(axum::Error::new("the request is sent again"))));
        }
        if let Some(piece) = state.kept.get(this.next) {
            this.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        let polled = Pin::new(&mut state.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            let kept = state.kept.len();
            state.keep(piece);
            if state.kept.len() > kept {
                this.next += 1;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty
    }

    fn size_hint(&self) -> SizeHint {
        self.length.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use futures_util::{StreamExt, stream};

    use super::*;

    fn body(pieces: &[&'static str]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece.as_bytes()))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    async fn text(body: Body) -> String {
        String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_kept_body_is_sent_again_from_its_begin_wherever_the_attempt_before_broke_off() {
        let repeatable = RepeatableBody::new(body(&["one", "two", "three"]));
        let mut first = repeatable.attempt().unwrap().into_data_stream();
        assert_eq!(first.next().await.unwrap().unwrap(), "one");
        assert_eq!(text(repeatable.attempt().unwrap()).await, "onetwothree");
        assert!(first.next().await.unwrap().is_err(), "an attempt that is over reads the body");
        assert_eq!(text(repeatable.attempt().unwrap()).await, "onetwothree");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_sent_again_only_untouched() {
        let long: &'static str = Box::leak("x".repeat(KEPT_BYTES).into_boxed_str());
        let repeatable = RepeatableBody::new(body(&["one", long]));
        drop(repeatable.attempt().unwrap());
        let again = repeatable.attempt().unwrap();
        assert!(text(again).await.starts_with("one"));
        assert!(repeatable.attempt().is_none());
    }

    #[tokio::test]
    async fn the_length_of_a_body_is_known_before_it_is_sent() {
        let empty = RepeatableBody::new(Body::empty()).attempt().unwrap();
        assert!(empty.is_end_stream());
        let known = RepeatableBody::new(Body::from("four")).attempt().unwrap();
        assert_eq!(known.size_hint().exact(), Some(4));
    }
}
