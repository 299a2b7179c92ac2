//! Rows that hold several items which follow each other: the events of a run, audit records. A row is dear, its bytes are not.
//!
//! The key of such a row ends with the number of its first item. Its value is the version of its items (one byte), the
//! number of items (u32, big-endian), and the items in postcard. Formats before 6 had one item per row, as JSON: such a value
//! begins with `{`.

use serde::Serialize;

use crate::{
    error::LedgerError,
    rows::{Rows, Table, malformed},
};

/// Bytes before the items.
const HEADER: usize = 5;
/// Newest version of the items of any table.
const NEWEST: u8 = 2;
/// Size up to which a row takes further items, in bytes. A single item may be larger and has a row of its own.
pub(crate) const MAX_PACKED_BYTES: usize = 64 * 1024;

/// An item of a row.
pub(crate) trait Item<'a>: Serialize + Sized {
    /// Version of the items that are written.
    const VERSION: u8;

    /// Reads an item of this version or of an earlier one; gives the bytes behind it as well.
    fn read(version: u8, bytes: &'a [u8]) -> postcard::Result<(Self, &'a [u8])>;
}

/// Items that follow each other, encoded.
#[derive(Debug, Default, Clone)]
pub(crate) struct PackedItems {
    /// Of the items.
    version: u8,
    /// The number of the first.
    pub(crate) first: u64,
    count: u32,
    items: Vec<u8>,
}

impl PackedItems {
    /// No items yet; the first will have this number.
    pub(crate) fn new(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    /// The same, with room for items of this many bytes.
    pub(crate) fn with_room(first: u64, bytes: usize) -> Self {
        Self { items: Vec::with_capacity(bytes), ..Self::new(first) }
    }

    /// Adds an item of strings and numbers, which postcard always takes. All items of a row are of one type.
    pub(crate) fn push<'a, T: Item<'a>>(&mut self, item: &T) {
        self.version = T::VERSION;
        let encoded = postcard::to_io(item, &mut self.items);
        debug_assert!(encoded.is_ok(), "an item of a row cannot be encoded");
        self.count += 1;
    }

    /// True if a row with these items has room for another one of this size.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes <= MAX_PACKED_BYTES
    }

    /// Takes the items of `next` over where they follow these, have the same version, and one row has room for both.
    pub(crate) fn take_over(&mut self, next: &Self) -> bool {
        let fits = self.next() == next.first && self.version == next.version && self.has_room(next.items.len());
        if fits {
            self.items.extend_from_slice(&next.items);
            self.count += next.count;
        }
        fits
    }

    /// The items, each with its number. They are of the version that is written.
    pub(crate) fn items<'a, T: Item<'a>>(&'a self, table: Table) -> Items<'a, T> {
        Items { table, version: self.version, next: self.first, left: self.count, rest: &self.items, single: None }
    }

    /// The number after that of the last item.
    pub(crate) fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.items.len()
    }

    pub(crate) fn put(&self, rows: &mut Rows, table: Table, key: &[u8]) {
        rows.put_with(table, key, |value| self.write(value));
    }

    pub(crate) fn write(&self, value: &mut Vec<u8>) {
        value.push(self.version);
        value.extend_from_slice(&self.count.to_be_bytes());
        value.extend_from_slice(&self.items);
    }

    /// The items of a row; `None` for a row of formats before 6.
    pub(crate) fn read(table: Table, first: u64, value: &[u8]) -> Result<Option<Self>, LedgerError> {
        Ok(parts(table, value)?.map(|RowParts { version, count, items }| Self { version, first, count, items: items.to_vec() }))
    }
}

/// The number of items of a row.
pub(crate) fn count(table: Table, value: &[u8]) -> Result<u64, LedgerError> {
    Ok(parts(table, value)?.map_or(1, |parts| parts.count.into()))
}

/// The parts of a row.
struct RowParts<'a> {
    version: u8,
    count: u32,
    items: &'a [u8],
}

/// The parts of a row; `None` for a row of formats before 6.
fn parts(table: Table, value: &[u8]) -> Result<Option<RowParts<'_>>, LedgerError> {
    match value.split_first() {
        Some((b'{', _)) => Ok(None),
        Some((version @ 1..=NEWEST, rest)) => {
            let (count, items) = rest.split_first_chunk().ok_or_else(|| malformed(table))?;
            Ok(Some(RowParts { version: *version, count: u32::from_be_bytes(*count), items }))
        }
        _ => Err(malformed(table)),
    }
}

