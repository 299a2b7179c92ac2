//! Numbers for operators.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::{
    error::LedgerError,
    files::blob_totals,
    handle::Ledger,
    read::workspaces::WorkspaceUsage,
    rows::{RunEnd, Table},
    store::{PARTS, database_path, part_path},
};

/// Workspaces of one answer.
const LISTED_WORKSPACES: usize = 20;

/// The size of the ledger, and counters since its opening.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Each table.
    pub tables: Vec<TableStats>,
    /// `ledger.redb`, in bytes. Free space within it is used before it grows.
    pub file_bytes: u64,
    /// `ledger-1.wal` and `ledger-2.wal`, in bytes. Both are preallocated and overwritten in turn.
    pub wal_file_bytes: u64,
    /// Bytes of these files that a host would read if it had crashed now.
    pub wal_bytes: u64,
    /// Files in `blobs`: contents of artifacts and large storage values, each kept once.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Group commits since opening.
    pub batches: u64,
    /// Rows that they put or deleted.
    pub rows: u64,
    /// Rows in one of them, on average.
    pub rows_per_batch: f64,
    /// Checkpoints since opening: merges of rows from memory into `ledger.redb`.
    pub checkpoints: u64,
    /// Total time of checkpoints, in microseconds. Writes continue meanwhile.
    pub checkpoint_us: u64,
    /// The longest of them, in microseconds.
    pub longest_checkpoint_us: u64,
    /// Runs that have not ended.
    pub active_runs: u64,
    /// Number of parked runs.
    pub parked_runs: u64,
    /// Runs that the writer has in memory: those that have not ended and are not parked.
    pub active_in_memory: u64,
    /// Journals of runs.
    pub journal: JournalStats,
    /// The workspaces that keep most.
    pub workspaces: Vec<WorkspaceUsage>,
}

/// The space of journals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct JournalStats {
    /// Segments.
    pub rows: u64,
    /// Their keys and values, in bytes. Blobs that they name are not counted: others may need them too.
    pub bytes: u64,
    /// Their part of the bytes of all tables, from 0 to 1.
    pub share: f64,
}

/// The size of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableStats {
    /// Name of the table.
    pub name: &'static str,
    /// Number of rows.
    pub rows: u64,
    /// Keys and values, in bytes.
    pub bytes: u64,
}

/// Counters since the opening, and the present backlog. All are in memory.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Group commits.
    pub batches: u64,
    /// Rows that they put or deleted.
    pub rows: u64,
    /// Bytes of the log that a start after a crash would read.
    pub log_bytes: u64,
    /// All bytes that the log was given.
    pub logged_bytes: u64,
    /// Time in which the writer had operations to carry out, in microseconds. Checkpoints in its thread count.
    pub busy_us: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Time that they took together, in microseconds.
    pub checkpoint_us: u64,
    /// The longest of them, in microseconds.
    pub longest_checkpoint_us: u64,
    /// Operations that wait for the writer.
    pub waiting: usize,
    /// Free space of the disk in bytes, if the file system reports it.
    pub disk_free: Option<u64>,
}

impl Activity {
    /// The numbers of two ledgers together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            batches: self.batches + other.batches,
            rows: self.rows + other.rows,
            log_bytes: self.log_bytes + other.log_bytes,
            logged_bytes: self.logged_bytes + other.logged_bytes,
            busy_us: self.busy_us + other.busy_us,
            checkpoints: self.checkpoints + other.checkpoints,
            checkpoint_us: self.checkpoint_us + other.checkpoint_us,
            longest_checkpoint_us: self.longest_checkpoint_us.max(other.longest_checkpoint_us),
            waiting: self.waiting + other.waiting,
            // On one disk.
            disk_free: self.disk_free.or(other.disk_free),
        }
    }
}

impl Ledger {
    /// The counters. Reads no page of the store, and asks the file system at most a few times a second.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let shared = self.shared();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &shared.counters;
        Activity {
            batches: count(&counters.batches),
            rows: count(&counters.rows),
            log_bytes: count(&counters.log_bytes),
            logged_bytes: count(&counters.logged_bytes),
            busy_us: counters.busy_us(),
            checkpoints: count(&counters.checkpoints),
            checkpoint_us: count(&counters.checkpoint_us),
            longest_checkpoint_us: count(&counters.longest_checkpoint_us),
            waiting: shared.queue.waiting(),
            disk_free: shared.disk.free_bytes(),
        }
    }

    /// Counts every row. Reads every page of the store, so the function is for operators and not for timers.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn stats(&self) -> Result<Stats, LedgerError> {
        let mut tables = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            // A transaction of its own for each, so that none is held for long.
            let size = self.reader()?.table(*table)?.size()?;
            tables.push(TableStats { name: table.name(), rows: size.rows, bytes: size.bytes });
        }
        let shared = self.shared();
        let size = |path: std::path::PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (batches, rows) = (count(&shared.counters.batches), count(&shared.counters.rows));
        let (blob_files, blob_bytes) = blob_totals(&shared.blobs)
            .map_err(|error| LedgerError::damaged(format!("the folder `blobs` cannot be read: {error}")))?;
        let of = |wanted: Table| tables.iter().find(|table| table.name == wanted.name());
        let active_runs = of(Table::Active).map_or(0, |table| table.rows);
        let (mut journal_rows, mut journal_bytes) = of(Table::Journal).map_or((0, 0), |table| (table.rows, table.bytes));
        for row in self.reader()?.table(Table::RunEnds)?.iter()? {
            for (_, segment) in RunEnd::read(row?.1.value())?.segments {
                journal_rows += 1;
                journal_bytes += segment.len() as u64;
            }
        }
        let all_bytes: u64 = tables.iter().map(|table| table.bytes).sum();
        let journal = JournalStats {
            rows: journal_rows,
            bytes: journal_bytes,
            share: if all_bytes == 0 { 0.0 } else { journal_bytes as f64 / all_bytes as f64 },
        };
        Ok(Stats {
            tables,
            file_bytes: size(database_path(&shared.dir)),
            wal_file_bytes: PARTS.iter().map(|part| size(part_path(&shared.dir, *part))).sum(),
            wal_bytes: count(&shared.counters.log_bytes),
            blob_files,
            blob_bytes,
            batches,
            rows,
            rows_per_batch: if batches == 0 { 0.0 } else { rows as f64 / batches as f64 },
            checkpoints: count(&shared.counters.checkpoints),
            checkpoint_us: count(&shared.counters.checkpoint_us),
            longest_checkpoint_us: count(&shared.counters.longest_checkpoint_us),
            active_runs,
            parked_runs: shared.counters.parked(),
            active_in_memory: count(&shared.counters.in_memory),
            journal,
            workspaces: self.workspaces(LISTED_WORKSPACES)?,
        })
    }
}
