//! An answer as it comes.

use std::{
    fmt,
    time::{Duration, Instant},
};

use agent_host_config::ProviderKind;
use agent_host_protocol::{
    ApiError,
    model::ModelChunk,
    sse::{EventReader, EventTooLarge},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    assemble::Assembler,
    failure::Category,
    forms::{Form, converse},
    frames::{FrameError, FrameReader},
    http::Answer,
    names::ToolNames,
    scripted::{PlayingReply, Reply},
};
use crate::redact::Redactor;

/// Size of a stream relative to its text: about 300 bytes frame each token of about 4. `max_response_bytes` itself bounds
/// the text in memory.
const FRAME_FACTOR: usize = 128;

/// Largest number of chunks of a batch: a guest receives a batch in one call.
const MAX_BATCH: usize = 256;

/// Time to wait for the usage after the finish reason.
const USAGE_PATIENCE: Duration = Duration::from_secs(5);

/// An answer as it comes. Dropping it ends the request.
pub struct ModelStream {
    source: Source,
    /// Received chunks that were not returned yet.
    arrived: Vec<ModelChunk>,
    /// The error that ended the stream, returned after the chunks before it.
    failed: Option<ApiError>,
    /// Kept until the end: the model's place for this call.
    place: Option<OwnedSemaphorePermit>,
}

enum Source {
    Http(Box<Wire>),
    Script(Box<PlayingReply>),
    /// All chunks were received, or the stream failed.
    Ended,
}

/// The connection, and what was made of it so far.
struct Wire {
    answer: Answer,
    events: Events,
    assembler: Assembler,
    /// Bytes that may still come.
    left: usize,
}

impl fmt::Debug for ModelStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelStream").field("ended", &matches!(self.source, Source::Ended)).finish_non_exhaustive()
    }
}

impl ModelStream {
    pub(super) async fn from_answer(
        answer: Answer,
        form: Form,
        names: ToolNames,
        turn: usize,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, ApiError> {
        let limit = answer.endpoint.max_bytes;
        let mut assembler = Assembler::new(form, names, answer.endpoint.redactor.clone(), turn, limit);
        if answer.is(form.stream_type()) {
            let (events, left) = (Events::of(form, limit), limit.saturating_mul(FRAME_FACTOR));
            let wire = Wire { answer, events, assembler, left };
            return Ok(Self { source: Source::Http(Box::new(wire)), arrived: Vec::new(), failed: None, place: Some(place) });
        }
        // A server that does not stream gives all at once.
        let redactor = answer.endpoint.redactor.clone();
        let value = answer.json().await?;
        let mut arrived = Vec::new();
        assembler
            .whole(&value, &mut arrived)
            .and_then(|()| assembler.finish(&mut arrived))
            .map_err(|error| redactor.error(error))?;
        Ok(Self { source: Source::Ended, arrived, failed: None, place: None })
    }

    pub(super) fn from_reply(reply: Reply, deadline: Instant, place: OwnedSemaphorePermit) -> Self {
        Self {
            source: Source::Script(Box::new(PlayingReply::new(reply, deadline))),
            arrived: Vec::new(),
            failed: None,
            place: Some(place),
        }
    }

    /// Waits until the answer has begun: its first chunks are given by the next call of [`ModelStream::chunks`].
    ///
    /// # Errors
    /// Fails where the answer ends with an error before its first chunk.
    pub(super) async fn begun(&mut self) -> Result<(), ApiError> {
        self.arrived = self.chunks().await?;
        Ok(())
    }

    /// Waits for the next chunks and gives all that have arrived; empty is the end, after [`ModelChunk::Done`].
    ///
    /// Dropping the future loses no chunks: the next call continues there.
    ///
    /// # Errors
    /// Fails as the table of the module says. Chunks from before the failure are returned first. After an error, the stream
    /// is at its end.
    pub async fn chunks(&mut self) -> Result<Vec<ModelChunk>, ApiError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        while self.arrived.is_empty() {
            let advanced = match &mut self.source {
                Source::Ended => break,
                Source::Http(wire) => wire.advance(&mut self.arrived).await,
                Source::Script(playing) => playing.advance(&mut self.arrived, MAX_BATCH).await,
            };
            match advanced {
                Ok(false) => {}
                Ok(true) => self.end(),
                Err(error) => {
                    self.end();
                    if self.arrived.is_empty() {
                        return Err(error);
                    }
                    self.failed = Some(error);
                }
            }
        }
        Ok(std::mem::take(&mut self.arrived))
    }

