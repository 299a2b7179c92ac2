//! Items of transcripts, conversations and audit records; pieces of a forgotten conversation.

use std::collections::HashSet;

use agent_host_protocol::{EventId, Run, grant::ConversationKey};

use crate::{
    apply::Batch,
    error::LedgerError,
    operation::{ForgetConversationOperation, ItemRow, Piece, RunPart},
    rows::{
        AuditRow, ConversationRow, EventRow, PackedItems, Reader, Table, delete_segment, encode, forgotten_event, forgotten_run,
        json, malformed, number, pair, read_number,
    },
};

impl Batch<'_> {
    pub(crate) fn put_item(&mut self, item: &ItemRow) -> u64 {
        let (place, new) = self.memory.place(&item.key);
        self.put_conversation(&item.key, place.no, new);
        self.rows.put(Table::Transcript, &pair(place.no, place.last_seq), &item.row);
        place.last_seq
    }

    pub(crate) fn put_conversation(&mut self, key: &ConversationKey, no: u64, new: bool) {
        if new {
            self.rows.put_infallible(Table::Conversations, key.index().as_bytes(), &ConversationRow { no, key: key.clone() });
        }
    }

    pub(crate) fn put_audit(&mut self, records: Vec<AuditRow>) {
        for record in records {
            let audit_no = self.memory.next_audit_no;
            self.memory.next_audit_no += 1;
            if let Some(full) = self.audit.take_if(|row| !row.has_room(record.bytes())) {
                full.put(self.rows, Table::Audit, &number(full.first));
            }
            record.push_to(self.audit.get_or_insert_with(|| PackedItems::new(audit_no)));
        }
    }
}

fn is_in(run: &Run, key: &ConversationKey) -> bool {
    let same = |id: &Option<String>, wanted: &str| id.as_deref().unwrap_or_default() == wanted;
    run.conversation_id.as_deref() == Some(key.conversation())
        && same(&run.thread_id, key.thread())
        && same(&run.workspace_id, key.workspace())
}

impl Batch<'_> {
    /// Deletes a piece of a conversation; gives how many things it was.
    pub(crate) fn forget_conversation(&mut self, operation: &ForgetConversationOperation) -> Result<u64, LedgerError> {
        match &operation.piece {
            Piece::Values { conversation, waits, values } => {
                self.has_no_active_run(conversation, waits)?;
                let plan = self.plan(values)?;
                self.carry_out(plan);
                Ok(values.len() as u64)
            }
            Piece::Items { no, first, last, end } => {
                (*first..=*last).for_each(|seq| self.rows.delete(Table::Transcript, &pair(*no, seq)));
                if let Some(end) = end {
                    self.rows.put(Table::Transcript, &pair(*no, *last), end);
                }
                Ok(last - first + 1)
            }
            Piece::Artifacts(records) => {
                let mut forgotten = 0;
                for record in records {
                    // This batch may have collected the artifact already.
                    if !self.is_forgotten_artifact(&record.artifact_id) {
                        self.delete_artifact(record);
                        forgotten += 1;
                    }
                }
                Ok(forgotten)
            }
            Piece::Runs(parts) => self.forget_runs(parts),
            Piece::Events(ids) => self.forget_events(ids),
        }
    }

    fn has_no_active_run(&mut self, key: &ConversationKey, waits: &str) -> Result<(), LedgerError> {
        if let Some(active) = self.memory.active.values().find(|active| is_in(&active.run, key)) {
            return Err(LedgerError::Active { run_id: active.run.run_id });
        }
        let reader = self.reader;
        match reader.waits_for(waits)? {
            Some(run_no) => {
                let run = reader.run(run_no)?.ok_or_else(|| malformed(Table::Waits))?;
                Err(LedgerError::Active { run_id: run.run_id })
            }
            None => Ok(()),
        }
    }

    fn forget_runs(&mut self, parts: &[RunPart]) -> Result<u64, LedgerError> {
        let mut ended = Vec::with_capacity(parts.len());
        for part in parts {
            let is_active = self.memory.active.contains_key(&part.run_no);
            let run = self.reader.run(part.run_no)?.filter(|run| !is_active && run.status.is_terminal());
            let run = forgotten_run(run.ok_or(LedgerError::Active { run_id: part.run_id })?);
            self.outcome.turns.extend(run.conversation_key());
            ended.push((encode(&run)?, run.last_sequence, part));
        }
        let mut forgotten = 0;
        for (row, last, part) in ended {
            let run_no = part.run_no;
            for (first, digests) in &part.segments {
                delete_segment(self.rows, run_no, *first, digests);
            }
            part.events.iter().for_each(|sequence| self.rows.delete(Table::RunEvents, &pair(run_no, *sequence)));
            let Some(end) = &part.end else { continue };
            end.put(self.rows, Table::RunEvents, &pair(run_no, last));
            self.rows.delete(Table::Contexts, &number(run_no));
            self.rows.delete(Table::RunEnds, &number(run_no));
            self.rows.put(Table::Runs, &number(run_no), &row);
            self.outcome.touched.push(run_no);
            forgotten += 1;
        }
        Ok(forgotten)
    }

    fn forget_events(&mut self, ids: &[EventId]) -> Result<u64, LedgerError> {
        let mut rows = Vec::with_capacity(ids.len());
        let mut seen = HashSet::with_capacity(ids.len());
        for id in ids.iter().filter(|id| seen.insert(**id)) {
            let (event_no, old) = self.event_row(*id)?;
            let (event, runs) = EventRow::read(event_no, &old)?;
            // A run that was made for it meanwhile needs it.
            if let Some(run) = runs.iter().find(|run| self.memory.active.contains_key(&run.run_no)) {
                return Err(LedgerError::Active { run_id: run.id });
            }
            let forgotten = encode(&forgotten_event(json(Table::Events, event.event)?))?;
            let mut row = Vec::with_capacity(old.len());
            // The conversation has its row.
            let event = EventRow { event: &forgotten, begins: None, ..event };
            event.write(&mut row, |to| runs.iter().for_each(|run| to.keep(run)));
            rows.push((*id, event_no, row));
        }
        let forgotten = rows.len() as u64;
        rows.into_iter().for_each(|(id, event_no, row)| self.put_event_row(id, event_no, row));
        Ok(forgotten)
    }
}

impl Reader {
    /// The parked run that waits for exactly this key, if any.
    fn waits_for(&self, key: &str) -> Result<Option<u64>, LedgerError> {
        let rows = self.table(Table::Waits)?;
        for row in rows.range(key.as_bytes()..)? {
            let row = row?.0;
            let Some(rest) = row.value().strip_prefix(key.as_bytes()) else { return Ok(None) };
            if let Some(run_no) = read_number(rest) {
                return Ok(Some(run_no));
            }
        }
        Ok(None)
    }
}
