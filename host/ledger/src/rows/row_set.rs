//! The rows of one table in memory: sorted segments, the newest first.
//!
//! Each batch adds a segment of level 0. Segments are immutable and shared, so the clone of a set costs one counter. Once
//! [`FAN_OUT`] segments of one level are there, one of the next level replaces them: after *n* batches a row was copied at most
//! log₄ *n* times, and a set has at most three segments of each level.

use std::{
    iter::successors,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use crate::rows::layer::Row;

/// Segments of one level that become one of the next.
const FAN_OUT: usize = 4;

/// The newest change of each key, in the order of the keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowSet(Option<Arc<Segment>>);

#[derive(Debug)]
struct Segment {
    /// In the order of their keys, one for each key.
    rows: Vec<Row>,
    level: u8,
    /// The rows of earlier batches. A row precedes those of the same key in older segments.
    older: RowSet,
}

impl RowSet {
    /// Adds the changes of a batch: in the order of their keys, one for each key.
    pub(crate) fn add(&mut self, mut rows: Vec<Row>) {
        debug_assert!(rows.is_sorted_by(|a, b| a < b), "rows of a segment are in order");
        if rows.is_empty() {
            return;
        }
        let mut level = 0;
        let mut older = std::mem::take(self);
        while let Some(rest) = older.after(FAN_OUT - 1, level) {
            rows = merge(&rows, older.segments().take(FAN_OUT - 1));
            older = rest;
            level += 1;
        }
        *self = Self(Some(Arc::new(Segment { rows, level, older })));
    }

    /// The rows behind the first `count` segments, if all of those have this level.
    fn after(&self, count: usize, level: u8) -> Option<Self> {
        let mut set = self;
        for _ in 0..count {
            set = &set.0.as_ref().filter(|segment| segment.level == level)?.older;
        }
        Some(set.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Row> {
        let prefix = Row::prefix_of(key);
        self.segments().find_map(|segment| {
            let at = segment.rows.binary_search_by(|row| row.cmp_key(prefix, key)).ok()?;
            segment.rows.get(at)
        })
    }

    /// The rows within the bounds, from both ends.
    pub(crate) fn range<'k>(&self, bounds: impl RangeBounds<&'k [u8]>) -> RowRange {
        let place = |segment: &Segment, key: &[u8], is_before: fn(std::cmp::Ordering) -> bool| {
            let prefix = Row::prefix_of(key);
            segment.rows.partition_point(|row| is_before(row.cmp_key(prefix, key)))
        };
        let pieces = self.segments().filter_map(|segment| {
            let front = match bounds.start_bound() {
                Bound::Included(key) => place(segment, key, std::cmp::Ordering::is_lt),
                Bound::Excluded(key) => place(segment, key, std::cmp::Ordering::is_le),
                Bound::Unbounded => 0,
            };
            let back = match bounds.end_bound() {
                Bound::Included(key) => place(segment, key, std::cmp::Ordering::is_le),
                Bound::Excluded(key) => place(segment, key, std::cmp::Ordering::is_lt),
                Bound::Unbounded => segment.rows.len(),
            };
            (front < back).then(|| Piece { segment: Arc::clone(segment), front, back })
        });
        RowRange(pieces.collect())
    }

    pub(crate) fn iter(&self) -> RowRange {
        self.range(..)
    }

    /// The segments, the newest first.
    fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        successors(self.0.as_ref(), |segment| segment.older.0.as_ref())
    }
}

/// One list of all, with the newest of several rows of the same key. `older` is in order, the newest first.
fn merge<'s>(newest: &'s [Row], older: impl Iterator<Item = &'s Arc<Segment>>) -> Vec<Row> {
    let mut lists = [newest; FAN_OUT];
    for (list, segment) in lists.iter_mut().skip(1).zip(older) {
        *list = &segment.rows;
    }
    let mut rows = Vec::with_capacity(lists.iter().map(|list| list.len()).sum());
    // The first of several equal rows is the newest one.
    while let Some(least) = lists.iter().filter_map(|list| list.first()).min() {
        rows.push(least.clone());
        for list in &mut lists {
            if let Some((_, rest)) = list.split_first().filter(|(first, _)| *first == least) {
                *list = rest;
            }
        }
    }
    rows
}

