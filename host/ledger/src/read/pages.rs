//! Pages: bounded pieces of what is long.

use std::{fmt::Write as _, ops::Bound};

use agent_host_protocol::{
    Event, EventId, Page, Run, RunEvent, RunId,
    grant::ConversationKey,
    limits::{MAX_PAGE, MIN_PAGE},
    page::Direction,
    transcript::TranscriptItem,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::LedgerError,
    handle::Ledger,
    read::Sequence,
    record::{AuditRecord, RunFilter},
    rows::{
        ConversationRow, EventRow, Reader, ReplacedEvents, RunList, Table, TranscriptRow, json, listed_run_no, malformed, schema,
        stored_audit, stored_run,
    },
};

/// Runs that are read for one page of a filtered list: some milliseconds. Later runs are on a later page, even if this page
/// is empty.
const SCAN_RUNS: usize = 2_000;

/// Items that are read for one page of a transcript of which parts have left. Each is decoded: some milliseconds.
const SCAN_ITEMS: usize = 2_000;

/// Events that are read for one page of some types. Only their types are decoded.
const SCAN_EVENTS: usize = 10_000;

pub(crate) fn checked_limit(limit: u32) -> Result<usize, LedgerError> {
    if !(MIN_PAGE..=MAX_PAGE).contains(&limit) {
        return Err(LedgerError::InvalidLimit(limit));
    }
    usize::try_from(limit).map_err(|_| LedgerError::InvalidLimit(limit))
}

/// Cuts a list that was read one item too long; true where there was more.
fn cut<T>(items: &mut Vec<T>, limit: usize) -> bool {
    let more = items.len() > limit;
    items.truncate(limit);
    more
}

/// An item as it was written, with its conversation; `None` for the placeholder of a deleted item.
pub(crate) fn item(
    key: &ConversationKey,
    cursors: Sequence,
    seq: u64,
    bytes: &[u8],
) -> Result<Option<TranscriptItem>, LedgerError> {
    let row: TranscriptRow = json(Table::Transcript, bytes)?;
    if row.is_end() {
        return Ok(None);
    }
    let some = |id: &str| (!id.is_empty()).then(|| id.to_owned());
    let mut transcript_id = String::with_capacity(16 + 1 + 20);
    let _ = write!(transcript_id, "{:016x}-{seq}", xxh3_64(key.index().as_bytes()));
    Ok(Some(TranscriptItem {
        transcript_id,
        event_id: row.event_id,
        run_id: row.run_id,
        conversation_id: some(key.conversation()),
        thread_id: some(key.thread()),
        role: row.role.into_owned(),
        item_type: row.item_type.into_owned(),
        content: row.content,
        artifacts: row.artifacts,
        seq,
        cursor: cursors.at(seq),
        created_at: row.created_at,
    }))
}

impl Reader {
    /// An audit record that is listed under its run; `None` where it was pruned meanwhile.
    fn audit_record(&self, audit_no: u64) -> Result<Option<AuditRecord>, LedgerError> {
        let rows = self.table(Table::Audit)?;
        if let Some(row) = rows.range(..=schema::number(audit_no).as_slice())?.next_back() {
            let (key, value) = row?;
            let first = schema::read_number(key.value()).ok_or_else(|| malformed(Table::Audit))?;
            for record in stored_audit(first, value.value())? {
                let (found, record) = record?;
                if found == audit_no {
                    return record.record().map(Some);
                }
            }
            return Err(LedgerError::damaged(format!("audit record {audit_no} is listed but not there")));
        }
        // Lists that a merge has still to shorten: records are pruned from the oldest on.
        Ok(None)
    }
}

/// Runs and their numbers, read one by one.
type Candidates = Box<dyn Iterator<Item = Result<(u64, Run), LedgerError>>>;

