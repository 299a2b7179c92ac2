//! Open things by name, closed in the order in which they were opened.

use std::collections::HashMap;

/// Things by name.
#[derive(Debug)]
pub(super) struct Opened<T> {
    things: HashMap<String, (u64, T)>,
    next: u64,
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self { things: HashMap::new(), next: 0 }
    }
}

impl<T> Opened<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.things.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.things.get(name).map(|(_, thing)| thing)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.things.get_mut(name).map(|(_, thing)| thing)
    }

    pub(super) fn open(&mut self, name: &str, thing: T) {
        self.things.insert(name.to_owned(), (self.next, thing));
        self.next += 1;
    }

    pub(super) fn close(&mut self, name: &str) -> Option<T> {
        self.things.remove(name).map(|(_, thing)| thing)
    }

    /// All of them, the oldest first; none is open afterwards.
    pub(super) fn close_all(&mut self) -> Vec<(String, T)> {
        let mut all: Vec<_> = self.things.drain().collect();
        all.sort_unstable_by_key(|(_, (order, _))| *order);
        all.into_iter().map(|(name, (_, thing))| (name, thing)).collect()
    }

    /// The names and the things, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let mut all: Vec<_> = self.things.iter().collect();
        all.sort_unstable_by_key(|(_, (order, _))| *order);
        all.into_iter().map(|(name, (_, thing))| (name.as_str(), thing))
    }
}
