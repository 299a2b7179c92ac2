//! A snapshot of the committed rows: those of redb, with the rows in memory over them.
//!
//! Batches go into the fresh layer. While a layer is merged into redb it is the frozen one, and a new layer is fresh. A
//! [`View`] has both layers and a transaction of redb that either began before the frozen layer was merged, or contains it
//! completely; in both cases the layers over it give the same rows. A view is therefore one consistent snapshot,
//! independent of the progress of writes and merges.

use std::{
    ops::RangeBounds,
    sync::{Arc, OnceLock},
};

use parking_lot::{Mutex, RwLock};
use redb::{ReadTransaction, ReadableDatabase, ReadableTableMetadata, TableHandle};

use crate::{
    boundary::guarded,
    error::LedgerError,
    rows::{
        Table, derive, derived,
        layer::{Layer, Row},
        range::{BaseRows, Cell, Range, base_row},
        row_set::RowSet,
        workspace::{BatchUsage, PendingUsage},
    },
};

#[cfg(test)]
thread_local! {
    /// Lookups of rows and openings of tables by this thread.
    pub(crate) static LOOKUPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn count_lookup() {
    LOOKUPS.set(LOOKUPS.get() + 1);
}

/// The rows of redb at one moment. All readers of this moment share the transaction and its tables.
pub(crate) struct Base {
    transaction: ReadTransaction,
    /// By the number of the table, each opened when it is first read.
    tables: Vec<OnceLock<Arc<BaseRows>>>,
}

impl Base {
    pub(crate) fn new(database: &impl ReadableDatabase) -> Result<Self, LedgerError> {
        let tables = Table::ALL.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { transaction: guarded(|| database.begin_read()).map_err(LedgerError::damaged)??, tables })
    }

    fn table(&self, table: Table) -> Result<&Arc<BaseRows>, LedgerError> {
        let Some(place) = self.tables.get(usize::from(table.id())) else {
            return Err(LedgerError::damaged("a table has no place"));
        };
        if let Some(rows) = place.get() {
            return Ok(rows);
        }
        let rows = Arc::new(guarded(|| self.transaction.open_table(table.definition())).map_err(LedgerError::damaged)??);
        Ok(place.get_or_init(|| rows))
    }
}

/// The committed rows at one moment.
pub(crate) struct View {
    base: Arc<Base>,
    /// The rows that are being merged.
    frozen: Option<Arc<Layer>>,
    /// The rows after them.
    fresh: Layer,
    /// Number of the last batch that was shown; 0 where redb alone is read.
    last: u64,
}

impl View {
    /// The rows of redb, with none in memory.
    pub(crate) fn of(database: &impl ReadableDatabase) -> Result<Self, LedgerError> {
        Ok(Self { base: Arc::new(Base::new(database)?), frozen: None, fresh: Layer::default(), last: 0 })
    }

    /// Number of the last batch in it, for the views of [`Views`].
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The newest change of a row in memory.
    fn changed(&self, table: Table, key: &[u8]) -> Option<&Row> {
        self.fresh.get(table, key).or_else(|| self.frozen.as_ref()?.get(table, key))
    }

    /// A row of a table whose rows are all independent.
    pub(crate) fn get<T>(
        &self,
        table: Table,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> Result<T, LedgerError>,
    ) -> Result<Option<T>, LedgerError> {
        debug_assert!(derived::source(table).is_none(), "rows in memory are derived by `table`");
        #[cfg(test)]
        count_lookup();
        match self.changed(table, key) {
            Some(row) => row.value().map(read).transpose(),
            None => base_row(self.base.table(table)?, key)?.map(|guard| read(guard.value())).transpose(),
        }
    }

    pub(crate) fn table(&self, table: Table) -> Result<StoredRows, LedgerError> {
        #[cfg(test)]
        count_lookup();
        let base = Arc::clone(self.base.table(table)?);
        let of = |table| {
            let frozen = self.frozen.as_ref().map(|layer| layer.table(table)).unwrap_or_default();
            (self.fresh.table(table), frozen)
        };
        let (fresh, frozen) = match derived::source(table) {
            None => of(table),
            Some(source) => {
                let (fresh, frozen) = of(source);
                (derive(table, &fresh)?, derive(table, &frozen)?)
            }
        };
        Ok(StoredRows { fresh, frozen, base: Some(base) })
    }

