//! Storage: bytes that outlive a run, as the last committed write left them.
//!
//! Unlike state, a write is seen when its [`crate::Commit`] has resolved; who must read what it wrote waits for it.

use crate::{
    error::LedgerError,
    handle::Ledger,
    pages::checked_limit,
    read::malformed,
    record::{StorageContent, Usage},
    schema::{self, Table},
    values::read_stored,
};

impl Ledger {
    /// One value of an area.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn storage_get(&self, area_key: &str, key: &str) -> Result<Option<StorageContent>, LedgerError> {
        self.reader()?.get(Table::Storage, &schema::state_key(area_key, key), |row| {
            read_stored(row).map(|value| value.content()).ok_or_else(|| malformed(Table::Storage))
        })
    }

    /// Keys of an area, sorted, that begin with the prefix: the first `limit`.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`].
    pub fn storage_keys(&self, area_key: &str, prefix: Option<&str>, limit: u32) -> Result<Vec<String>, LedgerError> {
        let limit = checked_limit(limit)?;
        let mut keys = Vec::new();
        self.committed(Table::Storage, area_key, prefix.unwrap_or_default(), limit, |key, _| {
            keys.push(key.to_owned());
            Ok(())
        })?;
        Ok(keys)
    }

    /// How much an area has, keys and values together. One row is read.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn storage_usage(&self, area_key: &str) -> Result<Usage, LedgerError> {
        self.reader()?.usage(&schema::usage_key(Table::Storage, area_key))
    }

    /// How much a scope of state has, keys and values together, as committed. One row is read.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn state_usage(&self, scope_key: &str) -> Result<Usage, LedgerError> {
        self.reader()?.usage(&schema::usage_key(Table::State, scope_key))
    }
}
