//! One execution of a run: its data, its writer, its gate, its waits and its children.

pub(crate) mod answer;
pub(crate) mod answers;
pub(crate) mod background;
pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod deadline;
pub(crate) mod doubt;
pub(crate) mod family;
pub(crate) mod gate;
pub(crate) mod log;
pub mod metrics;
pub(crate) mod neighbours;
pub(crate) mod open_calls;
pub(crate) mod refusals;
pub(crate) mod registry;
pub(crate) mod run_logs;
pub(crate) mod shared;
pub(crate) mod spans;
pub(crate) mod waits;
pub(crate) mod writer;

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::{ApiError, ErrorCode, EventId, EventSource, Limits, Run, RunId, run::ModelUsage};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub(crate) use self::shared::Shared;
use self::{
    budget::{RunBudget, Spending},
    deadline::Deadline,
    family::Family,
    gate::Rates,
    metrics::Metrics,
    open_calls::OpenCalls,
    refusals::Refusals,
    registry::Mailbox,
    waits::Waits,
    writer::{ExecutionWriter, RunWriter, UnwrittenStart},
};
use crate::{
    policy::key_limits::ChargedKey,
    record::{journal::Journal, ledger_failed, seen::SeenValues, terms::Terms, transcript::ItemPlace},
};

/// One execution of a run. The calls of the run and its background tasks share its parts.
pub(crate) struct Execution {
    pub(crate) run_id: RunId,
    pub(crate) run_no: u64,
    pub(crate) attempt: u32,
    pub(crate) terms: Arc<Terms>,
    pub(crate) limits: Arc<Limits>,
    /// For reading. [`Execution::writer`] writes.
    pub(crate) ledger: Ledger,
    /// Cancelled once the request to cancel the run is committed.
    pub(crate) cancelled: CancellationToken,
    /// The instant at which the execution times out.
    pub(crate) deadline: Deadline,
    pub(crate) journal: Arc<Journal>,
    pub(crate) writer: ExecutionWriter,
    /// Calls of effects that have begun and not ended.
    pub(crate) open: OpenCalls,
    pub(crate) rates: Rates,
    pub(crate) refusals: Refusals,
    /// Bytes of the results that the execution has come to, replayed ones included.
    emitted_bytes: AtomicU64,
    pub(crate) budget: RunBudget,
    pub(crate) waits: Waits,
    pub(crate) family: Family,
    pub(crate) knowledge: Knowledge,
    /// `None` during offline replay.
    pub(crate) metrics: Option<Metrics>,
}

/// The past of a run whose task begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// A first execution.
    New,
    /// The host stopped while it was active.
    Interrupted,
    /// A parked run.
    Parked,
    /// A fork, which begins with the first calls of another run.
    Forked,
}

/// The knowledge that the calls of an execution depend on.
#[derive(Default)]
pub(crate) struct Knowledge {
    /// State values that it has read or written.
    pub(crate) seen: SeenValues,
    /// Bytes of artifacts that it has written.
    pub(crate) artifact_bytes: AtomicU64,
    /// Artifacts that came with input which it has taken.
    pub(crate) input_artifacts: Mutex<HashSet<String>>,
    /// Events that an earlier attempt has taken as input: they are given again, oldest first.
    pub(crate) pending_inputs: Mutex<VecDeque<EventId>>,
}

/// The parts of a new execution.
pub(crate) struct NewExecution<'a> {
    pub(crate) run_id: RunId,
    pub(crate) event_id: EventId,
    pub(crate) run_no: u64,
    pub(crate) attempt: u32,
    pub(crate) terms: Arc<Terms>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) ledger: &'a Ledger,
    pub(crate) cancelled: CancellationToken,
    pub(crate) deadline: Instant,
    /// Sequence of the last event of the run.
    pub(crate) last_sequence: u64,
    pub(crate) journal: Journal,
    /// The start of the run, where it is not written yet.
    pub(crate) start: Option<UnwrittenStart>,
    pub(crate) mail: Arc<Mailbox>,
    /// The claim under which an executor executes the run.
    pub(crate) claim: Option<u32>,
    /// Use of models by earlier executions and ended children.
    pub(crate) used: ModelUsage,
    /// Use of models by the tree of the run, where it has a budget and may be one of several.
    pub(crate) tree: Option<Arc<Spending>>,
    /// Use of the API key that pays for the run.
    pub(crate) key: Option<ChargedKey>,
    /// `None` during offline replay.
    pub(crate) metrics: Option<Metrics>,
}

