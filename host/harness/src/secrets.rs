//! Removal of secrets from what an agent says: the values of its environment that the operator marked as secret, and its tokens.

use serde_json::Value;

/// The replacement of a secret.
const MARK: &str = "[secret]";
/// Shorter values are not removed: they would match everywhere and reveal nothing.
const MIN_SECRET: usize = 4;

/// The secrets of a process. Neither `Debug` nor any serialization shows them.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// Each as it is and as JSON writes it, the longest first, for one may be a part of another.
    forms: Vec<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.len() >= MIN_SECRET) {
            let json = serde_json::to_string(secret).unwrap_or_default();
            forms.push(json.trim_matches('"').to_owned());
            forms.push(secret.to_owned());
        }
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        Self { forms }
    }

    /// `text` without secrets.
    pub(crate) fn clean(&self, text: String) -> String {
        let mut text = text;
        for form in &self.forms {
            if text.contains(form.as_str()) {
                text = text.replace(form.as_str(), MARK);
            }
        }
        text
    }

    /// Every text in `value` without secrets, the keys too.
    pub(crate) fn clean_value(&self, value: Value) -> Value {
        if self.forms.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.clean(text)),
            Value::Array(items) => items.into_iter().map(|item| self.clean_value(item)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (self.clean(key), self.clean_value(value))).collect(),
            other => other,
        }
    }

    /// Length of the longest end of `text` that may be the beginning of a secret.
    fn undecided(&self, text: &str) -> usize {
        let begins = |form: &String| {
            let longest = form.len().saturating_sub(1).min(text.len());
            (1..=longest).rev().find(|length| {
                let end = text.get(text.len() - length..);
                end.is_some_and(|end| form.starts_with(end))
            })
        };
        self.forms.iter().filter_map(begins).max().unwrap_or(0)
    }
}

/// Text that comes in pieces. A secret is found for any split into pieces.
#[derive(Debug, Default)]
pub(crate) struct CleanStream {
    /// The end of the text so far that may be the beginning of a secret.
    pending: String,
}

impl CleanStream {
    /// The text that is known to have no secret after this piece.
    pub(crate) fn push(&mut self, piece: &str, secrets: &Secrets) -> String {
        self.pending.push_str(piece);
        let mut text = secrets.clean(std::mem::take(&mut self.pending));
        let undecided = secrets.undecided(&text);
        self.pending = text.split_off(text.len() - undecided);
        text
    }

    /// True if nothing is held back.
    pub(crate) const fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The rest.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_found_for_any_split() {
        let secrets = Secrets::new(["sk-canary-1", "abc", "pass\"word"]);
        let text = "key sk-canary-1, sk-canary and pass\"word.";
        for size in 1..text.len() {
            let mut stream = CleanStream::default();
            let mut clean = String::new();
            for piece in text.as_bytes().chunks(size) {
                clean.push_str(&stream.push(std::str::from_utf8(piece).unwrap(), &secrets));
            }
            clean.push_str(&stream.finish());
            assert_eq!(clean, "key [secret], sk-canary and [secret].", "pieces of {size}");
        }
    }

    #[test]
    fn values_and_keys_are_cleaned() {
        let secrets = Secrets::new(["sk-canary-1", "sk-canary-12"]);
        let value = json!({ "sk-canary-1": ["x sk-canary-12 y", 1] });
        assert_eq!(secrets.clean_value(value), json!({ "[secret]": ["x [secret] y", 1] }));
    }
}
