//! Bodies in both directions: bounded in bytes and time, and without secrets on the way back.

use std::{
    error::Error,
    fmt, mem,
    sync::{Arc, OnceLock},
    time::Instant,
};

use agent_host_protocol::{ApiError, http::HttpHead};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::time::timeout_at;

use super::failure::{Category, of_client, timed_out};
use crate::redact::stream::CleanStream;

/// A streamed body. Its errors are [`ApiError`]s if this module made them.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A response whose body is read piece by piece.
pub struct Response {
    head: HttpHead,
    body: ResponseBody,
    /// Received bytes that were not yet read.
    ready: Bytes,
}

impl Response {
    pub(super) fn new(head: HttpHead, body: ResponseBody) -> Self {
        Self { head, body, ready: Bytes::new() }
    }

    /// Status and headers.
    #[must_use]
    pub fn head(&self) -> &HttpHead {
        &self.head
    }

    /// Waits for bytes and returns at most `max_bytes`. An empty result is the end of the body, and repeats. An error
    /// repeats too.
    ///
    /// # Errors
    /// `invalid_argument` where `max_bytes` is 0; `payload_too_large` where the body is longer than it may be;
    /// `deadline_exceeded`; `runtime_error` where the connection ended before the body.
    pub async fn read(&mut self, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
        if max_bytes == 0 {
            return Err(ApiError::invalid_argument(
                "a read of 0 bytes looks like the end of the stream: ask for at least one byte",
            ));
        }
        if self.ready.is_empty() {
            self.ready = self.body.next().await?.unwrap_or_default();
        }
        Ok(self.ready.split_to(max_bytes.min(self.ready.len())).to_vec())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("status", &self.head.status).finish_non_exhaustive()
    }
}

/// The body of a response, while it comes.
pub(super) struct ResponseBody {
    pub(super) state: State,
    pub(super) clean: Option<CleanStream>,
    pub(super) host: String,
    pub(super) deadline: Instant,
    /// Largest size, in bytes.
    pub(super) limit: u64,
    /// Received size, in bytes.
    pub(super) came: u64,
    /// Failure of the request's body, while it is being sent.
    pub(super) upload: Upload,
}

pub(super) enum State {
    Open(reqwest::Response),
    Ended,
    Failed(ApiError),
}

impl ResponseBody {
    /// The next bytes; nothing at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let piece = match &mut self.state {
                State::Ended => return Ok(None),
                State::Failed(error) => return Err(error.clone()),
                State::Open(response) => match timeout_at(self.deadline.into(), response.chunk()).await {
                    Ok(Ok(piece)) => piece,
                    Ok(Err(error)) => {
                        let error = self.upload.error().unwrap_or_else(|| of_client(&error, &self.host));
                        return Err(self.fail(error));
                    }
                    Err(_) => return Err(self.fail(timed_out())),
                },
            };
            let Some(piece) = piece else {
                self.state = State::Ended;
                let rest = self.clean.as_mut().map(CleanStream::finish).unwrap_or_default();
                return Ok(Some(rest).filter(|rest| !rest.is_empty()).map(Bytes::from));
            };
            self.came = self.came.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if self.came > self.limit {
                return Err(self.fail(Category::ResponseTooLarge.too_many_bytes("the body of the response", self.limit)));
            }
            let piece = match &mut self.clean {
                Some(clean) => clean.push(&piece).into(),
                None => piece,
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    /// The body stays failed, and the connection is closed.
    fn fail(&mut self, error: ApiError) -> ApiError {
        drop(mem::replace(&mut self.state, State::Failed(error.clone())));
        error
    }

    /// Converts into the type of other crates. The body ends after an error.
    pub(super) fn into_body(self) -> Body {
        let pieces = stream::unfold(Some(self), |incoming| async {
            let mut incoming = incoming?;
            match incoming.next().await {
                Ok(Some(piece)) => Some((Ok(Frame::data(piece)), Some(incoming))),
                Ok(None) => None,
                Err(error) => Some((Err(error.into()), None)),
            }
        });
        StreamBody::new(pieces).boxed_unsync()
    }
}

/// The reason why the body of a request could not be sent completely; the HTTP client reports only that it failed.
#[derive(Clone, Default)]
pub(super) struct Upload(Arc<OnceLock<ApiError>>);

impl Upload {
    pub(super) fn error(&self) -> Option<ApiError> {
        self.0.get().cloned()
    }

    /// `body` with at most `limit` bytes. Trailers are left out.
    pub(super) fn bounded(&self, body: Body, limit: usize) -> reqwest::Body {
        let (upload, mut left) = (self.clone(), limit);
        reqwest::Body::wrap_stream(body.into_data_stream().map(move |piece| {
            let error = match piece {
                Ok(piece) if piece.len() <= left => {
                    left -= piece.len();
                    return Ok(piece);
                }
                Ok(_) => {
                    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
                    Category::RequestTooLarge.too_many_bytes("the body of the request", limit)
                }
                Err(error) => Category::RequestBodyFailed.error(format!("the body of the request ended early: {error}")),
            };
            Err(upload.0.get_or_init(|| error).clone())
        }))
    }
}
