//! Secrets in payloads: keys that name one, values that are one.

use serde_json::{Map, Value};

use super::{
    event::Event,
    finding::{Findings, short},
    rule::Rule,
};
use crate::safe::{credential, is_secret_key};

/// Families whose texts a runner writes for people: they are its own words, and are not judged.
const WORDS: [&str; 3] = ["model", "reasoning", "plan"];

pub(super) fn check(event: &Event<'_>, findings: &mut Findings) {
    let mut found = Found { key: None, value: None };
    look(event.payload, &mut found);
    if let Some(key) = found.key {
        findings.add(Rule::SecretKey, event.place, format!("`payload` has the key `{}`", short(key)));
    }
    if let Some(key) = found.value.filter(|_| !WORDS.contains(&event.family())) {
        // The value itself is not repeated.
        findings.add(Rule::SecretValue, event.place, format!("the value of `{}` is a credential", short(key)));
    }
}

struct Found<'a> {
    key: Option<&'a str>,
    /// The key of the value.
    value: Option<&'a str>,
}

fn look<'a>(members: &'a Map<String, Value>, found: &mut Found<'a>) {
    for (key, value) in members {
        if found.key.is_none() && is_secret_key(key) {
            found.key = Some(key);
        }
        look_at(key, value, found);
    }
}

fn look_at<'a>(key: &'a str, value: &'a Value, found: &mut Found<'a>) {
    match value {
        Value::String(text) if found.value.is_none() => found.value = credential(text).map(|_| key),
        Value::Array(items) => items.iter().for_each(|item| look_at(key, item, found)),
        Value::Object(members) => look(members, found),
        _ => {}
    }
}
