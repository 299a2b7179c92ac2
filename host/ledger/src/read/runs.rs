//! Runs, their events and their journals, and the events that they answer.
//!
//! Parked runs wait for a time or for something named, and are nowhere but in the store. A parked run has a row in each of
//! [`Table::Parked`] and [`Table::Wakes`], and one in [`Table::Waits`] for each of its keys. The rows go with the first step
//! that it makes.

use std::{ops::Bound, sync::Arc};

use agent_host_protocol::{EventId, RunEvent, RunId, Timestamp};
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    handle::Ledger,
    record::{AppendMark, EventRecord, JournalRow, Park, RunRecord},
    rows::{Table, malformed, pair, raw, read_number, read_pair, read_wait_key, wait_key},
};

impl Ledger {
    /// A run by its id.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn run(&self, id: RunId) -> Result<Option<RunRecord>, LedgerError> {
        let reader = self.reader()?;
        let Some(run_no) = reader.run_no(id)? else { return Ok(None) };
        Ok(reader.run(run_no)?.map(|run| RunRecord { run_no, run: Arc::new(run) }))
    }

    /// A run by its number.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn run_by_no(&self, run_no: u64) -> Result<Option<RunRecord>, LedgerError> {
        Ok(self.reader()?.run(run_no)?.map(|run| RunRecord { run_no, run: Arc::new(run) }))
    }

    /// The terms that a run was made with.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn terms(&self, id: RunId) -> Result<Option<Box<RawValue>>, LedgerError> {
        let reader = self.reader()?;
        let Some(run_no) = reader.run_no(id)? else { return Ok(None) };
        reader.terms(run_no)
    }

    /// The context that a run was given; nothing before it started.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn context(&self, id: RunId) -> Result<Option<Box<RawValue>>, LedgerError> {
        let reader = self.reader()?;
        let Some(run_no) = reader.run_no(id)? else { return Ok(None) };
        reader.context(run_no)
    }

    /// An event by its id.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn event(&self, id: EventId) -> Result<Option<EventRecord>, LedgerError> {
        self.reader()?.event(id)
    }

    /// The JSON of an event, byte for byte as it was accepted: [`agent_host_protocol::RecordDigest::begin`] covers these bytes.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn event_json(&self, id: EventId) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.reader()?.event_json(id)?.map(|json| raw(Table::Events, &json)).transpose()
    }

    /// Every run that has not ended and is not parked, oldest first. [`Ledger::due`] and [`Ledger::parked_on`] give
    /// parked runs.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn active_runs(&self) -> Result<Vec<RunRecord>, LedgerError> {
        self.reader()?.active()
    }

    /// The terms of each run that has not ended, parked ones too. Blocks.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn each_unended_terms(&self, mut each: impl FnMut(&str)) -> Result<(), LedgerError> {
        let reader = self.reader()?;
        for row in reader.table(Table::Active)?.iter()? {
            let run_no = read_number(row?.0.value()).ok_or_else(|| malformed(Table::Active))?;
            if let Some(terms) = reader.terms(run_no)? {
                each(terms.get());
            }
        }
        Ok(())
    }

    /// Events of a run after `after_seq`, at most `limit`, for one who follows it. A run that is not there has none.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn run_events_after(&self, run_no: u64, id: RunId, after_seq: u64, limit: usize) -> Result<Vec<RunEvent>, LedgerError> {
        self.reader()?.run_events(run_no, id, after_seq, limit)
    }

    /// Events of a run of these types, in order. The data of others is not looked at.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn run_events_of(&self, run_no: u64, id: RunId, kinds: &[&str]) -> Result<Vec<RunEvent>, LedgerError> {
        let mut found = Vec::new();
        self.each_run_event(run_no, id, kinds, |event| found.push(event))?;
        Ok(found)
    }

    /// Passes the events of a run of these types on, in order and one at a time: a record may be larger than the memory for one run.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn each_run_event(
        &self,
        run_no: u64,
        id: RunId,
        kinds: &[&str],
        mut each: impl FnMut(RunEvent),
    ) -> Result<(), LedgerError> {
        self.reader()?.each_event(run_no, 0, |sequence, event| {
            if kinds.contains(&event.kind.as_ref()) {
                each(event.event(id, sequence)?);
            }
            Ok(true)
        })
    }

    /// The results that an executor has appended in a claim, each with its mark, in order: those among the events after `after_seq`.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn appended_results(
        &self,
        run_no: u64,
        id: RunId,
        claim: u32,
        after_seq: u64,
    ) -> Result<Vec<(AppendMark, RunEvent)>, LedgerError> {
        let mut found = Vec::new();
        self.reader()?.each_event(run_no, after_seq, |sequence, event| {
            if let (Some(mark), _) = AppendMark::split(event.metadata)
                && mark.claim == claim
            {
                found.push((mark, event.event(id, sequence)?));
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Segments of the journal of a run that begin with `from` or later, in order: as many as `max_bytes` hold, and at
    /// least one where there is one. A run that is not there, or whose journal was pruned, has none.
    ///
    /// Readers see committed segments only: the segment of a write when its [`crate::Commit`] has resolved.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn journal_page(&self, run_no: u64, from: u64, max_bytes: usize) -> Result<Vec<JournalRow>, LedgerError> {
        let mut page = Vec::new();
        let mut left = max_bytes;
        self.reader()?.segments(run_no, from, |first, blobs, bytes| {
            if bytes.len() > left && !page.is_empty() {
                return false;
            }
            left = left.saturating_sub(bytes.len());
            page.push(JournalRow { first, bytes: bytes.to_vec(), blobs: blobs.to_vec() });
            true
        })?;
        Ok(page)
    }
}

impl Ledger {
    /// Until when a run is parked, and for what; nothing where it is not.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn parked(&self, run_no: u64) -> Result<Option<Park>, LedgerError> {
        self.reader()?.park(run_no)
    }

    /// The number of parked runs, from memory.
    #[must_use]
    pub fn parked_count(&self) -> u64 {
        self.shared().counters.parked()
    }

    /// The wake time of the next parked run; `None` without parked runs. The time may be in the past.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn next_wake(&self) -> Result<Option<Timestamp>, LedgerError> {
        let rows = self.reader()?.table(Table::Wakes)?;
        let Some(row) = rows.range(..)?.next() else { return Ok(None) };
        read_pair(row?.0.value()).map(|(at, _)| Some(at)).ok_or_else(|| malformed(Table::Wakes))
    }

    /// Parked runs whose time has come, with that time, in its order: at most `limit`, after the one that `after` names.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn due(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, u64)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, u64)>, LedgerError> {
        let after = after.map(|(at, run_no)| pair(at, run_no));
        let end = pair(now, u64::MAX);
        if after.is_some_and(|after| after >= end) {
            return Ok(Vec::new());
        }
        let start = after.as_ref().map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_slice()));
        let rows = self.reader()?.table(Table::Wakes)?;
        rows.range((start, Bound::Included(end.as_slice())))?
            .take(limit)
            .map(|row| read_pair(row?.0.value()).ok_or_else(|| malformed(Table::Wakes)))
            .collect()
    }

    /// Keys that parked runs wait for and that begin with `prefix`, after `after`, in their order, at most `limit`: each key
    /// with the number of the run.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn parked_keys(
        &self,
        prefix: &str,
        after: Option<&(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, LedgerError> {
        let start = match after {
            Some((key, run_no)) => Bound::Excluded(wait_key(key, *run_no)),
            None => Bound::Included(prefix.as_bytes().to_vec()),
        };
        let rows = self.reader()?.table(Table::Waits)?;
        let start = match &start {
            Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
            Bound::Included(key) => Bound::Included(key.as_slice()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut found = Vec::new();
        for row in rows.range((start, Bound::Unbounded))? {
            let row = row?.0;
            if found.len() == limit || !row.value().starts_with(prefix.as_bytes()) {
                break;
            }
            let (key, run_no) = read_wait_key(row.value()).ok_or_else(|| malformed(Table::Waits))?;
            found.push((key.to_owned(), run_no));
        }
        Ok(found)
    }

    /// Parked runs that wait for exactly this key, by their numbers, oldest first: at most `limit`.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn parked_on(&self, key: &str, limit: usize) -> Result<Vec<u64>, LedgerError> {
        let reader = self.reader()?;
        let last = reader.last_key(Table::Runs, read_number)?.unwrap_or(0);
        // Up to the last number that was given, and not up to the largest that there is: numbers begin with zeros, so
        // longer keys that begin with this one sort behind, and are not looked at.
        let (start, end) = (wait_key(key, 0), wait_key(key, last));
        let rows = reader.table(Table::Waits)?;
        let mut found = Vec::new();
        for row in rows.range(start.as_slice()..=end.as_slice())? {
            if found.len() == limit {
                break;
            }
            let row = row?.0;
            // A longer key with zeros in it may come between.
            if row.value().len() == start.len() {
                let run_no = row.value().get(key.len()..).and_then(read_number);
                found.push(run_no.ok_or_else(|| malformed(Table::Waits))?);
            }
        }
        Ok(found)
    }
}
