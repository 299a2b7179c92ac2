//! Removal of secrets from the output of a service, which may repeat them in an error or (a hostile one) in an answer.

use std::{borrow::Cow, sync::Arc};

use agent_host_protocol::ApiError;
use bytes::Bytes;
use serde_json::Value;

use crate::secret::Secret;

pub(crate) mod stream;

/// The replacement of a secret.
pub(crate) const MARK: &str = "[secret]";
/// Shorter secrets are not removed: they would match everywhere and reveal nothing.
const MIN_SECRET: usize = 4;

/// Takes secrets out of what a service says. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redactor {
    secrets: Arc<[Secret]>,
}

impl Redactor {
    /// The longest secret comes first, for one may be a part of another.
    pub(crate) fn new(mut secrets: Vec<Secret>) -> Self {
        secrets.retain(|secret| secret.expose().len() >= MIN_SECRET);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self { secrets: secrets.into() }
    }

    /// The secrets that are removed.
    pub(crate) fn secrets(&self) -> &[Secret] {
        &self.secrets
    }

    /// `error` without secrets.
    pub(crate) fn error(&self, mut error: ApiError) -> ApiError {
        error.message = self.owned(error.message);
        error.details = error.details.map(|details| self.value(details));
        error
    }

    /// `text` without secrets.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &*self.secrets {
            if text.contains(secret.expose()) {
                text = Cow::Owned(text.replace(secret.expose(), MARK));
            }
        }
        text
    }

    /// `text` without secrets, and without all that follows its first `max` bytes.
    pub(crate) fn cut(&self, text: &str, max: usize) -> String {
        cut(&self.text(text), max).into_owned()
    }

    /// Every text in `value` without secrets, the keys too.
    pub(crate) fn value(&self, value: Value) -> Value {
        if self.secrets.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.owned(text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (self.owned(key), self.value(value))).collect(),
            other => other,
        }
    }

    /// `text` without secrets.
    pub(crate) fn owned(&self, text: String) -> String {
        match self.text(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted,
        }
    }

    /// `bytes` without secrets. Binary content may be damaged by the removal; a leaked secret is worse.
    pub(crate) fn bytes(&self, bytes: Vec<u8>) -> Bytes {
        let mut bytes = bytes;
        for secret in &*self.secrets {
            let needle = secret.expose().as_bytes();
            let (mut rest, mut clean) = (bytes.as_slice(), Vec::new());
            while let Some(at) = rest.windows(needle.len()).position(|window| window == needle) {
                clean.extend_from_slice(rest.get(..at).unwrap_or_default());
                clean.extend_from_slice(MARK.as_bytes());
                rest = rest.get(at + needle.len()..).unwrap_or_default();
            }
            if rest.len() < bytes.len() {
                clean.extend_from_slice(rest);
                bytes = clean;
            }
        }
        bytes.into()
    }
}

/// The first `max` bytes of `text`, at a border of characters, marked where something is missing.
pub(crate) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(max.saturating_sub("…".len()));
    Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_taken_out_of_text_json_and_bytes() {
        let redactor = Redactor::new(vec![Secret::new("canary"), Secret::new("canary-long"), Secret::new("x")]);
        assert_eq!(redactor.text("a canary-long and x"), "a [secret] and x");
        assert_eq!(redactor.value(json!({ "canary": ["a canary", 1] })), json!({ "[secret]": ["a [secret]", 1] }));
        assert_eq!(&redactor.bytes(b"\0canary\xffcanary".to_vec())[..], b"\0[secret]\xff[secret]");
    }

    #[test]
    fn an_error_is_cleaned_in_every_place() {
        let error = ApiError {
            details: Some(json!({ "canary": ["canary", { "a": "xcanaryy" }] })),
            ..ApiError::invalid_argument("bad canary")
        };
        let clean = Redactor::new(vec![Secret::new("canary")]).error(error);
        assert!(!format!("{clean:?}").contains("canary"), "{clean:?}");
    }

    #[test]
    fn a_cut_does_not_leave_half_of_a_secret() {
        let redactor = Redactor::new(vec![Secret::new("canary")]);
        assert_eq!(redactor.cut("abcanary", 5), "ab…");
        assert_eq!(cut("äöü", 5), "ä…");
    }
}
