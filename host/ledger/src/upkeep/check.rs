//! Does the ledger hold what it promises? The records are in [`records`]; this file has the report, values, artifacts, journals and
//! parked runs.

mod records;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

use agent_host_protocol::RunStatus;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    boundary::guard_apart,
    digest::{Digest, hex, parse_hex},
    error::{LedgerError, OpenError},
    files::{blobs_path, size_of},
    record::{ArtifactRecord, Park, Usage},
    rows::{
        BY_ARTIFACT, BY_JOURNAL, BY_STORAGE, Branches, Reader, RunEnd, StoredValue, Table, json, malformed, number, pair,
        read_segment, read_stored, read_usage, schema,
    },
    store::{MissingLedger, database_path, open, real_files},
    upkeep::{compact::CACHE_BYTES, damaged_file::DamagedFile},
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
    /// True if redb found nothing to repair. Otherwise it made its list of free pages anew.
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
/// Fails with [`OpenError`] if the ledger cannot be opened or read, or pages have other checksums than they were written with; the
/// files are as before. Problems of its content are in the report.
pub fn check(dir: impl AsRef<Path>, progress: impl FnMut(f64)) -> Result<CheckReport, OpenError> {
    let dir = dir.as_ref();
    let of = dir.to_owned();
    guard_apart(dir, progress, move |progress| check_dir(&of, progress))
}

