//! The ledger as JSON Lines, for people and for other programs.

use std::{collections::HashMap, io::Write, ops::Bound, path::Path};

use agent_host_protocol::{RunEvent, RunId, grant::ConversationKey, transcript::TranscriptItem};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    boundary::guard_open,
    digest::hex,
    error::{LedgerError, OpenError},
    handle::Ledger,
    read::{Sequence, item},
    record::{AuditRecord, StorageContent},
    rows::{
        Branches, ConversationRow, EventRow, Reader, RunEnd, Table, json, malformed, raw, read_segment, read_stored, schema,
        stored_audit, stored_events, stored_run,
    },
    store::{MissingLedger, open, real_files},
    upkeep::compact::CACHE_BYTES,
};

/// Rows that are read in one transaction: some milliseconds, so that an export of a running host does not make its
/// file grow.
const ROWS_AT_ONCE: usize = 500;

/// The counts of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportReport {
    /// Lines, each a JSON object.
    pub lines: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A line. `table` says which kind.
#[derive(Serialize)]
#[serde(tag = "table", rename_all = "snake_case")]
enum Line<'a> {
    Event {
        event_no: u64,
        runs: Vec<RunId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        transcript_seq: Option<u64>,
        event: &'a RawValue,
    },
    Run {
        run_no: u64,
        run: Box<RawValue>,
        terms: Option<Box<RawValue>>,
        context: Option<Box<RawValue>>,
        /// Park row: wake time and keys.
        #[serde(skip_serializing_if = "Option::is_none")]
        park: Option<Box<RawValue>>,
    },
    RunEvent {
        event: RunEvent,
    },
    Journal {
        run_id: RunId,
        /// Number of the first entry of the segment.
        first: u64,
        base64: String,
        /// Digests of the blobs that the segment names.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        blobs: Vec<String>,
    },
    Transcript {
        conversation: &'a ConversationKey,
        item: TranscriptItem,
        /// True if the item has left the conversation with a branch.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        left: bool,
    },
    State {
        scope_key: &'a str,
        key: &'a str,
        value: Box<RawValue>,
    },
    Storage {
        area_key: &'a str,
        key: &'a str,
        /// `None` if the value is a blob.
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        /// The blob that has the value.
        #[serde(skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
        size: u64,
    },
    Artifact {
        artifact: Box<RawValue>,
    },
    Audit {
        audit_no: u64,
        record: AuditRecord,
    },
}

/// Exports a ledger that no host has open. See [`Ledger::export`].
///
/// # Errors
/// [`OpenError::NoLedger`], [`OpenError::AlreadyOpen`], those of `out` and of a damaged ledger.
pub fn export(dir: impl AsRef<Path>, out: impl Write, progress: impl FnMut(f64)) -> Result<ExportReport, OpenError> {
    let dir = dir.as_ref();
    guard_open(dir, || {
        let store = open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?;
        let report = Export::run(&|| store.reader(), out, progress)?;
        store.close()?;
        Ok(report)
    })
}

impl Ledger {
    /// Writes events, runs (with terms, context and park row), run events, journals, transcripts, state, storage, artifacts
    /// and audit records as JSON Lines. Content in blobs is named by its digest; the folder `blobs` has the bytes.
    /// `progress` is called with a fraction from 0 to 1. Blocks while everything is read.
    ///
    /// The export reads in small steps, so later changes may or may not be in it, and a run may lack events that came after
    /// it was written.
    ///
    /// # Errors
    /// Fails with the errors of `out`, or if the ledger is damaged or not available.
    pub fn export(&self, out: impl Write, progress: impl FnMut(f64)) -> Result<ExportReport, OpenError> {
        Export::run(&|| self.reader(), out, progress)
    }
}

struct Export<'a, W, P> {
    open: &'a dyn Fn() -> Result<Reader, LedgerError>,
    out: W,
    progress: P,
    report: ExportReport,
    line: Vec<u8>,
    rows: u64,
    all_rows: u64,
}

