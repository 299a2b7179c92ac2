//! A new event and its runs, and runs that are added to an event which is already there.

use std::{collections::HashSet, sync::Arc};

use agent_host_protocol::{EventId, Run, Timestamp};

use crate::{
    apply::{Batch, batch::WithRun, memory::ActiveRun, value::Plan},
    error::LedgerError,
    operation::{AcceptAnswer, AcceptOperation, AddRunOperation, ListedEvent},
    record::Idempotency,
    rows::{
        ContextRow, EventRow, IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, PartsRow, Rows, Table, changes, json,
        malformed, number, pair, read_number, write_event_row,
    },
};

/// Outcome of the check of a new event.
pub(crate) enum New {
    /// The same request came before.
    Repeated(IdempotencyRow),
    /// The event is accepted, with these changes of values.
    Allowed(Plan),
}

impl Batch<'_> {
    /// Checks an event, and returns the changes of values.
    pub(crate) fn check_accept(&mut self, accept: &AcceptOperation) -> Result<New, LedgerError> {
        if let Some(idempotency) = &accept.idempotency
            && let Some(row) = self.idempotency(idempotency, accept.received_at)?
        {
            if row.body_hash == idempotency.body_hash {
                return Ok(New::Repeated(row));
            }
            return Err(LedgerError::IdempotencyConflict { event_id: row.event_id });
        }
        let event = (&self.memory.event_ids, accept.event_id.to_bytes());
        let runs = accept.runs.iter().map(|new| (&self.memory.run_ids, new.run.run_id.to_bytes()));
        let mut seen = HashSet::with_capacity(accept.runs.len() + 1);
        for (taken, id) in std::iter::once(event).chain(runs) {
            if self.ids.contains(&id) || !seen.insert(id) || taken.has(&id, self.reader)? {
                return Err(LedgerError::invalid("this id of an event or a run is already in the ledger: make a new one"));
            }
        }
        if let Some(item) = &accept.transcript {
            self.load_conversation(&item.key)?;
        }
        if let Some(listed) = &accept.listed {
            self.load_conversation(&listed.key)?;
        }
        self.check_artifacts(&accept.artifacts)?;
        for id in &accept.refers_to {
            let comes_along = accept.artifacts.iter().any(|artifact| artifact.id == *id);
            if !comes_along && !self.has_artifact(id)? {
                return Err(LedgerError::NotFound(format!("artifact `{id}`: upload it (again) first")));
            }
        }
        let plan = self.plan(&accept.values)?;
        self.ids.extend(seen);
        self.memory.event_ids.add(accept.event_id.to_bytes());
        Ok(New::Allowed(plan))
    }

    fn idempotency(&mut self, idempotency: &Idempotency, now: Timestamp) -> Result<Option<IdempotencyRow>, LedgerError> {
        let row = match self.keys.get(&idempotency.key) {
            Some(row) => Some(row.clone()),
            None => self.reader.get(Table::Idempotency, idempotency.key.as_bytes(), |bytes| json(Table::Idempotency, bytes))?,
        };
        Ok(row.filter(|row| now.saturating_sub(row.at) < IDEMPOTENCY_TTL_MS))
    }

    pub(crate) fn put_accept(&mut self, accept: &mut AcceptOperation, plan: Plan) -> AcceptAnswer {
        let event_no = self.memory.next_event_no;
        let first_run_no = self.memory.next_run_no;
        self.memory.next_event_no += 1;
        self.rows.put(Table::EventIds, &accept.event_id.to_bytes(), &number(event_no));
        let mut runs = Vec::with_capacity(accept.runs.len());
        for (new, run_no) in std::mem::take(&mut accept.runs).into_iter().zip(first_run_no..) {
            runs.push((run_no, new.run.run_id));
            self.put_new_run(run_no, new.run, &new.row, &new.terms);
        }
        let transcript_seq = accept.transcript.take().map(|item| self.put_item(&item));
        if let Some(ListedEvent { key, event_type }) = accept.listed.take() {
            let (conversation, new) = self.memory.conversation(&key);
            self.put_conversation(&key, conversation.no, new);
            self.rows.put(Table::ConversationEvents, &pair(conversation.no, event_no), event_type.as_bytes());
        }
        for artifact in std::mem::take(&mut accept.artifacts) {
            self.put_artifact(artifact);
        }
        self.refer_to(std::mem::take(&mut accept.refers_to));
        self.rows.append(&accept.entries);
        self.carry_out(plan);
        self.rows
            .put_with(Table::Events, &number(event_no), |bytes| write_event_row(bytes, &runs, transcript_seq, &accept.event));
        if let Some(Idempotency { key, body_hash }) = accept.idempotency.take() {
            let row = IdempotencyRow { body_hash, event_id: accept.event_id, event_no, at: accept.received_at };
            self.rows.put_infallible(Table::Idempotency, key.as_bytes(), &row);
            let age = IdempotencyAgeRow { key: key.as_str().into(), at: accept.received_at };
            self.rows.put_infallible(Table::IdempotencyAge, &number(event_no), &age);
            self.keys.insert(key, row);
        }
        AcceptAnswer::New { event_no, first_run_no, transcript_seq }
    }
}