    /// True if redb has the table: a ledger of an older format has fewer.
    pub(crate) fn has_table(&self, table: Table) -> Result<bool, LedgerError> {
        let found = guarded(|| {
            let mut tables = self.base.transaction.list_tables()?;
            Ok::<_, LedgerError>(tables.any(|found| found.name() == table.name()))
        });
        found.map_err(LedgerError::damaged)?
    }

    /// The rows of a table that redb has, for readers that know the rest. Nothing is derived.
    pub(crate) fn merged(&self, table: Table) -> Result<StoredRows, LedgerError> {
        let base = Some(Arc::clone(self.base.table(table)?));
        Ok(StoredRows { fresh: RowSet::default(), frozen: RowSet::default(), base })
    }

    /// The rows of a table that redb does not have yet, for readers that need no others. Costs no look into redb.
    pub(crate) fn in_memory(&self, table: Table) -> StoredRows {
        let frozen = self.frozen.as_ref().map(|layer| layer.table(table)).unwrap_or_default();
        StoredRows { fresh: self.fresh.table(table), frozen, base: None }
    }
}

/// The newest view, for new readers. `None` when the ledger is closed.
pub(crate) struct Views {
    current: RwLock<Option<Arc<View>>>,
    /// The bytes that workspaces have in the layers.
    pending: Mutex<PendingUsage>,
}

impl Views {
    /// Shows what redb has, up to the batch `last`.
    pub(crate) fn new(view: View, last: u64) -> Self {
        Self { current: RwLock::new(Some(Arc::new(View { last, ..view }))), pending: Mutex::default() }
    }

    pub(crate) fn current(&self) -> Option<Arc<View>> {
        self.current.read().clone()
    }

    fn replace(&self, change: impl FnOnce(&View) -> View) {
        let mut current = self.current.write();
        let next = current.as_ref().map(|view| Arc::new(change(view)));
        let before = std::mem::replace(&mut *current, next);
        drop(current);
        // The last reader of a large layer frees it; not under the lock.
        drop(before);
    }

    /// Shows the batch `last`.
    pub(crate) fn show(&self, fresh: &Layer, last: u64) {
        self.replace(|view| View { base: Arc::clone(&view.base), frozen: view.frozen.clone(), fresh: fresh.clone(), last });
    }

    /// The rows of `frozen`, which were fresh, are going to be merged. No layer is frozen before this.
    pub(crate) fn freeze(&self, frozen: &Arc<Layer>) {
        let frozen = Arc::clone(frozen);
        self.pending.lock().freeze();
        self.replace(|view| View {
            base: Arc::clone(&view.base),
            frozen: Some(frozen),
            fresh: Layer::default(),
            last: view.last,
        });
    }

    /// The frozen rows are in `base`.
    pub(crate) fn merged(&self, base: Base) {
        self.replace(|view| View { base: Arc::new(base), frozen: None, fresh: view.fresh.clone(), last: view.last });
        self.pending.lock().merged();
    }

    /// redb was opened again.
    pub(crate) fn reopened(&self, base: Base) {
        self.replace(|view| View {
            base: Arc::new(base),
            frozen: view.frozen.clone(),
            fresh: view.fresh.clone(),
            last: view.last,
        });
    }

    /// Counts the bytes that a batch, which is shown, has brought.
    pub(crate) fn count(&self, batch: &mut BatchUsage) {
        self.pending.lock().add(batch);
    }

    /// Bytes that a workspace has in the layers. Rows that were written again count again.
    pub(crate) fn pending_usage(&self, workspace: &str) -> u64 {
        self.pending.lock().of(workspace)
    }

    pub(crate) fn close(&self) {
        let closed = self.current.write().take();
        drop(closed);
    }
}

/// The rows of one table at one moment.
pub(crate) struct StoredRows {
    fresh: RowSet,
    frozen: RowSet,
    /// `None` for the rows in memory alone.
    base: Option<Arc<BaseRows>>,
}

