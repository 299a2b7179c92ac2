//! Reading what this host has of a ledger, whether it owns the ledger or follows it.

use std::{ops::Bound, sync::Arc};

use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    rows::{Reader, Table, View, Views, malformed, raw},
};

/// The committed rows of a ledger that this host owns or follows. A follower has a batch some milliseconds later than the owner.
/// Cheap to clone.
#[derive(Clone)]
pub struct CopyReader(Arc<Views>);

impl std::fmt::Debug for CopyReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CopyReader")
    }
}

impl CopyReader {
    pub(crate) fn new(views: Arc<Views>) -> Self {
        Self(views)
    }

    fn view(&self) -> Result<Arc<View>, LedgerError> {
        self.0.current().ok_or_else(|| LedgerError::unavailable("the copy of this host is being opened"))
    }

    fn reader(&self) -> Result<Reader, LedgerError> {
        self.view().map(Reader::new)
    }

    /// Number of the last batch; `None` where the files are closed.
    #[must_use]
    pub fn last_batch(&self) -> Option<u64> {
        self.0.current().map(|view| view.last())
    }

    /// Entries whose keys begin with `prefix`, in the order of their keys, after `after`: at most `limit`.
    ///
    /// # Errors
    /// Fails if the copy is damaged or closed.
    pub fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        self.reader()?.entries(prefix, after, limit)
    }
}

impl Reader {
    /// The value of an entry.
    pub(crate) fn entry(&self, key: &str) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.get(Table::Entries, key.as_bytes(), |row| raw(Table::Entries, row))
    }

    /// Entries whose keys begin with `prefix`, in the order of their keys, after `after`: at most `limit`.
    pub(crate) fn entries(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        let start = match after {
            Some(after) => Bound::Excluded(after.as_bytes()),
            None => Bound::Included(prefix.as_bytes()),
        };
        let rows = self.table(Table::Entries)?;
        let mut found = Vec::new();
        for row in rows.range((start, Bound::Unbounded))? {
            let (key, value) = row?;
            if found.len() == limit || !key.value().starts_with(prefix.as_bytes()) {
                break;
            }
            let key = std::str::from_utf8(key.value()).map_err(|_| malformed(Table::Entries))?;
            found.push((key.to_owned(), raw(Table::Entries, value.value())?));
        }
        Ok(found)
    }
}
