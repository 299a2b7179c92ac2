//! Claims: the requests of executors about runs that they hold.
//!
//! A claimed run has the gate of a guest, and its executor works through that. The ledger itself fences its writes by the
//! number of the claim: an executor that comes back too late writes nothing.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use agent_host_facts::import::NativeEnd;
use agent_host_ledger::RunChange;
use agent_host_protocol::{Run, RunId, RunnerId, SentResult, Timestamp, run::Terminal};
use agent_host_sandbox::Batch;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{
    Runs,
    appended::{AppendedResults, hash},
    executors::Executor,
    lease::ClaimToken,
    queue::waiting::{Offer, WaitingRun},
};
use crate::{
    calls::{
        RunCalls,
        remote::{Calls, ClaimScope},
    },
    record::HostError,
};

/// A peek that waits for a run is repeated after so long: it may not be told of the one that nobody takes.
const PEEK_AGAIN: Duration = Duration::from_secs(1);

/// A run that an executor has claimed.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
#[schema(as = Claimed)]
pub struct ClaimedRun {
    /// The run.
    pub run: Run,
    /// The token of the claim, for this run alone and as long as the claim counts.
    pub lease_token: String,
    /// Time at which the claim is lost unless the lease is renewed.
    pub lease_expires_at: Timestamp,
    /// The context of the run, where it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<agent_host_protocol::context::RunContext>)]
    pub context: Option<Box<RawValue>>,
    /// The MCP endpoint of the run, where it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpAccess>,
    /// As in the answer to the start of the run, where it has begun.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http_hosts: Vec<String>,
}

/// The answer to the start of a claimed run, besides the run.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct ClaimStart {
    /// The context of the run.
    #[schema(value_type = agent_host_protocol::context::RunContext)]
    pub context: Box<RawValue>,
    /// The MCP endpoint of the run.
    pub mcp: McpAccess,
    /// Patterns of hosts that the run is granted (`resources.http_hosts` of its binding). An executor that confines what it runs holds it
    /// to them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http_hosts: Vec<String>,
}

/// The MCP endpoint of a run, for the agent that the executor runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct McpAccess {
    /// The path on this host.
    pub path: String,
    /// The token of the endpoint, for this run alone and as long as the claim counts. It opens nothing else.
    pub token: String,
}

/// The outcome of an append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AppendOutcome {
    /// Number of the last result, or native event, that the host has of this claim, as the executor counts.
    pub appended: u64,
    /// Sequence of the last event of the run.
    pub last_sequence: u64,
    /// True if the same results were appended before.
    pub replayed: bool,
    /// The end of the run that native events say. The executor ends the run with `finalize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<NativeEnd>,
}

/// Checks what envelopes of the protocol say of their run and their number.
fn check_envelopes(run_id: RunId, first: u64, results: &[SentResult]) -> Result<(), HostError> {
    for (number, result) in (first..).zip(results) {
        if let Some(sent) = result.run_id.filter(|sent| *sent != run_id) {
            return Err(HostError::Invalid(format!("result {number} is of run {sent}, and this is run {run_id}")));
        }
        if let Some(sequence) = result.sequence.filter(|sequence| *sequence != number) {
            return Err(HostError::Invalid(format!(
                "`sequence` of a result is {sequence}, and by its place it is {number}: number the results of one append without a gap"
            )));
        }
    }
    Ok(())
}

/// The channel for the answer to a request.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, HostError>>;

/// The channel of requests to a claimed run.
pub(crate) struct ClaimHandle {
    run_id: RunId,
    pub(crate) claim: u32,
    pub(crate) executor_id: String,
    pub(crate) orders: mpsc::Sender<Order>,
    /// Set once the run has begun.
    pub(crate) calls: OnceLock<RunCalls>,
    /// The calls that are under way for the claim.
    pub(crate) scope: Arc<ClaimScope>,
    /// The results that were appended. Appends come one after the other.
    pub(super) appended: Mutex<AppendedResults>,
}

/// A request about the claim itself. The task of the run carries it out.
pub(crate) enum Order {
    Start(Reply<(Arc<Run>, ClaimStart)>),
    Renew(Option<u64>, Reply<Arc<Run>>),
    Finish(Box<Terminal>, Reply<Arc<Run>>),
    Release(String, Reply<Arc<Run>>),
}

