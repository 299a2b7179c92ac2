//! Requests, as a journal keeps them: a hash of the whole, and an outline for people.

use agent_host_protocol::encoded::{json_hash, json_string};
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Longest outline. A model request of a long conversation has several hundred kilobytes; its outline shows where it
/// differs from another, not what it says.
const MAX_OUTLINE: usize = 2 * 1024;
/// Longest text within it, and the same where the outline would be too long otherwise.
const MAX_TEXT: [usize; 2] = [160, 24];

/// A request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestDigest {
    pub(crate) hash: [u8; 8],
    pub(crate) outline: Option<String>,
}

impl RequestDigest {
    /// Of a request that is to be shown.
    pub(crate) fn of(request: &impl Serialize) -> Self {
        let text = json_string(request).unwrap_or_default();
        let hash = xxh3_64(text.as_bytes()).to_be_bytes();
        Self { hash, outline: Some(outline(text)) }
    }

    /// The value when no journal is kept.
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    /// Of a request that is recorded elsewhere.
    pub(crate) fn hash_of(request: &impl Serialize) -> Self {
        Self { hash: json_hash(request).to_be_bytes(), outline: None }
    }
}

/// Bytes in a request, as an outline shows them.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    format!("{} bytes, {:016x}", bytes.len(), xxh3_64(bytes))
}

/// The request with its long texts cut.
fn outline(text: String) -> String {
    let short = MAX_TEXT.iter().copied().find(|longest| text.len() <= *longest);
    if short.is_none()
        && let Ok(value) = serde_json::from_str::<Value>(&text)
    {
        for longest in MAX_TEXT {
            let cut = cut(&value, longest).to_string();
            if cut.len() <= MAX_OUTLINE {
                return cut;
            }
        }
        // Only the shape of the whole value would fit: keep its beginning and a hash.
        let cut = cut(&value, 24).to_string();
        let beginning = cut.get(..cut.floor_char_boundary(MAX_OUTLINE)).unwrap_or_default();
        return Value::String(format!("{beginning}… [{}]", bytes(text.as_bytes()))).to_string();
    }
    text
}

fn cut(value: &Value, longest: usize) -> Value {
    match value {
        Value::String(text) if text.len() > longest => {
            let beginning = text.get(..text.floor_char_boundary(longest / 2)).unwrap_or_default();
            Value::String(format!("{beginning}… [{}]", bytes(text.as_bytes())))
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| cut(item, longest)).collect()),
        Value::Object(map) => Value::Object(map.iter().map(|(key, value)| (key.clone(), cut(value, longest))).collect()),
        other => other.clone(),
    }
}

/// The first difference of two outlines: a JSON pointer (RFC 6901) and both values.
pub(crate) fn first_difference(recorded: &str, now: &str) -> (String, Value, Value) {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    let (recorded, now): (Value, Value) = (parse(recorded), parse(now));
    let mut path = String::new();
    let (mut a, mut b) = (&recorded, &now);
    loop {
        let step = match (a, b) {
            (Value::Object(x), Value::Object(y)) => x
                .keys()
                .chain(y.keys())
                .find(|key| x.get(*key) != y.get(*key))
                .and_then(|key| Some((key.replace('~', "~0").replace('/', "~1"), x.get(key)?, y.get(key)?))),
            (Value::Array(x), Value::Array(y)) => x
                .iter()
                .zip(y)
                .enumerate()
                .find(|(_, (one, other))| one != other)
                .map(|(n, (one, other))| (n.to_string(), one, other)),
            _ => None,
        };
        let Some((name, one, other)) = step else { return (path, a.clone(), b.clone()) };
        path = format!("{path}/{name}");
        (a, b) = (one, other);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outline_is_short_and_tells_long_requests_apart() {
        let request = |last: &str| json!({ "messages": [{ "text": "a".repeat(100_000) }, { "text": format!("{}{last}", "b".repeat(500)) }] });
        let (one, other) = (RequestDigest::of(&request("x")), RequestDigest::of(&request("y")));
        assert_ne!(one.hash, other.hash);
        let (one, other) = (one.outline.unwrap(), other.outline.unwrap());
        assert!(one.len() <= MAX_OUTLINE + 64, "{}", one.len());
        let (path, recorded, now) = first_difference(&one, &other);
        assert_eq!(path, "/messages/1/text");
        assert_ne!(recorded, now);
    }

    #[test]
    fn a_request_of_many_parts_is_cut_as_a_whole() {
        let request: Vec<_> = (0..10_000).collect();
        let outline = RequestDigest::of(&request).outline.unwrap();
        assert!(outline.len() < MAX_OUTLINE + 128 && serde_json::from_str::<Value>(&outline).is_ok());
    }

    #[test]
    fn differences_are_found_where_they_are() {
        assert_eq!(first_difference(r#"{"a/b":[1,2]}"#, r#"{"a/b":[1,3]}"#), ("/a~1b/1".into(), json!(2), json!(3)));
        assert_eq!(first_difference("[1]", "[1,2]"), (String::new(), json!([1]), json!([1, 2])));
        assert_eq!(first_difference(r#"{"a":1}"#, r#"{"b":1}"#).0, "");
    }
}
