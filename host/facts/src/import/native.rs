//! Members of a native event: absent members and members of another type are the same.

use serde_json::Value;

use crate::safe::beginning;

/// Longest id or name that is kept of a native event, in characters.
const MAX_NAME_CHARS: usize = 256;

/// A text.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

/// The first of these members that is a text.
pub(super) fn text_of<'a>(value: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| text(value, name))
}

/// An id or a name, as long as one may be.
pub(super) fn name(text: &str) -> String {
    beginning(text, MAX_NAME_CHARS).to_owned()
}

/// The items of a list; none for another value.
pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A number of tokens.
pub(super) fn count(value: &Value, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| value.get(name)?.as_u64())
}

/// The words of an error: a text, the message of an object, or the object as JSON.
pub(super) fn error_text(error: &Value) -> String {
    match error {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => match text_of(other, &["message", "errorText"]) {
            Some(message) => message.to_owned(),
            None if other.as_object().is_some_and(serde_json::Map::is_empty) => "unknown".to_owned(),
            None => other.to_string(),
        },
    }
}
