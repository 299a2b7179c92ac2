//! Steering: a message that waits behind an active run which takes input is taken by that run.
//!
//! A waiting input is a run of its own in the line of its conversation: durable, in order, and executed in its turn unless
//! it is taken. The active run records the inputs that it takes (`steering.received`, in one commit with its journal), and
//! their runs end as `completed` with the finish reason `steered`. After a crash between the two, the next start ends the
//! taken runs.

use std::collections::{HashMap, VecDeque};

use agent_host_ledger::{Ledger, LedgerError, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    EventId, ResultKind, RunEvent, RunId, RunStatus,
    run::{RunCompletion, Terminal},
    time,
};
use serde_json::json;

use super::{FORKED_FROM, terminal::terminal_event};

/// The finish reason of a run whose event another run has taken.
const FINISH_REASON: &str = "steered";

/// True if a run of this binding can take the event of a waiting run as input.
pub(crate) fn can_be_taken(record: &RunRecord, binding_id: &str) -> bool {
    let run = &record.run;
    run.binding_id == binding_id
        && matches!(run.status, RunStatus::Created | RunStatus::Queued)
        && run.cancel_requested_at.is_none()
        && !run.metadata.contains_key(FORKED_FROM)
}

/// The end of a run whose event `by` has taken as input.
pub(crate) fn end_taken(record: &RunRecord, by: RunId) -> RunWrite {
    let at = time::now();
    let metadata = Some(json!({ "steered_into": by }));
    let terminal =
        Terminal::Completed(RunCompletion { finish_reason: FINISH_REASON.to_owned(), message: None, usage: None, metadata });
    RunWrite {
        events: vec![terminal_event(&terminal, record.run.last_sequence + 1, at)],
        changes: vec![RunChange::Start { at, deadline_at: None }, RunChange::End { at, terminal }],
        ..RunWrite::default()
    }
}

fn received(event: &RunEvent) -> Option<(RunId, EventId)> {
    let data = event.data_value();
    let text = |name: &str| data.get(name).and_then(serde_json::Value::as_str);
    Some((text("run_id")?.parse().ok()?, text("event_id")?.parse().ok()?))
}

/// Events that a run has taken as input, in order, each with the run that it would have been.
fn all_received(ledger: &Ledger, record: &RunRecord) -> Result<Vec<(RunId, EventId)>, LedgerError> {
    let events = ledger.run_events_of(record.run_no, record.run.run_id, &[ResultKind::SteeringReceived.as_str()])?;
    Ok(events.iter().filter_map(received).collect())
}

/// Events that the attempts before of a run have taken: they are given to the next one again.
pub(crate) fn taken_before(ledger: &Ledger, record: &RunRecord) -> Result<VecDeque<EventId>, LedgerError> {
    Ok(all_received(ledger, record)?.into_iter().map(|(_, event_id)| event_id).collect())
}

/// Runs that this one has taken, with its own id: their ends may be missing where the host has died.
pub(crate) fn taken_by(ledger: &Ledger, record: &RunRecord) -> Result<HashMap<RunId, RunId>, LedgerError> {
    Ok(all_received(ledger, record)?.into_iter().map(|(run_id, _)| (run_id, record.run.run_id)).collect())
}