impl Batch<'_> {
    pub(crate) fn add_run(&mut self, new: &mut AddRunOperation) -> Result<u64, LedgerError> {
        let with_run = self.check_add_run(new)?;
        Ok(self.put_add_run(new, with_run))
    }

    fn check_add_run(&mut self, new: &AddRunOperation) -> Result<WithRun, LedgerError> {
        let id = new.run.run_id.to_bytes();
        if self.ids.contains(&id) || self.memory.run_ids.has(&id, self.reader)? {
            return Err(LedgerError::invalid("this id of a run is already in the ledger: make a new one"));
        }
        let (event_no, old) = self.event_row(new.run.event_id)?;
        let EventRow { mut runs, transcript_seq, event } = json(Table::Events, &old)?;
        runs.push((self.memory.next_run_no, new.run.run_id));
        let mut row = Vec::with_capacity(old.len() + 64);
        write_event_row(&mut row, &runs, transcript_seq, event.get().as_bytes());
        Ok(WithRun { event_no, row })
    }

    /// Adds a run that [`Self::check_add_run`] has allowed; gives its number.
    fn put_add_run(&mut self, new: &mut AddRunOperation, with_run: WithRun) -> u64 {
        let run_no = self.memory.next_run_no;
        self.rows.put(Table::Events, &number(with_run.event_no), &with_run.row);
        self.forked.insert(new.run.event_id.to_bytes(), with_run);
        self.ids.insert(new.run.run_id.to_bytes());
        self.put_new_run(run_no, Arc::clone(&new.run), &new.row, &new.terms);
        if let Some(context) = &new.context {
            self.put_context(run_no, context);
        }
        self.put_events(run_no, std::mem::take(&mut new.events));
        self.put_journal(run_no, &Rows::default(), new.journal.take());
        self.rows.append(&new.entries);
        run_no
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
    /// The number and the row of an event, including uncommitted ones of this batch.
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
        let reader = self.reader;
        let event_no = reader.number(Table::EventIds, &key)?.ok_or_else(|| LedgerError::NotFound(format!("event {id}")))?;
        let row = reader.get(Table::Events, &number(event_no), |row| Ok(row.to_vec()))?;
        Ok((event_no, row.ok_or_else(|| malformed(Table::EventIds))?))
    }

    /// Puts another row in the place of that of an event.
    pub(crate) fn put_event_row(&mut self, id: EventId, event_no: u64, row: Vec<u8>) {
        self.rows.put(Table::Events, &number(event_no), &row);
        self.forked.insert(id.to_bytes(), WithRun { event_no, row });
    }

    /// A run that is new, in all tables that every run is in.
    fn put_new_run(&mut self, run_no: u64, run: Arc<Run>, row: &[u8], terms: &PartsRow) {
        let key = number(run_no);
        self.rows.put(Table::Runs, &key, row);
        self.rows.put(Table::RunIds, &run.run_id.to_bytes(), &key);
        self.put_parts(Table::Terms, run_no, terms);
        self.memory.run_ids.add(run.run_id.to_bytes());
        self.memory.active.insert(run_no, ActiveRun::new(run));
        self.memory.next_run_no = run_no + 1;
    }

    /// Puts the context of a run.
    pub(crate) fn put_context(&mut self, run_no: u64, context: &ContextRow) {
        match context {
            ContextRow::Whole(text) => self.rows.put(Table::Contexts, &number(run_no), text.get().as_bytes()),
            ContextRow::Parts(parts) => self.put_parts(Table::Contexts, run_no, parts),
        }
    }

    fn put_parts(&mut self, table: Table, run_no: u64, parts: &PartsRow) {
        if self.memory.shared_parts.get(&parts.digest).is_none() {
            // An existing part has the same digest and so the same bytes.
            self.rows.put(Table::SharedParts, &parts.digest, parts.shared());
            self.memory.shared_parts.insert(parts.digest, ());
        }
        self.rows.put_with(table, &number(run_no), |value| parts.write(value));
    }
}
