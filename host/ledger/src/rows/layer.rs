//! Rows that the log has and redb does not: the newest change of each key, in order, in memory.
//!
//! A clone of a [`Layer`] shares its common part with the original, so a reader keeps a snapshot for the price of a few
//! counters while the writer continues, without a lock. The log bounds a layer: some sixty bytes for each of its rows
//! besides the batches, which stay as long as one of their rows.
//!
//! The row of an event brings its index rows along ([`index_rows`]), whose keys and values are pieces of its bytes.

use std::{borrow::Borrow, cmp::Ordering, sync::Arc};

use imbl::OrdSet;

use crate::rows::{
    Change, Table,
    change::{HEADER, MalformedRow},
    changes,
    event_row::{IndexRow, Place, index_rows},
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
    fn new(batch: &Arc<[u8]>, key: Place, value: Option<Place>) -> Option<Self> {
        let bytes = batch.get(key.clone())?;
        let mut prefix = [0; 8];
        prefix.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let (value_at, value_len) = match value {
            Some(value) => (u32::try_from(value.start).ok()?, u32::try_from(value.len()).ok()?),
            None => (0, DELETED),
        };
        Some(Self {
            batch: Arc::clone(batch),
            prefix: u64::from_be_bytes(prefix),
            key_at: u32::try_from(key.start).ok()?,
            key_len: u16::try_from(key.len()).ok()?,
            value_at,
            value_len,
        })
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

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        self.key()
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
        self.prefix.cmp(&other.prefix).then_with(|| self.key().cmp(other.key()))
    }
}

/// The rows of some batches that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    /// By the number of the table.
    tables: Vec<OrdSet<Row>>,
    bytes: u64,
}

impl Default for Layer {
    fn default() -> Self {
        Self { tables: Table::ALL.iter().map(|_| OrdSet::new()).collect(), bytes: 0 }
    }
}

impl Layer {
    /// Takes over a batch. After an error a part of it is in the layer, which is of no use any more.
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), MalformedRow> {
        let batch: Arc<[u8]> = payload.into();
        let mut start = 0;
        for change in changes(payload) {
            let Change { table, key, value, bytes } = change?;
            let at = start + HEADER;
            let value_at = at + key.len();
            let place = value.map(|value| value_at..value_at + value.len());
            self.insert(table, Row::new(&batch, at..value_at, place).ok_or(MalformedRow)?);
            if let (Table::Events, Some(value)) = (table, value) {
                let piece = |place: Place| place.start + value_at..place.end + value_at;
                let mut lost = false;
                let read =
                    index_rows(value, |IndexRow { table, key, value }| match Row::new(&batch, piece(key), Some(piece(value))) {
                        Some(row) => self.insert(table, row),
                        None => lost = true,
                    });
                read.filter(|()| !lost).ok_or(MalformedRow)?;
            }
            start += bytes.len();
        }
        self.bytes += payload.len() as u64;
        Ok(())
    }

    fn insert(&mut self, table: Table, row: Row) {
        if let Some(rows) = self.tables.get_mut(usize::from(table.id())) {
            rows.insert(row);
        }
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
    pub(crate) fn table(&self, table: Table) -> OrdSet<Row> {
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
        assert_eq!((layer.table(Table::State).len(), layer.get(Table::Storage, b"k").is_none()), (1, true));
        assert_eq!(layer.apply(&[0, 1]), Err(MalformedRow));
    }
}
