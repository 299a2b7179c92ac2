//! Bodies: bounded while they arrive, then read as JSON, with errors that say where.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::problem::{Problem, ProblemCode};

/// A client that needs longer than this for a body holds a connection for nothing.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Of a body that is too large, so much is read and thrown away, so that a client which writes all before it
/// reads still sees the refusal instead of a broken connection.
pub(crate) const DISCARDED_BYTES: usize = 8 * 1024 * 1024;

/// Longest reason of an end.
pub(crate) const MAX_REASON_BYTES: usize = 1024;

/// The whole body, at most `limit` bytes of it.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    tokio::time::timeout(ARRIVAL, collect(body, limit)).await.unwrap_or_else(|_| {
        Err(Problem::new(ProblemCode::RequestTimeout, format!("the body did not arrive within {} seconds", ARRIVAL.as_secs())))
    })
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut whole = Vec::new();
    let mut size = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::invalid("body", format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size > limit.saturating_add(DISCARDED_BYTES) {
            break;
        }
        // Nearly all bodies come in one piece, which then needs no copy.
        if size > limit {
            (first, whole) = (Bytes::new(), Vec::new());
        } else if first.is_empty() && whole.is_empty() {
            first = data;
        } else {
            if whole.is_empty() {
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&data);
        }
    }
    if size > limit {
        return Err(Problem::new(
            ProblemCode::PayloadTooLarge,
            format!("the body is larger than {limit} bytes, the limit of this request"),
        ));
    }
    Ok(if whole.is_empty() { first } else { whole.into() })
}

/// Refuses a body that does not call itself JSON. A browser sends no other site's JSON without asking first, so
/// this also keeps pages from posting to a host on the same machine.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::new(ProblemCode::UnsupportedMediaType, "send JSON, with the header `Content-Type: application/json`"))
    }
}

/// The reason of an end, which is kept with the run and shown in lists.
pub(crate) fn reason(given: Option<String>, default: &str) -> Result<String, Problem> {
    let reason = given.filter(|reason| !reason.is_empty()).unwrap_or_else(|| default.to_owned());
    if reason.len() > MAX_REASON_BYTES {
        return Err(Problem::invalid("reason", format!("`reason` has {} bytes; the limit is {MAX_REASON_BYTES}", reason.len())));
    }
    Ok(reason)
}

/// The body, a JSON object, as a `T`. serde's message names what is wrong and its position; the path to it comes
/// in `field`.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde would read a list as the fields of a struct, in their order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::invalid("body", "the body must be a JSON object"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        // serde_json calls some values that do not fit an enum a syntax error.
        if error.is_data() || serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            let field = if path == "." { "body".to_owned() } else { path };
            Problem::invalid(field, error.to_string())
        } else {
            not_json(&error)
        }
    })?;
    deserializer.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(ProblemCode::InvalidJson, format!("the body is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::event::Envelope;

    use super::*;

    fn refusal(body: &str) -> String {
        parse::<Envelope>(body.as_bytes()).unwrap_err().to_json()
    }

    #[test]
    fn a_refusal_says_what_and_where() {
        insta::assert_snapshot!(refusal("{"), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the body is not JSON: EOF while parsing an object at line 1 column 1","code":"invalid_json","message":"the body is not JSON: EOF while parsing an object at line 1 column 1"}"#);
        insta::assert_snapshot!(refusal(r#"{"event_type":"message.received"} x"#), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the body is not JSON: trailing characters at line 1 column 35","code":"invalid_json","message":"the body is not JSON: trailing characters at line 1 column 35"}"#);
        insta::assert_snapshot!(refusal(r#"{"event_type":"message.received","txet":1}"#), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"unknown field `txet`, expected one of `event_type`, `source`, `event_time`, `source_event_type`, `raw_ref`, `data`, `conversation`, `actor`, `subject`, `input`, `delivery`, `adapter`, `trace_id`, `locale`, `timezone` at line 1 column 39","code":"invalid_argument","message":"unknown field `txet`, expected one of `event_type`, `source`, `event_time`, `source_event_type`, `raw_ref`, `data`, `conversation`, `actor`, `subject`, `input`, `delivery`, `adapter`, `trace_id`, `locale`, `timezone` at line 1 column 39","field":"txet"}"#);
        insta::assert_snapshot!(refusal(r#"{"event_type":"message.received","input":{"contents":[{"text":"no type"}]}}"#), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"a content part is an object with a `type`, such as {\"type\":\"text\",\"text\":\"...\"} at line 1 column 73","code":"invalid_argument","message":"a content part is an object with a `type`, such as {\"type\":\"text\",\"text\":\"...\"} at line 1 column 73","field":"input.contents[0]"}"#);
        insta::assert_snapshot!(refusal(r#"[]"#), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the body must be a JSON object","code":"invalid_argument","message":"the body must be a JSON object","field":"body"}"#);
        insta::assert_snapshot!(refusal(r#"{}"#), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"missing field `event_type` at line 1 column 2","code":"invalid_argument","message":"missing field `event_type` at line 1 column 2","field":"body"}"#);
        insta::assert_snapshot!(refusal("{\"event_type\":\"\u{0}\"}"), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the body is not JSON: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 16","code":"invalid_json","message":"the body is not JSON: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 16"}"#);
    }

    #[test]
    fn depth_is_bounded() {
        let body = format!(r#"{{"event_type":"a","data":{{"x":{}{}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(refusal(&body).contains("recursion limit exceeded"), "{}", refusal(&body));
        assert!(parse::<Envelope>(&[0xff, 0xfe]).is_err());
    }

    #[tokio::test]
    async fn a_body_is_whole_or_refused() {
        let pieces = |sizes: &[usize]| {
            let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(vec![b'x'; *size])).collect();
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        for sizes in [&[][..], &[10], &[3, 7], &[3, 3, 4]] {
            assert_eq!(read(pieces(sizes), 10).await.unwrap().len(), sizes.iter().sum::<usize>());
        }
        for sizes in [&[11][..], &[10, 1], &[1; 20]] {
            assert_eq!(read(pieces(sizes), 10).await.unwrap_err().code(), ProblemCode::PayloadTooLarge);
        }
    }
}
