//! HTTP as rmcp needs it, with one difference: an answer that is too large ends its call and not the connection.

use std::{collections::HashMap, sync::Arc};

use futures_util::{StreamExt, future, stream::BoxStream};
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientJsonRpcMessage, GetExtensions, JsonRpcMessage, RequestId},
    transport::streamable_http_client::{SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse},
};
use sse_stream::Sse;

use super::{
    call::InTrace,
    transport::{TOO_LARGE, error_for},
};
use crate::trace;

/// The name that rmcp gives to an event over the limit; the type is private.
const TOO_LARGE_WORDS: &str = "exceeded the maximum size";

type Outcome<T> = Result<T, StreamableHttpError<reqwest::Error>>;
type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// A client of one service. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Web(pub(super) reqwest::Client);

impl StreamableHttpClient for Web {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Outcome<StreamableHttpPostResponse> {
        let headers = in_trace(headers, &message);
        self.0.post_message(uri, message, session, auth, headers).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Outcome<StreamableHttpPostResponse> {
        let id = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let headers = in_trace(headers, &message);
        let answer = self.0.post_message_with_max_sse_event_size(uri, message, session, auth, headers, max).await?;
        Ok(match (answer, id) {
            (StreamableHttpPostResponse::Sse(events, session), Some(id)) => {
                StreamableHttpPostResponse::Sse(answered(events, id), session)
            }
            (other, _) => other,
        })
    }

    async fn delete_session(&self, uri: Arc<str>, session: Arc<str>, auth: Option<String>, headers: Headers) -> Outcome<()> {
        self.0.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Outcome<Events> {
        self.0.get_stream(uri, session, last_event, auth, headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Outcome<Events> {
        self.0.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, max).await
    }
}

/// The headers of a message, with those of the trace that it belongs to.
fn in_trace(mut headers: Headers, message: &ClientJsonRpcMessage) -> Headers {
    if let JsonRpcMessage::Request(request) = message
        && let Some(InTrace(context)) = request.request.extensions().get::<InTrace>()
    {
        headers.extend(trace::headers_of(context).into_iter().filter_map(|(name, value)| Some((name?, value))));
    }
    headers
}

/// The events that answer the request `id`; one that is too large becomes the error of the request, and the last event.
fn answered(events: Events, id: RequestId) -> Events {
    let events = events.scan(false, move |ended, event| {
        let event = match event {
            _ if *ended => None,
            Err(error) if super::connection::words(&error).contains(TOO_LARGE_WORDS) => {
                *ended = true;
                let answer = error_for(id.clone(), TOO_LARGE, "the answer is too large");
                Some(Ok(Sse { data: serde_json::to_string(&answer).ok(), ..Sse::default() }))
            }
            event => Some(event),
        };
        future::ready(event)
    });
    events.boxed()
}
