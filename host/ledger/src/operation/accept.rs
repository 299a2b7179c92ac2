//! A new event with its runs, and a run for an event that is already there, checked and encoded.

use std::sync::{Arc, OnceLock};

use agent_host_protocol::{EventId, RecordDigest, ResultKind, Run, RunStatus, Timestamp, grant::ConversationKey};
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    files::Blobs,
    operation::{
        ItemRow, NewArtifact, NewSegment, ValueRow, artifact::artifact_bytes, conversation::check_conversation, entry_rows,
    },
    overlay::AdmittedValues,
    record::{Accept, AddRun, Branch, Idempotency, NewEvent, StateWrite},
    rows::{ContextRow, PackedItems, PartsRow, Rows, bounded, digest_after, encode, pack_events},
};

/// An idempotency key, in bytes: what fits a header comfortably.
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

pub(crate) struct AcceptOperation {
    pub(crate) event_id: EventId,
    pub(crate) received_at: Timestamp,
    /// The event as JSON.
    pub(crate) event: Vec<u8>,
    pub(crate) runs: Vec<NewRunRow>,
    pub(crate) idempotency: Option<Idempotency>,
    /// Items of the transcript, that of the event last.
    pub(crate) transcript: Vec<ItemRow>,
    /// Under which conversation it is listed, and as what.
    pub(crate) listed: Option<ListedEvent>,
    pub(crate) artifacts: Vec<NewArtifact>,
    pub(crate) refers_to: Vec<String>,
    pub(crate) entries: Rows,
    /// State.
    pub(crate) values: Vec<ValueRow>,
    /// Values of the operation in the overlay.
    pub(crate) state: Option<AdmittedValues>,
    /// The events that leave the conversation under which it is listed.
    pub(crate) branch: Option<Branch>,
    pub(crate) reply: oneshot::Sender<Result<AcceptAnswer, LedgerError>>,
}

pub(crate) struct ListedEvent {
    pub(crate) key: ConversationKey,
    pub(crate) event_type: String,
}

pub(crate) struct NewRunRow {
    pub(crate) run: Arc<Run>,
    pub(crate) row: Vec<u8>,
    pub(crate) terms: PartsRow,
    /// From 1 on.
    pub(crate) events: Vec<PackedItems>,
}

/// Answer of the writer to an accept; the handle has the rest.
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

impl AcceptOperation {
    /// Checks and encodes; returns the bytes that the operation holds, the state for the overlay, and the receiver of the
    /// answer.
    #[allow(clippy::type_complexity, reason = "four things that are taken apart at once by the one caller")]
    pub(crate) fn prepare(
        accept: Accept,
        blobs: &Arc<Blobs>,
    ) -> Result<(Box<Self>, usize, Vec<StateWrite>, oneshot::Receiver<Result<AcceptAnswer, LedgerError>>), LedgerError> {
        let Accept { event, idempotency, runs, history, transcript, artifacts, refers_to, entries, state, branch } = accept;
        let entries = entry_rows(&entries)?;
        if let Some(Idempotency { key, .. }) = &idempotency
            && (key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES)
        {
            return Err(LedgerError::invalid(format!("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes")));
        }
        let encoded = encode(&*event)?;
        let mut bytes = encoded.len();
        let mut rows = Vec::with_capacity(runs.len());
        for mut new in runs {
            if new.run.event_id != event.event_id {
                return Err(LedgerError::invalid("a new run answers the event that it comes with"));
            }
            check_new(&new.run, &new.events)?;
            let events = pack_events(&new.events);
            new.run.record_digest = Some(digest_after(RecordDigest::begin(new.run.run_id, &encoded), &events)?);
            let row = encode(&new.run)?;
            let terms = PartsRow::prepare(new.terms);
            bytes += row.len() + terms.bytes() + events.iter().map(PackedItems::bytes).sum::<usize>();
            rows.push(NewRunRow { run: Arc::new(new.run), row, terms, events });
        }
        let items = history.into_iter().chain(transcript);
        let transcript = items.map(ItemRow::prepare).collect::<Result<Vec<_>, _>>()?;
        bytes += transcript.iter().map(|item| item.row.len() + item.key.index().len()).sum::<usize>();
        let listed = match event.envelope.conversation.as_ref().and_then(ConversationKey::of) {
            Some(key) => {
                check_conversation(&key)?;
                Some(ListedEvent { key, event_type: event.envelope.event_type.clone() })
            }
            None if branch.is_some() => return Err(LedgerError::invalid("an event without a conversation begins no branch")),
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
            branch,
            reply,
        };
        Ok((Box::new(operation), bytes, state, answer))
    }
}

/// Checks a run that is about to be added with its first events.
fn check_new(run: &Run, events: &[NewEvent]) -> Result<(), LedgerError> {
    if run.status != RunStatus::Created {
        return Err(LedgerError::invalid(format!("a new run is `created`, not `{}`", run.status)));
    }
    for (event, expected) in events.iter().zip(1..) {
        if event.sequence != expected {
            return Err(LedgerError::Sequence { expected, found: event.sequence });
        }
        if ResultKind::from_name(&event.kind).is_some_and(ResultKind::is_terminal) {
            return Err(LedgerError::invalid(format!("a new run has not ended, so it has no event `{}`", event.kind)));
        }
    }
    if run.last_sequence != events.len() as u64 {
        return Err(LedgerError::invalid(format!(
            "a new run that comes with {} events does not have {}",
            events.len(),
            run.last_sequence
        )));
    }
    Ok(())
}

/// A run to be added, encoded. The writer assigns its number and answers with it.
pub(crate) struct AddRunOperation {
    pub(crate) run: Arc<Run>,
    /// The digest of its record, which the writer computes: it has the event.
    pub(crate) digest: Arc<OnceLock<RecordDigest>>,
    pub(crate) row: Vec<u8>,
    pub(crate) terms: PartsRow,
    pub(crate) context: Option<ContextRow>,
    /// From 1 on.
    pub(crate) events: Vec<PackedItems>,
    pub(crate) journal: Option<NewSegment>,
    pub(crate) entries: Rows,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

impl AddRunOperation {
    /// Checks and encodes; gives the bytes that the operation holds, and the receiver of its answer.
    #[allow(clippy::type_complexity, reason = "three things that are taken apart at once by the one caller")]
    pub(crate) fn prepare(new: AddRun) -> Result<(Box<Self>, usize, oneshot::Receiver<Result<u64, LedgerError>>), LedgerError> {
        let AddRun { run, terms, context, events, journal, entries } = new;
        let entries = entry_rows(&entries)?;
        check_new(&run, &events)?;
        let row = encode(&run)?;
        let events = pack_events(&events);
        let journal = journal.map(NewSegment::prepare);
        let (terms, context) = (PartsRow::prepare(terms), context.map(ContextRow::prepare));
        let bytes = row.len()
            + terms.bytes()
            + context.as_ref().map_or(0, ContextRow::bytes)
            + events.iter().map(PackedItems::bytes).sum::<usize>()
            + journal.as_ref().map_or(0, NewSegment::bytes)
            + entries.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        let digest = Arc::default();
        Ok((Box::new(Self { run: Arc::new(run), digest, row, terms, context, events, journal, entries, reply }), bytes, answer))
    }
}
