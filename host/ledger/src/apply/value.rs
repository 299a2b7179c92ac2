//! State and storage: how a write changes what a scope has, what it may have, and which blobs are needed.

use std::collections::HashMap;

use crate::{
    apply::recent::Recent,
    error::LedgerError,
    operation::ValueRow,
    record::Usage,
    rows::{BY_STORAGE, HEADER, Reader, Rows, Table, ValueSummary, is_expected, schema},
};

/// Bytes of the changes of a value besides its row and the key of its usage: their headers, and the usage.
const ROOM_FOR_HEADERS: usize = 2 * HEADER + 16;

/// Values that differ from what the store has.
#[derive(Default)]
pub(crate) struct Values {
    values: HashMap<Vec<u8>, Option<ValueSummary>>,
}

/// Changes of [`Values`], usages and rows by an operation that is allowed.
#[derive(Default)]
pub(crate) struct Plan {
    after: Values,
    /// Of each scope that is written: a few.
    usages: Vec<ChangedUsage>,
    rows: Rows,
}

/// The usage of a scope or an area before and after an operation.
struct ChangedUsage {
    key: Vec<u8>,
    before: Usage,
    after: Usage,
}

impl Values {
    /// The effect of these writes. Changes nothing.
    ///
    /// # Errors
    /// [`LedgerError::Conflict`], [`LedgerError::QuotaExceeded`].
    pub(crate) fn plan(
        &self,
        writes: &[ValueRow],
        reader: &Reader,
        usages: &mut Recent<Vec<u8>, Usage>,
    ) -> Result<Plan, LedgerError> {
        let room = writes.iter().map(|write| write.bytes() + write.usage_key.len() + ROOM_FOR_HEADERS).sum();
        let mut plan = Plan { rows: Rows::with_room(room), ..Plan::default() };
        for write in writes {
            let place = match plan.usages.iter().position(|usage| usage.key == write.usage_key) {
                Some(place) => place,
                None => {
                    let usage = match usages.get(&write.usage_key) {
                        Some(usage) => *usage,
                        None => reader.usage(&write.usage_key)?,
                    };
                    plan.usages.push(ChangedUsage { key: write.usage_key.clone(), before: usage, after: usage });
                    plan.usages.len() - 1
                }
            };
            let usage = plan.usages.get(place).map(|usage| usage.after).unwrap_or_default();
            let named = named(write.table, &write.key);
            let known = plan.after.values.get(&named).or_else(|| self.values.get(&named));
            let old = match known {
                Some(known) => *known,
                // An empty scope has no value.
                None if usage.keys == 0 => None,
                None => reader.get(write.table, &write.key, |value| ValueSummary::of(write.table, value))?,
            };
            if !is_expected(write.expected, old.map(|old| old.tag)) {
                return Err(LedgerError::Conflict { key: write.name() });
            }
            let new = write.value.as_deref().map(|value| ValueSummary::of(write.table, value)).transpose()?;
            let usage = Usage {
                bytes: (usage.bytes + new.map_or(0, |new| new.size + write.key_bytes))
                    .saturating_sub(old.map_or(0, |old| old.size + write.key_bytes)),
                keys: (usage.keys + u64::from(new.is_some())).saturating_sub(u64::from(old.is_some())),
            };
            if let Some(changed) = plan.usages.get_mut(place) {
                changed.after = usage;
            }
            plan.after.values.insert(named, new);
            plan.put(write, old, new);
        }
        for write in writes {
            let changed = plan.usages.iter().find(|usage| usage.key == write.usage_key);
            if let (Some(quota), Some(ChangedUsage { before, after, .. })) = (write.quota, changed) {
                within("bytes", before.bytes, after.bytes, quota.max_bytes)?;
                within("keys", before.keys, after.keys, quota.max_keys)?;
            }
        }
        for ChangedUsage { key, after, .. } in &plan.usages {
            if *after == Usage::default() {
                plan.rows.delete(Table::Usage, key);
            } else {
                plan.rows.put(Table::Usage, key, &schema::pair(after.bytes, after.keys));
            }
        }
        Ok(plan)
    }

    /// Does what was planned.
    pub(crate) fn carry_out(&mut self, plan: Plan, rows: &mut Rows, usages: &mut Recent<Vec<u8>, Usage>) {
        rows.append(&plan.rows);
        self.values.extend(plan.after.values);
        for ChangedUsage { key, after, .. } in plan.usages {
            usages.insert(key, after);
        }
    }
}

impl Plan {
    pub(crate) fn put(&mut self, write: &ValueRow, old: Option<ValueSummary>, new: Option<ValueSummary>) {
        let blob = |stored: Option<ValueSummary>| stored.and_then(|stored| stored.blob);
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
