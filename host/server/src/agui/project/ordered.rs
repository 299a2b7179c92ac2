//! Things by their name, in the order in which they came.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

/// Open elements by the name that the guest gave them, in the order of their start, so that the same record closes them in
/// the same order each time.
#[derive(Debug)]
pub(super) struct OpenElements<V> {
    by_name: HashMap<String, (u64, V)>,
    names: BTreeMap<u64, String>,
    next: u64,
}

impl<V> Default for OpenElements<V> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), names: BTreeMap::new(), next: 0 }
    }
}

impl<V> OpenElements<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&V> {
        self.by_name.get(name).map(|(_, value)| value)
    }

    /// The element of this name; inserted at the end if it is new.
    pub(super) fn get_or_insert_with(&mut self, name: &str, make: impl FnOnce() -> V) -> &mut V {
        match self.by_name.entry(name.to_owned()) {
            Entry::Occupied(known) => &mut known.into_mut().1,
            Entry::Vacant(free) => {
                let place = self.next;
                self.next += 1;
                self.names.insert(place, name.to_owned());
                &mut free.insert((place, make())).1
            }
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<V> {
        let (place, value) = self.by_name.remove(name)?;
        self.names.remove(&place);
        Some(value)
    }

    /// In order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &V)> {
        self.names.values().filter_map(|name| Some((name.as_str(), self.get(name)?)))
    }

    /// Calls `with` for each, in order.
    pub(super) fn for_each(&mut self, mut with: impl FnMut(&mut V)) {
        let Self { by_name, names, .. } = self;
        for name in names.values() {
            if let Some((_, value)) = by_name.get_mut(name) {
                with(value);
            }
        }
    }

    /// Takes all of it out, in order.
    pub(super) fn take(&mut self) -> Vec<(String, V)> {
        let Self { mut by_name, names, .. } = std::mem::take(self);
        names.into_values().filter_map(|name| by_name.remove(&name).map(|(_, value)| (name, value))).collect()
    }
}
