//! The guest body: a run that the host executes in its sandbox.

use std::{pin::pin, sync::Arc, time::Duration};

use agent_host_config::Durability;
use agent_host_ledger::RunChange;
use agent_host_protocol::{
    FailureCode, Run, RunStatus,
    context::RunContext,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_providers::log_context;
use agent_host_sandbox::{ComputeShare, Outcome, Place, Runner, World};
use futures_util::future::Either;

use super::{
    body::{AssembledContext, Body, Exit, Ready, RunningExecution, changes},
    components::PATIENCE,
    queue::admission::Admission,
    start::StartKind,
    task::{RunOutcome, RunTask},
};
use crate::{
    calls::RunCalls,
    execution::{
        Resumption,
        spans::{self, RunSpan},
    },
    record::{
        HostError,
        terminal::{host_restarted, out_of_cpu, timed_out},
    },
};

/// A run that has written nothing for so long is shown as running: its start is written.
const UNWRITTEN_START: Duration = Duration::from_millis(10);

/// A guest in a place of the sandbox.
#[derive(Default)]
pub(crate) struct GuestBody {
    /// Taken when the guest is executed.
    prepared: Option<Box<PreparedGuest>>,
    running: Option<RunningExecution>,
    /// Held as long as the run counts as executed.
    admission: Option<Admission>,
    span: Option<RunSpan>,
}

/// A guest that is ready to be executed.
struct PreparedGuest {
    place: Place,
    runner: Runner,
    context: Box<RunContext>,
    world: World,
    calls: RunCalls,
}

impl Body for GuestBody {
    fn takes_cancel(&self) -> bool {
        true
    }

    async fn start(&mut self, task: &mut RunTask) -> Result<Ready, HostError> {
        let (last_try, admission, place) = {
            let waited = pin!(async {
                task.await_component().await;
                let last_try = Box::pin(task.last_try()).await?;
                let admission = task.admission().await?;
                Ok::<_, HostError>((last_try, admission, task.runs.shared.sandbox.place().await))
            });
            match task.unless_interrupted(waited).await {
                Ok(waited) => waited?,
                Err(interruption) => return Ok(Ready::Interrupted(interruption)),
            }
        };
        self.admission = Some(admission);
        let run = &task.run;
        if run.resumption != Resumption::New && task.deadline_at(time::now())?.is_some_and(|deadline| deadline <= time::now()) {
            return Ok(Ready::Ends(timed_out(run.terms.deadline_ms)));
        }
        if let Some(failure) = &run.terms.refusal {
            return Ok(Ready::Ends(Terminal::Failed(failure.clone())));
        }
        let runner = match task.runner().await {
            Ok(runner) => runner,
            Err(failure) => return Ok(Ready::Ends(Terminal::Failed(failure))),
        };
        let digest = runner.component.digest();
        if !task.runs.components.is_settled(digest) {
            Box::pin(task.runs.components.keep(&task.runs.shared.sandbox, digest)).await;
        }
        let waking = task.run.waking.take();
        // In a block, which the start does not outlive: it is large.
        let assembled = {
            let start = match task.start_guest(&runner).await? {
                Ok(start) => start,
                Err(failure) => return Ok(Ready::Ends(Terminal::Failed(failure))),
            };
            drop(waking);
            task.count_start(start.kind == StartKind::Resumed && task.run.resumption != Resumption::Forked);
            let span = self.span.insert(spans::of_run(&task.run.record.run, task.run.resumption, &runner, start.attempt));
            span.within(task.assemble(start, None))
        };
        let AssembledContext { running, calls, context, world } = assembled.await?;
        if let Some(last_try) = last_try {
            tokio::spawn(last_try.until_survived(task.runs.ledger.watch(task.run.record.run_no)));
        }
        self.running = Some(running);
        self.prepared = Some(Box::new(PreparedGuest { place, runner, context, world, calls }));
        Ok(Ready::Started)
    }

    async fn run(&mut self, task: &mut RunTask) -> Result<Exit, HostError> {
        let (Some(guest), Some(running)) = (self.prepared.take(), &self.running) else {
            return Err(HostError::Internal("a guest is executed that was not started".to_owned()));
        };
        // The guest's state machine is large; a run that waits in line should not carry it.
        let executed = Box::pin(self.execute(task, running, guest));
        match &self.span {
            Some(span) => span.within(executed).await,
            None => executed.await,
        }
    }

    async fn stop(&mut self) -> Option<RunningExecution> {
        self.running.take()
    }

    /// A run with a journal continues after the next start of the host, and so does a run with attempts left.
    fn on_host_stop(&self, task: &RunTask, running: &RunningExecution) -> Exit {
        if running.execution.journal.can_resume() || task.run.terms.durability == Durability::Retry {
            Exit::Suspend
        } else {
            Exit::End(Terminal::Failed(host_restarted()))
        }
    }

    fn claim(&self) -> Option<u32> {
        None
    }

    fn answer(&mut self, _: &Arc<Run>, outcome: Option<&RunOutcome>) {
        if let (Some(span), Some(outcome)) = (self.span.take(), outcome) {
            match outcome {
                RunOutcome::Ended(run) => span.close(Ok(run)),
                RunOutcome::Parked => span.close(Err("parked")),
                RunOutcome::Suspended => span.close(Err("suspended")),
            }
        }
    }
}

impl Drop for GuestBody {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            span.fail();
        }
    }
}

