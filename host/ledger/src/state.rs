//! State values, as the last admitted write left them.
//!
//! Reads look at the overlay first and at what is committed afterwards. A write that commits in between leaves the
//! overlay only when readers see it in the store, so none is ever missed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::LedgerError,
    handle::Ledger,
    pages::checked_limit,
    read::{json, malformed},
    schema::{self, Table},
};

/// Values of one scope that [`Ledger::state_scope`] looks at: a snapshot is small by intent.
const SCOPE_VALUES: usize = 1_000;

/// The tag of a state value, from its JSON text as it is stored. Equal texts have equal tags; of different texts one
/// in 2^64 pairs has. It tells mistakes and races, it does not stand against someone who looks for a collision.
#[must_use]
pub fn state_tag(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

impl Ledger {
    /// One value of a scope, and its tag for [`crate::Expected::Value`].
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn state_get_tagged(&self, scope_key: &str, key: &str) -> Result<Option<(Value, u64)>, LedgerError> {
        let tagged = |text: &[u8]| Ok((json(Table::State, text)?, xxh3_64(text)));
        if let Some(pending) = self.shared().overlay.get(scope_key, key) {
            self.database()?;
            return pending.map(|value| tagged(value.get().as_bytes())).transpose();
        }
        self.reader()?.get(Table::State, &schema::state_key(scope_key, key), tagged)
    }

    /// The tag of the committed value.
    pub(crate) fn stored_tag(&self, scope_key: &str, key: &str) -> Result<Option<u64>, LedgerError> {
        self.reader()?.get(Table::State, &schema::state_key(scope_key, key), |text| Ok(xxh3_64(text)))
    }

    /// One value of a scope.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
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
        self.committed(Table::State, scope_key, prefix, limit + pending.len(), |key, _| {
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
    /// Where the ledger is damaged or not available.
    pub fn state_scope(&self, scope_key: &str, max_bytes: usize) -> Result<Map<String, Value>, LedgerError> {
        let pending = self.shared().overlay.scope(scope_key);
        let mut values: BTreeMap<String, (usize, Value)> = BTreeMap::new();
        self.committed(Table::State, scope_key, "", SCOPE_VALUES, |key, bytes| {
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

    /// Rows of one scope or area whose keys begin with the prefix, in order.
    pub(crate) fn committed(
        &self,
        table: Table,
        scope_key: &str,
        prefix: &str,
        limit: usize,
        mut each: impl FnMut(&str, &[u8]) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let start = schema::state_key(scope_key, prefix);
        for row in self.reader()?.table(table)?.range::<&[u8]>(start.as_slice()..)?.take(limit) {
            let (key, value) = row?;
            if !key.value().starts_with(&start) {
                break;
            }
            let (_, name) = schema::read_state_key(key.value()).ok_or_else(|| malformed(table))?;
            each(name, value.value())?;
        }
        Ok(())
    }
}
