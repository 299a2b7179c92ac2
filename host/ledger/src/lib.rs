//! What happened: events, runs, run events, journals, transcript, state, audit and idempotency keys, in one store.
//!
//! It is: one redb file and one write-ahead log in one directory, owned by one writer thread that commits
//! in groups, and a cheap handle ([`Ledger`]) for everyone else. It is not: anything that knows wasm, HTTP
//! or policy, and it never decides what a run may do, only whether a write can follow from what is there.
//!
//! # What holds
//!
//! - What [`Ledger::accept`] or a [`Commit`] has answered survives a crash of the process and of the machine.
//!   What was admitted but not answered may be there or not, each operation whole or not at all.
//! - Operations take effect in the order in which they were admitted.
//! - A run's events are numbered from 1 without a gap, and a run has exactly one terminal event if and only
//!   if its status is terminal.
//! - A journal only grows, until its run begins anew or, long after its end, it is pruned.
//! - A conversation that is forgotten ([`Ledger::forget_conversation`]) leaves of each of its runs the row and the last
//!   event, without what was said; numbers are not given again.
//! - A parked run is `waiting`, is found by its time and its keys, and takes no memory; its next step ends that.
//! - Nobody sees a row before it is durable, with one exception: a state value is seen by readers as soon as
//!   its write is admitted, so that a run reads what it wrote. Artifacts and storage are there for everyone when
//!   the [`Commit`] that wrote them has resolved.
//! - A row never refers to a blob that is not there, at no moment and after no crash.
//!
//! # How
//!
//! ```text
//! handles ─► Queue (bounded) ─► writer thread: Batch ─► log frame, fdatasync ─► redb commit (memory) ─► answers
//!                                     └─ every few seconds: Checkpoint (redb durable, log starts over)
//! ```
//!
//! The log makes a group durable with one sequential write; redb is made durable only by checkpoints, each
//! of which also saves redb's allocator state, so that opening after a crash takes time for the log alone
//! and never for the size of the store.

mod artifacts;
mod backup;
mod batch;
mod blobs;
mod check;
mod compact;
mod cursor;
mod disk;
mod entries;
mod error;
mod export;
#[cfg(test)]
mod faults;
mod forget;
mod fork;
mod garbage;
mod handle;
mod journal;
mod life;
mod log;
mod memory;
mod operation;
mod options;
mod overlay;
mod pages;
mod park;
mod prune;
mod queue;
mod read;
mod record;
mod restore;
mod rows;
mod schema;
mod state;
mod statistics;
mod stats;
mod storage;
mod store;
mod upgrade;
mod values;
mod watch;
mod writer;

pub use artifacts::new_artifact_id;
pub use backup::{Backup, BackupError, BackupManifest, backup, move_backup, remove_unfinished};
pub use blobs::{Blob, BlobReader, BlobWriter};
pub use check::{CheckReport, Finding, check};
pub use compact::{CompactReport, compact};
pub use error::{LedgerError, OpenError};
pub use export::{ExportReport, export};
pub use garbage::Collected;
pub use handle::{Commit, Health, Ledger};
pub use options::Options;
pub use prune::Pruned;
pub use record::{
    Accept, Accepted, AddRun, ArtifactRecord, ArtifactScope, AuditRecord, EntryWrite, EventRecord, Expected, Forget, Forgotten,
    Idempotency, JournalRow, JournalSegment, NewEvent, NewItem, NewRun, Park, Quota, RunChange, RunFilter, RunRecord, RunWrite,
    STORAGE_INLINE_BYTES, StateWrite, StorageContent, StorageValue, StorageWrite, UPLOAD, Usage,
};
pub use restore::{RestoreReport, restore};
pub use state::state_tag;
pub use statistics::{Group, GroupBy, Percentiles, Statistics, StatisticsQuery, Tokens};
pub use stats::{Activity, JournalStats, Stats, TableStats};
pub use watch::Watch;
