//! The errors of opening a ledger and of its operations.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_host_protocol::{
    EventId, RunId, RunStatus,
    limits::{MAX_PAGE, MIN_PAGE},
    run::IllegalTransition,
};

use crate::cluster_error::ClusterError;

/// The reason why a ledger could not be opened, checked or compacted. The disk is unchanged unless the variant says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another handle of this one, holds the lock.
    #[error(
        "another agent-host process has this ledger open ({dir}): stop it first, or give this one a data directory of its own"
    )]
    AlreadyOpen {
        /// The directory of the ledger.
        dir: PathBuf,
    },
    /// The directory has no ledger, and the operation does not make one.
    #[error("there is no ledger in {dir}: start the host once to create it, or correct the data directory")]
    NoLedger {
        /// The directory that was looked at.
        dir: PathBuf,
    },
    /// The file is there but is not a ledger.
    #[error(
        "{path} is not a ledger ({reason}): restore it from a backup, write what its log holds into a new ledger \
             (`agent-host ledger salvage --to DIR`), or move it away to start with an empty ledger"
    )]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// Description of the content found.
        reason: String,
    },
    /// A newer agent-host wrote the file.
    #[error(
        "the ledger in {dir} has format {found}, and this agent-host reads up to format {supported}: \
         use the newer agent-host that wrote it, or restore a backup from before the upgrade"
    )]
    NewerFormat {
        /// The directory of the ledger.
        dir: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// The log does not continue the store, or is broken before its end.
    #[error(
        "the write-ahead log {path} cannot be applied: {reason}. Restore a backup, or ledger.redb, ledger-1.wal, \
         ledger-2.wal and ledger.identity together from one copy; or write all that can be read into a new ledger and see what is \
         missing: `agent-host ledger salvage --to DIR`; to start without the writes that only the log holds, rename \
         ledger-1.wal and ledger-2.wal to ledger-1.wal.lost and ledger-2.wal.lost"
    )]
    LogDamaged {
        /// The log.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A batch of the log that may have been acknowledged cannot be read.
    #[error(
        "the write-ahead log {path} is damaged at byte {at}: batch {batch} cannot be read, and was written completely before {later} \
         later batches that can. Restore a backup, or write all that can be read into a new ledger and see what is missing: \
         `agent-host ledger salvage --to DIR`"
    )]
    BatchLost {
        /// The file of the log.
        path: PathBuf,
        /// Byte at which the batch begins.
        at: u64,
        /// Number of the batch.
        batch: u64,
        /// Number of later batches in the file that can be read.
        later: u64,
    },
    /// A log or an identity exists without a store: the rest of a ledger, which a new one must not overwrite.
    #[error(
        "there is {log}, but {path} is missing or empty: put ledger.redb back beside it, restore a backup, or write all that can \
         be read into a new ledger: `agent-host ledger salvage --to DIR`; to start with an empty ledger, move the \
         directory away"
    )]
    LogWithoutStore {
        /// The file that is there.
        log: PathBuf,
        /// The store that is missing.
        path: PathBuf,
    },
    /// The store is a whole one, but not the one that the host has last closed here.
    #[error(
        "{path} is not the ledger that the host closed here: {reason}. Put the newer files back, or restore a backup; to go on \
         with this one as it is, remove {identity}"
    )]
    AnotherLedger {
        /// The store.
        path: PathBuf,
        /// The file that says which ledger was here.
        identity: PathBuf,
        /// Description of the difference.
        reason: String,
    },
    /// The store is damaged.
    #[error(
        "the ledger in {dir} is damaged: {reason}. Restore it from a backup, or write all that can be read into a new \
             ledger and see what is missing: `agent-host ledger salvage --to DIR`"
    )]
    Damaged {
        /// The directory of the ledger.
        dir: PathBuf,
        /// Error of redb or of the reader of a row.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The cluster of the ledger cannot be joined, or does not belong to the files.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An operation of the opened ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl OpenError {
    /// The store does not hold what it should.
    pub(crate) fn damaged(dir: &Path, error: &LedgerError) -> Self {
        let reason = match error {
            LedgerError::Damaged(reason) => reason.to_string(),
            other => other.to_string(),
        };
        Self::Damaged { dir: dir.to_owned(), reason }
    }
}

