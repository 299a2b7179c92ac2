//! Does the ledger hold what it promises?

use std::{fmt, path::Path, sync::Arc};

use agent_host_protocol::{Event, ResultKind, Run, RunId};
use redb::{ReadableTable, ReadableTableMetadata};
use serde_json::value::RawValue;

use crate::{
    compact::CACHE_BYTES,
    error::{LedgerError, OpenError},
    operation::{ConversationRow, EventRow, IdempotencyAgeRow, IdempotencyRow, RunEventRow, TranscriptRow},
    read::{Reader, Rows, json, malformed},
    record::AuditRecord,
    schema::{self, Table, number},
    store::{Missing, Store},
};

/// Findings that a report lists. A damaged file has thousands of the same kind.
const LISTED: usize = 100;
/// Progress is told after so many rows.
const TELL_EVERY: u64 = 4_096;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Rows that were read.
    pub rows: u64,
    /// Whether redb found every page intact. Where it did not, it repaired what it could.
    pub pages_intact: bool,
    /// What is wrong, at most 100 of them.
    pub findings: Vec<Finding>,
    /// How many there are.
    pub findings_count: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.pages_intact && self.findings_count == 0
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The table.
    pub table: &'static str,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.table, self.what)
    }
}

/// Reads all of a ledger that no host has open and holds it against its promises: the checksum of every page;
/// sequences without a gap; exactly one terminal event, at the end, if and only if the run has ended; ids that map
/// both ways; every row readable. What only the log holds is taken over first. `progress` is told a fraction.
///
/// # Errors
/// [`OpenError`] where the ledger cannot be opened or read. What is wrong with its content is in the report.
pub fn check(dir: impl AsRef<Path>, mut progress: impl FnMut(f64)) -> Result<CheckReport, OpenError> {
    let dir = dir.as_ref();
    let damaged = |error: &dyn fmt::Display| OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() };
    progress(0.0);
    let mut store = Store::open(dir, CACHE_BYTES, 0, Missing::Refuse, None)?;
    let database = Arc::get_mut(&mut store.database).ok_or_else(|| damaged(&"it is in use"))?;
    let pages_intact = database.check_integrity().map_err(|e| damaged(&e))?;
    let report = {
        let reader = Reader::new(database)?;
        let mut check = Check::new(&reader, &mut progress)?;
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
    progress: &'a mut dyn FnMut(f64),
    report: CheckReport,
    all_rows: u64,
}

type Found = Result<(), LedgerError>;

impl<'a> Check<'a> {
    fn new(reader: &'a Reader, progress: &'a mut dyn FnMut(f64)) -> Result<Self, LedgerError> {
        let mut all_rows = 0;
        for table in Table::ALL {
            all_rows += reader.table(*table)?.len()?;
        }
        Ok(Self { reader, progress, report: CheckReport::default(), all_rows })
    }

