//! Does the ledger hold what it promises?

use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

use agent_host_protocol::{Event, Run, RunStatus, grant::ConversationKey};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    digest::{Digest, hex, parse_hex},
    error::{LedgerError, OpenError},
    files::{blobs_path, size_of},
    record::{ArtifactRecord, Park, Usage},
    rows::{
        BY_ARTIFACT, BY_JOURNAL, BY_STORAGE, ConversationRow, EventRow, FORGOTTEN, IdempotencyAgeRow, IdempotencyRow, Reader,
        StoredParts, StoredRows, StoredValue, Table, TranscriptRow, json, malformed, number, part_digest, read_segment,
        read_stored, read_usage, schema, stored_audit, stored_events,
    },
    store::{Hooks, Missing, open},
    upkeep::compact::CACHE_BYTES,
};

/// Any JSON object.
type Object = Map<String, Value>;

/// Findings that a report lists. A damaged file has thousands of the same kind.
const LISTED: usize = 100;
/// Number of rows between reports of progress.
const TELL_EVERY: u64 = 4_096;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Rows that were read.
    pub rows: u64,
    /// True if redb found every page intact. Otherwise redb repaired what it could.
    pub pages_intact: bool,
    /// Findings, at most 100.
    pub findings: Vec<Finding>,
    /// Number of findings.
    pub findings_count: u64,
}

impl CheckReport {
    /// True if there are no findings.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.pages_intact && self.findings_count == 0
    }
}

/// A problem of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The table.
    pub table: &'static str,
    /// Description of the problem.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.table, self.what)
    }
}

/// Reads a ledger that no host has open, and checks its invariants: the checksum of every page; sequences without a gap,
/// except for deleted items; exactly one terminal event, at the end, if and only if the run has ended; ids that map both
/// ways; every row readable; the blob of every artifact, storage value and journal present with its size; the usage of
/// scopes; parked runs waiting, and listed as they are parked. Rows that only the log has are applied first. `progress` is
/// called with a fraction.
///
/// # Errors
/// Fails with [`OpenError`] if the ledger cannot be opened or read. Problems of its content are in the report.
pub fn check(dir: impl AsRef<Path>, mut progress: impl FnMut(f64)) -> Result<CheckReport, OpenError> {
    let dir = dir.as_ref();
    let damaged = |error: &dyn fmt::Display| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
    progress(0.0);
    let mut store = open(dir, CACHE_BYTES, Missing::Refuse, &Hooks::default())?;
    let pages_intact = store.database.check_integrity().map_err(|e| damaged(&e))?;
    let report = {
        let reader = store.reader()?;
        let blobs = blobs_path(dir);
        let mut check = Check::new(&reader, &blobs, &mut progress)?;
        check.report.pages_intact = pages_intact;
        check.all()?;
        check.report
    };
    store.close()?;
    progress(1.0);
    Ok(report)
}

struct Check<'a> {
    reader: &'a Reader,
    blobs: &'a Path,
    progress: &'a mut dyn FnMut(f64),
    report: CheckReport,
    all_rows: u64,
    /// Events that belong to a conversation.
    listed_events: u64,
}

type Found = Result<(), LedgerError>;

impl<'a> Check<'a> {
    fn new(reader: &'a Reader, blobs: &'a Path, progress: &'a mut dyn FnMut(f64)) -> Result<Self, LedgerError> {
        let mut all_rows = 0;
        for table in Table::ALL {
            all_rows += reader.table(*table)?.len()?;
        }
        Ok(Self { reader, blobs, progress, report: CheckReport::default(), all_rows, listed_events: 0 })
    }

    fn all(&mut self) -> Found {
        self.events()?;
        self.runs()?;
        self.run_events()?;
        self.transcript()?;
        self.audit()?;
        self.idempotency()?;
        self.parts(Table::Terms)?;
        self.parts(Table::Contexts)?;
        self.shared_parts()?;
        self.values()?;
        self.artifacts()?;
        self.journal()?;
        self.parked()?;
        self.each(Table::Entries, |check, _, value| {
            check.parses::<&RawValue>(Table::Entries, value);
            Ok(())
        })?;
        self.blob_refs()
    }

