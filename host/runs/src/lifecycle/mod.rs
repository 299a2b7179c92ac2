//! From the creation of a run to its end: its line, its turn, its place or claim, parking, waking and recovery.
//!
//! [`task::RunTask`] is the one life cycle. Its [`body`] executes a run: a guest in the sandbox, an executor under a claim, or
//! the import of a capture.

mod appended;
pub(crate) mod body;
pub(crate) mod cancel;
pub(crate) mod claims;
pub(crate) mod components;
pub(crate) mod dead_letters;
pub(crate) mod executor;
pub(crate) mod executors;
pub(crate) mod family;
pub(crate) mod guest;
pub(crate) mod import;
mod last_tries;
pub(crate) mod lease;
pub(crate) mod lines;
pub(crate) mod native;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod registration;
pub(crate) mod requeue;
pub(crate) mod responses;
pub(crate) mod start;
pub(crate) mod task;
mod trees;
pub(crate) mod wake;
pub(crate) mod watchers;

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
};

use agent_host_ledger::{Ledger, Partition, RunRecord};
use agent_host_protocol::{Event, RunId, RunStatus};
use agent_host_sandbox::Runner;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    claims::ClaimHandle,
    components::LedgerComponents,
    executors::Executors,
    last_tries::LastTries,
    lease::LeaseKey,
    lines::Lines,
    queue::{
        admission::{Admission, Admissions},
        waiting::WaitingRuns,
    },
    trees::Trees,
    wake::MAX_WAKING,
    watchers::Watchers,
};
use crate::{
    execution::{
        Resumption, Shared,
        neighbours::{Neighbours, NoNeighbours},
        registry::Registry,
        run_logs::RunLogs,
        writer::RunWriter,
    },
    record::{HostError, terms::Terms},
};

/// The runs of one ledger. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runs(Arc<RunsOfCell>);

/// The state of the life cycles of one ledger.
pub(crate) struct RunsOfCell {
    pub(crate) shared: Arc<Shared>,
    pub(crate) ledger: Ledger,
    /// The partition that the ledger is.
    pub(crate) partition: Partition,
    pub(crate) components: LedgerComponents,
    /// Kept logs of the runs.
    pub(crate) logs: Arc<RunLogs>,
    /// One line for each conversation with an active run.
    pub(crate) lines: Arc<Lines>,
    /// The places of the runs.
    pub(crate) registry: Arc<Registry>,
    /// External runs and executors that wait for each other.
    pub(crate) waiting: WaitingRuns,
    /// Permits by binding.
    pub(crate) admissions: Arc<Admissions>,
    pub(crate) executors: Executors,
    /// Clients that watch runs.
    pub(crate) watchers: Watchers,
    /// Runs that executors hold.
    pub(crate) claims: Mutex<HashMap<RunId, Arc<ClaimHandle>>>,
    pub(crate) lease_key: LeaseKey,
    /// Notified when a parked run may be due earlier than the next one that the clock knows.
    pub(crate) alarm: Notify,
    /// Runs on their last try.
    last_tries: LastTries,
    /// Runs that have started others.
    pub(crate) trees: Trees,
    /// One permit for each parked run that is being resumed.
    pub(crate) waking: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the cell stops: no run starts any more.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the grace of a stop is over.
    pub(crate) ending: CancellationToken,
    /// Weak: the room above holds these runs.
    neighbours: OnceLock<Weak<dyn Neighbours>>,
}

impl Deref for Runs {
    type Target = RunsOfCell;

    fn deref(&self) -> &RunsOfCell {
        &self.0
    }
}

