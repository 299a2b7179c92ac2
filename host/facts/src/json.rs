//! JSON as logs and evidence may have it: one value a line, without doubled keys, not nested deeper than [`MAX_DEPTH`].
//!
//! The parsers of most languages keep the last of two members with one key, some the first: a reader and a checker would see two
//! different objects. A log with such a line is refused.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// The deepest nesting. The host takes and writes no deeper value anywhere.
pub const MAX_DEPTH: usize = 64;

/// The refusal of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is no JSON, with the reason.
    #[error("{0}")]
    Syntax(String),
    /// The end of the text comes before the end of its value.
    #[error("the text ends before its JSON value")]
    Torn,
    /// The value nests too deep.
    #[error("the value nests too deep: {MAX_DEPTH} levels are enough")]
    Depth,
    /// An object has this key twice.
    #[error("the key `{0}` stands twice in one object")]
    DoubledKey(String),
}

/// The value of a text.
///
/// # Errors
/// [`JsonError`] for a text that is not exactly one JSON value, nests too deep, or has a doubled key.
pub fn parse(text: &str) -> Result<Value, JsonError> {
    parse_within(text, MAX_DEPTH)
}

/// The same, for a value of at most `levels`, which are fewer than 128.
pub(crate) fn parse_within(text: &str, levels: usize) -> Result<Value, JsonError> {
    let mut refusal = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Strict { levels, refusal: &mut refusal };
    let value = seed.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    match (value, refusal) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(refusal)) => Err(refusal),
        (Err(error), None) if error.is_eof() => Err(JsonError::Torn),
        (Err(error), None) => Err(JsonError::Syntax(error.to_string())),
    }
}

/// A value that may nest so many levels. The refusal is kept beside the error of the parser, which has only a text.
struct Strict<'r> {
    levels: usize,
    refusal: &'r mut Option<JsonError>,
}

impl Strict<'_> {
    fn refuse<E: serde::de::Error>(&mut self, refusal: JsonError) -> E {
        let error = E::custom(&refusal);
        *self.refusal = Some(refusal);
        error
    }

    fn inner(&mut self) -> Strict<'_> {
        Strict { levels: self.levels.saturating_sub(1), refusal: self.refusal }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number without a finite value"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        if self.levels == 0 {
            return Err(self.refuse(JsonError::Depth));
        }
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.inner())? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        if self.levels == 0 {
            return Err(self.refuse(JsonError::Depth));
        }
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(self.inner())?;
            if members.contains_key(&key) {
                return Err(self.refuse(JsonError::DoubledKey(key)));
            }
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn doubled_keys_depth_and_torn_texts_are_told_apart() {
        assert_eq!(
            parse(r#"{"a":[1,-2,0.5,"x",null,true],"b":{"a":{}}}"#),
            Ok(json!({"a": [1, -2, 0.5, "x", null, true], "b": {"a": {}}}))
        );
        assert_eq!(parse(r#"{"a":1,"b":{"c":1,"c":1}}"#), Err(JsonError::DoubledKey("c".into())));
        assert_eq!(parse(r#"{"a":[1,"#), Err(JsonError::Torn));
        assert!(matches!(parse("{} {}"), Err(JsonError::Syntax(_))));
        assert!(matches!(parse("1e999"), Err(JsonError::Syntax(_))));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(parse(&nested(MAX_DEPTH + 1)), Err(JsonError::Depth));
        assert_eq!(parse(&"[".repeat(1_000_000)), Err(JsonError::Depth));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
