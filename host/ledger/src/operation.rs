//! Operations as they wait in the queue: checked and encoded on the thread that submits them, so that the one
//! writer thread has little left to do.

use std::sync::Arc;

use agent_host_protocol::{
    EventId, ResultKind, Run, RunId, RunStatus, Timestamp,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart, content},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    artifacts::{ArtifactOperation, NewArtifact, artifact_bytes},
    blobs::Blobs,
    entries::{EntriesOperation, entry_rows},
    error::LedgerError,
    forget::ForgetConversationOperation,
    fork::AddRunOperation,
    garbage::ForgetOperation,
    journal::NewSegment,
    life::EventSpan,
    overlay::Admitted,
    park::NewPark,
    prune::PruneOperation,
    record::{Accept, AuditRecord, Idempotency, NewEvent, NewItem, RunChange, RunWrite, StateWrite},
    rows::Rows,
    schema::{self, MAX_KEY_BYTES, Table},
    values::ValueRow,
};

/// One operation may be so large: more than any limit of the protocol adds up to (a batch of results, a state
/// value and a context are some hundred KiB each), and small beside the queue and a frame of the log.
pub(crate) const MAX_OPERATION_BYTES: usize = 32 * 1024 * 1024;

/// An idempotency key, in bytes: what fits a header comfortably.
pub(crate) const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

pub(crate) enum Operation {
    Accept(Box<AcceptOperation>),
    Write(Box<WriteOperation>),
    Audit(Vec<AuditRow>),
    Artifact(Box<ArtifactOperation>),
    Forget(Box<ForgetOperation>),
    ForgetConversation(Box<ForgetConversationOperation>),
    AddRun(Box<AddRunOperation>),
    Prune(Box<PruneOperation>),
    Entries(EntriesOperation),
}

pub(crate) struct AcceptOperation {
    pub(crate) event_id: EventId,
    pub(crate) received_at: Timestamp,
    /// The event as JSON.
    pub(crate) event: Vec<u8>,
    pub(crate) runs: Vec<NewRunRow>,
    pub(crate) idempotency: Option<Idempotency>,
    pub(crate) transcript: Option<ItemRow>,
    /// Under which conversation it is listed, and as what.
    pub(crate) listed: Option<ListedEvent>,
    pub(crate) artifacts: Vec<NewArtifact>,
    pub(crate) refers_to: Vec<String>,
    pub(crate) entries: Rows,
    /// State.
    pub(crate) values: Vec<ValueRow>,
    /// Its values in the overlay.
    pub(crate) state: Option<Admitted>,
    pub(crate) reply: oneshot::Sender<Result<AcceptAnswer, LedgerError>>,
}

pub(crate) struct ListedEvent {
    pub(crate) index: String,
    pub(crate) key: ConversationKey,
    pub(crate) event_type: String,
}

pub(crate) struct NewRunRow {
    pub(crate) run: Arc<Run>,
    pub(crate) row: Vec<u8>,
    pub(crate) terms: Box<RawValue>,
}

/// What the writer answers to an accept; the handle has the rest.
pub(crate) enum AcceptAnswer {
    /// The runs have this number and the following.
    New {
        event_no: u64,
        first_run_no: u64,
        transcript_seq: Option<u64>,
    },
    Repeated {
        event_id: EventId,
    },
}

pub(crate) struct WriteOperation {
    pub(crate) run_no: u64,
    pub(crate) changes: Vec<RunChange>,
    pub(crate) events: Option<EventSpan>,
    /// Rows whose keys are known: context, events.
    pub(crate) rows: Rows,
    /// State and storage.
    pub(crate) values: Vec<ValueRow>,
    pub(crate) artifacts: Vec<NewArtifact>,
    pub(crate) refers_to: Vec<String>,
    pub(crate) transcript: Vec<ItemRow>,
    pub(crate) audit: Vec<AuditRow>,
    pub(crate) journal: Option<NewSegment>,
    pub(crate) park: Option<NewPark>,
    pub(crate) claim: Option<u32>,
    /// Its values in the overlay.
    pub(crate) state: Option<Admitted>,
    pub(crate) reply: oneshot::Sender<Result<Arc<Run>, LedgerError>>,
}

impl WriteOperation {
    /// Whether it says nothing about the run itself.
    pub(crate) fn is_audit_only(&self) -> bool {
        self.journal.is_none() && !self.is_seen()
    }

    /// Whether one who follows the run may see it: all but audit records and the journal.
    pub(crate) fn is_seen(&self) -> bool {
        !(self.changes.is_empty()
            && self.rows.is_empty()
            && self.transcript.is_empty()
            && self.values.is_empty()
            && self.artifacts.is_empty()
            && self.refers_to.is_empty())
    }
}

/// An item of a transcript, without its place.
pub(crate) struct ItemRow {
    pub(crate) index: String,
    pub(crate) key: ConversationKey,
    pub(crate) row: Vec<u8>,
}