impl Reader {
    /// Runs below a number, newest first, among which those of the filter are.
    fn candidates(&self, filter: &RunFilter, below: u64) -> Result<Candidates, LedgerError> {
        let runs = self.table(Table::Runs)?;
        let end = schema::number(below);
        let read = |key: &[u8], value: &[u8]| {
            let run_no = schema::read_number(key).ok_or_else(|| malformed(Table::Runs))?;
            Ok((run_no, stored_run(value)?))
        };
        let by_key = move |key: &[u8]| match runs.get(key)? {
            Some(row) => read(key, row.value()),
            None => Err(LedgerError::damaged("a run is listed but not there")),
        };
        if let Some(event_id) = filter.event_id {
            let Some(event_no) = self.number(Table::EventIds, &event_id.to_bytes())? else {
                return Ok(Box::new(std::iter::empty()));
            };
            let of_event = self.get(Table::Events, &schema::number(event_no), |bytes| {
                Ok(EventRow::read(event_no, bytes)?.1.into_iter().map(|run| run.run_no).collect::<Vec<_>>())
            })?;
            let mut of_event = of_event.unwrap_or_default();
            of_event.retain(|run_no| *run_no < below);
            of_event.sort_unstable_by(|a, b| b.cmp(a));
            return Ok(Box::new(of_event.into_iter().map(move |run_no| by_key(&schema::number(run_no)))));
        }
        if filter.status.is_some_and(|status| !status.is_terminal()) {
            let active = self.table(Table::Active)?.range(..end.as_slice())?;
            return Ok(Box::new(active.rev().map(move |row| by_key(row?.0.value()))));
        }
        if let Some(list) = RunList::of(filter) {
            let (start, end) = (list.key(0), list.key(below));
            let listed = self.table(Table::RunLists)?.range(start.as_slice()..end.as_slice())?;
            return Ok(Box::new(listed.rev().map(move |row| by_key(&schema::number(listed_run_no(row?.0.value())?)))));
        }
        let all = self.table(Table::Runs)?.range(..end.as_slice())?;
        Ok(Box::new(all.rev().map(move |row| {
            let (key, value) = row?;
            read(key.value(), value.value())
        })))
    }
}

impl Ledger {
    /// Runs, newest first. `cursor` is the `next_cursor` of a page with the same filter.
    ///
    /// A page may hold fewer items than there are, even none, and yet have more: the runs looked at for one page are
    /// bounded.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`], [`LedgerError::InvalidCursor`].
    pub fn runs_page(&self, filter: &RunFilter, cursor: Option<&str>, limit: u32) -> Result<Page<Run>, LedgerError> {
        let limit = checked_limit(limit)?;
        let cursors = Sequence::runs(filter);
        let below = cursors.optional(cursor)?.unwrap_or(u64::MAX);
        let reader = self.reader()?;
        let mut page = Page { items: Vec::new(), next_cursor: None, prev_cursor: None, has_more: false };
        let mut position = None;
        for (looked_at, candidate) in reader.candidates(filter, below)?.enumerate() {
            if page.items.len() == limit || looked_at == SCAN_RUNS {
                page.has_more = true;
                page.next_cursor = position.map(|run_no| cursors.at(run_no));
                break;
            }
            let (run_no, run) = candidate?;
            position = Some(run_no);
            if filter.matches(&run) {
                page.items.push(run);
            }
        }
        Ok(page)
    }

    /// The cursor of a place in a list of runs, by the number of a run: a page continues with earlier runs.
    #[must_use]
    pub fn runs_cursor(filter: &RunFilter, run_no: u64) -> String {
        Sequence::runs(filter).at(run_no)
    }

    /// The number of a run that [`Ledger::runs_cursor`] was given.
    ///
    /// # Errors
    /// [`LedgerError::InvalidCursor`] where it is not one of this list.
    pub fn parse_runs_cursor(filter: &RunFilter, text: &str) -> Result<u64, LedgerError> {
        Sequence::runs(filter).position(text)
    }

    /// Events of a run, oldest first, after `after`. `next_cursor` is always present: a follower continues from it.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`] where there is no such run, [`LedgerError::InvalidLimit`], [`LedgerError::InvalidCursor`].
    pub fn run_events(&self, id: RunId, after: Option<&str>, limit: u32) -> Result<Page<RunEvent>, LedgerError> {
        let page = self.run_events_page(id, None, after, limit, Direction::Forward)?;
        Ok(Page { prev_cursor: None, ..page })
    }

