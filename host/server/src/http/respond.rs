//! Answers in JSON.

use agent_host_protocol::Page;
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{headers::IDEMPOTENCY_REPLAYED, problem::Problem};

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => raw_json(status, body),
        Err(error) => Problem::internal(error).into_response(),
    }
}

/// An answer that is JSON already.
pub(crate) fn raw_json(status: StatusCode, body: impl Into<Body>) -> Response {
    let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Runs change from one moment to the next.
    let cache_control = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (status, [content_type, cache_control], body.into()).into_response()
}

/// An answer in JSON about something with an address of its own.
pub(crate) fn located(status: StatusCode, location: impl Into<String>, value: &impl Serialize) -> Response {
    let mut response = json(status, value);
    if let Ok(location) = HeaderValue::try_from(location.into()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The same answer, marked where its request was done before.
pub(crate) fn replayed(mut response: Response, repeated: bool) -> Response {
    if repeated {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// All items on one page.
pub(crate) fn whole_page(items: Vec<impl Serialize>) -> Response {
    json(StatusCode::OK, &Page { items, next_cursor: None, prev_cursor: None, has_more: false })
}

/// A page of `limit` items. One additional item in `items` shows that there are more.
pub(crate) fn page<T: Serialize>(mut items: Vec<T>, limit: u32, cursor: impl FnOnce(&T) -> String) -> Response {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = if has_more { items.last().map(cursor) } else { None };
    json(StatusCode::OK, &Page { items, next_cursor, prev_cursor: None, has_more })
}
