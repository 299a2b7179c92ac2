//! Rows of [`Table::Audit`]: the audit records that were written together.

use agent_host_protocol::RunId;
use serde::{Deserialize, Serialize};

use crate::{
    error::LedgerError,
    record::AuditRecord,
    rows::{
        PackedItems, Table, encode, json, malformed,
        packed::{Item, Items, unpack},
    },
};

/// An audit record in the form of its row, without its number.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredAudit<'a> {
    run: Option<[u8; 16]>,
    /// JSON.
    record: &'a str,
}

impl<'a> Item<'a> for StoredAudit<'a> {
    const VERSION: u8 = 1;

    fn read(_: u8, bytes: &'a [u8]) -> postcard::Result<(Self, &'a [u8])> {
        postcard::take_from_bytes(bytes)
    }
}

impl StoredAudit<'_> {
    pub(crate) fn run_id(&self) -> Option<RunId> {
        self.run.map(RunId::from_bytes)
    }

    pub(crate) fn record(&self) -> Result<AuditRecord, LedgerError> {
        json(Table::Audit, self.record.as_bytes())
    }
}

/// An audit record, encoded, without its number.
pub(crate) struct AuditRow {
    run_id: Option<RunId>,
    /// JSON.
    record: String,
}

impl AuditRow {
    pub(crate) fn prepare(record: &AuditRecord) -> Result<Self, LedgerError> {
        // JSON is UTF-8.
        let text = String::from_utf8(encode(record)?).map_err(|_| malformed(Table::Audit))?;
        Ok(Self { run_id: record.run_id, record: text })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.record.len() + 20
    }

    pub(crate) fn push_to(&self, row: &mut PackedItems) {
        row.push(&StoredAudit { run: self.run_id.map(|id| id.to_bytes()), record: &self.record });
    }
}

/// The records of a row whose first one has the number `first`, each with its number.
pub(crate) fn stored_audit(first: u64, value: &[u8]) -> Result<Items<'_, StoredAudit<'_>>, LedgerError> {
    unpack(Table::Audit, first, value, |value| {
        let AuditRecord { run_id, .. } = json(Table::Audit, value)?;
        let record = std::str::from_utf8(value).map_err(|_| malformed(Table::Audit))?;
        Ok(StoredAudit { run: run_id.map(RunId::to_bytes), record })
    })
}
