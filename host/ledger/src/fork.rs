//! Runs that are added to an event which is already there: forks of a run, with a journal and events of their own.

use std::sync::Arc;

use agent_host_protocol::{EventId, ResultKind, Run, RunStatus};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    batch::{Batch, write_event_row},
    disk::Need,
    entries::entry_rows,
    error::LedgerError,
    handle::Ledger,
    journal::NewSegment,
    memory::ActiveRun,
    operation::{EventRow, Operation, RunEventRow, bounded, encode},
    read::{json, malformed},
    record::{AddRun, RunRecord},
    rows::{Rows, changes},
    schema::{Table, number, pair, read_number},
};

/// A run to be added, encoded. Its number is given by the writer, which answers with it.
pub(crate) struct AddRunOperation {
    run: Arc<Run>,
    row: Vec<u8>,
    terms: Box<RawValue>,
    context: Option<Box<RawValue>>,
    /// From 1 on.
    events: Vec<Vec<u8>>,
    journal: Option<NewSegment>,
    entries: Rows,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

/// The row of an event after a run was added to it.
pub(crate) struct WithRun {
    event_no: u64,
    row: Vec<u8>,
}

impl AddRunOperation {
    /// Checks and encodes; gives the bytes that the operation holds, and the receiver of its answer.
    #[allow(clippy::type_complexity, reason = "three things that are taken apart at once by the one caller")]
    fn prepare(new: AddRun) -> Result<(Box<Self>, usize, oneshot::Receiver<Result<u64, LedgerError>>), LedgerError> {
        let AddRun { run, terms, context, events, journal, entries } = new;
        let entries = entry_rows(&entries)?;
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
        let row = encode(&run)?;
        let events = events.iter().map(|event| encode(&RunEventRow::of(event))).collect::<Result<Vec<_>, _>>()?;
        let journal = journal.map(NewSegment::prepare);
        let bytes = row.len()
            + terms.get().len()
            + context.as_ref().map_or(0, |context| context.get().len())
            + events.iter().map(Vec::len).sum::<usize>()
            + journal.as_ref().map_or(0, NewSegment::bytes)
            + entries.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        Ok((Box::new(Self { run: Arc::new(run), row, terms, context, events, journal, entries, reply }), bytes, answer))
    }
}

/// The number and the row of an event that was accepted by this batch.
fn accepted(rows: &Rows, id: &[u8; 16]) -> Option<(u64, Vec<u8>)> {
    let mut event_no: Option<&[u8]> = None;
    for change in changes(rows.bytes()) {
        let change = change.ok()?;
        match (change.table, change.value) {
            (Table::EventIds, Some(value)) if change.key == id => event_no = Some(value),
            (Table::Events, Some(value)) if Some(change.key) == event_no => {
                return Some((read_number(change.key)?, value.to_vec()));
            }
            _ => {}
        }
    }
    None
}

impl Batch<'_> {
    pub(crate) fn check_add_run(&mut self, new: &AddRunOperation) -> Result<WithRun, LedgerError> {
        let id = new.run.run_id.to_bytes();
        if self.ids.contains(&id) || self.reader()?.has(Table::RunIds, &id)? {
            return Err(LedgerError::invalid("this id of a run is already in the ledger: make a new one"));
        }
        let (event_no, old) = self.event_row(new.run.event_id)?;
        let EventRow { mut runs, transcript_seq, event } = json(Table::Events, &old)?;
        runs.push((self.memory.next_run_no, new.run.run_id));
        let mut row = Vec::with_capacity(old.len() + 64);
        write_event_row(&mut row, &runs, transcript_seq, event.get().as_bytes());
        Ok(WithRun { event_no, row })
    }

    /// The number and the row of an event, as this batch has it.
    pub(crate) fn event_row(&mut self, id: EventId) -> Result<(u64, Vec<u8>), LedgerError> {
        let key = id.to_bytes();
        if let Some(WithRun { event_no, row }) = self.forked.get(&key) {
            return Ok((*event_no, row.clone()));
        }
        if self.ids.contains(&key)
            && let Some(found) = accepted(self.rows, &key)
        {
            return Ok(found);
        }
        let reader = self.reader()?;
        let event_no = reader.number(Table::EventIds, &key)?.ok_or_else(|| LedgerError::NotFound(format!("event {id}")))?;
        let row = reader.get(Table::Events, &number(event_no), |row| Ok(row.to_vec()))?;
        Ok((event_no, row.ok_or_else(|| malformed(Table::EventIds))?))
    }

    /// Puts another row in the place of that of an event.
    pub(crate) fn put_event_row(&mut self, id: EventId, event_no: u64, row: Vec<u8>) {
        self.rows.put(Table::Events, &number(event_no), &row);
        self.forked.insert(id.to_bytes(), WithRun { event_no, row });
    }

    /// Adds a run that [`Self::check_add_run`] has allowed; gives its number.
    pub(crate) fn put_add_run(&mut self, new: &mut AddRunOperation, with_run: WithRun) -> u64 {
        let run_no = self.memory.next_run_no;
        self.rows.put(Table::Events, &number(with_run.event_no), &with_run.row);
        self.forked.insert(new.run.event_id.to_bytes(), with_run);
        self.ids.insert(new.run.run_id.to_bytes());
        self.put_new_run(run_no, Arc::clone(&new.run), &new.row, &new.terms);
        if let Some(context) = &new.context {
            self.rows.put(Table::Contexts, &number(run_no), context.get().as_bytes());
        }
        for (event, sequence) in new.events.iter().zip(1..) {
            self.rows.put(Table::RunEvents, &pair(run_no, sequence), event);
        }
        self.put_journal(run_no, &Rows::default(), new.journal.take());
        self.rows.append(&new.entries);
        run_no
    }

    /// A run that is new, in all tables that every run is in.
    pub(crate) fn put_new_run(&mut self, run_no: u64, run: Arc<Run>, row: &[u8], terms: &RawValue) {
        let key = number(run_no);
        self.rows.put(Table::Runs, &key, row);
        self.rows.put(Table::RunIds, &run.run_id.to_bytes(), &key);
        self.rows.put(Table::Terms, &key, terms.get().as_bytes());
        self.rows.put(Table::Active, &key, &[]);
        self.memory.active.insert(run_no, ActiveRun::new(run));
        self.memory.next_run_no = run_no + 1;
    }
}

impl Ledger {
    /// Makes a run for an event that is already in the ledger, with the events and the journal that it begins with. It
    /// is durable, and listed with its event, when this returns. Where the future is dropped, it may or may not have
    /// been made.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`] where the event is not there; [`LedgerError::Invalid`] where the id of the run is not
    /// new, the run not `created`, an event terminal, or their number not what the run says;
    /// [`LedgerError::Sequence`] where they are not numbered from 1 without a gap; [`LedgerError::DiskLow`],
    /// [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn add_run(&self, new: AddRun) -> Result<RunRecord, LedgerError> {
        let shared = self.shared();
        shared.disk.check(Need::NewEvent)?;
        let (operation, bytes, answer) = AddRunOperation::prepare(new)?;
        let run = Arc::clone(&operation.run);
        self.admit(Operation::AddRun(operation), bytes).await?;
        let run_no = answer.await.map_err(|_| shared.unavailable())??;
        Ok(RunRecord { run_no, run: Arc::unwrap_or_clone(run) })
    }
}
