//! State that was admitted but is not committed yet, so that a run reads what it wrote.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
};

use parking_lot::Mutex;
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::StateWrite,
    rows::{is_expected, state_tag},
};

/// Names one admitted operation. Later ones have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket(u64);

/// The values of an operation in the overlay. Goes to [`Overlay::settle`] when the operation is committed or refused.
#[derive(Debug)]
pub(crate) struct AdmittedValues {
    ticket: Ticket,
    /// The scopes that it writes to. A run writes to one, as a rule.
    scopes: Scopes,
}

/// Scopes by their hashes, each once.
#[derive(Debug, Default)]
struct Scopes {
    first: Option<u64>,
    others: Vec<u64>,
}

impl Scopes {
    fn add(&mut self, scope: u64) {
        match self.first {
            None => self.first = Some(scope),
            Some(first) if first == scope || self.others.contains(&scope) => {}
            Some(_) => self.others.push(scope),
        }
    }

    fn into_all(self) -> impl Iterator<Item = u64> {
        self.first.into_iter().chain(self.others)
    }
}

/// A write that was admitted. A value of `None` is a pending delete.
#[derive(Debug)]
struct PendingWrite {
    ticket: Ticket,
    scope: String,
    key: String,
    value: Option<Box<RawValue>>,
}

#[derive(Default)]
pub(crate) struct Overlay {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    hashes: RandomState,
    /// Pending writes of each scope in the order of their tickets, by the hash of the scope.
    scopes: HashMap<u64, VecDeque<PendingWrite>>,
}

impl Inner {
    /// The pending writes of a scope, oldest first.
    fn of_scope<'a>(&'a self, scope: &str) -> impl DoubleEndedIterator<Item = &'a PendingWrite> {
        let pending = self.scopes.get(&self.hashes.hash_one(scope));
        pending.into_iter().flatten().filter(move |write| write.scope == scope)
    }

    /// The newest pending write of a value.
    fn newest(&self, scope: &str, key: &str) -> Option<&PendingWrite> {
        self.of_scope(scope).rfind(|write| write.key == key)
    }
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
            let pending = || inner.newest(&write.scope_key, &write.key).map(|write| write.value.as_deref());
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
        let mut scopes = Scopes::default();
        for write in &writes {
            scopes.add(inner.hashes.hash_one(write.scope_key.as_str()));
        }
        admit(AdmittedValues { ticket, scopes })?;
        for StateWrite { scope_key, key, value, .. } in writes {
            let hash = inner.hashes.hash_one(scope_key.as_str());
            inner.scopes.entry(hash).or_default().push_back(PendingWrite { ticket, scope: scope_key, key, value });
        }
        Ok(())
    }

    /// Removes the values of an operation. Writes of other operations to the same values stay.
    pub(crate) fn settle(&self, admitted: impl IntoIterator<Item = AdmittedValues>) {
        let mut inner = self.inner.lock();
        for AdmittedValues { ticket, scopes } in admitted {
            for scope in scopes.into_all() {
                let Some(pending) = inner.scopes.get_mut(&scope) else { continue };
                let first = pending.partition_point(|write| write.ticket < ticket);
                let end = pending.partition_point(|write| write.ticket <= ticket);
                pending.drain(first..end);
                if pending.is_empty() {
                    inner.scopes.remove(&scope);
                }
            }
        }
    }

    /// The pending value: nothing where none is pending, `Some(None)` where a delete is.
    pub(crate) fn get(&self, scope: &str, key: &str) -> Option<Option<Box<RawValue>>> {
        self.inner.lock().newest(scope, key).map(|write| write.value.clone())
    }

    /// All pending values of a scope.
    pub(crate) fn scope(&self, scope: &str) -> BTreeMap<String, Option<Box<RawValue>>> {
        // Of several writes of one key, the last one stays in the map.
        self.inner.lock().of_scope(scope).map(|write| (write.key.clone(), write.value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: &str, value: Option<&str>) -> StateWrite {
        let value = value.map(|value| RawValue::from_string(value.to_owned()).unwrap());
        StateWrite { scope_key: "s".into(), key: key.into(), value, ..StateWrite::default() }
    }

    fn admit(overlay: &Overlay, writes: Vec<StateWrite>) -> AdmittedValues {
        let mut admitted = None;
        overlay
            .admit(
                writes,
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
        let first = admit(&overlay, vec![write("k", Some("1"))]);
        let second = admit(&overlay, vec![write("k", None)]);
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

    #[test]
    fn operations_of_several_scopes_are_settled_in_any_order_and_leave_nothing() {
        let overlay = Overlay::default();
        let scoped = |scope: &str, value: &str| StateWrite { scope_key: scope.into(), ..write("k", Some(value)) };
        let first = admit(&overlay, vec![scoped("a", "1"), scoped("b", "1"), scoped("a", "2")]);
        let second = admit(&overlay, vec![scoped("b", "3")]);
        let third = admit(&overlay, vec![scoped("c", "4"), scoped("a", "5")]);
        let seen = |scope: &str| overlay.scope(scope).remove("k").flatten().map(|value| value.get().to_owned());
        assert_eq!(["a", "b", "c", "d"].map(seen), [Some("5".into()), Some("3".into()), Some("4".into()), None]);
        overlay.settle([third, first]);
        assert_eq!(["a", "b", "c"].map(seen), [None, Some("3".into()), None]);
        overlay.settle([second]);
        assert!(overlay.inner.lock().scopes.is_empty());
    }
}
