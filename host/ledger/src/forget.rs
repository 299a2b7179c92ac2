//! Forgetting a conversation: what was said in it, and what its runs have left.
//!
//! It is looked for beside the writer, which checks again that each run has ended, and deletes a bounded number of rows
//! at once. What stays keeps the ledger whole: the row of each run, with its status, times and usage; its last event,
//! without what it said; its terms and audit records; the row of each event, with its ids, type and time; and, where a
//! transcript ends, an empty item that nobody is shown, so that its numbers are never given again. Content that nothing
//! else needs is garbage afterwards.
//!
//! A run that has started others is forgotten after them, so that whoever was interrupted and begins again finds them.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Bound,
    sync::Arc,
};

use agent_host_protocol::{
    Event, EventId, ResultKind, Run, RunId,
    event::Envelope,
    grant::ConversationKey,
    run::{RunCompletion, RunFailure},
};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::{
    batch::{Batch, write_event_row},
    error::LedgerError,
    garbage::blocking,
    handle::Ledger,
    journal::delete_segment,
    operation::{EventRow, Operation, RunEventRow, TranscriptRow, encode},
    overlay::Admitted,
    read::{Reader, json, malformed},
    record::{ArtifactRecord, Forget, Forgotten, RunRecord, StateWrite},
    schema::{Digest, Table, number, pair, read_number, read_pair},
    values::ValueRow,
};

/// Stands in the metadata of a run, and in the data of an event, that has been forgotten.
pub(crate) const FORGOTTEN: &str = "forgotten";
/// Type of the item that stands at the end of a forgotten transcript.
const END: &str = "forgotten";
/// Rows that the writer deletes in one operation, give or take one segment: a few milliseconds.
const FORGET_AT_ONCE: usize = 500;
/// Rows of all artifacts that are looked at in one transaction.
const SCAN_ARTIFACTS: usize = 2_000;
/// What stands in place of the message of a failure.
const NO_MESSAGE: &str = "what the run said was forgotten with its conversation";

/// A piece of a conversation to be forgotten. Answers with how many things it was.
pub(crate) struct ForgetConversationOperation {
    piece: Piece,
    /// Its values in the overlay.
    pub(crate) state: Option<Admitted>,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

enum Piece {
    /// State, where no run of the conversation is active.
    Values { conversation: ConversationKey, waits: String, values: Vec<ValueRow> },
    /// Items `first..=last`, and what then stands in the place of the last.
    Items { no: u64, first: u64, last: u64, end: Option<Vec<u8>> },
    /// Artifacts.
    Artifacts(Vec<ArtifactRecord>),
    /// Runs, or parts of them.
    Runs(Vec<RunPart>),
    /// Events.
    Events(Vec<EventId>),
}

/// A part of what a run has left, small enough for one operation.
struct RunPart {
    run_no: u64,
    run_id: RunId,
    events: Vec<u64>,
    segments: Vec<(u64, Vec<Digest>)>,
    /// The row of its last event, without what it said. With it the rest of the run goes.
    end: Option<Vec<u8>>,
}

impl RunPart {
    fn rows(&self) -> usize {
        self.events.len() + self.segments.iter().map(|(_, digests)| 1 + digests.len()).sum::<usize>() + 3
    }
}

fn rows(parts: &[RunPart]) -> usize {
    parts.iter().map(RunPart::rows).sum()
}

impl TranscriptRow {
    /// Whether it only holds the place of what was forgotten.
    pub(crate) fn is_end(&self) -> bool {
        self.item_type == END && self.role.is_empty()
    }

