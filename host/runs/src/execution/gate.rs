//! The gate: every host call of every run passes here, in this order.
//!
//! 1. Is the run active, not cancelled? 2. Is there time left? 3. Is the operation granted? 4. Is the resource
//!    granted? 5. Is the request small enough? 6. Is it not too often? Then the effect, and then the audit record.
//!
//! [`Execution::pass`] is the one way in. Steps 3 to 5 are `allowed`, a function of the call; the type of the [`Call`] says
//! what its effect may do (`call.rs`). The clock, which cannot be refused, is only slowed down ([`Execution::tick`]).
//!
//! Around all of it is the journal: a call that an earlier execution has answered is answered from there and comes no
//! further, and the outcome of every other call is recorded, refusals too.

use std::{
    borrow::Cow,
    future::Future,
    num::NonZeroU32,
    pin::{Pin, pin},
    time::{Duration, Instant},
};

use agent_host_ledger::AuditRecord;
use agent_host_protocol::{ApiError, ErrorCode, Limits, time};
use agent_host_providers::trace::Span;
use futures_util::future::{BoxFuture, Either};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde_json::json;

use super::{
    Execution,
    answer::Answer,
    call::{Call, EffectTicket, Kind, OutsideEffect, PassedCall, PastCall, Rate},
    metrics::{self, Metrics},
    refusals::RepeatedRefusal,
    spans,
};
use crate::record::{
    facts::Fact,
    journal::{CallId, Effect, Journal, Outcome, RecordedCall, RequestDigest, Step, Stop},
    ledger_failed,
};

/// The rates of the calls of one run.
pub(crate) struct Rates {
    calls: DefaultDirectRateLimiter,
    /// Pieces of streams: slowed down, never refused.
    pieces: DefaultDirectRateLimiter,
    /// Results: slowed down, never refused.
    results: DefaultDirectRateLimiter,
    /// Refusals: who is refused waits as long as who is not.
    refusals: DefaultDirectRateLimiter,
}

impl Rates {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            calls: limiter(limits.host_calls_per_second, limits.host_calls_burst),
            // As results: a runner passes on each piece as one.
            pieces: limiter(limits.results_per_second, limits.results_burst),
            results: limiter(limits.results_per_second, limits.results_burst),
            refusals: limiter(limits.host_calls_per_second, limits.host_calls_burst),
        }
    }
}

/// A call that an effect is made for, between its admission and its end.
pub(crate) struct AdmittedCall<'a, K> {
    run: &'a Execution,
    call: Call<'a, K>,
    open: OpenEntry<'a>,
    began: Instant,
    span: Span,
}

/// The open journal entry of a call. The entry is closed when the call is over, also if its caller goes away.
struct OpenEntry<'a> {
    journal: &'a Journal,
    id: CallId,
}

impl Drop for OpenEntry<'_> {
    fn drop(&mut self) {
        self.journal.close(self.id);
    }
}