    /// State and storage, and what is said of how much there is.
    fn values(&mut self) -> Found {
        let mut usages: HashMap<Vec<u8>, Usage> = HashMap::new();
        let mut count = |table, key: &[u8], size: u64| -> Found {
            let (scope, key) = schema::read_state_key(key).ok_or_else(|| malformed(table))?;
            let usage = usages.entry(schema::usage_key(table, scope)).or_default();
            usage.bytes += key.len() as u64 + size;
            usage.keys += 1;
            Ok(())
        };
        self.each(Table::State, |check, key, value| {
            check.parses::<&RawValue>(Table::State, value);
            count(Table::State, key, value.len() as u64)
        })?;
        self.each(Table::Storage, |check, key, value| {
            let value = read_stored(value).ok_or_else(|| malformed(Table::Storage))?;
            if let StoredValue::Blob(digest, size) = &value {
                check.needs(Table::Storage, digest, Some(*size), &schema::blob_ref(digest, BY_STORAGE, key))?;
            }
            count(Table::Storage, key, value.content().size())
        })?;
        let mut said = 0;
        self.each(Table::Usage, |check, key, value| {
            said += 1;
            let usage = read_usage(value).ok_or_else(|| malformed(Table::Usage))?;
            let counted = usages.get(key).copied().unwrap_or_default();
            check.expect(Table::Usage, usage == counted, || format!("a scope has {counted:?}, but {usage:?} is said of it"));
            Ok(())
        })?;
        let counted = usages.len();
        self.expect(Table::Usage, said == counted, || format!("{counted} scopes have values, {said} are known to"));
        Ok(())
    }

    fn artifacts(&mut self) -> Found {
        let (mut expiring, mut listed) = (0, 0);
        self.each(Table::Artifacts, |check, key, value| {
            let Some(record) = check.parses::<ArtifactRecord>(Table::Artifacts, value) else { return Ok(()) };
            let id = &record.artifact_id;
            check.expect(Table::Artifacts, id.as_bytes() == key, || format!("artifact {id} has another key"));
            match parse_hex(&record.sha256) {
                Some(digest) => {
                    let listed = schema::blob_ref(&digest, BY_ARTIFACT, key);
                    check.needs(Table::Artifacts, &digest, Some(record.size), &listed)?;
                }
                None => check.expect(Table::Artifacts, false, || format!("artifact {id} has no digest")),
            }
            if let Some(at) = record.expires_at {
                expiring += 1;
                let listed = check.reader.has(Table::ArtifactExpiry, &schema::expiry(at, id))?;
                check.expect(Table::ArtifactExpiry, listed, || format!("artifact {id} expires and is not listed"));
            }
            Ok(())
        })?;
        self.each(Table::ArtifactExpiry, |_, _, _| {
            listed += 1;
            Ok(())
        })?;
        self.expect(Table::ArtifactExpiry, listed == expiring, || format!("{listed} are listed, {expiring} expire"));
        self.each(Table::Unreferenced, |check, key, value| {
            let there = check.reader.has(Table::Artifacts, key)? && schema::read_number(value).is_some();
            check.expect(Table::Unreferenced, there, || "an artifact is listed that is not there".to_owned());
            Ok(())
        })
    }

    /// Journals belong to runs, and their blobs are there.
    fn journal(&mut self) -> Found {
        let mut current = None;
        self.each(Table::Journal, |check, key, value| {
            let (run_no, _) = schema::read_pair(key).ok_or_else(|| malformed(Table::Journal))?;
            if current != Some(run_no) {
                current = Some(run_no);
                let there = check.reader.has(Table::Runs, &number(run_no))?;
                check.expect(Table::Journal, there, || format!("there is a journal of run {run_no}, which is not there"));
            }
            let (digests, _) = read_segment(value).ok_or_else(|| malformed(Table::Journal))?;
            for digest in digests {
                check.needs(Table::Journal, digest, None, &schema::blob_ref(digest, BY_JOURNAL, key))?;
            }
            Ok(())
        })
    }

