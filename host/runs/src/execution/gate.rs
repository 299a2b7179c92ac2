//! The gate: every host call of every run passes here, in this order.
//!
//! 1. Is the run active, not cancelled? 2. Is there time left? 3. Is the operation granted? 4. Is the resource
//!    granted? 5. Is the request small enough? 6. Is it not too often? Then the effect, and then the audit record.
//!
//! What an operation needs is said by its [`Call`]; steps 3 to 5 are its answers. There is no other way in.
//!
//! A call that was admitted and leaves its own trace in the record of the run ([`TRACED`]) has no audit record besides.
//!
//! Around all of it is the journal: a call that an execution before has answered is answered from there and comes no
//! further, and what comes of every other call is recorded, refusals too.

use std::{
    future::Future,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use agent_host_ledger::AuditRecord;
use agent_host_protocol::{ApiError, ErrorCode, Limits, hex, time};
use agent_host_providers::trace::Span;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{Execution, blocking, metrics, spans};
use crate::record::{
    journal::{Answered, Asked, Outcome, Step, Stop, Ticket},
    ledger_failed,
};

/// How often a run may call.
pub(crate) struct Rates {
    calls: DefaultDirectRateLimiter,
    /// Waiting for the next piece of a stream: slowed down, never refused.
    pieces: DefaultDirectRateLimiter,
    results: DefaultDirectRateLimiter,
}

impl Rates {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            calls: limiter(limits.host_calls_per_second, limits.host_calls_burst),
            // Half of it, so that a guest which answers each piece with one other call stays within its rate.
            pieces: limiter(limits.host_calls_per_second.div_ceil(2), limits.host_calls_burst.div_ceil(2)),
            results: limiter(limits.results_per_second, limits.results_burst),
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
    /// The request, as the journal keeps it.
    pub(crate) asked: Asked,
}

/// Where a call stands that the guest has made.
pub(crate) enum Entered<A> {
    /// An execution before has its answer.
    Answered(A),
    /// It is to be done.
    Live(Ticket),
}

/// A call with its answer.
type EnteredCall<T> = Entered<Result<T, ApiError>>;
/// A call with its answer and the number of its effect.
type EnteredEffect<T> = Entered<(Result<T, ApiError>, u64)>;

/// An answer that is longer becomes a blob beside the journal.
const MAX_INLINE_ANSWER: usize = 64 * 1024;

impl Execution {
    /// Lets a call through, or says why not. `allowed` answers for the grant, the resource and the size; it is
    /// asked after what concerns the run as a whole, and before the rate.
    ///
    /// For calls without an effect outside the ledger; the others [`RunState::enter`] first.
    pub(crate) async fn pass<T: Serialize + DeserializeOwned>(
        &self,
        call: Call<'_>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match self.enter(&call).await {
            Entered::Answered(outcome) => outcome,
            Entered::Live(ticket) => self.pass_live(&ticket, &call, allowed, effect).await,
        }
    }

    /// As [`RunState::pass`], for a call that no execution before has answered. An effect that writes to the ledger by
    /// itself settles the ticket with that write; where it does not, what came of it is settled here.
    pub(crate) async fn pass_live<T: Serialize>(
        &self,
        ticket: &Ticket,
        call: &Call<'_>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let admitted = self.admitted(allowed);
        // What leaves its own trace in the record is too small for one of these.
        let span = if TRACED.contains(&call.action) { Span::nothing() } else { spans::of_host_call(call.action) };
        let outcome = match admitted {
            Ok(()) => self.bounded(span.within(effect)).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(error) = &outcome {
            span.failed(metrics::outcome(Some(error)));
        }
        drop(span);
        self.passed(ticket, call, began.elapsed(), outcome).await
    }

    /// Whether a call may begin. Whoever asks by itself says with [`RunState::passed`] what came of the call.
    pub(crate) fn admitted(&self, allowed: impl FnOnce() -> Result<(), ApiError>) -> Result<(), ApiError> {
        self.is_active().and_then(|()| allowed()).and_then(|()| self.is_not_too_often())
    }

    /// As [`RunState::pass`], for the next piece of a stream that was granted when it was opened. A guest that reads a
    /// fast stream is made to wait and then gets more at once; to be refused in the middle would help nobody.
    pub(crate) async fn pass_piece<T: Serialize>(
        &self,
        ticket: &Ticket,
        call: &Call<'_>,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let outcome = match self.is_active() {
            Ok(()) => {
                self.bounded(async {
                    self.rates.pieces.until_ready().await;
                    effect.await
                })
                .await
            }
            Err(refusal) => Err(refusal),
        };
        self.passed(ticket, call, began.elapsed(), outcome).await
    }

    /// What came of a call that was let through, or not: it is counted, recorded and settled.
    pub(crate) async fn passed<T: Serialize>(
        &self,
        ticket: &Ticket,
        call: &Call<'_>,
        took: Duration,
        outcome: Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let error = outcome.as_ref().err();
        if let Some(metrics) = &self.metrics {
            metrics.called(call.action, error, took);
            if matches!(call.action, SEND | WASI) {
                metrics.egress(error);
            }
        }
        self.record(call, took, error);
        self.settle(ticket, &outcome).await?;
        self.writer.flush_if_full().await;
        outcome
    }

    /// The guest has called. Where its journal and it no longer agree, this does not return: the run ends.
    pub(crate) async fn enter<T: DeserializeOwned>(&self, call: &Call<'_>) -> EnteredCall<T> {
        match self.journal.enter(call.action, &call.asked) {
            Ok(Step::Live(ticket)) => self.live(ticket),
            Ok(Step::Answered(Answered { outcome, effect, .. })) => {
                self.open.note(effect.map_or(0, |effect| effect.number));
                Entered::Answered(self.answered(outcome).await)
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    fn live<A>(&self, ticket: Ticket) -> Entered<A> {
        self.open.note(ticket.doubt.map_or(0, |effect| effect.number));
        Entered::Live(ticket)
    }

    /// As [`RunState::enter`], for an effect that stays open after its call: an answer comes with its number.
    pub(crate) async fn enter_effect<T: DeserializeOwned>(&self, call: &Call<'_>) -> EnteredEffect<T> {
        match self.journal.enter(call.action, &call.asked) {
            Ok(Step::Live(ticket)) => self.live(ticket),
            Ok(Step::Answered(Answered { outcome, effect, .. })) => {
                let number = effect.map_or(0, |effect| effect.number);
                self.open.note(number);
                Entered::Answered((self.answered(outcome).await, number))
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    /// As [`RunState::enter`], for a call of `count` parts: each has its own answer.
    pub(crate) async fn enter_parts<T: DeserializeOwned>(
        &self,
        call: &Call<'_>,
        count: usize,
    ) -> EnteredCall<Vec<Result<T, ApiError>>> {
        let Answered { outcome, effect, mut parts } = match self.journal.enter(call.action, &call.asked) {
            Ok(Step::Live(ticket)) => return self.live(ticket),
            Ok(Step::Answered(answered)) => answered,
            Err(stop) => self.stop(stop).await,
        };
        self.open.note(effect.map_or(0, |effect| effect.number));
        if let Err(refusal) = self.answered::<()>(outcome).await {
            return Entered::Answered(Err(refusal));
        }
        let mut outcomes = Vec::with_capacity(count);
        for part in (1..).take(count) {
            let Some(outcome) = parts.remove(&part) else {
                self.stop(Stop::Lost(format!("the journal has no answer for part {part} of {}", call.action))).await
            };
            outcomes.push(self.answered(outcome).await);
        }
        Entered::Answered(Ok(outcomes))
    }

    /// An answer from the past.
    pub(crate) async fn answered<T: DeserializeOwned>(&self, outcome: Outcome) -> Result<T, ApiError> {
        let parsed = match outcome {
            Outcome::Answer(text) => serde_json::from_str(&text).map(Ok),
            Outcome::Refused(text) => serde_json::from_str(&text).map(Err),
            Outcome::LongAnswer { sha256 } => match self.long_answer(&sha256).await {
                Ok(bytes) => serde_json::from_slice(&bytes).map(Ok),
                Err(why) => self.stop(Stop::Lost(why)).await,
            },
        };
        match parsed {
            Ok(outcome) => outcome,
            Err(error) => self.stop(Stop::Lost(format!("an answer in the journal cannot be read: {error}"))).await,
        }
    }

    async fn long_answer(&self, sha256: &[u8; 32]) -> Result<Vec<u8>, String> {
        let name = hex::encode(sha256);
        let blob = self.ledger.blob(&name).map_err(|error| error.to_string())?;
        let blob = blob.ok_or_else(|| "a long answer is missing beside the journal".to_owned())?;
        blocking(move || blob.read_at(0, usize::MAX)).await.map_err(|error| error.message)
    }

    /// What came of a call is to be recorded, unless it is already.
    pub(crate) async fn settle<T: Serialize>(&self, ticket: &Ticket, outcome: &Result<T, ApiError>) -> Result<(), ApiError> {
        if self.journal.is_settled(ticket) {
            return Ok(());
        }
        if !self.journal.is_recording() {
            self.journal.settle(ticket, Outcome::Answer(String::new()), Vec::new());
            return Ok(());
        }
        let text = |json: Result<String, serde_json::Error>| json.map_err(|error| host_failed(&error));
        match outcome {
            Ok(answer) => {
                let text = text(serde_json::to_string(answer))?;
                if text.len() <= MAX_INLINE_ANSWER {
                    self.journal.settle(ticket, Outcome::Answer(text), Vec::new());
                    return Ok(());
                }
                let mut writer = self.ledger.blob_writer(text.len() as u64).map_err(ledger_failed)?;
                let written = blocking(move || {
                    writer.write(text.as_bytes())?;
                    writer.finish()
                });
                let blob = written.await?;
                let sha256 = blob.digest();
                self.journal.settle(ticket, Outcome::LongAnswer { sha256 }, vec![blob]);
            }
            Err(refusal) => {
                self.journal.settle(ticket, Outcome::Refused(text(serde_json::to_string(refusal))?), Vec::new());
            }
        }
        Ok(())
    }

    /// Takes `n` results off what the run may emit now.
    pub(crate) fn take_results(&self, n: usize) -> Result<(), ApiError> {
        let Some(n) = u32::try_from(n).ok().and_then(NonZeroU32::new) else { return Ok(()) };
        match self.rates.results.check_n(n) {
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
        self.rates
            .calls
            .check()
            .map_err(|_| too_often("host calls", self.limits.host_calls_per_second, self.limits.host_calls_burst))
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
        self.writer.audit(AuditRecord {
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

    /// Waits for the rate of host calls, for calls that have no way to refuse.
    pub(crate) async fn is_not_faster_than_allowed(&self) {
        self.rates.calls.until_ready().await;
    }
}

/// `results.emit`.
pub(crate) const EMIT: &str = "results.emit";
/// `models.response-stream.next`.
pub(crate) const NEXT: &str = "models.response-stream.next";
/// `http.response.read`.
pub(crate) const READ: &str = "http.response.read";
/// `http.send`.
pub(crate) const SEND: &str = "http.send";
/// A request of `wasi:http`, as audit and errors name it.
pub(crate) const WASI: &str = "wasi.http";
/// Calls that leave no audit record when they are admitted: what was emitted is in the ledger event by event, and a
/// streamed response has its `models.stream` and its `model.call.completed`, one of `http` its `http.send`.
const TRACED: [&str; 3] = [EMIT, NEXT, READ];

/// A resource is named by the guest, so what is kept of the name is bounded.
fn shortened(resource: &str) -> String {
    resource.chars().take(256).collect()
}

fn limiter(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let nonzero = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(nonzero(per_second)).allow_burst(nonzero(burst)))
}

fn host_failed(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "an answer could not be recorded");
    ApiError::new(ErrorCode::RuntimeError, "the host could not record the answer; its log says why")
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
