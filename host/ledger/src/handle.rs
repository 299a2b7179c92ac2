//! The handle that everyone holds: opening, writing and closing.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use agent_host_protocol::{Run, grant::ConversationKey};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::{
    boundary::guard_apart,
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    files::{BlobCopies, Blobs, Disk, DiskNeed},
    lease::Lease,
    operation::{AcceptAnswer, AcceptOperation, AddRunOperation, Operation, WriteOperation, audit_bytes},
    options::Options,
    overlay::{AdmittedValues, Overlay},
    permits::Permits,
    record::{Accept, AcceptOutcome, AddRun, AuditRecord, RunRecord, RunWrite, StateWrite},
    rows::{AuditRow, CopyReader, Reader, View, Views, bounded},
    store::{Files, Log, LogSource, MergeEvents, MissingLedger, OpenedStore, Store, io_error, open, real_files},
    writer::{Commits, Counters, MergeFailure, Queue, QueueShare, Shared, Watch, Writer, WriterEnd},
};

/// A ledger. Clones are handles to the same one.
///
/// Dropping the last handle writes and merges all admitted operations into redb and closes the files, which blocks
/// meanwhile. [`Ledger::close`] does the same without blocking, and reports whether it succeeded.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(writer) = self.writer.lock().take() {
            // A panic of the writer was reported by itself.
            let _ = writer.join();
        }
    }
}

/// The state of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The ledger works.
    Ok,
    /// The ledger accepts and returns nothing until the next start of the host.
    Failed(String),
    /// The ledger accepts writes while its log has room, but redb accepts no rows. No data is lost, and merges are tried
    /// again.
    MergesFail {
        /// The reason of the last failure.
        reason: String,
        /// The log is full: writes are refused until a merge succeeds.
        is_full: bool,
    },
    /// The last batch could not be written: what comes is refused until one can. The writer tries by itself once a second.
    WritesFail {
        /// The reason.
        reason: String,
    },
    /// The disk has not answered for so long: what comes waits.
    WritesHang {
        /// Time since the write began, in milliseconds.
        for_ms: u64,
    },
    /// The ledger accepts no new events until the disk has more space.
    DiskLow {
        /// Bytes that are left.
        free: u64,
        /// Bytes that must be left.
        needed: u64,
    },
}

/// A write that was admitted. Resolves to the record of the run after it, when it is durable.
///
/// Dropping it does not undo the write.
#[must_use = "a write that is not awaited may fail unseen; drop it if that is intended"]
pub struct Commit {
    answer: oneshot::Receiver<Result<Arc<Run>, LedgerError>>,
    shared: Arc<Shared>,
}

impl Future for Commit {
    type Output = Result<Arc<Run>, LedgerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(context));
        Poll::Ready(match answer {
            Ok(result) => result,
            Err(_) => Err(self.shared.unavailable()),
        })
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commit")
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("dir", &self.inner.shared.dir).finish_non_exhaustive()
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Options {
    /// Opens the ledger, makes it where there is none, and starts its writer thread.
    ///
    /// After a crash this function first applies the log to the store: the time depends on the log, not on the store.
    /// Blocks meanwhile.
    ///
    /// # Errors
    /// [`OpenError`]; see there what to do.
    pub fn open(self) -> Result<Ledger, OpenError> {
        self.open_with(real_files())
    }

    pub(crate) fn open_with(self, files: Files) -> Result<Ledger, OpenError> {
        let dir = self.dir.clone();
        guard_apart(&dir, |_| (), |_| Ledger::start(self, files))
    }
}

/// A ledger whose store is open and whose writer does not work yet.
pub(crate) struct Opening {
    options: Options,
    shared: Arc<Shared>,
    store: Store,
    alive: oneshot::Sender<()>,
}

/// A part that outlives the writer: dropped when the ledger is closed.
pub(crate) type Keeper = Box<dyn Send>;

