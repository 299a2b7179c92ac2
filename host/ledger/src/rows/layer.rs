//! Rows that the log has and redb does not: the newest change of each key, in order, in memory.
//!
//! A clone of a [`Layer`] shares its common part with the original, so a reader keeps a snapshot for the price of a few
//! counters while the writer continues, without a lock. The log bounds a layer: some sixty bytes for each of its rows
//! besides the batches, which stay as long as one of their rows.
//!
//! The row of an event brings its index rows along ([`index_rows`]), whose keys and values are pieces of its bytes.

use std::{cmp::Ordering, sync::Arc};

use crate::rows::{
    Change, Table,
    change::{HEADER, MalformedRow},
    changes,
    event_row::{IndexRow, Place, index_rows},
    row_set::RowSet,
};

/// A change of one row: two pieces of its batch, which all rows of the batch share. Rows are ordered by their keys, so one set
/// holds one change of each key.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    batch: Arc<[u8]>,
    /// The first eight bytes of the key, which decide most comparisons without a look at the batch.
    prefix: u64,
    key_at: u32,
    value_at: u32,
    /// [`DELETED`] where the row was deleted.
    value_len: u32,
    key_len: u16,
}

/// No value has this length.
const DELETED: u32 = u32::MAX;

impl Row {
    /// The change of the key at this place of the batch to the value at that place. `None` if there are no such places.
    pub(super) fn new(batch: &Arc<[u8]>, key: Place, value: Option<Place>) -> Option<Self> {
        let prefix = Self::prefix_of(batch.get(key.clone())?);
        let (value_at, value_len) = match value {
            Some(value) => (u32::try_from(value.start).ok()?, u32::try_from(value.len()).ok()?),
            None => (0, DELETED),
        };
        Some(Self {
            batch: Arc::clone(batch),
            prefix,
            key_at: u32::try_from(key.start).ok()?,
            key_len: u16::try_from(key.len()).ok()?,
            value_at,
            value_len,
        })
    }

    /// The first eight bytes of a key, as a number of the same order.
    pub(super) fn prefix_of(key: &[u8]) -> u64 {
        let mut prefix = [0; 8];
        prefix.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        u64::from_be_bytes(prefix)
    }

    /// The order of the row's key and this one, whose prefix is given.
    pub(super) fn cmp_key(&self, prefix: u64, key: &[u8]) -> Ordering {
        self.prefix.cmp(&prefix).then_with(|| self.key().cmp(key))
    }

    pub(crate) fn key(&self) -> &[u8] {
        let start = self.key_at as usize;
        self.batch.get(start..start + usize::from(self.key_len)).unwrap_or_default()
    }

    /// `None` where the row was deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        if self.value_len == DELETED {
            return None;
        }
        let start = self.value_at as usize;
        self.batch.get(start..start + self.value_len as usize)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.key() == other.key()
    }
}

impl Eq for Row {}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Row {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cmp_key(other.prefix, other.key())
    }
}

/// The rows of some batches that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    /// By the number of the table.
    tables: Vec<RowSet>,
    bytes: u64,
    /// The room for the rows of a batch and their tables. Empty between batches.
    room: Vec<(u8, Row)>,
}

impl Default for Layer {
    fn default() -> Self {
        Self { tables: Table::ALL.iter().map(|_| RowSet::default()).collect(), bytes: 0, room: Vec::new() }
    }
}

impl Layer {
    /// Takes over a batch. After an error a part of it is in the layer, which is of no use any more.
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), MalformedRow> {
        let batch: Arc<[u8]> = payload.into();
        let mut rows = std::mem::take(&mut self.room);
        let mut start = 0;
        for change in changes(payload) {
            let Change { table, key, value, bytes } = change?;
            let at = start + HEADER;
            let value_at = at + key.len();
            let place = value.map(|value| value_at..value_at + value.len());
            rows.push((table.id(), Row::new(&batch, at..value_at, place).ok_or(MalformedRow)?));
            if let (Table::Events, Some(value)) = (table, value) {
                let piece = |place: Place| place.start + value_at..place.end + value_at;
                let mut lost = false;
                let read =
                    index_rows(value, |IndexRow { table, key, value }| match Row::new(&batch, piece(key), Some(piece(value))) {
                        Some(row) => rows.push((table.id(), row)),
                        None => lost = true,
                    });
                read.filter(|()| !lost).ok_or(MalformedRow)?;
            }
            start += bytes.len();
        }
        // Of several changes of one key the last one of the batch counts: it comes first.
        rows.sort_unstable_by(|(table, row), (other, before)| {
            table.cmp(other).then_with(|| row.cmp(before)).then_with(|| before.key_at.cmp(&row.key_at))
        });
        rows.dedup();
        for of_table in rows.chunk_by(|(table, _), (other, _)| table == other) {
            if let Some(set) = of_table.first().and_then(|(table, _)| self.tables.get_mut(usize::from(*table))) {
                set.add(of_table.iter().map(|(_, row)| row.clone()).collect());
            }
        }
        rows.clear();
        self.room = rows;
        self.bytes += payload.len() as u64;
        Ok(())
    }

    /// A clone for the next batch, with the room of this layer.
    pub(crate) fn for_next(&mut self) -> Self {
        let room = std::mem::take(&mut self.room);
        Self { room, ..self.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes of the batches.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Row> {
        self.tables.get(usize::from(table.id()))?.get(key)
    }

    /// The rows of one table.
    pub(crate) fn table(&self, table: Table) -> RowSet {
        self.tables.get(usize::from(table.id())).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Rows;

    #[test]
    fn the_newest_change_of_a_key_is_kept_and_a_clone_keeps_its_moment() {
        let batch = |value: Option<&[u8]>| {
            let mut rows = Rows::default();
            match value {
                Some(value) => rows.put(Table::State, b"k", value),
                None => rows.delete(Table::State, b"k"),
            }
            rows
        };
        let mut layer = Layer::default();
        assert!(layer.is_empty());
        layer.apply(batch(Some(b"1")).bytes()).unwrap();
        let before = layer.clone();
        layer.apply(batch(Some(b"2")).bytes()).unwrap();
        assert_eq!(layer.get(Table::State, b"k").unwrap().value(), Some(&b"2"[..]));
        layer.apply(batch(None).bytes()).unwrap();
        assert_eq!(layer.get(Table::State, b"k").unwrap().value(), None);
        assert_eq!(before.get(Table::State, b"k").unwrap().value(), Some(&b"1"[..]));
        assert_eq!((layer.table(Table::State).iter().count(), layer.get(Table::Storage, b"k").is_none()), (1, true));
        assert_eq!(layer.apply(&[0, 1]), Err(MalformedRow));
    }
}
