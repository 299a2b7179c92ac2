//! Values with a size: state and storage. How a write changes what a scope has, what it may have, and which blobs
//! are needed.

use std::{collections::HashMap, sync::Arc};

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    blobs::{Blob, Pin},
    error::LedgerError,
    read::{Reader, malformed},
    record::{Expected, Quota, STORAGE_INLINE_BYTES, StateWrite, StorageContent, StorageValue, StorageWrite, Usage},
    rows::Rows,
    schema::{self, BY_STORAGE, Digest, MAX_KEY_BYTES, Table},
};

/// One value to be set or deleted, encoded.
pub(crate) struct ValueRow {
    table: Table,
    scope: String,
    /// Scope and key, as the table has them.
    key: Vec<u8>,
    /// Bytes of the key alone.
    key_bytes: u64,
    value: Option<Vec<u8>>,
    expected: Option<Expected>,
    quota: Option<Quota>,
    /// Held until the row is committed.
    pin: Option<Arc<Pin>>,
}

/// A value, as far as a later write needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    size: u64,
    tag: u64,
    blob: Option<Digest>,
}

impl Stored {
    fn of(table: Table, value: &[u8]) -> Result<Self, LedgerError> {
        let tag = xxh3_64(value);
        if table == Table::State {
            return Ok(Self { size: value.len() as u64, tag, blob: None });
        }
        Ok(match read_stored(value).ok_or_else(|| malformed(table))? {
            StoredValue::Inline(bytes) => Self { size: bytes.len() as u64, tag, blob: None },
            StoredValue::Blob(digest, size) => Self { size, tag, blob: Some(digest) },
        })
    }
}

/// A row of [`Table::Storage`]: a zero and the bytes themselves, or a one, the digest and the size.
pub(crate) enum StoredValue<'a> {
    Inline(&'a [u8]),
    Blob(Digest, u64),
}

pub(crate) fn read_stored(value: &[u8]) -> Option<StoredValue<'_>> {
    match value.split_first()? {
        (0, bytes) => Some(StoredValue::Inline(bytes)),
        (1, rest) => {
            let (digest, size) = rest.split_first_chunk()?;
            Some(StoredValue::Blob(*digest, schema::read_number(size)?))
        }
        _ => None,
    }
}

impl StoredValue<'_> {
    pub(crate) fn content(&self) -> StorageContent {
        match self {
            Self::Inline(bytes) => StorageContent::Inline(bytes.to_vec()),
            Self::Blob(digest, size) => StorageContent::Blob { sha256: crate::blobs::hex(digest), size: *size },
        }
    }
}

/// A row of [`Table::Usage`].
pub(crate) fn read_usage(bytes: &[u8]) -> Option<Usage> {
    let (bytes, keys) = schema::read_pair(bytes)?;
    Some(Usage { bytes, keys })
}

impl ValueRow {
    pub(crate) fn state(write: &StateWrite) -> Result<Self, LedgerError> {
        let StateWrite { scope_key, key, value, expected, quota } = write;
        let value = value.as_ref().map(|value| value.get().as_bytes().to_vec());
        Self::new(Table::State, "a state value", scope_key, key, value, *expected, *quota, None)
    }

