//! The read port of the kernel: runs, events and everything recorded beside them, for a face of the host such as HTTP.
//!
//! Reading takes no part in what a run does, so [`Records`] knows the ledger and not the host. [`RecordWriter`] has the few
//! writes of a face that belong to no run.

pub use agent_host_ledger::{
    ArtifactRecord, ArtifactScope, AuditRecord, BlobReader, BlobWriter, EventRecord, GroupBy, LedgerError, Percentiles,
    RunCounts, RunFilter, RunRecord, SCAN_RUNS, Statistics, StatisticsQuery, UPLOAD, new_artifact_id,
};
use agent_host_ledger::{EntryWrite, Feed, FeedBounds, FeedStep, Ledger};
use agent_host_protocol::{
    Event, EventId, Page, Run, RunEvent, RunId, grant::ConversationKey, page::Direction, transcript::TranscriptItem,
};
use serde_json::{Map, Value, value::RawValue};

use super::excerpts::{ListedRun, with_excerpts};

/// Reads the records of a host. Cheap to clone. Every read blocks for as long as the disk takes.
///
/// The errors of all reads are those of the ledger: a cursor or a limit that is not valid, or a ledger that is damaged or not
/// available.
#[derive(Debug, Clone)]
pub struct Records(Ledger);

/// Writes what belongs to no run: uploads of clients, and the entries of an API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RecordWriter(Ledger);

impl Records {
    pub(crate) const fn new(ledger: Ledger) -> Self {
        Self(ledger)
    }

    /// A run with its number; `None` where there is no such run.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn run(&self, id: RunId) -> Result<Option<RunRecord>, LedgerError> {
        self.0.run(id)
    }

    /// A page of runs, newest first.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn runs(&self, filter: &RunFilter, cursor: Option<&str>, limit: u32) -> Result<Page<Run>, LedgerError> {
        self.0.runs_page(filter, cursor, limit)
    }

    /// A page of runs, newest first, each with the beginnings of what it was asked and answered.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn runs_with_excerpts(
        &self,
        filter: &RunFilter,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Page<ListedRun>, LedgerError> {
        with_excerpts(&self.0, self.0.runs_page(filter, cursor, limit)?)
    }

    /// The terms that a run was created with.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn terms(&self, id: RunId) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.0.terms(id)
    }

    /// The context of a run; `None` before its first start.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn context(&self, id: RunId) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.0.context(id)
    }

    /// A page of the events of a run, oldest first, after the cursor `after`.
    ///
    /// # Errors
    /// See [`Records`], and [`LedgerError::NotFound`] where there is no such run.
    pub fn run_events(&self, id: RunId, after: Option<&str>, limit: u32) -> Result<Page<RunEvent>, LedgerError> {
        self.0.run_events(id, after, limit)
    }

    /// At most `limit` events of a run after the sequence number `after`.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn run_events_after(&self, record: &RunRecord, after: u64, limit: usize) -> Result<Vec<RunEvent>, LedgerError> {
        self.0.run_events_after(record.run_no, record.run.run_id, after, limit)
    }

    /// The cursor of an event of a run.
    #[must_use]
    pub fn run_cursor(id: RunId, sequence: u64) -> String {
        Ledger::run_cursor(id, sequence)
    }

    /// The sequence number of a cursor of [`Records::run_cursor`].
    ///
    /// # Errors
    /// [`LedgerError::InvalidCursor`] where the cursor is not one of this run.
    pub fn run_sequence(id: RunId, cursor: &str) -> Result<u64, LedgerError> {
        Ledger::parse_run_cursor(id, cursor)
    }

    /// A page of the audit records of a run, oldest first.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn audit(&self, id: RunId, cursor: Option<&str>, limit: u32) -> Result<Page<AuditRecord>, LedgerError> {
        self.0.audit_page(id, cursor, limit)
    }

    /// A page of all audit records, newest first: those that `filter` accepts. At most `examined` records are read, so a page
    /// can have fewer items than `limit` and still have more after it.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn audit_of_host(
        &self,
        cursor: Option<&str>,
        limit: u32,
        examined: usize,
        filter: impl Fn(&AuditRecord) -> bool,
    ) -> Result<Page<AuditRecord>, LedgerError> {
        let from = cursor.map_or(Ok(u64::MAX), |cursor| Feed::Audit.number(cursor))?;
        let bounds = FeedBounds { direction: Direction::Backward, from, limit, examined };
        Ok(page_of(Feed::Audit, self.0.audit_feed(bounds, filter)?))
    }

    /// A page of the accepted events, newest first: those that `filter` accepts. At most `examined` events are read, so a page
    /// can have fewer items than `limit` and still have more after it.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn events_of_host(
        &self,
        cursor: Option<&str>,
        limit: u32,
        examined: usize,
        filter: impl Fn(&EventRecord) -> bool,
    ) -> Result<Page<EventRecord>, LedgerError> {
        let from = cursor.map_or(Ok(u64::MAX), |cursor| Feed::Events.number(cursor))?;
        let bounds = FeedBounds { direction: Direction::Backward, from, limit, examined };
        Ok(page_of(Feed::Events, self.0.events_feed(bounds, filter)?))
    }

    /// True if a run has a journal; `None` if the run does not exist.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn has_journal(&self, id: RunId) -> Result<Option<bool>, LedgerError> {
        let Some(record) = self.0.run(id)? else { return Ok(None) };
        Ok(Some(!self.0.journal_page(record.run_no, 0, 1)?.is_empty()))
    }

    /// The counts of runs. Blocks for as long as the scan takes.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn statistics(&self, query: &StatisticsQuery) -> Result<Statistics, LedgerError> {
        self.0.statistics(query)
    }

    /// Runs, counted, as a part of the counts of several ledgers: at most `most`.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn count_runs(&self, query: &StatisticsQuery, most: u64) -> Result<RunCounts, LedgerError> {
        self.0.count_runs(query, most)
    }

    /// An event with its runs.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn event(&self, id: EventId) -> Result<Option<EventRecord>, LedgerError> {
        self.0.event(id)
    }

    /// A page of the events of a conversation, newest first, before the cursor `before`, without those that have left it.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn conversation_events(
        &self,
        key: &ConversationKey,
        before: Option<&str>,
        limit: u32,
    ) -> Result<Page<Event>, LedgerError> {
        self.0.conversation_events(key, before, &[], limit)
    }

    /// The cursor of an event of a conversation; `None` where the event is of another one.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn conversation_event_cursor(&self, key: &ConversationKey, id: EventId) -> Result<Option<String>, LedgerError> {
        self.0.conversation_event_cursor(key, id)
    }

    /// True if an event was one of a conversation and has left it with a branch.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn has_left_conversation(&self, key: &ConversationKey, id: EventId) -> Result<bool, LedgerError> {
        self.0.has_left_conversation(key, id)
    }

    /// The number of the last item of a transcript, deleted items included; 0 where there is none.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn transcript_len(&self, key: &ConversationKey) -> Result<u64, LedgerError> {
        self.0.transcript_len(key)
    }

    /// The item of a transcript with this number, also where it has left the conversation.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn transcript_item(&self, key: &ConversationKey, seq: u64) -> Result<Option<TranscriptItem>, LedgerError> {
        self.0.transcript_item(key, seq)
    }

    /// At most `limit` items of a transcript after the number `after`, oldest first, without those that have left it.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn transcript_after(&self, key: &ConversationKey, after: u64, limit: usize) -> Result<Vec<TranscriptItem>, LedgerError> {
        self.0.transcript_range(key, after, limit)
    }

    /// The values of a state scope by key, as far as they fit into `max_bytes`.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn state(&self, scope_key: &str, max_bytes: usize) -> Result<Map<String, Value>, LedgerError> {
        self.0.state_scope(scope_key, max_bytes)
    }

    /// An artifact, also one that has expired.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn artifact(&self, id: &str) -> Result<Option<ArtifactRecord>, LedgerError> {
        self.0.artifact(id)
    }

    /// The content with this SHA-256 digest.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn blob(&self, sha256: &str) -> Result<Option<BlobReader>, LedgerError> {
        self.0.blob(sha256)
    }

    /// An entry by its key.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn entry(&self, key: &str) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.0.entry(key)
    }

    /// The first `limit` entries whose keys begin with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        self.0.entries(prefix, None, limit)
    }

    /// Likewise, those behind the key `after`.
    ///
    /// # Errors
    /// See [`Records`].
    pub fn entries_after(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Box<RawValue>)>, LedgerError> {
        self.0.entries(prefix, after, limit)
    }
}