    /// A page of the events of a run. Backward: newest first, from before `before` or from the end. Forward: oldest first, from after
    /// `after` or from the start; `next_cursor` is always present. Both bounds may be given; the events at the bounds are left out.
    ///
    /// # Errors
    /// As for [`Ledger::run_events`].
    pub fn run_events_page(
        &self,
        id: RunId,
        before: Option<&str>,
        after: Option<&str>,
        limit: u32,
        direction: Direction,
    ) -> Result<Page<RunEvent>, LedgerError> {
        let limit = checked_limit(limit)?;
        let cursors = Sequence::run_events(id);
        let after = cursors.optional(after)?.unwrap_or(0);
        let before = cursors.optional(before)?.unwrap_or(u64::MAX);
        let reader = self.reader()?;
        let run_no = reader.existing_run_no(id)?;
        let mut items = match direction {
            Direction::Forward => {
                let mut items = reader.run_events(run_no, id, after, limit + 1)?;
                items.retain(|event| event.sequence < before);
                items
            }
            Direction::Backward => {
                let last = reader.run(run_no)?.map_or(0, |run| run.last_sequence);
                let end = before.min(last.saturating_add(1));
                // The numbers of the events of a run have no gaps.
                let start = end.saturating_sub(limit as u64 + 2).max(after);
                let mut items = reader.run_events(run_no, id, start, limit + 1)?;
                items.retain(|event| event.sequence < end);
                items.reverse();
                items
            }
        };
        let has_more = cut(&mut items, limit);
        let last = items.last().map(|event| event.sequence);
        let next = match direction {
            Direction::Forward => Some(last.unwrap_or(after)),
            Direction::Backward => last.filter(|_| has_more),
        };
        let prev_cursor = items.first().map(|event| cursors.at(event.sequence));
        Ok(Page { items, next_cursor: next.map(|sequence| cursors.at(sequence)), prev_cursor, has_more })
    }

    /// The cursor of an event of a run: pages and streams continue after it.
    #[must_use]
    pub fn run_cursor(id: RunId, seq: u64) -> String {
        Sequence::run_events(id).at(seq)
    }

    /// The sequence number that [`Ledger::run_cursor`] was given.
    ///
    /// # Errors
    /// [`LedgerError::InvalidCursor`] where it is not one of this run.
    pub fn parse_run_cursor(id: RunId, text: &str) -> Result<u64, LedgerError> {
        Sequence::run_events(id).position(text)
    }

    /// A page of a transcript. Backward: newest first, from before `before` or from the end. Forward: oldest first,
    /// from after `after` or from the start. Both bounds may be given; the items at the bounds are left out. A
    /// conversation that nobody spoke in has an empty transcript.
    ///
    /// Items that have left the conversation with a branch are left out. Such a page may hold fewer items than there are, even
    /// none, and yet have more: the items looked at for one page are bounded.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`], [`LedgerError::InvalidCursor`].
    pub fn transcript(
        &self,
        key: &ConversationKey,
        before: Option<&str>,
        after: Option<&str>,
        limit: u32,
        direction: Direction,
    ) -> Result<Page<TranscriptItem>, LedgerError> {
        let limit = checked_limit(limit)?;
        let cursors = Sequence::transcript(key);
        let after = cursors.optional(after)?;
        let first = after.unwrap_or(0).saturating_add(1);
        let end = cursors.optional(before)?.unwrap_or(u64::MAX);
        let reader = self.reader()?;
        let mut items = Vec::new();
        // The last item that was looked at, where the page ends before it is full.
        let mut stopped = None;
        if let Some((no, rows)) = reader.transcript(key)?
            && first < end
        {
            let (mut looked_at, mut left) = (0, ReplacedEvents::new(&reader, no));
            let (start, end) = (schema::pair(no, first), schema::pair(no, end));
            let mut range = rows.range(start.as_slice()..end.as_slice())?;
            while items.len() <= limit {
                let row = match direction {
                    Direction::Forward => range.next(),
                    Direction::Backward => range.next_back(),
                };
                let Some(row) = row else { break };
                let (place, row) = row?;
                let (_, seq) = schema::read_pair(place.value()).ok_or_else(|| malformed(Table::Transcript))?;
                let found = item(key, cursors, seq, row.value())?;
                looked_at += 1;
                match found {
                    Some(found) if !left.has(found.event_id)? => items.push(found),
                    _ if looked_at >= SCAN_ITEMS => {
                        stopped = Some(seq);
                        break;
                    }
                    _ => {}
                }
            }
        }
        let has_more = cut(&mut items, limit) || stopped.is_some();
        let last = stopped.or(items.last().map(|item: &TranscriptItem| item.seq));
        let next = match direction {
            Direction::Forward => last.or(after),
            Direction::Backward => last.filter(|_| has_more),
        };
        let prev_cursor = items.first().map(|item| item.cursor.clone());
        Ok(Page { items, next_cursor: next.map(|seq| cursors.at(seq)), prev_cursor, has_more })
    }

