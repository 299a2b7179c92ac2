//! The versions of shared state that a run has seen.
//!
//! `state.set` of the contract has no version: a run that has seen a value, in its context or by `state.get`, overwrites
//! only that value. If another run has written meanwhile, the write is refused as `conflict`, and the run reads again. A
//! value that the run has never seen is set without a check.

use std::collections::HashMap;

use agent_host_ledger::{ExpectedValue, Quota, StateWrite, state_tag};
use agent_host_protocol::{Limits, context::StateSnapshot, manifest::StateScope};
use parking_lot::Mutex;
use serde_json::{Value, value::RawValue};

use super::terms::Terms;

/// Values that are remembered for one run; what is over it is set without a look.
const MAX_SEEN: usize = 4_096;

/// Tags of the values that a run has seen last, by scope and key; nothing where it has seen that there is none.
#[derive(Default)]
pub(crate) struct SeenTags(Mutex<HashMap<(String, String), Option<u64>>>);

impl SeenTags {
    /// The run has seen, or left, this value.
    pub(crate) fn note(&self, scope_key: &str, key: &str, tag: Option<u64>) {
        let mut seen = self.0.lock();
        let place = (scope_key.to_owned(), key.to_owned());
        if seen.len() < MAX_SEEN || seen.contains_key(&place) {
            seen.insert(place, tag);
        }
    }

    /// The context has shown these values.
    pub(crate) fn note_snapshot(&self, terms: &Terms, snapshot: &StateSnapshot) {
        for scope in StateScope::ALL {
            let values = snapshot.scope(*scope);
            if values.is_empty() {
                continue;
            }
            let Some(scope_key) = terms.grant.state_key(*scope) else { continue };
            for (key, value) in values {
                if let Ok(text) = serde_json::to_string(value) {
                    self.note(&scope_key, key, Some(state_tag(&text)));
                }
            }
        }
    }

    fn expected(&self, scope_key: &str, key: &str) -> Option<ExpectedValue> {
        let seen = self.0.lock().get(&(scope_key.to_owned(), key.to_owned())).copied()?;
        Some(seen.map_or(ExpectedValue::Absent, ExpectedValue::Value))
    }
}

/// A write of state as the run may make it.
pub(crate) fn state_write(
    seen: &SeenTags,
    limits: &Limits,
    scope: StateScope,
    scope_key: String,
    key: String,
    value: Option<Box<RawValue>>,
) -> StateWrite {
    StateWrite {
        // Runs of one conversation are serialized, so no other run writes there.
        expected: if scope == StateScope::Conversation { None } else { seen.expected(&scope_key, &key) },
        scope_key,
        key,
        value,
        quota: Some(Quota { max_bytes: limits.state_scope_bytes, max_keys: limits.state_scope_keys }),
    }
}

/// The tag of a value, as the ledger gives it to its text.
pub(crate) fn tag_of(value: &Value) -> u64 {
    state_tag(&value.to_string())
}

/// The tag of what a write leaves.
pub(crate) fn left_by(write: &StateWrite) -> Option<u64> {
    write.value.as_ref().map(|value| state_tag(value.get()))
}