    /// The item that holds the place of this one, the last that was forgotten.
    fn ended(self) -> Self {
        Self {
            item_type: END.to_owned(),
            role: String::new(),
            run_id: None,
            content: Vec::new(),
            artifacts: Vec::new(),
            event_id: self.event_id,
            created_at: self.created_at,
        }
    }
}

fn marked() -> Map<String, Value> {
    Map::from_iter([(FORGOTTEN.to_owned(), true.into())])
}

fn without_words(failure: RunFailure) -> RunFailure {
    RunFailure { message: NO_MESSAGE.to_owned(), details: None, ..failure }
}

/// A run without what was said in it.
fn forgotten_run(run: Run) -> Run {
    Run {
        failure: run.failure.map(without_words),
        cancel_reason: run.cancel_reason.map(|_| String::new()),
        metadata: marked(),
        ..run
    }
}

/// An event without what was said by it.
fn forgotten_event(event: Event) -> Event {
    let Envelope { event_type, source, event_time, conversation, trace_id, .. } = event.envelope;
    let mut envelope = Envelope::message(String::new(), &source);
    envelope.input = agent_host_protocol::context::Input::default();
    Event { envelope: Envelope { event_type, event_time, conversation, trace_id, data: marked(), ..envelope }, ..event }
}

/// The last event of a run without what it said.
fn forgotten_end(bytes: &[u8], run: &Run) -> Result<Vec<u8>, LedgerError> {
    let row: RunEventRow<'_> = json(Table::RunEvents, bytes)?;
    let data = row.data.get();
    let data = if ResultKind::from_name(&row.kind) == Some(ResultKind::RunCompleted) {
        let said = serde_json::from_str::<RunCompletion>(data);
        let (finish_reason, usage) = said.map_or_else(|_| (String::new(), None), |said| (said.finish_reason, said.usage));
        encode(&RunCompletion { finish_reason, message: None, usage, metadata: None })
    } else {
        let failure = serde_json::from_str(data).ok().or_else(|| run.failure.clone());
        let none = || RunFailure { code: run.status.to_string(), message: String::new(), retryable: false, details: None };
        encode(&without_words(failure.unwrap_or_else(none)))
    }?;
    encode(&RunEventRow { kind: row.kind, timestamp: row.timestamp, data: json(Table::RunEvents, &data)? })
}

impl Ledger {
    /// The runs of the events of a conversation, in the order of its events.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn conversation_runs(&self, key: &ConversationKey) -> Result<Vec<RunRecord>, LedgerError> {
        let reader = self.reader()?;
        let mut runs = Vec::new();
        for event_no in reader.events_in(key)? {
            let row = reader.get(Table::Events, &number(event_no), |row| {
                Ok(json::<EventRow<'_>>(Table::Events, row)?.runs.into_iter().map(|(run_no, _)| run_no).collect::<Vec<_>>())
            })?;
            for run_no in row.unwrap_or_default() {
                runs.extend(reader.run(run_no)?.map(|run| RunRecord { run_no, run }));
            }
        }
        Ok(runs)
    }

    /// Forgets a conversation: deletes its transcript, its state, its artifacts, and the events, contexts and journals of its
    /// runs; takes what was said out of the rows that stay. What comes into the conversation meanwhile stays. Doing it again
    /// does no harm, and ends what was interrupted.
    ///
    /// # Errors
    /// [`LedgerError::Active`] where one of its runs has not ended, and those of the writer. What was deleted until then
    /// stays deleted.
    pub async fn forget_conversation(&self, forget: Forget) -> Result<Forgotten, LedgerError> {
        let forget = Arc::new(forget);
        let values = self.forget_values(&forget).await?;
        let items = self.forget_items(&forget).await?;
        let artifacts = self.forget_artifacts(&forget).await?;
        let runs = self.forget_runs(&forget).await?;
        let events = self.forget_events(&forget).await?;
        Ok(Forgotten { values, items, artifacts, runs, events })
    }

    /// Deletes the state of a conversation that has no active run.
    async fn forget_values(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let (ledger, of) = (self.clone(), Arc::clone(forget));
        let writes = blocking(move || {
            let mut writes = Vec::new();
            for scope in &of.state {
                let mut keys = BTreeSet::new();
                let pending = ledger.shared().overlay.scope(scope);
                ledger.committed(Table::State, scope, "", usize::MAX, |key, _| {
                    keys.insert(key.to_owned());
                    Ok(())
                })?;
                keys.extend(pending.into_keys());
                writes.extend(keys.into_iter().map(|key| StateWrite { scope_key: scope.clone(), key, ..StateWrite::default() }));
            }
            Ok(writes)
        });
        let mut writes = writes.await?;
        let mut forgotten = 0;
        loop {
            let rest = writes.split_off(writes.len().min(FORGET_AT_ONCE));
            let values = writes.iter().map(ValueRow::state).collect::<Result<Vec<_>, _>>()?;
            let piece = Piece::Values { conversation: forget.conversation.clone(), waits: forget.waits.clone(), values };
            forgotten += self.forget_piece(piece, writes).await?;
            if rest.is_empty() {
                return Ok(forgotten);
            }
            writes = rest;
        }
    }