/// An audit record, without its number.
pub(crate) struct AuditRow {
    pub(crate) run_id: Option<RunId>,
    pub(crate) row: Vec<u8>,
}

/// A row of [`Table::RunEvents`]. Run and sequence are in the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct RunEventRow<'a> {
    #[serde(rename = "t", borrow)]
    pub(crate) kind: std::borrow::Cow<'a, str>,
    #[serde(rename = "at")]
    pub(crate) timestamp: Timestamp,
    #[serde(rename = "d", borrow)]
    pub(crate) data: &'a RawValue,
}

impl<'a> RunEventRow<'a> {
    pub(crate) fn of(event: &'a NewEvent) -> Self {
        Self { kind: event.kind.as_str().into(), timestamp: event.timestamp, data: &event.data }
    }
}

/// A row of [`Table::Transcript`]. Conversation and place are in the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct TranscriptRow {
    pub(crate) event_id: EventId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<RunId>,
    pub(crate) role: String,
    pub(crate) item_type: String,
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

/// A row of [`Table::Events`].
#[derive(Serialize, Deserialize)]
pub(crate) struct EventRow<'a> {
    /// Number and id of each run.
    #[serde(default)]
    pub(crate) runs: Vec<(u64, RunId)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transcript_seq: Option<u64>,
    #[serde(borrow)]
    pub(crate) event: &'a RawValue,
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
    pub(crate) key: std::borrow::Cow<'a, str>,
    pub(crate) at: Timestamp,
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, LedgerError> {
    serde_json::to_vec(value).map_err(|error| LedgerError::invalid(format!("this cannot be written as JSON: {error}")))
}

fn conversation_index(key: &ConversationKey) -> Result<String, LedgerError> {
    let index = key.index();
    if index.len() > MAX_KEY_BYTES {
        return Err(LedgerError::invalid(format!("the ids of a conversation may have {MAX_KEY_BYTES} bytes together")));
    }
    Ok(index)
}

impl ItemRow {
    fn prepare(item: NewItem) -> Result<Self, LedgerError> {
        let index = conversation_index(&item.conversation)?;
        let NewItem { conversation: key, event_id, run_id, role, item_type, content, artifacts, created_at } = item;
        let row = encode(&TranscriptRow { event_id, run_id, role, item_type, content, artifacts, created_at })?;
        Ok(Self { index, key, row })
    }
}

impl AuditRow {
    pub(crate) fn prepare(record: &AuditRecord) -> Result<Self, LedgerError> {
        Ok(Self { run_id: record.run_id, row: encode(record)? })
    }
}

impl AcceptOperation {
    /// Checks and encodes; gives the bytes that the operation holds, the state that is to stand in the overlay, and the
    /// receiver of its answer.
    #[allow(clippy::type_complexity, reason = "four things that are taken apart at once by the one caller")]
    pub(crate) fn prepare(
        accept: Accept,
        blobs: &Arc<Blobs>,
    ) -> Result<(Box<Self>, usize, Vec<StateWrite>, oneshot::Receiver<Result<AcceptAnswer, LedgerError>>), LedgerError> {
        let Accept { event, idempotency, runs, transcript, artifacts, refers_to, entries, state } = accept;
        let entries = entry_rows(&entries)?;
        if let Some(Idempotency { key, .. }) = &idempotency
            && (key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES)
        {
            return Err(LedgerError::invalid(format!("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes")));
        }
        let encoded = encode(&event)?;
        let mut bytes = encoded.len();
        let mut rows = Vec::with_capacity(runs.len());
        for new in runs {
            if new.run.status != RunStatus::Created || new.run.last_sequence != 0 || new.run.event_id != event.event_id {
                return Err(LedgerError::invalid(
                    "a new run is `created`, has no events, and answers the event that it comes with",
                ));
            }
            let row = encode(&new.run)?;
            bytes += row.len() + new.terms.get().len();
            rows.push(NewRunRow { run: Arc::new(new.run), row, terms: new.terms });
        }
        let transcript = transcript.map(ItemRow::prepare).transpose()?;
        bytes += transcript.as_ref().map_or(0, |item| item.row.len() + item.index.len());
        let listed = match event.envelope.conversation.as_ref().and_then(ConversationKey::of) {
            Some(key) => {
                Some(ListedEvent { index: conversation_index(&key)?, key, event_type: event.envelope.event_type.clone() })
            }
            None => None,
        };
        let artifacts = NewArtifact::prepare_all(&artifacts, blobs)?;
        let values = state.iter().map(ValueRow::state).collect::<Result<Vec<_>, _>>()?;
        bytes +=
            artifact_bytes(&artifacts, &refers_to) + entries.bytes().len() + values.iter().map(ValueRow::bytes).sum::<usize>();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        let (event_id, received_at) = (event.event_id, event.received_at);
        let operation = Self {
            event_id,
            received_at,
            event: encoded,
            runs: rows,
            idempotency,
            transcript,
            listed,
            artifacts,
            refers_to,
            entries,
            values,
            state: None,
            reply,
        };
        Ok((Box::new(operation), bytes, state, answer))
    }
}