/// The parts of the ledger of a cluster.
pub(crate) struct ClusterParts {
    pub(crate) log: Box<dyn Log>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) blobs: Box<dyn BlobCopies>,
    /// Of a cluster with several partitions.
    pub(crate) permits: Option<Permits>,
}

impl Opening {
    /// Opens the copy of a cluster's ledger for its follower.
    pub(crate) fn of_copy(options: Options, opened: OpenedStore, cluster: ClusterParts, files: Files) -> Result<Self, OpenError> {
        let dir = options.dir.clone();
        guard_apart(&dir, |_| (), |_| Self::new(options, opened, Some(cluster), files))
    }

    fn new(options: Options, opened: OpenedStore, cluster: Option<ClusterParts>, files: Files) -> Result<Self, OpenError> {
        let views = Arc::new(Views::new(View::of(&opened.database)?, opened.last()));
        let (log, lease, copies, permits) = match cluster {
            None => (LogSource::Files, None, None, None),
            Some(ClusterParts { log, lease, blobs, permits }) => (LogSource::Cluster(log), Some(lease), Some(blobs), permits),
        };
        let blobs = Blobs::open(&options.dir, copies).map_err(io_error("prepare the blobs of", &options.dir))?;
        let (alive, done) = oneshot::channel();
        let shared = Arc::new(Shared {
            dir: options.dir.clone(),
            queue: Queue::new(options.queue_bytes),
            overlay: Overlay::default(),
            watchers: Arc::default(),
            disk: Arc::new(Disk::new(options.dir.clone(), options.min_free_disk_bytes)),
            quotas: RwLock::default(),
            counters: Counters::default(),
            blobs: Arc::new(blobs),
            artifact_unreferenced_ms: milliseconds(options.artifact_unreferenced),
            blob_grace_ms: milliseconds(options.blob_grace),
            views: Arc::clone(&views),
            ended: Mutex::new(None),
            merge_failure: MergeFailure::default(),
            commits: Commits::default(),
            done: Mutex::new(Some(done)),
            lease,
            permits,
        });
        let (merging, failing, failed) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
        let events = MergeEvents {
            merged: Box::new(move |took, log_bytes| merging.counters.checkpoint(took, log_bytes)),
            failing: Box::new(move |reason| failing.merge_failure.note(reason)),
            failed: Box::new(move |error| failed.fail(&error.to_string())),
        };
        let store = Store::start(opened, log, &options, views, events, files)?;
        Ok(Self { options, shared, store, alive })
    }

    /// The committed rows, for a reader that outlives the borrow.
    pub(crate) fn views(&self) -> Arc<Views> {
        Arc::clone(&self.shared.views)
    }

    pub(crate) fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Counts a batch that was followed.
    pub(crate) fn count(&self, log_bytes: u64) {
        self.shared.counters.batch(0, log_bytes);
    }

    /// A function that refuses everything from its call on.
    pub(crate) fn failing(&self) -> impl FnOnce(&str) + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |reason| shared.fail(reason)
    }

    /// Merges what the copy has and closes its files.
    pub(crate) fn close(self) -> Result<(), LedgerError> {
        self.store.close()
    }

    /// Starts the writer.
    pub(crate) fn run(self, keeper: Option<Keeper>) -> Result<Ledger, OpenError> {
        let Self { options, shared, store, alive } = self;
        let writer = Writer::new(&options, Arc::clone(&shared), store)?;
        let run = move || {
            let _alive: oneshot::Sender<()> = alive;
            writer.run();
            drop(keeper);
        };
        let thread = Builder::new().name("ledger-writer".to_owned()).spawn(run);
        let thread = thread.map_err(|source| OpenError::Io { action: "start a thread for", path: options.dir, source })?;
        Ok(Ledger { inner: Arc::new(Inner { shared, writer: Mutex::new(Some(thread)) }) })
    }
}