/// A call after the first steps of the gate.
pub(crate) enum EnteredCall<'a, K: Kind, T> {
    /// An earlier execution has answered it, or it is refused. Rare: the future of a call has no room for it.
    Over(BoxFuture<'a, PassedCall<T>>),
    Admitted(AdmittedCall<'a, K>, K::Ticket),
}

impl Execution {
    /// Lets a call through, or refuses it. `allowed` answers for the grant, the resource and the size; it is asked after the
    /// checks of the run as a whole, and before the rate.
    ///
    /// The steps that wait for nobody are made before the future: it has room for the effect and the end of the call alone.
    pub(crate) fn pass<'a, K: Kind, T: Answer>(
        &'a self,
        mut call: Call<'a, K>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl AsyncFnOnce(K::Ticket) -> Result<T, ApiError>,
    ) -> impl Future<Output = PassedCall<T>> {
        let entered = match self.journal.enter(&call.action, std::mem::take(&mut call.digest)) {
            Ok(step) => self.enter(step, call, allowed),
            Err(stop) => EnteredCall::Over(Box::pin(self.stop(stop))),
        };
        entered.carry_out(effect)
    }

    /// As [`Execution::pass`], for one of the calls within a call.
    pub(crate) fn pass_part<'a, T: Answer>(
        &'a self,
        (within, part): (&EffectTicket, u32),
        mut call: Call<'a, OutsideEffect>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl AsyncFnOnce(EffectTicket) -> Result<T, ApiError>,
    ) -> impl Future<Output = PassedCall<T>> {
        let step = self.journal.enter_part(within.inner(), part, &call.action, std::mem::take(&mut call.digest));
        self.enter(step, call, allowed).carry_out(effect)
    }

    /// The first half of [`Execution::pass_part`], for effects that several parts wait for together: [`AdmittedCall::end`]
    /// is the second.
    pub(crate) fn enter_part<'a, T: Answer>(
        &'a self,
        within: &EffectTicket,
        part: u32,
        mut call: Call<'a, OutsideEffect>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
    ) -> EnteredCall<'a, OutsideEffect, T> {
        let step = self.journal.enter_part(within.inner(), part, &call.action, std::mem::take(&mut call.digest));
        self.enter(step, call, allowed)
    }

    /// The outcomes of the parts of a call that an earlier execution has made.
    pub(crate) async fn part_outcomes<T: Answer>(&self, past: PastCall, action: &str, count: usize) -> Vec<Result<T, ApiError>> {
        let PastCall { mut parts, .. } = past;
        let mut outcomes = Vec::with_capacity(count);
        for part in (1..).take(count) {
            let Some(outcome) = parts.remove(&part) else {
                self.stop(Stop::Lost(format!("the journal has no answer for part {part} of {action}"))).await
            };
            outcomes.push(T::recall(self, outcome).await);
        }
        outcomes
    }

    /// The calls within this one whose outcome is in doubt.
    pub(crate) fn doubts(&self, within: &EffectTicket) -> Vec<(u32, Effect)> {
        self.journal.doubts(within.inner())
    }

    fn enter<'a, K: Kind, T: Answer>(
        &'a self,
        step: Step,
        call: Call<'a, K>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
    ) -> EnteredCall<'a, K, T> {
        let ticket = match step {
            Step::Live(ticket) => ticket,
            Step::Answered(answered) => return EnteredCall::Over(Box::pin(self.recall(answered))),
        };
        self.open.note(ticket.doubt.map_or(0, |effect| effect.number));
        let open = OpenEntry { journal: &self.journal, id: ticket.call() };
        // A call that leaves its own trace in the record is too small for a span.
        let span = if TRACED.contains(&&*call.action) { Span::nothing() } else { spans::of_host_call(&call.action) };
        let rate = call.rate;
        let admitted = AdmittedCall { run: self, call, open, began: Instant::now(), span };
        match self.is_active(&admitted.call.action).and_then(|()| allowed()).and_then(|()| self.take_call(rate)) {
            Ok(()) => EnteredCall::Admitted(admitted, K::ticket(ticket)),
            Err(refusal) => EnteredCall::Over(Box::pin(admitted.refuse(refusal))),
        }
    }

    async fn recall<T: Answer>(&self, answered: RecordedCall) -> PassedCall<T> {
        let RecordedCall { outcome, effect, parts } = answered;
        let number = effect.map_or(0, |effect| effect.number);
        self.open.note(number);
        PassedCall { outcome: T::recall(self, outcome).await, past: Some(PastCall { number, parts }) }
    }

    /// Takes the counts of refusals that repeat others: into the audit, and as facts of the run.
    pub(crate) fn take_refusals(&self) -> Vec<Fact> {
        let counts = self.refusals.take_counts().into_iter().filter_map(|RepeatedRefusal { kind, count, fact }| {
            // The audit has each call of an executor.
            if self.is_external() {
                return fact;
            }
            self.writer.audit(AuditRecord {
                resource: kind.resource,
                outcome: kind.code.as_str().to_owned().into(),
                details: Some(json!({ "count": count })),
                ..self.audit_record(kind.function.into())
            });
            fact
        });
        counts.collect()
    }

    /// An audit record of what the run does, at this time.
    fn audit_record(&self, action: Cow<'static, str>) -> AuditRecord {
        let grant = &self.terms.grant;
        AuditRecord {
            at: time::now(),
            run_id: Some(self.run_id),
            runner_id: Some(grant.runner_id.clone()),
            binding_id: Some(grant.binding_id.clone()),
            action,
            resource: None,
            scope: None,
            outcome: Cow::Borrowed("ok"),
            duration_us: None,
            bytes: None,
            details: None,
        }
    }

    /// A call of the clock. The contract has no refusal for it, so the rate limit delays the call. The call leaves no audit
    /// record.
    pub(crate) async fn tick(&self, action: &str, digest: RequestDigest, effect: impl Future<Output = ()>) {
        let ticket = match self.journal.enter(action, digest) {
            Ok(Step::Live(ticket)) => ticket,
            Ok(Step::Answered(_)) => return,
            Err(stop) => self.stop(stop).await,
        };
        let _open = OpenEntry { journal: &self.journal, id: ticket.call() };
        self.rates.calls.until_ready().await;
        effect.await;
        self.journal.settle(ticket, Outcome::Answer("null".to_owned()), Vec::new());
        self.writer.flush_if_full().await;
    }

    /// False for results of an executor: it can append them until its claim ends, `queue.cancel_grace_ms` after a cancel.
    fn stops_on_cancel(&self, action: &str) -> bool {
        !(action == EMIT && self.is_external())
    }

    fn is_active(&self, action: &str) -> Result<(), ApiError> {
        if self.cancelled.is_cancelled() && self.stops_on_cancel(action) {
            return Err(cancelled());
        }
        if self.deadline.is_past() {
            return Err(past_deadline());
        }
        // In a cluster, no effect begins when another host may have taken over.
        self.ledger.check_lease().map_err(ledger_failed)
    }

    fn take_call(&self, rate: Rate) -> Result<(), ApiError> {
        if rate != Rate::Calls {
            return Ok(());
        }
        let (per_second, burst) = (self.limits.host_calls_per_second, self.limits.host_calls_burst);
        self.rates.calls.check().map_err(|_| too_often("host calls", per_second, burst))
    }

    /// An effect, as long as there is time left and the run is not cancelled.
    async fn bounded<T>(&self, action: &str, effect: Pin<&mut impl Future<Output = Result<T, ApiError>>>) -> Result<T, ApiError> {
        tokio::select! {
            // An effect that is done counts, even if the end of the run was asked for in the same moment.
            biased;
            outcome = effect => outcome,
            () = self.cancelled.cancelled(), if self.stops_on_cancel(action) => Err(cancelled()),
            () = self.deadline.passed() => Err(past_deadline()),
        }
    }
}