fn check_dir(dir: &Path, progress: &mut dyn FnMut(f64)) -> Result<CheckReport, OpenError> {
    progress(0.0);
    // Before the log is applied: a page that is written again gets a checksum of what it has then, and the damage is hidden.
    let pages_intact = match DamagedFile::open(&database_path(dir)) {
        Ok(file) if file.stored() > 0 => {
            file.not_in_use(dir)?;
            let damaged = |reason| OpenError::Damaged { dir: dir.to_owned(), reason };
            file.check_pages().map_err(damaged)?
        }
        // The opening says what is the matter.
        _ => true,
    };
    let store = open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?;
    let report = {
        let reader = store.reader()?;
        let blobs = blobs_path(dir);
        let mut check = Check::new(&reader, &blobs, store.copied().is_some(), progress)?;
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
    /// The ledger is a copy of a cluster's: a blob that is not here is in the database.
    is_copy: bool,
    progress: &'a mut dyn FnMut(f64),
    report: CheckReport,
    all_rows: u64,
    /// Events that belong to a conversation.
    listed_events: u64,
}

type CheckResult = Result<(), LedgerError>;

impl<'a> Check<'a> {
    fn new(reader: &'a Reader, blobs: &'a Path, is_copy: bool, progress: &'a mut dyn FnMut(f64)) -> Result<Self, LedgerError> {
        let mut all_rows = 0;
        for table in Table::ALL {
            all_rows += reader.table(*table)?.len()?;
        }
        Ok(Self { reader, blobs, is_copy, progress, report: CheckReport::default(), all_rows, listed_events: 0 })
    }

    fn all(&mut self) -> CheckResult {
        self.events()?;
        self.runs()?;
        self.run_events()?;
        self.transcript()?;
        self.audit()?;
        self.idempotency()?;
        self.each(Table::Terms, |check, key, value| {
            check.expect(Table::Terms, check.reader.has(Table::Runs, key)?, || "belongs to no run".to_owned());
            check.part(Table::Terms, value)
        })?;
        self.each(Table::Contexts, |check, key, value| {
            check.expect(Table::Contexts, check.reader.has(Table::Runs, key)?, || "belongs to no run".to_owned());
            check.part(Table::Contexts, value)
        })?;
        self.shared_parts()?;
        self.values()?;
        self.workspaces()?;
        self.artifacts()?;
        self.journal()?;
        self.parked()?;
        self.each(Table::Entries, |check, key, value| {
            if key.starts_with(Branches::PREFIX.as_bytes()) {
                check.parses::<Branches>(Table::Entries, value);
            } else {
                check.parses::<&RawValue>(Table::Entries, value);
            }
            Ok(())
        })?;
        self.blob_refs()
    }

    /// State and storage, and what is said of how much there is.
    fn values(&mut self) -> CheckResult {
        let mut usages: HashMap<Vec<u8>, Usage> = HashMap::new();
        let mut count = |table, key: &[u8], size: u64| -> CheckResult {
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
        let mut reported = 0;
        self.each(Table::Usage, |check, key, value| {
            reported += 1;
            let usage = read_usage(value).ok_or_else(|| malformed(Table::Usage))?;
            let counted = usages.get(key).copied().unwrap_or_default();
            check.expect(Table::Usage, usage == counted, || format!("a scope has {counted:?}, but {usage:?} is recorded for it"));
            Ok(())
        })?;
        let counted = usages.len();
        self.expect(Table::Usage, reported == counted, || format!("{counted} scopes have values, {reported} are known to"));
        Ok(())
    }

    /// The bytes that workspaces keep.
    fn workspaces(&mut self) -> CheckResult {
        let (counted, recorded) = match (self.reader.counted_usage(), self.reader.workspace_usage()) {
            (Ok(counted), Ok(recorded)) => (counted, recorded),
            // A table that cannot be read has its finding.
            (Err(LedgerError::Damaged(_)), _) => return Ok(()),
            (_, Err(LedgerError::Damaged(what))) => {
                self.expect(Table::Workspaces, false, || what.to_string());
                return Ok(());
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        self.report.rows += recorded.len() as u64;
        self.expect(Table::Workspaces, counted == recorded, || {
            let differs = |of: &[(String, u64)], other: &[(String, u64)]| of.iter().find(|row| !other.contains(row)).cloned();
            let (has, says) = (differs(&counted, &recorded), differs(&recorded, &counted));
            format!("a workspace keeps {has:?}, but {says:?} is recorded")
        });
        Ok(())
    }

    fn artifacts(&mut self) -> CheckResult {
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
    fn journal(&mut self) -> CheckResult {
        let mut current = None;
        self.each(Table::Journal, |check, key, value| {
            let (run_no, _) = schema::read_pair(key).ok_or_else(|| malformed(Table::Journal))?;
            if current != Some(run_no) {
                current = Some(run_no);
                let there = check.reader.has(Table::Runs, &number(run_no))?;
                check.expect(Table::Journal, there, || format!("there is a journal of run {run_no}, which is not there"));
            }
            check.segment(Table::Journal, key, value)
        })?;
        self.each(Table::RunEnds, |check, key, value| {
            let run_no = schema::read_number(key).ok_or_else(|| malformed(Table::RunEnds))?;
            let segments = RunEnd::read(value)?.segments;
            segments.into_iter().try_for_each(|(first, segment)| check.segment(Table::RunEnds, &pair(run_no, first), segment))
        })
    }

    /// The blobs of a segment are there.
    fn segment(&mut self, table: Table, name: &[u8], segment: &[u8]) -> CheckResult {
        let (digests, _) = read_segment(segment).ok_or_else(|| malformed(table))?;
        digests.iter().try_for_each(|digest| self.needs(table, digest, None, &schema::blob_ref(digest, BY_JOURNAL, name)))
    }

    /// The three tables of parked runs agree, and parked runs wait.
    fn parked(&mut self) -> CheckResult {
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
    fn needs(&mut self, table: Table, digest: &Digest, size: Option<u64>, listed: &[u8]) -> CheckResult {
        let listed = self.reader.has(Table::BlobRefs, listed)?;
        self.expect(Table::BlobRefs, listed, || format!("blob {} is needed and not listed", hex(digest)));
        let found = size_of(self.blobs, digest)
            .map_err(|error| LedgerError::damaged(format!("blob {} cannot be read: {error}", hex(digest))))?;
        match (found, size) {
            (Some(found), Some(size)) => {
                self.expect(table, found == size, || format!("blob {} has {found} bytes, not {size}", hex(digest)));
            }
            (Some(_), None) => {}
            (None, _) if self.is_copy => {}
            (None, _) => self.expect(table, false, || {
                format!("blob {} is not there: restore the folder `blobs` from the same backup", hex(digest))
            }),
        }
        Ok(())
    }

    fn blob_refs(&mut self) -> CheckResult {
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
                BY_JOURNAL => {
                    let (run_no, first) = schema::read_pair(name).ok_or_else(|| malformed(Table::BlobRefs))?;
                    let mut is_needed = false;
                    check.reader.segments(run_no, first, |found, digests, _| {
                        is_needed = found == first && digests.contains(digest);
                        false
                    })?;
                    Some(is_needed)
                }
                _ => None,
            };
            check.expect(Table::BlobRefs, needed == Some(true), || format!("blob {} is listed for nothing", hex(digest)));
            Ok(())
        })
    }

    /// Every row of a table.
    fn each(&mut self, table: Table, mut row: impl FnMut(&mut Self, &[u8], &[u8]) -> CheckResult) -> CheckResult {
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

    fn same_rows(&mut self, one: Table, other: Table) -> CheckResult {
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
}
