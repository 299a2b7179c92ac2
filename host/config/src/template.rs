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

use http::HeaderName;

/// The longest template, in bytes.
const MAX_TEMPLATE: usize = 4_096;

/// A template that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text as it stands.
    Text(String),
    /// A place of the body, as a JSON pointer.
    Pointer(String),
    /// A header.
    Header(HeaderName),
    /// A query parameter.
    Query(String),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// A text that names the faulty place of the template.
    pub fn parse(text: &str) -> Result<Self, String> {
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
                return Err("a single `}`: write `}}` for a brace".to_owned());
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// True if the template reads the body.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Pointer(_)))
    }

    /// The parts of the template, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
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
    use super::*;

    #[test]
    fn a_template_that_is_none_is_refused_when_it_is_read() {
        for (template, says) in [
            ("", "1 to"),
            ("{", "no end"),
            ("a {/b", "no end"),
            ("a } b", "a single `}`"),
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
}
