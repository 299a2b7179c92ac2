//! The body of a run executes it. [`RunTask`] is the same for all bodies.

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{LedgerError, RunChange, RunWrite};
use agent_host_protocol::{
    Run, Timestamp,
    context::RunContext,
    manifest::RunOperation,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{CpuBudget, World};

use super::{
    requeue::Requeue,
    start::{Start, StartKind},
    task::{Interruption, RunOutcome, RunTask},
};
use crate::{
    calls::RunCalls,
    execution::{
        Execution, NewExecution, Resumption, background::BackgroundActions, budget::Spending, family::Children, log::GuestLog,
    },
    record::{HostError, WaitKey, steering},
};

/// The body that executes a run.
pub(crate) trait Body: Send {
    /// True if a cancel request ends the run while the run waits for its turn. For a claimed run, the executor receives the
    /// request first.
    fn takes_cancel(&self) -> bool;

    /// Waits for what executes the run, a place or a claim. A guest's execution begins here.
    fn start(&mut self, task: &mut RunTask) -> impl Future<Output = Result<Ready, HostError>> + Send;

    /// Executes the run until something ends that.
    fn run(&mut self, task: &mut RunTask) -> impl Future<Output = Result<Exit, HostError>> + Send;

    /// Stops what is under way for the run; gives the execution. `None` where it has not begun.
    fn stop(&mut self) -> impl Future<Output = Option<RunningExecution>> + Send;

    /// The exit of the execution when the host stops and the grace of the stop is over.
    fn on_host_stop(&self, task: &RunTask, running: &RunningExecution) -> Exit;

    /// The claim under which an executor holds the run.
    fn claim(&self) -> Option<u32>;

    /// Answers the request that ended the execution. `None` where the run waits in its queue again.
    fn answer(&mut self, run: &Arc<Run>, outcome: Option<&RunOutcome>);
}

/// The readiness of a body.
pub(crate) enum Ready {
    /// To execute the run.
    Started,
    /// The run ends before it is executed.
    Ends(Terminal),
    /// The run has no attempts left, or nobody executes it in time: it ends as failed and is a dead letter.
    Fails(RunFailure),
    /// The wait was interrupted.
    Interrupted(Interruption),
}

/// The reason why an execution is over.
pub(crate) enum Exit {
    /// The run ends.
    End(Terminal),
    /// The run leaves memory until then, or until somebody comes with one of the keys.
    Park { until: Option<Timestamp>, reason: &'static str, keys: Vec<WaitKey> },
    /// The host stops, and the run continues after the next start.
    Suspend,
    /// The run waits in its queue again, or ends where it has no attempts left.
    Requeue(Requeue),
}

/// An execution that has begun.
pub(crate) struct RunningExecution {
    pub(crate) execution: Arc<Execution>,
    pub(crate) log: Arc<GuestLog>,
}

/// An execution, with what its body is given.
pub(crate) struct AssembledContext {
    pub(crate) running: RunningExecution,
    pub(crate) calls: RunCalls,
    pub(crate) context: Box<RunContext>,
    pub(crate) world: World,
}

impl RunTask {
    /// The sums of the tree of the run, where it has a budget and may be one of several.
    fn tree_spending(&self) -> Result<Option<Arc<Spending>>, LedgerError> {
        if self.run.terms.budget.is_none() || !self.may_be_one_of_several() {
            return Ok(None);
        }
        self.runs.trees.spending(&self.runs.ledger, self.run_id(), &self.runs.shared.limits()).map(Some)
    }

    /// The CPU time of the tree of the run; of the run alone, where the tree has no other.
    pub(crate) fn cpu(&self) -> Result<Arc<CpuBudget>, LedgerError> {
        let limits = self.runs.shared.limits();
        if self.may_be_one_of_several() {
            self.runs.trees.cpu(&self.runs.ledger, self.run_id(), &limits)
        } else {
            Ok(Arc::new(CpuBudget::new(Duration::from_millis(limits.tree_cpu_ms))))
        }
    }

    /// True for a child, and for a run that may start children.
    fn may_be_one_of_several(&self) -> bool {
        let may_start = self.run.terms.grant.permissions.runs.contains(&RunOperation::Start);
        may_start || self.run.record.run.parent_run_id.is_some()
    }

    /// Makes the execution that a start has prepared, with what earlier executions have left to it. A start is large, so it is
    /// taken apart before the future.
    pub(crate) fn assemble(
        &self,
        start: Start,
        claim: Option<u32>,
    ) -> impl Future<Output = Result<AssembledContext, HostError>> + Send {
        let (runs, setup) = (&self.runs, self.runs.shared.setup());
        let run_id = self.run_id();
        let (tree, problem) = match self.tree_spending() {
            Ok(tree) => (tree, None),
            Err(problem) => (None, Some(problem)),
        };
        let execution = Arc::new(Execution::new(NewExecution {
            run_id,
            event_id: self.run.record.run.event_id,
            run_no: self.run.record.run_no,
            attempt: start.attempt,
            terms: Arc::clone(&self.run.terms),
            limits: Arc::clone(&setup.limits),
            ledger: &runs.ledger,
            cancelled: self.cancelled.clone(),
            deadline: start.deadline,
            last_sequence: start.last_sequence,
            journal: start.journal,
            start: start.unwritten,
            mail: Arc::clone(&self.mail),
            claim,
            used: self.run.record.run.total_usage(),
            tree,
            key: self.run.terms.charged_key.as_deref().map(|id| runs.shared.keys.usage().charged(id, runs.partition)),
            metrics: Some(runs.shared.metrics.clone()),
        }));
        execution.knowledge.seen.note_snapshot(&self.run.terms, &start.context.state);
        let log = GuestLog::new(run_id, &setup.limits, execution.journal.replaying(), Some(Arc::clone(&runs.logs)));
        let log = Arc::new(log);
        let calls = RunCalls {
            run: Arc::clone(&execution),
            event: Arc::clone(&self.run.event),
            services: Arc::clone(&setup.services),
            neighbours: runs.neighbours(),
        };
        let running = RunningExecution { execution, log };
        let (assembled, kind) = (AssembledContext { running, calls, context: start.context, world: start.world }, start.kind);
        async move {
            if let Some(problem) = problem {
                return Err(problem.into());
            }
            if self.run.resumption != Resumption::New || kind != StartKind::First {
                Box::pin(self.inherit(&assembled, kind)).await?;
            }
            Ok(assembled)
        }
    }

    /// Inherits from earlier executions. A resumed execution keeps their children, reports their ends and goes on with their
    /// background actions. A new attempt knows no earlier children and receives again the input that earlier attempts had taken.
    async fn inherit(&self, assembled: &AssembledContext, kind: StartKind) -> Result<(), HostError> {
        let execution = &assembled.running.execution;
        let (ledger, terms) = (&self.runs.ledger, &self.run.terms);
        if !terms.grant.permissions.runs.is_empty() {
            let children = Children::of(ledger, &self.run.record)?;
            if kind == StartKind::Resumed {
                execution.family.children.inherit(children);
                self.runs.report_ends(execution)?;
            } else {
                self.runs.end_children(execution.run_id, &children).await;
            }
        }
        if terms.grant.steering && kind == StartKind::Retry {
            *execution.knowledge.pending_inputs.lock() = steering::taken_before(ledger, &self.run.record)?;
        }
        if kind == StartKind::Resumed {
            let actions = BackgroundActions::new(execution, &assembled.calls.services);
            actions.resume().map_err(|error| HostError::Unavailable(error.message))?;
        }
        Ok(())
    }
}

/// The instant of a timestamp at which a lease or a pause ends.
pub(crate) fn instant_of(at: Timestamp) -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_millis(at.saturating_sub(time::now()))
}

/// A write with nothing but these changes.
pub(crate) fn changes(change: RunChange) -> RunWrite {
    RunWrite { changes: vec![change], ..RunWrite::default() }
}
