//! Cursors: places in a sequence, as opaque text.
//!
//! A cursor is one letter for the kind of sequence and 32 hexadecimal digits: 4 bytes that say which sequence it
//! belongs to, 8 bytes of position, 4 bytes of checksum. The checksum keeps mistakes out, not attackers: a forged
//! cursor is a position in the same sequence, and nothing else.

use std::fmt::Write as _;

use agent_host_protocol::{RunId, grant::ConversationKey};
use xxhash_rust::xxh3::xxh3_64;

use crate::{error::LedgerError, record::RunFilter};

/// The sequence that a cursor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    kind: char,
    what: &'static str,
    owner: u32,
}

impl Sequence {
    fn new(kind: char, what: &'static str, owner: &[u8]) -> Self {
        Self { kind, what, owner: xxh3_64(owner) as u32 }
    }

    pub(crate) fn run_events(id: RunId) -> Self {
        Self::new('e', "the events of this run", &id.to_bytes())
    }

    pub(crate) fn transcript(key: &ConversationKey) -> Self {
        Self::new('t', "this transcript", key.index().as_bytes())
    }

    pub(crate) fn conversation_events(key: &ConversationKey) -> Self {
        Self::new('c', "the events of this conversation", key.index().as_bytes())
    }

    pub(crate) fn events() -> Self {
        Self::new('v', "the events of this host", &[])
    }

    pub(crate) fn runs(filter: &RunFilter) -> Self {
        let parts = [
            filter.status.map(|status| status.as_str().to_owned()),
            filter.runner_id.as_ref().map(|id| id.as_str().to_owned()),
            filter.binding_id.clone(),
            filter.conversation_id.clone(),
            filter.workspace_id.clone(),
            filter.event_id.map(|id| id.to_string()),
            filter.parent_run_id.map(|id| id.to_string()),
        ];
        let mut owner = Vec::new();
        for part in parts {
            // Each part carries its length, so no filter can look like another.
            let len = part.as_ref().map_or(u64::MAX, |part| part.len() as u64);
            owner.extend_from_slice(&len.to_be_bytes());
            owner.extend_from_slice(part.unwrap_or_default().as_bytes());
        }
        Self::new('r', "this list of runs", &owner)
    }

    pub(crate) fn audit(run: Option<RunId>) -> Self {
        Self::new('a', "this list of audit records", run.map(RunId::to_bytes).as_ref().map_or(&[][..], |id| id))
    }

    pub(crate) fn at(self, position: u64) -> String {
        let body = (u128::from(self.owner) << 96) | (u128::from(position) << 32);
        // `format!` would grow the string twice.
        let mut text = String::with_capacity(1 + 32);
        text.push(self.kind);
        let _ = write!(text, "{:032x}", body | u128::from(self.checksum(body)));
        text
    }

    /// # Errors
    /// [`LedgerError::InvalidCursor`] where the text is no cursor, or one of another sequence.
    pub(crate) fn position(self, text: &str) -> Result<u64, LedgerError> {
        let malformed = || LedgerError::InvalidCursor("this is not a cursor: give one back as the host gave it".to_owned());
        let foreign = || LedgerError::InvalidCursor(format!("this cursor is not one of {}", self.what));
        let mut chars = text.chars();
        let kind = chars.next().ok_or_else(malformed)?;
        let digits = chars.as_str();
        if digits.len() != 32 || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(malformed());
        }
        let bits = u128::from_str_radix(digits, 16).map_err(|_| malformed())?;
        let (body, checksum) = (bits & !u128::from(u32::MAX), bits as u32);
        if (Self { kind, ..self }).checksum(body) != checksum {
            return Err(malformed());
        }
        if kind != self.kind || (body >> 96) != u128::from(self.owner) {
            return Err(foreign());
        }
        Ok((body >> 32) as u64)
    }

    /// The position of a cursor that may be absent.
    pub(crate) fn optional(self, text: Option<&str>) -> Result<Option<u64>, LedgerError> {
        text.map(|text| self.position(text)).transpose()
    }

    fn checksum(self, body: u128) -> u32 {
        let mut bytes = [0; 20];
        let (head, tail) = bytes.split_at_mut(4);
        head.copy_from_slice(&u32::from(self.kind).to_be_bytes());
        tail.copy_from_slice(&body.to_be_bytes());
        xxh3_64(&bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(conversation: &str) -> ConversationKey {
        ConversationKey::new("", conversation, "")
    }

    #[test]
    fn a_cursor_reads_back_in_its_own_sequence_only() {
        let (mine, other) = (Sequence::transcript(&key("a")), Sequence::transcript(&key("b")));
        for position in [0, 1, u64::MAX] {
            let text = mine.at(position);
            assert_eq!(mine.position(&text).unwrap(), position);
            assert!(other.position(&text).unwrap_err().to_string().contains("transcript"));
            let run = Sequence::run_events(RunId::new());
            assert!(matches!(run.position(&text), Err(LedgerError::InvalidCursor(_))));
        }
    }

    #[test]
    fn lists_with_different_filters_have_different_cursors() {
        let a = RunFilter { binding_id: Some("x".into()), ..RunFilter::default() };
        let b = RunFilter { conversation_id: Some("x".into()), ..RunFilter::default() };
        assert_ne!(Sequence::runs(&a), Sequence::runs(&b));
        assert_ne!(Sequence::audit(None), Sequence::audit(Some(RunId::new())));
    }

    proptest! {
        #[test]
        fn a_text_that_is_no_cursor_is_refused(text in "\\PC{0,40}") {
            prop_assert!(Sequence::transcript(&key("a")).position(&text).is_err());
        }

        #[test]
        fn a_changed_cursor_is_refused(at in 0usize..33, to in "[0-9a-z]", position: u64) {
            let sequence = Sequence::transcript(&key("a"));
            let text = sequence.at(position);
            let mut changed = text.clone();
            changed.replace_range(at..=at, &to);
            prop_assume!(changed != text);
            prop_assert!(sequence.position(&changed).is_err());
        }
    }
}
