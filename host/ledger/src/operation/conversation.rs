//! Items of transcripts, encoded, and a piece of a conversation to be forgotten.

use agent_host_protocol::{EventId, RunId, grant::ConversationKey};
use tokio::sync::oneshot;

use crate::{
    digest::Digest,
    error::LedgerError,
    operation::ValueRow,
    overlay::AdmittedValues,
    record::{ArtifactRecord, NewItem},
    rows::{AuditRow, MAX_KEY_BYTES, PackedItems, TranscriptRow, encode},
};

/// An item of a transcript, without its place.
pub(crate) struct ItemRow {
    pub(crate) key: ConversationKey,
    pub(crate) row: Vec<u8>,
}

impl ItemRow {
    pub(crate) fn prepare(item: NewItem) -> Result<Self, LedgerError> {
        check_conversation(&item.conversation)?;
        let NewItem { conversation: key, event_id, run_id, role, item_type, content, artifacts, created_at } = item;
        let row = encode(&TranscriptRow { event_id, run_id, role, item_type, content, artifacts, created_at })?;
        Ok(Self { key, row })
    }
}

pub(crate) fn check_conversation(key: &ConversationKey) -> Result<(), LedgerError> {
    if key.index().len() > MAX_KEY_BYTES {
        return Err(LedgerError::invalid(format!("the ids of a conversation may have {MAX_KEY_BYTES} bytes together")));
    }
    Ok(())
}

pub(crate) fn audit_bytes(rows: &[AuditRow]) -> usize {
    rows.iter().map(AuditRow::bytes).sum()
}

/// A piece of a conversation to be forgotten. Answers with how many things it was.
pub(crate) struct ForgetConversationOperation {
    pub(crate) piece: Piece,
    /// Values of the operation in the overlay.
    pub(crate) state: Option<AdmittedValues>,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

pub(crate) enum Piece {
    /// State, where no run of the conversation is active.
    Values { conversation: ConversationKey, waits: String, values: Vec<ValueRow> },
    /// Items `first..=last`, and the row that replaces the last one.
    Items { no: u64, first: u64, last: u64, end: Option<Vec<u8>> },
    /// Artifacts.
    Artifacts(Vec<ArtifactRecord>),
    /// Runs, or parts of them.
    Runs(Vec<RunPart>),
    /// Events.
    Events(Vec<EventId>),
}

/// A part of what a run has left, small enough for one operation.
pub(crate) struct RunPart {
    pub(crate) run_no: u64,
    pub(crate) run_id: RunId,
    /// Rows of events, by the number of the first event of each.
    pub(crate) events: Vec<u64>,
    pub(crate) segments: Vec<(u64, Vec<Digest>)>,
    /// The last event of the run, without what it said. With it the rest of the run goes.
    pub(crate) end: Option<PackedItems>,
}

impl RunPart {
    pub(crate) fn rows(&self) -> usize {
        self.events.len() + self.segments.iter().map(|(_, digests)| 1 + digests.len()).sum::<usize>() + 3
    }
}
