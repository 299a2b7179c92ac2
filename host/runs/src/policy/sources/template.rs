//! Values of templates, from a request.

use std::fmt;

use agent_host_config::{Piece, Template};
use http::HeaderMap;
use serde_json::Value;

/// A request whose values templates name.
pub(crate) struct TemplateValues<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// Decoded names and values.
    pub(crate) query: &'a [(String, String)],
    /// Null where the body is no JSON.
    pub(crate) body: &'a Value,
}

/// The place that has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingValue(String);

impl fmt::Display for MissingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TemplateValues<'_> {
    /// The text, where every place has one.
    pub(crate) fn text(&self, template: &Template) -> Result<String, MissingValue> {
        let mut text = String::new();
        for piece in template.pieces() {
            match self.piece(piece)? {
                Value::String(value) => text.push_str(&value),
                Value::Number(number) => text.push_str(&number.to_string()),
                Value::Bool(value) => text.push_str(if value { "true" } else { "false" }),
                _ => return Err(MissingValue(format!("{piece} is no text, but a list or an object"))),
            }
        }
        Ok(text)
    }

    /// Any JSON where the template is one place and nothing else; else the text.
    pub(crate) fn value(&self, template: &Template) -> Result<Value, MissingValue> {
        match template.pieces() {
            [only @ Piece::Pointer(_)] => self.piece(only),
            _ => self.text(template).map(Value::String),
        }
    }

    /// The value of one part.
    fn piece(&self, piece: &Piece) -> Result<Value, MissingValue> {
        let text = |value: Option<&str>| value.map(|value| Value::String(value.to_owned()));
        let value = match piece {
            Piece::Text(value) => return Ok(Value::String(value.clone())),
            Piece::Pointer(pointer) => self.body.pointer(pointer).cloned(),
            Piece::Header(name) => text(self.headers.get(name).and_then(|value| value.to_str().ok())),
            Piece::Query(name) => text(self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())),
        };
        let there = value.filter(|value| !value.is_null() && value.as_str() != Some(""));
        there.ok_or_else(|| MissingValue(format!("{piece} has no value")))
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
        let filling = TemplateValues { headers: &headers, query: &query, body: &body };
        filling.text(&Template::parse(template)?).map_err(|missing| missing.to_string())
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
    fn a_field_without_a_value_is_named() {
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
    fn a_template_that_is_one_place_may_be_any_json() {
        let body = json!({ "list": [1, 2], "text": "t" });
        let filling = TemplateValues { headers: &HeaderMap::new(), query: &[], body: &body };
        let value = |template: &str| filling.value(&Template::parse(template).unwrap()).ok();
        assert_eq!(value("{/list}"), Some(json!([1, 2])));
        assert_eq!(value("{/list/0}"), Some(json!(1)));
        assert_eq!(value("{/list/0}{/text}"), Some(json!("1t")));
        assert_eq!(value("{/none}"), None);
    }
}