impl<'a, K: Kind, T: Answer> EnteredCall<'a, K, T> {
    /// Carries out an effect that was admitted, within its rate and the time of the run, and ends the call.
    fn carry_out(self, effect: impl AsyncFnOnce(K::Ticket) -> Result<T, ApiError>) -> impl Future<Output = PassedCall<T>> {
        let (admitted, ticket) = match self {
            Self::Over(over) => return Either::Left(over),
            Self::Admitted(admitted, ticket) => (admitted, ticket),
        };
        Either::Right(async move {
            let run = admitted.run;
            let outcome = {
                // In one place: a future that is passed on is stored again by each that it is passed to.
                let mut effect = pin!(admitted.span.within(effect(ticket)));
                let paced = pin!(async {
                    match admitted.call.rate {
                        Rate::Calls => {}
                        Rate::Pieces => run.rates.pieces.until_ready().await,
                        Rate::Results(count) => take_all(&run.rates.results, count, run.limits.results_burst).await,
                    }
                    effect.as_mut().await
                });
                run.bounded(&admitted.call.action, paced).await
            };
            PassedCall { outcome: admitted.end(outcome).await, past: None }
        })
    }
}

impl<'a, K: Kind> AdmittedCall<'a, K> {
    /// Ends a call that is not let through. The first refusal of its kind is a fact of the run, and in the audit; others of a
    /// guest are counted there. A guest that does nothing but ask for what it does not get is slowed down.
    async fn refuse<T: Answer>(self, refusal: ApiError) -> PassedCall<T> {
        let (run, call) = (self.run, &self.call);
        let resource = call.resource.map(shortened);
        let first = run.refusals.note(&call.action, resource.as_deref(), &refusal, &run.limits);
        if let Some(fact) = first.as_ref().and_then(|first| first.fact.as_ref())
            && let Err(error) = run.writer.record_fact(fact).await
        {
            tracing::error!(run_id = %run.run_id, error = error.message, "a refused call could not be recorded");
        }
        tokio::select! {
            biased;
            () = run.rates.refusals.until_ready() => {}
            () = run.cancelled.cancelled() => {}
            () = run.deadline.passed() => {}
        }
        let is_audited = first.is_some() || run.is_external();
        PassedCall { outcome: self.end_audited(Err(refusal), is_audited).await, past: None }
    }

