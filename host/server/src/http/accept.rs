//! The preferred form of an answer (`Accept`, RFC 9110 section 12.5.1).

use axum::http::{HeaderMap, header};

use super::problem::{Problem, ProblemCode};

/// The forms in which the events of a run can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A page, as JSON.
    Page,
    /// A stream, as server-sent events.
    Stream,
}

/// The rank of a form: the weight in the header, the precision of the range, the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// In thousandths.
    weight: u16,
    precision: u8,
    earliness: std::cmp::Reverse<usize>,
}

/// The form in which a client reads events. A client that says nothing, or nothing that can be understood, gets a page.
pub(crate) fn negotiate(headers: &HeaderMap) -> Result<Form, Problem> {
    match preferred(headers, [("application", "json"), ("text", "event-stream")]) {
        Some(0) => Ok(Form::Page),
        Some(_) => Ok(Form::Stream),
        None => Err(Problem::new(
            ProblemCode::NotAcceptable,
            "events can be read as application/json (a page) or text/event-stream (a stream)",
        )),
    }
}

/// The place of the media type that the client prefers: by weight, then the one that is named more precisely, then the one that is
/// named first; the first one for a client that says nothing, or nothing that can be understood. `None` if the client takes none of them.
pub(crate) fn preferred<const N: usize>(headers: &HeaderMap, offered: [(&str, &str); N]) -> Option<usize> {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let ranges: Vec<(&str, &str, u16)> = lines.flat_map(|line| line.split(',')).filter_map(range).collect();
    if ranges.is_empty() {
        return Some(0);
    }
    let fits = offered.into_iter().enumerate().filter_map(|(at, (kind, subtype))| Some((fit(&ranges, kind, subtype)?, at)));
    // Of equals the first one.
    fits.max_by_key(|(fit, at)| (*fit, std::cmp::Reverse(*at))).map(|(_, at)| at)
}

/// The rank of a media type. The most precise matching range decides its weight.
fn fit(ranges: &[(&str, &str, u16)], kind: &str, subtype: &str) -> Option<Fit> {
    let matching = ranges.iter().enumerate().filter_map(|(at, (range_kind, range_subtype, weight))| {
        let precision = match (*range_kind, *range_subtype) {
            ("*", "*") => 0,
            (of, "*") if of.eq_ignore_ascii_case(kind) => 1,
            (of, what) if of.eq_ignore_ascii_case(kind) && what.eq_ignore_ascii_case(subtype) => 2,
            _ => return None,
        };
        Some(Fit { weight: *weight, precision, earliness: std::cmp::Reverse(at) })
    });
    matching.max_by_key(|fit| (fit.precision, fit.earliness)).filter(|fit| fit.weight > 0)
}

/// A media range: type, subtype, weight in thousandths. `None` if it is malformed.
fn range(text: &str) -> Option<(&str, &str, u16)> {
    let mut parts = text.split(';').map(str::trim);
    let (kind, subtype) = parts.next()?.split_once('/')?;
    let weight = parts.find_map(|parameter| parameter.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q")));
    let weight = weight.map_or(Some(1000), |(_, value)| thousandths(value.trim()))?;
    (!kind.is_empty() && !subtype.is_empty()).then_some((kind, subtype, weight))
}

/// A weight: `0` to `1` with at most three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimals: u16 = format!("{decimals:0<3}").parse().ok()?;
    match whole {
        "0" => Some(decimals),
        "1" if decimals == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accept: &'static str, expect: Option<Form>) {
        let headers = [(header::ACCEPT, accept.parse().unwrap())].into_iter().collect();
        assert_eq!(negotiate(&headers).ok(), expect, "{accept}");
    }

    #[test]
    fn a_stream_is_for_those_who_name_it() {
        assert_eq!(negotiate(&HeaderMap::new()).unwrap(), Form::Page);
        check("*/*", Some(Form::Page));
        check("application/json", Some(Form::Page));
        check("Text/Event-Stream; charset=utf-8", Some(Form::Stream));
        check("text/event-stream, */*", Some(Form::Stream));
        check("*/*, text/*", Some(Form::Stream));
        check("application/json, text/event-stream", Some(Form::Page));
        check("text/event-stream, application/json", Some(Form::Stream));
    }

    #[test]
    fn weights_decide() {
        check("application/json;q=0.5, text/event-stream;q=0.9", Some(Form::Stream));
        check("application/json, text/event-stream;q=0.999", Some(Form::Page));
        check("text/event-stream;q=0, */*", Some(Form::Page));
        check("application/*;q=0.2, application/json;q=0.8, text/event-stream;q=0.5", Some(Form::Page));
    }

    #[test]
    fn a_client_that_takes_neither_is_told() {
        for accept in ["text/html", "image/*, text/plain", "application/json;q=0", "*/*;q=0"] {
            check(accept, None);
        }
    }

    #[test]
    fn unparsable_values_are_ignored() {
        check("json", Some(Form::Page));
        check("", Some(Form::Page));
        check("text/event-stream;q=high", Some(Form::Page));
        check("text/html;q=2, text/event-stream;q=1.000", Some(Form::Stream));
    }
}