/// The rows of a set that are within some bounds and were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct RowRange(Vec<Piece>);

/// The rows of a segment from `front` to `back`. It has one at least.
#[derive(Debug)]
struct Piece {
    segment: Arc<Segment>,
    front: usize,
    back: usize,
}

impl Piece {
    fn first(&self) -> Option<&Row> {
        self.segment.rows.get(self.front)
    }

    fn last(&self) -> Option<&Row> {
        self.segment.rows.get(self.back.checked_sub(1)?)
    }
}

impl Iterator for RowRange {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        // The first of several equal rows is the newest one.
        let row = self.0.iter().filter_map(Piece::first).min()?.clone();
        self.0.retain_mut(|piece| {
            piece.front += usize::from(piece.first() == Some(&row));
            piece.front < piece.back
        });
        Some(row)
    }
}

impl DoubleEndedIterator for RowRange {
    fn next_back(&mut self) -> Option<Row> {
        // Of several equal rows, `max` would be the last one.
        let row = self.0.iter().rev().filter_map(Piece::last).max()?.clone();
        self.0.retain_mut(|piece| {
            piece.back -= usize::from(piece.last() == Some(&row));
            piece.front < piece.back
        });
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn row(key: u16, value: u8) -> Row {
        let [high, low] = key.to_be_bytes();
        let batch: Arc<[u8]> = [high, low, value].into();
        Row::new(&batch, 0..2, Some(2..3)).unwrap()
    }

    fn read(row: &Row) -> (u16, u8) {
        (u16::from_be_bytes(row.key().try_into().unwrap()), row.value().unwrap()[0])
    }

    proptest! {
        #[test]
        fn a_set_has_the_newest_row_of_each_key_from_both_ends(
            batches in prop::collection::vec(prop::collection::btree_map(0..60_u16, any::<u8>(), 0..12), 0..30),
            (start, len) in (0..60_u16, 0..60_u16),
            sides in prop::collection::vec(any::<bool>(), 0..40),
        ) {
            let (mut set, mut model) = (RowSet::default(), BTreeMap::new());
            let mut moments = Vec::new();
            for batch in batches {
                set.add(batch.iter().map(|(key, value)| row(*key, *value)).collect());
                model.extend(batch);
                moments.push((set.clone(), model.clone()));
            }
            for (set, model) in moments {
                prop_assert_eq!(set.iter().map(|row| read(&row)).collect::<BTreeMap<_, _>>(), model.clone());
                prop_assert_eq!(set.iter().count(), model.len());
                for key in 0..61_u16 {
                    let found = set.get(&key.to_be_bytes()).map(|row| read(row).1);
                    prop_assert_eq!(found, model.get(&key).copied());
                }
                let (from, to) = (start.to_be_bytes(), (start + len).to_be_bytes());
                let mut range = set.range(&from[..]..&to[..]);
                let mut left = model.range(start..start + len);
                for front in sides.iter().copied().chain([true; 61]) {
                    let (next, expected) = if front { (range.next(), left.next()) } else { (range.next_back(), left.next_back()) };
                    prop_assert_eq!(next.map(|row| read(&row)), expected.map(|(key, value)| (*key, *value)));
                }
            }
        }
    }

    #[test]
    fn segments_stay_few_and_a_row_is_copied_few_times() {
        let mut set = RowSet::default();
        for key in 0..10_000 {
            set.add(vec![row(key, 0)]);
            let segments: Vec<_> = set.segments().map(|segment| (segment.level, segment.rows.len())).collect();
            assert!(segments.is_sorted(), "{segments:?}");
            assert!(segments.chunk_by(|a, b| a.0 == b.0).all(|of_level| of_level.len() < FAN_OUT), "{segments:?}");
            assert!(segments.iter().all(|(level, len)| *len == FAN_OUT.pow(u32::from(*level))), "{segments:?}");
        }
    }
}
