//! Writes to a run, and its park rows.

use std::sync::Arc;

use agent_host_protocol::{Run, grant::ConversationKey};

use crate::{
    apply::{Batch, batch::Answer, value::Plan},
    error::LedgerError,
    operation::{MeasuredUse, NewPark, ParkChange, ValueRow, WriteOperation, run_change},
    rows::{PackedItems, Rows, Table, digest_after, number, pair, wait_key},
};

/// Changes by a write that is allowed.
#[derive(Default)]
pub(crate) struct CheckedWrite {
    /// The run, where it has ended and only takes audit records.
    ended: Option<Arc<Run>>,
    /// Changes of values.
    plan: Plan,
    /// Segments of the journal that are deleted.
    journal: Rows,
    /// The conversation in which the run takes its turn.
    turn: Option<ConversationKey>,
}

impl Batch<'_> {
    /// Checks a write, and returns its changes.
    pub(crate) fn check_write(&mut self, write: &WriteOperation) -> Result<CheckedWrite, LedgerError> {
        if let Some(run) = self.find_run(write.run_no)? {
            if write.is_audit_only() {
                return Ok(CheckedWrite { ended: Some(run), ..CheckedWrite::default() });
            }
            run_change::fenced(&run, write.claim)?;
            return Err(LedgerError::Terminal { run_id: run.run_id, status: run.status });
        }
        let mut turn = None;
        if let Some(active) = self.memory.active.get(&write.run_no) {
            run_change::fenced(&active.run, write.claim)?;
            run_change::check(&active.run, active.park.is_some(), &write.changes, write.span)?;
            if run_change::takes_turn(&active.run, &write.changes) {
                turn = active.run.conversation_key();
            }
        }
        if let Some(key) = &turn {
            self.memory.load_turns(key, self.reader)?;
        }
        for item in &write.transcript {
            self.load_conversation(&item.key)?;
        }
        self.check_artifacts(&write.artifacts)?;
        Ok(CheckedWrite { ended: None, plan: self.plan(&write.values)?, journal: self.check_journal(write)?, turn })
    }

    pub(crate) fn put_write(&mut self, mut write: WriteOperation, checked: CheckedWrite) {
        let CheckedWrite { ended, plan, journal, turn } = checked;
        let run_no = write.run_no;
        if write.is_seen() {
            self.outcome.touched.push(run_no);
        }
        if let Some(context) = &write.context {
            self.put_context(run_no, context);
        }
        self.rows.append(&write.rows);
        self.digest_events(run_no, &write.events);
        self.put_events(run_no, std::mem::take(&mut write.events));
        self.carry_out(plan);
        self.outcome.pins.extend(write.values.iter_mut().filter_map(ValueRow::take_pin));
        for artifact in std::mem::take(&mut write.artifacts) {
            self.put_artifact(artifact);
        }
        self.refer_to(std::mem::take(&mut write.refers_to));
        for item in &write.transcript {
            self.put_item(item);
        }
        self.put_audit(write.audit);
        self.put_journal(run_no, &journal, write.journal.take());
        self.put_park(run_no, run_change::park_change(&write.changes), write.park.take());
        let run = match ended {
            Some(run) => run,
            None => match self.change_run(run_no, write.changes, write.span, write.measured, turn) {
                Some(run) => run,
                None => return,
            },
        };
        if !write.reply.is_closed() {
            self.outcome.answers.push(Answer::Write(write.reply, Ok(run)));
        }
    }

    /// Lets the digest of the run's record cover these events. A run without a digest stays without one.
    fn digest_events(&mut self, run_no: u64, events: &[PackedItems]) {
        let Some(active) = self.memory.active.get_mut(&run_no).filter(|_| !events.is_empty()) else { return };
        if let Some(digest) = active.run.record_digest {
            // Rows that were encoded a moment ago can be read.
            Arc::make_mut(&mut active.run).record_digest = digest_after(digest, events).ok();
        }
    }

    fn change_run(
        &mut self,
        run_no: u64,
        changes: Vec<crate::record::RunChange>,
        events: Option<run_change::EventSpan>,
        measured: Vec<MeasuredUse>,
        turn: Option<ConversationKey>,
    ) -> Option<Arc<Run>> {
        let active = self.memory.active.get_mut(&run_no)?;
        if changes.is_empty() && events.is_none() {
            return Some(Arc::clone(&active.run));
        }
        run_change::apply(Arc::make_mut(&mut active.run), changes, events, measured);
        let turn = turn.map(|key| {
            let turn = self.memory.next_turn(&key);
            self.outcome.turns.push(key);
            turn
        });
        let active = self.memory.active.get_mut(&run_no)?;
        if turn.is_some() {
            Arc::make_mut(&mut active.run).turn = turn;
        }
        if !active.dirty {
            active.dirty = true;
            self.dirty.push(run_no);
        }
        let run = Arc::clone(&active.run);
        if run.status.is_terminal() {
            self.memory.active.remove(&run_no);
            self.ended.insert(run_no, Arc::clone(&run));
        }
        Some(run)
    }
}

impl Batch<'_> {
    /// Changes the park row of a run that is in memory, and puts a new row where the write has one.
    fn put_park(&mut self, run_no: u64, change: ParkChange, park: Option<NewPark>) {
        let Some(active) = self.memory.active.get_mut(&run_no) else { return };
        let old = if change == ParkChange::Keep { None } else { active.park.take() };
        if let Some(old) = &old {
            self.rows.delete(Table::Parked, &number(run_no));
            self.rows.delete(Table::Wakes, &pair(old.wake_at, run_no));
            for key in &old.keys {
                self.rows.delete(Table::Waits, &wait_key(key, run_no));
            }
            self.outcome.parked -= 1;
        }
        let park = match (park, old, change) {
            (Some(NewPark { park, row }), ..) => {
                self.rows.put(Table::Parked, &number(run_no), &row);
                park
            }
            (None, Some(mut park), ParkChange::Due(at)) => {
                park.wake_at = at;
                self.rows.put_infallible(Table::Parked, &number(run_no), &park);
                park
            }
            _ => return,
        };
        self.rows.put(Table::Wakes, &pair(park.wake_at, run_no), &[]);
        for key in &park.keys {
            self.rows.put(Table::Waits, &wait_key(key, run_no), &[]);
        }
        active.park = Some(park);
        self.memory.leaves(run_no);
        self.outcome.parked += 1;
    }
}