impl GuestBody {
    async fn execute(&self, task: &RunTask, running: &RunningExecution, guest: Box<PreparedGuest>) -> Result<Exit, HostError> {
        let PreparedGuest { place, runner, context, world, calls } = *guest;
        let execution = &running.execution;
        let deadline_ms = task.run.terms.deadline_ms;
        let grace = Duration::from_millis(execution.limits.cancel_grace_ms);
        let sandbox = &task.runs.shared.sandbox;
        let guest = sandbox.guest(
            place,
            &runner.component,
            task.run.terms.grant.interfaces(),
            runner.manifest,
            context,
            world,
            Box::new(calls),
            Arc::clone(&running.log) as _,
        );
        // A guest that computes leaves this task, and takes along what log lines and spans are about.
        let guest = match &self.span {
            Some(span) => Either::Left(span.within(guest)),
            None => Either::Right(guest),
        };
        let terms = Arc::clone(&task.run.terms);
        let share =
            move || ComputeShare { workspace: terms.grant.workspace().into(), binding: terms.grant.binding_id.as_str().into() };
        let cpu = task.cpu()?;
        let mut paced = sandbox.pace(share, Arc::clone(&cpu), log_context::inherit(guest));
        let waiting_writes = async {
            tokio::time::sleep(UNWRITTEN_START).await;
            execution.writer.write_start().await;
            execution.writer.write_waiting_audit().await
        };
        let executed = async {
            tokio::select! {
                biased;
                outcome = &mut paced => outcome,
                never = waiting_writes => match never {},
            }
        };
        let too_late = async {
            execution.deadline.passed().await;
            tokio::time::sleep(grace).await;
        };
        let cancelled = async {
            task.cancelled.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        let exit = tokio::select! {
            biased;
            () = cancelled => Exit::End(task.cancelled_terminal()?),
            () = too_late => Exit::End(timed_out(deadline_ms)),
            () = task.runs.ending.cancelled() => self.on_host_stop(task, running),
            stop = execution.waits.stopped() => Exit::from_stop(stop),
            () = cpu.used_up() => Exit::End(out_of_cpu(cpu.limit())),
            outcome = executed => Exit::End(match outcome {
                _ if task.cancelled.is_cancelled() => task.cancelled_terminal()?,
                _ if execution.deadline.is_past() => timed_out(deadline_ms),
                Outcome::Completed(completion) => Terminal::Completed(completion),
                Outcome::Failed(failure) => Terminal::Failed(failure),
                Outcome::Broken { code, message } => Terminal::Failed(RunFailure::host(code, message)),
            }),
        };
        // Nothing of the guest may be written behind the end of its run.
        paced.end().await;
        Ok(exit)
    }
}

impl RunTask {
    /// Waits until the binding of the run lets one more run be executed.
    pub(super) async fn admission(&self) -> Result<Admission, HostError> {
        let Some(policy) = self.run.terms.queue.as_deref() else { return Ok(Admission::unbounded()) };
        match self.enter_admission(policy) {
            Ok(admission) => Ok(admission),
            Err(mut place) => {
                if self.run.resumption == Resumption::New && self.run.record.run.status == RunStatus::Created {
                    let queue = RunChange::Queue { at: time::now() };
                    drop(self.writer().append(changes(queue)).await?);
                }
                Ok(place.wait().await)
            }
        }
    }

    /// Waits for the component that a run from an earlier life of the host, or from another host, was created for: this host gets it from
    /// the ledger, or its plugin may still be compiled. Both are bounded, and so is this.
    async fn await_component(&self) {
        let (shared, run) = (&self.runs.shared, &self.run);
        let digest = &run.terms.grant.component;
        let is_present = run.runner.as_ref().is_some_and(|runner| runner.component.digest() == digest);
        if is_present || shared.sandbox.keeps(digest) {
            return;
        }
        if self.runs.components.has(digest) {
            // Whoever needs the component next gets the same error.
            let _ = Box::pin(self.runs.components.fetch(&shared.sandbox, digest, PATIENCE)).await;
        } else if run.runner.is_none() && !shared.plugins.is_settled() {
            let is_there = || shared.plugins.runner(&run.record.run.runner_id).is_some();
            shared.plugins.settled_or(is_there, Duration::MAX).await;
        }
    }

    /// The runner that executes the run: the one that the run was created for, kept by its digest. A run that has not begun
    /// takes the one that serves now where that is gone.
    async fn runner(&self) -> Result<Runner, RunFailure> {
        let run = &self.run;
        let (id, digest) = (&run.record.run.runner_id, &run.terms.grant.component);
        // A plugin that was still being compiled when the run was read may be there now.
        let present = run.runner.clone().or_else(|| self.runs.shared.plugins.runner(id));
        if let Some(runner) = present.as_ref().filter(|runner| runner.component.digest() == digest) {
            return Ok(runner.clone());
        }
        let why = match Box::pin(self.runs.component(digest)).await {
            Ok(component) => match component.runners().iter().find(|manifest| manifest.id == *id) {
                Some(manifest) => return Ok(Runner { manifest: Arc::new(manifest.clone()), component: Arc::clone(&component) }),
                None => format!("component {digest} does not hold it"),
            },
            Err(why) => why,
        };
        match (present, run.resumption) {
            (Some(runner), Resumption::New) => Ok(runner),
            _ => Err(RunFailure::host(FailureCode::RunnerNotFound, format!("no plugin has {id} any longer: {why}"))),
        }
    }
}
