//! The task of a run: from the moment when it is in the ledger until it ends, parks, or is suspended by a stop.

use std::{sync::Arc, time::Duration};

use agent_host_facts::record::StatusChange;
use agent_host_ledger::{Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    ApiError, Run, RunId, RunStatus, Timestamp,
    import::Form,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_providers::log_context::{LogContext, LogIds, LogValue};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Runs, StoredRun,
    body::{Body, Exit, Ready, RunningExecution},
    executor::ExecutorBody,
    guest::GuestBody,
    import::ImportBody,
    lines::{Turn, TurnCall},
};
use crate::{
    execution::{
        Resumption,
        family::Children,
        registry::{Handle, Mailbox},
        writer::{OnStorageError, RunWriter},
    },
    record::{
        HostError, WaitKey,
        action::AskKind,
        facts::{self, Fact, UnendedCalls},
        is_external,
        journal::Stop,
        results::Speaker,
        steering,
        terminal::{bounded, end_executed, end_stored, timed_out},
    },
};

/// Largest task of a run. Tens of thousands of runs wait in lines and queues, each with its task.
const MAX_TASK_BYTES: usize = 4 * 1024;

/// The reason why a run leaves its task.
pub(crate) enum RunOutcome {
    Ended(Arc<Run>),
    /// The run waits on disk.
    Parked,
    /// The host stops, and the run continues after the next start.
    Suspended,
}

/// The task of one run.
pub(crate) struct RunTask {
    pub(crate) runs: Runs,
    pub(crate) run: StoredRun,
    /// Cancelled once the request to cancel the run is committed.
    pub(crate) cancelled: CancellationToken,
    pub(crate) mail: Arc<Mailbox>,
    pub(crate) turn: Turn,
}

/// The ids of every log line of a run.
struct RunIds(Arc<Run>);

impl LogIds for RunIds {
    fn name(&self) -> &'static str {
        "run"
    }

    fn visit(&self, field: &mut dyn FnMut(&'static str, LogValue<'_>)) {
        field("run_id", LogValue::Id(&self.0.run_id));
        field("runner_id", LogValue::Id(&self.0.runner_id));
        field("binding_id", LogValue::Text(&self.0.binding_id));
    }
}

/// The reason why the wait of a run that is not executed ended early.
pub(crate) enum Interruption {
    Stopping,
    Cancelled,
}

impl Runs {
    /// Begins the task of a run that is in the ledger. A run that has a task already is left alone.
    pub(crate) fn begin(&self, run: StoredRun) {
        let (run_id, run_no) = (run.record.run.run_id, run.record.run_no);
        let (ended, on_end) = watch::channel(None);
        let cancelled = CancellationToken::new();
        if run.record.run.cancel_requested_at.is_some() {
            cancelled.cancel();
        }
        let Some(mail) = self.registry.enter(run_id, Handle { cancelled: cancelled.clone(), ended: on_end }) else { return };
        let conversation = run.terms.grant.conversation.clone();
        let turn = self.lines.join(conversation.clone(), run_no, run.terms.grant.steering, |key| self.parked_turn(key));
        let waits = !turn.is_now();
        let runs = self.clone();
        let context = LogContext::current().with(RunIds(Arc::clone(&run.record.run)));
        let task = RunTask { runs: self.clone(), run, cancelled, mail, turn };
        let running = async move {
            if let Some(conversation) = conversation.filter(|_| waits) {
                runs.wake_all_on(&WaitKey::steering(&conversation)).await;
            }
            let (outcome, turn) = task.execute().await;
            runs.registry.leave(run_id);
            match outcome {
                Ok(RunOutcome::Ended(run)) => {
                    drop(turn);
                    tracing::debug!(status = %run.status, "the run has ended");
                    runs.shared.metrics.ended(&run);
                    runs.child_ended(&run).await;
                    let _ = ended.send(Some(Ok(run)));
                }
                Ok(RunOutcome::Parked) => {
                    turn.leave_parked();
                    runs.check_parked(run_no);
                }
                Ok(RunOutcome::Suspended) => {}
                Err(error) => {
                    tracing::error!(%run_id, %error, "the run could not be ended; it will be ended when the host starts again");
                    let _ = ended.send(Some(Err(error.to_string())));
                }
            }
        };
        let running = context.scope(running);
        debug_assert!(size_of_val(&running) <= MAX_TASK_BYTES, "the task of a run has {} bytes", size_of_val(&running));
        self.tasks.spawn_on(running, &self.shared.sandbox.threads_of_runs());
    }
}

