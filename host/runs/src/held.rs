//! Runs of executors outside: they wait in the queue, are claimed, held under a lease, and come to the same end as every
//! other run.
//!
//! A held run has the gate of a guest ([`RunState`]), and what its executor does goes through that. Whatever it writes is
//! fenced by the number of its claim, in the ledger itself: an executor that comes back too late writes nothing.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use agent_host_ledger::{EntryWrite, LedgerError, RunChange, RunWrite};
use agent_host_protocol::{
    ApiError, FailureCode, Limits, ResultKind, Run, RunId, RunStatus, SentResult, Timestamp,
    run::{Execution, RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{Batch, GuestClock, World};
use serde::Serialize;
use serde_json::{json, value::RawValue};
use tokio::sync::{Mutex, RwLock, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    beginning::{Beginning, fact},
    calls::RunCalls,
    children::Children,
    detached::{self, Detached},
    error::HostError,
    executors::ExecutorNews,
    facts,
    gate::RunState,
    host::Host,
    journal::{Journal, Mode},
    life::{Left, Life, Past, Reach, ended},
    line::Turn,
    log::GuestLog,
    queue::{
        MIN_LEASE_MS, OnLost, QueuePolicy,
        admission::{Admitted, Waits},
        waiting::{Kind, Offer},
    },
    steering,
};

/// After the host has come back, an executor has so long to be heard of, however little was left of its lease.
const HEARD_AGAIN_MS: u64 = 15_000;
/// Between two tries to write that a run was claimed or put back.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// Requests of an executor about the claim itself that wait for each other.
const ORDERS: usize = 16;

/// Where the ledger keeps runs that were given up.
pub(crate) const DEAD: &str = "dead/";

/// A run that an executor has claimed.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Claimed {
    /// The run.
    pub run: Run,
    /// What proves the claim, for this run alone and as long as the claim counts.
    pub lease_token: String,
    /// When the claim is lost unless it is renewed.
    pub lease_expires_at: Timestamp,
    /// What the runner is given, where the run has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<agent_host_protocol::context::RunContext>)]
    pub context: Option<Box<RawValue>>,
}

/// What came of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Appended {
    /// Number of the last result that the host has of this claim, as the executor counts.
    pub appended: u64,
    /// Sequence of the last event of the run.
    pub last_sequence: u64,
    /// Whether the same results were appended before.
    pub replayed: bool,
}

/// Who waits for an answer.
type Reply<T> = oneshot::Sender<Result<T, HostError>>;

/// A claim.
#[derive(Debug)]
struct Claim {
    number: u32,
    executor_id: String,
    lease_expires_at: Timestamp,
    /// Whether the run begins at once, and who waits to hear of that.
    start: bool,
    reply: Option<Reply<Claimed>>,
}

/// How others reach a run that an executor holds.
pub(crate) struct Held {
    run_id: RunId,
    claim: u32,
    pub(crate) executor_id: String,
    orders: mpsc::Sender<Order>,
    /// There once the run has begun.
    calls: OnceLock<RunCalls>,
    /// Set when the claim ends: whatever is under way for it stops.
    closing: CancellationToken,
    /// Read by each call that is under way.
    under_way: RwLock<()>,
    /// Number of the last result that was appended. Appends come one after the other.
    appended: Mutex<u64>,
}

enum Order {
    Start(oneshot::Sender<Result<(Run, Box<RawValue>), HostError>>),
    Renew(Option<u64>, Reply<Run>),
    Finish(Box<Terminal>, Reply<Run>),
    Release(String, Reply<Run>),
}

/// Why a claim ends.
enum After {
    /// The run comes to its end.
    End(Terminal, Option<Reply<Run>>),
    /// It goes back to the queue, or is given up.
    Back(Back, Option<Reply<Run>>),
    /// The host stops. The claim goes on.
    Stopping,
}

struct Back {
    reason: String,
    /// Whether this counts as an attempt.
    attempted: bool,
    /// How it ends where there are no attempts left.
    failure: RunFailure,
    /// Whether the claim was lost, not given back.
    lost: bool,
}

/// The part of a held run that has begun.
struct Begun {
    state: Arc<RunState>,
    log: GuestLog,
    deadline: Instant,
}

impl Held {
    fn lost(&self) -> HostError {
        HostError::ClaimLost(format!(
            "run {} is not held by this claim any more: it has ended, or the claim has expired or was given back. Stop working on it",
            self.run_id
        ))
    }

    /// The host calls of the run, for [`Held::call`].
    pub(crate) fn calls(&self) -> Result<RunCalls, HostError> {
        let not_begun =
            || HostError::Conflict(format!("run {} has not begun: start it first (POST /api/v1/runs/{{id}}/start)", self.run_id));
        self.calls.get().cloned().ok_or_else(not_begun)
    }

