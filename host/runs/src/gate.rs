//! The gate: every host call of every run passes here, in this order.
//!
//! 1. Is the run active, not cancelled? 2. Is there time left? 3. Is the operation granted? 4. Is the resource
//!    granted? 5. Is the request small enough? 6. Is it not too often? Then the effect, and then the audit record.
//!
//! What an operation needs is said by its [`Call`]; steps 3 to 5 are its answers. There is no other way in.

use std::{
    future::Future,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_ledger::{AuditRecord, Ledger};
use agent_host_protocol::{ApiError, ErrorCode, Limits, RunId, time};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::terms::Terms;

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
    calls: DefaultDirectRateLimiter,
    results: DefaultDirectRateLimiter,
    /// Records that travel with the next write.
    audit: Mutex<Vec<AuditRecord>>,
}

/// Records that wait for a write to travel with; more go by themselves.
const MAX_AUDIT_WAITING: usize = 64;

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
            calls: limiter(limits.host_calls_per_second, limits.host_calls_burst),
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
        outcome
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
        // An emit that was admitted is itself in the ledger, event by event.
        if refusal.is_none() && call.action == EMIT {
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
    pub(crate) async fn flush_audit(&self) {
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

/// The one call that leaves no audit record when it is admitted.
pub(crate) const EMIT: &str = "results.emit";

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