impl RunTask {
    async fn execute(mut self) -> (Result<RunOutcome, HostError>, Turn) {
        let outcome = if is_external(&self.run.record.run) {
            let body = ExecutorBody::new(&mut self);
            Box::pin(self.execute_by(body)).await
        } else if let Some(form) = Form::of_grant(&self.run.terms.grant) {
            Box::pin(self.execute_by(ImportBody::new(form))).await
        } else {
            self.execute_by(GuestBody::default()).await
        };
        (outcome, self.turn)
    }

    /// Executes the run by this body until its end, or until it leaves memory. The turn ends after the end is committed.
    async fn execute_by<B: Body>(&mut self, mut body: B) -> Result<RunOutcome, HostError> {
        if is_external(&self.run.record.run) || !self.turn.is_now() {
            Box::pin(self.write_queued()).await?;
        }
        if let Some(outcome) = self.await_turn(body.takes_cancel()).await? {
            return Ok(outcome);
        }
        // A start, an end and what is rare have state machines of their own: a run that waits carries none of them.
        loop {
            match Box::pin(body.start(self)).await? {
                Ready::Started => {}
                Ready::Ends(terminal) => return Box::pin(self.end_stored(terminal)).await,
                Ready::Fails(failure) => return Box::pin(self.give_up(failure)).await,
                Ready::Interrupted(Interruption::Stopping) => return Ok(RunOutcome::Suspended),
                Ready::Interrupted(Interruption::Cancelled) => return Box::pin(self.end_cancelled()).await,
            }
            let mut exit = body.run(self).await?;
            let running = body.stop().await;
            if let (Some(running), Exit::End(Terminal::Completed(_))) = (&running, &exit) {
                exit = Box::pin(self.await_background(&body, running, exit)).await?;
            }
            if let Some(running) = &running {
                running.execution.family.release().await;
            }
            let left = Box::pin(self.conclude(&body, running, exit)).await?;
            body.answer(&self.run.record.run, left.as_ref());
            match left {
                Some(outcome) => return Ok(outcome),
                // The run waits in its queue again.
                None => continue,
            }
        }
    }

    /// Waits for the turn of the run in its conversation. An outcome where the run leaves its task meanwhile.
    async fn await_turn(&mut self, cancellable: bool) -> Result<Option<RunOutcome>, HostError> {
        let called = tokio::select! {
            biased;
            () = self.runs.stopping.cancelled() => match self.turn.taken_by() {
                Some(taker) => TurnCall::TakenBy(taker),
                None => return Ok(Some(RunOutcome::Suspended)),
            },
            () = self.cancelled.cancelled(), if cancellable => return Box::pin(self.end_cancelled()).await.map(Some),
            called = self.turn.wait() => called,
        };
        match called {
            TurnCall::Now => Ok(None),
            TurnCall::TakenBy(taker) => Box::pin(self.end_taken(taker)).await.map(Some),
        }
    }

    /// Waits for something that a run waits for before it is executed.
    pub(crate) async fn unless_interrupted<T>(&self, waited: impl Future<Output = T>) -> Result<T, Interruption> {
        tokio::select! {
            biased;
            () = self.runs.stopping.cancelled() => Err(Interruption::Stopping),
            () = self.cancelled.cancelled() => Err(Interruption::Cancelled),
            value = waited => Ok(value),
        }
    }

