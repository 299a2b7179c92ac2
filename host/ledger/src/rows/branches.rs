//! Entries of branches: the events that have left a conversation, because a client asked again or changed an earlier message.
//!
//! The rows of these events, of their runs and of their items stay. Readers of the present conversation leave them out. An entry
//! of [`Table::Entries`] for each branched conversation has intervals of event numbers, so a page with items costs one lookup
//! more.

use std::io::Write;

use agent_host_protocol::EventId;
use serde::{Deserialize, Serialize};

use crate::{
    error::LedgerError,
    rows::{Reader, Table, json},
};

/// Intervals of one conversation, so that its entry stays small: a message that is asked again joins its former interval.
const MAX_INTERVALS: usize = 4_096;

/// The events that have left a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Branches {
    /// Numbers of the first and the last event of each interval, in order. Events of other conversations may lie between.
    removed: Vec<(u64, u64)>,
}

impl Branches {
    /// The beginning of the keys of these entries.
    pub(crate) const PREFIX: &'static str = "conversation/branches/";

    /// Bytes of a key.
    const KEY_BYTES: usize = Self::PREFIX.len() + 16;

    /// The key of the entry of a conversation.
    pub(crate) fn key(conversation_no: u64) -> String {
        let mut key = [0; Self::KEY_BYTES];
        Self::write_key(&mut key, conversation_no);
        key.iter().copied().map(char::from).collect()
    }

    /// The same, in memory of the caller.
    fn write_key(key: &mut [u8; Self::KEY_BYTES], conversation_no: u64) {
        let mut rest = key.as_mut_slice();
        // The room is what both parts take.
        let written = write!(rest, "{}{conversation_no:016x}", Self::PREFIX);
        debug_assert!(written.is_ok() && rest.is_empty(), "a key has {} bytes", Self::KEY_BYTES);
    }

    /// True if the event with this number has left the conversation.
    pub(crate) fn removes(&self, event_no: u64) -> bool {
        let next = self.removed.partition_point(|(first, _)| *first <= event_no);
        next.checked_sub(1).and_then(|place| self.removed.get(place)).is_some_and(|(_, last)| event_no <= *last)
    }

    /// True if this event has left the conversation. Without branches no row is read.
    pub(crate) fn removes_event(&self, reader: &Reader, event_id: EventId) -> Result<bool, LedgerError> {
        if self.removed.is_empty() {
            return Ok(false);
        }
        let event_no = reader.number(Table::EventIds, &event_id.to_bytes())?;
        Ok(event_no.is_some_and(|event_no| self.removes(event_no)))
    }

    /// The same events with other numbers: `renumber` gives those of the first and the last event of an interval, or `None` for one without events.
    pub(crate) fn renumbered(&self, renumber: impl FnMut(&(u64, u64)) -> Option<(u64, u64)>) -> Self {
        Self { removed: self.removed.iter().filter_map(renumber).collect() }
    }

    /// Removes the events `first..=last`; intervals within and beside them are joined.
    pub(crate) fn cut(&mut self, first: u64, last: u64) -> Result<(), LedgerError> {
        let (mut first, mut last) = (first, last);
        self.removed.retain(|(from, to)| {
            let touches = *from <= last.saturating_add(1) && *to >= first.saturating_sub(1);
            if touches {
                (first, last) = (first.min(*from), last.max(*to));
            }
            !touches
        });
        if self.removed.len() >= MAX_INTERVALS {
            let detail = format!("the conversation was changed at {MAX_INTERVALS} places: begin another one");
            return Err(LedgerError::invalid(detail));
        }
        let place = self.removed.partition_point(|(from, _)| *from < first);
        self.removed.insert(place, (first, last));
        Ok(())
    }
}

impl Reader {
    /// The events that have left a conversation.
    pub(crate) fn branches(&self, conversation_no: u64) -> Result<Branches, LedgerError> {
        let mut key = [0; Branches::KEY_BYTES];
        Branches::write_key(&mut key, conversation_no);
        let entry = self.get(Table::Entries, &key, |row| json(Table::Entries, row))?;
        Ok(entry.unwrap_or_default())
    }
}

/// The events that have left one conversation, for a reader of its items. The entry is read with the first item, so an empty
/// page costs nothing.
pub(crate) struct ReplacedEvents<'a> {
    reader: &'a Reader,
    conversation_no: u64,
    branches: Option<Branches>,
    /// The answer for the item before: items of one event follow each other.
    last: Option<(EventId, bool)>,
}

impl<'a> ReplacedEvents<'a> {
    pub(crate) const fn new(reader: &'a Reader, conversation_no: u64) -> Self {
        Self { reader, conversation_no, branches: None, last: None }
    }

    fn branches(&mut self) -> Result<&Branches, LedgerError> {
        let found = match self.branches.take() {
            Some(branches) => branches,
            None => self.reader.branches(self.conversation_no)?,
        };
        Ok(self.branches.insert(found))
    }

    /// True if the event with this number has left the conversation.
    pub(crate) fn has_event_no(&mut self, event_no: u64) -> Result<bool, LedgerError> {
        Ok(self.branches()?.removes(event_no))
    }

    /// True if this event has left the conversation, and the items of it.
    pub(crate) fn has(&mut self, event_id: EventId) -> Result<bool, LedgerError> {
        if let Some((_, left)) = self.last.filter(|(id, _)| *id == event_id) {
            return Ok(left);
        }
        let reader = self.reader;
        let left = self.branches()?.removes_event(reader, event_id)?;
        self.last = Some((event_id, left));
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_join_and_stay_in_order() {
        let mut branches = Branches::default();
        for (first, last) in [(10, 12), (20, 20), (5, 6), (7, 8)] {
            branches.cut(first, last).unwrap();
        }
        assert_eq!(branches.removed, [(5, 8), (10, 12), (20, 20)]);
        let left: Vec<_> = (4..=21).filter(|event_no| branches.removes(*event_no)).collect();
        assert_eq!(left, [5, 6, 7, 8, 10, 11, 12, 20]);
        branches.cut(9, 15).unwrap();
        assert_eq!(branches.removed, [(5, 15), (20, 20)]);
    }

    #[test]
    fn there_is_a_bound_on_intervals() {
        let mut branches = Branches::default();
        (0..MAX_INTERVALS as u64).for_each(|n| branches.cut(n * 2, n * 2).unwrap());
        assert!(branches.cut(1_000_000, 1_000_000).is_err());
        branches.cut(0, 100).unwrap();
        branches.cut(1_000_000, 1_000_000).unwrap();
    }
}
