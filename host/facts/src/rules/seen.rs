//! The ids that a log has had, as digests: a log of millions of events is checked in bounded memory.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::{BuildHasher, RandomState},
};

use serde_json::{Map, Value};

use super::{
    finding::{Findings, Place},
    rule::Rule,
};

/// Ids that are remembered: about 130 MB with their digests. Later ones are not checked for repetition.
const MAX_IDS: usize = 4_000_000;

/// Ids of events, tool calls, actions and turns. The keys of the digests are random: no log can be made to collide.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    digests: RandomState,
    /// Events, with the digest of their content.
    events: HashMap<u64, u64>,
    ids: HashSet<u64>,
    is_exceeded: bool,
}

/// An event among those before it.
pub(crate) enum Repetition {
    New,
    Same,
    Other,
}

impl Seen {
    /// Remembers an event.
    pub(crate) fn add_event(
        &mut self,
        id: &str,
        event: &Map<String, Value>,
        place: Place<'_>,
        findings: &mut Findings,
    ) -> Repetition {
        let content = self.digests.hash_one(ContentOf(event));
        let is_full = self.events.len() >= MAX_IDS;
        match self.events.entry(self.digests.hash_one(id)) {
            Entry::Occupied(entry) if *entry.get() == content => Repetition::Same,
            Entry::Occupied(_) => Repetition::Other,
            Entry::Vacant(_) if is_full => {
                self.exceed(place, findings);
                Repetition::New
            }
            Entry::Vacant(entry) => {
                entry.insert(content);
                Repetition::New
            }
        }
    }

    /// Remembers an id of a kind; false if it was there.
    pub(crate) fn add_id(&mut self, kind: &str, id: &str, place: Place<'_>, findings: &mut Findings) -> bool {
        if self.ids.len() >= MAX_IDS {
            self.exceed(place, findings);
            return true;
        }
        self.ids.insert(self.digests.hash_one((kind, id)))
    }

    /// True for an id of a kind that was remembered.
    pub(crate) fn has_id(&self, kind: &str, id: &str) -> bool {
        self.ids.contains(&self.digests.hash_one((kind, id)))
    }

    /// Says, once, that the rest is not checked in full.
    pub(crate) fn exceed(&mut self, place: Place<'_>, findings: &mut Findings) {
        if !std::mem::replace(&mut self.is_exceeded, true) {
            findings.add(Rule::CheckBound, place, "from here on, repeated ids and open items are not checked");
        }
    }
}

/// The content of an event, hashed as its JSON text: members have one order there.
struct ContentOf<'a>(&'a Map<String, Value>);

impl std::hash::Hash for ContentOf<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        struct Sink<'h, H>(&'h mut H);
        impl<H: std::hash::Hasher> std::io::Write for Sink<'_, H> {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.write(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        // A hasher takes every byte.
        let _ = serde_json::to_writer(Sink(state), self.0);
    }
}
