//! The ids in use, without a look into the store for ids that were just made.
//!
//! Ids are UUIDv7: a new one is larger than nearly all existing ones. The largest ids of a table are kept in memory with
//! the bound down to which they are complete, so memory alone answers for an id above the bound, whoever made it and
//! whatever its clock shows. An id below the bound is looked up.

use std::collections::BTreeSet;

use crate::{
    error::LedgerError,
    rows::{Reader, Table, malformed},
};

type Id = [u8; 16];

/// Ids that are kept, twice as many at most: 100 ms of runs at full speed are some thousands, and ids are used in
/// about the order in which they are made.
const KEPT: usize = if cfg!(test) { 100 } else { 10_000 };

/// Ids that are read when the ledger is opened: enough that a few from the future do not hide the present.
const LOADED: usize = if cfg!(test) { 20 } else { 500 };

/// The ids of one table.
pub(crate) struct Ids {
    table: Table,
    /// Every id of the table that is larger than `floor`.
    newest: BTreeSet<Id>,
    /// `None` if all ids are known.
    floor: Option<Id>,
}

impl Ids {
    pub(crate) fn load(table: Table, reader: &Reader) -> Result<Self, LedgerError> {
        let mut newest = BTreeSet::new();
        for row in reader.table(table)?.iter()?.rev().take(LOADED) {
            let (key, _) = row?;
            newest.insert(key.value().try_into().map_err(|_| malformed(table))?);
        }
        let floor = if newest.len() < LOADED { None } else { newest.pop_first() };
        Ok(Self { table, newest, floor })
    }

    pub(crate) fn has(&self, id: &Id, reader: &Reader) -> Result<bool, LedgerError> {
        if self.newest.contains(id) {
            return Ok(true);
        }
        match &self.floor {
            Some(floor) if id <= floor => reader.has(self.table, id),
            _ => Ok(false),
        }
    }

    pub(crate) fn add(&mut self, id: Id) {
        if self.floor.is_none_or(|floor| id > floor) {
            self.newest.insert(id);
        }
    }

    /// Called between batches, when every id is in the store.
    pub(crate) fn trim(&mut self) {
        if self.newest.len() > 2 * KEPT {
            while self.newest.len() > KEPT {
                self.floor = self.newest.pop_first();
            }
        }
    }
}