impl StoredRows {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Cell>, LedgerError> {
        match self.fresh.get(key).or_else(|| self.frozen.get(key)) {
            Some(row) => Ok(row.value().is_some().then(|| Cell::Value(row.clone()))),
            None => match &self.base {
                Some(base) => Ok(base_row(base, key)?.map(Cell::Base)),
                None => Ok(None),
            },
        }
    }

    pub(crate) fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Range, LedgerError> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        Range::new(&self.fresh, &self.frozen, self.base.as_deref(), bounds)
    }

    pub(crate) fn iter(&self) -> Result<Range, LedgerError> {
        self.range(..)
    }

    pub(crate) fn first(&self) -> Result<Option<(Cell, Cell)>, LedgerError> {
        self.iter()?.next().transpose()
    }

    pub(crate) fn last(&self) -> Result<Option<(Cell, Cell)>, LedgerError> {
        self.iter()?.next_back().transpose()
    }

    pub(crate) fn len(&self) -> Result<u64, LedgerError> {
        Ok(self.size()?.rows)
    }

    /// The number of rows, and the bytes of their keys and values. Costs one look into redb for each row in memory.
    pub(crate) fn size(&self) -> Result<Size, LedgerError> {
        let mut size = match &self.base {
            Some(base) => guarded(|| Ok::<_, LedgerError>(Size { rows: base.len()?, bytes: base.stats()?.stored_bytes() }))
                .map_err(LedgerError::damaged)??,
            None => Size { rows: 0, bytes: 0 },
        };
        self.each_change(|key, before, after| {
            let bytes = |value: &[u8]| (key.len() + value.len()) as u64;
            if let Some(before) = before {
                size.rows = size.rows.saturating_sub(1);
                size.bytes = size.bytes.saturating_sub(bytes(before));
            }
            if let Some(after) = after {
                size.rows += 1;
                size.bytes += bytes(after);
            }
            Ok(())
        })?;
        Ok(size)
    }

    /// The rows in memory: the key, the value in redb, and the value now. Costs one look into redb for each.
    pub(crate) fn each_change(
        &self,
        mut each: impl FnMut(&[u8], Option<&[u8]>, Option<&[u8]>) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let older = self.frozen.iter().filter(|row| self.fresh.get(row.key()).is_none());
        for row in self.fresh.iter().chain(older) {
            let before = self.base.as_ref().map(|base| base_row(base, row.key())).transpose()?.flatten();
            each(row.key(), before.as_ref().map(redb::AccessGuard::value), row.value())?;
        }
        Ok(())
    }
}