    /// Closes the connection and gives the place to another call.
    fn end(&mut self) {
        self.source = Source::Ended;
        self.place = None;
    }
}

impl Wire {
    /// Waits for bytes and takes in all that have arrived; true is the end.
    async fn advance(&mut self, out: &mut Vec<ModelChunk>) -> Result<bool, ApiError> {
        let patience = self.assembler.is_finished().then_some(USAGE_PATIENCE);
        let mut next = self.answer.bytes(patience).await;
        loop {
            let ended = match next {
                Ok(Some(bytes)) => self.take(&bytes, out).map_err(|error| self.answer.endpoint.redactor.error(error))?,
                Ok(None) => {
                    if let Some(data) = self.events.rest() {
                        // Whole or not: what matters is whether the model has finished.
                        let _unfinished = self.assembler.event(data, out);
                    }
                    true
                }
                // The answer was complete; only the usage is missing.
                Err(_) if self.assembler.is_finished() => true,
                Err(error) => return Err(error),
            };
            if ended {
                self.assembler.finish(out).map_err(|error| self.answer.endpoint.redactor.error(error))?;
                return Ok(true);
            }
            if out.len() >= MAX_BATCH {
                return Ok(false);
            }
            match self.answer.bytes_now() {
                Some(now) => next = now,
                None => return Ok(false),
            }
        }
    }

    /// Takes in bytes; true where the provider says that nothing follows.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<ModelChunk>) -> Result<bool, ApiError> {
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(|| self.answer.endpoint.too_large())?;
        match self.events.push(bytes, &mut self.assembler, out) {
            Ok(()) => Ok(self.assembler.has_ended()),
            Err(Stop::TooLarge) => Err(self.answer.endpoint.too_large()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}

/// The events of a stream, in the encoding of the provider.
enum Events {
    Sse(EventReader),
    /// Messages of AWS.
    Frames(FrameReader),
}

impl Events {
    /// A reader of events of at most `max_bytes` each.
    const fn of(form: Form, max_bytes: usize) -> Self {
        match form {
            Form::Converse => Self::Frames(FrameReader::new(max_bytes)),
            Form::Completions | Form::Gemini | Form::Messages | Form::Responses => Self::Sse(EventReader::new(max_bytes)),
        }
    }

    /// Takes in bytes, and gives what can be passed on of the events that they complete.
    fn push(&mut self, bytes: &[u8], assembler: &mut Assembler, out: &mut Vec<ModelChunk>) -> Result<(), Stop> {
        match self {
            Self::Sse(events) => events.push(bytes, |event| assembler.event(event.data, out).map_err(Stop::Failed)),
            Self::Frames(frames) => frames.push(bytes, |frame| {
                let event = converse::event(&frame).map_err(Stop::Failed)?;
                assembler.event_value(&event, out).map_err(Stop::Failed)
            }),
        }
    }

    /// The data of an event that lacks only its end, where the stream ends.
    fn rest(&mut self) -> Option<&[u8]> {
        match self {
            Self::Sse(events) => events.rest(),
            // The checksum of a message is its end.
            Self::Frames(_) => None,
        }
    }
}

/// The chunks of a whole answer of a provider, in the pieces in which it arrived, for [`crate::fuzz`].
pub(crate) fn chunks_in(provider: ProviderKind, pieces: &[&[u8]], max_bytes: usize) -> Result<Vec<ModelChunk>, ApiError> {
    let mut assembler = Assembler::new(Form::of(provider), ToolNames::default(), Redactor::default(), 1, max_bytes);
    let mut events = Events::of(Form::of(provider), max_bytes);
    let mut out = Vec::new();
    for piece in pieces {
        match events.push(piece, &mut assembler, &mut out) {
            Ok(()) => {}
            Err(Stop::TooLarge) => return Err(ApiError::invalid_argument("an event is too large")),
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    assembler.finish(&mut out)?;
    Ok(out)
}

/// The reason why reading stops early.
enum Stop {
    TooLarge,
    Failed(ApiError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLarge => Self::TooLarge,
            FrameError::Damaged => {
                let message = "the provider sends a stream whose messages are damaged, or that is in another encoding";
                Self::Failed(Category::InvalidResponse.error(message))
            }
        }
    }
}

impl From<EventTooLarge> for Stop {
    fn from(_: EventTooLarge) -> Self {
        Self::TooLarge
    }
}
