//! State and storage: how a write changes what a scope has, what it may have, and which blobs are needed.

use std::collections::HashMap;

use crate::{
    apply::recent::Recent,
    error::LedgerError,
    operation::ValueRow,
    record::Usage,
    rows::{BY_STORAGE, Reader, Rows, Stored, Table, is_expected, schema},
};

/// Values that differ from what the store has.
#[derive(Default)]
pub(crate) struct Values {
    values: HashMap<Vec<u8>, Option<Stored>>,
}

/// Changes of [`Values`], usages and rows by an operation that is allowed.
#[derive(Default)]
pub(crate) struct Plan {
    after: Values,
    usages: HashMap<Vec<u8>, Usage>,
    rows: Rows,
}

impl Values {
    /// Works out what these writes do. Changes nothing, but remembers in `usages` what it has read.
    ///
    /// # Errors
    /// [`LedgerError::Conflict`], [`LedgerError::QuotaExceeded`].
    pub(crate) fn plan(
        &self,
        writes: &[ValueRow],
        reader: &Reader,
        usages: &mut Recent<Vec<u8>, Usage>,
    ) -> Result<Plan, LedgerError> {
        let mut plan = Plan::default();
        let mut before: HashMap<Vec<u8>, Usage> = HashMap::new();
        for write in writes {
            let usage_key = schema::usage_key(write.table, &write.scope);
            let usage = match plan.usages.get(&usage_key) {
                Some(usage) => *usage,
                None => {
                    let usage = match usages.get(&usage_key) {
                        Some(usage) => *usage,
                        None => {
                            let usage = reader.usage(&usage_key)?;
                            usages.insert(usage_key.clone(), usage);
                            usage
                        }
                    };
                    before.insert(usage_key.clone(), usage);
                    usage
                }
            };
            let named = named(write.table, &write.key);
            let known = plan.after.values.get(&named).or_else(|| self.values.get(&named));
            let old = match known {
                Some(known) => *known,
                // An empty scope has no value.
                None if usage.keys == 0 => None,
                None => reader.get(write.table, &write.key, |value| Stored::of(write.table, value))?,
            };
            if !is_expected(write.expected, old.map(|old| old.tag)) {
                return Err(LedgerError::Conflict { key: write.name() });
            }
            let new = write.value.as_deref().map(|value| Stored::of(write.table, value)).transpose()?;
            let usage = Usage {
                bytes: (usage.bytes + new.map_or(0, |new| new.size + write.key_bytes))
                    .saturating_sub(old.map_or(0, |old| old.size + write.key_bytes)),
                keys: (usage.keys + u64::from(new.is_some())).saturating_sub(u64::from(old.is_some())),
            };
            plan.usages.insert(usage_key, usage);
            plan.after.values.insert(named, new);
            plan.put(write, old, new);
        }
        for write in writes {
            let key = schema::usage_key(write.table, &write.scope);
            if let (Some(quota), Some(before), Some(after)) = (write.quota, before.get(&key), plan.usages.get(&key)) {
                within("bytes", before.bytes, after.bytes, quota.max_bytes)?;
                within("keys", before.keys, after.keys, quota.max_keys)?;
            }
        }
        for (key, usage) in &plan.usages {
            if *usage == Usage::default() {
                plan.rows.delete(Table::Usage, key);
            } else {
                plan.rows.put(Table::Usage, key, &schema::pair(usage.bytes, usage.keys));
            }
        }
        Ok(plan)
    }

    /// Does what was planned.
    pub(crate) fn carry_out(&mut self, plan: Plan, rows: &mut Rows, usages: &mut Recent<Vec<u8>, Usage>) {
        rows.append(&plan.rows);
        self.values.extend(plan.after.values);
        for (key, usage) in plan.usages {
            usages.insert(key, usage);
        }
    }
}

impl Plan {
    pub(crate) fn put(&mut self, write: &ValueRow, old: Option<Stored>, new: Option<Stored>) {
        let blob = |stored: Option<Stored>| stored.and_then(|stored| stored.blob);
        if let Some(digest) = blob(old) {
            self.rows.delete(Table::BlobRefs, &schema::blob_ref(&digest, BY_STORAGE, &write.key));
        }
        if let Some(digest) = blob(new) {
            self.rows.put(Table::BlobRefs, &schema::blob_ref(&digest, BY_STORAGE, &write.key), &[]);
        }
        match &write.value {
            Some(value) => self.rows.put(write.table, &write.key, value),
            None => self.rows.delete(write.table, &write.key),
        }
    }
}

/// More than before must be within the limit; less is always well.
fn within(what: &'static str, before: u64, after: u64, limit: u64) -> Result<(), LedgerError> {
    if after > limit && after > before {
        return Err(LedgerError::QuotaExceeded { what, used: after, limit });
    }
    Ok(())
}

fn named(table: Table, key: &[u8]) -> Vec<u8> {
    let mut named = Vec::with_capacity(key.len() + 1);
    named.push(table.id());
    named.extend_from_slice(key);
    named
}
