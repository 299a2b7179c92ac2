//! Forgetting a conversation: what was said in it, and what its runs have left.
//!
//! Rows are searched outside of the writer, which checks again that each run has ended, and deletes a bounded number of
//! rows at once. The remaining rows keep the ledger consistent: the row of each run, with its status, times and usage; its
//! last event, without content; its terms and audit records; the row of each event, with its ids, type and time; and, at
//! the end of a transcript, an empty item that no reader sees, so that its numbers are never assigned again. Content
//! without another reference is garbage afterwards.
//!
//! A run is deleted after its children, so that a repeated deletion finds them.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Bound,
    sync::Arc,
};

use agent_host_protocol::{Event, RunId, grant::ConversationKey};
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    handle::Ledger,
    operation::{ForgetConversationOperation, Operation, Piece, RunPart, ValueRow},
    record::{ArtifactRecord, DeletedData, Forget, RunRecord, StateWrite},
    rows::{
        EventRow, PackedItems, Reader, RunEnd, StoredEvent, Table, TranscriptRow, encode, forgotten_end, forgotten_event,
        forgotten_run, json, malformed, number, pair, read_pair, stored_events,
    },
    upkeep::blocking,
};

/// Rows that the writer deletes in one operation, give or take one segment: a few milliseconds.
const FORGET_AT_ONCE: usize = 500;

/// Rows of all artifacts that are looked at in one transaction.
const SCAN_ARTIFACTS: usize = 2_000;

fn rows(parts: &[RunPart]) -> usize {
    parts.iter().map(RunPart::rows).sum()
}

impl Ledger {
    /// The runs of the events of a conversation, in the order of its events.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn conversation_runs(&self, key: &ConversationKey) -> Result<Vec<RunRecord>, LedgerError> {
        let reader = self.reader()?;
        let mut runs = Vec::new();
        for event_no in reader.events_in(key)? {
            let row = reader.get(Table::Events, &number(event_no), |row| {
                Ok(EventRow::read(event_no, row)?.1.into_iter().map(|run| run.run_no).collect::<Vec<_>>())
            })?;
            for run_no in row.unwrap_or_default() {
                runs.extend(reader.run(run_no)?.map(|run| RunRecord { run_no, run: Arc::new(run) }));
            }
        }
        Ok(runs)
    }

    /// Deletes a conversation: its transcript, its state, its artifacts, and the events, contexts and journals of its runs;
    /// removes the content from the rows that stay. Data that are added meanwhile stay. A repeated call is harmless, and
    /// completes an interrupted one.
    ///
    /// # Errors
    /// Fails with [`LedgerError::Active`] if one of its runs has not ended, and with the errors of the writer. Rows that
    /// were deleted before stay deleted.
    pub async fn forget_conversation(&self, forget: Forget) -> Result<DeletedData, LedgerError> {
        let forget = Arc::new(forget);
        let values = self.forget_values(&forget).await?;
        let items = self.forget_items(&forget).await?;
        let artifacts = self.forget_artifacts(&forget).await?;
        let runs = self.forget_runs(&forget).await?;
        let events = self.forget_events(&forget).await?;
        Ok(DeletedData { values, items, artifacts, runs, events })
    }

    /// Deletes the state of a conversation that has no active run.
    async fn forget_values(&self, forget: &Arc<Forget>) -> Result<u64, LedgerError> {
        let (ledger, of) = (self.clone(), Arc::clone(forget));
        let writes = blocking(move || {
            let mut writes = Vec::new();
            for scope in &of.state {
                let mut keys = BTreeSet::new();
                let pending = ledger.shared().overlay.scope(scope);
                ledger.reader()?.each_value(Table::State, scope, "", usize::MAX, |key, _| {
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
        for row in rows.range((after, Bound::Unbounded))?.take(SCAN_ARTIFACTS) {
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
                    let (row, _) = EventRow::read(event_no, row)?;
                    let event: Event = json(Table::Events, row.event)?;
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
        self.admit_with_state(state, FORGET_AT_ONCE * 64, None, admit).await?;
        self.answer(answer).await
    }
}

/// Items of a transcript that were not forgotten yet.
struct Transcript {
    no: u64,
    first: u64,
    last: u64,
    /// The row that replaces the last one.
    end: Vec<u8>,
}

impl Reader {
    /// Numbers of the events of a conversation.
    fn events_in(&self, key: &ConversationKey) -> Result<Vec<u64>, LedgerError> {
        let Some(no) = self.conversation(key)? else { return Ok(Vec::new()) };
        let rows = self.table(Table::ConversationEvents)?;
        let (start, end) = (pair(no, 0), pair(no, u64::MAX));
        rows.range(start.as_slice()..=end.as_slice())?
            .map(|row| {
                read_pair(row?.0.value()).map(|(_, event_no)| event_no).ok_or_else(|| malformed(Table::ConversationEvents))
            })
            .collect()
    }

    fn transcript_of(&self, key: &ConversationKey) -> Result<Option<Transcript>, LedgerError> {
        let Some(no) = self.conversation(key)? else { return Ok(None) };
        let rows = self.table(Table::Transcript)?;
        let (start, end) = (pair(no, 0), pair(no, u64::MAX));
        let mut range = rows.range(start.as_slice()..=end.as_slice())?;
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

    /// The rows of a run, in parts for the writer; none if all of them are deleted.
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
        let run_end = self.run_end(run_no)?;
        let run_end = run_end.as_ref().map(|row| RunEnd::read(row.value())).transpose()?;
        // Segments of the end go with its row: in the last part, as many as they are.
        let mut of_end = Vec::new();
        self.segments(run_no, 0, |first, digests, _| {
            let segment = (first, digests.to_vec());
            if run_end.as_ref().is_some_and(|end| end.has_segment(first)) {
                of_end.push(segment);
                return true;
            }
            room(&mut parts);
            if let Some(part) = parts.last_mut() {
                part.segments.push(segment);
            }
            true
        })?;
        let has_journal = run_end.is_some() || parts.iter().any(|part| !part.segments.is_empty());
        let rows = self.table(Table::RunEvents)?;
        let (begin, end) = (pair(run_no, 0), pair(run_no, u64::MAX));
        let mut last_row = None;
        let mut count = 0;
        for row in rows.range(begin.as_slice()..=end.as_slice())? {
            let (key, value) = row?;
            let (_, first) = read_pair(key.value()).ok_or_else(|| malformed(Table::RunEvents))?;
            room(&mut parts);
            if let Some(part) = parts.last_mut() {
                part.events.push(first);
            }
            count += 1;
            last_row = Some((first, value));
        }
        let last = run.last_sequence;
        let no_end = || LedgerError::damaged(format!("run {run_no} has no event {last}"));
        let last_row = last_row.as_ref().map(|(first, value)| (*first, value.value()));
        let (first, value) = run_end.as_ref().and_then(|end| end.events).or(last_row).ok_or_else(no_end)?;
        let found = stored_events(first, value)?.last().ok_or_else(no_end)??;
        let (_, event) = Some(found).filter(|(sequence, _)| *sequence == last).ok_or_else(no_end)?;
        let data = forgotten_end(&event, &run)?;
        let is_forgotten = !has_journal
            && (count, first) == (1, last)
            && event.data == data
            && event.metadata.is_empty()
            && !self.has(Table::Contexts, &number(run_no))?
            && forgotten_run(run.clone()) == run;
        let mut end = PackedItems::new(last);
        end.push(&StoredEvent { data: &data, metadata: "", ..event });
        if is_forgotten {
            return Ok(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.segments.extend(of_end);
            part.end = Some(end);
        }
        Ok(parts)
    }
}
