//! Rows of JSON, as their tables hold them, and the bound of one operation.

use std::borrow::Cow;

use agent_host_protocol::{
    EventId, Run, RunId, Timestamp,
    encoded::json_bytes,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart, content},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{error::LedgerError, rows::Table};

/// A key is remembered so long: clients repeat requests within minutes, queues within a day.
pub(crate) const IDEMPOTENCY_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// A row of [`Table::Transcript`]. Conversation and place are in the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct TranscriptRow {
    pub(crate) event_id: EventId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<RunId>,
    pub(crate) role: Cow<'static, str>,
    pub(crate) item_type: Cow<'static, str>,
    #[serde(default, with = "content")]
    pub(crate) content: Vec<ContentPart>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) artifacts: Vec<ArtifactRef>,
    pub(crate) created_at: Timestamp,
}

/// A row of [`Table::Conversations`].
#[derive(Serialize, Deserialize)]
pub(crate) struct ConversationRow {
    pub(crate) no: u64,
    pub(crate) key: ConversationKey,
}

/// A row of [`Table::Idempotency`].
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct IdempotencyRow {
    pub(crate) body_hash: [u8; 32],
    pub(crate) event_id: EventId,
    pub(crate) event_no: u64,
    pub(crate) at: Timestamp,
}

/// A row of [`Table::IdempotencyAge`].
#[derive(Serialize, Deserialize)]
pub(crate) struct IdempotencyAgeRow<'a> {
    #[serde(borrow)]
    pub(crate) key: Cow<'a, str>,
    pub(crate) at: Timestamp,
}

/// Largest operation in bytes: more than the sum of all limits of the protocol (a batch of results, a state value and a
/// context are some hundred KiB each), and small compared with the queue and a frame of the log.
const MAX_OPERATION_BYTES: usize = 32 * 1024 * 1024;

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, LedgerError> {
    json_bytes(value).map_err(|error| LedgerError::not_json(&error))
}

/// Reads a row of JSON.
pub(crate) fn json<'a, T: Deserialize<'a>>(table: Table, bytes: &'a [u8]) -> Result<T, LedgerError> {
    serde_json::from_slice(bytes).map_err(|error| LedgerError::damaged(format!("a row of `{}`: {error}", table.name())))
}

/// Reads a run. A run of formats before 8 has no agent: it is that of its binding.
pub(crate) fn stored_run(bytes: &[u8]) -> Result<Run, LedgerError> {
    let mut run: Run = json(Table::Runs, bytes)?;
    if run.agent_id.is_empty() {
        run.agent_id.clone_from(&run.binding_id);
    }
    Ok(run)
}

pub(crate) fn raw(table: Table, bytes: &[u8]) -> Result<Box<RawValue>, LedgerError> {
    json(table, bytes)
}

pub(crate) fn malformed(table: Table) -> LedgerError {
    LedgerError::damaged(format!("a key or number of `{}` has a wrong length", table.name()))
}

pub(crate) fn bounded(bytes: usize) -> Result<(), LedgerError> {
    if bytes > MAX_OPERATION_BYTES {
        return Err(LedgerError::invalid(format!("one write has {bytes} bytes; the limit is {MAX_OPERATION_BYTES}")));
    }
    Ok(())
}
