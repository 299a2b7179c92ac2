//! State that the handles and the writer share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::{
    error::LedgerError,
    files::{Blobs, Disk},
    lease::Lease,
    overlay::Overlay,
    permits::Permits,
    quotas::WorkspaceQuotas,
    rows::{Reader, Views},
    writer::{Queue, watch::Watchers},
};

/// State that the handles and the writer share.
pub(crate) struct Shared {
    pub(crate) dir: std::path::PathBuf,
    pub(crate) queue: Queue,
    pub(crate) overlay: Overlay,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) quotas: RwLock<WorkspaceQuotas>,
    pub(crate) counters: Counters,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) artifact_unreferenced_ms: u64,
    pub(crate) blob_grace_ms: u64,
    /// The committed rows. `None` inside when the ledger is closed or has failed: then every call is refused.
    pub(crate) views: Arc<Views>,
    pub(crate) ended: Mutex<Option<WriterEnd>>,
    pub(crate) merge_failure: MergeFailure,
    pub(crate) commits: Commits,
    /// Held by the writer; when it is dropped, [`crate::Ledger::close`] returns.
    pub(crate) done: Mutex<Option<oneshot::Receiver<()>>>,
    /// The lease of this host, if the ledger is a cluster's.
    pub(crate) lease: Option<Arc<Lease>>,
    /// The permits of a partition, where there are several.
    pub(crate) permits: Option<Permits>,
}

#[derive(Clone)]
pub(crate) enum WriterEnd {
    Closed(Arc<str>),
    Failed(Arc<str>),
}

/// The failure of merges, until one succeeds.
#[derive(Default)]
pub(crate) struct MergeFailure(Mutex<Option<Failure>>);

#[derive(Clone)]
pub(crate) struct Failure {
    pub(crate) reason: Arc<str>,
    /// Writes were refused since: the log is full.
    pub(crate) is_full: bool,
}

impl MergeFailure {
    /// Takes over the outcome of a merge: the reason of its failure.
    pub(crate) fn note(&self, reason: Option<&str>) {
        let mut failure = self.0.lock();
        let is_full = failure.as_ref().is_some_and(|failure| failure.is_full);
        *failure = reason.map(|reason| Failure { reason: reason.into(), is_full });
    }

    /// A write was refused because the log is full.
    pub(crate) fn refused(&self) {
        if let Some(failure) = &mut *self.0.lock() {
            failure.is_full = true;
        }
    }

    pub(crate) fn current(&self) -> Option<Failure> {
        self.0.lock().clone()
    }
}

/// The state of commits: what the last one did, and how long the present one takes.
#[derive(Default)]
pub(crate) struct Commits(Mutex<CommitState>);

#[derive(Default)]
struct CommitState {
    began: Option<Instant>,
    failure: Option<Arc<str>>,
}

impl Commits {
    /// A commit that takes longer hangs: disks take some milliseconds.
    const PATIENCE: Duration = Duration::from_secs(1);

    pub(crate) fn begin(&self) {
        self.0.lock().began = Some(Instant::now());
    }

    /// Takes over the outcome of the commit: the reason of its failure.
    pub(crate) fn end(&self, failure: Option<String>) {
        *self.0.lock() = CommitState { began: None, failure: failure.map(Into::into) };
    }

    pub(crate) fn have_failed(&self) -> bool {
        self.0.lock().failure.is_some()
    }

    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.0.lock().failure.clone()
    }

    /// Time that the present commit has taken, if it hangs.
    pub(crate) fn hanging(&self) -> Option<Duration> {
        self.0.lock().began.map(|began| began.elapsed()).filter(|took| *took > Self::PATIENCE)
    }
}

/// Counters of the writes since opening.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    /// All bytes that the log was given. `log_bytes` falls with a checkpoint, this sum does not.
    pub(crate) logged_bytes: AtomicU64,
    /// Time in which the writer had operations to carry out.
    busy_ns: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_us: AtomicU64,
    pub(crate) longest_checkpoint_us: AtomicU64,
    /// Runs that are parked.
    parked: AtomicU64,
    /// Runs in the memory of the writer.
    pub(crate) in_memory: AtomicU64,
}

impl Counters {
    pub(crate) fn batch(&self, rows: u64, log_bytes: u64) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.log_bytes.fetch_add(log_bytes, Ordering::Relaxed);
        self.logged_bytes.fetch_add(log_bytes, Ordering::Relaxed);
    }

    pub(crate) fn busy(&self, took: Duration) {
        self.busy_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn busy_us(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed) / 1_000
    }

    pub(crate) fn parked(&self) -> u64 {
        self.parked.load(Ordering::Acquire)
    }

    pub(crate) fn set_parked(&self, count: u64) {
        self.parked.store(count, Ordering::Release);
    }

    pub(crate) fn set_in_memory(&self, count: usize) {
        self.in_memory.store(count as u64, Ordering::Relaxed);
    }

    /// A merge is done, and so many bytes of the log are free again.
    pub(crate) fn checkpoint(&self, took: Duration, log_bytes: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.checkpoint_us.fetch_add(us, Ordering::Relaxed);
        self.longest_checkpoint_us.fetch_max(us, Ordering::Relaxed);
        self.log_bytes.fetch_sub(log_bytes, Ordering::Relaxed);
    }
}

impl Shared {
    /// An error where the host may not act.
    pub(crate) fn check_lease(&self) -> Result<(), LedgerError> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.check())
    }

    pub(crate) fn reader(&self) -> Result<Reader, LedgerError> {
        self.check_lease()?;
        self.views.current().map(Reader::new).ok_or_else(|| self.unavailable())
    }

    /// Refuses everything from now on.
    pub(crate) fn fail(&self, reason: &str) {
        self.finish(WriterEnd::Failed(reason.into()));
    }

    pub(crate) fn end(&self, reason: &str) {
        self.finish(WriterEnd::Closed(reason.into()));
    }

    fn finish(&self, ended: WriterEnd) {
        self.ended.lock().get_or_insert(ended);
        self.views.close();
        self.queue.close();
        self.watchers.notify_all();
    }

    pub(crate) fn unavailable(&self) -> LedgerError {
        match self.ended.lock().clone() {
            Some(WriterEnd::Closed(reason) | WriterEnd::Failed(reason)) => LedgerError::Unavailable(reason),
            None => LedgerError::unavailable("it is being closed"),
        }
    }
}
