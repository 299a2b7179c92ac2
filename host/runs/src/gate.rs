//! The gate: every host call of every run passes here, in this order.
//!
//! 1. Is the run active, not cancelled? 2. Is there time left? 3. Is the operation granted? 4. Is the resource
//!    granted? 5. Is the request small enough? 6. Is it not too often? Then the effect, and then the audit record.
//!
//! What an operation needs is said by its [`Call`]; steps 3 to 5 are its answers. There is no other way in.
//!
//! A call that was admitted and leaves its own trace in the record of the run ([`TRACED`]) has no audit record besides.

use std::{
    future::Future,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_ledger::{AuditRecord, Commit, Ledger, RunWrite, StateWrite};
use agent_host_protocol::{ApiError, ErrorCode, Limits, RunId, time};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{error::ledger_failed, facts::OpenCalls, memory::Seen, terms::Terms};

/// What all that happens to one live run has in common.
pub(crate) struct RunState {
    pub(crate) run_id: RunId,
    pub(crate) run_no: u64,
    pub(crate) terms: Arc<Terms>,
    pub(crate) ledger: Ledger,
    pub(crate) limits: Arc<Limits>,
    /// Set when the end of the run was asked for and that is committed.
    pub(crate) cancelled: CancellationToken,
    /// When the guest must have returned.
    pub(crate) deadline: Instant,
    /// Sequence of the last event that was admitted.
    pub(crate) last_sequence: AtomicU64,
    /// Calls to models and tools that have begun.
    pub(crate) open: OpenCalls,
    /// State that the run knows.
    pub(crate) seen: Seen,
    /// Bytes of artifacts that the run has written.
    pub(crate) artifact_bytes: AtomicU64,
    /// Held while a sequence is taken and used.
    turn: tokio::sync::Mutex<()>,
    calls: DefaultDirectRateLimiter,
    /// Waiting for the next piece of something that streams: slowed down, never refused.
    pieces: DefaultDirectRateLimiter,
    results: DefaultDirectRateLimiter,
    /// Records that travel with the next write.
    audit: Mutex<Vec<AuditRecord>>,
}

/// Records that wait for a write to travel with; more go by themselves.
const MAX_AUDIT_WAITING: usize = 64;

/// A write that was admitted.
pub(crate) struct Written {
    /// Sequence of the last event of the run.
    pub(crate) last: u64,
    /// Nothing where it is durable already.
    commit: Option<Commit>,
}

impl Written {
    /// Waits until it is durable.
    pub(crate) async fn durable(self) -> Result<(), ApiError> {
        match self.commit {
            Some(commit) => commit.await.map(drop).map_err(ledger_failed),
            None => Ok(()),
        }
    }
}

/// One host call, as the gate sees it.
pub(crate) struct Call<'a> {
    /// `interface.function`.
    pub(crate) action: &'a str,
    /// Which thing it is about.
    pub(crate) resource: Option<&'a str>,
    /// In which scope.
    pub(crate) scope: Option<&'static str>,
    /// Bytes of the request.
    pub(crate) bytes: usize,
}

impl RunState {
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a run is made of, and none has a default")]
    pub(crate) fn new(
        run_id: RunId,
        run_no: u64,
        terms: Arc<Terms>,
        ledger: Ledger,
        limits: Arc<Limits>,
        cancelled: CancellationToken,
        deadline: Instant,
        last_sequence: u64,
    ) -> Self {
        Self {
            run_id,
            run_no,
            terms,
            ledger,
            cancelled,
            deadline,
            last_sequence: AtomicU64::new(last_sequence),
            open: OpenCalls::default(),
            seen: Seen::default(),
            artifact_bytes: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
            calls: limiter(limits.host_calls_per_second, limits.host_calls_burst),
            // Half of it, so that a guest which answers each piece with one other call stays within its rate.
            pieces: limiter(limits.host_calls_per_second.div_ceil(2), limits.host_calls_burst.div_ceil(2)),
            results: limiter(limits.results_per_second, limits.results_burst),
            audit: Mutex::default(),
            limits,
        }
    }

    /// Lets a call through, or says why not. `allowed` answers for the grant, the resource and the size; it is
    /// asked after what concerns the run as a whole, and before the rate.
    pub(crate) async fn pass<T>(
        &self,
        call: Call<'_>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let admitted = self.is_active().and_then(|()| allowed()).and_then(|()| self.is_not_too_often());
        let outcome = match admitted {
            Ok(()) => self.bounded(effect).await,
            Err(refusal) => Err(refusal),
        };
        self.record(&call, began.elapsed(), outcome.as_ref().err());
        self.flush_audit().await;
        outcome
    }

