//! The versions of shared state that a run has seen.
//!
//! `state.set` of the contract has no version: a run that has seen a value, in its context or by `state.get`, overwrites
//! only that value. If another run has written meanwhile, the write is refused as `conflict`, and the run reads again. A
//! value that the run has never seen is set without a check.
//!
//! An external run goes on under its claim when the host was started again, and what it had seen is not known then, but for the
//! names of the values. Each of these is refused until the run has read it again.

use std::collections::HashMap;

use agent_host_ledger::{ExpectedValue, Ledger, LedgerError, Quota, RunRecord, StateWrite, state_tag};
use agent_host_protocol::{ApiError, Limits, ResultKind, context::StateSnapshot, manifest::StateScope};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{ledger_failed, terms::Terms};

/// Values that are remembered for one run; what is over it is set without a look.
const MAX_SEEN: usize = 4_096;

/// Host calls by which a run has seen a value, or left it.
const CALLS: [&str; 3] = ["state.get", "state.set", "state.delete"];
/// Audit records that are read at once.
const PAGE: u32 = 100;

/// The value that a result names.
#[derive(Deserialize)]
struct NamedValue {
    scope: String,
    key: String,
}

/// The version of a value that a run has seen last.
#[derive(Clone, Copy)]
enum SeenValue {
    Absent,
    Tag(u64),
    /// The run has seen one, and the host does not know which.
    Forgotten,
}

/// The values that a run has seen, by scope and key.
#[derive(Default)]
pub(crate) struct SeenValues(Mutex<HashMap<(String, String), SeenValue>>);

impl SeenValues {
    /// The run has seen, or left, this value.
    pub(crate) fn note(&self, scope_key: &str, key: &str, tag: Option<u64>) {
        self.insert(scope_key, key, tag.map_or(SeenValue::Absent, SeenValue::Tag));
    }

    fn insert(&self, scope_key: &str, key: &str, value: SeenValue) {
        let mut seen = self.0.lock();
        let place = (scope_key.to_owned(), key.to_owned());
        if seen.len() < MAX_SEEN || seen.contains_key(&place) {
            seen.insert(place, value);
        }
    }

    /// The values that an external run has seen or left before the host was started again, as its record names them.
    pub(crate) fn note_forgotten(&self, ledger: &Ledger, terms: &Terms, record: &RunRecord) -> Result<(), LedgerError> {
        let run_id = record.run.run_id;
        let forget = |scope: &str, key: &str| {
            let scope = StateScope::ALL.iter().find(|known| known.as_str() == scope && **known != StateScope::Conversation);
            if let Some(scope_key) = scope.and_then(|scope| terms.grant.state_key(*scope)) {
                self.insert(&scope_key, key, SeenValue::Forgotten);
            }
        };
        let mut cursor = None;
        loop {
            let page = ledger.audit_page(run_id, cursor.as_deref(), PAGE)?;
            for call in page.items.iter().filter(|call| CALLS.contains(&&*call.action) && call.outcome == "ok") {
                if let (Some(scope), Some(key)) = (&call.scope, &call.resource) {
                    forget(scope, key);
                }
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        for event in ledger.run_events_of(record.run_no, run_id, &[ResultKind::StateUpdated.as_str()])? {
            if let Ok(named) = serde_json::from_str::<NamedValue>(event.data.get()) {
                forget(&named.scope, &named.key);
            }
        }
        Ok(())
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

    fn expected(&self, scope_key: &str, key: &str) -> Result<Option<ExpectedValue>, ApiError> {
        match self.0.lock().get(&(scope_key.to_owned(), key.to_owned())) {
            None => Ok(None),
            Some(SeenValue::Absent) => Ok(Some(ExpectedValue::Absent)),
            Some(SeenValue::Tag(tag)) => Ok(Some(ExpectedValue::Value(*tag))),
            // Others may have written since.
            Some(SeenValue::Forgotten) => Err(ledger_failed(LedgerError::Conflict { key: key.to_owned() })),
        }
    }
}

/// A write of state as the run may make it. An error where it has seen the value before the host was started again.
pub(crate) fn state_write(
    seen: &SeenValues,
    limits: &Limits,
    scope: StateScope,
    scope_key: String,
    key: String,
    value: Option<Box<RawValue>>,
) -> Result<StateWrite, ApiError> {
    Ok(StateWrite {
        // Runs of one conversation are serialized, so no other run writes there.
        expected: if scope == StateScope::Conversation { None } else { seen.expected(&scope_key, &key)? },
        scope_key,
        key,
        value,
        quota: Some(Quota { max_bytes: limits.state_scope_bytes, max_keys: limits.state_scope_keys }),
    })
}

/// The tag of a value, as the ledger gives it to its text.
pub(crate) fn tag_of(value: &Value) -> u64 {
    state_tag(&value.to_string())
}

/// The tag of what a write leaves.
pub(crate) fn left_by(write: &StateWrite) -> Option<u64> {
    write.value.as_ref().map(|value| state_tag(value.get()))
}