    async fn forget_items(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let (ledger, of) = (self.clone(), Arc::clone(forget));
        let found = blocking(move || ledger.reader()?.transcript_of(&of.conversation)).await?;
        let Some(Transcript { no, first, last, end }) = found else { return Ok(0) };
        let mut forgotten = 0;
        let mut from = first;
        loop {
            let to = from.saturating_add(FORGET_AT_ONCE as u64 - 1).min(last);
            let end = (to == last).then(|| end.clone());
            forgotten += self.forget_piece(Piece::Items { no, first: from, last: to, end }, Vec::new()).await?;
            if to == last {
                return Ok(forgotten);
            }
            from = to + 1;
        }
    }

    async fn forget_artifacts(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let runs: Arc<HashSet<RunId>> = Arc::new(forget.runs.iter().map(|(_, id)| *id).collect());
        let mut forgotten = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (ledger, of, runs, from) = (self.clone(), Arc::clone(forget), Arc::clone(&runs), after.take());
            let (found, last) = blocking(move || ledger.artifacts_of(&of.conversation, &runs, from.as_deref())).await?;
            if !found.is_empty() {
                forgotten += self.forget_piece(Piece::Artifacts(found), Vec::new()).await?;
            }
            match last {
                Some(last) => after = Some(last),
                None => return Ok(forgotten),
            }
        }
    }

    /// A piece of all artifacts: those that go, and where to go on.
    #[allow(clippy::type_complexity, reason = "two things that are taken apart at once by the one caller")]
    fn artifacts_of(
        &self,
        conversation: &ConversationKey,
        runs: &HashSet<RunId>,
        after: Option<&[u8]>,
    ) -> Result<(Vec<ArtifactRecord>, Option<Vec<u8>>), LedgerError> {
        let rows = self.reader()?.table(Table::Artifacts)?;
        let (mut found, mut last, mut read) = (Vec::new(), None, 0);
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        for row in rows.range::<&[u8]>((after, Bound::Unbounded))?.take(SCAN_ARTIFACTS) {
            let (key, value) = row?;
            read += 1;
            last = Some(key.value().to_vec());
            let record: ArtifactRecord = json(Table::Artifacts, value.value())?;
            let scope = &record.scope;
            if scope.run_id.is_some_and(|id| runs.contains(&id)) || scope.conversation.as_ref() == Some(conversation) {
                found.push(record);
            }
        }
        Ok((found, last.filter(|_| read == SCAN_ARTIFACTS)))
    }

    async fn forget_runs(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let mut forgotten = 0;
        let mut begin = 0;
        while begin < forget.runs.len() {
            let (ledger, of) = (self.clone(), Arc::clone(forget));
            let (mut parts, next) = blocking(move || {
                let reader = ledger.reader()?;
                let (mut parts, mut next) = (Vec::new(), begin);
                while rows(&parts) < FORGET_AT_ONCE
                    && let Some((run_no, run_id)) = of.runs.get(next)
                {
                    parts.extend(reader.parts_of(*run_no, *run_id)?);
                    next += 1;
                }
                Ok((parts, next))
            })
            .await?;
            while !parts.is_empty() {
                let fitting = (1..parts.len()).find(|end| rows(parts.get(..*end).unwrap_or_default()) >= FORGET_AT_ONCE);
                let rest = parts.split_off(fitting.unwrap_or(parts.len()));
                forgotten += self.forget_piece(Piece::Runs(parts), Vec::new()).await?;
                parts = rest;
            }
            begin = next;
        }
        Ok(forgotten)
    }