impl Execution {
    /// Counts the use of models by a child that has ended, once: by the call that hears of the end or by the task that records it,
    /// whichever is first.
    pub(crate) fn count_child(&self, child: &Run) {
        let usage = child.total_usage();
        if usage.calls > 0 && self.family.children.count(child.run_id) {
            self.budget.add_child(&usage);
        }
    }

    pub(crate) fn new(parts: NewExecution<'_>) -> Self {
        let NewExecution { run_id, run_no, attempt, terms, limits, ledger, cancelled, deadline, last_sequence, .. } = parts;
        let writer = RunWriter::new(ledger, run_id, run_no);
        let writer = match parts.claim {
            Some(claim) => writer.fenced(claim),
            None => writer,
        };
        let journal = Arc::new(parts.journal);
        let conversation = terms.grant.conversation.clone();
        let place = conversation.map(|conversation| ItemPlace { conversation, event_id: parts.event_id, run_id });
        Self {
            run_id,
            run_no,
            attempt,
            ledger: ledger.clone(),
            cancelled,
            deadline: Deadline::new(deadline),
            writer: ExecutionWriter::new(writer, Arc::clone(&journal), place, last_sequence, parts.start),
            journal,
            open: OpenCalls::of_attempt(attempt),
            rates: Rates::new(&limits),
            budget: RunBudget::new(terms.budget.unwrap_or_default(), &parts.used, parts.tree).charged_to(parts.key),
            waits: Waits::new(parts.mail),
            family: Family::default(),
            knowledge: Knowledge::default(),
            refusals: Refusals::default(),
            emitted_bytes: AtomicU64::new(0),
            metrics: parts.metrics,
            terms,
            limits,
        }
    }

    /// Fails if the record has no room for this number of events more.
    pub(crate) fn has_room(&self, events: usize) -> Result<(), ApiError> {
        let most = self.limits.run_events;
        if self.writer.last_sequence().saturating_add(events as u64) <= most {
            return Ok(());
        }
        Err(ApiError::new(ErrorCode::PayloadTooLarge, format!("a run has at most {most} events")))
    }

    /// Fails if the workspace of the run keeps as many bytes as it may.
    pub(crate) fn has_quota(&self) -> Result<(), ApiError> {
        self.ledger.check_quota(self.terms.grant.workspace()).map_err(ledger_failed)
    }

    /// Takes room in the record for so many bytes of results, also for those that an earlier execution has emitted; fails if
    /// there is none. What is refused gives it back.
    pub(crate) fn take_room(&self, bytes: u64) -> Result<(), ApiError> {
        let most = self.limits.run_record_bytes;
        let emitted = self.emitted_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if emitted <= most {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::PayloadTooLarge,
            format!("a run emits at most {most} bytes of results (`limits.run_record_bytes`): write an artifact instead"),
        ))
    }

    pub(crate) fn give_back_room(&self, bytes: u64) {
        self.emitted_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// True if an executor executes the run. The calls of an external run are concurrent, and the caller of a call may go
    /// away while the run continues.
    pub(crate) fn is_external(&self) -> bool {
        self.writer.claim().is_some()
    }

    /// The author of the results of this execution.
    pub(crate) fn source(&self) -> EventSource {
        if self.is_external() { EventSource::Executor } else { EventSource::Runner }
    }
}

/// Work on files, off the threads that serve. A call that is given up meanwhile does not stop it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(ledger_failed),
        Err(error) => {
            tracing::error!(%error, "work on files failed");
            Err(ApiError::retryable(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason"))
        }
    }
}
