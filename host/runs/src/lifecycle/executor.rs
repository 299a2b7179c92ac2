//! The executor body: a run that a program outside of the host executes under a claim.
//!
//! The run waits in its queue, is claimed, and is executed under a lease. The end is the same as that of any other run.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::{MIN_LEASE_MS, QueuePolicy};
use agent_host_facts::record::StatusChange;
use agent_host_ledger::{LedgerError, RunChange, RunWrite};
use agent_host_protocol::{
    FailureCode, ResultKind, Run, RunId, RunStatus, Timestamp,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{GuestClock, World};
use serde_json::{json, value::RawValue};
use tokio::sync::mpsc;

use super::{
    Runs,
    body::{Body, Exit, Ready, RunningExecution, changes, instant_of},
    claims::{ClaimHandle, ClaimStart, ClaimedRun, Order, Reply},
    executors::{ExecutorNews, ExecutorSlot},
    lease::ClaimToken,
    queue::{
        admission::{Admission, AdmissionPlace},
        waiting::{Kind, Offer},
    },
    requeue::Requeue,
    start::{Start, StartKind},
    task::{Interruption, RunOutcome, RunTask, retryable},
};
use crate::{
    execution::blocking,
    record::{
        HostError,
        action::{self, is_background, waited_ms},
        facts::{self, Fact, UnendedCalls},
        journal::{Journal, Mode},
        terminal::timed_out,
    },
};

/// Pause before another claim, where the disk refused the write of one.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);
/// Requests about one claim that wait for each other.
const ORDERS: usize = 16;

/// An executor that holds the run under a claim.
pub(crate) struct ExecutorBody {
    policy: QueuePolicy,
    /// The claim under which the run was held when the host stopped.
    stored_claim: Option<Claim>,
    /// Held as long as the run counts as executed.
    admission: Option<Admission>,
    active_claim: Option<ActiveClaim>,
    /// Set where the claim has ended before anything else happened.
    exit: Option<Exit>,
    running: Option<RunningExecution>,
    /// The channel for the answer to the request that ended the claim.
    reply: Option<Reply<Arc<Run>>>,
}

/// A claim.
struct Claim {
    number: u32,
    executor_id: String,
    lease_expires_at: Timestamp,
    /// True if the run starts with the claim.
    start: bool,
    /// The channel for the claimed run.
    reply: Option<Reply<ClaimedRun>>,
}

/// A claim that requests can find.
struct ActiveClaim {
    listed: ListedClaim,
    orders: mpsc::Receiver<Order>,
    /// Takes a slot of the executor.
    holding: Option<ExecutorSlot>,
    lease_expires: tokio::time::Instant,
    /// Time at which the claim is lost unless the run has started.
    dispatch_expires: tokio::time::Instant,
}

/// As long as it lives, requests find the claim.
struct ListedClaim {
    runs: Runs,
    run_id: RunId,
    handle: Arc<ClaimHandle>,
}

impl Drop for ListedClaim {
    fn drop(&mut self) {
        let mut claims = self.runs.claims.lock();
        if claims.get(&self.run_id).is_some_and(|listed| Arc::ptr_eq(listed, &self.handle)) {
            claims.remove(&self.run_id);
        }
    }
}

/// The end of a wait for a claim.
enum Wait {
    Claimed(Claim),
    Overdue(RunFailure),
    Interrupted(Interruption),
}

impl ExecutorBody {
    pub(crate) fn new(task: &mut RunTask) -> Self {
        let policy = task.run.terms.queue.as_deref().cloned().unwrap_or_default();
        Self {
            stored_claim: claim_before_restart(task, &policy),
            policy,
            admission: task.run.admission.take().map(|admission| *admission),
            active_claim: None,
            exit: None,
            running: None,
            reply: None,
        }
    }
}

/// The claim under which the run was held when the host stopped.
fn claim_before_restart(task: &RunTask, policy: &QueuePolicy) -> Option<Claim> {
    let queue = task.run.record.run.queue.as_ref().filter(|_| task.run.is_claimed())?;
    Some(Claim {
        number: queue.claims,
        executor_id: queue.executor_id.clone()?,
        // The executor could not renew its lease while the host was down, so it has a whole one from now on.
        lease_expires_at: queue.lease_expires_at.unwrap_or(0).max(time::now().saturating_add(lease_of(policy, None))),
        start: false,
        reply: None,
    })
}

impl Body for ExecutorBody {
    fn takes_cancel(&self) -> bool {
        self.stored_claim.is_none()
    }

    async fn start(&mut self, task: &mut RunTask) -> Result<Ready, HostError> {
        if let Some(failure) = &task.run.terms.refusal {
            return Ok(Ready::Ends(Terminal::Failed(failure.clone())));
        }
        let claim = match self.stored_claim.take() {
            Some(claim) => claim,
            None => {
                self.admission = None;
                let admission = async {
                    match task.enter_admission(&self.policy) {
                        Ok(admission) => admission,
                        Err(mut place) => place.wait().await,
                    }
                };
                match task.unless_interrupted(admission).await {
                    Ok(admission) => self.admission = Some(admission),
                    Err(interruption) => return Ok(Ready::Interrupted(interruption)),
                }
                match self.await_claim(task).await? {
                    Wait::Claimed(claim) => claim,
                    Wait::Overdue(failure) => return Ok(Ready::Fails(failure)),
                    Wait::Interrupted(interruption) => return Ok(Ready::Interrupted(interruption)),
                }
            }
        };
        self.hold(task, claim).await?;
        Ok(Ready::Started)
    }

    async fn run(&mut self, task: &mut RunTask) -> Result<Exit, HostError> {
        let Some(mut active_claim) = self.active_claim.take() else {
            return Err(HostError::Internal("a run is executed that no executor holds".to_owned()));
        };
        let exit = self.serve(task, &mut active_claim).await;
        self.active_claim = Some(active_claim);
        exit
    }

    async fn stop(&mut self) -> Option<RunningExecution> {
        if let Some(active_claim) = &mut self.active_claim {
            active_claim.listed.handle.scope.close().await;
            active_claim.orders.close();
            while active_claim.orders.try_recv().is_ok() {}
            // Before anybody is answered: an executor that is done with one run has a slot for the next.
            active_claim.holding = None;
        }
        self.running.take()
    }

    /// The executor outlives the host.
    fn on_host_stop(&self, _: &RunTask, _: &RunningExecution) -> Exit {
        Exit::Suspend
    }

    fn claim(&self) -> Option<u32> {
        self.active_claim.as_ref().map(|active_claim| active_claim.listed.handle.claim)
    }

    fn answer(&mut self, run: &Arc<Run>, outcome: Option<&RunOutcome>) {
        self.active_claim = None;
        let run = match outcome {
            None => run,
            Some(RunOutcome::Ended(run)) => run,
            Some(RunOutcome::Parked | RunOutcome::Suspended) => return drop(self.reply.take()),
        };
        if let Some(reply) = self.reply.take() {
            drop(reply.send(Ok(Arc::clone(run))));
        }
    }
}

impl ExecutorBody {
    async fn await_claim(&self, task: &mut RunTask) -> Result<Wait, HostError> {
        if task.run.record.run.status == RunStatus::Dispatching {
            // The host stopped before the executor had the run.
            take_back_offer(task).await?;
        }
        let (runs, policy) = (task.runs.clone(), &self.policy);
        let run = &task.run.record.run;
        let (run_id, run_no) = (run.run_id, task.run.record.run_no);
        let Some(queue) = run.queue.clone() else {
            return Err(HostError::Internal(format!("run {run_id} is to be executed outside and has no place in a queue")));
        };
        let overdue = policy.claim_timeout_ms.map(|ms| queue.queued_at.unwrap_or(run.created_at).saturating_add(ms));
        let overdue = async move {
            match overdue {
                Some(at) => tokio::time::sleep_until(instant_of(at)).await,
                None => std::future::pending().await,
            }
        };
        let mut overdue = std::pin::pin!(overdue);
        let kind = Kind {
            queue: queue.name.clone(),
            runner_id: run.runner_id.clone(),
            labels: queue.labels.clone(),
            workspace: run.workspace_id.clone(),
        };
        let mut pause = std::pin::pin!(tokio::time::sleep_until(instant_of(queue.not_before.unwrap_or(0))));
        let mut paused = queue.not_before.is_some_and(|at| at > time::now());
        let mut place = None;
        loop {
            if !paused && place.is_none() {
                place = Some(runs.waiting.enter(kind.clone(), queue.priority, run_no, run_id));
            }
            let offered = async {
                match &mut place {
                    Some(place) => (&mut place.offered).await,
                    None => std::future::pending().await,
                }
            };
            let offer = tokio::select! {
                biased;
                () = runs.stopping.cancelled() => return Ok(Wait::Interrupted(Interruption::Stopping)),
                () = task.cancelled.cancelled() => return Ok(Wait::Interrupted(Interruption::Cancelled)),
                () = &mut overdue => {
                    let waited = policy.claim_timeout_ms.unwrap_or_default();
                    let message = format!("no executor has claimed the run within {waited} ms: start one for queue `{}`", queue.name);
                    return Ok(Wait::Overdue(retryable(RunFailure::host(FailureCode::ClaimTimeout, message))));
                }
                () = &mut pause, if paused => {
                    paused = false;
                    continue;
                }
                offer = offered => offer,
            };
            place = None;
            // The executor that was given the run has gone: the next one.
            let Ok(offer) = offer else { continue };
            if offer.reply.is_closed() {
                continue;
            }
            if let Some(claim) = self.write_claim(task, offer).await? {
                return Ok(Wait::Claimed(claim));
            }
        }
    }

    /// Writes that the run is offered to an executor, and that the executor has claimed it. `None` where that cannot be written
    /// now, or the executor has gone.
    async fn write_claim(&self, task: &mut RunTask, offer: Offer) -> Result<Option<Claim>, HostError> {
        let Offer { executor_id, lease_ms, start, reply } = offer;
        let at = time::now();
        if task.run.record.run.status == RunStatus::Queued {
            match task.writer().commit(changes(RunChange::Dispatch { at })).await {
                Ok(run) => task.run.record.run = run,
                Err(error) => return unwritten_claim(error, reply).await,
            }
            if reply.is_closed() {
                take_back_offer(task).await?;
                return Ok(None);
            }
        }
        let lease_expires_at = at.saturating_add(lease_of(&self.policy, lease_ms));
        let change = RunChange::Claim { at, executor_id: executor_id.clone(), lease_expires_at };
        match task.writer().commit(changes(change)).await {
            Ok(run) => {
                let number = run.queue.as_ref().map_or(0, |queue| queue.claims);
                task.runs.shared.metrics.claimed(run.queue.as_ref().map_or("", |queue| &queue.name));
                task.run.record.run = run;
                Ok(Some(Claim { number, executor_id, lease_expires_at, start, reply: Some(reply) }))
            }
            Err(error) => unwritten_claim(error, reply).await,
        }
    }

    /// Registers the claim and hands the run to its executor. An execution that the stop of the host interrupted continues.
    async fn hold(&mut self, task: &mut RunTask, claim: Claim) -> Result<(), HostError> {
        let runs = task.runs.clone();
        let run_id = task.run_id();
        let Claim { number, executor_id, lease_expires_at, start, reply } = claim;
        let holding = runs.executors.hold(&executor_id, run_id);
        let (sender, orders) = mpsc::channel(ORDERS);
        let handle = Arc::new(ClaimHandle::new(&task.run.record.run, number, executor_id, sender));
        if task.run.record.run.status != RunStatus::Claimed {
            self.running = Some(resume_claimed(task, &handle).await?);
        }
        runs.claims.lock().insert(run_id, Arc::clone(&handle));
        self.active_claim = Some(ActiveClaim {
            listed: ListedClaim { runs: runs.clone(), run_id, handle: Arc::clone(&handle) },
            orders,
            holding: Some(holding),
            lease_expires: instant_of(lease_expires_at),
            dispatch_expires: tokio::time::Instant::now() + Duration::from_millis(self.policy.dispatch_timeout_ms),
        });
        let Some(reply) = reply else { return Ok(()) };
        let mut begun = None;
        if start && self.running.is_none() {
            let (running, context) = start_claimed(task, &handle).await?;
            (self.running, begun) = (Some(running), Some(claim_start(task, &handle, context)));
        }
        let lease_token = runs.lease_key.token(ClaimToken::Lease, run_id, number);
        let (context, mcp, http_hosts) = match begun {
            Some(ClaimStart { context, mcp, http_hosts }) => (Some(context), Some(mcp), http_hosts),
            None => (None, None, Vec::new()),
        };
        let run = (*task.run.record.run).clone();
        let claimed = ClaimedRun { run, lease_token, lease_expires_at, context, mcp, http_hosts };
        if reply.send(Ok(claimed)).is_err() {
            // The executor had gone before it heard of its claim: nothing was done.
            let lost = lost(&handle, "executor_gone", "the executor that had claimed the run was gone");
            self.exit = Some(Exit::Requeue(Requeue { attempted: false, lost: false, ..lost }));
        }
        Ok(())
    }

    /// Carries out the requests of the executor until the claim ends.
    async fn serve(&mut self, task: &mut RunTask, active_claim: &mut ActiveClaim) -> Result<Exit, HostError> {
        let runs = task.runs.clone();
        let (run_id, handle) = (task.run_id(), Arc::clone(&active_claim.listed.handle));
        let executor_gone = active_claim.holding.as_ref().map(|holding| holding.claim_ended.clone()).unwrap_or_default();
        // The time at which a cancelled run ends if its executor does not finish it.
        let mut cancel_expires: Option<tokio::time::Instant> = None;
        loop {
            if let Some(exit) = self.exit.take() {
                return Ok(exit);
            }
            let execution = self.running.as_ref().map(|running| Arc::clone(&running.execution));
            let too_late = async {
                match &execution {
                    Some(execution) => execution.deadline.passed().await,
                    None => std::future::pending().await,
                }
            };
            let order = tokio::select! {
                biased;
                () = runs.stopping.cancelled() => return Ok(Exit::Suspend),
                () = task.cancelled.cancelled(), if cancel_expires.is_none() => {
                    // A run that has not begun has nothing to finish.
                    let grace = if self.running.is_some() { self.policy.cancel_grace_ms } else { 0 };
                    cancel_expires = Some(tokio::time::Instant::now() + Duration::from_millis(grace));
                    // The executor has a slot for the next run, also if it drops this one without a word.
                    active_claim.holding = None;
                    if let Terminal::Cancelled { reason } = task.cancelled_terminal()? {
                        runs.executors.notify(&handle.executor_id, ExecutorNews::CancelRequested { run_id, reason });
                    }
                    continue;
                }
                () = tokio::time::sleep_until(cancel_expires.unwrap_or(active_claim.lease_expires)), if cancel_expires.is_some() => {
                    return Ok(Exit::End(task.cancelled_terminal()?));
                }
                () = executor_gone.cancelled() => {
                    return Ok(Exit::Requeue(lost(&handle, "executor_gone", "the executor that held the run is gone")));
                }
                () = tokio::time::sleep_until(active_claim.lease_expires) => {
                    let message = "the executor that held the run did not renew its lease";
                    return Ok(Exit::Requeue(lost(&handle, "lease_expired", message)));
                }
                () = tokio::time::sleep_until(active_claim.dispatch_expires), if self.running.is_none() => {
                    let within = self.policy.dispatch_timeout_ms;
                    let message = format!("the executor that had claimed the run did not start it within {within} ms");
                    return Ok(Exit::Requeue(lost(&handle, "dispatch_timeout", &message)));
                }
                () = too_late => {
                    return Ok(Exit::End(timed_out(task.run.terms.deadline_ms)));
                }
                order = active_claim.orders.recv() => order,
            };
            // The handle keeps the sender.
            let Some(order) = order else { return Ok(Exit::Suspend) };
            self.carry_out(task, active_claim, order).await;
        }
    }

    /// Carries out one request. A request that ends the claim sets [`ExecutorBody::exit`].
    async fn carry_out(&mut self, task: &mut RunTask, active_claim: &mut ActiveClaim, order: Order) {
        let handle = &active_claim.listed.handle;
        match order {
            Order::Start(reply) => {
                let started = match &self.running {
                    None => start_claimed(task, handle).await.map(|(running, context)| {
                        self.running = Some(running);
                        (task.run.record.run.clone(), context)
                    }),
                    Some(_) => context_of(task),
                };
                let started = started.map(|(run, context)| (run, claim_start(task, handle, context)));
                drop(reply.send(started));
            }
            Order::Renew(lease_ms, reply) => {
                let renewed = self.renew(task, handle.claim, lease_ms).await;
                if let Ok(at) = &renewed {
                    active_claim.lease_expires = instant_of(*at);
                }
                drop(reply.send(renewed.and_then(|_| Ok(task.runs.record(task.run_id())?.run))));
            }
            Order::Finish(terminal, reply) => match (*terminal, &self.running) {
                (Terminal::Failed(failure), _)
                    if failure.retryable && task.run.record.run.attempt < task.run.terms.max_attempts =>
                {
                    let reason = failure.code.clone();
                    self.end_claim(Exit::Requeue(Requeue { reason, attempted: true, failure, lost: false, notify: None }), reply);
                }
                (Terminal::Completed(_), None) => {
                    let problem = format!("run {} has not begun, so it cannot be completed: start it first", task.run_id());
                    drop(reply.send(Err(HostError::Conflict(problem))));
                }
                (terminal, _) => self.end_claim(Exit::End(terminal), reply),
            },
            Order::Release(reason, reply) => {
                let failure = retryable(RunFailure::host(FailureCode::LeaseLost, reason.clone()));
                let attempted = self.running.is_some();
                self.end_claim(Exit::Requeue(Requeue { reason, attempted, failure, lost: false, notify: None }), reply);
            }
        }
    }

    fn end_claim(&mut self, exit: Exit, reply: Reply<Arc<Run>>) {
        (self.exit, self.reply) = (Some(exit), Some(reply));
    }

    async fn renew(&self, task: &RunTask, claim: u32, lease_ms: Option<u64>) -> Result<Timestamp, HostError> {
        let at = time::now();
        let lease_expires_at = at.saturating_add(lease_of(&self.policy, lease_ms));
        task.writer().fenced(claim).commit(changes(RunChange::Renew { at, lease_expires_at })).await?;
        Ok(lease_expires_at)
    }
}

/// Begins the execution of a claimed run, durably; gives its context.
async fn start_claimed(task: &mut RunTask, handle: &ClaimHandle) -> Result<(RunningExecution, Box<RawValue>), HostError> {
    let start = task.start_attempt(task.run.record.run.attempt, false).await?;
    let assembled = task.assemble(start, Some(handle.claim)).await?;
    drop(handle.calls.set(assembled.calls));
    let flushed = assembled.running.execution.writer.flush().await;
    flushed.map_err(|error| HostError::Unavailable(error.message))?;
    task.count_start(false);
    task.run.record = task.runs.record(task.run_id())?;
    let context = serde_json::value::to_raw_value(&assembled.context).map_err(|error| HostError::Internal(error.to_string()))?;
    Ok((assembled.running, context))
}

/// The answer to the executor of a claim whose run has begun.
fn claim_start(task: &RunTask, handle: &ClaimHandle, context: Box<RawValue>) -> ClaimStart {
    let mcp = task.runs.mcp_access(task.run_id(), handle.claim);
    ClaimStart { context, mcp, http_hosts: task.run.terms.grant.permissions.http_hosts.clone() }
}

/// The execution of a claimed run that was under way when the host stopped.
async fn resume_claimed(task: &RunTask, handle: &ClaimHandle) -> Result<RunningExecution, HostError> {
    let (ledger, limits, run) = (&task.runs.ledger, task.runs.shared.limits(), &task.run.record.run);
    let context = ledger.context(run.run_id)?.and_then(|context| serde_json::from_str(context.get()).ok());
    let world = World::new(&limits, GuestClock::new(time::now_us()), [0; 32]);
    let actions = ledger.run_events_of(task.run.record.run_no, run.run_id, &action::FACTS)?;
    let deadline_at = match run.deadline_at {
        Some(at) if task.run.terms.waiting_counts => at,
        Some(at) => at.saturating_add(waited_ms(&actions, at.saturating_sub(task.run.terms.deadline_ms), time::now())),
        None => time::now().saturating_add(task.run.terms.deadline_ms),
    };
    let start = Start {
        kind: StartKind::Resumed,
        context: context.ok_or_else(|| no_context(run.run_id))?,
        // No journal: the executor repeats unanswered calls.
        journal: Journal::begin(Mode::Off, &world, &limits),
        unwritten: None,
        world,
        deadline: Instant::now() + Duration::from_millis(deadline_at.saturating_sub(time::now())),
        last_sequence: run.last_sequence,
        attempt: run.attempt,
    };
    let assembled = task.assemble(start, Some(handle.claim)).await?;
    let execution = &assembled.running.execution;
    // Every call has left an event, so no number that was given is given again.
    execution.open.note(run.last_sequence.saturating_add(u64::from(run.attempt.saturating_sub(1)) << 40));
    let (seeing, record) = (Arc::clone(execution), task.run.record.clone());
    let noted = blocking(move || seeing.knowledge.seen.note_forgotten(&seeing.ledger, &seeing.terms, &record)).await;
    noted.map_err(|error| HostError::Unavailable(error.message))?;
    drop(handle.calls.set(assembled.calls));
    // The callers of open calls are gone. Background actions continue.
    let at = time::now();
    let mut facts = UnendedCalls::read(ledger, task.run.record.run_no, run.run_id)?.ends(at);
    facts.retain(|fact| !matches!(fact.ended_call(), Some((ResultKind::ActionResolved, id)) if is_background(id)));
    facts.push(Fact::RunStatus(StatusChange { resumes: Some(run.resumes + 1), ..StatusChange::running("resumed") }));
    let make = |first: u64| {
        let events = facts::events(&facts, first, at);
        Ok(RunWrite { changes: vec![RunChange::Recover { at }], events, ..RunWrite::default() })
    };
    let written = async { execution.writer.append(make).await?.durable().await };
    written.await.map_err(|error| HostError::Unavailable(error.message))?;
    Ok(assembled.running)
}

fn context_of(task: &RunTask) -> Result<(Arc<Run>, Box<RawValue>), HostError> {
    let run_id = task.run_id();
    let context = task.runs.ledger.context(run_id)?.ok_or_else(|| no_context(run_id))?;
    Ok((task.runs.record(run_id)?.run, context))
}

fn no_context(run_id: RunId) -> HostError {
    HostError::Internal(format!("run {run_id} has begun, and has no context"))
}

impl RunTask {
    /// Asks the binding of the run whether one more run may be executed.
    pub(crate) fn enter_admission(&self, policy: &QueuePolicy) -> Result<Admission, AdmissionPlace> {
        let run = &self.run.record.run;
        let priority = run.queue.as_ref().map_or(policy.priority, |queue| queue.priority);
        self.runs.admissions.enter(&run.binding_id, policy, priority, self.run.record.run_no)
    }
}

/// Tells the executor that its claim cannot be written. A failure of the disk leaves the run in its queue.
async fn unwritten_claim(error: LedgerError, reply: Reply<ClaimedRun>) -> Result<Option<Claim>, HostError> {
    if matches!(error, LedgerError::Storage(_)) {
        drop(reply.send(Err(error.into())));
        tokio::time::sleep(CLAIM_PAUSE).await;
        return Ok(None);
    }
    drop(reply.send(Err(HostError::Unavailable(error.to_string()))));
    Err(error.into())
}

/// Puts a run back into its queue that no executor took.
async fn take_back_offer(task: &mut RunTask) -> Result<(), HostError> {
    let not_before = task.run.record.run.queue.as_ref().and_then(|queue| queue.not_before);
    let release = RunChange::Release { at: time::now(), reason: "offer_not_taken".to_owned(), not_before, attempted: false };
    task.run.record.run = task.writer().commit(changes(release)).await?;
    Ok(())
}

/// The lease that an executor gets: what it asks for, and what the policy says at most.
fn lease_of(policy: &QueuePolicy, asked: Option<u64>) -> u64 {
    asked.unwrap_or(policy.lease_ms).clamp(MIN_LEASE_MS, policy.lease_ms.max(MIN_LEASE_MS))
}

fn lost(handle: &ClaimHandle, reason: &str, message: &str) -> Requeue {
    let failure = retryable(RunFailure::host(FailureCode::LeaseLost, message));
    Requeue {
        reason: reason.to_owned(),
        attempted: true,
        failure: RunFailure { details: Some(json!({ "reason": reason })), ..failure },
        lost: true,
        notify: Some(handle.executor_id.clone()),
    }
}