impl Ledger {
    fn start(options: Options, files: Files) -> Result<Self, OpenError> {
        let opened = open(&options.dir, options.cache_bytes, MissingLedger::Create, &files)?;
        if opened.copied().is_some() {
            return Err(ClusterError::IsACopy { dir: options.dir.display().to_string() }.into());
        }
        Opening::new(options, opened, None, files)?.run(None)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// The writer's answer to an operation that was admitted.
    pub(crate) async fn answer<T>(&self, answer: oneshot::Receiver<Result<T, LedgerError>>) -> Result<T, LedgerError> {
        answer.await.map_err(|_| self.shared().unavailable())?
    }

    pub(crate) async fn admit(&self, operation: Operation, bytes: usize) -> Result<(), LedgerError> {
        let shared = self.shared();
        shared.check_lease()?;
        let place = shared.queue.reserve(bytes).await.map_err(|_| shared.unavailable())?;
        shared.queue.push(operation, place, None).map_err(|_| shared.unavailable())
    }

    /// Accepts a new event and creates its runs. All of it is durable when this function returns.
    ///
    /// A request with the same idempotency key and body within 24 hours returns [`AcceptOutcome::Repeated`] and writes nothing.
    /// If the future is dropped, the event may or may not have been accepted.
    ///
    /// # Errors
    /// [`LedgerError::DiskLow`], [`LedgerError::WorkspaceFull`], [`LedgerError::IdempotencyConflict`], [`LedgerError::Invalid`] where an id is not new,
    /// a run not fresh or a blob not there, [`LedgerError::NotFound`] where an artifact that it refers to is not there,
    /// [`LedgerError::Conflict`] where a state value is not what was expected, [`LedgerError::QuotaExceeded`] where its scope
    /// would have too much, [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn accept(&self, accept: Accept) -> Result<AcceptOutcome, LedgerError> {
        let shared = self.shared();
        shared.disk.check(DiskNeed::NewEvent)?;
        let conversation = accept.event.envelope.conversation.as_ref();
        self.check_quota(conversation.and_then(|of| of.workspace_id.as_deref()).unwrap_or_default())?;
        let (mut operation, bytes, state, answer) = AcceptOperation::prepare(accept, &shared.blobs)?;
        let runs: Vec<_> = operation.runs.iter().map(|new| Arc::clone(&new.run)).collect();
        let admit = |admitted| {
            operation.state = admitted;
            Operation::Accept(operation)
        };
        self.admit_with_state(state, bytes, None, admit).await?;
        match self.answer(answer).await? {
            AcceptAnswer::New { event_no, first_run_no, transcript_seq } => {
                let runs = runs.into_iter().zip(first_run_no..).map(|(run, run_no)| RunRecord { run_no, run }).collect();
                Ok(AcceptOutcome::New { event_no, runs, transcript_seq })
            }
            AcceptAnswer::Repeated { event_id } => Ok(AcceptOutcome::Repeated { event_id }),
        }
    }