    /// Ends the call: its span, its metric and its audit record are made of one observation, and its outcome is recorded,
    /// unless its effect has done that.
    ///
    /// A guest's refusal that repeats no other, and any call of an executor, is in the audit on disk before its caller gets the answer.
    /// The audit record of a guest's successful call follows with the next write, at the latest after `AUDIT_DELAY`.
    pub(crate) fn end<T: Answer>(self, outcome: Result<T, ApiError>) -> impl Future<Output = Result<T, ApiError>> + Send {
        self.end_audited(outcome, true)
    }

    fn end_audited<T: Answer>(
        self,
        outcome: Result<T, ApiError>,
        is_audited: bool,
    ) -> impl Future<Output = Result<T, ApiError>> + Send {
        let Self { run, call, open, began, span } = self;
        let observed = Observation { call: &call, took: began.elapsed(), error: outcome.as_ref().err() };
        observed.end_span(span);
        if let Some(metrics) = &run.metrics {
            observed.count(metrics);
        }
        let audit = observed.audit(run).filter(|_| is_audited);
        let is_durable_first = audit.is_some() && (outcome.is_err() || run.is_external());
        if let Some(record) = audit {
            run.writer.audit(record);
        }
        async move {
            // All of it: it closes the entry when the call is over, and not before its outcome is recorded.
            let open = open;
            if !run.journal.is_settled(open.id) {
                let (recorded, blobs) = run.recorded(&outcome).await?;
                run.journal.settle_open(open.id, recorded, blobs);
            }
            if !is_durable_first {
                run.writer.flush_if_full().await;
                return outcome;
            }
            match (&outcome, run.writer.flush().await) {
                (Ok(_), Err(unwritten)) => return Err(unwritten),
                (_, Ok(())) => {}
                (Err(_), Err(error)) => {
                    tracing::error!(run_id = %run.run_id, %error, "the audit record of a refused call could not be written");
                }
            }
            outcome
        }
    }
}

/// A finished call, as the gate saw it.
struct Observation<'a, K> {
    call: &'a Call<'a, K>,
    took: Duration,
    error: Option<&'a ApiError>,
}

impl<K> Observation<'_, K> {
    fn end_span(&self, span: Span) {
        if let Some(error) = self.error {
            span.failed(metrics::outcome(Some(error)));
        }
    }

    fn count(&self, metrics: &Metrics) {
        metrics.called(&self.call.action, self.error, self.took);
        if matches!(&*self.call.action, SEND | WASI) {
            metrics.egress(self.error);
        }
    }

    /// `None` for a call that leaves its own trace in the record of the run.
    fn audit(&self, run: &Execution) -> Option<AuditRecord> {
        let Call { action, resource, scope, bytes, .. } = self.call;
        if self.error.is_none() && TRACED.contains(&&**action) {
            return None;
        }
        Some(AuditRecord {
            resource: resource.map(shortened),
            scope: scope.map(Cow::Borrowed),
            outcome: self.error.map_or(Cow::Borrowed("ok"), |refusal| refusal.code.as_str().to_owned().into()),
            duration_us: u64::try_from(self.took.as_micros()).ok(),
            bytes: Some(*bytes as u64),
            ..run.audit_record(action.clone())
        })
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
    match resource.char_indices().nth(256) {
        Some((end, _)) => resource[..end].to_owned(),
        None => resource.to_owned(),
    }
}

fn limiter(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let nonzero = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(nonzero(per_second)).allow_burst(nonzero(burst)))
}

/// Waits until so many are within the rate. More than fit into a burst are taken in parts.
async fn take_all(limiter: &DefaultDirectRateLimiter, count: usize, burst: u32) {
    let mut left = u32::try_from(count).unwrap_or(u32::MAX);
    while let Some(part) = NonZeroU32::new(left.min(burst.max(1))) {
        // A part is no larger than the burst, so it is within the capacity.
        let _ = limiter.until_n_ready(part).await;
        left -= part.get();
    }
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
