//! One group commit in the making: operations are carried out one after the other, each whole or not at all.
//!
//! Each operation first reads and checks all that it needs, and only then changes anything, so a refusal
//! leaves no trace. Answers are kept until the batch is durable.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use agent_host_protocol::{Run, Timestamp, grant::ConversationKey};
use redb::Database;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::{
    artifacts::{ArtifactOperation, NewArtifact},
    blobs::{Pin, parse_hex},
    entries::EntriesOperation,
    error::LedgerError,
    fork::{AddRunOperation, WithRun},
    garbage::ForgetOperation,
    life,
    memory::Memory,
    operation::{
        AcceptAnswer, AcceptOperation, AuditRow, ConversationRow, IdempotencyAgeRow, IdempotencyRow, ItemRow, ListedEvent,
        Operation, WriteOperation,
    },
    overlay::Admitted,
    prune::Pruned,
    read::{Reader, json},
    record::{ArtifactRecord, Idempotency},
    rows::Rows,
    schema::{BY_ARTIFACT, Digest, MAX_KEY_BYTES, Table, audit_run, blob_ref, expiry, number, pair},
    values::{Plan, ValueRow, Values},
};

/// A key is remembered so long: clients repeat requests within minutes, queues within a day.
pub(crate) const IDEMPOTENCY_TTL_MS: u64 = 24 * 60 * 60 * 1000;

pub(crate) struct Batch<'a> {
    pub(crate) memory: &'a mut Memory,
    database: &'a Database,
    /// Opened by the first operation that has to look something up.
    reader: Option<Reader>,
    pub(crate) rows: &'a mut Rows,
    /// Runs whose row is to be written when the batch is finished: several writes to a run cost one row.
    dirty: Vec<u64>,
    ended: FxHashMap<u64, Arc<Run>>,
    /// Ids and keys of this batch, which the reader does not see yet.
    pub(crate) ids: HashSet<[u8; 16]>,
    keys: HashMap<String, IdempotencyRow>,
    /// State and storage that this batch has changed.
    pub(crate) values: Values,
    /// Artifacts of this batch: true where it adds them, false where it forgets them.
    artifacts: HashMap<String, bool>,
    /// Artifacts that this batch refers to.
    referenced: HashSet<String>,
    /// Segments that this batch has added, with their blobs.
    pub(crate) journal: FxHashMap<u64, Vec<(u64, Vec<Digest>)>>,
    /// Segments that this batch has pruned.
    pub(crate) pruned: HashSet<(u64, u64)>,
    /// Rows of events that this batch has added runs to.
    pub(crate) forked: HashMap<[u8; 16], WithRun>,
    pub(crate) outcome: Outcome,
}

/// What is to be done when the batch is durable, or is not.
#[derive(Default)]
pub(crate) struct Outcome {
    answers: Vec<Answer>,
    /// Runs that changed.
    pub(crate) touched: Vec<u64>,
    /// State to take from the overlay, whether the batch became durable or not.
    pub(crate) admitted: Vec<Admitted>,
    /// Blobs that the batch refers to. Let go when the answers are given.
    pub(crate) pins: Vec<Arc<Pin>>,
    /// How many more runs are parked.
    pub(crate) parked: i64,
}

/// An answer and who waits for it. Refusals wait too: who is refused must not find the refused state any more.
enum Answer {
    Accept(oneshot::Sender<Result<AcceptAnswer, LedgerError>>, Result<AcceptAnswer, LedgerError>),
    Write(oneshot::Sender<Result<Arc<Run>, LedgerError>>, Result<Arc<Run>, LedgerError>),
    Count(oneshot::Sender<Result<u64, LedgerError>>, Result<u64, LedgerError>),
    Pruned(oneshot::Sender<Result<Pruned, LedgerError>>, Result<Pruned, LedgerError>),
}

