//! Physical changes: the payload of a log frame, and what is applied to the store.
//!
//! A change is `table u8 | key length u16 | value length u32 | key | value`, all big-endian. The value length [`DELETED`]
//! means a delete. Applying a payload twice has the effect of applying it once.

use serde::Serialize;

use crate::{error::LedgerError, rows::Table};

const DELETED: u32 = u32::MAX;
/// Bytes of a change before its key.
pub(crate) const HEADER: usize = 7;

/// Changes in the order in which they are made.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    count: u64,
}

/// A payload that [`Rows`] did not write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedRow;

impl Rows {
    /// Rows with room for so many bytes of changes.
    pub(crate) fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), count: 0 }
    }

    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.put_with(table, key, |bytes| bytes.extend_from_slice(value));
    }

    /// Puts a row whose value `write` appends in place, so that it is not built elsewhere first.
    pub(crate) fn put_with(&mut self, table: Table, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.header(table, key);
        let at = self.bytes.len();
        write(&mut self.bytes);
        let len = u32::try_from(self.bytes.len() - at).unwrap_or(DELETED);
        self.set_len(start, len);
    }

    /// Puts a row of JSON. On an error the changes are as they were.
    pub(crate) fn put_json(&mut self, table: Table, key: &[u8], value: &impl Serialize) -> Result<(), LedgerError> {
        let (start, count) = (self.bytes.len(), self.count);
        let mut result = Ok(());
        self.put_with(table, key, |bytes| result = serde_json::to_writer(bytes, value));
        result.map_err(|error| {
            self.bytes.truncate(start);
            self.count = count;
            LedgerError::not_json(&error)
        })
    }

    /// Puts a row of strings and numbers, which JSON always takes.
    pub(crate) fn put_infallible(&mut self, table: Table, key: &[u8], value: &impl Serialize) {
        let result = self.put_json(table, key, value);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) {
        let start = self.header(table, key);
        self.set_len(start, DELETED);
    }

    fn header(&mut self, table: Table, key: &[u8]) -> usize {
        debug_assert!(key.len() <= usize::from(u16::MAX), "keys are bounded before they come here");
        let start = self.bytes.len();
        self.bytes.push(table.id());
        self.bytes.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_be_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(key);
        self.count += 1;
        start
    }

    fn set_len(&mut self, start: usize, len: u32) {
        if let Some(place) = self.bytes.get_mut(start + 3..start + HEADER) {
            place.copy_from_slice(&len.to_be_bytes());
        }
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets the changes and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// A change, as [`changes`] reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) table: Table,
    pub(crate) key: &'a [u8],
    /// New value; `None` deletes the row.
    pub(crate) value: Option<&'a [u8]>,
    /// The whole change, as it is encoded.
    pub(crate) bytes: &'a [u8],
}

/// The changes of a payload.
pub(crate) fn changes(payload: &[u8]) -> impl Iterator<Item = Result<Change<'_>, MalformedRow>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((change, left)) = change(rest) else {
            rest = &[];
            return Some(Err(MalformedRow));
        };
        rest = left;
        Some(Ok(change))
    })
}

fn change(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let (table, key, value) = read_change(bytes)?;
    let table = Table::from_id(table)?;
    let (whole, rest) = bytes.split_at_checked(HEADER + key.len() + value.map_or(0, <[u8]>::len))?;
    Some((Change { table, key, value, bytes: whole }, rest))
}

type Fields<'a> = (u8, &'a [u8], Option<&'a [u8]>);

/// Number of the table, key and value of the change that stands at the front of these bytes.
pub(crate) fn read_change(bytes: &[u8]) -> Option<Fields<'_>> {
    let (table, rest) = bytes.split_first()?;
    let (key_len, rest) = rest.split_first_chunk::<2>()?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_len)))?;
    match u32::from_be_bytes(*value_len) {
        DELETED => Some((*table, key, None)),
        len => Some((*table, key, Some(rest.get(..usize::try_from(len).ok()?)?))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_read_back_as_they_were_written(
            given in prop::collection::vec((0..Table::ALL.len() as u8, prop::collection::vec(any::<u8>(), 0..40), prop::option::of(prop::collection::vec(any::<u8>(), 0..400))), 0..50)
        ) {
            let mut rows = Rows::default();
            for (table, key, value) in &given {
                let table = Table::from_id(*table).unwrap();
                match value {
                    Some(value) => rows.put(table, key, value),
                    None => rows.delete(table, key),
                }
            }
            prop_assert_eq!(rows.count(), given.len() as u64);
            let read: Vec<_> = changes(rows.bytes()).map(|change| change.unwrap()).map(|c| (c.table.id(), c.key.to_vec(), c.value.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(read, given);
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(changes(&bytes).count() <= bytes.len());
        }
    }
}
