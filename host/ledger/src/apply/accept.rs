//! A new event and its runs, and runs that are added to an event which is already there.

use std::{collections::HashSet, sync::Arc};

use agent_host_protocol::{EventId, RecordDigest, Run, Timestamp, grant::ConversationKey};

use crate::{
    apply::{Batch, batch::WithRun, memory::ActiveRun, value::Plan},
    error::LedgerError,
    operation::{AcceptAnswer, AcceptOperation, AddRunOperation, ListedEvent},
    record::{Branch, Idempotency},
    rows::{
        Branches, ContextRow, ConversationRow, EventRow, IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, PartsRow, Rows,
        Table, changes, digest_after, encode, json, malformed, number, pair, read_number,
    },
};

/// Outcome of the check of a new event.
pub(crate) enum New {
    /// The same request came before.
    Repeated(IdempotencyRow),
    /// The event is accepted, with these changes of values, and with the branches that its conversation has then, where they
    /// change.
    Allowed(Plan, Option<Branches>),
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
        for item in &accept.transcript {
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
        let branches = match (&accept.branch, &accept.listed) {
            (Some(branch), Some(listed)) => Some(self.check_branch(branch, &listed.key)?),
            _ => None,
        };
        let plan = self.plan(&accept.values)?;
        self.ids.extend(seen);
        self.memory.event_ids.add(accept.event_id.to_bytes());
        Ok(New::Allowed(plan, branches))
    }

    /// Checks a branch, and returns what its conversation has left out then. The conversation was loaded.
    fn check_branch(&mut self, branch: &Branch, key: &ConversationKey) -> Result<Branches, LedgerError> {
        let conflict = |id: EventId| LedgerError::Conflict { key: format!("event {id}") };
        let no = self.memory.conversation_no(key).ok_or_else(|| conflict(branch.from))?;
        let mut branches = match self.branches.get(&no) {
            Some(branches) => branches.clone(),
            None => self.reader.branches(no)?,
        };
        let mut present = |id: EventId| -> Result<u64, LedgerError> {
            let (event_no, row) = self.event_row(id)?;
            let is_listed = EventRow::read(event_no, &row)?.0.conversation_no == Some(no)
                || self.reader.has(Table::ConversationEvents, &pair(no, event_no))?;
            if is_listed && !branches.removes(event_no) { Ok(event_no) } else { Err(conflict(id)) }
        };
        let first = present(branch.from)?;
        let end = match branch.until {
            Some(until) => present(until)?,
            None => self.memory.next_event_no,
        };
        let last = end.checked_sub(1).filter(|last| *last >= first).ok_or_else(|| conflict(branch.from))?;
        branches.cut(first, last)?;
        Ok(branches)
    }

    fn idempotency(&mut self, idempotency: &Idempotency, now: Timestamp) -> Result<Option<IdempotencyRow>, LedgerError> {
        let row = match self.keys.get(&idempotency.key) {
            Some(row) => Some(row.clone()),
            None => self.reader.get(Table::Idempotency, idempotency.key.as_bytes(), |bytes| json(Table::Idempotency, bytes))?,
        };
        Ok(row.filter(|row| now.saturating_sub(row.at) < IDEMPOTENCY_TTL_MS))
    }