impl Outcome {
    /// Answers everyone. Who has stopped waiting is no error.
    pub(crate) fn answer(self, durable: Result<(), &LedgerError>) {
        fn known<T>(answer: Result<T, LedgerError>, durable: Result<(), &LedgerError>) -> Result<T, LedgerError> {
            answer.and_then(|answer| durable.map(|()| answer).map_err(Clone::clone))
        }
        for answer in self.answers {
            match answer {
                Answer::Accept(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Write(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Count(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Pruned(reply, answer) => drop(reply.send(known(answer, durable))),
            }
        }
    }
}

/// What becomes of an event.
enum New {
    /// The same request came before.
    Repeated(IdempotencyRow),
    /// It is accepted, and this becomes of values.
    Allowed(Plan),
}

/// What a write does, when all of it is known to be allowed.
#[derive(Default)]
struct Checked {
    /// The run, where it has ended and only takes audit records.
    ended: Option<Arc<Run>>,
    /// What becomes of values.
    plan: Plan,
    /// What is deleted of its journal.
    journal: Rows,
}

impl<'a> Batch<'a> {
    /// `rows` is empty and receives the changes.
    pub(crate) fn new(memory: &'a mut Memory, database: &'a Database, rows: &'a mut Rows) -> Self {
        Self {
            memory,
            database,
            reader: None,
            rows,
            dirty: Vec::new(),
            ended: FxHashMap::default(),
            ids: HashSet::new(),
            keys: HashMap::new(),
            values: Values::default(),
            artifacts: HashMap::new(),
            referenced: HashSet::new(),
            journal: FxHashMap::default(),
            pruned: HashSet::new(),
            forked: HashMap::new(),
            outcome: Outcome::default(),
        }
    }

    /// Bytes of the changes so far.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes().len()
    }

    /// Carries out one operation, or notes why not.
    pub(crate) fn add(&mut self, operation: Operation) {
        match operation {
            Operation::Audit(records) => self.put_audit(records),
            Operation::Accept(mut operation) => {
                self.outcome.admitted.extend(operation.state.take());
                let answer = self.check_accept(&operation).map(|checked| match checked {
                    New::Repeated(row) => AcceptAnswer::Repeated { event_id: row.event_id },
                    New::Allowed(plan) => self.put_accept(&mut operation, plan),
                });
                self.outcome.answers.push(Answer::Accept(operation.reply, answer));
            }
            Operation::Write(mut operation) => {
                self.outcome.admitted.extend(operation.state.take());
                match self.check_write(&operation) {
                    Ok(checked) => self.put_write(*operation, checked),
                    Err(error) => self.outcome.answers.push(Answer::Write(operation.reply, Err(error))),
                }
            }
            Operation::Artifact(operation) => {
                let ArtifactOperation { artifact, reply } = *operation;
                let answer = self.check_artifacts(std::slice::from_ref(&artifact));
                let answer = answer.map(|()| {
                    self.put_artifact(artifact);
                    1
                });
                self.outcome.answers.push(Answer::Count(reply, answer));
            }
            Operation::Forget(operation) => {
                let answer = self.forget(&operation);
                self.outcome.answers.push(Answer::Count(operation.reply, answer));
            }
            Operation::ForgetConversation(mut operation) => {
                self.outcome.admitted.extend(operation.state.take());
                let answer = self.forget_conversation(&operation);
                self.outcome.answers.push(Answer::Count(operation.reply, answer));
            }
            Operation::AddRun(mut operation) => {
                let answer = self.add_run(&mut operation);
                self.outcome.answers.push(Answer::Count(operation.reply, answer));
            }
            Operation::Entries(EntriesOperation { rows, reply }) => {
                self.rows.append(&rows);
                self.outcome.answers.push(Answer::Count(reply, Ok(rows.count())));
            }
            Operation::Prune(operation) => {
                let answer = self.prune(&operation);
                self.outcome.answers.push(Answer::Pruned(operation.reply, answer));
            }
        }
    }

    /// Writes the rows of the runs that changed. No operation follows.
    ///
    /// The second is an error where a row cannot be encoded; then no row of the batch may be written.
    pub(crate) fn finish(mut self) -> (Outcome, Result<(), LedgerError>) {
        let mut result = Ok(());
        for run_no in &self.dirty {
            let run = match self.memory.active.get_mut(run_no) {
                Some(active) => {
                    active.dirty = false;
                    &active.run
                }
                None => match self.ended.get(run_no) {
                    Some(run) => run,
                    None => continue,
                },
            };
            result = result.and_then(|()| self.rows.put_json(Table::Runs, &number(*run_no), &**run));
        }
        self.outcome.touched.sort_unstable();
        self.outcome.touched.dedup();
        (self.outcome, result)
    }

    pub(crate) fn reader(&mut self) -> Result<&Reader, LedgerError> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::new(self.database)?,
        };
        Ok(self.reader.insert(reader))
    }