    fn all(&mut self) -> Found {
        self.events()?;
        self.runs()?;
        self.run_events()?;
        self.transcript()?;
        self.audit()?;
        self.idempotency()?;
        for table in [Table::Terms, Table::Contexts] {
            self.each(table, |check, key, value| {
                check.expect(table, check.reader.has(Table::Runs, key)?, || "belongs to no run".to_owned());
                check.parses::<&RawValue>(table, value);
                Ok(())
            })?;
        }
        self.each(Table::State, |check, key, value| {
            check.expect(Table::State, schema::read_state_key(key).is_some(), || "a malformed key".to_owned());
            check.parses::<&RawValue>(Table::State, value);
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
        self.expect(table, parsed.is_ok(), || "a row is not what it should be".to_owned());
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

    fn runs(&mut self) -> Found {
        self.same_rows(Table::Runs, Table::RunIds)?;
        self.same_rows(Table::Runs, Table::Terms)?;
        let (mut next, mut active) = (1, 0);
        self.each(Table::Runs, |check, key, value| {
            let run_no = check.follows(Table::Runs, key, &mut next)?;
            let Some(run) = check.parses::<Run>(Table::Runs, value) else { return Ok(()) };
            let mapped = check.reader.number(Table::RunIds, &run.run_id.to_bytes())?;
            check.expect(Table::RunIds, mapped == Some(run_no), || format!("run {} is not {run_no}", run.run_id));
            let listed = check.reader.has(Table::Active, key)?;
            check.expect(Table::Active, listed != run.status.is_terminal(), || format!("run {run_no} is {}", run.status));
            active += u64::from(!run.status.is_terminal());
            let event = check.reader.has(Table::EventIds, &run.event_id.to_bytes())?;
            check.expect(Table::Runs, event, || format!("run {run_no} answers an event that is not there"));
            check.events_of(run_no, &run)
        })?;
        let listed = self.reader.table(Table::Active)?.len()?;
        self.expect(Table::Active, listed == active, || format!("{listed} runs are active, {active} have not ended"));
        Ok(())
    }

    fn events_of(&mut self, run_no: u64, run: &Run) -> Found {
        let last = self.reader.last_of(Table::RunEvents, run_no)?;
        self.expect(Table::RunEvents, last == run.last_sequence, || {
            format!("run {run_no} ends with event {last}, but says {}", run.last_sequence)
        });
        let row = self.reader.get(Table::RunEvents, &schema::pair(run_no, last), |bytes| {
            Ok(json::<RunEventRow<'_>>(Table::RunEvents, bytes).is_ok_and(|row| is_terminal(&row)))
        })?;
        self.expect(Table::RunEvents, row.unwrap_or(false) == run.status.is_terminal(), || {
            format!("run {run_no} is {}, but its last event says otherwise", run.status)
        });
        Ok(())
    }

    fn run_events(&mut self) -> Found {
        let mut expected = (0, 0);
        let mut ended = false;
        let runs = self.reader.table(Table::Runs)?;
        self.each(Table::RunEvents, |check, key, value| {
            let (run_no, sequence) = schema::read_pair(key).ok_or_else(|| malformed(Table::RunEvents))?;
            if run_no != expected.0 {
                expected = (run_no, 1);
                ended = false;
                check.belongs(&runs, run_no)?;
            }
            let wanted = expected.1;
            check.expect(Table::RunEvents, sequence == wanted, || {
                format!("run {run_no}: event {sequence} comes where {wanted} should")
            });
            check.expect(Table::RunEvents, !ended, || format!("run {run_no}: event {sequence} follows the end"));
            expected.1 = sequence + 1;
            ended |= check.parses::<RunEventRow<'_>>(Table::RunEvents, value).is_some_and(|row| is_terminal(&row));
            Ok(())
        })
    }

    fn belongs(&mut self, runs: &Rows, run_no: u64) -> Found {
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
        let mut seen = 0;
        self.each(Table::Transcript, |check, key, value| {
            let (no, seq) = schema::read_pair(key).ok_or_else(|| malformed(Table::Transcript))?;
            if no != expected.0 {
                expected = (no, 1);
                seen += 1;
                check.expect(Table::Transcript, numbers.binary_search(&no).is_ok(), || format!("conversation {no} is not there"));
            }
            let wanted = expected.1;
            check.expect(Table::Transcript, seq == wanted, || {
                format!("conversation {no}: item {seq} comes where {wanted} should")
            });
            expected.1 = seq + 1;
            check.parses::<TranscriptRow>(Table::Transcript, value);
            Ok(())
        })?;
        self.expect(Table::Conversations, seen == numbers.len(), || {
            format!("{} conversations, {seen} transcripts", numbers.len())
        });
        Ok(())
    }

    fn audit(&mut self) -> Found {
        let (mut next, mut of_runs) = (1, 0);
        self.each(Table::Audit, |check, key, value| {
            let audit_no = check.follows(Table::Audit, key, &mut next)?;
            let Some(record) = check.parses::<AuditRecord>(Table::Audit, value) else { return Ok(()) };
            if let Some(id) = record.run_id {
                of_runs += 1;
                check.listed(id, audit_no)?;
            }
            Ok(())
        })?;
        let listed = self.reader.table(Table::AuditRuns)?.len()?;
        self.expect(Table::AuditRuns, listed == of_runs, || format!("{listed} records are listed, {of_runs} have a run"));
        Ok(())
    }

    fn listed(&mut self, id: RunId, audit_no: u64) -> Found {
        let listed = self.reader.has(Table::AuditRuns, &schema::audit_run(id, audit_no))?;
        self.expect(Table::AuditRuns, listed, || format!("record {audit_no} is not listed under run {id}"));
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

fn is_terminal(row: &RunEventRow<'_>) -> bool {
    ResultKind::from_name(&row.kind).is_some_and(ResultKind::is_terminal)
}