    /// Does something for the run, as long as the claim counts.
    pub(crate) async fn call<T>(&self, work: impl Future<Output = T>) -> Result<T, HostError> {
        let _under_way = self.under_way.read().await;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(self.lost()),
            done = work => Ok(done),
        }
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T, HostError>>) -> Order) -> Result<T, HostError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| self.lost())?;
        answer.await.map_err(|_| self.lost())?
    }
}

impl Host {
    /// A run that an executor holds, by the token of its claim.
    ///
    /// # Errors
    /// When the token is of another run or of nobody, or the claim does not count any more.
    pub(crate) fn held(&self, run_id: RunId, token: &str) -> Result<Arc<Held>, HostError> {
        let inner = self.inner();
        let of = inner.lease_key.claim_of(token);
        let Some((_, claim)) = of.filter(|(of, _)| *of == run_id) else {
            return Err(HostError::Unauthenticated("this is not the lease token of a claim of this run".to_owned()));
        };
        let held = inner.held.lock().get(&run_id).cloned();
        match held {
            Some(held) if held.claim == claim => {
                inner.executors.seen(&held.executor_id);
                Ok(held)
            }
            _ => {
                let run = self.record(run_id)?.run;
                let queue = run.queue.as_ref();
                if !run.status.is_terminal() && queue.is_some_and(|queue| queue.claims == claim && queue.executor_id.is_some()) {
                    if inner.stopping.is_cancelled() {
                        return Err(HostError::ShuttingDown);
                    }
                    return Err(HostError::Unavailable("the host is bringing the run back: try again in a moment".to_owned()));
                }
                Err(HostError::ClaimLost(format!(
                    "run {run_id} is not held by this claim any more (it is {}): stop working on it",
                    run.status
                )))
            }
        }
    }

    /// Claims the first run that fits, waiting for one at most `wait`. Nothing where none came.
    ///
    /// # Errors
    /// When the executor is not registered, or has no free slot.
    pub async fn claim(&self, executor_id: &str, request: ClaimRequest, wait: Duration) -> Result<Option<Claimed>, HostError> {
        let inner = self.inner();
        let until = tokio::time::Instant::now() + wait;
        let ClaimRequest { queues, runner_ids, lease_ms, start } = request;
        let wanted = Arc::new(self.wanted_by(executor_id, queues, runner_ids)?);
        loop {
            if inner.stopping.is_cancelled() {
                return Err(HostError::ShuttingDown);
            }
            let found = match inner.waiting.claim(&wanted) {
                Ok(found) => found,
                Err(mut ticket) => tokio::select! {
                    found = &mut ticket.found => match found {
                        Ok(found) => found,
                        Err(_) => continue,
                    },
                    () = tokio::time::sleep_until(until) => return Ok(None),
                    () = inner.stopping.cancelled() => return Err(HostError::ShuttingDown),
                },
            };
            tracing::trace!(run_id = %found.run_id, executor_id, "a run is offered");
            let (reply, answer) = oneshot::channel();
            let offer = Offer { executor_id: executor_id.to_owned(), lease_ms, start, reply };
            if found.offer.send(offer).is_err() {
                // It was cancelled, or the host stops, in this very moment.
                continue;
            }
            match answer.await {
                Ok(claimed) => return claimed.map(Some),
                Err(_) => continue,
            }
        }
    }