    fn add_run(&mut self, new: &mut AddRunOperation) -> Result<u64, LedgerError> {
        let with_run = self.check_add_run(new)?;
        Ok(self.put_add_run(new, with_run))
    }

    fn load_conversation(&mut self, index: &str) -> Result<(), LedgerError> {
        self.reader()?;
        match &self.reader {
            Some(reader) => self.memory.load_conversation(index, reader),
            None => Ok(()),
        }
    }

    pub(crate) fn plan(&mut self, writes: &[ValueRow]) -> Result<Plan, LedgerError> {
        if writes.is_empty() {
            return Ok(Plan::default());
        }
        self.reader()?;
        match &self.reader {
            Some(reader) => self.values.plan(writes, reader),
            None => Err(LedgerError::damaged("the store cannot be read")),
        }
    }

    /// Whether an event can be accepted, and what becomes of values then.
    fn check_accept(&mut self, accept: &AcceptOperation) -> Result<New, LedgerError> {
        if let Some(idempotency) = &accept.idempotency
            && let Some(row) = self.idempotency(idempotency, accept.received_at)?
        {
            if row.body_hash == idempotency.body_hash {
                return Ok(New::Repeated(row));
            }
            return Err(LedgerError::IdempotencyConflict { event_id: row.event_id });
        }
        let event = (Table::EventIds, accept.event_id.to_bytes());
        let runs = accept.runs.iter().map(|new| (Table::RunIds, new.run.run_id.to_bytes()));
        let mut seen = HashSet::with_capacity(accept.runs.len() + 1);
        for (table, id) in std::iter::once(event).chain(runs) {
            if self.ids.contains(&id) || !seen.insert(id) || self.reader()?.has(table, &id)? {
                return Err(LedgerError::invalid("this id of an event or a run is already in the ledger: make a new one"));
            }
        }
        if let Some(item) = &accept.transcript {
            self.load_conversation(&item.index)?;
        }
        if let Some(listed) = &accept.listed {
            self.load_conversation(&listed.index)?;
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
        Ok(New::Allowed(plan))
    }

    fn idempotency(&mut self, idempotency: &Idempotency, now: Timestamp) -> Result<Option<IdempotencyRow>, LedgerError> {
        let row = match self.keys.get(&idempotency.key) {
            Some(row) => Some(row.clone()),
            None => {
                self.reader()?.get(Table::Idempotency, idempotency.key.as_bytes(), |bytes| json(Table::Idempotency, bytes))?
            }
        };
        Ok(row.filter(|row| now.saturating_sub(row.at) < IDEMPOTENCY_TTL_MS))
    }

    fn put_accept(&mut self, accept: &mut AcceptOperation, plan: Plan) -> AcceptAnswer {
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
        if let Some(ListedEvent { index, key, event_type }) = accept.listed.take() {
            let (conversation, new) = self.memory.conversation(&index);
            self.put_conversation(&index, &key, conversation.no, new);
            self.rows.put(Table::ConversationEvents, &pair(conversation.no, event_no), event_type.as_bytes());
        }
        for artifact in std::mem::take(&mut accept.artifacts) {
            self.put_artifact(artifact);
        }
        self.refer_to(std::mem::take(&mut accept.refers_to));
        self.rows.append(&accept.entries);
        self.values.carry_out(plan, self.rows);
        self.rows
            .put_with(Table::Events, &number(event_no), |bytes| write_event_row(bytes, &runs, transcript_seq, &accept.event));
        if let Some(Idempotency { key, body_hash }) = accept.idempotency.take() {
            let row = IdempotencyRow { body_hash, event_id: accept.event_id, event_no, at: accept.received_at };
            self.put_infallible(Table::Idempotency, key.as_bytes(), &row);
            let age = IdempotencyAgeRow { key: key.as_str().into(), at: accept.received_at };
            self.put_infallible(Table::IdempotencyAge, &number(event_no), &age);
            self.keys.insert(key, row);
        }
        AcceptAnswer::New { event_no, first_run_no, transcript_seq }
    }

    /// A row of strings and numbers, which JSON always takes.
    fn put_infallible(&mut self, table: Table, key: &[u8], row: &impl serde::Serialize) {
        let result = self.rows.put_json(table, key, row);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    fn put_item(&mut self, item: &ItemRow) -> u64 {
        let (place, new) = self.memory.place(&item.index);
        self.put_conversation(&item.index, &item.key, place.no, new);
        self.rows.put(Table::Transcript, &pair(place.no, place.last_seq), &item.row);
        place.last_seq
    }

    fn put_conversation(&mut self, index: &str, key: &ConversationKey, no: u64, new: bool) {
        if new {
            self.put_infallible(Table::Conversations, index.as_bytes(), &ConversationRow { no, key: key.clone() });
        }
    }

    fn has_artifact(&mut self, id: &str) -> Result<bool, LedgerError> {
        match self.artifacts.get(id) {
            Some(there) => Ok(*there),
            None if id.len() > MAX_KEY_BYTES => Ok(false),
            None => self.reader()?.has(Table::Artifacts, id.as_bytes()),
        }
    }

    fn check_artifacts(&mut self, artifacts: &[NewArtifact]) -> Result<(), LedgerError> {
        for (place, artifact) in artifacts.iter().enumerate() {
            let twice = artifacts.iter().take(place).any(|other| other.id == artifact.id);
            // An id that was forgotten in this batch is not given again either.
            if twice || self.artifacts.contains_key(&artifact.id) || self.has_artifact(&artifact.id)? {
                return Err(LedgerError::invalid(format!("artifact `{}` is already in the ledger: make a new id", artifact.id)));
            }
        }
        Ok(())
    }

    fn put_artifact(&mut self, artifact: NewArtifact) {
        self.rows.append(&artifact.rows);
        self.outcome.pins.push(artifact.pin);
        self.artifacts.insert(artifact.id, true);
    }

    fn refer_to(&mut self, ids: Vec<String>) {
        for id in ids {
            if id.len() <= MAX_KEY_BYTES {
                self.rows.delete(Table::Unreferenced, id.as_bytes());
                self.referenced.insert(id);
            }
        }
    }

    /// Forgets artifacts whose time is over or that nothing refers to; gives how many.
    fn forget(&mut self, forget: &ForgetOperation) -> Result<u64, LedgerError> {
        let mut old = Vec::new();
        for id in &forget.ids {
            // What this batch has added or forgotten already is left for the next collection.
            if self.artifacts.contains_key(id) {
                continue;
            }
            let referenced = self.referenced.contains(id);
            let reader = self.reader()?;
            let record = reader.get(Table::Artifacts, id.as_bytes(), |bytes| json::<ArtifactRecord>(Table::Artifacts, bytes))?;
            let Some(record) = record else { continue };
            let since = reader.number(Table::Unreferenced, id.as_bytes())?;
            let unreferenced = !referenced && since.is_some_and(|since| since <= forget.unreferenced_until);
            if record.is_expired(forget.now) || unreferenced {
                old.push(record);
            }
        }
        old.iter().for_each(|record| self.delete_artifact(record));
        Ok(old.len() as u64)
    }

    /// Whether this batch has forgotten an artifact.
    pub(crate) fn is_forgotten_artifact(&self, id: &str) -> bool {
        self.artifacts.get(id) == Some(&false)
    }

    pub(crate) fn delete_artifact(&mut self, record: &ArtifactRecord) {
        let id = record.artifact_id.as_bytes();
        self.rows.delete(Table::Artifacts, id);
        self.rows.delete(Table::Unreferenced, id);
        if let Some(at) = record.expires_at {
            self.rows.delete(Table::ArtifactExpiry, &expiry(at, &record.artifact_id));
        }
        if let Some(digest) = parse_hex(&record.sha256) {
            self.rows.delete(Table::BlobRefs, &blob_ref(&digest, BY_ARTIFACT, id));
        }
        self.artifacts.insert(record.artifact_id.clone(), false);
    }

    fn put_audit(&mut self, records: Vec<AuditRow>) {
        for record in records {
            let audit_no = self.memory.next_audit_no;
            self.memory.next_audit_no += 1;
            self.rows.put(Table::Audit, &number(audit_no), &record.row);
            if let Some(run_id) = record.run_id {
                self.rows.put(Table::AuditRuns, &audit_run(run_id, audit_no), &[]);
            }
        }
    }

    /// Whether a write can be carried out, and what it then does.
    fn check_write(&mut self, write: &WriteOperation) -> Result<Checked, LedgerError> {
        if let Some(run) = self.find_run(write.run_no)? {
            if write.is_audit_only() {
                return Ok(Checked { ended: Some(run), ..Checked::default() });
            }
            life::fenced(&run, write.claim)?;
            return Err(LedgerError::Terminal { run_id: run.run_id, status: run.status });
        }
        if let Some(active) = self.memory.active.get(&write.run_no) {
            life::fenced(&active.run, write.claim)?;
            life::check(&active.run, &write.changes, write.events)?;
        }
        for item in &write.transcript {
            self.load_conversation(&item.index)?;
        }
        self.check_artifacts(&write.artifacts)?;
        Ok(Checked { ended: None, plan: self.plan(&write.values)?, journal: self.check_journal(write)? })
    }

    /// The run, where it has ended; else it is in memory afterwards.
    fn find_run(&mut self, run_no: u64) -> Result<Option<Arc<Run>>, LedgerError> {
        if self.memory.active.contains_key(&run_no) {
            return Ok(None);
        }
        if let Some(run) = self.ended.get(&run_no) {
            return Ok(Some(Arc::clone(run)));
        }
        let run = self.reader()?.run(run_no)?.ok_or_else(|| LedgerError::NotFound(format!("run with number {run_no}")))?;
        if run.status.is_terminal() {
            return Ok(Some(Arc::new(run)));
        }
        // Every run that has not ended is in memory or parked.
        match &self.reader {
            Some(reader) => self.memory.load_parked(run_no, run, reader)?,
            None => return Err(LedgerError::damaged("the store cannot be read")),
        }
        Ok(None)
    }

    fn put_write(&mut self, mut write: WriteOperation, checked: Checked) {
        let Checked { ended, plan, journal } = checked;
        let run_no = write.run_no;
        if write.is_seen() {
            self.outcome.touched.push(run_no);
        }
        self.rows.append(&write.rows);
        self.values.carry_out(plan, self.rows);
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
        self.put_park(run_no, life::moves(&write.changes), write.park.take());
        let run = match ended {
            Some(run) => run,
            None => match self.change_run(run_no, write.changes, write.events) {
                Some(run) => run,
                None => return,
            },
        };
        if !write.reply.is_closed() {
            self.outcome.answers.push(Answer::Write(write.reply, Ok(run)));
        }
    }

    fn change_run(
        &mut self,
        run_no: u64,
        changes: Vec<crate::record::RunChange>,
        events: Option<life::EventSpan>,
    ) -> Option<Arc<Run>> {
        let active = self.memory.active.get_mut(&run_no)?;
        if changes.is_empty() && events.is_none() {
            return Some(Arc::clone(&active.run));
        }
        life::apply(Arc::make_mut(&mut active.run), changes, events);
        if !active.dirty {
            active.dirty = true;
            self.dirty.push(run_no);
        }
        let run = Arc::clone(&active.run);
        if run.status.is_terminal() {
            self.memory.active.remove(&run_no);
            self.rows.delete(Table::Active, &number(run_no));
            self.ended.insert(run_no, Arc::clone(&run));
        }
        Some(run)
    }
}

/// The row of an event whose JSON is already there. See `operation::EventRow`.
pub(crate) fn write_event_row(
    bytes: &mut Vec<u8>,
    runs: &[(u64, agent_host_protocol::RunId)],
    transcript_seq: Option<u64>,
    event: &[u8],
) {
    use std::io::Write;
    // Writing to a vector does not fail.
    let mut write = |text: std::fmt::Arguments<'_>| drop(bytes.write_fmt(text));
    write(format_args!("{{\"runs\":["));
    for (place, (run_no, id)) in runs.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        write(format_args!("{comma}[{run_no},\"{id}\"]"));
    }
    write(format_args!("]"));
    if let Some(seq) = transcript_seq {
        write(format_args!(",\"transcript_seq\":{seq}"));
    }
    write(format_args!(",\"event\":"));
    bytes.extend_from_slice(event);
    bytes.push(b'}');
}
