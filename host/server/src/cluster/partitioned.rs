//! A request of a client that becomes a request to each partition, and what they answer.

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderName, Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::events::EventSplitter;
use crate::http::{Problem, forwarded::RequestPart, percent};

/// Partitions that are asked at the same time.
pub(super) const AT_ONCE: usize = 8;
/// Requests of which the answers of all partitions are merged at the same time. Others wait.
pub(super) static MERGES: Semaphore = Semaphore::const_new(2);
/// Headers of a request that are none of the requests made of it: their bodies are others, and their answers are read here.
const OF_THE_CLIENT: [HeaderName; 4] =
    [header::ACCEPT_ENCODING, header::CONTENT_LENGTH, header::EXPECT, header::TRANSFER_ENCODING];
/// Bytes of the answer of one partition.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The head of a request of a client, as that of requests to partitions.
pub(super) struct PartitionedRequest(Parts);

impl PartitionedRequest {
    /// The head, and the body that the client sends. Partitions are asked with `GET` where the client asks with `HEAD`: its answer is made of
    /// their bodies.
    pub(super) fn new(request: Request) -> (Self, Body) {
        let (mut parts, body) = request.into_parts();
        for name in OF_THE_CLIENT {
            parts.headers.remove(name);
        }
        if parts.method == Method::HEAD {
            parts.method = Method::GET;
        }
        (Self(parts), body)
    }

    pub(super) const fn parts(&self) -> &Parts {
        &self.0
    }

    /// A request to one partition.
    pub(super) fn request(&self, uri: Uri, body: Bytes, part: Option<RequestPart>) -> Request {
        let Parts { method, headers, extensions, .. } = &self.0;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers.clone();
        *request.extensions_mut() = extensions.clone();
        if let Some(part) = part {
            request.extensions_mut().insert(part);
        }
        request
    }

    /// The address of the request with these parameters.
    pub(super) fn uri(&self, parameters: impl IntoIterator<Item = (String, String)>) -> Result<Uri, Problem> {
        let pair = |(name, value): (String, String)| format!("{}={}", percent::encode(&name), percent::encode(&value));
        let parameters = parameters.into_iter().map(pair).collect::<Vec<_>>().join("&");
        let sign = if parameters.is_empty() { "" } else { "?" };
        format!("{}{sign}{parameters}", self.0.uri.path()).parse().map_err(Problem::internal)
    }

    /// The same request to one partition, with this body.
    pub(super) fn same(&self, body: Bytes) -> Request {
        self.request(self.0.uri.clone(), body, None)
    }
}

/// The value in an answer. Another answer is that to the whole request.
pub(super) async fn value<T: DeserializeOwned>(answer: Response) -> Result<T, Response> {
    if !answer.status().is_success() {
        return Err(answer);
    }
    let body = axum::body::to_bytes(answer.into_body(), MAX_ANSWER_BYTES).await.map_err(unreadable)?;
    serde_json::from_slice(&body).map_err(unreadable)
}

/// Whole events of the stream of a partition. Its end is an error, and so is an event that is longer than `most`.
pub(super) fn whole_events(body: Body, most: usize) -> impl Stream<Item = Result<Vec<u8>, axum::Error>> + Send {
    let pieces = body.into_data_stream();
    stream::unfold((pieces, EventSplitter::holding(most)), |(mut pieces, mut splitter)| async move {
        let piece = match pieces.next().await {
            Some(Ok(bytes)) => match splitter.push(&bytes) {
                _ if splitter.is_torn() => Err(axum::Error::new("an event of a partition is too long to be merged with others")),
                whole => Ok(whole),
            },
            Some(Err(error)) => Err(error),
            None => Err(axum::Error::new("a partition has ended its part of the stream")),
        };
        Some((piece, (pieces, splitter)))
    })
}

/// The answer to a request where that of a partition cannot be read.
pub(super) fn unreadable(error: impl std::fmt::Display) -> Response {
    Problem::internal(format!("the answer of a partition cannot be read: {error}")).into_response()
}

/// True for the answer of a partition that does not know whom or what it was asked for.
pub(super) fn is_unknown_there(answer: &Response) -> bool {
    matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND)
}