    /// The three tables of parked runs agree, and parked runs wait.
    fn parked(&mut self) -> Found {
        let (mut parked, mut keys) = (0, 0);
        self.each(Table::Parked, |check, key, value| {
            let run_no = schema::read_number(key).ok_or_else(|| malformed(Table::Parked))?;
            parked += 1;
            let run = check.reader.run(run_no)?;
            check.expect(Table::Parked, run.as_ref().is_some_and(|run| run.status == RunStatus::Waiting), || match run {
                Some(run) => format!("run {run_no} is parked, and {}", run.status),
                None => format!("run {run_no} is parked and not there"),
            });
            let Some(park) = check.parses::<Park>(Table::Parked, value) else { return Ok(()) };
            let listed = check.reader.has(Table::Wakes, &schema::pair(park.wake_at, run_no))?;
            check.expect(Table::Wakes, listed, || format!("run {run_no} is parked and never wakes"));
            let distinct: HashSet<_> = park.keys.iter().collect();
            keys += distinct.len() as u64;
            for key in distinct {
                let listed = check.reader.has(Table::Waits, &schema::wait_key(key, run_no))?;
                check.expect(Table::Waits, listed, || format!("run {run_no} waits for `{key}` and is not listed"));
            }
            Ok(())
        })?;
        // Each has its row, so as many rows are theirs, and no others.
        let mut listed = (0, 0);
        self.each(Table::Wakes, |_, key, _| {
            listed.0 += 1;
            schema::read_pair(key).map(|_| ()).ok_or_else(|| malformed(Table::Wakes))
        })?;
        self.each(Table::Waits, |_, key, _| {
            listed.1 += 1;
            schema::read_wait_key(key).map(|_| ()).ok_or_else(|| malformed(Table::Waits))
        })?;
        self.expect(Table::Wakes, listed.0 == parked, || format!("{} runs are listed, {parked} are parked", listed.0));
        self.expect(Table::Waits, listed.1 == keys, || format!("{} keys are listed, {keys} are waited for", listed.1));
        Ok(())
    }

    /// Checks that a blob of a row exists, has its known size, and is listed as needed.
    fn needs(&mut self, table: Table, digest: &Digest, size: Option<u64>, listed: &[u8]) -> Found {
        let listed = self.reader.has(Table::BlobRefs, listed)?;
        self.expect(Table::BlobRefs, listed, || format!("blob {} is needed and not listed", hex(digest)));
        let found = size_of(self.blobs, digest)
            .map_err(|error| LedgerError::damaged(format!("blob {} cannot be read: {error}", hex(digest))))?;
        match (found, size) {
            (Some(found), Some(size)) => {
                self.expect(table, found == size, || format!("blob {} has {found} bytes, not {size}", hex(digest)));
            }
            (Some(_), None) => {}
            (None, _) => self.expect(table, false, || {
                format!("blob {} is not there: restore the folder `blobs` from the same backup", hex(digest))
            }),
        }
        Ok(())
    }

    fn blob_refs(&mut self) -> Found {
        self.each(Table::BlobRefs, |check, key, _| {
            let (digest, kind, name) = schema::read_blob_ref(key).ok_or_else(|| malformed(Table::BlobRefs))?;
            let needed = match kind {
                BY_ARTIFACT => check.reader.get(Table::Artifacts, name, |row| {
                    let record: ArtifactRecord = json(Table::Artifacts, row)?;
                    Ok(parse_hex(&record.sha256).as_ref() == Some(digest))
                })?,
                BY_STORAGE => check.reader.get(Table::Storage, name, |row| {
                    Ok(matches!(read_stored(row), Some(StoredValue::Blob(stored, _)) if stored == *digest))
                })?,
                BY_JOURNAL => check.reader.get(Table::Journal, name, |row| {
                    Ok(read_segment(row).is_some_and(|(digests, _)| digests.contains(digest)))
                })?,
                _ => None,
            };
            check.expect(Table::BlobRefs, needed == Some(true), || format!("blob {} is listed for nothing", hex(digest)));
            Ok(())
        })
    }

    /// Every row of a table.
    fn each(&mut self, table: Table, mut row: impl FnMut(&mut Self, &[u8], &[u8]) -> Found) -> Found {
        for entry in self.reader.table(table)?.iter()? {
            let (key, value) = entry?;
            match row(self, key.value(), value.value()) {
                Err(LedgerError::Damaged(what)) => self.expect(table, false, || what.to_string()),
                result => result?,
            }
            self.report.rows += 1;
            if self.report.rows.is_multiple_of(TELL_EVERY) {
                (self.progress)((self.report.rows as f64 / self.all_rows.max(1) as f64).min(1.0));
            }
        }
        Ok(())
    }

