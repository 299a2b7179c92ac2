//! A bounded map of what was used last.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// Between `limit` and twice as many entries: those that were used since the map was last full, and those before them.
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    limit: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), limit }
    }

    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.young.insert(key, value);
        }
        self.young.get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    /// Evicts the values that were not used for the longest time, if there are too many. No other function evicts.
    pub(crate) fn trim(&mut self) {
        if self.young.len() > self.limit {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_stay_and_unused_ones_are_evicted() {
        let mut recent = Recent::new(2);
        for n in 0..100 {
            recent.insert(n, n);
            recent.insert(1_000, 0);
            recent.trim();
            assert_eq!(recent.get(&1_000), Some(&mut 0));
            assert!(recent.young.len() + recent.old.len() <= 6);
        }
        assert_eq!(recent.get(&1), None);
        assert_eq!(recent.get(&99), Some(&mut 99));
    }
}
