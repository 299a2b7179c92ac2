//! Pruning: the journals of runs that ended long enough ago, and old audit records.
//!
//! Journals are keyed by the number of their run, and numbers grow with the time of creation, so the oldest journals are at
//! the start of their two tables and no index is needed. Rows are searched outside of the writer; the writer checks again that
//! each run has ended, and deletes a bounded number of rows at once.
//!
//! Audit records are in the order of their times, but for what clocks do, so the oldest are at the start of their table. The last row
//! stays: the number of the next record follows from it.

use agent_host_protocol::Timestamp;
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    handle::Ledger,
    operation::{Operation, PrunableRun, PrunableSegment, PruneOperation, PrunedSegments, RowsOperation},
    rows::{Reader, Rows, Table, audit_run, ended_before, malformed, number, pair, read_number, read_pair, stored_audit},
    upkeep::blocking,
};

/// Rows that the writer deletes in one operation, give or take one segment: a few milliseconds.
const PRUNE_AT_ONCE: usize = 500;

/// Runs that are looked at in one transaction: some milliseconds.
const SCAN_RUNS: usize = 1_000;

/// A piece of the journals.
#[derive(Default)]
struct Piece {
    runs: Vec<PrunableRun>,
    /// Rows that it takes to delete them.
    rows: usize,
    /// The place to continue, if there may be more.
    next: Option<(u64, u64)>,
    /// More runs than were asked for could be pruned.
    more: bool,
}

/// Audit records that are old enough.
#[derive(Default)]
struct OldAudit {
    records: u64,
    /// Their deletion.
    rows: Rows,
    /// There may be more.
    more: bool,
}

impl Ledger {
    /// Deletes the journals of runs that ended before a time, oldest runs first, at most `max_runs` of them; never that
    /// of a run that has not ended. Blobs that they alone needed are garbage afterwards. Runs that were created at or
    /// after that time are not looked at.
    ///
    /// Pruning can run beside all other work and be interrupted at any point: the next call prunes the rest. A partly
    /// pruned journal lacks its beginning. Two concurrent calls are harmless.
    ///
    /// # Errors
    /// Fails with the errors of the writer. Rows that were deleted before stay deleted.
    pub async fn prune_journals(&self, ended_before: Timestamp, max_runs: usize) -> Result<PrunedSegments, LedgerError> {
        let mut pruned = PrunedSegments::default();
        let mut next = Some((0, 0));
        let mut left = max_runs;
        while let Some(from) = next {
            let ledger = self.clone();
            let piece = blocking(move || ledger.prunable(from, ended_before, left)).await?;
            left = left.saturating_sub(piece.runs.iter().filter(|run| run.begins).count());
            if !piece.runs.is_empty() {
                let (reply, answer) = oneshot::channel();
                let operation = PruneOperation { ended_before, runs: piece.runs, reply };
                self.admit(Operation::Prune(Box::new(operation)), piece.rows * 64).await?;
                let done = self.answer(answer).await?;
                pruned.runs += done.runs;
                pruned.rows += done.rows;
                pruned.bytes += done.bytes;
            }
            pruned.more = piece.more;
            next = piece.next;
        }
        Ok(pruned)
    }

    /// Deletes the audit records from before a time, oldest first; gives how many. The newest records stay, whatever their time.
    ///
    /// Pruning can run beside all other work and be interrupted at any point: the next call prunes the rest.
    ///
    /// # Errors
    /// Fails with the errors of the writer. Records that were deleted before stay deleted.
    pub async fn prune_audit(&self, before: Timestamp) -> Result<u64, LedgerError> {
        let mut pruned = 0;
        loop {
            let ledger = self.clone();
            let OldAudit { records, rows, more } = blocking(move || ledger.old_audit(before)).await?;
            if records > 0 {
                let (reply, answer) = oneshot::channel();
                let bytes = rows.bytes().len();
                self.admit(Operation::Rows(RowsOperation { rows, reply }), bytes).await?;
                self.answer(answer).await?;
                pruned += records;
            }
            if !more {
                return Ok(pruned);
            }
        }
    }

