//! Templates: text with places that a request fills in.
//!
//! | In a template | Becomes |
//! |---|---|
//! | `{/pull_request/number}` | The value at this place of the body (JSON pointer, RFC 6901). |
//! | `{header:x-github-event}` | The value of this header. |
//! | `{query:room}` | The value of this query parameter. |
//! | `{{`, `}}` | `{`, `}`. |
//!
//! A place with no value (or `null`, or an empty text) makes the whole template have none. Numbers and booleans become
//! text; lists and objects have a value only where they are all of a template that may be any JSON.

use std::fmt;

use http::{HeaderMap, HeaderName};
use serde_json::Value;

/// The longest template, in bytes.
const MAX_TEMPLATE: usize = 4_096;

/// A template that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Pointer(String),
    Header(HeaderName),
    Query(String),
}

/// What fills templates in.
pub(crate) struct Filling<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// Decoded names and values.
    pub(crate) query: &'a [(String, String)],
    /// Null where the body is no JSON.
    pub(crate) body: &'a Value,
}

/// The place that has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with which of its places.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_TEMPLATE {
            return Err(format!("a template has 1 to {MAX_TEMPLATE} bytes"));
        }
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            if let Some(after) = from.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = from.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else if let Some(after) = from.strip_prefix('{') {
                let Some((place, after)) = after.split_once('}') else {
                    return Err(format!("`{from}` has no end: close it with `}}`, or write `{{{{` for a brace"));
                };
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::parse(place)?);
                rest = after;
            } else {
                return Err("a `}` stands alone: write `}}` for a brace".to_owned());
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Whether it looks into the body.
    pub(crate) fn reads_body(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Pointer(_)))
    }

    /// The text, where every place has one.
    pub(crate) fn text(&self, filling: &Filling<'_>) -> Result<String, Missing> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece.value(filling)? {
                Value::String(value) => text.push_str(&value),
                Value::Number(number) => text.push_str(&number.to_string()),
                Value::Bool(value) => text.push_str(if value { "true" } else { "false" }),
                _ => return Err(Missing(format!("{piece} is no text, but a list or an object"))),
            }
        }
        Ok(text)
    }

    /// Any JSON where the template is one place and nothing else; else the text.
    pub(crate) fn value(&self, filling: &Filling<'_>) -> Result<Value, Missing> {
        match self.0.as_slice() {
            [only @ Piece::Pointer(_)] => only.value(filling),
            _ => self.text(filling).map(Value::String),
        }
    }
}

impl Piece {
    fn parse(place: &str) -> Result<Self, String> {
        if place.starts_with('/') {
            let escapes_are_known = place.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
            if !escapes_are_known {
                return Err(format!("`{{{place}}}` is no JSON pointer: `~` is written `~0`, and `/` within a name `~1`"));
            }
            return Ok(Self::Pointer(place.to_owned()));
        }
        match place.split_once(':') {
            Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
                .map(Self::Header)
                .map_err(|_| format!("`{{{place}}}` names no header: write it such as `{{header:x-github-event}}`")),
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            _ => Err(format!(
                "`{{{place}}}` is unknown: there are `{{/json/pointer}}`, `{{header:NAME}}` and `{{query:NAME}}`, and `{{{{` for a brace"
            )),
        }
    }

    fn value(&self, filling: &Filling<'_>) -> Result<Value, Missing> {
        let text = |value: Option<&str>| value.map(|value| Value::String(value.to_owned()));
        let value = match self {
            Self::Text(value) => return Ok(Value::String(value.clone())),
            Self::Pointer(pointer) => filling.body.pointer(pointer).cloned(),
            Self::Header(name) => text(filling.headers.get(name).and_then(|value| value.to_str().ok())),
            Self::Query(name) => text(filling.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())),
        };
        let there = value.filter(|value| !value.is_null() && value.as_str() != Some(""));
        there.ok_or_else(|| Missing(format!("{self} has no value")))
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "`{text}`"),
            Self::Pointer(pointer) => write!(f, "`{pointer}` of the body"),
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Query(name) => write!(f, "the query parameter `{name}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(template: &str) -> Result<String, String> {
        let body = json!({
            "repo": { "name": "host", "id": 7, "fork": false, "none": null, "empty": "", "tags": ["a", "b"] },
            "a/b": { "m~n": "escaped" },
            "": "nameless",
        });
        let headers = HeaderMap::from_iter([("x-event".parse().unwrap(), "push".parse().unwrap())]);
        let query = [("room".to_owned(), "4 b".to_owned())];
        let filling = Filling { headers: &headers, query: &query, body: &body };
        Template::parse(template)?.text(&filling).map_err(|missing| missing.to_string())
    }

    #[test]
    fn places_are_filled_in() {
        for (template, expect) in [
            ("plain", "plain"),
            ("{/repo/name}", "host"),
            ("github.{header:X-Event}", "github.push"),
            ("{/repo/name}#{/repo/id}:{/repo/fork}", "host#7:false"),
            ("{query:room}!", "4 b!"),
            ("{/repo/tags/1}", "b"),
            ("{/a~1b/m~0n}", "escaped"),
            ("{/}", "nameless"),
            ("{{{/repo/id}}}", "{7}"),
            ("{{/repo/id}}", "{/repo/id}"),
        ] {
            assert_eq!(fill(template).as_deref(), Ok(expect), "{template}");
        }
    }

    #[test]
    fn what_has_no_value_is_named() {
        for (template, says) in [
            ("a{/repo/nothing}", "`/repo/nothing` of the body"),
            ("{/repo/none}", "/repo/none"),
            ("{/repo/empty}", "/repo/empty"),
            ("{/repo/tags}", "a list or an object"),
            ("{/repo/tags/2}", "/repo/tags/2"),
            ("{header:x-none}", "the header `x-none`"),
            ("{query:none}", "the query parameter `none`"),
        ] {
            let error = fill(template).expect_err(template);
            assert!(error.contains(says), "{template}: {error}");
        }
    }

    #[test]
    fn a_template_that_is_none_is_refused_when_it_is_read() {
        for (template, says) in [
            ("", "1 to"),
            ("{", "no end"),
            ("a {/b", "no end"),
            ("a } b", "stands alone"),
            ("{}", "unknown"),
            ("{repo}", "`{repo}` is unknown"),
            ("{body:/a}", "unknown"),
            ("{header:}", "no header"),
            ("{header:a b}", "no header"),
            ("{query:}", "unknown"),
            ("{/a~b}", "no JSON pointer"),
            ("{/a~}", "no JSON pointer"),
            ("{ /a}", "unknown"),
        ] {
            let error = Template::parse(template).expect_err(template);
            assert!(error.contains(says), "{template}: {error}");
        }
        assert!(Template::parse(&"x".repeat(MAX_TEMPLATE + 1)).is_err());
    }

    #[test]
    fn a_template_that_is_one_place_may_be_any_json() {
        let body = json!({ "list": [1, 2], "text": "t" });
        let filling = Filling { headers: &HeaderMap::new(), query: &[], body: &body };
        let value = |template: &str| Template::parse(template).unwrap().value(&filling).ok();
        assert_eq!(value("{/list}"), Some(json!([1, 2])));
        assert_eq!(value("{/list/0}"), Some(json!(1)));
        assert_eq!(value("{/list/0}{/text}"), Some(json!("1t")));
        assert_eq!(value("{/none}"), None);
    }
}