impl<'a, W: Write, P: FnMut(f64)> Export<'a, W, P> {
    fn run(open: &'a dyn Fn() -> Result<Reader, LedgerError>, out: W, progress: P) -> Result<ExportReport, OpenError> {
        let tables = [
            Table::Events,
            Table::Runs,
            Table::RunEvents,
            Table::Journal,
            Table::RunEnds,
            Table::Transcript,
            Table::State,
            Table::Storage,
            Table::Artifacts,
            Table::Audit,
        ];
        let mut all_rows = 0;
        for table in tables {
            all_rows += open()?.table(table)?.len()?;
        }
        let mut export = Self { open, out, progress, report: ExportReport::default(), line: Vec::new(), rows: 0, all_rows };
        export.events()?;
        export.runs()?;
        export.run_events()?;
        export.journal()?;
        export.run_ends()?;
        export.transcript()?;
        export.state()?;
        export.storage()?;
        export.artifacts()?;
        export.audit()?;
        export.out.flush().map_err(cannot_write)?;
        (export.progress)(1.0);
        Ok(export.report)
    }

    fn write(&mut self, line: &Line<'_>) -> Result<(), OpenError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line).map_err(|error| LedgerError::invalid(error.to_string()))?;
        self.line.push(b'\n');
        self.report.lines += 1;
        self.report.bytes += self.line.len() as u64;
        self.out.write_all(&self.line).map_err(cannot_write)
    }

    /// Every row of a table, in short transactions.
    fn each(
        &mut self,
        table: Table,
        mut row: impl FnMut(&mut Self, &Reader, &[u8], &[u8]) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        let mut last: Option<Vec<u8>> = None;
        loop {
            let reader = (self.open)()?;
            let start = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let rows = reader.table(table)?.range((start, Bound::Unbounded))?;
            let mut count = 0;
            let mut key = None;
            for entry in rows.take(ROWS_AT_ONCE) {
                let (k, value) = entry?;
                row(self, &reader, k.value(), value.value())?;
                count += 1;
                key = Some(k.value().to_vec());
            }
            self.rows += count;
            (self.progress)((self.rows as f64 / self.all_rows.max(1) as f64).min(1.0));
            match key {
                Some(key) if count == ROWS_AT_ONCE as u64 => last = Some(key),
                _ => return Ok(()),
            }
        }
    }

    fn events(&mut self) -> Result<(), OpenError> {
        self.each(Table::Events, |this, _, key, value| {
            let event_no = number(Table::Events, key)?;
            let (row, runs) = EventRow::read(event_no, value)?;
            let runs = runs.into_iter().map(|run| run.id).collect();
            let event = json(Table::Events, row.event)?;
            this.write(&Line::Event { event_no, runs, transcript_seq: row.transcript_seq, event })
        })
    }

    fn runs(&mut self) -> Result<(), OpenError> {
        self.each(Table::Runs, |this, reader, key, value| {
            let run_no = number(Table::Runs, key)?;
            let terms = reader.terms(run_no)?;
            let context = reader.context(run_no)?;
            let park = reader.get(Table::Parked, key, |bytes| raw(Table::Parked, bytes))?;
            this.write(&Line::Run {
                run_no,
                run: to_raw_value(&stored_run(value)?).map_err(|error| LedgerError::not_json(&error))?,
                terms,
                context,
                park,
            })
        })
    }

    fn run_events(&mut self) -> Result<(), OpenError> {
        self.of_runs(Table::RunEvents, |this, id, key, value| {
            let (_, first) = schema::read_pair(key).ok_or_else(|| malformed(Table::RunEvents))?;
            this.events_of(id, first, value)
        })
    }

    fn journal(&mut self) -> Result<(), OpenError> {
        self.of_runs(Table::Journal, |this, id, key, value| {
            let (_, first) = schema::read_pair(key).ok_or_else(|| malformed(Table::Journal))?;
            this.segment(id, first, value)
        })
    }

    /// The last events and segments of runs, which follow those of the tables before.
    fn run_ends(&mut self) -> Result<(), OpenError> {
        self.of_runs(Table::RunEnds, |this, id, _, value| {
            let end = RunEnd::read(value)?;
            if let Some((first, events)) = end.events {
                this.events_of(id, first, events)?;
            }
            end.segments.into_iter().try_for_each(|(first, segment)| this.segment(id, first, segment))
        })
    }

