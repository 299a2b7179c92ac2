//! State that was admitted but is not committed yet, so that a run reads what it wrote.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::StateWrite,
    rows::{is_expected, state_tag},
};

/// Names one admitted operation. Later ones have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket(u64);

/// The values of an operation in the overlay. Goes to [`Overlay::settle`] when the operation is committed or refused.
#[derive(Debug)]
pub(crate) struct AdmittedValues {
    ticket: Ticket,
    keys: Vec<(String, String)>,
}

/// Pending writes of one value, oldest first. `None` is a pending delete.
type PendingWrites = Vec<(Ticket, Option<Box<RawValue>>)>;

#[derive(Default)]
pub(crate) struct Overlay {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    scopes: HashMap<String, BTreeMap<String, PendingWrites>>,
}

impl Overlay {
    /// Adds the writes to the overlay and calls `admit` under the same lock, so that both have the order of the queue. If
    /// `admit` fails, the writes are removed.
    ///
    /// The expected value of a write is compared with the present value: the pending one, else the tag of the committed
    /// value from `stored`. A value leaves the overlay only after its commit, so one of both has it.
    pub(crate) fn admit(
        &self,
        writes: Vec<StateWrite>,
        stored: impl Fn(&StateWrite) -> Result<Option<u64>, LedgerError>,
        admit: impl FnOnce(AdmittedValues) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let mut inner = self.inner.lock();
        for (place, write) in writes.iter().enumerate().filter(|(_, write)| write.expected.is_some()) {
            let earlier = writes.iter().take(place).rfind(|other| other.scope_key == write.scope_key && other.key == write.key);
            let pending = || inner.scopes.get(&write.scope_key)?.get(&write.key)?.last().map(|(_, value)| value.as_deref());
            let tag = match earlier.map(|earlier| earlier.value.as_deref()).or_else(pending) {
                Some(value) => value.map(|value| state_tag(value.get())),
                None => stored(write)?,
            };
            if !is_expected(write.expected, tag) {
                return Err(LedgerError::Conflict { key: write.key.clone() });
            }
        }
        inner.last += 1;
        let ticket = Ticket(inner.last);
        let keys: Vec<_> = writes.iter().map(|write| (write.scope_key.clone(), write.key.clone())).collect();
        admit(AdmittedValues { ticket, keys })?;
        for write in writes {
            inner.scopes.entry(write.scope_key).or_default().entry(write.key).or_default().push((ticket, write.value));
        }
        Ok(())
    }

    /// Removes the values of an operation. Writes of other operations to the same values stay.
    pub(crate) fn settle(&self, admitted: impl IntoIterator<Item = AdmittedValues>) {
        let mut inner = self.inner.lock();
        for AdmittedValues { ticket, keys } in admitted {
            for (scope, key) in keys {
                let Some(values) = inner.scopes.get_mut(&scope) else { continue };
                if let Some(pending) = values.get_mut(&key) {
                    pending.retain(|(other, _)| *other != ticket);
                    if pending.is_empty() {
                        values.remove(&key);
                    }
                }
                if values.is_empty() {
                    inner.scopes.remove(&scope);
                }
            }
        }
    }

    /// The pending value: nothing where none is pending, `Some(None)` where a delete is.
    pub(crate) fn get(&self, scope: &str, key: &str) -> Option<Option<Box<RawValue>>> {
        self.inner.lock().scopes.get(scope)?.get(key)?.last().map(|(_, value)| value.clone())
    }

    /// All pending values of a scope.
    pub(crate) fn scope(&self, scope: &str) -> BTreeMap<String, Option<Box<RawValue>>> {
        let inner = self.inner.lock();
        let Some(values) = inner.scopes.get(scope) else { return BTreeMap::new() };
        values.iter().filter_map(|(key, pending)| Some((key.clone(), pending.last()?.1.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: &str, value: Option<&str>) -> StateWrite {
        let value = value.map(|value| RawValue::from_string(value.to_owned()).unwrap());
        StateWrite { scope_key: "s".into(), key: key.into(), value, ..StateWrite::default() }
    }

    fn admit(overlay: &Overlay, key: &str, value: Option<&str>) -> AdmittedValues {
        let mut admitted = None;
        overlay
            .admit(
                vec![write(key, value)],
                |_| Ok(None),
                |it| {
                    admitted = Some(it);
                    Ok(())
                },
            )
            .unwrap();
        admitted.unwrap()
    }

    fn value_of(overlay: &Overlay, key: &str) -> Option<Option<String>> {
        overlay.get("s", key).map(|value| value.map(|value| value.get().to_owned()))
    }

    #[test]
    fn the_last_admitted_value_is_seen_and_an_earlier_one_comes_back_when_it_is_refused() {
        let overlay = Overlay::default();
        let first = admit(&overlay, "k", Some("1"));
        let second = admit(&overlay, "k", None);
        assert_eq!(value_of(&overlay, "k"), Some(None));
        overlay.settle([second]);
        assert_eq!(value_of(&overlay, "k"), Some(Some("1".into())));
        overlay.settle([first]);
        assert_eq!(value_of(&overlay, "k"), None);
        assert!(overlay.inner.lock().scopes.is_empty());
    }

    #[test]
    fn refused_writes_are_not_visible() {
        let overlay = Overlay::default();
        assert!(overlay.admit(vec![write("k", Some("1"))], |_| Ok(None), |_| Err(LedgerError::invalid("no"))).is_err());
        assert_eq!(value_of(&overlay, "k"), None);
    }
}