    async fn forget_events(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let (ledger, of) = (self.clone(), Arc::clone(forget));
        let found = blocking(move || {
            let reader = ledger.reader()?;
            let mut numbers: BTreeSet<u64> = reader.events_in(&of.conversation)?.into_iter().collect();
            for (run_no, _) in &of.runs {
                let Some(run) = reader.run(*run_no)? else { continue };
                numbers.extend(reader.number(Table::EventIds, &run.event_id.to_bytes())?);
            }
            let mut found = Vec::new();
            for event_no in numbers {
                let id = reader.get(Table::Events, &number(event_no), |row| {
                    let row: EventRow<'_> = json(Table::Events, row)?;
                    let event: Event = json(Table::Events, row.event.get().as_bytes())?;
                    let id = event.event_id;
                    Ok((forgotten_event(event.clone()) != event).then_some(id))
                })?;
                found.extend(id.flatten());
            }
            Ok(found)
        });
        let found = found.await?;
        let mut forgotten = 0;
        for ids in found.chunks(FORGET_AT_ONCE) {
            forgotten += self.forget_piece(Piece::Events(ids.to_vec()), Vec::new()).await?;
        }
        Ok(forgotten)
    }

    async fn forget_piece(&self, piece: Piece, state: Vec<StateWrite>) -> Result<u64, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let mut operation = Box::new(ForgetConversationOperation { piece, state: None, reply });
        let admit = |admitted| {
            operation.state = admitted;
            Operation::ForgetConversation(operation)
        };
        self.admit_with_state(state, FORGET_AT_ONCE * 64, admit).await?;
        answer.await.map_err(|_| self.shared().unavailable())?
    }
}

/// Items of a transcript that were not forgotten yet.
struct Transcript {
    no: u64,
    first: u64,
    last: u64,
    /// What is to stand in the place of the last.
    end: Vec<u8>,
}

impl Reader {
    /// Numbers of the events of a conversation.
    fn events_in(&self, key: &ConversationKey) -> Result<Vec<u64>, LedgerError> {
        let Some(no) = self.conversation(key)? else { return Ok(Vec::new()) };
        let rows = self.table(Table::ConversationEvents)?;
        let (start, end) = (pair(no, 0), pair(no, u64::MAX));
        rows.range::<&[u8]>(start.as_slice()..=end.as_slice())?
            .map(|row| {
                read_pair(row?.0.value()).map(|(_, event_no)| event_no).ok_or_else(|| malformed(Table::ConversationEvents))
            })
            .collect()
    }

    fn transcript_of(&self, key: &ConversationKey) -> Result<Option<Transcript>, LedgerError> {
        let Some(no) = self.conversation(key)? else { return Ok(None) };
        let rows = self.table(Table::Transcript)?;
        let (start, end) = (pair(no, 0), pair(no, u64::MAX));
        let mut range = rows.range::<&[u8]>(start.as_slice()..=end.as_slice())?;
        let seq = |key: &[u8]| read_pair(key).map(|(_, seq)| seq).ok_or_else(|| malformed(Table::Transcript));
        let Some((key, value)) = range.next().transpose()? else { return Ok(None) };
        let first = (seq(key.value())?, value.value().to_vec());
        let last = match range.next_back().transpose()? {
            Some((key, value)) => (seq(key.value())?, value.value().to_vec()),
            None => first.clone(),
        };
        let row: TranscriptRow = json(Table::Transcript, &last.1)?;
        if first.0 == last.0 && row.is_end() {
            return Ok(None);
        }
        Ok(Some(Transcript { no, first: first.0, last: last.0, end: encode(&row.ended())? }))
    }

