//! Reading rows: a short look at what is committed.

use std::sync::Arc;

use agent_host_protocol::{EventId, Run, RunEvent, RunId, grant::ConversationKey};

use crate::{
    digest::Digest,
    error::LedgerError,
    record::{EventRecord, Park, RunRecord},
    rows::{
        ConversationRow, EventRow, Range, RunEnd, StoredEvent, StoredRows, Table, View, count, json, malformed, meta, number,
        schema, stored_event, stored_events, stored_run,
    },
};

/// The committed rows at one moment. Kept open it makes the file grow, so it lives for one call.
pub(crate) struct Reader {
    view: Arc<View>,
}

impl Reader {
    pub(crate) fn new(view: Arc<View>) -> Self {
        Self { view }
    }

    pub(crate) fn table(&self, table: Table) -> Result<StoredRows, LedgerError> {
        self.view.table(table)
    }

    /// True if redb has the table.
    pub(crate) fn has_table(&self, table: Table) -> Result<bool, LedgerError> {
        self.view.has_table(table)
    }

    /// The rows of a table that redb has. The rows in memory are not among them.
    pub(crate) fn merged(&self, table: Table) -> Result<StoredRows, LedgerError> {
        self.view.merged(table)
    }

    /// Number of the last batch that is read.
    pub(crate) fn last_batch(&self) -> u64 {
        self.view.last()
    }

    /// Number of the last batch that redb has.
    pub(crate) fn merged_batch(&self) -> Result<u64, LedgerError> {
        let row = self.merged(Table::Meta)?.get(meta::APPLIED_BATCH)?;
        let batch = row.and_then(|row| schema::read_number(row.value()));
        batch.ok_or_else(|| malformed(Table::Meta))
    }

    /// A row, if it exists.
    pub(crate) fn get<T>(
        &self,
        table: Table,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> Result<T, LedgerError>,
    ) -> Result<Option<T>, LedgerError> {
        self.view.get(table, key, read)
    }

    /// The number that a row holds.
    pub(crate) fn number(&self, table: Table, key: &[u8]) -> Result<Option<u64>, LedgerError> {
        self.get(table, key, |bytes| schema::read_number(bytes).ok_or_else(|| malformed(table)))
    }

    /// True if the row exists.
    pub(crate) fn has(&self, table: Table, key: &[u8]) -> Result<bool, LedgerError> {
        Ok(self.view.get(table, key, |_| Ok(()))?.is_some())
    }

    /// The last key of a table, where it has any.
    pub(crate) fn last_key<T>(&self, table: Table, read: impl FnOnce(&[u8]) -> Option<T>) -> Result<Option<T>, LedgerError> {
        let rows = self.table(table)?;
        rows.last()?.map(|(key, _)| read(key.value()).ok_or_else(|| malformed(table))).transpose()
    }

    /// The last number of the keys `(first, number)`; 0 where there is none.
    pub(crate) fn last_of(&self, table: Table, first: u64) -> Result<u64, LedgerError> {
        let rows = self.table(table)?;
        let range = schema::pair(first, 0)..=schema::pair(first, u64::MAX);
        match rows.range(range.start().as_slice()..=range.end().as_slice())?.next_back() {
            Some(row) => schema::read_pair(row?.0.value()).map(|(_, last)| last).ok_or_else(|| malformed(table)),
            None => Ok(0),
        }
    }

    /// The number of the next audit record.
    pub(crate) fn next_audit_no(&self) -> Result<u64, LedgerError> {
        let table = Table::Audit;
        let Some((key, value)) = self.table(table)?.last()? else { return Ok(1) };
        let first = schema::read_number(key.value()).ok_or_else(|| malformed(table))?;
        Ok(first + count(table, value.value())?)
    }

    pub(crate) fn run(&self, run_no: u64) -> Result<Option<Run>, LedgerError> {
        self.get(Table::Runs, &schema::number(run_no), stored_run)
    }

    pub(crate) fn run_no(&self, id: RunId) -> Result<Option<u64>, LedgerError> {
        self.number(Table::RunIds, &id.to_bytes())
    }

    pub(crate) fn existing_run_no(&self, id: RunId) -> Result<u64, LedgerError> {
        self.run_no(id)?.ok_or_else(|| LedgerError::NotFound(format!("run {id}")))
    }

    pub(crate) fn event(&self, id: EventId) -> Result<Option<EventRecord>, LedgerError> {
        let Some(event_no) = self.number(Table::EventIds, &id.to_bytes())? else { return Ok(None) };
        self.get(Table::Events, &schema::number(event_no), |bytes| stored_event(event_no, bytes))
    }

    /// Runs that have not ended and are not parked.
    pub(crate) fn active(&self) -> Result<Vec<RunRecord>, LedgerError> {
        let runs = self.table(Table::Runs)?;
        let mut active = Vec::new();
        // Both tables are sorted by the number of the run.
        let parked = self.table(Table::Parked)?;
        let mut parked = parked.iter()?;
        let mut next_parked = || parked.next().transpose().map(|row| row.map(|(key, _)| key.value().to_vec()));
        let mut skip = next_parked()?;
        for row in self.table(Table::Active)?.iter()? {
            let key = row?.0;
            while skip.as_deref().is_some_and(|skip| skip < key.value()) {
                skip = next_parked()?;
            }
            if skip.as_deref() == Some(key.value()) {
                continue;
            }
            let run_no = schema::read_number(key.value()).ok_or_else(|| malformed(Table::Active))?;
            let Some(row) = runs.get(key.value())? else {
                return Err(LedgerError::damaged(format!("run {run_no} is active but not there")));
            };
            active.push(RunRecord { run_no, run: Arc::new(stored_run(row.value())?) });
        }
        Ok(active)
    }

