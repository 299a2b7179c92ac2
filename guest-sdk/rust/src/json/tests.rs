//! Tests of the reader against `serde_json`, and of its messages.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::from_str;

const DOCUMENTS: &[&str] = &[
    r#"{"a": [1, -2, 3.25, 1e3, -0.5E-2, 0], "b": {"c": null, "d": [true, false, []], "e": {}}}"#,
    r#" [ "" , "plain" , "\"\\\/\b\f\n\r\t" , "\u00e9\ud83e\udd80\u0000" , "größe 🦀" ] "#,
    r#"[18446744073709551615, -9223372036854775808, 18446744073709551616, -0, 1e308, 123456789.5]"#,
    r#"{"": 1, "a\u0062": 2, "dup": 1, "dup": 2}"#,
    "null",
    "\"text\"",
    "-12",
];

/// Every document, truncated and with each byte replaced, reads or fails as in `serde_json`.
#[test]
fn reads_what_serde_json_reads_and_nothing_else() {
    for document in DOCUMENTS {
        agree(document);
        for (at, char) in document.char_indices() {
            agree(&document[..at]);
            for other in ["", "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-", ".", "e", "u", "\n", "\u{1}", " ", "é"] {
                agree(&format!("{}{other}{}", &document[..at], &document[at + char.len_utf8()..]));
            }
        }
    }
}

fn agree(json: &str) {
    let ours = from_str::<Value>(json);
    match serde_json::from_str::<Value>(json) {
        Ok(theirs) => assert!(ours.as_ref().is_ok_and(|ours| same(ours, &theirs)), "{json}: {ours:?} {theirs:?}"),
        Err(error) => assert!(ours.is_err(), "{json} was read as {ours:?}, but {error}"),
    }
    // Skipping accepts the same documents as reading, except that it does not check the size of a number.
    let skipped = from_str::<IgnoredAny>(json).is_ok();
    assert!(skipped || ours.is_err(), "{json} was not skipped");
    if skipped && let Err(error) = ours {
        assert!(error.message().contains("a number of that size"), "{json} was skipped, but {error}");
    }
}

/// `serde_json` is inexact in the last digit of a float; this reader is exact.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= a.abs() * 1e-14
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((name, a), (other, b))| name == other && same(a, b))
        }
        (ours, theirs) => ours == theirs,
    }
}

#[test]
fn nesting_has_a_bound_in_both_ways_of_reading() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(from_str::<Value>(&nested(128)).is_ok());
    assert!(from_str::<Value>(&nested(129)).is_err());
    assert!(from_str::<IgnoredAny>(&nested(128)).is_ok());
    assert!(from_str::<IgnoredAny>(&nested(100_000)).is_err());
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shape {
    Point,
    Circle(f64),
    Line(i8, i8),
    Box { width: u16, height: Option<u16> },
}

#[derive(Debug, PartialEq, Deserialize)]
struct Drawing {
    name: String,
    shapes: Vec<Shape>,
    #[serde(default)]
    layers: BTreeMap<u32, (bool, char)>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[test]
fn builds_the_types_that_serde_derives() {
    let json = r#"{
        "name": "n\u0061me",
        "shapes": ["point", {"circle": 2}, {"line": [-1, 2]}, {"box": {"width": 3, "height": null}}],
        "layers": {"7": [true, "x"]},
        "color": {"red": 0.5}
    }"#;
    let ours: Drawing = from_str(json).unwrap();
    assert_eq!(ours, serde_json::from_str(json).unwrap());
    assert_eq!(ours.shapes[1], Shape::Circle(2.0));
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(rename = "name")]
    _name: String,
    #[serde(default, rename = "count")]
    _count: u8,
    #[serde(default, rename = "shapes")]
    _shapes: Vec<Shape>,
}

fn check(json: &str, expect: &str) {
    assert_eq!(from_str::<Config>(json).unwrap_err().to_string(), expect);
}

#[test]
fn an_error_names_the_field() {
    check(r#"{"name": 1}"#, "field `name`: expected a string, found the number 1");
    check(r#"{"name": "x", "count": "two"}"#, "field `count`: expected u8, found the text `two`");
    check(r#"{"name": "x", "count": 256}"#, "field `count`: expected u8, found the number 256");
    check(r#"{"name": "x", "count": 1.5}"#, "field `count`: expected u8, found a number with a fraction");
    check(r#"{"name": "x", "count": null}"#, "field `count`: expected u8, found `null`");
    check(r#"{"count": 1}"#, "missing field `name`");
    check(r#"{"name": "x", "nmae": 1}"#, "unknown field `nmae`, expected one of `name`, `count`, `shapes`");
    check(
        r#"{"name": "x", "shapes": ["point", {"box": {"width": true}}]}"#,
        "field `shapes[1].box.width`: expected u16, found `true`",
    );
    check(r#"{"name": "x", "shapes": [{"line": [1, 2, 3]}]}"#, "field `shapes[0].line`: 3 items are too many");
    check(
        r#"{"name": "x", "shapes": ["circel"]}"#,
        "field `shapes[0]`: unknown variant `circel`, expected one of `point`, `circle`, `line`, `box`",
    );
    check("7", "expected struct Config, found the number 7");
    check(r#"{"name": "x""#, "not JSON at byte 12: a comma or the end of the list was expected");
}