impl WriteOperation {
    /// Checks what can be checked without the run, and encodes; gives the bytes that the operation holds, the state
    /// that is to stand in the overlay, and the receiver of its answer.
    #[allow(clippy::type_complexity, reason = "four things that are taken apart at once by the one caller")]
    pub(crate) fn prepare(
        write: RunWrite,
        blobs: &Arc<Blobs>,
    ) -> Result<(Box<Self>, usize, Vec<StateWrite>, oneshot::Receiver<Result<Arc<Run>, LedgerError>>), LedgerError> {
        let RunWrite {
            run_no,
            changes,
            context,
            events,
            transcript,
            state,
            storage,
            artifacts,
            refers_to,
            audit,
            journal,
            park,
            entries,
            claim,
        } = write;
        let span = span(&changes, &events)?;
        let mut rows = entry_rows(&entries)?;
        if let Some(context) = context {
            rows.put(Table::Contexts, &schema::number(run_no), context.get().as_bytes());
        }
        for event in &events {
            rows.put_json(Table::RunEvents, &schema::pair(run_no, event.sequence), &RunEventRow::of(event))?;
        }
        let values = state.iter().map(ValueRow::state).chain(storage.into_iter().map(ValueRow::storage));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let artifacts = NewArtifact::prepare_all(&artifacts, blobs)?;
        let transcript = transcript.into_iter().map(ItemRow::prepare).collect::<Result<Vec<_>, _>>()?;
        let audit = audit.iter().map(AuditRow::prepare).collect::<Result<Vec<_>, _>>()?;
        let items: usize = transcript.iter().map(|item| item.row.len() + item.index.len()).sum();
        let values_bytes: usize = values.iter().map(ValueRow::bytes).sum();
        let journal = journal.map(NewSegment::prepare);
        let park = park.map(|park| NewPark::prepare(park, &changes)).transpose()?;
        let bytes = rows.bytes().len()
            + items
            + values_bytes
            + artifact_bytes(&artifacts, &refers_to)
            + audit_bytes(&audit)
            + journal.as_ref().map_or(0, NewSegment::bytes)
            + park.as_ref().map_or(0, NewPark::bytes);
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        let operation = Self {
            run_no,
            changes,
            events: span,
            rows,
            values,
            artifacts,
            refers_to,
            transcript,
            audit,
            journal,
            park,
            claim,
            state: None,
            reply,
        };
        Ok((Box::new(operation), bytes, state, answer))
    }
}

pub(crate) fn audit_bytes(rows: &[AuditRow]) -> usize {
    rows.iter().map(|row| row.row.len()).sum()
}

pub(crate) fn bounded(bytes: usize) -> Result<(), LedgerError> {
    if bytes > MAX_OPERATION_BYTES {
        return Err(LedgerError::invalid(format!("one write has {bytes} bytes; the limit is {MAX_OPERATION_BYTES}")));
    }
    Ok(())
}

/// The span of the events, where they follow each other and end as the changes say.
fn span(changes: &[RunChange], events: &[NewEvent]) -> Result<Option<EventSpan>, LedgerError> {
    let kind = |event: &NewEvent| ResultKind::from_name(&event.kind).filter(|kind| kind.is_terminal());
    let (last, before) = match events.split_last() {
        Some((last, before)) => (Some(last), before),
        None => (None, events),
    };
    let terminal = match changes.split_last() {
        Some((RunChange::End { terminal, .. }, before)) => Some((terminal, before)),
        _ => None,
    };
    let earlier = terminal.map_or(changes, |(_, before)| before);
    if earlier.iter().any(|change| matches!(change, RunChange::End { .. })) || before.iter().any(|event| kind(event).is_some()) {
        return Err(LedgerError::invalid("nothing follows the end of a run: `End` and the terminal event come last"));
    }
    match (terminal.map(|(terminal, _)| terminal), last.and_then(kind)) {
        (None, None) => {}
        (Some(terminal), Some(kind)) => {
            let completed = terminal.status() == RunStatus::Completed;
            if completed != (kind == ResultKind::RunCompleted) {
                return Err(LedgerError::invalid(format!(
                    "a run that ends as {} does not end with `{}`",
                    terminal.status(),
                    kind.as_str()
                )));
            }
        }
        (Some(_), None) => {
            return Err(LedgerError::invalid("`End` needs the terminal event as the last event of the same write"));
        }
        (None, Some(_)) => return Err(LedgerError::invalid("a terminal event needs `End` in the same write")),
    }
    let Some((first, last)) = events.first().zip(last) else { return Ok(None) };
    for (event, expected) in events.iter().zip(first.sequence..) {
        if event.sequence != expected {
            return Err(LedgerError::Sequence { expected, found: event.sequence });
        }
    }
    Ok(Some(EventSpan { first: first.sequence, last: last.sequence, at: last.timestamp }))
}