    /// Begins a run that was claimed; gives what its runner is given. Repeating it is harmless.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn start_claimed(&self, run_id: RunId, token: &str) -> Result<(Run, Box<RawValue>), HostError> {
        self.held(run_id, token)?.order(Order::Start).await
    }

    /// Makes a claim last longer; gives the run as it is.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn renew(&self, run_id: RunId, token: &str, lease_ms: Option<u64>) -> Result<Run, HostError> {
        self.held(run_id, token)?.order(|reply| Order::Renew(lease_ms, reply)).await
    }

    /// Gives a claim back: the run waits for another executor.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn release(&self, run_id: RunId, token: &str, reason: String) -> Result<Run, HostError> {
        self.held(run_id, token)?.order(|reply| Order::Release(reason, reply)).await
    }

    /// Brings a run that was claimed to its end. Where it failed in a way that may pass, and it has attempts left, it goes
    /// back to the queue instead.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn finalize(&self, run_id: RunId, token: &str, terminal: Terminal) -> Result<Run, HostError> {
        let held = match self.held(run_id, token) {
            Ok(held) => held,
            // The answer to the first one may have been lost.
            Err(HostError::ClaimLost(lost)) => return self.finalized(run_id, token, &terminal).ok_or(HostError::ClaimLost(lost)),
            Err(error) => return Err(error),
        };
        held.order(|reply| Order::Finish(Box::new(terminal), reply)).await
    }

    /// The run, where it has ended by this very claim, in this way.
    fn finalized(&self, run_id: RunId, token: &str, terminal: &Terminal) -> Option<Run> {
        let (_, claim) = self.inner().lease_key.claim_of(token)?;
        let run = self.record(run_id).ok()?.run;
        let queue = run.queue.as_ref()?;
        let same = queue.claims == claim && queue.executor_id.is_some() && run.status == terminal.status();
        let same = same
            && run.cancel_requested_at.is_none()
            && run.failure.as_ref().map(|failure| &failure.code) == terminal.failure().as_ref().map(|failure| &failure.code);
        same.then_some(run)
    }

    /// Appends results to a run that was claimed. `first` is the number of the first of them, as the executor counts from 1 in
    /// each claim: those that the host has already are not appended again. They are durable when this returns.
    ///
    /// # Errors
    /// When the claim does not count, the run has not begun, a number is left out, or a result is refused: then none of
    /// them is appended.
    pub async fn append(&self, run_id: RunId, token: &str, first: u64, results: Vec<SentResult>) -> Result<Appended, HostError> {
        let held = self.held(run_id, token)?;
        let mut calls = held.calls()?;
        if first == 0 || results.is_empty() {
            return Err(HostError::Invalid("`first` counts from 1, and `results` has at least one".to_owned()));
        }
        let through = first.saturating_add(results.len() as u64 - 1);
        let state = Arc::clone(&calls.run);
        let mut appended = held.appended.lock().await;
        let answer =
            |appended, replayed| Appended { appended, last_sequence: state.last_sequence.load(Ordering::Acquire), replayed };
        if through <= *appended {
            return Ok(answer(*appended, true));
        }
        if first != *appended + 1 {
            return Err(HostError::SequenceGap { expected: *appended + 1, first });
        }
        let batch = Batch::sent(results);
        let work = async {
            let written = calls.emit_with(batch, vec![RunChange::Append { through }]).await?;
            written.durable().await
        };
        held.call(work).await?.map_err(HostError::Refused)?;
        *appended = through;
        Ok(answer(through, false))
    }
}

/// What an executor asks for.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// Of these queues. None: all that it has registered for.
    pub queues: Vec<String>,
    /// Of these runners. None: all that it has registered for.
    pub runner_ids: Vec<agent_host_protocol::RunnerId>,
    /// How long the claim lasts unless it is renewed. The policy of the run says how long at most.
    pub lease_ms: Option<u64>,
    /// Whether the run begins at once.
    pub start: bool,
}

impl Life {
    /// Lives a run that is executed outside. Its turn in its conversation has come.
    pub(crate) async fn outside(mut self, host: &Host, reach: Reach<'_>, turn: Turn) -> Result<Left, HostError> {
        debug_assert!(turn.is_now(), "a run waits for its turn before it waits for an executor");
        let policy = self.terms.queue.as_deref().cloned().unwrap_or_default();
        if let Some(failure) = &self.terms.refusal {
            return self.end_unstarted(host, Terminal::Failed(failure.clone())).await;
        }
        let mut kept = self.claim_before();
        loop {
            let _admitted;
            let claim = match kept.take() {
                Some(claim) => claim,
                None => {
                    let admitted = tokio::select! {
                        biased;
                        () = host.inner().stopping.cancelled() => return Ok(Left::Suspended),
                        () = reach.cancelled.cancelled() => return self.end_cancelled(host).await,
                        admitted = self.admitted(host, &policy) => admitted,
                    };
                    _admitted = admitted;
                    match self.wait_for_claim(host, reach, &policy).await? {
                        Waited::Claimed(claim) => claim,
                        Waited::Cancelled => return self.end_cancelled(host).await,
                        Waited::Overdue(failure) => return self.give_up(host, failure).await,
                        Waited::Stopping => return Ok(Left::Suspended),
                    }
                }
            };
            match self.hold(host, reach, &policy, claim).await? {
                Some(left) => return Ok(left),
                None => continue,
            }
        }
    }

    /// Asks its binding whether one more run may be executed.
    pub(crate) fn enter(&self, host: &Host, policy: &QueuePolicy) -> Result<Admitted, Waits> {
        let priority = self.record.run.queue.as_ref().map_or(policy.priority, |queue| queue.priority);
        host.inner().admission.enter(&self.record.run.binding_id, policy, priority, self.record.run_no)
    }

    async fn admitted(&self, host: &Host, policy: &QueuePolicy) -> Admitted {
        match self.enter(host, policy) {
            Ok(admitted) => admitted,
            Err(mut waits) => waits.wait().await,
        }
    }

    pub(crate) async fn end_cancelled(&self, host: &Host) -> Result<Left, HostError> {
        let reason = host.cancel_reason(&self.record)?;
        self.end_unstarted(host, Terminal::Cancelled { reason }).await
    }

