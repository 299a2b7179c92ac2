//! Filters on the metadata of documents and passages.

use agent_host_protocol::ApiError;
use serde_json::{Map, Number, Value};

/// A filter has so many keys and values at most.
const MAX_VALUES: usize = 256;

const ALLOWED: &str = "a filter is an object of metadata keys, each with a string, number or boolean, a list of those (any of \
                       them), or an object with one or more of `gte`, `gt`, `lte`, `lt` (number or string) and `prefix` (string)";

/// Conditions on metadata. All keys must match.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Filter(Vec<(String, Condition)>);

#[derive(Debug, Clone, PartialEq)]
enum Condition {
    /// The value equals one of these; for a list, one of its items does.
    AnyOf(Vec<Value>),
    /// The value is within all of these bounds.
    Within(Vec<Bound>),
}

#[derive(Debug, Clone, PartialEq)]
enum Bound {
    AtLeast(Value),
    MoreThan(Value),
    AtMost(Value),
    LessThan(Value),
    Prefix(String),
}

impl Filter {
    /// Reads a filter as a guest gives it.
    pub(crate) fn parse(filters: Option<&Value>) -> Result<Self, ApiError> {
        let keys = match filters {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(keys)) => keys,
            Some(_) => return Err(ApiError::invalid_argument(format!("filters are not an object: {ALLOWED}"))),
        };
        let mut values = 0;
        let mut filter = Vec::with_capacity(keys.len());
        for (key, shape) in keys {
            let wrong = |what: &str| {
                let key: String = key.chars().take(100).collect();
                ApiError::invalid_argument(format!("the filter of `{key}` {what}: {ALLOWED}"))
            };
            let condition = match shape {
                Value::Array(any) if any.is_empty() => return Err(wrong("is an empty list")),
                Value::Array(any) if any.iter().all(is_scalar) => Condition::AnyOf(any.clone()),
                Value::Object(bounds) if bounds.is_empty() => return Err(wrong("is an empty object")),
                Value::Object(bounds) => Condition::Within(
                    bounds
                        .iter()
                        .map(|(name, value)| match (name.as_str(), value) {
                            ("gte", Value::Number(_) | Value::String(_)) => Ok(Bound::AtLeast(value.clone())),
                            ("gt", Value::Number(_) | Value::String(_)) => Ok(Bound::MoreThan(value.clone())),
                            ("lte", Value::Number(_) | Value::String(_)) => Ok(Bound::AtMost(value.clone())),
                            ("lt", Value::Number(_) | Value::String(_)) => Ok(Bound::LessThan(value.clone())),
                            ("prefix", Value::String(prefix)) => Ok(Bound::Prefix(prefix.clone())),
                            _ => Err(wrong("has a bound that does not exist or is of the wrong type")),
                        })
                        .collect::<Result<_, _>>()?,
                ),
                scalar if is_scalar(scalar) => Condition::AnyOf(vec![scalar.clone()]),
                _ => return Err(wrong("is of the wrong type")),
            };
            values += match &condition {
                Condition::AnyOf(any) => any.len(),
                Condition::Within(bounds) => bounds.len(),
            };
            filter.push((key.clone(), condition));
        }
        if values > MAX_VALUES {
            return Err(ApiError::invalid_argument(format!("filters have {values} values; the limit is {MAX_VALUES}")));
        }
        Ok(Self(filter))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The part of it that is about one key, and the rest.
    pub(crate) fn split(self, keys: &[&str]) -> (Self, Self) {
        let (these, others) = self.0.into_iter().partition(|(key, _)| keys.contains(&key.as_str()));
        (Self(these), Self(others))
    }

    /// True if all keys match. A document without such a key does not match.
    pub(crate) fn fits(&self, metadata: &Map<String, Value>) -> bool {
        self.0.iter().all(|(key, condition)| metadata.get(key).is_some_and(|value| condition.fits(value)))
    }
}

impl Condition {
    fn fits(&self, value: &Value) -> bool {
        match (value, self) {
            (Value::Array(values), _) => values.iter().any(|value| !value.is_array() && self.fits(value)),
            (value, Self::AnyOf(any)) => any.iter().any(|one| compare(value, one) == Some(std::cmp::Ordering::Equal)),
            (value, Self::Within(bounds)) => bounds.iter().all(|bound| bound.fits(value)),
        }
    }
}

impl Bound {
    fn fits(&self, value: &Value) -> bool {
        match self {
            Self::AtLeast(bound) => compare(value, bound).is_some_and(|order| order.is_ge()),
            Self::MoreThan(bound) => compare(value, bound).is_some_and(|order| order.is_gt()),
            Self::AtMost(bound) => compare(value, bound).is_some_and(|order| order.is_le()),
            Self::LessThan(bound) => compare(value, bound).is_some_and(|order| order.is_lt()),
            Self::Prefix(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix)),
        }
    }
}

/// The order of two values of the same type; `None` for different types.
fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => numbers(a, b),
        _ => None,
    }
}

fn numbers(a: &Number, b: &Number) -> Option<std::cmp::Ordering> {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn is_scalar(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fits(filter: Value) -> bool {
        let metadata = json!({
            "lang": "en", "year": 2024, "big": 9_007_199_254_740_993_u64, "draft": false, "tags": ["a", "b"], "path": "guide/a.md",
        });
        Filter::parse(Some(&filter)).unwrap().fits(metadata.as_object().unwrap())
    }

    #[test]
    fn values_lists_bounds_and_prefixes_decide() {
        for yes in [
            json!({}),
            json!(null),
            json!({"lang": "en"}),
            json!({"lang": ["de", "en"]}),
            json!({"year": 2024, "draft": false}),
            json!({"year": 2024.0}),
            json!({"year": {"gte": 2024, "lt": 2025}}),
            json!({"year": {"gt": 2023.5, "lte": 2024}}),
            json!({"big": 9_007_199_254_740_993_u64}),
            json!({"tags": "b"}),
            json!({"path": {"prefix": "guide/"}}),
            json!({"lang": {"gte": "ea", "lte": "ez"}}),
        ] {
            assert!(fits(yes.clone()), "{yes}");
        }
        for no in [
            json!({"lang": "EN"}),
            json!({"lang": "en", "year": 2023}),
            json!({"year": "2024"}),
            json!({"year": {"gt": 2024}}),
            json!({"big": 9_007_199_254_740_992_u64}),
            json!({"tags": "c"}),
            json!({"path": {"prefix": "uide"}}),
            json!({"year": {"prefix": "20"}}),
            json!({"nobody": "knows"}),
        ] {
            assert!(!fits(no.clone()), "{no}");
        }
    }

    #[test]
    fn shapes_that_are_not_known_are_refused_with_what_is_allowed() {
        for wrong in [
            json!([]),
            json!("lang"),
            json!({"lang": null}),
            json!({"lang": []}),
            json!({"lang": {}}),
            json!({"lang": [["en"]]}),
            json!({"lang": {"regex": ".*"}}),
            json!({"year": {"gte": true}}),
            json!({"path": {"prefix": 1}}),
            json!({"year": vec![1; MAX_VALUES + 1]}),
        ] {
            let error = Filter::parse(Some(&wrong)).unwrap_err();
            assert_eq!(error.code, agent_host_protocol::ErrorCode::InvalidArgument, "{wrong}");
            assert!(error.message.contains("prefix") || error.message.contains("limit"), "{error}");
        }
    }
}
