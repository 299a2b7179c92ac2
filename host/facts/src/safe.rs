//! The rules of payloads: no key and no value of a secret, and no text that is longer than its bound.

use std::{ops::Range, sync::LazyLock};

use agent_host_protocol::encoded::json_len;
use regex::Regex;
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

/// Beginnings of credentials that services give out. A long run of characters and digits follows.
const BEGINNINGS: [&str; 18] = [
    "ahk_",
    "ahx_",
    "ahl_",
    "ahm_",
    "sk-",
    "sk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "AIza",
    "hf_",
    "eyJ",
    "pk_live_",
];
/// The length from which a run is likely to be of a credential, and the one from which it is beyond doubt.
const LIKELY: usize = 8;
const SURE: usize = 16;

/// A credential: behind the name of its scheme, with a known beginning, or a private key in the form of PEM.
static CREDENTIAL: LazyLock<Regex> = LazyLock::new(|| {
    let beginnings = BEGINNINGS.map(regex::escape).join("|");
    let run = format!("[A-Za-z0-9_.+/=~-]{{{LIKELY},}}");
    let schemes = format!("(?i:(?<bearer>bearer)|basic) (?<behind>{run})");
    let named = format!(r"(?:^|[^\p{{Alphabetic}}\p{{N}}_-])(?<named>(?:{beginnings})(?<run>{run}))");
    let pem = r"(?<pem>-----BEGIN[\s\S]*?PRIVATE KEY-----[\s\S]*)";
    #[allow(clippy::expect_used, reason = "it is made of constants, and every test of this module needs it")]
    Regex::new(&format!("{schemes}|{named}|{pem}")).expect("a regular expression")
});

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

/// The places of a text that are credentials, each with the run of characters that makes it one; none for a private key.
fn credentials(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    CREDENTIAL.captures_iter(text).filter_map(|found| {
        let whole = found.name("behind").or_else(|| found.name("named")).or_else(|| found.name("pem"))?;
        let run = found.name("run").or_else(|| found.name("behind")).map_or("", |run| run.as_str());
        // Words of prose have neither digits nor capitals within. Few follow `bearer`.
        let is_random = found.name("bearer").is_some()
            || run.contains(|c: char| c.is_ascii_digit())
            || run.chars().skip(1).any(|c| c.is_ascii_uppercase());
        (run.is_empty() || is_random).then(|| (whole.range(), run))
    })
}

/// The place of a text that is a credential beyond doubt. One that is only likely is redacted, and no fault in a log from outside.
#[must_use]
pub fn credential(text: &str) -> Option<Range<usize>> {
    let is_sure = |run: &str| run.is_empty() || run.len() >= SURE && run.contains(|c: char| c.is_ascii_digit());
    credentials(text).find(|(_, run)| is_sure(run)).map(|(range, _)| range)
}

/// A text in which likely credentials are replaced.
pub(crate) fn redacted_text(text: String) -> String {
    let mut safe = String::new();
    let mut end = 0;
    for (range, _) in credentials(&text) {
        safe.push_str(text.get(end..range.start).unwrap_or_default());
        safe.push_str(REDACTED);
        end = range.end;
    }
    if end == 0 {
        return text;
    }
    safe.push_str(text.get(end..).unwrap_or_default());
    safe
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
        for prose in ["a bearer of news, a basic need", "Basic understanding of hf_transformers", "task-0123456789012345678901"] {
            assert_eq!(redacted_text(prose.into()), prose);
        }
        assert_eq!(
            redacted_text("Basic dXNlcjpwYXNz, xoxb-12345678-a sk-123456789".into()),
            format!("Basic {REDACTED}, {REDACTED} {REDACTED}")
        );
    }

    #[test]
    fn credentials_are_found_and_prose_is_not() {
        for text in [
            "Authorization: Bearer abcdefghijklmnop1234",
            "key=sk-abcdefghij0123456789abcd",
            "ahk_0123456789abcdef0123",
            "ahm_0123456789abcdef0123",
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