    pub(crate) fn run_events(&self, run_no: u64, id: RunId, after: u64, limit: usize) -> Result<Vec<RunEvent>, LedgerError> {
        let mut events = Vec::new();
        self.each_event(run_no, after, |sequence, event| {
            if events.len() == limit {
                return Ok(false);
            }
            events.push(event.event(id, sequence)?);
            Ok(true)
        })?;
        Ok(events)
    }

    /// The JSON of an event, byte for byte as it was accepted.
    pub(crate) fn event_json(&self, id: EventId) -> Result<Option<Vec<u8>>, LedgerError> {
        let Some(event_no) = self.number(Table::EventIds, &id.to_bytes())? else { return Ok(None) };
        self.get(Table::Events, &number(event_no), |row| Ok(EventRow::read(event_no, row)?.0.event.to_vec()))
    }

    /// The events of a run after `after`, until `each` says that it is enough.
    pub(crate) fn each_event(
        &self,
        run_no: u64,
        after: u64,
        mut each: impl FnMut(u64, StoredEvent<'_>) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let Some(next) = after.checked_add(1) else { return Ok(()) };
        let end = self.run_end(run_no)?;
        let end = end.as_ref().map(|row| RunEnd::read(row.value())).transpose()?.and_then(|end| end.events);
        let mut each_of = |first: u64, value: &[u8]| -> Result<bool, LedgerError> {
            for event in stored_events(first, value)? {
                let (sequence, event) = event?;
                if sequence >= next && !each(sequence, event)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        // The events of the end are the last ones.
        if end.is_none_or(|(first, _)| next < first) {
            for row in self.event_rows(run_no, next)? {
                let (key, value) = row?;
                if !each_of(first_event(key.value())?, value.value())? {
                    return Ok(());
                }
            }
        }
        if let Some((first, value)) = end {
            each_of(first, value)?;
        }
        Ok(())
    }

    /// Rows of [`Table::RunEvents`] of a run, from that with the event `next` on.
    fn event_rows(&self, run_no: u64, next: u64) -> Result<Range, LedgerError> {
        let (begin, from, end) = (schema::pair(run_no, 0), schema::pair(run_no, next), schema::pair(run_no, u64::MAX));
        // The row with the next event may begin with earlier ones. If it is in memory, so are all later ones.
        let before = |rows: &StoredRows| -> Result<Option<u64>, LedgerError> {
            let row = rows.range(begin.as_slice()..=from.as_slice())?.next_back();
            row.map(|row| first_event(row?.0.value())).transpose()
        };
        let mut rows = self.view.in_memory(Table::RunEvents);
        let before = match before(&rows)? {
            Some(first) => first,
            None => {
                rows = self.table(Table::RunEvents)?;
                before(&rows)?.unwrap_or(next)
            }
        };
        rows.range(schema::pair(run_no, before).as_slice()..=end.as_slice())
    }

    /// The transcript of a conversation: its number and the rows among which its items are.
    pub(crate) fn transcript(&self, key: &ConversationKey) -> Result<Option<(u64, StoredRows)>, LedgerError> {
        let Some(no) = self.conversation(key)? else { return Ok(None) };
        // The row of a conversation never changes, so all items of one whose row is in memory are in memory.
        let is_new = self.view.in_memory(Table::Conversations).get(key.index().as_bytes())?.is_some();
        let rows = if is_new { self.view.in_memory(Table::Transcript) } else { self.table(Table::Transcript)? };
        Ok(Some((no, rows)))
    }

    /// The number of a conversation that has a transcript or an event.
    pub(crate) fn conversation(&self, key: &ConversationKey) -> Result<Option<u64>, LedgerError> {
        let row =
            self.get(Table::Conversations, key.index().as_bytes(), |bytes| json::<ConversationRow>(Table::Conversations, bytes))?;
        Ok(row.map(|row| row.no))
    }

    pub(crate) fn park(&self, run_no: u64) -> Result<Option<Park>, LedgerError> {
        self.get(Table::Parked, &number(run_no), |row| json(Table::Parked, row))
    }

    /// True if a row refers to a blob.
    pub(crate) fn needs_blob(&self, digest: &Digest) -> Result<bool, LedgerError> {
        let rows = self.table(Table::BlobRefs)?;
        let first = rows.range(digest.as_slice()..)?.next().transpose()?;
        Ok(first.is_some_and(|(key, _)| key.value().starts_with(digest)))
    }
}

/// The number of the first event of a row of [`Table::RunEvents`].
fn first_event(key: &[u8]) -> Result<u64, LedgerError> {
    schema::read_pair(key).map(|(_, first)| first).ok_or_else(|| malformed(Table::RunEvents))
}
