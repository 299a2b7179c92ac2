//! A write to a run, checked and encoded.

use std::sync::Arc;

use agent_host_protocol::{ResultKind, Run, RunStatus};
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    files::Blobs,
    operation::{
        ItemRow, NewArtifact, NewPark, NewSegment, ValueRow, artifact::artifact_bytes, audit_bytes, entry_rows,
        measured::MeasuredUse, run_change::EventSpan,
    },
    overlay::AdmittedValues,
    record::{NewEvent, RunChange, RunWrite, StateWrite},
    rows::{AuditRow, ContextRow, PackedItems, Rows, bounded, pack_events},
};

pub(crate) struct WriteOperation {
    pub(crate) run_no: u64,
    pub(crate) changes: Vec<RunChange>,
    pub(crate) span: Option<EventSpan>,
    /// The events of the span.
    pub(crate) events: Vec<PackedItems>,
    /// The use of models that the events report.
    pub(crate) measured: Vec<MeasuredUse>,
    pub(crate) context: Option<ContextRow>,
    /// Rows whose keys are known: entries.
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
    /// Values of the operation in the overlay.
    pub(crate) state: Option<AdmittedValues>,
    pub(crate) reply: oneshot::Sender<Result<Arc<Run>, LedgerError>>,
}

impl WriteOperation {
    /// True if the write has only audit records.
    pub(crate) fn is_audit_only(&self) -> bool {
        self.journal.is_none() && !self.is_seen()
    }

    /// True if followers of the run may see the write: any write except audit records and the journal.
    pub(crate) fn is_seen(&self) -> bool {
        !(self.changes.is_empty()
            && self.events.is_empty()
            && self.context.is_none()
            && self.rows.is_empty()
            && self.transcript.is_empty()
            && self.values.is_empty()
            && self.artifacts.is_empty()
            && self.refers_to.is_empty())
    }
}

impl WriteOperation {
    /// Checks what does not depend on the run, and encodes; returns the bytes that the operation holds, the state for the
    /// overlay, and the receiver of the answer.
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
        let rows = entry_rows(&entries)?;
        let measured = events.iter().filter_map(MeasuredUse::of).collect();
        let events = pack_events(&events);
        let values = state.iter().map(ValueRow::state).chain(storage.into_iter().map(ValueRow::storage));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let artifacts = NewArtifact::prepare_all(&artifacts, blobs)?;
        let transcript = transcript.into_iter().map(ItemRow::prepare).collect::<Result<Vec<_>, _>>()?;
        let audit = audit.iter().map(AuditRow::prepare).collect::<Result<Vec<_>, _>>()?;
        let items: usize = transcript.iter().map(|item| item.row.len() + item.key.index().len()).sum();
        let values_bytes: usize = values.iter().map(ValueRow::bytes).sum();
        let journal = journal.map(NewSegment::prepare);
        let park = park.map(|park| NewPark::prepare(park, &changes)).transpose()?;
        let context = context.map(ContextRow::prepare);
        let bytes = rows.bytes().len()
            + context.as_ref().map_or(0, ContextRow::bytes)
            + events.iter().map(PackedItems::bytes).sum::<usize>()
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
            span,
            events,
            measured,
            context,
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