    pub(crate) fn put_accept(&mut self, accept: &mut AcceptOperation, plan: Plan, branches: Option<Branches>) -> AcceptAnswer {
        let event_no = self.memory.next_event_no;
        let first_run_no = self.memory.next_run_no;
        self.memory.next_event_no += 1;
        for (new, run_no) in accept.runs.iter_mut().zip(first_run_no..) {
            self.put_new_run(run_no, Arc::clone(&new.run), &new.row, &new.terms);
            self.put_events(run_no, std::mem::take(&mut new.events));
        }
        let listed = accept.listed.take();
        let mut begins = None;
        let conversation_no = listed.as_ref().map(|ListedEvent { key, .. }| {
            let (conversation, new) = self.memory.conversation(key);
            if new {
                // Strings and numbers, which JSON always takes.
                let row = encode(&ConversationRow { no: conversation.no, key: key.clone() }).unwrap_or_default();
                begins = Some((key.index(), row));
            }
            conversation.no
        });
        if let (Some(no), Some(branches)) = (conversation_no, branches) {
            self.rows.put_infallible(Table::Entries, Branches::key(no).as_bytes(), &branches);
            self.branches.insert(no, branches);
        }
        let mut transcript_seq = None;
        for item in std::mem::take(&mut accept.transcript) {
            transcript_seq = Some(self.put_item(&item));
        }
        for artifact in std::mem::take(&mut accept.artifacts) {
            self.put_artifact(artifact);
        }
        self.refer_to(std::mem::take(&mut accept.refers_to));
        self.rows.append(&accept.entries);
        self.carry_out(plan);
        let row = EventRow {
            event_no,
            event_id: accept.event_id,
            conversation_no,
            transcript_seq,
            event_type: listed.as_ref().map_or("", |listed| &listed.event_type),
            event: &accept.event,
            begins: begins.as_ref().map(|(index, row)| (index.as_bytes(), row.as_slice())),
        };
        self.rows.put_with(Table::Events, &number(event_no), |bytes| {
            row.write(bytes, |runs| {
                for (new, run_no) in accept.runs.iter().zip(first_run_no..) {
                    runs.push(run_no, new.run.run_id, |bytes| new.terms.write(bytes));
                }
            });
        });
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

    fn check_add_run(&mut self, new: &mut AddRunOperation) -> Result<WithRun, LedgerError> {
        let id = new.run.run_id.to_bytes();
        if self.ids.contains(&id) || self.memory.run_ids.has(&id, self.reader)? {
            return Err(LedgerError::invalid("this id of a run is already in the ledger: make a new one"));
        }
        let (event_no, old) = self.event_row(new.run.event_id)?;
        let (event, runs) = EventRow::read(event_no, &old)?;
        let digest = digest_after(RecordDigest::begin(new.run.run_id, event.event), &new.events)?;
        Arc::make_mut(&mut new.run).record_digest = Some(digest);
        let _ = new.digest.set(digest);
        new.row = encode(&*new.run)?;
        let mut row = Vec::with_capacity(old.len() + new.terms.bytes());
        // The conversation has its row.
        EventRow { begins: None, ..event }.write(&mut row, |to| {
            runs.iter().for_each(|run| to.keep(run));
            to.push(self.memory.next_run_no, new.run.run_id, |bytes| new.terms.write(bytes));
        });
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
fn accepted(rows: &Rows, id: EventId) -> Option<(u64, Vec<u8>)> {
    changes(rows.bytes()).find_map(|change| {
        let change = change.ok().filter(|change| change.table == Table::Events)?;
        let (event_no, row) = (read_number(change.key)?, change.value?);
        let (event, _) = EventRow::read(event_no, row).ok()?;
        (event.event_id == id).then(|| (event_no, row.to_vec()))
    })
}

impl Batch<'_> {
    /// The number and the row of an event, including uncommitted ones of this batch.
    pub(crate) fn event_row(&mut self, id: EventId) -> Result<(u64, Vec<u8>), LedgerError> {
        let key = id.to_bytes();
        if let Some(WithRun { event_no, row }) = self.forked.get(&key) {
            return Ok((*event_no, row.clone()));
        }
        if self.ids.contains(&key)
            && let Some(found) = accepted(self.rows, id)
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

    /// A run that is new. The row of its event has its terms, and lists it.
    fn put_new_run(&mut self, run_no: u64, run: Arc<Run>, row: &[u8], terms: &PartsRow) {
        self.rows.put(Table::Runs, &number(run_no), row);
        self.put_shared(terms);
        self.memory.run_ids.add(run.run_id.to_bytes());
        self.memory.active.insert(run_no, ActiveRun::new(run));
        self.memory.next_run_no = run_no + 1;
    }

    /// Puts the context of a run.
    pub(crate) fn put_context(&mut self, run_no: u64, context: &ContextRow) {
        match context {
            ContextRow::Whole(text) => self.rows.put(Table::Contexts, &number(run_no), text.get().as_bytes()),
            ContextRow::Parts(parts) => {
                self.put_shared(parts);
                let mut row = Vec::with_capacity(parts.bytes());
                parts.write(&mut row);
                self.parts_bytes += row.len();
                self.parts.entry(run_no).or_default().context = Some(row);
            }
        }
    }

    /// Puts the part that a run shares with others, where the ledger does not have it.
    fn put_shared(&mut self, parts: &PartsRow) {
        if self.memory.shared_parts.get(&parts.digest).is_none() {
            // An existing part has the same digest and so the same bytes.
            self.rows.put(Table::SharedParts, &parts.digest, parts.shared());
            self.memory.shared_parts.insert(parts.digest, ());
        }
    }
}
