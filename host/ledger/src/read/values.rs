//! State values, as the last admitted write left them.
//!
//! Reads look at the overlay first and at what is committed afterwards. A write that commits in between leaves the
//! overlay only when readers see it in the store, so none is ever missed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, value::RawValue};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::LedgerError,
    handle::Ledger,
    operation::is_id,
    read::pages::checked_limit,
    record::{ArtifactRecord, StorageContent, Usage},
    rows::{Table, json, malformed, read_stored, schema},
};

/// Values of one scope that [`Ledger::state_scope`] looks at: a snapshot is small by intent.
const SCOPE_VALUES: usize = 1_000;

impl Ledger {
    /// The value of a key in a scope, and its tag for [`crate::ExpectedValue::Value`].
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn state_get_tagged(&self, scope_key: &str, key: &str) -> Result<Option<(Value, u64)>, LedgerError> {
        let tagged = |text: &[u8]| Ok((json(Table::State, text)?, xxh3_64(text)));
        if let Some(pending) = self.shared().overlay.get(scope_key, key) {
            self.open()?;
            return pending.map(|value| tagged(value.get().as_bytes())).transpose();
        }
        self.reader()?.get(Table::State, &schema::state_key(scope_key, key), tagged)
    }

    /// The value of a key in a scope.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn state_get(&self, scope_key: &str, key: &str) -> Result<Option<Value>, LedgerError> {
        Ok(self.state_get_tagged(scope_key, key)?.map(|(value, _)| value))
    }

    /// Keys of a scope, sorted, that begin with the prefix: the first `limit`.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`].
    pub fn state_keys(&self, scope_key: &str, prefix: Option<&str>, limit: u32) -> Result<Vec<String>, LedgerError> {
        let limit = checked_limit(limit)?;
        let prefix = prefix.unwrap_or_default();
        let pending = self.shared().overlay.scope(scope_key);
        let mut keys = BTreeSet::new();
        // A pending write takes away one of these at most.
        self.reader()?.each_value(Table::State, scope_key, prefix, limit + pending.len(), |key, _| {
            keys.insert(key.to_owned());
            Ok(())
        })?;
        for (key, value) in pending.into_iter().filter(|(key, _)| key.starts_with(prefix)) {
            match value {
                Some(_) => keys.insert(key),
                None => keys.remove(&key),
            };
        }
        Ok(keys.into_iter().take(limit).collect())
    }

    /// The values of a scope, by key, as far as keys and values fit into `max_bytes` together. Values that do not fit
    /// are left out; smaller ones after them are not.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn state_scope(&self, scope_key: &str, max_bytes: usize) -> Result<Map<String, Value>, LedgerError> {
        let pending = self.shared().overlay.scope(scope_key);
        let reader = self.reader()?;
        // Most scopes are those of new conversations. To see that one is empty takes one row, a range takes more.
        if pending.is_empty() && schema::with_usage_key(Table::State, scope_key, |key| reader.usage(key))?.keys == 0 {
            return Ok(Map::new());
        }
        let mut values: BTreeMap<String, (usize, Value)> = BTreeMap::new();
        reader.each_value(Table::State, scope_key, "", SCOPE_VALUES, |key, bytes| {
            if bytes.len() <= max_bytes && !pending.contains_key(key) {
                values.insert(key.to_owned(), (bytes.len(), json(Table::State, bytes)?));
            }
            Ok(())
        })?;
        for (key, value) in pending {
            if let Some(value) = value {
                values.insert(key, (value.get().len(), json(Table::State, value.get().as_bytes())?));
            }
        }
        let mut left = max_bytes;
        let mut fitting = Map::new();
        for (key, (bytes, value)) in values {
            if let Some(rest) = left.checked_sub(key.len() + bytes) {
                left = rest;
                fitting.insert(key, value);
            }
        }
        Ok(fitting)
    }

    /// The value of a key in an area.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
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
        self.reader()?.each_value(Table::Storage, area_key, prefix.unwrap_or_default(), limit, |key, _| {
            keys.push(key.to_owned());
            Ok(())
        })?;
        Ok(keys)
    }

    /// The usage of an area, keys and values together. Reads one row.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn storage_usage(&self, area_key: &str) -> Result<Usage, LedgerError> {
        let reader = self.reader()?;
        schema::with_usage_key(Table::Storage, area_key, |key| reader.usage(key))
    }

    /// The committed usage of a state scope, keys and values together. Reads one row.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn state_usage(&self, scope_key: &str) -> Result<Usage, LedgerError> {
        let reader = self.reader()?;
        schema::with_usage_key(Table::State, scope_key, |key| reader.usage(key))
    }

    /// A committed artifact that was not collected. An artifact of a run is present when the [`crate::Commit`] of its write
    /// has resolved. The caller checks its scope and its expiry.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn artifact(&self, id: &str) -> Result<Option<ArtifactRecord>, LedgerError> {
        let reader = self.reader()?;
        if !is_id(id) {
            return Ok(None);
        }
        reader.get(Table::Artifacts, id.as_bytes(), |bytes| json(Table::Artifacts, bytes))
    }

    /// The value of an entry.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn entry(&self, key: &str) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.reader()?.entry(key)
    }

    /// Entries whose keys begin with `prefix`, in the order of their keys, after `after`: at most `limit`.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        self.reader()?.entries(prefix, after, limit)
    }
}