impl ClaimHandle {
    pub(crate) fn new(run: &Run, claim: u32, executor_id: String, orders: mpsc::Sender<Order>) -> Self {
        Self {
            run_id: run.run_id,
            claim,
            executor_id,
            orders,
            calls: OnceLock::new(),
            scope: Arc::new(ClaimScope::new(run.run_id, claim)),
            appended: Mutex::new(AppendedResults::new(claim, run.queue.as_ref().map_or(0, |queue| queue.appended))),
        }
    }

    /// The host calls of the run, to be made within [`ClaimHandle::scope`].
    pub(super) fn calls(&self) -> Result<RunCalls, HostError> {
        let not_begun =
            || HostError::Conflict(format!("run {} has not begun: start it first (POST /api/v1/runs/{{id}}/start)", self.run_id));
        self.calls.get().cloned().ok_or_else(not_begun)
    }

    async fn order<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, HostError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| self.scope.lost())?;
        answer.await.map_err(|_| self.scope.lost())?
    }
}

impl Runs {
    /// The handle of a run that an executor holds, by the token of its claim.
    pub(super) fn claim_handle(&self, run_id: RunId, token: &str) -> Result<Arc<ClaimHandle>, HostError> {
        let handle = self.handle_by(ClaimToken::Lease, run_id, token)?;
        self.executors.seen(&handle.executor_id);
        Ok(handle)
    }

    fn handle_by(&self, purpose: ClaimToken, run_id: RunId, token: &str) -> Result<Arc<ClaimHandle>, HostError> {
        let of = self.lease_key.claim_of(purpose, token);
        let Some((_, claim)) = of.filter(|(of, _)| *of == run_id) else {
            let message = format!("this is not the {} of a claim of this run", purpose.name());
            return Err(HostError::Unauthenticated(message));
        };
        let handle = self.claims.lock().get(&run_id).cloned();
        match handle {
            Some(handle) if handle.claim == claim => Ok(handle),
            _ => {
                let run = self.record(run_id)?.run;
                let queue = run.queue.as_ref();
                if !run.status.is_terminal() && queue.is_some_and(|queue| queue.claims == claim && queue.executor_id.is_some()) {
                    self.check_running()?;
                    return Err(HostError::Unavailable("the host is bringing the run back: try again in a moment".to_owned()));
                }
                Err(HostError::ClaimLost(format!(
                    "this claim no longer holds run {run_id} (the run is {}): stop working on it",
                    run.status
                )))
            }
        }
    }

