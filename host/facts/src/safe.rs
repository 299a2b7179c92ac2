//! The rules of payloads: no key and no value of a secret, and no text that is longer than its bound.

use agent_host_protocol::encoded::json_len;
use serde_json::{Map, Value};

/// Longest text in a payload, in characters. A longer one is spilled: the fact has a preview and a reference.
pub const MAX_TEXT_CHARS: usize = 8_000;
/// The preview of a spilled text, in characters.
pub(crate) const PREVIEW_CHARS: usize = 1_200;
/// Titles, errors and other lines for people, in characters.
pub(crate) const MAX_LINE_CHARS: usize = 500;
/// Names that a runner gives to things, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 160;

/// Words that no key of a payload contains, in lower case and without `-` and `_`.
const FORBIDDEN: [&str; 5] = ["token", "secret", "password", "authorization", "apikey"];

/// In place of a value that is or may be a secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// Prefixes of credentials that services give out, each with the length from which a word is taken for one.
const CREDENTIALS: [(&str, usize); 9] = [
    ("sk-", 16),
    ("sk_live_", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("ghp_", 20),
    ("github_pat_", 24),
    ("AKIA", 20),
    ("AIza", 30),
    ("eyJ", 40),
];

/// True if a key of a payload names a secret, whatever its case.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    // Most keys are short and have none of the letters in a row: the copy is made once for each key of unknown objects.
    let plain: String = key.chars().filter(|c| !matches!(c, '-' | '_' | ' ' | '.')).flat_map(char::to_lowercase).collect();
    FORBIDDEN.iter().any(|word| plain.contains(word))
}

/// A value without secrets: keys that name one are replaced together with their values, and words that look like a credential.
pub(crate) fn redacted(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(redacted_text(text)),
        Value::Array(items) => items.into_iter().map(redacted).collect(),
        Value::Object(members) => Value::Object(redacted_members(members)),
        other => other,
    }
}

pub(crate) fn redacted_members(members: Map<String, Value>) -> Map<String, Value> {
    let mut safe = Map::new();
    let mut secrets = 0_usize;
    for (key, value) in members {
        if is_secret_key(&key) {
            secrets += 1;
        } else {
            safe.insert(key, redacted(value));
        }
    }
    let mut number = 0_usize;
    while secrets > 0 {
        number += 1;
        let key = if number == 1 { "redacted".to_owned() } else { format!("redacted_{number}") };
        if !safe.contains_key(&key) {
            safe.insert(key, REDACTED.into());
            secrets -= 1;
        }
    }
    safe
}

/// A text in which words that look like a credential are replaced.
pub(crate) fn redacted_text(text: String) -> String {
    without_credentials(without_words(text))
}

fn without_words(text: String) -> String {
    let lower_has = |word: &str| text.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
    let may_have = CREDENTIALS.iter().any(|(prefix, _)| text.contains(prefix)) || lower_has("bearer ") || lower_has("basic ");
    if !may_have {
        return text;
    }
    let mut safe = String::with_capacity(text.len());
    let mut after_scheme = false;
    for piece in text.split_inclusive(|c: char| !is_word(c)) {
        let end = piece.char_indices().next_back().filter(|(_, c)| !is_word(*c)).map_or(piece.len(), |(at, _)| at);
        let (word, separator) = piece.split_at(end);
        let is_scheme = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        let is_credential = CREDENTIALS.iter().any(|(prefix, least)| word.starts_with(prefix) && word.len() >= *least);
        let is_secret = is_credential || after_scheme && word.len() >= 8;
        safe.push_str(if is_secret { REDACTED } else { word });
        safe.push_str(separator);
        after_scheme = is_scheme && separator == " " || after_scheme && word.is_empty();
    }
    safe
}

/// Beginnings of credentials, each with the number of characters that must follow: digits among them, which words do not have.
const BEGINNINGS: [(&str, usize); 14] = [
    ("ahk_", 16),
    ("ahx_", 16),
    ("ahl_", 16),
    ("sk-", 20),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghs_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("AKIA", 16),
    ("AIza", 30),
    ("hf_", 24),
];

/// The beginning of a private key in the form of PEM.
const PEM: [&str; 2] = ["-----BEGIN", "PRIVATE KEY-----"];

