//! Open elements at a place of a record, for the projections of records: messages, calls, actions, children.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

/// Open elements by the name that the guest gave them, in the order of their start, so that the same record closes them in
/// the same order each time. To remove one takes no longer where many are open.
#[derive(Debug)]
pub struct OpenElements<V> {
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
    /// True if nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// True if an element of this name is open.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The element of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.by_name.get(name).map(|(_, value)| value)
    }

    /// The element of this name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.by_name.get_mut(name).map(|(_, value)| value)
    }

    /// Opens an element. It replaces one of the same name.
    pub fn insert(&mut self, name: &str, value: V) {
        self.remove(name);
        self.get_or_insert_with(name, || value);
    }

    /// The element of this name; inserted at the end if it is new.
    pub fn get_or_insert_with(&mut self, name: &str, make: impl FnOnce() -> V) -> &mut V {
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

    /// Closes the element of this name.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        let (place, value) = self.by_name.remove(name)?;
        self.names.remove(&place);
        Some(value)
    }

    /// The names and the elements, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &V)> {
        self.names.values().filter_map(|name| Some((name.as_str(), self.get(name)?)))
    }

    /// Calls `with` for each element, in order.
    pub fn for_each(&mut self, mut with: impl FnMut(&mut V)) {
        let Self { by_name, names, .. } = self;
        for name in names.values() {
            if let Some((_, value)) = by_name.get_mut(name) {
                with(value);
            }
        }
    }

    /// Closes all elements: gives them in order.
    pub fn take(&mut self) -> Vec<(String, V)> {
        let Self { mut by_name, names, .. } = std::mem::take(self);
        names.into_values().filter_map(|name| by_name.remove(&name).map(|(_, value)| (name, value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_in_the_order_of_their_start_whatever_is_removed() {
        let mut open = OpenElements::default();
        for (place, name) in ["b", "a", "c", "d"].into_iter().enumerate() {
            open.insert(name, place);
        }
        assert_eq!((open.remove("a"), open.remove("a"), open.get("d")), (Some(1), None, Some(&3)));
        open.insert("b", 9);
        *open.get_or_insert_with("c", || 7) += 10;
        open.for_each(|value| *value += 100);
        assert_eq!(open.iter().map(|(name, value)| (name, *value)).collect::<Vec<_>>(), [("c", 112), ("d", 103), ("b", 109)]);
        let all = open.take();
        assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["c", "d", "b"]);
        assert!(open.is_empty() && !open.contains("c"));
    }
}