    /// As [`RunState::pass`], for the next piece of a stream that was granted when it was opened. A guest that reads a
    /// fast stream is made to wait and then gets more at once; to be refused in the middle would help nobody.
    pub(crate) async fn pass_piece<T>(
        &self,
        call: Call<'_>,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let outcome = match self.is_active() {
            Ok(()) => {
                self.bounded(async {
                    self.pieces.until_ready().await;
                    effect.await
                })
                .await
            }
            Err(refusal) => Err(refusal),
        };
        self.record(&call, began.elapsed(), outcome.as_ref().err());
        self.flush_audit().await;
        outcome
    }

    /// Writes to the record of the run: `make` is given the sequence of the first event.
    ///
    /// Only the ledger's writer can tell whether a quota of state is met. Where that is not out of the question, its
    /// answer is waited for; a refusal leaves nothing of the write.
    pub(crate) async fn write(&self, make: impl FnOnce(u64) -> Result<RunWrite, ApiError>) -> Result<Written, ApiError> {
        let _turn = self.turn.lock().await;
        let first = self.next_sequence();
        let write = RunWrite { run_no: self.run_no, ..make(first)? };
        let last = first + write.events.len() as u64 - 1;
        let in_doubt = self.may_meet_a_quota(&write.state)?;
        let write = RunWrite { audit: self.take_audit(), ..write };
        let commit = self.ledger.submit(write).await.map_err(ledger_failed)?;
        // Nothing is awaited between the admission and this line, so a guest that is dropped leaves no gap.
        self.last_sequence.store(last, Ordering::Release);
        if !in_doubt {
            return Ok(Written { last, commit: Some(commit) });
        }
        match commit.await {
            Ok(_) => Ok(Written { last, commit: None }),
            Err(error) => {
                // Others of this run wait for their turn, so nobody has counted on.
                self.last_sequence.store(first - 1, Ordering::Release);
                Err(ledger_failed(error))
            }
        }
    }

    /// Whether a write of state comes near a quota: half of it is more than what waits for its commit at any time.
    fn may_meet_a_quota(&self, state: &[StateWrite]) -> Result<bool, ApiError> {
        // All that is written together counts, whichever scope it goes to.
        let (mut bytes, mut keys) = (0, 0);
        for write in state {
            let (Some(quota), Some(value)) = (write.quota, &write.value) else { continue };
            let used = self.ledger.state_usage(&write.scope_key).map_err(ledger_failed)?;
            bytes += (write.key.len() + value.get().len()) as u64;
            keys += 1;
            if used.bytes + bytes > quota.max_bytes / 2 || used.keys + keys > quota.max_keys / 2 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes `n` results off what the run may emit now.
    pub(crate) fn take_results(&self, n: usize) -> Result<(), ApiError> {
        let Some(n) = u32::try_from(n).ok().and_then(NonZeroU32::new) else { return Ok(()) };
        match self.results.check_n(n) {
            Ok(Ok(())) => Ok(()),
            _ => Err(too_often("results", self.limits.results_per_second, self.limits.results_burst)),
        }
    }

    fn is_active(&self) -> Result<(), ApiError> {
        if self.cancelled.is_cancelled() {
            return Err(cancelled());
        }
        if Instant::now() >= self.deadline {
            return Err(past_deadline());
        }
        Ok(())
    }

    fn is_not_too_often(&self) -> Result<(), ApiError> {
        self.calls.check().map_err(|_| too_often("host calls", self.limits.host_calls_per_second, self.limits.host_calls_burst))
    }

    /// An effect under what time is left, and not longer than the run is wanted.
    async fn bounded<T>(&self, effect: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        tokio::select! {
            // An effect that is done counts, even if the end of the run was asked for in the same moment.
            biased;
            outcome = effect => outcome,
            () = self.cancelled.cancelled() => Err(cancelled()),
            () = tokio::time::sleep_until(self.deadline.into()) => Err(past_deadline()),
        }
    }

    fn record(&self, call: &Call<'_>, took: Duration, refusal: Option<&ApiError>) {
        if refusal.is_none() && TRACED.contains(&call.action) {
            return;
        }
        let grant = &self.terms.grant;
        self.audit.lock().push(AuditRecord {
            at: time::now(),
            run_id: Some(self.run_id),
            runner_id: Some(grant.runner_id.clone()),
            binding_id: Some(grant.binding_id.clone()),
            action: call.action.to_owned(),
            resource: call.resource.map(shortened),
            scope: call.scope.map(str::to_owned),
            outcome: refusal.map_or("ok", |refusal| refusal.code.as_str()).to_owned(),
            duration_us: u64::try_from(took.as_micros()).ok(),
            bytes: Some(call.bytes as u64),
            details: None,
        });
    }

    /// The records that wait; the caller writes them.
    pub(crate) fn take_audit(&self) -> Vec<AuditRecord> {
        std::mem::take(&mut *self.audit.lock())
    }

    /// Writes the records that wait if they are many.
    async fn flush_audit(&self) {
        let records = {
            let mut audit = self.audit.lock();
            if audit.len() < MAX_AUDIT_WAITING {
                return;
            }
            std::mem::take(&mut *audit)
        };
        if let Err(error) = self.ledger.audit(records).await {
            tracing::error!(run_id = %self.run_id, %error, "audit records could not be written");
        }
    }

    /// The sequence that the next event has.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.last_sequence.load(Ordering::Acquire) + 1
    }
}

/// `results.emit`.
pub(crate) const EMIT: &str = "results.emit";
/// `models.response-stream.next`.
pub(crate) const NEXT: &str = "models.response-stream.next";
/// Calls that leave no audit record when they are admitted: what was emitted is in the ledger event by event, and a
/// streamed response has its `models.stream` and its `model.call.completed`.
const TRACED: [&str; 2] = [EMIT, NEXT];

/// A resource is named by the guest, so what is kept of the name is bounded.
fn shortened(resource: &str) -> String {
    resource.chars().take(256).collect()
}

fn limiter(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let nonzero = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(nonzero(per_second)).allow_burst(nonzero(burst)))
}

fn cancelled() -> ApiError {
    ApiError::new(ErrorCode::Cancelled, "the run has been cancelled: clean up and return")
}

fn past_deadline() -> ApiError {
    ApiError::new(ErrorCode::DeadlineExceeded, "the deadline of the run has passed: return")
}

fn too_often(what: &str, per_second: u32, burst: u32) -> ApiError {
    ApiError {
        details: Some(json!({ "per_second": per_second, "burst": burst })),
        ..ApiError::retryable(
            ErrorCode::RateLimited,
            format!("a run has {per_second} {what} a second, {burst} at once: do less, or wait and try again"),
        )
    }
}