/// The place of a text that is a credential beyond doubt: a known beginning, or `Bearer`, with a long run of characters and digits
/// behind it, or a private key. What is only likely is redacted, and no fault in a log from outside.
#[must_use]
pub fn credential(text: &str) -> Option<std::ops::Range<usize>> {
    if let Some(at) = text.find(PEM[0])
        && text.get(at..).is_some_and(|rest| rest.contains(PEM[1]))
    {
        return Some(at..text.len());
    }
    for (at, _) in text.match_indices(['B', 'b']) {
        let is_scheme = text.get(at..at + 7).is_some_and(|word| word.eq_ignore_ascii_case("bearer "));
        if let Some(range) = is_scheme.then(|| run_behind(text, at + 7, 16)).flatten() {
            return Some(range);
        }
    }
    BEGINNINGS.iter().find_map(|(beginning, follow)| {
        text.match_indices(beginning).find_map(|(at, _)| {
            let before = text.get(..at).unwrap_or_default();
            let starts = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
            let run = starts.then(|| run_behind(text, at + beginning.len(), *follow)).flatten()?;
            Some(at..run.end)
        })
    })
}

/// The run of characters of credentials from here on, where it is as long as this and has digits.
fn run_behind(text: &str, from: usize, least: usize) -> Option<std::ops::Range<usize>> {
    let rest = text.get(from..)?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.+/=".contains(c))).unwrap_or(rest.len());
    let run = rest.get(..end)?;
    (run.len() >= least && run.contains(|c: char| c.is_ascii_digit())).then_some(from..from + end)
}

/// A text without what [`credential`] finds.
fn without_credentials(mut text: String) -> String {
    while let Some(range) = credential(&text) {
        text.replace_range(range, REDACTED);
    }
    text
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '=' | '~')
}

/// The first characters of a text.
pub(crate) fn beginning(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// True if a text has more characters than this.
pub(crate) fn is_longer(text: &str, chars: usize) -> bool {
    text.len() > chars && text.chars().nth(chars).is_some()
}

/// A line for people: without secrets, cut at its bound.
pub(crate) fn line(text: &str) -> String {
    let beginning = self::beginning(text, MAX_LINE_CHARS);
    let line = redacted_text(beginning.to_owned());
    if beginning.len() < text.len() { format!("{line}…") } else { line }
}

/// A value without secrets, where its JSON is short enough for a payload.
pub(crate) fn small(value: Value) -> Option<Value> {
    let value = redacted(value);
    (json_len(&value) <= MAX_TEXT_CHARS).then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_and_words_of_secrets_do_not_get_through() {
        let given = json!({
            "api_key": "canary-1", "query": "weather", "nested": [{ "X-Api-Key": "canary-2", "Authorization": "canary-3" }],
            "inputTokens": 7, "redacted": "kept", "header": "Bearer abcdefgh-canary-4",
        });
        let safe = redacted(given);
        assert_eq!(
            safe,
            json!({
                "query": "weather", "nested": [{ "redacted": REDACTED, "redacted_2": REDACTED }],
                "redacted": "kept", "redacted_2": REDACTED, "redacted_3": REDACTED, "header": format!("Bearer {REDACTED}"),
            })
        );
        assert_eq!(redacted_text("use sk-1234567890abcdef, please".into()), format!("use {REDACTED}, please"));
        assert_eq!(redacted_text("a bearer of news, a basic need".into()), "a bearer of news, a basic need");
    }

    #[test]
    fn credentials_are_found_and_prose_is_not() {
        for text in [
            "Authorization: Bearer abcdefghijklmnop1234",
            "key=sk-abcdefghij0123456789abcd",
            "ahk_0123456789abcdef0123",
            "AKIA0123456789ABCDEF",
            "-----BEGIN RSA PRIVATE KEY-----\nMII",
        ] {
            assert!(credential(text).is_some(), "{text}");
            let safe = redacted_text(text.to_owned());
            assert!(credential(&safe).is_none() && safe.contains(REDACTED), "{safe}");
        }
        for text in ["the bearer of good news", "Bearer [redacted]", "task-0123456789012345678901", "sk-short", "B", "ahk_…"] {
            assert!(credential(text).is_none(), "{text}");
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(beginning("äöü", 2), "äö");
        assert!(is_longer("äöü", 2) && !is_longer("äöü", 3));
        assert_eq!(line(&"ä".repeat(MAX_LINE_CHARS + 1)).chars().count(), MAX_LINE_CHARS + 1);
    }

    proptest! {
        #[test]
        fn redacted_text_has_no_credential(text in "(Bearer |sk-|ahk_|-----BEGIN|PRIVATE KEY-----|[a-z0-9=ä ]{0,24}){0,6}") {
            prop_assert_eq!(credential(&redacted_text(text)), None);
        }

        #[test]
        fn text_without_credentials_is_unchanged(text in "[a-z ,.é]{0,80}") {
            prop_assume!(!text.contains("bearer") && !text.contains("basic"));
            prop_assert_eq!(redacted_text(text.clone()), text);
        }
    }
}