/// The items of a row, each with its number. `single` reads the only item of a row of formats before 6.
pub(crate) fn unpack<'a, T: Item<'a>>(
    table: Table,
    first: u64,
    value: &'a [u8],
    single: impl FnOnce(&'a [u8]) -> Result<T, LedgerError>,
) -> Result<Items<'a, T>, LedgerError> {
    let items = Items { table, version: T::VERSION, next: first, left: 0, rest: &[], single: None };
    Ok(match parts(table, value)? {
        Some(parts) if parts.version > T::VERSION => return Err(malformed(table)),
        Some(RowParts { version, count, items: rest }) => Items { version, left: count, rest, ..items },
        None => Items { single: Some(single(value)?), ..items },
    })
}

pub(crate) struct Items<'a, T> {
    table: Table,
    version: u8,
    next: u64,
    left: u32,
    rest: &'a [u8],
    single: Option<T>,
}

impl<'a, T: Item<'a>> Iterator for Items<'a, T> {
    type Item = Result<(u64, T), LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        self.next += 1;
        if let Some(item) = self.single.take() {
            return Some(Ok((number, item)));
        }
        if self.left == 0 {
            // Bytes behind the last item are of no item.
            return (!std::mem::take(&mut self.rest).is_empty()).then(|| Err(malformed(self.table)));
        }
        self.left -= 1;
        match T::read(self.version, self.rest) {
            Ok((item, rest)) => {
                self.rest = rest;
                Some(Ok((number, item)))
            }
            Err(_) => {
                (self.left, self.rest) = (0, &[]);
                Some(Err(malformed(self.table)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows::json;

    impl<'a> Item<'a> for (String, u64) {
        const VERSION: u8 = 2;

        fn read(version: u8, bytes: &'a [u8]) -> postcard::Result<(Self, &'a [u8])> {
            match version {
                1 => postcard::take_from_bytes(bytes).map(|(text, rest)| ((text, 0), rest)),
                _ => postcard::take_from_bytes(bytes),
            }
        }
    }

    fn packed(first: u64, items: &[(String, u64)]) -> PackedItems {
        let mut packed = PackedItems::new(first);
        items.iter().for_each(|item| packed.push(item));
        packed
    }

    fn items(first: u64, value: &[u8]) -> Result<Items<'_, (String, u64)>, LedgerError> {
        unpack(Table::Audit, first, value, |bytes| json(Table::Audit, bytes).map(|one| (one, 0)))
    }

    fn value(packed: &PackedItems) -> Vec<u8> {
        let mut value = Vec::new();
        packed.write(&mut value);
        value
    }

    proptest! {
        #[test]
        fn items_read_back_from_rows_that_were_joined(
            one in prop::collection::vec((any::<String>(), any::<u64>()), 1..20),
            two in prop::collection::vec((any::<String>(), any::<u64>()), 1..20),
        ) {
            let mut joined = packed(7, &one);
            prop_assert!(!joined.take_over(&packed(8 + one.len() as u64, &two)), "a gap");
            prop_assert!(joined.take_over(&packed(7 + one.len() as u64, &two)));
            let value = value(&joined);
            let read: Vec<_> = items(7, &value).unwrap().map(Result::unwrap).collect();
            let all: Vec<_> = (7..).zip([one, two].concat()).collect();
            prop_assert_eq!(count(Table::Audit, &value).unwrap(), all.len() as u64);
            prop_assert_eq!((joined.next(), read), (7 + all.len() as u64, all));
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&[1 + u8::from(bytes.len() % 2 == 0)][..], &bytes].concat();
            if let Ok(items) = items(1, &bytes) {
                prop_assert!(items.count() <= bytes.len());
            }
        }
    }

    #[test]
    fn a_row_has_an_end_and_foreign_bytes_are_no_row() {
        let long = ("x".repeat(MAX_PACKED_BYTES), 1);
        let mut one = packed(1, &[("a".to_owned(), 1)]);
        assert!(!one.take_over(&packed(2, std::slice::from_ref(&long))));
        assert!(!packed(1, &[long]).take_over(&packed(2, &[("a".to_owned(), 1)])));
        let mut longer = value(&one);
        longer.push(0);
        let last = items(1, &longer).unwrap().last();
        assert!(matches!(last, Some(Err(LedgerError::Damaged(_)))));
        for foreign in [&b""[..], &[3, 0, 0, 0, 1], &[2, 0, 0]] {
            assert!(items(1, foreign).is_err() && count(Table::Audit, foreign).is_err());
        }
        assert!(PackedItems::read(Table::Audit, 1, b"{}").unwrap().is_none());
    }
}