    /// The run is completed, and ends when its background actions are resolved.
    async fn await_background<B: Body>(&self, body: &B, running: &RunningExecution, exit: Exit) -> Result<Exit, HostError> {
        let execution = &running.execution;
        Ok(tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Exit::End(self.cancelled_terminal()?),
            () = execution.deadline.passed() => Exit::End(timed_out(self.run.terms.deadline_ms)),
            () = self.runs.ending.cancelled() => body.on_host_stop(self, running),
            stop = execution.waits.stopped() => Exit::from_stop(stop),
            () = execution.await_background() => exit,
        })
    }

    /// Writes the exit of an execution. `None` where the run waits in its queue again.
    async fn conclude<B: Body>(
        &mut self,
        body: &B,
        running: Option<RunningExecution>,
        exit: Exit,
    ) -> Result<Option<RunOutcome>, HostError> {
        let Some(running) = running else {
            return match exit {
                Exit::End(terminal) => Box::pin(self.end_stored(terminal)).await.map(Some),
                Exit::Requeue(requeue) => Box::pin(self.requeue(body.claim(), requeue)).await,
                Exit::Park { .. } | Exit::Suspend => Ok(Some(RunOutcome::Suspended)),
            };
        };
        let execution = &running.execution;
        match exit {
            Exit::End(terminal) => {
                self.end_children(&execution.family.children).await;
                let run = self.end(&running, terminal).await?;
                Ok(Some(RunOutcome::Ended(run)))
            }
            Exit::Park { until, reason, keys } => {
                Box::pin(self.park(&running, until, reason, keys)).await?;
                Ok(Some(RunOutcome::Parked))
            }
            Exit::Suspend => {
                execution.journal.suspend();
                execution.writer.flush().await.map_err(|error| HostError::Unavailable(error.message))?;
                Ok(Some(RunOutcome::Suspended))
            }
            Exit::Requeue(requeue) => {
                self.end_children(&execution.family.children).await;
                execution.writer.flush().await.map_err(|error| HostError::Unavailable(error.message))?;
                Box::pin(self.requeue(body.claim(), requeue)).await
            }
        }
    }

    /// The writer of the run, for what no execution writes.
    pub(crate) fn writer(&self) -> RunWriter {
        self.runs.writer(&self.run.record)
    }

    pub(crate) fn run_id(&self) -> RunId {
        self.run.record.run.run_id
    }

    /// Writes that the run waits, where it has not begun and does not say so yet.
    pub(crate) async fn write_queued(&mut self) -> Result<(), HostError> {
        if self.run.record.run.status != RunStatus::Created || self.run.resumption != Resumption::New {
            return Ok(());
        }
        let write = RunWrite { changes: vec![RunChange::Queue { at: time::now() }], ..RunWrite::default() };
        let commit = self.writer().append(write).await?;
        if is_external(&self.run.record.run) {
            // The run is in the queue, for executors to claim.
            self.run.record.run = commit.await?;
        } else {
            Arc::make_mut(&mut self.run.record.run).status = RunStatus::Queued;
        }
        Ok(())
    }

    /// Ends a run that has no execution in memory.
    pub(crate) async fn end_stored(&self, terminal: Terminal) -> Result<RunOutcome, HostError> {
        self.end_stored_with(terminal, |write, _| Ok(write)).await
    }

    /// As [`RunTask::end_stored`], with more in the same write.
    pub(crate) async fn end_stored_with(
        &self,
        terminal: Terminal,
        more: impl Fn(RunWrite, &RunRecord) -> Result<RunWrite, HostError>,
    ) -> Result<RunOutcome, HostError> {
        let (ledger, deadline_ms) = (&self.runs.ledger, self.run.terms.deadline_ms);
        if self.run.resumption != Resumption::New && !self.run.terms.grant.permissions.runs.is_empty() {
            self.end_children(&Children::of(ledger, &self.run.record)?).await;
        }
        self.end_as(|record| more(end_stored(ledger, record, terminal.clone(), deadline_ms)?, record)).await
    }

    /// Another run has taken the event of this one as input, and its record says so.
    async fn end_taken(&self, taker: RunId) -> Result<RunOutcome, HostError> {
        self.end_as(|record| Ok(steering::end_taken(record, taker))).await
    }

    async fn end_as(&self, make: impl Fn(&RunRecord) -> Result<RunWrite, HostError>) -> Result<RunOutcome, HostError> {
        let run = self.writer().transact(&self.run.record, OnStorageError::Fail, make).await?;
        Ok(RunOutcome::Ended(run))
    }

    pub(crate) async fn end_cancelled(&self) -> Result<RunOutcome, HostError> {
        self.end_stored(self.cancelled_terminal()?).await
    }

    /// The terminal of a cancelled run, with the reason that is in its record.
    pub(crate) fn cancelled_terminal(&self) -> Result<Terminal, HostError> {
        let run = self.runs.record(self.run_id())?.run;
        let reason = run.cancel_reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or("the run was cancelled");
        Ok(Terminal::Cancelled { reason: reason.to_owned() })
    }

    /// Requests the cancellation of the children of a run that ends.
    async fn end_children(&self, children: &Children) {
        self.runs.end_children(self.run_id(), children).await;
    }

    /// Writes that the run waits on disk, and for what; durable when it returns.
    async fn park(
        &self,
        running: &RunningExecution,
        until: Option<Timestamp>,
        reason: &'static str,
        keys: Vec<WaitKey>,
    ) -> Result<(), HostError> {
        let at = time::now();
        // Waiting for people is bounded by the time that they have.
        let wake_at = if AskKind::is_reason(reason) && !self.run.terms.waiting_counts {
            until.unwrap_or_else(|| at.saturating_add(self.runs.shared.limits().ask_expires_ms))
        } else {
            let deadline_at = running.execution.deadline.timestamp();
            until.map_or(deadline_at, |until| until.min(deadline_at))
        };
        let conversation = self.run.terms.grant.conversation.as_ref().map(WaitKey::conversation);
        let keys = keys.into_iter().chain(conversation).map(|key| key.to_string()).collect();
        let mut facts = running.execution.take_refusals();
        facts.push(Fact::RunStatus(StatusChange::waiting(reason, until)));
        let make = |sequence| {
            Ok(RunWrite {
                changes: vec![RunChange::Wait { at, reason: reason.to_owned() }],
                events: facts::events(&facts, sequence, at),
                park: Some(Park { wake_at, keys }),
                ..RunWrite::default()
            })
        };
        let unavailable = |error: ApiError| HostError::Unavailable(error.message);
        let written = running.execution.writer.append(make).await.map_err(unavailable)?;
        written.durable().await.map_err(unavailable)?;
        self.runs.alarm.notify_one();
        Ok(())
    }

    /// Brings a run that is executed to its one end: status and terminal event in one commit.
    async fn end(&self, running: &RunningExecution, terminal: Terminal) -> Result<Arc<Run>, HostError> {
        let execution = &running.execution;
        let mut terminal = bounded(terminal, self.runs.shared.limits().result_bytes);
        if let Terminal::Failed(failure) = &mut terminal
            && failure.details.is_none()
        {
            failure.details = running.log.tail().map(|tail| json!({ "log": tail }));
        }
        let mut open = execution.open.take();
        if self.run.resumption != Resumption::New || is_external(&self.run.record.run) {
            Box::pin(self.add_open_before(running, &mut open)).await;
        }
        open.extend(execution.take_refusals());
        let (event_id, terms) = (self.run.event.event_id, &self.run.terms);
        let speaker = Speaker { run_id: execution.run_id, event_id, terms, source: execution.source() };
        let make = |terminal: &Terminal, first: u64| end_executed(&speaker, &open, terminal, first);
        execution.writer.end(terminal, &self.runs.ending, make).await
    }

    /// Adds the ends of calls that an earlier execution has begun, and that this one has not come to.
    async fn add_open_before(&self, running: &RunningExecution, open: &mut Vec<Fact>) {
        let execution = &running.execution;
        // The end of the run is written after all results of this execution are on disk. If the disk refuses them, the end
        // has another reason and names it.
        if execution.writer.flush().await.is_err() {
            return;
        }
        let before = UnendedCalls::read(&self.runs.ledger, execution.run_no, execution.run_id).unwrap_or_default();
        let mut before = before.ends(time::now());
        before.retain(|end| !open.iter().any(|known| known.ended_call() == end.ended_call()));
        open.append(&mut before);
    }

    /// Counts an execution that has begun.
    pub(crate) fn count_start(&self, resumed: bool) {
        let (metrics, run) = (&self.runs.shared.metrics, &self.run.record.run);
        if resumed {
            metrics.resumed(run);
        } else {
            metrics.started(run, Duration::from_millis(time::now().saturating_sub(run.created_at)));
        }
    }
}

impl Exit {
    /// The exit of an execution that stops itself.
    pub(crate) fn from_stop(stop: Stop) -> Self {
        match stop {
            Stop::Park { until, reason, keys } => Self::Park { until, reason, keys },
            stop => Self::End(Terminal::Failed(stop.failure())),
        }
    }
}

/// A failure that a further attempt may not have.
pub(crate) fn retryable(failure: RunFailure) -> RunFailure {
    RunFailure { retryable: true, ..failure }
}
