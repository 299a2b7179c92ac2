//! Parked runs: they wait for a time or for something named, and are nowhere but in the store.
//!
//! A parked run has a row in each of [`Table::Parked`] and [`Table::Wakes`], and one in [`Table::Waits`] for each of its
//! keys. The rows go with the first step that it makes.

use std::ops::Bound;

use agent_host_protocol::Timestamp;

use crate::{
    batch::Batch,
    error::LedgerError,
    handle::Ledger,
    life,
    operation::encode,
    read::{Reader, json, malformed},
    record::{Park, RunChange},
    schema::{MAX_KEY_BYTES, Table, number, pair, read_number, read_pair, read_wait_key, wait_key},
};

/// What one run may wait for: more is a list that belongs into a table of its own.
const MAX_KEYS: usize = 64;
/// A key, in bytes: the number of the run follows it.
const MAX_PARK_KEY_BYTES: usize = MAX_KEY_BYTES - 8;

/// A park, checked and encoded.
pub(crate) struct NewPark {
    park: Box<Park>,
    row: Vec<u8>,
}

impl NewPark {
    pub(crate) fn prepare(park: Park, changes: &[RunChange]) -> Result<Self, LedgerError> {
        if !life::ends_waiting(changes) {
            return Err(LedgerError::invalid("a run is parked only by a write whose last step is `Wait`"));
        }
        if park.keys.len() > MAX_KEYS {
            return Err(LedgerError::invalid(format!(
                "a parked run waits for {} keys; the limit is {MAX_KEYS}",
                park.keys.len()
            )));
        }
        if park.keys.iter().any(|key| key.is_empty() || key.len() > MAX_PARK_KEY_BYTES) {
            return Err(LedgerError::invalid(format!("a key that a run waits for has 1 to {MAX_PARK_KEY_BYTES} bytes")));
        }
        let row = encode(&park)?;
        Ok(Self { park: Box::new(park), row })
    }

    pub(crate) fn bytes(&self) -> usize {
        // Once in the row, once as rows of their own.
        self.row.len() + self.park.keys.iter().map(|key| key.len() + 16).sum::<usize>() + 64
    }
}

impl Batch<'_> {
    /// What becomes of the park of a run that is in memory: `moved` where it makes a step, and then a new one.
    pub(crate) fn put_park(&mut self, run_no: u64, moved: bool, park: Option<NewPark>) {
        let Some(active) = self.memory.active.get_mut(&run_no) else { return };
        if moved && let Some(old) = active.park.take() {
            self.rows.delete(Table::Parked, &number(run_no));
            self.rows.delete(Table::Wakes, &pair(old.wake_at, run_no));
            for key in &old.keys {
                self.rows.delete(Table::Waits, &wait_key(key, run_no));
            }
            self.outcome.parked -= 1;
        }
        let Some(NewPark { park, row }) = park else { return };
        self.rows.put(Table::Parked, &number(run_no), &row);
        self.rows.put(Table::Wakes, &pair(park.wake_at, run_no), &[]);
        for key in &park.keys {
            self.rows.put(Table::Waits, &wait_key(key, run_no), &[]);
        }
        active.park = Some(park);
        self.memory.leaves(run_no);
        self.outcome.parked += 1;
    }
}

impl Reader {
    pub(crate) fn park(&self, run_no: u64) -> Result<Option<Park>, LedgerError> {
        self.get(Table::Parked, &number(run_no), |row| json(Table::Parked, row))
    }
}

impl Ledger {
    /// Until when a run is parked, and for what; nothing where it is not.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn parked(&self, run_no: u64) -> Result<Option<Park>, LedgerError> {
        self.reader()?.park(run_no)
    }

    /// How many runs are parked. It costs nothing.
    #[must_use]
    pub fn parked_count(&self) -> u64 {
        self.shared().counters.parked()
    }

    /// When the next parked run is to go on; nothing where none is parked. The time may be over.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn next_wake(&self) -> Result<Option<Timestamp>, LedgerError> {
        let rows = self.reader()?.table(Table::Wakes)?;
        let Some(row) = rows.range::<&[u8]>(..)?.next() else { return Ok(None) };
        read_pair(row?.0.value()).map(|(at, _)| Some(at)).ok_or_else(|| malformed(Table::Wakes))
    }

    /// Parked runs whose time has come, with that time, in its order: at most `limit`, after the one that `after` names.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
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
        rows.range::<&[u8]>((start, Bound::Included(end.as_slice())))?
            .take(limit)
            .map(|row| read_pair(row?.0.value()).ok_or_else(|| malformed(Table::Wakes)))
            .collect()
    }

    /// What parked runs wait for among the keys that begin with `prefix`, after `after`, in their order, at most `limit`:
    /// each key with the number of the run.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
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
        for row in rows.range::<&[u8]>((start, Bound::Unbounded))? {
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
    /// Where the ledger is damaged or not available.
    pub fn parked_on(&self, key: &str, limit: usize) -> Result<Vec<u64>, LedgerError> {
        let reader = self.reader()?;
        let last = reader.last_key(Table::Runs, read_number)?.unwrap_or(0);
        // Up to the last number that was given, and not up to the largest that there is: numbers begin with zeros, so
        // longer keys that begin with this one sort behind, and are not looked at.
        let (start, end) = (wait_key(key, 0), wait_key(key, last));
        let rows = reader.table(Table::Waits)?;
        let mut found = Vec::new();
        for row in rows.range::<&[u8]>(start.as_slice()..=end.as_slice())? {
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
