//! How a ledger is opened.

use std::{path::PathBuf, time::Duration};

use agent_host_protocol::Limits;

const MIB: usize = 1024 * 1024;

/// Options of a ledger. The defaults suit a host; tests make the bounds small.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory that holds `ledger.redb`, `ledger.wal` and `blobs`. It is made, with mode 0700, where it is not there.
    pub dir: PathBuf,
    /// Memory for pages of the store. It should hold what one checkpoint writes (a few times `checkpoint_wal_bytes`), else
    /// pages are written more than once; the rest makes reading quicker.
    pub cache_bytes: usize,
    /// New events are refused while the disk has less left. 0 does not ask.
    pub min_free_disk_bytes: u64,
    /// Operations that wait for the writer may hold so many bytes; who submits more waits. A few hundred
    /// milliseconds of writing at full speed.
    pub queue_bytes: usize,
    /// One group commit takes so many operations at most, so that the first of a long queue is answered soon.
    pub batch_operations: usize,
    /// One group commit takes so many bytes at most, give or take one operation.
    pub batch_bytes: usize,
    /// A checkpoint begins when one part of the log is longer than this: the rows of that part are merged from memory into
    /// `ledger.redb`, while writing goes on in the other part. Each part has room for half as much again. It bounds the
    /// time to open after a crash, and the memory for rows that are not merged yet: at most three times this, and some
    /// hundred bytes for each row.
    pub checkpoint_wal_bytes: u64,
    /// A checkpoint is made when the oldest batch since the last one is older than this.
    pub checkpoint_interval: Duration,
    /// An upload that nothing refers to is collected when it is older than this.
    pub artifact_unreferenced: Duration,
    /// A blob that nothing refers to is collected when it was written longer ago than this. Whoever is about to refer
    /// to one holds a [`crate::Blob`], which protects it however old it is; this is a second line for one who does not.
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
            artifact_unreferenced: Duration::from_millis(Limits::default().artifact_unreferenced_ms),
            blob_grace: Duration::from_secs(600),
        }
    }
}
