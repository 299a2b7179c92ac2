//! Ranges of rows: of two layers in memory and of redb, as one sequence of rows in the order of their keys.

use std::{cmp::Ordering, ops::Bound};

use redb::{AccessGuard, ReadOnlyTable, StorageError};

use crate::{
    boundary::guarded,
    error::LedgerError,
    rows::{
        layer::Row,
        row_set::{RowRange, RowSet},
    },
};

type Bytes = &'static [u8];
pub(super) type BaseRows = ReadOnlyTable<Bytes, Bytes>;
type Stored = AccessGuard<'static, Bytes>;
type BaseRow = Result<(Stored, Stored), LedgerError>;
type BaseIter = redb::Range<'static, Bytes, Bytes>;

/// The row of a key. A damaged file is an error, where redb would panic.
pub(super) fn base_row(base: &BaseRows, key: &[u8]) -> Result<Option<Stored>, LedgerError> {
    let row = guarded(|| base.get(key).inspect(|row| touch(row.as_ref())));
    Ok(row.map_err(LedgerError::damaged)??)
}

/// Finds the bytes of a key or value, which redb does where they are first used.
fn touch(stored: Option<&Stored>) {
    let _ = stored.map(|stored| stored.value().len());
}

/// A key or a value that was read.
pub(crate) enum Cell {
    Base(AccessGuard<'static, Bytes>),
    Key(Row),
    Value(Row),
}

impl Cell {
    pub(crate) fn value(&self) -> &[u8] {
        match self {
            Self::Base(guard) => guard.value(),
            Self::Key(row) => row.key(),
            Self::Value(row) => row.value().unwrap_or_default(),
        }
    }
}

/// True if no key is within the bounds.
pub(super) fn is_empty<T: Ord>(bounds: &(Bound<T>, Bound<T>)) -> bool {
    match bounds {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        _ => false,
    }
}

/// Rows of redb, from both ends; none where the bounds hold no key.
struct BaseRange(Option<BaseIter>);

impl BaseRange {
    /// After a panic of redb the range has no more rows.
    fn step(&mut self, step: impl FnOnce(&mut BaseIter) -> Option<Result<(Stored, Stored), StorageError>>) -> Option<BaseRow> {
        let rows = self.0.as_mut()?;
        let row = guarded(|| {
            step(rows).inspect(|row| {
                if let Ok((key, value)) = row {
                    touch(Some(key));
                    touch(Some(value));
                }
            })
        });
        match row {
            Ok(row) => row.map(|row| row.map_err(LedgerError::from)),
            Err(reason) => {
                self.0 = None;
                Some(Err(LedgerError::damaged(reason)))
            }
        }
    }
}

impl Iterator for BaseRange {
    type Item = BaseRow;

    fn next(&mut self) -> Option<BaseRow> {
        self.step(Iterator::next)
    }
}

impl DoubleEndedIterator for BaseRange {
    fn next_back(&mut self) -> Option<BaseRow> {
        self.step(DoubleEndedIterator::next_back)
    }
}

/// An end of a range.
#[derive(Debug, Clone, Copy)]
enum Side {
    Front,
    Back,
}

impl Side {
    /// `Less` where `a` comes first from this side.
    fn order(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Front => a.cmp(b),
            Self::Back => b.cmp(a),
        }
    }
}

/// An iterator that shows the next item of both ends before it is taken.
struct Ends<I: Iterator> {
    items: I,
    front: Option<I::Item>,
    back: Option<I::Item>,
}

impl<I: DoubleEndedIterator> Ends<I> {
    fn new(items: I) -> Self {
        Self { items, front: None, back: None }
    }

    fn peek(&mut self, side: Side) -> Option<&I::Item> {
        match side {
            Side::Front => {
                if self.front.is_none() {
                    self.front = self.items.next().or_else(|| self.back.take());
                }
                self.front.as_ref()
            }
            Side::Back => {
                if self.back.is_none() {
                    self.back = self.items.next_back().or_else(|| self.front.take());
                }
                self.back.as_ref()
            }
        }
    }

    fn take(&mut self, side: Side) -> Option<I::Item> {
        self.peek(side)?;
        match side {
            Side::Front => self.front.take(),
            Side::Back => self.back.take(),
        }
    }
}

/// Rows in the order of their keys, from both ends: of each key the newest, without those that were deleted.
pub(crate) struct Range {
    fresh: Ends<RowRange>,
    frozen: Ends<RowRange>,
    base: Ends<BaseRange>,
}

impl Range {
    /// The rows within the bounds, of two layers and of redb below them.
    pub(super) fn new(
        fresh: &RowSet,
        frozen: &RowSet,
        base: Option<&BaseRows>,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<Self, LedgerError> {
        if is_empty(&bounds) {
            return Ok(Self {
                fresh: Ends::new(RowRange::default()),
                frozen: Ends::new(RowRange::default()),
                base: Ends::new(BaseRange(None)),
            });
        }
        let base =
            base.map(|base| guarded(|| base.range::<&[u8]>(bounds)).map_err(LedgerError::damaged)).transpose()?.transpose()?;
        let layer = |rows: &RowSet| Ends::new(rows.range(bounds));
        Ok(Self { fresh: layer(fresh), frozen: layer(frozen), base: Ends::new(BaseRange(base)) })
    }

    /// The next change in memory: the fresh one where both layers have one of the same key.
    fn changed(&mut self, side: Side) -> Option<Row> {
        match (self.fresh.peek(side), self.frozen.peek(side)) {
            (Some(fresh), Some(frozen)) => match side.order(fresh.key(), frozen.key()) {
                Ordering::Greater => Some(frozen.clone()),
                _ => Some(fresh.clone()),
            },
            (fresh, frozen) => fresh.or(frozen).cloned(),
        }
    }

    /// Takes the change of this key from both layers.
    fn take_changed(&mut self, side: Side, row: &Row) {
        for layer in [&mut self.fresh, &mut self.frozen] {
            if layer.peek(side).is_some_and(|next| next == row) {
                layer.take(side);
            }
        }
    }

    fn step(&mut self, side: Side) -> Option<Result<(Cell, Cell), LedgerError>> {
        loop {
            let changed = self.changed(side);
            let order = match (&changed, self.base.peek(side)) {
                (Some(row), Some(Ok((key, _)))) => side.order(row.key(), key.value()),
                (Some(_), None) => Ordering::Less,
                _ => Ordering::Greater,
            };
            if order != Ordering::Less {
                let base = self.base.take(side);
                if order == Ordering::Greater {
                    return Some(base?.map(|(key, value)| (Cell::Base(key), Cell::Base(value))));
                }
            }
            let row = changed?;
            self.take_changed(side, &row);
            if row.value().is_some() {
                return Some(Ok((Cell::Key(row.clone()), Cell::Value(row))));
            }
        }
    }
}

impl Iterator for Range {
    type Item = Result<(Cell, Cell), LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Side::Front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Side::Back)
    }
}
