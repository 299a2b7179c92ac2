//! Named JSON values that the ledger keeps and does not look into.

use std::ops::Bound;

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    handle::Ledger,
    operation::{Operation, bounded},
    read::{malformed, raw},
    record::EntryWrite,
    rows::Rows,
    schema::Table,
};

/// A key, in bytes: the kind, and an id.
const MAX_ENTRY_KEY_BYTES: usize = 1_024;

/// Entries to be written, encoded.
pub(crate) struct EntriesOperation {
    pub(crate) rows: Rows,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

pub(crate) fn entry_rows(entries: &[EntryWrite]) -> Result<Rows, LedgerError> {
    let mut rows = Rows::default();
    for EntryWrite { key, value } in entries {
        if key.is_empty() || key.len() > MAX_ENTRY_KEY_BYTES {
            return Err(LedgerError::invalid(format!("the key of an entry has 1 to {MAX_ENTRY_KEY_BYTES} bytes")));
        }
        match value {
            Some(value) => rows.put(Table::Entries, key.as_bytes(), value.get().as_bytes()),
            None => rows.delete(Table::Entries, key.as_bytes()),
        }
    }
    Ok(rows)
}

impl Ledger {
    /// Puts and deletes entries, all of them or none. They are durable when this returns.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`], [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn put_entries(&self, entries: &[EntryWrite]) -> Result<(), LedgerError> {
        let rows = entry_rows(entries)?;
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = rows.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        self.admit(Operation::Entries(EntriesOperation { rows, reply }), bytes).await?;
        answer.await.map_err(|_| self.shared().unavailable())?.map(drop)
    }

    /// One entry.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn entry(&self, key: &str) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.reader()?.get(Table::Entries, key.as_bytes(), |row| raw(Table::Entries, row))
    }

    /// Entries whose keys begin with `prefix`, in the order of their keys, after `after`: at most `limit`.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        let start = match after {
            Some(after) => Bound::Excluded(after.as_bytes()),
            None => Bound::Included(prefix.as_bytes()),
        };
        let rows = self.reader()?.table(Table::Entries)?;
        let mut found = Vec::new();
        for row in rows.range::<&[u8]>((start, Bound::Unbounded))? {
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