    /// Writes to a run. Returns when the write is admitted, which takes place in a bounded queue; the [`Commit`]
    /// resolves when it is durable.
    ///
    /// The run changes status only by `RunStatus::transition`; events continue its sequence without a gap; an ended run
    /// accepts only audit records; `End` comes with the one terminal event, both last. A write that breaks a rule is
    /// refused as a whole.
    ///
    /// # Errors
    /// This function returns the errors that do not depend on the run: [`LedgerError::Invalid`], [`LedgerError::Sequence`],
    /// [`LedgerError::Conflict`] if a state value is not the expected one, and [`LedgerError::Unavailable`]. The [`Commit`]
    /// also returns [`LedgerError::NotFound`], [`LedgerError::Terminal`], [`LedgerError::Transition`],
    /// [`LedgerError::QuotaExceeded`], [`LedgerError::Storage`], and [`LedgerError::Conflict`] if the expected value was
    /// itself refused meanwhile.
    pub fn submit(&self, write: RunWrite) -> impl Future<Output = Result<Commit, LedgerError>> + Send + use<'_> {
        self.submit_in(None, write)
    }

    /// As [`Ledger::submit`], in a share of the queue: waits until what was submitted in it before leaves room.
    ///
    /// # Errors
    /// Those of [`Ledger::submit`].
    pub fn submit_within<'a>(
        &'a self,
        share: &'a QueueShare,
        write: RunWrite,
    ) -> impl Future<Output = Result<Commit, LedgerError>> + Send + use<'a> {
        self.submit_in(Some(share), write)
    }

    fn submit_in<'a>(
        &'a self,
        share: Option<&'a QueueShare>,
        write: RunWrite,
    ) -> impl Future<Output = Result<Commit, LedgerError>> + Send + use<'a> {
        // Before the future: a write is large, and each future that it is passed to has room for it.
        let prepared = WriteOperation::prepare(write, &self.shared().blobs);
        async move {
            let (mut operation, bytes, state, answer) = prepared?;
            let admit = |admitted| {
                operation.state = admitted;
                Operation::Write(operation)
            };
            self.admit_with_state(state, bytes, share, admit).await?;
            Ok(Commit { answer, shared: Arc::clone(self.shared()) })
        }
    }

    /// Admits the operation that `make` makes of what it has in the overlay.
    pub(crate) async fn admit_with_state(
        &self,
        state: Vec<StateWrite>,
        bytes: usize,
        share: Option<&QueueShare>,
        make: impl FnOnce(Option<AdmittedValues>) -> Operation,
    ) -> Result<(), LedgerError> {
        let shared = self.shared();
        shared.check_lease()?;
        let mut of_share = match share {
            Some(share) => Some(share.room(bytes).await.map_err(|_| shared.unavailable())?),
            None => None,
        };
        let place = shared.queue.reserve(bytes).await.map_err(|_| shared.unavailable())?;
        let mut push = |operation| shared.queue.push(operation, place, of_share.take()).map_err(|_| shared.unavailable());
        let admitted = if state.is_empty() {
            push(make(None))
        } else {
            let stored = |write: &StateWrite| self.reader()?.stored_tag(&write.scope_key, &write.key);
            shared.overlay.admit(state, stored, |admitted| push(make(Some(admitted))))
        };
        // A refused operation returns its place in the queue.
        admitted.inspect_err(|_| shared.queue.release(place.units()))
    }

    /// Adds audit records. Returns when they are admitted; they are durable within the next group commit.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] and [`LedgerError::Unavailable`].
    pub async fn audit(&self, records: Vec<AuditRecord>) -> Result<(), LedgerError> {
        if records.is_empty() {
            return Ok(());
        }
        let rows = records.iter().map(AuditRow::prepare).collect::<Result<Vec<_>, _>>()?;
        let bytes = audit_bytes(&rows);
        bounded(bytes)?;
        self.admit(Operation::Audit(rows), bytes).await
    }

    /// Writes what was admitted, merges it into redb and closes the files. Afterwards every call on every handle
    /// is refused with [`LedgerError::Unavailable`]. Closing again does nothing.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] where the ledger has failed; what was answered before is durable all the same.
    pub async fn close(self) -> Result<(), LedgerError> {
        let shared = self.shared();
        shared.queue.close();
        let done = shared.done.lock().take();
        if let Some(done) = done {
            // The writer sends nothing: it drops its end when it is done.
            let _ = done.await;
        }
        match shared.ended.lock().clone() {
            Some(WriterEnd::Failed(reason)) => Err(LedgerError::Unavailable(reason)),
            _ => Ok(()),
        }
    }

    /// Follows a run. See [`Watch`].
    #[must_use]
    pub fn watch(&self, run_no: u64) -> Watch {
        self.shared().watchers.watch(run_no)
    }

    /// Follows the turns of a conversation: commits in which a run takes its turn, or in which runs are forgotten. See [`Watch`].
    #[must_use]
    pub fn watch_turns(&self, key: ConversationKey) -> Watch {
        self.shared().watchers.watch_turns(key)
    }

    /// Follows all commits: the receiver changes after each one, and when the ledger has closed or failed. Subscribe first and
    /// read afterwards.
    #[must_use]
    pub fn commits(&self) -> tokio::sync::watch::Receiver<()> {
        self.shared().watchers.commits()
    }

    /// Registers a function that is called after every commit with the numbers of the touched runs, for a subscriber of
    /// more runs than could each have a [`Watch`]. The writer thread calls the function, so it must be quick and must not
    /// wait. The first registered function stays the only one.
    pub fn on_commit(&self, listener: impl Fn(&[u64]) + Send + Sync + 'static) {
        self.shared().watchers.listen(Box::new(listener));
    }

    /// The state of the ledger.
    #[must_use]
    pub fn health(&self) -> Health {
        if let Some(WriterEnd::Closed(reason) | WriterEnd::Failed(reason)) = self.shared().ended.lock().clone() {
            return Health::Failed(reason.to_string());
        }
        if let Some(took) = self.shared().commits.hanging() {
            return Health::WritesHang { for_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX) };
        }
        match self.shared().disk.check(DiskNeed::NewEvent) {
            Err(LedgerError::DiskLow { free, needed }) => Health::DiskLow { free, needed },
            _ => match self.shared().merge_failure.current() {
                Some(failure) => Health::MergesFail { reason: failure.reason.to_string(), is_full: failure.is_full },
                None => match self.shared().commits.failure() {
                    Some(reason) => Health::WritesFail { reason: reason.to_string() },
                    None => Health::Ok,
                },
            },
        }
    }

    /// Creates a run for an existing event, with its first events and journal. The run is durable, and listed with its
    /// event, when this function returns. If the future is dropped, the run may or may not have been created.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`] where the event is not there; [`LedgerError::Invalid`] where the id of the run is not
    /// new, the run not `created`, an event terminal, or their number not what the run says;
    /// [`LedgerError::Sequence`] where they are not numbered from 1 without a gap; [`LedgerError::DiskLow`],
    /// [`LedgerError::WorkspaceFull`], [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn add_run(&self, new: AddRun) -> Result<RunRecord, LedgerError> {
        let shared = self.shared();
        shared.disk.check(DiskNeed::NewEvent)?;
        self.check_quota(new.run.workspace_id.as_deref().unwrap_or_default())?;
        let (operation, bytes, answer) = AddRunOperation::prepare(new)?;
        let (mut run, digest) = (Arc::clone(&operation.run), Arc::clone(&operation.digest));
        self.admit(Operation::AddRun(operation), bytes).await?;
        let run_no = self.answer(answer).await?;
        Arc::make_mut(&mut run).record_digest = digest.get().copied();
        Ok(RunRecord { run_no, run })
    }

    pub(crate) fn reader(&self) -> Result<Reader, LedgerError> {
        self.shared().reader()
    }

    /// The committed rows, for reading beside the ledger.
    #[must_use]
    pub fn copy_reader(&self) -> CopyReader {
        CopyReader::new(Arc::clone(&self.shared().views))
    }

    /// True where the host was asked to give the ledger of its cluster to another one.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.shared().lease.as_ref().is_some_and(|lease| lease.gives_way())
    }

    /// True for the ledger of a cluster: other hosts follow it, and one of them may go on with it.
    #[must_use]
    pub fn is_of_cluster(&self) -> bool {
        self.shared().lease.is_some()
    }

    /// The permits of bindings whose limits hold over all partitions. `None` where this ledger has all of their runs.
    #[must_use]
    pub fn permits(&self) -> Option<Permits> {
        self.shared().permits.clone()
    }

    /// An error where the ledger is closed or has failed, or where the lease of this host is over: then no effect may begin. Costs one
    /// reading of a clock, and nothing for a ledger of its own.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn check_lease(&self) -> Result<(), LedgerError> {
        self.shared().check_lease()
    }

    /// An error where the ledger is closed or has failed.
    pub(crate) fn open(&self) -> Result<(), LedgerError> {
        self.reader().map(drop)
    }
}