    /// The claim under which the run was held when the host stopped.
    fn claim_before(&self) -> Option<Claim> {
        let run = &self.record.run;
        let queue = run.queue.as_ref().filter(|_| self.past == Past::Interrupted && run.status != RunStatus::Queued)?;
        Some(Claim {
            number: queue.claims,
            executor_id: queue.executor_id.clone()?,
            lease_expires_at: queue.lease_expires_at.unwrap_or(0).max(time::now().saturating_add(HEARD_AGAIN_MS)),
            start: false,
            reply: None,
        })
    }

    async fn wait_for_claim(&mut self, host: &Host, reach: Reach<'_>, policy: &QueuePolicy) -> Result<Waited, HostError> {
        let inner = host.inner();
        let run = &self.record.run;
        let (run_id, run_no) = (run.run_id, self.record.run_no);
        let Some(queue) = run.queue.clone() else {
            return Err(HostError::Internal(format!("run {run_id} is to be executed outside and has no place in a queue")));
        };
        let until = |at: Timestamp| tokio::time::Instant::now() + Duration::from_millis(at.saturating_sub(time::now()));
        let overdue = policy.claim_timeout_ms.map(|ms| until(queue.queued_at.unwrap_or(run.created_at).saturating_add(ms)));
        let overdue = async move {
            match overdue {
                Some(at) => tokio::time::sleep_until(at).await,
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
        let mut pause = std::pin::pin!(tokio::time::sleep_until(until(queue.not_before.unwrap_or(0))));
        let mut paused = queue.not_before.is_some_and(|at| at > time::now());
        let mut queued = None;
        loop {
            if !paused && queued.is_none() {
                queued = Some(inner.waiting.enter(kind.clone(), queue.priority, run_no, run_id));
            }
            let given = async {
                match &mut queued {
                    Some(queued) => (&mut queued.given).await,
                    None => std::future::pending().await,
                }
            };
            let offer = tokio::select! {
                biased;
                () = inner.stopping.cancelled() => return Ok(Waited::Stopping),
                () = reach.cancelled.cancelled() => return Ok(Waited::Cancelled),
                () = &mut overdue => {
                    let waited = policy.claim_timeout_ms.unwrap_or_default();
                    let message = format!("no executor has claimed the run within {waited} ms: start one for queue `{}`", queue.name);
                    return Ok(Waited::Overdue(RunFailure { retryable: true, ..RunFailure::host(FailureCode::ClaimTimeout, message) }));
                }
                () = &mut pause, if paused => {
                    paused = false;
                    continue;
                }
                offer = given => offer,
            };
            queued = None;
            // Whoever was given the run has gone: the next one.
            let Ok(offer) = offer else { continue };
            if offer.reply.is_closed() {
                continue;
            }
            if let Some(claim) = self.claim(host, policy, offer).await? {
                return Ok(Waited::Claimed(claim));
            }
        }
    }

    /// Writes that the run was claimed. Nothing where that cannot be written now.
    async fn claim(&mut self, host: &Host, policy: &QueuePolicy, offer: Offer) -> Result<Option<Claim>, HostError> {
        let Offer { executor_id, lease_ms, start, reply } = offer;
        let at = time::now();
        let lease_expires_at = at.saturating_add(lease_of(policy, lease_ms));
        let change = RunChange::Claim { at, executor_id: executor_id.clone(), lease_expires_at };
        let write = RunWrite { run_no: self.record.run_no, changes: vec![change], ..RunWrite::default() };
        let written = match host.inner().ledger.submit(write).await {
            Ok(commit) => commit.await,
            Err(error) => Err(error),
        };
        match written {
            Ok(run) => {
                let number = run.queue.as_ref().map_or(0, |queue| queue.claims);
                host.inner().metrics.claimed(run.queue.as_ref().map_or("", |queue| &queue.name));
                self.record.run = run;
                Ok(Some(Claim { number, executor_id, lease_expires_at, start, reply: Some(reply) }))
            }
            Err(error @ LedgerError::Storage(_)) => {
                drop(reply.send(Err(error.into())));
                tokio::time::sleep(WRITE_AGAIN).await;
                Ok(None)
            }
            Err(error) => {
                let told = HostError::Unavailable(error.to_string());
                drop(reply.send(Err(told)));
                Err(error.into())
            }
        }
    }

    /// The run is held by an executor, until its end or until the claim ends. Nothing where it waits in the queue again.
    async fn hold(
        &mut self,
        host: &Host,
        reach: Reach<'_>,
        policy: &QueuePolicy,
        mut claim: Claim,
    ) -> Result<Option<Left>, HostError> {
        let inner = host.inner();
        let run_id = self.record.run.run_id;
        let holds = inner.executors.holds(&claim.executor_id, run_id);
        let (orders, mut received) = mpsc::channel(ORDERS);
        let held = Arc::new(Held {
            run_id,
            claim: claim.number,
            executor_id: claim.executor_id.clone(),
            orders,
            calls: OnceLock::new(),
            closing: CancellationToken::new(),
            under_way: RwLock::new(()),
            appended: Mutex::new(self.record.run.queue.as_ref().map_or(0, |queue| queue.appended)),
        });
        let mut begun = match self.record.run.status {
            RunStatus::Claimed => None,
            _ => Some(self.begun_before(host, reach, &held).await?),
        };
        inner.held.lock().insert(run_id, Arc::clone(&held));
        let _listed = Listed { host, held: &held };
        let mut expires = instant_of(claim.lease_expires_at);
        let dispatch = tokio::time::Instant::now() + Duration::from_millis(policy.dispatch_timeout_ms);
        let grace = Duration::from_millis(inner.setup().limits.cancel_grace_ms);

        let mut ends = None;
        if let Some(reply) = claim.reply.take() {
            let mut context = None;
            if claim.start && begun.is_none() {
                let (started, given) = self.begin_outside(host, reach, &held).await?;
                (begun, context) = (Some(started), Some(given));
            }
            let claimed = Claimed {
                run: self.record.run.clone(),
                lease_token: inner.lease_key.token(run_id, claim.number),
                lease_expires_at: claim.lease_expires_at,
                context,
            };
            if reply.send(Ok(claimed)).is_err() {
                ends = Some(After::Back(unheard(), None));
            }
        }
        // When a run whose end was asked for has had time to hear of it.
        let mut told: Option<tokio::time::Instant> = None;
        let ends = loop {
            if let Some(ends) = ends.take() {
                break ends;
            }
            let deadline = begun.as_ref().map(|begun| begun.deadline);
            let order = tokio::select! {
                biased;
                () = inner.stopping.cancelled() => break After::Stopping,
                () = reach.cancelled.cancelled(), if told.is_none() => {
                    told = Some(tokio::time::Instant::now() + grace);
                    let reason = host.cancel_reason(&self.record)?;
                    inner.executors.tell(&claim.executor_id, ExecutorNews::CancelRequested { run_id, reason });
                    continue;
                }
                () = tokio::time::sleep_until(told.unwrap_or(expires)), if told.is_some() => {
                    break After::End(Terminal::Cancelled { reason: host.cancel_reason(&self.record)? }, None);
                }
                () = holds.gone.cancelled() => break After::Back(lost("executor_gone", "the executor that held the run is gone"), None),
                () = tokio::time::sleep_until(expires) => {
                    break After::Back(lost("lease_expired", "the executor that held the run did not renew its lease"), None);
                }
                () = tokio::time::sleep_until(dispatch), if begun.is_none() => {
                    let message = format!("the executor that had claimed the run did not start it within {} ms", policy.dispatch_timeout_ms);
                    break After::Back(lost("dispatch_timeout", &message), None);
                }
                () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    break After::End(self.timed_out(), None);
                }
                order = received.recv() => order,
            };
            // `held` keeps the other end of it.
            let Some(order) = order else { break After::Stopping };
            match order {
                Order::Start(reply) => {
                    let started = match &begun {
                        None => match self.begin_outside(host, reach, &held).await {
                            Ok((started, context)) => {
                                begun = Some(started);
                                Ok((self.record.run.clone(), context))
                            }
                            Err(error) => Err(error),
                        },
                        Some(_) => self.context_again(host),
                    };
                    drop(reply.send(started));
                }
                Order::Renew(lease_ms, reply) => {
                    let renewed = self.renewed(host, policy, claim.number, lease_ms).await;
                    if let Ok(at) = &renewed {
                        expires = instant_of(*at);
                    }
                    drop(reply.send(renewed.and_then(|_| Ok(host.record(run_id)?.run))));
                }
                Order::Finish(terminal, reply) => match (*terminal, &begun) {
                    (Terminal::Failed(failure), _) if failure.retryable && self.record.run.attempt < self.terms.max_attempts => {
                        let back = Back { reason: failure.code.clone(), attempted: true, failure, lost: false };
                        ends = Some(After::Back(back, Some(reply)));
                    }
                    (Terminal::Completed(_), None) => {
                        let problem = format!("run {run_id} has not begun, so it cannot be completed: start it first");
                        drop(reply.send(Err(HostError::Conflict(problem))));
                    }
                    (terminal, _) => ends = Some(After::End(terminal, Some(reply))),
                },
                Order::Release(reason, reply) => {
                    let failure = RunFailure { retryable: true, ..RunFailure::host(FailureCode::LeaseLost, reason.clone()) };
                    let back = Back { reason, attempted: begun.is_some(), failure, lost: false };
                    ends = Some(After::Back(back, Some(reply)));
                }
            }
        };
        // Nothing of this claim is under way any more.
        held.closing.cancel();
        drop(held.under_way.write().await);
        drop(received);
        // Before anybody is answered: who is done with one run has a slot for the next.
        drop(holds);
        self.come_to(host, reach, policy, &claim, begun, ends).await
    }

    /// The claim has ended, and nothing of it is under way.
    async fn come_to(
        &mut self,
        host: &Host,
        reach: Reach<'_>,
        policy: &QueuePolicy,
        claim: &Claim,
        begun: Option<Begun>,
        ends: After,
    ) -> Result<Option<Left>, HostError> {
        let run_id = self.record.run.run_id;
        let (terminal, reply) = match ends {
            After::Stopping => {
                if let Some(begun) = &begun {
                    begun.state.let_go.cancel();
                    begun.state.put_down().await?;
                }
                return Ok(Some(Left::Suspended));
            }
            After::Back(back, reply) => {
                if let Some(begun) = &begun {
                    self.let_go(host, begun).await;
                    begun.state.put_down().await?;
                }
                if back.lost {
                    host.inner().metrics.lease_lost(&policy.name);
                }
                if reply.is_none() {
                    let news = ExecutorNews::ClaimLost { run_id, reason: back.reason.clone() };
                    host.inner().executors.tell(&claim.executor_id, news);
                }
                let given_up = (back.lost && policy.on_lost == OnLost::Fail)
                    || (back.attempted && self.record.run.attempt >= self.terms.max_attempts);
                if reach.cancelled.is_cancelled() {
                    let left = self.end_cancelled(host).await?;
                    answer(reply, &left);
                    return Ok(Some(left));
                }
                if given_up {
                    let left = self.give_up(host, back.failure).await?;
                    answer(reply, &left);
                    return Ok(Some(left));
                }
                self.put_back(host, policy, claim.number, back).await?;
                if let Some(reply) = reply {
                    drop(reply.send(Ok(self.record.run.clone())));
                }
                return Ok(None);
            }
            After::End(terminal, reply) => (terminal, reply),
        };
        let Some(begun) = begun else {
            let left = self.end_unstarted(host, terminal).await?;
            answer(reply, &left);
            return Ok(Some(left));
        };
        let mut terminal = terminal;
        if matches!(terminal, Terminal::Completed(_)) {
            // What it has asked for in passing is part of the run.
            terminal = tokio::select! {
                biased;
                () = reach.cancelled.cancelled() => Terminal::Cancelled { reason: host.cancel_reason(&self.record)? },
                () = tokio::time::sleep_until(begun.deadline.into()) => self.timed_out(),
                () = host.inner().stopping.cancelled() => {
                    begun.state.put_down().await?;
                    return Ok(Some(Left::Suspended));
                }
                () = begun.state.passed_by() => terminal,
            };
        }
        self.let_go(host, &begun).await;
        let run = self.end(host, &begun.state, &begun.log, terminal).await?;
        let left = Left::Ended(Box::new(run));
        answer(reply, &left);
        Ok(Some(left))
    }

    async fn let_go(&self, host: &Host, begun: &Begun) {
        begun.state.let_go.cancel();
        begun.state.passing.close();
        begun.state.passing.wait().await;
        begun.state.told_all_ends().await;
        host.end_children(begun.state.run_id, &begun.state.children).await;
    }

    /// Begins the execution, durably; gives its context.
    async fn begin_outside(&mut self, host: &Host, reach: Reach<'_>, held: &Held) -> Result<(Begun, Box<RawValue>), HostError> {
        let beginning = self.first_try(host, self.record.run.attempt, false).await?;
        let context = beginning.context.clone();
        let begun = self.under(host, reach, held, beginning);
        begun.state.seen.note_snapshot(&self.terms, &context.state);
        if self.terms.grant.steering && self.record.run.attempt > 1 {
            *begun.state.taken_before.lock() = steering::taken_before(&host.inner().ledger, &self.record)?;
        }
        begun.state.put_down().await?;
        let run = &self.record.run;
        host.inner().metrics.started(run, Duration::from_millis(time::now().saturating_sub(run.created_at)));
        self.record = host.record(self.record.run.run_id)?;
        let context = serde_json::value::to_raw_value(&context).map_err(|error| HostError::Internal(error.to_string()))?;
        Ok((begun, context))
    }

    /// The execution that was under way when the host stopped.
    async fn begun_before(&self, host: &Host, reach: Reach<'_>, held: &Held) -> Result<Begun, HostError> {
        let limits: Arc<Limits> = Arc::clone(&host.inner().setup().limits);
        let run = &self.record.run;
        let context = host.inner().ledger.context(run.run_id)?.and_then(|context| serde_json::from_str(context.get()).ok());
        let missing = || HostError::Internal(format!("run {} has begun, and has no context", run.run_id));
        let world = World::new(&limits, GuestClock::new(time::now_us()), [0; 32]);
        let journal = Journal::begin(Mode::Off, &world, &limits);
        let deadline_at = run.deadline_at.unwrap_or_else(|| time::now().saturating_add(self.terms.deadline_ms));
        let beginning = Beginning {
            context: context.ok_or_else(missing)?,
            world,
            journal,
            deadline: Instant::now() + Duration::from_millis(deadline_at.saturating_sub(time::now())),
            deadline_at,
            last_sequence: run.last_sequence,
            attempt: run.attempt,
        };
        let begun = self.under(host, reach, held, beginning);
        // Every call has left an event, so no number that was given is given again.
        begun.state.open.note(run.last_sequence.saturating_add(u64::from(run.attempt.saturating_sub(1)) << 40));
        let ledger = &host.inner().ledger;
        begun.state.children.take_from(Children::of(ledger, &self.record)?);
        // Nobody waits any more for the calls that were under way. What it has asked for in passing goes on.
        let at = time::now();
        let before = ledger.run_events_after(self.record.run_no, run.run_id, 0, usize::MAX)?;
        let mut left = facts::unended(&before, at);
        left.retain(|(_, data)| !data.get("action_id").and_then(|id| id.as_str()).is_some_and(detached::is_passing));
        left.push((ResultKind::RunStatus, json!({ "status": "running", "reason": "resumed", "resumes": run.resumes + 1 })));
        let write = |first: u64| {
            let events = (first..).zip(&left).map(|(sequence, (kind, data))| fact(*kind, sequence, at, data)).collect();
            Ok(RunWrite { changes: vec![RunChange::Recover { at }], events, ..RunWrite::default() })
        };
        let written = async { begun.state.write(None, write).await?.durable().await };
        written.await.map_err(|error: ApiError| HostError::Unavailable(error.message))?;
        Ok(begun)
    }

    fn under(&self, host: &Host, reach: Reach<'_>, held: &Held, beginning: Beginning) -> Begun {
        let inner = host.inner();
        let setup = inner.setup();
        let Beginning { journal, deadline, last_sequence, attempt, .. } = beginning;
        let run_id = self.record.run.run_id;
        let state = RunState::new(
            run_id,
            self.record.run_no,
            Arc::clone(&self.terms),
            inner.ledger.clone(),
            Arc::clone(&setup.limits),
            reach.cancelled.clone(),
            deadline,
            last_sequence,
            journal,
            Arc::clone(reach.mail),
            attempt,
        );
        let state = Arc::new(state.held_by(held.claim).counted_by(&inner.metrics));
        let detached = Detached::new(&state, &setup.services);
        if self.past == Past::Interrupted
            && let Err(error) = detached.take_up()
        {
            tracing::error!(%run_id, %error, "actions that the run had asked for cannot be taken up");
        }
        let calls = RunCalls {
            run: Arc::clone(&state),
            event: Arc::clone(&self.event),
            services: Arc::clone(&setup.services),
            host: Some(host.clone()),
        };
        drop(held.calls.set(calls));
        Begun { state, log: GuestLog::new(run_id, &setup.limits, Arc::default()), deadline }
    }

    fn context_again(&self, host: &Host) -> Result<(Run, Box<RawValue>), HostError> {
        let run_id = self.record.run.run_id;
        let context = host.inner().ledger.context(run_id)?;
        let missing = || HostError::Internal(format!("run {run_id} has begun, and has no context"));
        Ok((host.record(run_id)?.run, context.ok_or_else(missing)?))
    }

    async fn renewed(
        &self,
        host: &Host,
        policy: &QueuePolicy,
        claim: u32,
        lease_ms: Option<u64>,
    ) -> Result<Timestamp, HostError> {
        let at = time::now();
        let lease_expires_at = at.saturating_add(lease_of(policy, lease_ms));
        let write = RunWrite {
            run_no: self.record.run_no,
            changes: vec![RunChange::Renew { at, lease_expires_at }],
            claim: Some(claim),
            ..RunWrite::default()
        };
        host.inner().ledger.submit(write).await?.await?;
        Ok(lease_expires_at)
    }

    /// Writes that the run waits again.
    async fn put_back(&mut self, host: &Host, policy: &QueuePolicy, claim: u32, back: Back) -> Result<(), HostError> {
        let ledger = &host.inner().ledger;
        let run_id = self.record.run.run_id;
        loop {
            let record = host.record(run_id)?;
            let at = time::now();
            let not_before = if back.attempted { policy.not_before(record.run.attempt, at) } else { None };
            let mut data =
                json!({ "status": "queued", "reason": back.reason, "attempt": record.run.attempt + u32::from(back.attempted) });
            if let (Some(data), Some(until)) = (data.as_object_mut(), not_before) {
                data.insert("until".to_owned(), until.into());
            }
            let before = ledger.run_events_after(record.run_no, run_id, 0, usize::MAX)?;
            let facts = facts::unended(&before, at).into_iter().chain([(ResultKind::RunStatus, data)]);
            let first = record.run.last_sequence + 1;
            let events = (first..).zip(facts).map(|(sequence, (kind, data))| fact(kind, sequence, at, &data)).collect();
            let change = RunChange::Release { at, reason: back.reason.clone(), not_before, attempted: back.attempted };
            let write =
                RunWrite { run_no: record.run_no, changes: vec![change], events, claim: Some(claim), ..RunWrite::default() };
            let written = match ledger.submit(write).await {
                Ok(commit) => commit.await,
                Err(error) => Err(error),
            };
            match written {
                Ok(run) => {
                    self.record.run = run;
                    return Ok(());
                }
                // Who answers what it has asked writes in the same moment.
                Err(LedgerError::Sequence { .. }) => {}
                Err(LedgerError::Storage(reason)) => {
                    tracing::error!(%run_id, %reason, "a run could not be put back into its queue; trying again");
                    tokio::time::sleep(WRITE_AGAIN).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends a run that has no attempts left, and notes it among the dead letters in the same commit.
    async fn give_up(&self, host: &Host, failure: RunFailure) -> Result<Left, HostError> {
        let ledger = &host.inner().ledger;
        let letter = |run: &Run| DeadLetter {
            run_id: run.run_id,
            runner_id: run.runner_id.clone(),
            binding_id: run.binding_id.clone(),
            workspace_id: run.workspace_id.clone(),
            queue: run.queue.as_ref().map(|queue| queue.name.clone()).unwrap_or_default(),
            attempts: run.attempt,
            failure: failure.clone(),
            at: time::now(),
        };
        self.end_as(host, |record| {
            let entry = EntryWrite::put(dead_key(record.run.run_id), &letter(&record.run))?;
            let write = ended(ledger, record, Terminal::Failed(failure.clone()), self.terms.deadline_ms)?;
            Ok(RunWrite { entries: vec![entry], ..write })
        })
        .await
    }
}

/// A run that was given up: all its attempts were lost, or nobody has claimed it in time.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct DeadLetter {
    /// The run. It has ended as `failed`.
    pub run_id: RunId,
    /// Its runner.
    pub runner_id: agent_host_protocol::RunnerId,
    /// Its binding.
    pub binding_id: String,
    /// Its workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// The queue that it was in.
    pub queue: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// How the last one failed.
    pub failure: RunFailure,
    /// When it was given up.
    pub at: Timestamp,
}

/// Where the ledger keeps the dead letter of a run. Ids of runs sort by time.
pub(crate) fn dead_key(run_id: RunId) -> String {
    format!("{DEAD}{run_id}")
}

enum Waited {
    Claimed(Claim),
    Cancelled,
    Overdue(RunFailure),
    Stopping,
}

/// As long as it lives, requests find the run.
struct Listed<'a> {
    host: &'a Host,
    held: &'a Arc<Held>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut all = self.host.inner().held.lock();
        if all.get(&self.held.run_id).is_some_and(|other| Arc::ptr_eq(other, self.held)) {
            all.remove(&self.held.run_id);
        }
    }
}

fn answer(reply: Option<Reply<Run>>, left: &Left) {
    if let (Some(reply), Left::Ended(run)) = (reply, left) {
        drop(reply.send(Ok((**run).clone())));
    }
}

fn instant_of(at: Timestamp) -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_millis(at.saturating_sub(time::now()))
}

/// The policy says what a lease is, and an executor may want less.
fn lease_of(policy: &QueuePolicy, asked: Option<u64>) -> u64 {
    asked.unwrap_or(policy.lease_ms).clamp(MIN_LEASE_MS, policy.lease_ms.max(MIN_LEASE_MS))
}

fn lost(reason: &str, message: &str) -> Back {
    Back {
        reason: reason.to_owned(),
        attempted: true,
        failure: RunFailure {
            retryable: true,
            details: Some(json!({ "reason": reason })),
            ..RunFailure::host(FailureCode::LeaseLost, message)
        },
        lost: true,
    }
}

/// The executor had gone before it heard of its claim: nothing was done.
fn unheard() -> Back {
    Back { attempted: false, lost: false, ..lost("executor_gone", "the executor that had claimed the run was gone") }
}

/// Whether somebody outside executes the run.
pub(crate) fn is_outside(run: &Run) -> bool {
    run.execution == Execution::External
}

impl From<ApiError> for HostError {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}
