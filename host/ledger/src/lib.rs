//! The facts of the host: events, runs, run events, journals, transcript, state, audit and idempotency keys, in one store.
//!
//! One redb file and one write-ahead log in one directory, a writer thread that commits in groups, a thread that merges
//! committed rows into redb, and a cheap handle ([`Ledger`]) for all callers. The crate knows neither wasm, HTTP nor
//! policy: it checks whether a write can follow the present rows, never whether a run may make it.
//!
//! # What holds
//!
//! - An operation that [`Ledger::accept`] or a [`Commit`] has answered survives a crash of the process and of the machine.
//!   An admitted operation without an answer may be present or absent, but never in part.
//! - Operations take effect in the order in which they were admitted.
//! - A run's events are numbered from 1 without a gap, and a run has exactly one terminal event if and only
//!   if its status is terminal.
//! - A journal only grows, until its run begins anew or, long after its end, it is pruned.
//! - A conversation that is forgotten ([`Ledger::forget_conversation`]) leaves of each of its runs the row and the last
//!   event, without what was said; numbers are not given again.
//! - A parked run is `waiting`, is found by its time and its keys, and takes no memory; its next step ends that.
//! - No reader sees a row before it is durable, with one exception: readers see a state value as soon as its write is
//!   admitted, so that a run reads its own writes. Artifacts and storage are visible when the [`Commit`] that wrote them
//!   has resolved.
//! - A row never refers to a blob that is not there, at no moment and after no crash.
//!
//! # Rooms
//!
//! From high to low; a room uses only rooms below it.
//!
//! | room | owns |
//! |---|---|
//! | `fuzz` | readers of the files of a ledger, given bytes: what `tests/fuzz` calls |
//! | `cluster` | a ledger whose log is in PostgreSQL: hosts, the lease, the log, following and taking over |
//! | `upkeep` | backup, restore, salvage, check, compact, export, garbage, pruning, forgetting |
//! | `read` | what the handle reads: runs, parked runs, pages, values, numbers |
//! | `handle` | [`Ledger`]: opening, writing, closing |
//! | `writer` | the writer thread, its queue, what it shares with the handles |
//! | `apply` | an operation, applied to the batch that is being made |
//! | `operation` | operations, checked and encoded on the thread that submits them |
//! | `store`, `overlay` | redb, the log and merging; state that is admitted and not committed yet |
//! | `rows` | tables, keys, row formats, changes of rows, rows in memory, the reader of one moment |
//! | `record` | the public records |
//! | `files`, `digest` | blobs, and what the disk has left |
//! | `lease` | until when the owner of a cluster's ledger may act |
//! | `postgres` | a client of PostgreSQL |
//! | `boundary`, `quotas` | panics of redb, turned into errors; bytes that workspaces may keep |
//!
//! # How
//!
//! ```text
//! handles ─► Queue (bounded) ─► writer thread: Batch ─► log frame, fdatasync ─► rows in memory (Layer) ─► answers
//!                                     │ every few seconds, or when a part of the log is full
//!                                     └─► merging thread: Layer ─► redb commit, fdatasync ─► the part of the log is free
//! readers ─► View: fresh layer, over the layer that is being merged, over redb
//! ```
//!
//! The log makes a group durable with one sequential write. The log has two parts that are written in turn: while the rows
//! of one part are merged into redb, later rows go to the other, so no writer waits for a merge. If the other part is full
//! before the merge ends, the writer waits, and the bounded queue delays its callers. A merge also saves redb's allocator
//! state, so that the time of opening after a crash depends on the log alone and never on the size of the store.

mod apply;
mod boundary;
mod cluster;
mod cluster_error;
mod contents;
mod digest;
mod error;
#[cfg(test)]
mod faults;
mod files;
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod lease;
mod operation;
mod options;
mod overlay;
mod permits;
mod postgres;
mod quotas;
mod read;
mod record;
mod rows;
#[cfg(test)]
mod samples;
mod store;
mod upkeep;
mod writer;

pub use cluster::{
    Bystander, ClusterMember, ClusterOptions, ClusterStatus, DEFAULT_LEASE, Drain, EntryPlace, HostStatus, ImportedLedger,
    LostBatch, MAX_PARTITIONS, Partition, PartitionStatus, PlaceOfEntry, Repair, RepairedCluster, SnapshotStatus, Standby,
    StandbyStatus, StandbyWatch, StorageAddress, cluster_status, drain_host, import_ledger, init_cluster, repair_cluster,
};
pub use cluster_error::ClusterError;
pub use error::{LedgerError, OpenError};
pub use files::{Blob, BlobReader, BlobWriter};
pub use handle::{Commit, Health, Ledger};
pub use lease::LeaseEnd;
pub use operation::PrunedSegments;
pub use options::Options;
pub use permits::{LentPermits, PermitRequest, PermitStore, Permits};
pub use postgres::{PostgresError, PostgresServer};
pub use quotas::WorkspaceQuotas;
pub use read::{
    Feed, FeedBounds, FeedStep,
    statistics::{Group, GroupBy, Percentiles, RunCounts, SCAN_RUNS, Statistics, StatisticsQuery, Tokens},
    stats::{Activity, JournalStats, Stats, TableStats},
    workspaces::WorkspaceUsage,
};
pub use record::{
    Accept, AcceptOutcome, AddRun, AppendMark, ArtifactRecord, ArtifactScope, AuditRecord, Branch, DeletedData, EntryWrite,
    EventRecord, ExpectedValue, Forget, Idempotency, JournalRow, JournalSegment, JsonParts, NewContext, NewEvent, NewItem,
    NewRun, Park, Quota, RunChange, RunFilter, RunRecord, RunWrite, STORAGE_INLINE_BYTES, StateWrite, StorageContent,
    StorageValue, StorageWrite, UPLOAD, Usage, new_artifact_id,
};
pub use rows::{CopyReader, state_tag};
pub use upkeep::{
    backup::{Backup, BackupError, BackupManifest, backup, move_backup, remove_unfinished},
    check::{CheckReport, Finding, check},
    compact::{CompactReport, compact},
    export::{ExportReport, export},
    garbage::CollectionCounts,
    restore::{RestoreReport, restore},
    salvage::{Missing, SalvageReport, salvage},
};
pub use writer::{QueueShare, Watch};
