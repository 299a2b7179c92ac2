//! The options of a ledger.

use std::{path::PathBuf, time::Duration};

use agent_host_protocol::Limits;

const MIB: usize = 1024 * 1024;

/// Options of a ledger. The defaults suit a host; tests make the bounds small.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of `ledger.redb`, the files of its log, `ledger.identity` and `blobs`. A missing directory is made with mode 0700.
    pub dir: PathBuf,
    /// Memory for pages of the store, in bytes. It should hold the pages of one checkpoint (a few times
    /// `checkpoint_wal_bytes`), else pages are written more than once; the rest makes reading faster.
    pub cache_bytes: usize,
    /// New events are refused while the disk has less left. 0 does not ask.
    pub min_free_disk_bytes: u64,
    /// Operations that wait for the writer may hold so many bytes; who submits more waits. A few hundred
    /// milliseconds of writing at full speed.
    pub queue_bytes: usize,
    /// Largest number of operations of a group commit, so that the first of a long queue is answered soon.
    pub batch_operations: usize,
    /// Largest size of a group commit in bytes, give or take one operation.
    pub batch_bytes: usize,
    /// Length of one part of the log, in bytes, at which a checkpoint begins: the rows of that part are merged from memory
    /// into `ledger.redb`, while writes go to the other part. Each part has room for half as much again. The length bounds
    /// the time to open after a crash, and the memory for unmerged rows: at most three times this, and some hundred bytes
    /// for each row.
    pub checkpoint_wal_bytes: u64,
    /// A checkpoint is made when the oldest batch since the last one is older than this.
    pub checkpoint_interval: Duration,
    /// In a cluster: bytes of log after which a warm host makes a snapshot. A copy that is made anew reads a snapshot and at most
    /// twice as much log, a few seconds at 20 MB/s.
    pub snapshot_log_bytes: u64,
    /// In a cluster: age of the newest snapshot after which a warm host makes another one, where there are batches since.
    pub snapshot_interval: Duration,
    /// An upload that nothing refers to is collected when it is older than this.
    pub artifact_unreferenced: Duration,
    /// Smallest age of an unreferenced blob before it is collected. A writer that is about to refer to a blob holds a
    /// [`crate::Blob`], which protects it at any age; this option is a second protection.
    pub blob_grace: Duration,
}

impl Options {
    /// The defaults, for this directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            cache_bytes: 128 * MIB,
            min_free_disk_bytes: Limits::default().min_free_disk_bytes,
            queue_bytes: 32 * MIB,
            batch_operations: 2_048,
            batch_bytes: 4 * MIB,
            checkpoint_wal_bytes: 16 * MIB as u64,
            checkpoint_interval: Duration::from_secs(5),
            snapshot_log_bytes: 64 * MIB as u64,
            snapshot_interval: Duration::from_secs(15 * 60),
            artifact_unreferenced: Duration::from_millis(Limits::default().artifact_unreferenced_ms),
            blob_grace: Duration::from_secs(600),
        }
    }
}
