//! State, storage values and entries, checked and encoded.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    files::{Blob, Pin},
    record::{EntryWrite, ExpectedValue, Quota, STORAGE_INLINE_BYTES, StateWrite, StorageValue, StorageWrite},
    rows::{MAX_KEY_BYTES, Rows, Table, schema},
};

/// A value to set or delete, encoded.
pub(crate) struct ValueRow {
    pub(crate) table: Table,
    /// The key of the usage of its scope.
    pub(crate) usage_key: Vec<u8>,
    /// Scope and key, as the table has them.
    pub(crate) key: Vec<u8>,
    /// Bytes of the key alone.
    pub(crate) key_bytes: u64,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) expected: Option<ExpectedValue>,
    pub(crate) quota: Option<Quota>,
    /// Held until the row is committed.
    pub(crate) pin: Option<Arc<Pin>>,
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
        expected: Option<ExpectedValue>,
        quota: Option<Quota>,
        pin: Option<Arc<Pin>>,
    ) -> Result<Self, LedgerError> {
        let row_key = schema::state_key(scope, key);
        if row_key.len() > MAX_KEY_BYTES {
            return Err(LedgerError::invalid(format!("scope and key of {what} may have {MAX_KEY_BYTES} bytes together")));
        }
        let key_bytes = key.len() as u64;
        Ok(Self { table, usage_key: schema::usage_key(table, scope), key: row_key, key_bytes, value, expected, quota, pin })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn take_pin(&mut self) -> Option<Arc<Pin>> {
        self.pin.take()
    }

    pub(crate) fn name(&self) -> String {
        schema::read_state_key(&self.key).map(|(_, key)| key.to_owned()).unwrap_or_default()
    }
}

/// A key, in bytes: the kind, and an id.
const MAX_ENTRY_KEY_BYTES: usize = 1_024;

/// Changes that need no check, encoded: entries, and the deletion of old audit records. Answers with the number of rows.
pub(crate) struct RowsOperation {
    pub(crate) rows: Rows,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

/// Storage of the host itself, of no run. Answers with the number of values.
pub(crate) struct ValuesOperation {
    pub(crate) values: Vec<ValueRow>,
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
