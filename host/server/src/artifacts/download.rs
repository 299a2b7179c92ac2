//! The content of an artifact as an answer: whole, in ranges, or known already.

use agent_host_runs::{ArtifactRecord, BlobReader, media};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http_range_header::{EndPosition, StartPosition, parse_range_header};

use super::names::disposition;
use crate::http::{Problem, ProblemCode, headers::CROSS_ORIGIN_RESOURCE_POLICY};

/// A download is read so much at a time: what a slow reader holds in memory.
const READ_BYTES: usize = 256 * 1024;

/// Content of so many bytes, or the range of it that is asked for; `body` gives it from one place up to another.
pub(crate) fn serve(
    record: &ArtifactRecord,
    size: u64,
    method: &Method,
    headers: &HeaderMap,
    inline: bool,
    body: impl FnOnce(u64, u64) -> Body,
) -> Result<Response, Problem> {
    let etag = format!("\"{}\"", record.sha256);
    let choice = if *method == Method::GET && may_be_partial(headers, &etag) { range(headers, size) } else { RangeChoice::All };
    let (status, first, end) = match choice {
        RangeChoice::All => (StatusCode::OK, 0, size),
        RangeChoice::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first, last + 1),
        RangeChoice::Nothing => {
            let detail = format!("the artifact has {size} bytes, and the range begins behind them");
            let mut response = Problem::new(ProblemCode::RangeNotSatisfiable, detail).into_response();
            insert(response.headers_mut(), header::CONTENT_RANGE, format!("bytes */{size}"))?;
            return Ok(response);
        }
    };
    let body = if *method == Method::HEAD { Body::empty() } else { body(first, end) };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    describe(headers, record, &etag, inline)?;
    insert(headers, header::CONTENT_LENGTH, (end - first).to_string())?;
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, header::CONTENT_RANGE, format!("bytes {first}-{}/{size}", end - 1))?;
    }
    Ok(response)
}

/// The content from `first` up to `end`, read piece by piece as the client takes it.
pub(crate) fn body(blob: BlobReader, first: u64, end: u64) -> Body {
    let pieces = stream::unfold(Some((blob, first)), move |state| async move {
        let (blob, at) = state?;
        let left = end.saturating_sub(at);
        if left == 0 {
            return None;
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
        let read = tokio::task::spawn_blocking(move || {
            let bytes = blob.read_at(at, max);
            (blob, bytes)
        });
        match read.await {
            Ok((blob, Ok(bytes))) if !bytes.is_empty() => {
                let next = at.saturating_add(bytes.len() as u64);
                Some((Ok(axum::body::Bytes::from(bytes)), Some((blob, next))))
            }
            Ok((_, Ok(_))) => Some((Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)), None)),
            Ok((_, Err(error))) => Some((Err(std::io::Error::other(error)), None)),
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    Body::from_stream(pieces)
}

/// The headers of content. Content never runs: it is a download unless the client asks for a kind that is harmless to show,
/// its type is not guessed, and a policy sandboxes it if it is shown all the same.
pub(crate) fn describe(headers: &mut HeaderMap, record: &ArtifactRecord, etag: &str, inline: bool) -> Result<(), Problem> {
    let is_inline = inline && media::may_show(&record.media_type);
    insert(headers, header::CONTENT_TYPE, record.media_type.clone())?;
    insert(headers, header::ETAG, etag.to_owned())?;
    insert(headers, header::CONTENT_DISPOSITION, disposition(is_inline, record.name.as_deref()))?;
    for (name, value) in [
        (header::ACCEPT_RANGES, "bytes"),
        // Kept by the client alone, and asked for again: it may have been forgotten here.
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) -> Result<(), Problem> {
    headers.insert(name, HeaderValue::try_from(value).map_err(Problem::internal)?);
    Ok(())
}

/// True if a range is useful (`If-Range`, compared strongly). Content has no date here, so a date never matches.
fn may_be_partial(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes())
}

/// The part that a `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
enum RangeChoice {
    /// The whole content: there is no range, a malformed one, or several, which a server may ignore.
    All,
    Part {
        first: u64,
        last: u64,
    },
    /// A range that begins behind the end.
    Nothing,
}

fn range(headers: &HeaderMap, size: u64) -> RangeChoice {
    let mut values = headers.get_all(header::RANGE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return RangeChoice::All };
    let Some(parsed) = value.to_str().ok().and_then(|value| parse_range_header(value).ok()) else { return RangeChoice::All };
    let [range] = parsed.ranges.as_slice() else { return RangeChoice::All };
    let Some(end) = size.checked_sub(1) else { return RangeChoice::Nothing };
    let first = match range.start {
        StartPosition::Index(first) if first > end => return RangeChoice::Nothing,
        StartPosition::Index(first) => first,
        // More than there is asks for all of it.
        StartPosition::FromLast(count) => size.saturating_sub(count),
    };
    match range.end {
        EndPosition::Index(last) if last < first => RangeChoice::All,
        EndPosition::Index(last) => RangeChoice::Part { first, last: last.min(end) },
        EndPosition::LastByte => RangeChoice::Part { first, last: end },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::matches_etag;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        [(name, HeaderValue::from_bytes(value.as_bytes()).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_single_range_is_served_and_all_others_are_passed_over() {
        let of = |value: &str, size| range(&headers(header::RANGE, value), size);
        let part = |first, last| RangeChoice::Part { first, last };
        assert_eq!(of("bytes=0-4", 10), part(0, 4));
        assert_eq!(of("bytes=4-", 10), part(4, 9));
        assert_eq!(of("bytes=9-99", 10), part(9, 9));
        assert_eq!(of("bytes=-3", 10), part(7, 9));
        assert_eq!(of("bytes=-30", 10), part(0, 9));
        assert_eq!(of("bytes=10-", 10), RangeChoice::Nothing);
        assert_eq!(of("bytes=0-", 0), RangeChoice::Nothing);
        assert_eq!(of("bytes=-1", 0), RangeChoice::Nothing);
        for passed_over in ["bytes=5-4", "bytes=0-1,3-4", "items=0-4", "bytes=", "bytes=a-b", "bytes=18446744073709551616-"] {
            assert_eq!(of(passed_over, 10), RangeChoice::All, "{passed_over}");
        }
        assert_eq!(range(&HeaderMap::new(), 10), RangeChoice::All);
    }

    #[test]
    fn a_tag_is_compared_weakly_for_reading_and_strongly_for_parts() {
        let none_match = |value: &str| matches_etag(&headers(header::IF_NONE_MATCH, value), "\"a\"");
        assert!(none_match("\"a\"") && none_match("W/\"a\"") && none_match("\"b\", \"a\"") && none_match("*"));
        assert!(!none_match("\"b\"") && !none_match("a") && !matches_etag(&HeaderMap::new(), "\"a\""));
        let partial = |value: &str| may_be_partial(&headers(header::IF_RANGE, value), "\"a\"");
        assert!(partial("\"a\"") && may_be_partial(&HeaderMap::new(), "\"a\""));
        assert!(!partial("W/\"a\"") && !partial("Sun, 06 Nov 1994 08:49:37 GMT"));
    }
}