impl Runs {
    /// Opens the runs of a ledger. None of them is executed before [`Runs::recover`].
    pub(crate) async fn open(shared: &Arc<Shared>, ledger: Ledger, partition: Partition) -> Result<Self, HostError> {
        let logs = Arc::new(RunLogs::new(&shared.setup().config.data_dir, partition));
        let (executors, lease_key) = (Executors::load(&ledger, partition, &shared.registered)?, LeaseKey::of(&ledger).await?);
        let is_shared = ledger.permits().is_some();
        let components = LedgerComponents::of(&ledger);
        Ok(Self(Arc::new(RunsOfCell {
            shared: Arc::clone(shared),
            ledger,
            partition,
            components,
            logs,
            lines: Arc::default(),
            registry: Arc::default(),
            waiting: WaitingRuns::default(),
            admissions: Arc::new(Admissions::new(is_shared)),
            executors,
            watchers: Watchers::default(),
            claims: Mutex::default(),
            lease_key,
            alarm: Notify::new(),
            last_tries: LastTries::default(),
            trees: Trees::default(),
            waking: Arc::new(Semaphore::new(MAX_WAKING)),
            tasks: TaskTracker::new(),
            stopping: shared.stopping.child_token(),
            ending: shared.ending.child_token(),
            neighbours: OnceLock::new(),
        })))
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Says what runs reach of each other. To be called once, before any run begins.
    pub(crate) fn connect(&self, neighbours: Weak<dyn Neighbours>) {
        let _ = self.neighbours.set(neighbours);
    }

    fn neighbours(&self) -> Arc<dyn Neighbours> {
        let connected = self.neighbours.get().and_then(Weak::upgrade);
        connected.unwrap_or_else(|| Arc::new(NoNeighbours))
    }

    /// The record of a run.
    pub(crate) fn record(&self, id: RunId) -> Result<RunRecord, HostError> {
        self.ledger.run(id)?.ok_or_else(|| HostError::NotFound(format!("there is no run {id}")))
    }

    /// The writer of a run that is not executed.
    pub(crate) fn writer(&self, record: &RunRecord) -> RunWriter {
        RunWriter::of(&self.ledger, record)
    }

    /// Fails if the cell accepts no new work.
    pub(crate) fn check_running(&self) -> Result<(), HostError> {
        if self.stopping.is_cancelled() { Err(HostError::ShuttingDown) } else { Ok(()) }
    }
}

/// A run in the ledger, with what its task needs.
pub(crate) struct StoredRun {
    pub(crate) record: RunRecord,
    pub(crate) event: Arc<Event>,
    pub(crate) event_no: u64,
    pub(crate) transcript_seq: Option<u64>,
    pub(crate) terms: Arc<Terms>,
    /// The present runner. A resumed run keeps the component that it began with.
    pub(crate) runner: Option<Runner>,
    pub(crate) resumption: Resumption,
    /// True if the host found the run at its start: the run may have crashed the host before.
    pub(crate) found: bool,
    /// Held until a run that comes back has its place.
    pub(crate) waking: Option<OwnedSemaphorePermit>,
    /// The admission of a run that an executor holds since before the cell was opened.
    pub(crate) admission: Option<Box<Admission>>,
}

impl StoredRun {
    /// A run that was just created.
    pub(crate) fn new(record: RunRecord, event: StoredEvent, terms: Arc<Terms>, runner: Option<Runner>) -> Self {
        let StoredEvent { event, event_no, transcript_seq } = event;
        let resumption = Resumption::New;
        Self { record, event, event_no, transcript_seq, terms, runner, resumption, found: false, waking: None, admission: None }
    }

    /// True if an executor held the run when the host stopped.
    pub(crate) fn is_claimed(&self) -> bool {
        let run = &self.record.run;
        let has_executor = run.queue.as_ref().is_some_and(|queue| queue.executor_id.is_some());
        self.resumption == Resumption::Interrupted && run.status != RunStatus::Queued && has_executor
    }
}

/// The event of a run, and its places.
#[derive(Clone)]
pub(crate) struct StoredEvent {
    pub(crate) event: Arc<Event>,
    pub(crate) event_no: u64,
    pub(crate) transcript_seq: Option<u64>,
}

impl Runs {
    /// Reads what the task of a run needs.
    pub(crate) fn stored(&self, record: RunRecord, resumption: Resumption) -> Result<StoredRun, HostError> {
        let ledger = &self.ledger;
        let missing =
            |what: &str| HostError::Internal(format!("run {} has no {what}: run `agent-host ledger check`", record.run.run_id));
        let terms = ledger.terms(record.run.run_id)?.ok_or_else(|| missing("terms"))?;
        let terms: Terms =
            serde_json::from_str(terms.get()).map_err(|error| missing(&format!("terms that can be read ({error})")))?;
        let event = ledger.event(record.run.event_id)?.ok_or_else(|| missing("event"))?;
        let runner = self.shared.plugins.runner(&record.run.runner_id);
        let event = StoredEvent { event: Arc::new(event.event), event_no: event.event_no, transcript_seq: event.transcript_seq };
        Ok(StoredRun { resumption, ..StoredRun::new(record, event, Arc::new(terms), runner) })
    }
}