    /// An item of a transcript, also where it has left the conversation.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn transcript_item(&self, key: &ConversationKey, seq: u64) -> Result<Option<TranscriptItem>, LedgerError> {
        let Some((no, rows)) = self.reader()?.transcript(key)? else { return Ok(None) };
        let row = rows.get(schema::pair(no, seq).as_slice())?;
        row.map_or(Ok(None), |row| item(key, Sequence::transcript(key), seq, row.value()))
    }

    /// Items of a transcript, in the order of `seqs`, without those that are not there or have left the conversation. For who found
    /// them by other means, such as a search.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn transcript_items(&self, key: &ConversationKey, seqs: &[u64]) -> Result<Vec<TranscriptItem>, LedgerError> {
        let cursors = Sequence::transcript(key);
        let reader = self.reader()?;
        let Some((no, rows)) = reader.transcript(key)? else { return Ok(Vec::new()) };
        let mut left = ReplacedEvents::new(&reader, no);
        let mut items = Vec::with_capacity(seqs.len());
        for seq in seqs {
            if let Some(row) = rows.get(schema::pair(no, *seq).as_slice())?
                && let Some(found) = item(key, cursors, *seq, row.value())?
                && !left.has(found.event_id)?
            {
                items.push(found);
            }
        }
        Ok(items)
    }

    /// Items of a transcript after `after_seq`, oldest first, at most `limit`, without those that have left the conversation. For who
    /// reads all of it, such as an index.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn transcript_range(
        &self,
        key: &ConversationKey,
        after_seq: u64,
        limit: usize,
    ) -> Result<Vec<TranscriptItem>, LedgerError> {
        let cursors = Sequence::transcript(key);
        let reader = self.reader()?;
        let (Some((no, rows)), Some(first)) = (reader.transcript(key)?, after_seq.checked_add(1)) else { return Ok(Vec::new()) };
        let (start, end) = (schema::pair(no, first), schema::pair(no, u64::MAX));
        let mut left = ReplacedEvents::new(&reader, no);
        rows.range(start.as_slice()..=end.as_slice())?
            .map(|row| {
                let (place, row) = row?;
                let (_, seq) = schema::read_pair(place.value()).ok_or_else(|| malformed(Table::Transcript))?;
                match item(key, cursors, seq, row.value())? {
                    Some(found) if !left.has(found.event_id)? => Ok(Some(found)),
                    _ => Ok(None),
                }
            })
            .filter_map(Result::transpose)
            .take(limit)
            .collect()
    }

    /// Conversations that have a transcript or an event, in a fixed order: the next `limit` after `after`. For who
    /// reads all of them, such as an index.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn conversations(&self, after: Option<&ConversationKey>, limit: usize) -> Result<Vec<ConversationKey>, LedgerError> {
        let after = after.map(ConversationKey::index);
        let start = after.as_ref().map_or(Bound::Unbounded, |index| Bound::Excluded(index.as_bytes()));
        let rows = self.reader()?.table(Table::Conversations)?;
        rows.range((start, Bound::Unbounded))?
            .take(limit)
            .map(|row| Ok(json::<ConversationRow>(Table::Conversations, row?.1.value())?.key))
            .collect()
    }

    /// Events of a conversation, newest first, before `before` or from the end: those of these types, or all of them
    /// where there are none. `before` is the `next_cursor` of a page of the same conversation.
    ///
    /// Events that have left the conversation with a branch are left out. A page may hold fewer items than there are, even
    /// none, and yet have more: the events looked at for one page are bounded.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`], [`LedgerError::InvalidCursor`].
    pub fn conversation_events(
        &self,
        key: &ConversationKey,
        before: Option<&str>,
        event_types: &[String],
        limit: u32,
    ) -> Result<Page<Event>, LedgerError> {
        let limit = checked_limit(limit)?;
        let cursors = Sequence::conversation_events(key);
        let end = cursors.optional(before)?.unwrap_or(u64::MAX);
        let reader = self.reader()?;
        let mut page = Page { items: Vec::new(), next_cursor: None, prev_cursor: None, has_more: false };
        let Some(no) = reader.conversation(key)? else { return Ok(page) };
        let mut left = ReplacedEvents::new(&reader, no);
        let listed = reader.table(Table::ConversationEvents)?;
        let events = reader.table(Table::Events)?;
        let (start, end) = (schema::pair(no, 0), schema::pair(no, end));
        let mut position = None;
        for (looked_at, row) in listed.range(start.as_slice()..end.as_slice())?.rev().enumerate() {
            if page.items.len() == limit || looked_at == SCAN_EVENTS {
                page.has_more = true;
                page.next_cursor = position.map(|event_no| cursors.at(event_no));
                break;
            }
            let (place, event_type) = row?;
            let (_, event_no) = schema::read_pair(place.value()).ok_or_else(|| malformed(Table::ConversationEvents))?;
            position = Some(event_no);
            if left.has_event_no(event_no)? {
                continue;
            }
            if !event_types.is_empty() && !event_types.iter().any(|wanted| wanted.as_bytes() == event_type.value()) {
                continue;
            }
            let Some(row) = events.get(schema::number(event_no).as_slice())? else {
                return Err(LedgerError::damaged(format!("event {event_no} is listed but not there")));
            };
            let (row, _) = EventRow::read(event_no, row.value())?;
            page.items.push(json(Table::Events, row.event)?);
        }
        Ok(page)
    }

    /// The cursor of an event of a conversation, where the event is one of it.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn conversation_event_cursor(&self, key: &ConversationKey, id: EventId) -> Result<Option<String>, LedgerError> {
        let reader = self.reader()?;
        let (Some(no), Some(event_no)) = (reader.conversation(key)?, reader.number(Table::EventIds, &id.to_bytes())?) else {
            return Ok(None);
        };
        let listed = reader.has(Table::ConversationEvents, &schema::pair(no, event_no))?;
        Ok(listed.then(|| Sequence::conversation_events(key).at(event_no)))
    }

    /// True if an event was one of this conversation, and has left it with a branch.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn has_left_conversation(&self, key: &ConversationKey, id: EventId) -> Result<bool, LedgerError> {
        let reader = self.reader()?;
        let Some(no) = reader.conversation(key)? else { return Ok(false) };
        ReplacedEvents::new(&reader, no).has(id)
    }

    /// The cursor of an item of a transcript.
    #[must_use]
    pub fn transcript_cursor(key: &ConversationKey, seq: u64) -> String {
        Sequence::transcript(key).at(seq)
    }

    /// The length of a transcript, deleted items included.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn transcript_len(&self, key: &ConversationKey) -> Result<u64, LedgerError> {
        let reader = self.reader()?;
        match reader.conversation(key)? {
            Some(no) => reader.last_of(Table::Transcript, no),
            None => Ok(0),
        }
    }

    /// Audit records of a run, oldest first.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`], [`LedgerError::InvalidCursor`].
    pub fn audit_page(&self, id: RunId, cursor: Option<&str>, limit: u32) -> Result<Page<AuditRecord>, LedgerError> {
        let limit = checked_limit(limit)?;
        let cursors = Sequence::audit(Some(id));
        let first = cursors.optional(cursor)?.unwrap_or(0).saturating_add(1);
        let reader = self.reader()?;
        let mut items = Vec::new();
        let (start, end) = (schema::audit_run(id, first), schema::audit_run(id, u64::MAX));
        for row in reader.table(Table::AuditRuns)?.range(start.as_slice()..=end.as_slice())? {
            let key = row?.0;
            let (_, audit_no) = schema::read_audit_run(key.value()).ok_or_else(|| malformed(Table::AuditRuns))?;
            items.extend(reader.audit_record(audit_no)?.map(|record| (audit_no, record)));
            if items.len() > limit {
                break;
            }
        }
        let has_more = cut(&mut items, limit);
        let next_cursor = items.last().filter(|_| has_more).map(|(audit_no, _)| cursors.at(*audit_no));
        let items = items.into_iter().map(|(_, record)| record).collect();
        Ok(Page { items, next_cursor, prev_cursor: None, has_more })
    }
}