impl RecordWriter {
    pub(crate) const fn new(ledger: Ledger) -> Self {
        Self(ledger)
    }

    /// Opens the content of a new artifact, at most `max_bytes` long.
    ///
    /// # Errors
    /// Fails if the disk is nearly full or the ledger is not available.
    pub fn blob_writer(&self, max_bytes: u64) -> Result<BlobWriter, LedgerError> {
        self.0.blob_writer(max_bytes)
    }

    /// Adds an artifact. Durable when this returns; the caller holds the finished blob until then.
    ///
    /// # Errors
    /// Fails if the blob is missing, the id is in use, the disk is nearly full, or the ledger is not available.
    pub async fn add_artifact(&self, record: ArtifactRecord) -> Result<(), LedgerError> {
        self.0.add_artifact(record).await
    }

    /// Adds an audit record. Admitted when this returns, durable with the next group commit.
    ///
    /// # Errors
    /// Fails if the record is too large or the ledger is not available.
    pub async fn audit(&self, record: AuditRecord) -> Result<(), LedgerError> {
        self.0.audit(vec![record]).await
    }

    /// Puts and deletes entries, all of them or none. Durable when this returns.
    ///
    /// # Errors
    /// Fails if an entry is too large, the disk is full, or the ledger is not available.
    pub async fn put_entries(&self, entries: &[EntryWrite]) -> Result<(), LedgerError> {
        self.0.put_entries(entries).await
    }
}

/// The page of a backward read. `prev_cursor` is the place of its first item, which a follower continues from.
fn page_of<T>(feed: Feed, step: FeedStep<T>) -> Page<T> {
    let FeedStep { items, position, has_more } = step;
    let prev_cursor = items.first().map(|(number, _)| feed.cursor(*number));
    let next_cursor = has_more.then(|| feed.cursor(position));
    Page { items: items.into_iter().map(|(_, item)| item).collect(), next_cursor, prev_cursor, has_more }
}