    /// The oldest audit records, if they are from before a time: those of one operation.
    fn old_audit(&self, before: Timestamp) -> Result<OldAudit, LedgerError> {
        let reader = self.reader()?;
        let audit = reader.table(Table::Audit)?;
        let mut old = OldAudit::default();
        let mut rows = audit.iter()?.peekable();
        while let Some(row) = rows.next() {
            let (key, value) = row?;
            let first = read_number(key.value()).ok_or_else(|| malformed(Table::Audit))?;
            let mut of_runs = Vec::new();
            let mut records = 0;
            for record in stored_audit(first, value.value())? {
                let (audit_no, record) = record?;
                if record.record()?.at >= before {
                    return Ok(old);
                }
                records += 1;
                of_runs.extend(record.run_id().map(|run_id| audit_run(run_id, audit_no)));
            }
            if rows.peek().is_none() {
                return Ok(old);
            }
            old.rows.delete(Table::Audit, key.value());
            of_runs.iter().for_each(|key| old.rows.delete(Table::AuditRuns, key));
            old.records += records;
            if old.rows.count() >= PRUNE_AT_ONCE as u64 {
                return Ok(OldAudit { more: true, ..old });
            }
        }
        Ok(old)
    }

    /// Segments that can be pruned, from a run and a segment on: those of one operation.
    fn prunable(&self, from: (u64, u64), time: Timestamp, max_runs: usize) -> Result<Piece, LedgerError> {
        let reader = self.reader()?;
        let (journal, ends) = (reader.table(Table::Journal)?, reader.table(Table::RunEnds)?);
        let mut piece = Piece::default();
        let (mut at, mut begun) = (from, 0);
        for _ in 0..SCAN_RUNS {
            let next = journal.range(pair(at.0, at.1).as_slice()..)?.next().transpose()?;
            let next = next.map(|(key, _)| read_pair(key.value()).ok_or_else(|| malformed(Table::Journal))).transpose()?;
            let end = ends.range(number(at.0).as_slice()..)?.next().transpose()?;
            let end = end.map(|(key, _)| read_number(key.value()).ok_or_else(|| malformed(Table::RunEnds))).transpose()?;
            // The segments of an end follow those of the same run in the journal.
            let (run_no, first) = match (next, end) {
                (Some((run_no, first)), end) if end.is_none_or(|end| run_no <= end) => (run_no, first),
                (_, Some(end)) => (end, if end == at.0 { at.1 } else { 0 }),
                (_, None) => return Ok(piece),
            };
            match reader.run(run_no)? {
                Some(run) if run.created_at >= time => return Ok(piece),
                Some(run) if ended_before(&run, time) => {
                    // The piece continues inside a run only if the piece before ended there.
                    let begins = from.0 != run_no || from.1 == 0;
                    if begins && begun == max_runs {
                        return Ok(Piece { more: true, ..piece });
                    }
                    begun += usize::from(begins);
                    if let Some(rest) = piece.take(&reader, run_no, first, begins)? {
                        return Ok(Piece { next: Some((run_no, rest)), ..piece });
                    }
                }
                _ => {}
            }
            let Some(next) = run_no.checked_add(1) else { return Ok(piece) };
            at = (next, 0);
            if piece.rows >= PRUNE_AT_ONCE {
                break;
            }
        }
        Ok(Piece { next: Some(at), ..piece })
    }
}

impl Piece {
    /// Adds segments of a run; gives the first that is left for the next piece, where one is.
    fn take(&mut self, reader: &Reader, run_no: u64, from: u64, begins: bool) -> Result<Option<u64>, LedgerError> {
        let mut segments = Vec::new();
        let mut rest = None;
        reader.segments(run_no, from, |first, digests, bytes| {
            if self.rows >= PRUNE_AT_ONCE {
                rest = Some(first);
                return false;
            }
            self.rows += 1 + digests.len();
            segments.push(PrunableSegment { first, bytes: bytes.len() as u64, digests: digests.to_vec() });
            true
        })?;
        self.runs.push(PrunableRun { run_no, begins, ends: rest.is_none(), segments });
        Ok(rest)
    }
}
