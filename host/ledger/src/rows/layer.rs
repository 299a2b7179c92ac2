//! Rows that the log has and redb does not: the newest change of each key, in order, in memory.
//!
//! A clone of a [`Layer`] shares its common part with the original, so a reader keeps a snapshot for the price of a few
//! counters while the writer continues, without a lock. The log bounds a layer: some fifty bytes for each of its rows
//! besides the batches, which stay as long as one of their rows.

use std::{borrow::Borrow, cmp::Ordering, sync::Arc};

use imbl::OrdSet;

use crate::rows::{
    Change, Table,
    change::{HEADER, Malformed, read_change},
    changes,
};

/// A change of one row, encoded as in the log: a piece of its batch, which all rows of the batch share. Rows are ordered by
/// their keys, so one set holds one change of each key.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    batch: Arc<[u8]>,
    /// The first eight bytes of the key, which decide most comparisons without a look at the batch.
    prefix: u64,
    /// Start of the change in the batch.
    start: u32,
    key_len: u32,
}

impl Row {
    /// The change of this key that begins at `start`.
    fn new(batch: &Arc<[u8]>, start: u32, key: &[u8]) -> Self {
        let mut prefix = [0; 8];
        prefix.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        let key_len = u32::try_from(key.len()).unwrap_or(u32::MAX);
        Self { batch: Arc::clone(batch), prefix: u64::from_be_bytes(prefix), start, key_len }
    }

    pub(crate) fn key(&self) -> &[u8] {
        let start = self.start as usize + HEADER;
        self.batch.get(start..start + self.key_len as usize).unwrap_or_default()
    }

    /// `None` where the row was deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.batch.get(self.start as usize..).and_then(read_change).and_then(|(_, _, value)| value)
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
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let batch: Arc<[u8]> = payload.into();
        let mut start = 0_u32;
        for change in changes(payload) {
            let Change { table, key, bytes, .. } = change?;
            let rows = self.tables.get_mut(usize::from(table.id())).ok_or(Malformed)?;
            rows.insert(Row::new(&batch, start, key));
            start = u32::try_from(bytes.len()).ok().and_then(|len| start.checked_add(len)).ok_or(Malformed)?;
        }
        self.bytes += payload.len() as u64;
        Ok(())
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
        assert_eq!(layer.apply(&[0, 1]), Err(Malformed));
    }
}