    fn events_of(&mut self, id: RunId, first: u64, value: &[u8]) -> Result<(), OpenError> {
        for event in stored_events(first, value)? {
            let (sequence, event) = event?;
            self.write(&Line::RunEvent { event: event.event(id, sequence)? })?;
        }
        Ok(())
    }

    fn segment(&mut self, run_id: RunId, first: u64, value: &[u8]) -> Result<(), OpenError> {
        let (digests, bytes) = read_segment(value).ok_or_else(|| malformed(Table::Journal))?;
        let blobs = digests.iter().map(hex).collect();
        self.write(&Line::Journal { run_id, first, base64: BASE64_STANDARD.encode(bytes), blobs })
    }

    /// Every row of a table whose key begins with the number of a run.
    fn of_runs(
        &mut self,
        table: Table,
        mut row: impl FnMut(&mut Self, RunId, &[u8], &[u8]) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        let mut current: Option<(u64, RunId)> = None;
        self.each(table, |this, reader, key, value| {
            let run_no = key.first_chunk().map(|no| u64::from_be_bytes(*no)).ok_or_else(|| malformed(table))?;
            let id = match current {
                Some((no, id)) if no == run_no => id,
                _ => match reader.run(run_no)? {
                    Some(run) => run.run_id,
                    None => {
                        let reason = format!("run {run_no} has rows in `{}` but is not there", table.name());
                        return Err(LedgerError::damaged(reason).into());
                    }
                },
            };
            current = Some((run_no, id));
            row(this, id, key, value)
        })
    }

    fn transcript(&mut self) -> Result<(), OpenError> {
        let mut keys = HashMap::new();
        self.each(Table::Conversations, |_, _, _, value| {
            let row: ConversationRow = json(Table::Conversations, value)?;
            keys.insert(row.no, row.key);
            Ok(())
        })?;
        let mut branches = (0, Branches::default());
        self.each(Table::Transcript, |this, reader, key, value| {
            let (no, seq) = schema::read_pair(key).ok_or_else(|| malformed(Table::Transcript))?;
            // A conversation that began after the first pass comes with the next export.
            let Some(conversation) = keys.get(&no) else { return Ok(()) };
            if branches.0 != no {
                branches = (no, reader.branches(no)?);
            }
            match item(conversation, Sequence::transcript(conversation), seq, value)? {
                Some(item) => {
                    let left = branches.1.removes_event(reader, item.event_id)?;
                    this.write(&Line::Transcript { conversation, item, left })
                }
                None => Ok(()),
            }
        })
    }

    fn state(&mut self) -> Result<(), OpenError> {
        self.each(Table::State, |this, _, key, value| {
            let (scope_key, key) = schema::read_state_key(key).ok_or_else(|| malformed(Table::State))?;
            this.write(&Line::State { scope_key, key, value: raw(Table::State, value)? })
        })
    }

    fn storage(&mut self) -> Result<(), OpenError> {
        self.each(Table::Storage, |this, _, key, value| {
            let (area_key, key) = schema::read_state_key(key).ok_or_else(|| malformed(Table::Storage))?;
            let content = read_stored(value).ok_or_else(|| malformed(Table::Storage))?.content();
            let size = content.size();
            let (base64, sha256) = match content {
                StorageContent::Inline(bytes) => (Some(BASE64_STANDARD.encode(bytes)), None),
                StorageContent::Blob { sha256, .. } => (None, Some(sha256)),
            };
            this.write(&Line::Storage { area_key, key, base64, sha256, size })
        })
    }

    fn artifacts(&mut self) -> Result<(), OpenError> {
        self.each(Table::Artifacts, |this, _, _, value| this.write(&Line::Artifact { artifact: raw(Table::Artifacts, value)? }))
    }

    fn audit(&mut self) -> Result<(), OpenError> {
        self.each(Table::Audit, |this, _, key, value| {
            for record in stored_audit(number(Table::Audit, key)?, value)? {
                let (audit_no, record) = record?;
                this.write(&Line::Audit { audit_no, record: record.record()? })?;
            }
            Ok(())
        })
    }
}

fn number(table: Table, key: &[u8]) -> Result<u64, LedgerError> {
    schema::read_number(key).ok_or_else(|| malformed(table))
}

fn cannot_write(source: std::io::Error) -> OpenError {
    OpenError::Io { action: "write", path: "the export".into(), source }
}
