//! Keeps the key of a provider out of an answer that comes in pieces.

use crate::{
    redact::{MARK, Redactor},
    secret::Secret,
};

/// Keys shorter than this are placeholders such as `none` or `EMPTY`, and words that an answer may well have. Errors
/// are cleaned of them too, answers are not.
const MIN_KEY_BYTES: usize = 12;

/// Removes the key from a text that comes in pieces, also where it lies across two of them. Holds back the end of a
/// piece only while it may be the beginning of the key.
#[derive(Debug)]
pub(super) struct Pieces {
    key: Option<Secret>,
    buffer: String,
}

impl Pieces {
    /// For the one key that a provider has.
    pub(super) fn new(redactor: &Redactor) -> Self {
        let key = redactor.secrets().first().filter(|key| key.expose().len() >= MIN_KEY_BYTES);
        Self { key: key.cloned(), buffer: String::new() }
    }

    /// Adds a piece, and returns the text that can be passed on.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let Some(key) = &self.key else { return piece.to_owned() };
        let mut text = std::mem::take(&mut self.buffer);
        text.push_str(piece);
        if text.contains(key.expose()) {
            text = text.replace(key.expose(), MARK);
        }
        let key = key.expose();
        let begins_key = |at: usize| text.get(at..).is_some_and(|end| key.starts_with(end));
        let from = text.len().saturating_sub(key.len().saturating_sub(1));
        if let Some(at) = (from..text.len()).find(|at| begins_key(*at)) {
            self.buffer = text.split_off(at);
        }
        text
    }

    /// The text that was held back.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "sk-abcabcabd-0123";

    proptest! {
        #[test]
        fn a_key_is_removed_however_it_is_cut(before in "[sk\\-abcd]{0,20}", after in "[sk\\-abcd]{0,20}", cuts in prop::collection::vec(1usize..6, 0..40)) {
            let text = format!("{before}{KEY}{after}");
            let mut pieces = Pieces::new(&Redactor::new(vec![Secret::new(KEY)]));
            let (mut out, mut rest) = (String::new(), text.as_str());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                out += &pieces.push(piece);
                prop_assert!(!out.contains(KEY));
                rest = after;
            }
            out += &pieces.push(rest);
            out += &pieces.finish();
            prop_assert_eq!(out, text.replace(KEY, MARK));
        }
    }

    #[test]
    fn ordinary_text_passes_at_once() {
        let mut pieces = Pieces::new(&Redactor::new(vec![Secret::new(KEY)]));
        assert_eq!(pieces.push("hello 語"), "hello 語");
        assert_eq!(pieces.push("tasks"), "task");
        assert_eq!(pieces.push("!"), "s!");
        let mut placeholder = Pieces::new(&Redactor::new(vec![Secret::new("none")]));
        assert_eq!(placeholder.push("none of it"), "none of it");
    }
}
