//! Canonical JSON (RFC 8785), and the numbers that it cannot carry.

use serde_json::Value;

/// The largest whole number that every reader of JSON has exactly: 2^53 - 1.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// The canonical form of a value. Numbers are IEEE doubles there.
pub(super) fn canonical(value: &Value) -> serde_json::Result<Vec<u8>> {
    serde_json_canonicalizer::to_vec(value)
}

/// True if a number is beyond what every reader has exactly.
fn is_beyond(number: &serde_json::Number) -> bool {
    number.as_f64().is_none_or(|number| number.abs() > MAX_EXACT)
}

/// True if a value has a number that canonical JSON cannot carry: two such numbers may be one in it.
pub(super) fn has_beyond(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_beyond(number),
        Value::Array(items) => items.iter().any(has_beyond),
        Value::Object(members) => members.values().any(has_beyond),
        _ => false,
    }
}

/// Replaces such numbers by their text; gives the JSON pointers of them.
pub(super) fn beyond_as_text(value: &mut Value, pointer: &str, places: &mut Vec<String>) {
    match value {
        Value::Number(number) if is_beyond(number) => {
            *value = Value::String(number.to_string());
            places.push(pointer.to_owned());
        }
        Value::Array(items) => {
            for (item, index) in items.iter_mut().zip(0_usize..) {
                beyond_as_text(item, &format!("{pointer}/{index}"), places);
            }
        }
        Value::Object(members) => {
            for (key, value) in members {
                let key = key.replace('~', "~0").replace('/', "~1");
                beyond_as_text(value, &format!("{pointer}/{key}"), places);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_the_standard_are_canonical() {
        let value: Value = serde_json::from_str(
            r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
                "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#,
        )
        .unwrap();
        let expected = "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
                        \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
        assert_eq!(String::from_utf8(canonical(&value).unwrap()).unwrap(), expected);
        let keys = json!({ "\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7 });
        let text = String::from_utf8(canonical(&keys).unwrap()).unwrap();
        assert_eq!(text, "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}");
    }

    #[test]
    fn numbers_beyond_doubles_become_texts() {
        let mut value =
            json!({ "a/b": [1, u64::MAX, -9_007_199_254_740_992_i64], "c": { "d~": 1e300 }, "e": 9_007_199_254_740_991_u64 });
        assert!(has_beyond(&value));
        let mut places = Vec::new();
        beyond_as_text(&mut value, "", &mut places);
        assert_eq!(places, ["/a~1b/1", "/a~1b/2", "/c/d~0"]);
        assert_eq!(value["a/b"], json!([1, "18446744073709551615", "-9007199254740992"]));
        assert!(!has_beyond(&value));
    }
}
