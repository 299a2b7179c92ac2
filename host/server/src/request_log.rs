//! The trace of every request: its id, its line in the log, its span, and its place among the numbers.

use std::time::Instant;

use agent_host_runs::{
    log_context::{LogContext, LogIds, LogValue},
    trace::{self, Attribute, Span, SpanKind},
};
use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderValue, Method},
    response::Response,
};

use crate::{app::App, http::headers::REQUEST_ID};

/// Longest id that is taken from a client.
const MAX_REQUEST_ID: usize = 128;
/// The route of a path that is none, as a label.
const UNKNOWN: &str = "unknown";

/// The ids of every log line of a request.
struct RequestIds {
    id: HeaderValue,
    method: &'static str,
    route: Option<MatchedPath>,
}

impl LogIds for RequestIds {
    fn name(&self) -> &'static str {
        "request"
    }

    fn visit(&self, field: &mut dyn FnMut(&'static str, LogValue<'_>)) {
        if let Ok(id) = self.id.to_str() {
            field("request_id", LogValue::Text(id));
        }
        field("method", LogValue::Text(self.method));
        field("route", LogValue::Text(name(self.route.as_ref())));
    }
}

/// The facts of a request until it is answered.
pub(crate) struct RequestLog {
    app: App,
    began: Instant,
    id: HeaderValue,
    method: &'static str,
    route: Option<MatchedPath>,
    span: Span,
    context: LogContext,
}

impl RequestLog {
    pub(crate) fn begin(app: &App, request: &Request) -> Self {
        let began = Instant::now();
        let matched = request.extensions().get::<MatchedPath>().cloned();
        let route = name(matched.as_ref());
        let method = method(request.method());
        let id = request_id(request.headers());
        // Requests to the API have a span; health checks and metrics do not.
        let span = if route.starts_with("/api/") { span(request, route, method) } else { Span::nothing() };
        let context = LogContext::current().with(RequestIds { id: id.clone(), method, route: matched.clone() });
        Self { app: app.clone(), began, id, method, route: matched, span, context }
    }

    /// The ids of its lines.
    pub(crate) fn context(&self) -> LogContext {
        self.context.clone()
    }

    /// Lets the answer be made within the span and the ids of the request; the answer has the id of the request.
    pub(crate) async fn around(self, answering: impl Future<Output = Response>) -> Response {
        let Self { app, began, id, method, route, span, context } = self;
        let answering = async {
            let response = answering.await;
            tracing::debug!(status = response.status().as_u16(), took_us = microseconds(began), "answered");
            response
        };
        let mut response = span.within(context.scope(answering)).await;
        let status = response.status();
        span.set(|| vec![Attribute::new("http.response.status_code", i64::from(status.as_u16()))]);
        if status.is_server_error() {
            span.failed(status.as_str());
        }
        app.http.answered(name(route.as_ref()), method, status.as_u16(), began.elapsed());
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }
}

/// A route as a label.
fn name(route: Option<&MatchedPath>) -> &str {
    route.map_or(UNKNOWN, MatchedPath::as_str)
}

fn span(request: &Request, route: &str, method: &'static str) -> Span {
    let parent = trace::remote(trace::of(request.headers()));
    Span::start_in(
        &parent,
        SpanKind::Server,
        || format!("{method} {route}"),
        || {
            vec![
                Attribute::new("http.request.method", method),
                Attribute::new("http.route", route.to_owned()),
                Attribute::new("url.path", request.uri().path().to_owned()),
                Attribute::new("url.scheme", "http"),
            ]
        },
    )
}

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A method as a label: a client can make up any number of them.
fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "_OTHER",
    }
}

/// The id of the client, if it is safe in a log; else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_sane = |id: &HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&id.len())
            && id.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte))
    };
    if let Some(id) = headers.get(REQUEST_ID).filter(|id| is_sane(id)) {
        return id.clone();
    }
    HeaderValue::try_from(uuid::Uuid::now_v7().to_string()).unwrap_or(HeaderValue::from_static("none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_could_break_a_log_is_not_taken() {
        let of = |id: &str| {
            let headers = [(REQUEST_ID, HeaderValue::from_str(id).unwrap())].into_iter().collect();
            request_id(&headers).to_str().unwrap().to_owned()
        };
        assert_eq!(of("req-7:a/b.c+d=@_"), "req-7:a/b.c+d=@_");
        for id in ["", "two words", "a\"b", "{}", &"x".repeat(MAX_REQUEST_ID + 1)] {
            let made = of(id);
            assert_ne!(made, id);
            assert_eq!(made.len(), 36, "{made}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