/// The size of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::Bound};

    use proptest::prelude::*;
    use redb::{Database, backends::InMemoryBackend};

    use super::*;
    use crate::rows::{Rows, range::is_empty};

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    #[derive(Debug, Clone)]
    enum Step {
        /// Keys, and what they are set to; nothing deletes one.
        Batch(Vec<(u8, Option<u8>)>),
        Freeze,
        Merge,
        Look {
            from: Bound<u8>,
            to: Bound<u8>,
            sides: Vec<bool>,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bound =
            || prop_oneof![Just(Bound::Unbounded), (0..20u8).prop_map(Bound::Included), (0..20u8).prop_map(Bound::Excluded)];
        let step = prop_oneof![
            4 => prop::collection::vec((0..20u8, prop::option::of(any::<u8>())), 1..8).prop_map(Step::Batch),
            1 => Just(Step::Freeze),
            1 => Just(Step::Merge),
            3 => (bound(), bound(), prop::collection::vec(any::<bool>(), 0..25)).prop_map(|(from, to, sides)| Step::Look { from, to, sides }),
        ];
        prop::collection::vec(step, 1..40)
    }

    fn key(n: u8) -> Vec<u8> {
        vec![b'k', n]
    }

    fn merge(database: &Database, layer: &Layer) {
        let transaction = database.begin_write().unwrap();
        {
            let mut to = transaction.open_table(Table::State.definition()).unwrap();
            for row in layer.table(Table::State).iter() {
                match row.value() {
                    Some(value) => drop(to.insert(row.key(), value).unwrap()),
                    None => drop(to.remove(row.key()).unwrap()),
                }
            }
        }
        transaction.commit().unwrap();
    }

    /// A view, and the rows that were committed when it was taken.
    fn check(view: &View, model: &Model, from: Bound<u8>, to: Bound<u8>, sides: &[bool]) {
        let rows = view.table(Table::State).unwrap();
        let bytes: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(rows.size().unwrap(), Size { rows: model.len() as u64, bytes: bytes as u64 });
        let pair = |row: Result<(Cell, Cell), LedgerError>| {
            row.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).unwrap()
        };
        let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(rows.iter().unwrap().map(pair).collect::<Vec<_>>(), all);
        assert_eq!(rows.iter().unwrap().rev().map(pair).collect::<Vec<_>>(), all.iter().rev().cloned().collect::<Vec<_>>());
        assert_eq!(rows.last().unwrap().map(|row| pair(Ok(row))), all.last().cloned());
        for n in 0..21 {
            let expected = model.get(&key(n)).map(Vec::as_slice);
            assert_eq!(rows.get(&key(n)).unwrap().as_ref().map(Cell::value), expected);
            assert_eq!(view.get(Table::State, &key(n), |value| Ok(value.to_vec())).unwrap().as_deref(), expected);
        }
        // A piece, from both ends by turns.
        let (from, to) = (from.map(key), to.map(key));
        let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let mut piece: std::collections::VecDeque<_> = all
            .into_iter()
            .filter(|(key, _)| !is_empty(&bounds) && RangeBounds::<&[u8]>::contains(&bounds, &key.as_slice()))
            .collect();
        let mut range = rows.range(bounds).unwrap();
        for front in sides.iter().copied().chain(std::iter::repeat_n(true, 21)) {
            let (next, expected) = if front { (range.next(), piece.pop_front()) } else { (range.next_back(), piece.pop_back()) };
            assert_eq!(next.map(pair), expected);
        }
    }

    proptest! {
        #[test]
        fn a_view_shows_what_was_committed_when_it_was_taken(steps in steps()) {
            let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
            merge(&database, &Layer::default());
            let views = Views::new(View::of(&database).unwrap(), 0);
            let (mut model, mut fresh, mut frozen) = (Model::new(), Layer::default(), None::<Arc<Layer>>);
            let mut taken = Vec::new();
            for step in steps {
                match step {
                    Step::Batch(changes) => {
                        let mut rows = Rows::default();
                        for (n, value) in changes {
                            match value {
                                Some(value) => {
                                    rows.put(Table::State, &key(n), &[value]);
                                    model.insert(key(n), vec![value]);
                                }
                                None => {
                                    rows.delete(Table::State, &key(n));
                                    model.remove(&key(n));
                                }
                            }
                        }
                        fresh.apply(rows.bytes()).unwrap();
                        views.show(&fresh, 1);
                    }
                    Step::Freeze if frozen.is_none() => {
                        let layer = Arc::new(std::mem::take(&mut fresh));
                        views.freeze(&layer);
                        frozen = Some(layer);
                    }
                    Step::Merge => {
                        if let Some(layer) = frozen.take() {
                            merge(&database, &layer);
                            // Before the view is replaced, redb has the rows and so has the layer.
                            let view = View { base: Arc::new(Base::new(&database).unwrap()), frozen: Some(layer), fresh: fresh.clone(), last: 0 };
                            check(&view, &model, Bound::Unbounded, Bound::Unbounded, &[]);
                            views.merged(Base::new(&database).unwrap());
                        }
                    }
                    Step::Freeze => views.reopened(Base::new(&database).unwrap()),
                    Step::Look { from, to, sides } => {
                        let view = views.current().unwrap();
                        check(&view, &model, from, to, &sides);
                        taken.push((view, model.clone(), from, to, sides));
                    }
                }
            }
            // Later batches and merges change nothing in what was taken.
            for (view, model, from, to, sides) in taken {
                check(&view, &model, from, to, &sides);
            }
        }
    }
}