    pub(crate) fn storage(write: StorageWrite) -> Result<Self, LedgerError> {
        let StorageWrite { area_key, key, value, quota } = write;
        let (value, pin) = match value {
            None => (None, None),
            Some(StorageValue::Inline(bytes)) if bytes.len() > STORAGE_INLINE_BYTES => {
                return Err(LedgerError::invalid(format!(
                    "a storage value of {} bytes is too large to be inline; above {STORAGE_INLINE_BYTES} it is a blob",
                    bytes.len()
                )));
            }
            Some(StorageValue::Inline(bytes)) => (Some([&[0], bytes.as_slice()].concat()), None),
            Some(StorageValue::Blob(blob)) => {
                let row = [&[1], blob.digest().as_slice(), schema::number(blob.size).as_slice()].concat();
                let Blob { pin, .. } = blob;
                (Some(row), Some(pin))
            }
        };
        Self::new(Table::Storage, "a storage value", &area_key, &key, value, None, quota, pin)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a row, from its two callers above")]
    fn new(
        table: Table,
        what: &str,
        scope: &str,
        key: &str,
        value: Option<Vec<u8>>,
        expected: Option<Expected>,
        quota: Option<Quota>,
        pin: Option<Arc<Pin>>,
    ) -> Result<Self, LedgerError> {
        let row_key = schema::state_key(scope, key);
        if row_key.len() > MAX_KEY_BYTES {
            return Err(LedgerError::invalid(format!("scope and key of {what} may have {MAX_KEY_BYTES} bytes together")));
        }
        let key_bytes = key.len() as u64;
        Ok(Self { table, scope: scope.to_owned(), key: row_key, key_bytes, value, expected, quota, pin })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn take_pin(&mut self) -> Option<Arc<Pin>> {
        self.pin.take()
    }

    fn name(&self) -> String {
        schema::read_state_key(&self.key).map(|(_, key)| key.to_owned()).unwrap_or_default()
    }
}

/// Whether a value is what a write expects. `None` where it does not exist.
pub(crate) fn is_expected(expected: Option<Expected>, tag: Option<u64>) -> bool {
    match expected {
        None => true,
        Some(Expected::Absent) => tag.is_none(),
        Some(Expected::Value(expected)) => tag == Some(expected),
    }
}

/// Values and usages that differ from what the store has.
#[derive(Default)]
pub(crate) struct Values {
    values: HashMap<Vec<u8>, Option<Stored>>,
    usages: HashMap<Vec<u8>, Usage>,
}

/// What an operation does to [`Values`] and rows, when all of it is known to be allowed.
#[derive(Default)]
pub(crate) struct Plan {
    after: Values,
    rows: Rows,
}

impl Values {
    /// Works out what these writes do. Changes nothing.
    ///
    /// # Errors
    /// [`LedgerError::Conflict`], [`LedgerError::QuotaExceeded`].
    pub(crate) fn plan(&self, writes: &[ValueRow], reader: &Reader) -> Result<Plan, LedgerError> {
        let mut plan = Plan::default();
        let mut before: HashMap<Vec<u8>, Usage> = HashMap::new();
        for write in writes {
            let named = named(write.table, &write.key);
            let known = plan.after.values.get(&named).or_else(|| self.values.get(&named));
            let old = match known {
                Some(known) => *known,
                None => reader.get(write.table, &write.key, |value| Stored::of(write.table, value))?,
            };
            if !is_expected(write.expected, old.map(|old| old.tag)) {
                return Err(LedgerError::Conflict { key: write.name() });
            }
            let new = write.value.as_deref().map(|value| Stored::of(write.table, value)).transpose()?;
            let usage_key = schema::usage_key(write.table, &write.scope);
            let usage = match plan.after.usages.get(&usage_key) {
                Some(usage) => *usage,
                None => {
                    let usage = match self.usages.get(&usage_key) {
                        Some(usage) => *usage,
                        None => reader.usage(&usage_key)?,
                    };
                    before.insert(usage_key.clone(), usage);
                    usage
                }
            };
            let usage = Usage {
                bytes: (usage.bytes + new.map_or(0, |new| new.size + write.key_bytes))
                    .saturating_sub(old.map_or(0, |old| old.size + write.key_bytes)),
                keys: (usage.keys + u64::from(new.is_some())).saturating_sub(u64::from(old.is_some())),
            };
            plan.after.usages.insert(usage_key, usage);
            plan.after.values.insert(named, new);
            plan.put(write, old, new);
        }
        for write in writes {
            let key = schema::usage_key(write.table, &write.scope);
            if let (Some(quota), Some(before), Some(after)) = (write.quota, before.get(&key), plan.after.usages.get(&key)) {
                within("bytes", before.bytes, after.bytes, quota.max_bytes)?;
                within("keys", before.keys, after.keys, quota.max_keys)?;
            }
        }
        for (key, usage) in &plan.after.usages {
            if *usage == Usage::default() {
                plan.rows.delete(Table::Usage, key);
            } else {
                plan.rows.put(Table::Usage, key, &schema::pair(usage.bytes, usage.keys));
            }
        }
        Ok(plan)
    }

    /// Does what was planned.
    pub(crate) fn carry_out(&mut self, plan: Plan, rows: &mut Rows) {
        rows.append(&plan.rows);
        self.values.extend(plan.after.values);
        self.usages.extend(plan.after.usages);
    }
}

impl Plan {
    fn put(&mut self, write: &ValueRow, old: Option<Stored>, new: Option<Stored>) {
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

impl Reader {
    pub(crate) fn usage(&self, key: &[u8]) -> Result<Usage, LedgerError> {
        let usage = self.get(Table::Usage, key, |row| read_usage(row).ok_or_else(|| malformed(Table::Usage)))?;
        Ok(usage.unwrap_or_default())
    }
}
