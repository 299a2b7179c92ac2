//! Rows of values: state, storage, and how much a scope or an area has.

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    digest::Digest,
    error::LedgerError,
    record::{ExpectedValue, StorageContent, Usage},
    rows::{Reader, Table, malformed, schema},
};

/// The tag of a state value, from its stored JSON text. Equal texts have equal tags; different texts have equal tags in one
/// of 2^64 pairs. The tag detects mistakes and races, not deliberate collisions.
#[must_use]
pub fn state_tag(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// A value, as far as a later write needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueSummary {
    pub(crate) size: u64,
    pub(crate) tag: u64,
    pub(crate) blob: Option<Digest>,
}

impl ValueSummary {
    pub(crate) fn of(table: Table, value: &[u8]) -> Result<Self, LedgerError> {
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
            Self::Blob(digest, size) => StorageContent::Blob { sha256: crate::digest::hex(digest), size: *size },
        }
    }
}

/// A row of [`Table::Usage`].
pub(crate) fn read_usage(bytes: &[u8]) -> Option<Usage> {
    let (bytes, keys) = schema::read_pair(bytes)?;
    Some(Usage { bytes, keys })
}

/// True if a value is the expected one of a write. `tag` is `None` if the value does not exist.
pub(crate) fn is_expected(expected: Option<ExpectedValue>, tag: Option<u64>) -> bool {
    match expected {
        None => true,
        Some(ExpectedValue::Absent) => tag.is_none(),
        Some(ExpectedValue::Value(expected)) => tag == Some(expected),
    }
}

impl Reader {
    pub(crate) fn usage(&self, key: &[u8]) -> Result<Usage, LedgerError> {
        let usage = self.get(Table::Usage, key, |row| read_usage(row).ok_or_else(|| malformed(Table::Usage)))?;
        Ok(usage.unwrap_or_default())
    }

    /// The tag of a state value.
    pub(crate) fn stored_tag(&self, scope_key: &str, key: &str) -> Result<Option<u64>, LedgerError> {
        self.get(Table::State, &schema::state_key(scope_key, key), |text| Ok(xxh3_64(text)))
    }

    /// Rows of one scope or area whose keys begin with the prefix, in order.
    pub(crate) fn each_value(
        &self,
        table: Table,
        scope_key: &str,
        prefix: &str,
        limit: usize,
        mut each: impl FnMut(&str, &[u8]) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let start = schema::state_key(scope_key, prefix);
        for row in self.table(table)?.range(start.as_slice()..)?.take(limit) {
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