    /// What a run has left, in parts for the writer; none where all of it is forgotten.
    fn parts_of(&self, run_no: u64, run_id: RunId) -> Result<Vec<RunPart>, LedgerError> {
        let active = || LedgerError::Active { run_id };
        let run = self.run(run_no)?.filter(|run| run.status.is_terminal()).ok_or_else(active)?;
        let new_part = || RunPart { run_no, run_id, events: Vec::new(), segments: Vec::new(), end: None };
        let mut parts = vec![new_part()];
        let room = |parts: &mut Vec<RunPart>| {
            if parts.last().is_none_or(|part| part.rows() >= FORGET_AT_ONCE) {
                parts.push(new_part());
            }
        };
        self.segments(run_no, 0, |first, digests, _| {
            room(&mut parts);
            if let Some(part) = parts.last_mut() {
                part.segments.push((first, digests.to_vec()));
            }
            true
        })?;
        let mut is_forgotten = parts.iter().all(|part| part.segments.is_empty());
        let rows = self.table(Table::RunEvents)?;
        let (start, end) = (pair(run_no, 0), pair(run_no, run.last_sequence));
        for row in rows.range::<&[u8]>(start.as_slice()..end.as_slice())? {
            let (_, sequence) = read_pair(row?.0.value()).ok_or_else(|| malformed(Table::RunEvents))?;
            room(&mut parts);
            if let Some(part) = parts.last_mut() {
                part.events.push(sequence);
            }
            is_forgotten = false;
        }
        let end = self.get(Table::RunEvents, &end, |bytes| Ok((forgotten_end(bytes, &run)?, bytes.to_vec())))?;
        let (end, before) = end.ok_or_else(|| LedgerError::damaged(format!("run {run_no} has no last event")))?;
        is_forgotten &= end == before && !self.has(Table::Contexts, &number(run_no))? && forgotten_run(run.clone()) == run;
        if is_forgotten {
            return Ok(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.end = Some(end);
        }
        Ok(parts)
    }

    /// Whether a parked run waits for exactly this.
    fn waits_for(&self, key: &str) -> Result<Option<u64>, LedgerError> {
        let rows = self.table(Table::Waits)?;
        for row in rows.range::<&[u8]>(key.as_bytes()..)? {
            let row = row?.0;
            let Some(rest) = row.value().strip_prefix(key.as_bytes()) else { return Ok(None) };
            if let Some(run_no) = read_number(rest) {
                return Ok(Some(run_no));
            }
        }
        Ok(None)
    }
}

fn is_in(run: &Run, key: &ConversationKey) -> bool {
    let same = |id: &Option<String>, wanted: &str| id.as_deref().unwrap_or_default() == wanted;
    run.conversation_id.as_ref() == Some(&key.conversation)
        && same(&run.thread_id, &key.thread)
        && same(&run.workspace_id, &key.workspace)
}

impl Batch<'_> {
    /// Deletes a piece of a conversation; gives how many things it was.
    pub(crate) fn forget_conversation(&mut self, operation: &ForgetConversationOperation) -> Result<u64, LedgerError> {
        match &operation.piece {
            Piece::Values { conversation, waits, values } => {
                self.has_no_active_run(conversation, waits)?;
                let plan = self.plan(values)?;
                self.values.carry_out(plan, self.rows);
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
                    // What this batch has collected already is gone.
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
        let reader = self.reader()?;
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
            let run = self.reader()?.run(part.run_no)?.filter(|run| !is_active && run.status.is_terminal());
            let run = forgotten_run(run.ok_or(LedgerError::Active { run_id: part.run_id })?);
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
            self.rows.put(Table::RunEvents, &pair(run_no, last), end);
            self.rows.delete(Table::Contexts, &number(run_no));
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
            let EventRow { runs, transcript_seq, event } = json(Table::Events, &old)?;
            // A run that was made for it meanwhile needs it.
            if let Some((_, run_id)) = runs.iter().find(|(run_no, _)| self.memory.active.contains_key(run_no)) {
                return Err(LedgerError::Active { run_id: *run_id });
            }
            let event = forgotten_event(json(Table::Events, event.get().as_bytes())?);
            let mut row = Vec::with_capacity(old.len());
            write_event_row(&mut row, &runs, transcript_seq, &encode(&event)?);
            rows.push((*id, event_no, row));
        }
        let forgotten = rows.len() as u64;
        rows.into_iter().for_each(|(id, event_no, row)| self.put_event_row(id, event_no, row));
        Ok(forgotten)
    }
}