    /// Claims the first run that matches, waiting at most `wait`. Returns `None` if no run came.
    pub(crate) async fn claim(
        &self,
        executor_id: &str,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<Option<ClaimedRun>, HostError> {
        let until = tokio::time::Instant::now() + wait;
        let ClaimRequest { queues, runner_ids, lease_ms, start } = request;
        let filter = Arc::new(self.wanted_by(executor_id, queues, runner_ids)?);
        loop {
            self.check_running()?;
            let found = match self.waiting.claim(&filter) {
                Ok(found) => found,
                Err(mut ticket) => tokio::select! {
                    found = &mut ticket.found => match found {
                        Ok(found) => found,
                        Err(_) => continue,
                    },
                    () = tokio::time::sleep_until(until) => return Ok(None),
                    () = self.stopping.cancelled() => return Err(HostError::ShuttingDown),
                },
            };
            tracing::trace!(run_id = %found.run_id, executor_id, "a run is offered");
            let (reply, answer) = oneshot::channel();
            let offer = Offer { executor_id: executor_id.to_owned(), lease_ms, start, reply };
            if found.offer.send(offer).is_err() {
                // The run was cancelled, or the host stopped, at the same moment.
                continue;
            }
            match answer.await {
                Ok(claimed) => return claimed.map(Some),
                Err(_) => continue,
            }
        }
    }

    /// The run that [`Self::claim`] would give, after at most `wait`; it stays where it is.
    pub(crate) async fn peek(&self, executor_id: &str, request: ClaimRequest, wait: Duration) -> Result<ClaimPeek, HostError> {
        let until = tokio::time::Instant::now() + wait;
        let ClaimRequest { queues, runner_ids, .. } = request;
        let filter = Arc::new(self.wanted_by(executor_id, queues, runner_ids)?);
        let first = loop {
            self.check_running()?;
            match self.waiting.peek(&filter) {
                Ok(first) => break Some(first),
                Err(mut ticket) => tokio::select! {
                    _ = &mut ticket.notified => {}
                    () = tokio::time::sleep(PEEK_AGAIN) => {}
                    () = tokio::time::sleep_until(until) => break None,
                    () = self.stopping.cancelled() => return Err(HostError::ShuttingDown),
                },
            }
        };
        let Executor { slots, held, .. } = self.executor(executor_id)?;
        Ok(ClaimPeek { slots, held: held.len(), first })
    }

    /// Begins a run that was claimed; gives what its runner is given. Repeating it is harmless.
    pub(crate) async fn start_claimed(&self, run_id: RunId, token: &str) -> Result<(Arc<Run>, ClaimStart), HostError> {
        self.claim_handle(run_id, token)?.order(Order::Start).await
    }

    /// The MCP endpoint of a claim.
    pub(crate) fn mcp_access(&self, run_id: RunId, claim: u32) -> McpAccess {
        McpAccess { path: format!("/mcp/runs/{run_id}"), token: self.lease_key.token(ClaimToken::Mcp, run_id, claim) }
    }

    /// Makes a claim last longer; gives the run as it is.
    pub(crate) async fn renew(&self, run_id: RunId, token: &str, lease_ms: Option<u64>) -> Result<Arc<Run>, HostError> {
        self.claim_handle(run_id, token)?.order(|reply| Order::Renew(lease_ms, reply)).await
    }

    /// Gives a claim back: the run waits for another executor.
    pub(crate) async fn release(&self, run_id: RunId, token: &str, reason: String) -> Result<Arc<Run>, HostError> {
        self.claim_handle(run_id, token)?.order(|reply| Order::Release(reason, reply)).await
    }

    /// Ends a claimed run. After a retryable failure with attempts left, the run goes back to the queue instead.
    pub(crate) async fn finalize(&self, run_id: RunId, token: &str, terminal: Terminal) -> Result<Arc<Run>, HostError> {
        let handle = match self.claim_handle(run_id, token) {
            Ok(handle) => handle,
            // The answer to the first one may have been lost.
            Err(HostError::ClaimLost(lost)) => return self.finalized(run_id, token, &terminal).ok_or(HostError::ClaimLost(lost)),
            Err(error) => return Err(error),
        };
        handle.order(|reply| Order::Finish(Box::new(terminal), reply)).await
    }

    /// The run, where it has ended by this very claim, in this way.
    fn finalized(&self, run_id: RunId, token: &str, terminal: &Terminal) -> Option<Arc<Run>> {
        let (_, claim) = self.lease_key.claim_of(ClaimToken::Lease, token)?;
        let run = self.record(run_id).ok()?.run;
        let queue = run.queue.as_ref()?;
        let same = queue.claims == claim && queue.executor_id.is_some() && run.status == terminal.status();
        let same = same
            && run.cancel_requested_at.is_none()
            && run.failure.as_ref().map(|failure| &failure.code) == terminal.failure().as_ref().map(|failure| &failure.code);
        same.then_some(run)
    }

    /// Appends results to a claimed run. `first` is the number of the first result; the executor counts from 1 in each
    /// claim. Results that the host already has are not appended again; another result under such a number is refused. The
    /// results are durable when this function returns.
    pub(crate) async fn append(
        &self,
        run_id: RunId,
        token: &str,
        first: Option<u64>,
        mut results: Vec<SentResult>,
    ) -> Result<AppendOutcome, HostError> {
        let handle = self.claim_handle(run_id, token)?;
        let mut calls = handle.calls()?;
        let mut appended = handle.appended.lock().await;
        let run = Arc::clone(&calls.run);
        appended.recall(&self.ledger, run.run_no, run_id, run.writer.last_sequence())?;
        let first = first.unwrap_or(appended.last() + 1);
        if first == 0 || results.is_empty() {
            return Err(HostError::Invalid("`first` counts from 1, and `results` has at least one".to_owned()));
        }
        // Before anything counts on from `first`.
        appended.check_gap(first)?;
        appended.check_form(None)?;
        check_envelopes(run_id, first, &results)?;
        let through = first.saturating_add(results.len() as u64 - 1);
        let answer =
            |appended, replayed| AppendOutcome { appended, last_sequence: run.writer.last_sequence(), replayed, end: None };
        let hashes: Vec<u64> = results.iter().map(hash).collect();
        let known = usize::try_from(appended.last() + 1 - first).unwrap_or(usize::MAX).min(results.len());
        let (repeated, new) = hashes.split_at(known);
        if let Some(number) = appended.differs(first, repeated) {
            return Err(HostError::ResultConflict { number });
        }
        if new.is_empty() {
            return Ok(answer(appended.last(), true));
        }
        results.drain(..known);
        let first_new = first + known as u64;
        let (results, open_message) = appended.with_message_ids(first_new, results)?;
        let marks = appended.marks(first_new, new);
        let batch = Batch::sent(results);
        let work = async {
            let written = calls.emit_with(batch, vec![RunChange::Append { through }], &marks).await?;
            written.durable().await
        };
        handle.scope.call(work).await?.map_err(HostError::Refused)?;
        appended.add(through, new, open_message);
        Ok(answer(through, false))
    }

    /// Appends results to a claimed run and ends the run.
    pub(crate) async fn append_and_finish(
        &self,
        run_id: RunId,
        token: &str,
        first: Option<u64>,
        results: Vec<SentResult>,
        terminal: Terminal,
    ) -> Result<AppendOutcome, HostError> {
        let handle = match self.claim_handle(run_id, token) {
            Ok(handle) => handle,
            // The answer to the first request may have been lost.
            Err(HostError::ClaimLost(lost)) => {
                let run = self.finalized(run_id, token, &terminal).ok_or(HostError::ClaimLost(lost))?;
                let appended = run.queue.as_ref().map_or(0, |queue| queue.appended);
                return Ok(AppendOutcome { appended, last_sequence: run.last_sequence, replayed: true, end: None });
            }
            Err(error) => return Err(error),
        };
        // The end has the number after the last result.
        let number = first.map(|first| first.saturating_add(results.len() as u64));
        if !results.is_empty() {
            self.append(run_id, token, first, results).await?;
        }
        let appended = {
            let appended = handle.appended.lock().await;
            if let Some(number) = number {
                appended.check_gap(number)?;
                if number <= appended.last() {
                    return Err(HostError::ResultConflict { number });
                }
            }
            appended.last()
        };
        let run = self.finalize(run_id, token, terminal).await?;
        Ok(AppendOutcome { appended, last_sequence: run.last_sequence, replayed: false, end: None })
    }

    /// The host calls of a run that an executor holds.
    pub(crate) fn claim_calls(&self, run_id: RunId, token: &str) -> Result<Calls, HostError> {
        let handle = self.claim_handle(run_id, token)?;
        Ok(Calls::new(handle.calls()?, Arc::clone(&handle.scope)))
    }

    /// The host calls of a run that an executor holds, by the token of its MCP endpoint.
    pub(crate) fn mcp_calls(&self, run_id: RunId, token: &str) -> Result<Calls, HostError> {
        let handle = self.handle_by(ClaimToken::Mcp, run_id, token)?;
        Ok(Calls::new(handle.calls()?, Arc::clone(&handle.scope)))
    }
}

/// The outcome of a peek: the run that an executor could claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimPeek {
    /// Runs that the executor may hold.
    pub slots: u32,
    /// Runs that it holds in this partition.
    pub held: usize,
    /// The run that a claim would give.
    pub first: Option<WaitingRun>,
}

/// A request of an executor for runs.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// Of these queues. None: all that it has registered for.
    pub queues: Vec<String>,
    /// Of these runners. None: all that it has registered for.
    pub runner_ids: Vec<RunnerId>,
    /// Duration of the lease, in ms. The policy of the run has the maximum.
    pub lease_ms: Option<u64>,
    /// True if the run starts with the claim.
    pub start: bool,
}