/// The reason why an operation was refused or failed.
///
/// A refused or failed write has written nothing, with the one exception that [`LedgerError::Unavailable`] names.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The run, event or other object does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// The run has ended.
    #[error("run {run_id} has ended ({status}); nothing but audit records can be added to it")]
    Terminal {
        /// The run.
        run_id: RunId,
        /// Status of the run.
        status: RunStatus,
    },
    /// A run of the conversation has not ended.
    #[error("run {run_id} of this conversation has not ended: cancel it, or wait for its end, then do this again")]
    Active {
        /// The run.
        run_id: RunId,
    },
    /// The machine of run statuses has no such step.
    #[error(transparent)]
    Transition(#[from] IllegalTransition),
    /// The events do not continue the run.
    #[error("the next event of the run has sequence {expected}, not {found}")]
    Sequence {
        /// Expected value.
        expected: u64,
        /// Given value.
        found: u64,
    },
    /// The write comes from a claim of the run that does not count any more.
    #[error("run {run_id} is held by another claim, or by none: this one has expired, was given back, or its run has ended")]
    Fenced {
        /// The run.
        run_id: RunId,
    },
    /// The value is not the one that the write expected.
    #[error("`{key}` was changed by another writer: read it again, then decide again")]
    Conflict {
        /// The key of the value.
        key: String,
    },
    /// A scope of state or an area of storage is full.
    #[error("this would take {used} {what}, and the limit is {limit}: delete something first, or raise the limit")]
    QuotaExceeded {
        /// `bytes` or `keys`.
        what: &'static str,
        /// Usage after the write.
        used: u64,
        /// Limit.
        limit: u64,
    },
    /// A blob is larger than who writes it allows.
    #[error("this has more than {limit} bytes: send less, or raise the limit")]
    TooLarge {
        /// Bytes that it may have.
        limit: u64,
    },
    /// The write contradicts itself or the ledger.
    #[error("{0}")]
    Invalid(String),
    /// The same idempotency key came with another body.
    #[error("this idempotency key was used for event {event_id} with another body: use a new key for a new request")]
    IdempotencyConflict {
        /// The event that the key belongs to.
        event_id: EventId,
    },
    /// The cursor is not one that the host gave for this sequence.
    #[error("{0}")]
    InvalidCursor(String),
    /// The limit of a page is out of range.
    #[error("a page has {MIN_PAGE} to {MAX_PAGE} items, not {0}")]
    InvalidLimit(u32),
    /// The disk is nearly full.
    #[error("the disk of the ledger has {free} bytes left and needs {needed}: free some space, then repeat the request")]
    DiskLow {
        /// Bytes that are left.
        free: u64,
        /// Bytes that must be left.
        needed: u64,
    },
    /// The workspace keeps as many bytes as it may.
    #[error(
        "workspace `{workspace}` keeps {bytes} bytes and may keep {limit} (`[quotas]`): delete conversations or artifacts of it, wait \
         for retention, or raise its quota, then repeat the request"
    )]
    WorkspaceFull {
        /// The workspace; empty for what has none.
        workspace: Arc<str>,
        /// Bytes that the ledger keeps for it.
        bytes: u64,
        /// Limit.
        limit: u64,
    },
    /// The log could not be written. The operation was not written and may be repeated. (If the disk also refuses to remove
    /// the half-written frame, and the host crashes before the next write, the operation may still be found.)
    #[error("the ledger could not be written ({0}): nothing was changed, repeat it when the cause is gone")]
    Storage(Arc<str>),
    /// A merge has failed, and redb is being opened again. No data is lost; this write was not made.
    #[error("the ledger opens its store again after an error: repeat the request")]
    Reopening,
    /// A row does not read back as what it was written as.
    #[error("the ledger is damaged ({0}): run `agent-host ledger check`, and restore a backup if it finds more")]
    Damaged(Arc<str>),
    /// The ledger was closed, or has failed until the next start of the host. The restart shows whether an open write took
    /// effect.
    #[error("the ledger is not available ({0}): restart the host")]
    Unavailable(Arc<str>),
}

impl LedgerError {
    pub(crate) fn not_json(error: &serde_json::Error) -> Self {
        Self::invalid(format!("this cannot be written as JSON: {error}"))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn damaged(message: impl std::fmt::Display) -> Self {
        Self::Damaged(message.to_string().into())
    }

    pub(crate) fn unavailable(message: impl std::fmt::Display) -> Self {
        Self::Unavailable(message.to_string().into())
    }
}

/// Reading fails where redb is opened again after an error, or where the file is damaged. Either way no row was invented.
macro_rules! from_redb {
    ($($error:ty),*) => { $(
        impl From<$error> for LedgerError {
            fn from(error: $error) -> Self {
                match redb::Error::from(error) {
                    redb::Error::DatabaseClosed | redb::Error::PreviousIo => Self::Reopening,
                    error => Self::damaged(error),
                }
            }
        }
    )* };
}

from_redb!(redb::StorageError, redb::TableError, redb::TransactionError, redb::CommitError, redb::SetDurabilityError);