    fn expect(&mut self, table: Table, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.report.findings_count += 1;
            if self.report.findings.len() < LISTED {
                self.report.findings.push(Finding { table: table.name(), what: what() });
            }
        }
    }

    fn parses<'v, T: serde::Deserialize<'v>>(&mut self, table: Table, value: &'v [u8]) -> Option<T> {
        let parsed = json(table, value);
        self.expect(table, parsed.is_ok(), || "a row has the wrong content".to_owned());
        parsed.ok()
    }

    fn same_rows(&mut self, one: Table, other: Table) -> Found {
        let (a, b) = (self.reader.table(one)?.len()?, self.reader.table(other)?.len()?);
        self.expect(one, a == b, || format!("{a} rows, but `{}` has {b}", other.name()));
        Ok(())
    }

    /// Keys that are numbers follow each other from 1.
    fn follows(&mut self, table: Table, key: &[u8], expected: &mut u64) -> Result<u64, LedgerError> {
        let no = schema::read_number(key).ok_or_else(|| malformed(table))?;
        let wanted = *expected;
        self.expect(table, no == wanted, || format!("{no} comes where {wanted} should"));
        *expected = no + 1;
        Ok(no)
    }

    fn events(&mut self) -> Found {
        self.same_rows(Table::Events, Table::EventIds)?;
        let mut next = 1;
        self.each(Table::Events, |check, key, value| {
            let event_no = check.follows(Table::Events, key, &mut next)?;
            let Some(row) = check.parses::<EventRow<'_>>(Table::Events, value) else { return Ok(()) };
            let Some(event) = check.parses::<Event>(Table::Events, row.event.get().as_bytes()) else { return Ok(()) };
            check.listed_event(event_no, &event)?;
            let mapped = check.reader.number(Table::EventIds, &event.event_id.to_bytes())?;
            check.expect(Table::EventIds, mapped == Some(event_no), || format!("event {} is not {event_no}", event.event_id));
            for (run_no, id) in row.runs {
                let run = check.reader.run(run_no)?;
                let holds = run.is_some_and(|run| run.run_id == id && run.event_id == event.event_id);
                check.expect(Table::Events, holds, || format!("event {event_no} has run {id}, which does not have it"));
            }
            Ok(())
        })
    }

    /// Checks that an event is listed under its conversation.
    fn listed_event(&mut self, event_no: u64, event: &Event) -> Found {
        let Some(key) = event.envelope.conversation.as_ref().and_then(ConversationKey::of) else { return Ok(()) };
        let index = key.index();
        let no = self
            .reader
            .get(Table::Conversations, index.as_bytes(), |row| Ok(json::<ConversationRow>(Table::Conversations, row)?.no))?;
        let listed = match no {
            Some(no) => self.reader.get(Table::ConversationEvents, &schema::pair(no, event_no), |event_type| {
                Ok(event_type == event.envelope.event_type.as_bytes())
            })?,
            None => None,
        };
        self.expect(Table::ConversationEvents, listed == Some(true), || {
            format!("event {event_no} is not listed under its conversation")
        });
        self.listed_events += 1;
        Ok(())
    }

    /// Rows of runs that may be in parts.
    fn parts(&mut self, table: Table) -> Found {
        self.each(table, |check, key, value| {
            check.expect(table, check.reader.has(Table::Runs, key)?, || "belongs to no run".to_owned());
            let own = match StoredParts::read(table, value) {
                Ok(StoredParts::Whole(text)) => text,
                Ok(StoredParts::Parts { digest, own }) => {
                    let is_there = check.reader.has(Table::SharedParts, digest)?;
                    check.expect(table, is_there, || "its shared part is not there".to_owned());
                    own
                }
                Err(error) => {
                    check.expect(table, false, || error.to_string());
                    return Ok(());
                }
            };
            check.parses::<Object>(table, own);
            Ok(())
        })
    }

    fn shared_parts(&mut self) -> Found {
        self.each(Table::SharedParts, |check, key, value| {
            check.expect(Table::SharedParts, part_digest(value) == key, || "a part has another digest".to_owned());
            check.parses::<Object>(Table::SharedParts, value);
            Ok(())
        })
    }

    fn runs(&mut self) -> Found {
        self.same_rows(Table::Runs, Table::RunIds)?;
        self.same_rows(Table::Runs, Table::Terms)?;
        let (mut next, mut active) = (1, 0);
        let listed = self.reader.table(Table::Active)?;
        self.each(Table::Runs, |check, key, value| {
            let run_no = check.follows(Table::Runs, key, &mut next)?;
            let Some(run) = check.parses::<Run>(Table::Runs, value) else { return Ok(()) };
            let mapped = check.reader.number(Table::RunIds, &run.run_id.to_bytes())?;
            check.expect(Table::RunIds, mapped == Some(run_no), || format!("run {} is not {run_no}", run.run_id));
            let is_listed = listed.get(key)?.is_some();
            check.expect(Table::Active, is_listed != run.status.is_terminal(), || format!("run {run_no} is {}", run.status));
            active += u64::from(!run.status.is_terminal());
            let event = check.reader.has(Table::EventIds, &run.event_id.to_bytes())?;
            check.expect(Table::Runs, event, || format!("run {run_no} answers an event that is not there"));
            check.events_of(run_no, &run)
        })?;
        let listed = listed.len()?;
        self.expect(Table::Active, listed == active, || format!("{listed} runs are active, {active} have not ended"));
        Ok(())
    }

    fn events_of(&mut self, run_no: u64, run: &Run) -> Found {
        let table = Table::RunEvents;
        let (begin, end) = (schema::pair(run_no, 0), schema::pair(run_no, u64::MAX));
        let mut last = (0, false);
        if let Some(row) = self.reader.table(table)?.range(begin.as_slice()..=end.as_slice())?.next_back() {
            let (key, value) = row?;
            let (_, first) = schema::read_pair(key.value()).ok_or_else(|| malformed(table))?;
            for event in stored_events(first, value.value())? {
                let (sequence, event) = event?;
                last = (sequence, event.is_terminal());
            }
        }
        let (last, is_end) = last;
        self.expect(table, last == run.last_sequence, || {
            format!("run {run_no} ends with event {last}, but says {}", run.last_sequence)
        });
        self.expect(table, is_end == run.status.is_terminal(), || {
            format!("run {run_no} is {}, but its last event differs", run.status)
        });
        Ok(())
    }

    fn run_events(&mut self) -> Found {
        let mut expected = (0, 0);
        let mut ended = false;
        let runs = self.reader.table(Table::Runs)?;
        self.each(Table::RunEvents, |check, key, value| {
            let (run_no, first) = schema::read_pair(key).ok_or_else(|| malformed(Table::RunEvents))?;
            if run_no != expected.0 {
                expected = (run_no, 1);
                ended = false;
                check.belongs(&runs, run_no)?;
                if first > 1 && check.is_forgotten(&runs, run_no, first)? {
                    expected.1 = first;
                }
            }
            for event in stored_events(first, value)? {
                let (sequence, event) = event?;
                let wanted = expected.1;
                check.expect(Table::RunEvents, sequence == wanted, || {
                    format!("run {run_no}: event {sequence} comes where {wanted} should")
                });
                check.expect(Table::RunEvents, !ended, || format!("run {run_no}: event {sequence} follows the end"));
                check.parses::<&RawValue>(Table::RunEvents, event.data.as_bytes());
                expected.1 = sequence + 1;
                ended |= event.is_terminal();
            }
            Ok(())
        })
    }

    /// True if a run was deleted, and this is its one remaining event.
    fn is_forgotten(&self, runs: &StoredRows, run_no: u64, sequence: u64) -> Result<bool, LedgerError> {
        let Some(row) = runs.get(number(run_no).as_slice())? else { return Ok(false) };
        let run: Run = json(Table::Runs, row.value())?;
        Ok(run.metadata.contains_key(FORGOTTEN) && run.last_sequence == sequence)
    }

    fn belongs(&mut self, runs: &StoredRows, run_no: u64) -> Found {
        let there = runs.get(number(run_no).as_slice())?.is_some();
        self.expect(Table::RunEvents, there, || format!("there are events of run {run_no}, which is not there"));
        Ok(())
    }

    fn transcript(&mut self) -> Found {
        let mut numbers = Vec::new();
        self.each(Table::Conversations, |check, key, value| {
            if let Some(row) = check.parses::<ConversationRow>(Table::Conversations, value) {
                check.expect(Table::Conversations, row.key.index().as_bytes() == key, || {
                    format!("conversation {} has another key", row.no)
                });
                numbers.push(row.no);
            }
            Ok(())
        })?;
        numbers.sort_unstable();
        let twice = numbers.windows(2).any(|pair| pair.first() == pair.last());
        self.expect(Table::Conversations, !twice, || "two conversations have one number".to_owned());
        let mut expected = (0, 0);
        let mut used = HashSet::new();
        self.each(Table::Transcript, |check, key, value| {
            let (no, seq) = schema::read_pair(key).ok_or_else(|| malformed(Table::Transcript))?;
            let row = check.parses::<TranscriptRow>(Table::Transcript, value);
            if no != expected.0 {
                // Deleted items are missing up to their placeholder.
                expected = (no, if row.is_some_and(|row| row.is_end()) { seq } else { 1 });
                used.insert(no);
                check.expect(Table::Transcript, numbers.binary_search(&no).is_ok(), || format!("conversation {no} is not there"));
            }
            let wanted = expected.1;
            check.expect(Table::Transcript, seq == wanted, || {
                format!("conversation {no}: item {seq} comes where {wanted} should")
            });
            expected.1 = seq + 1;
            Ok(())
        })?;
        let mut listed = 0;
        self.each(Table::ConversationEvents, |check, key, _| {
            let (no, event_no) = schema::read_pair(key).ok_or_else(|| malformed(Table::ConversationEvents))?;
            if used.insert(no) {
                let there = numbers.binary_search(&no).is_ok();
                check.expect(Table::ConversationEvents, there, || format!("conversation {no} is not there"));
            }
            let there = check.reader.has(Table::Events, &number(event_no))?;
            check.expect(Table::ConversationEvents, there, || format!("event {event_no} is listed and not there"));
            listed += 1;
            Ok(())
        })?;
        let wanted = self.listed_events;
        self.expect(Table::ConversationEvents, listed == wanted, || format!("{listed} events are listed, {wanted} should be"));
        self.expect(Table::Conversations, used.len() == numbers.len(), || {
            format!("{} conversations, {} have a transcript or an event", numbers.len(), used.len())
        });
        Ok(())
    }

    fn audit(&mut self) -> Found {
        let (mut next, mut of_runs) = (1, 0);
        let listed = self.reader.table(Table::AuditRuns)?;
        self.each(Table::Audit, |check, key, value| {
            let first = check.follows(Table::Audit, key, &mut next)?;
            for record in stored_audit(first, value)? {
                let (audit_no, stored) = record?;
                next = audit_no + 1;
                let record = stored.record();
                let run_id = stored.run_id();
                let is_its_run = record.is_ok_and(|record| record.run_id == run_id);
                check.expect(Table::Audit, is_its_run, || format!("record {audit_no} has the wrong content"));
                let Some(id) = run_id else { continue };
                of_runs += 1;
                let is_listed = listed.get(&schema::audit_run(id, audit_no))?.is_some();
                check.expect(Table::AuditRuns, is_listed, || format!("record {audit_no} is not listed under run {id}"));
            }
            Ok(())
        })?;
        let listed = listed.len()?;
        self.expect(Table::AuditRuns, listed == of_runs, || format!("{listed} records are listed, {of_runs} have a run"));
        Ok(())
    }

    fn idempotency(&mut self) -> Found {
        self.each(Table::Idempotency, |check, key, value| {
            if let Some(row) = check.parses::<IdempotencyRow>(Table::Idempotency, value) {
                let age = check.reader.get(Table::IdempotencyAge, &number(row.event_no), |bytes| {
                    Ok(json::<IdempotencyAgeRow<'_>>(Table::IdempotencyAge, bytes).is_ok_and(|age| age.key.as_bytes() == key))
                })?;
                check
                    .expect(Table::IdempotencyAge, age == Some(true), || format!("the key of event {} has no age", row.event_no));
                let event = check.reader.number(Table::EventIds, &row.event_id.to_bytes())?;
                check.expect(Table::Idempotency, event == Some(row.event_no), || format!("event {} is another", row.event_no));
            }
            Ok(())
        })
    }
}
