//! Open calls: calls to models, tools and people that have begun. Each has an end in the record, whatever becomes of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use agent_host_facts::record::{ActionRequest, ModelCallStart, ToolCallProgress};
use agent_host_ledger::RunWrite;
use agent_host_protocol::{
    ApiError, ErrorCode,
    manifest::ModelOperation,
    message::{TokenUsage, ToolCall},
    run::ModelUsage,
    time,
};
use agent_host_providers::{
    models::{AskedModel, CallBounds, Model, ModelPrice, Retries},
    trace::Span,
};
use parking_lot::Mutex;

use super::{
    Execution,
    call::EffectTicket,
    metrics::{self, Metrics},
    spans,
};
use crate::record::{
    action::{Ask, action_id},
    facts::{CallOutcome, CallSubject, Fact, OutputSize, ToolCallName, events, shortened, tool_call_started},
    journal::Effect,
};

/// Numbers of background actions: apart from those of calls.
const BACKGROUND: u64 = 1 << 63;
/// Longest message of a report of progress.
const MAX_PROGRESS_BYTES: usize = 1024;

/// Calls that have begun and not ended.
#[derive(Default)]
pub(crate) struct OpenCalls(Mutex<Calls>, Arc<AtomicUsize>);

/// A response that streams: as long as it lives, the run stays in memory.
pub(crate) struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Calls {
    last: u64,
    background: u64,
    open: BTreeMap<u64, OpenGuard>,
}

struct OpenGuard {
    subject: CallSubject,
    began: Instant,
    /// The instant at which the last caller went away.
    left: Option<Instant>,
    /// True while the call waits for people and so outlives the execution.
    asks: bool,
}

impl OpenGuard {
    /// The end of a call that nobody waits for.
    fn unfinished(self, why: &ApiError) -> Fact {
        let took = self.left.unwrap_or_else(Instant::now).saturating_duration_since(self.began);
        self.subject.end(took, CallOutcome::Unfinished(why), 0)
    }
}

impl OpenCalls {
    /// An execution before has given this number.
    pub(crate) fn note(&self, number: u64) {
        let mut calls = self.0.lock();
        calls.last = calls.last.max(number);
    }

    /// Counts another streaming response; `None` if there are `most` already.
    pub(crate) fn streaming(&self, most: usize) -> Option<OpenStream> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        self.1.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(OpenStream(Arc::clone(&self.1)))
    }

    /// Numbers of each attempt are apart from those of the others.
    pub(crate) fn of_attempt(attempt: u32) -> Self {
        let calls = Calls { last: u64::from(attempt.saturating_sub(1)) << 40, ..Calls::default() };
        Self(Mutex::new(calls), Arc::default())
    }

    /// The number of the next call.
    fn next(&self) -> u64 {
        let mut calls = self.0.lock();
        calls.last += 1;
        calls.last
    }

    fn next_background(&self) -> u64 {
        let mut calls = self.0.lock();
        calls.background += 1;
        calls.background
    }

    /// True if a call is open that would be lost with the execution.
    pub(crate) fn any(&self) -> bool {
        self.1.load(Ordering::Acquire) > 0 || self.0.lock().open.values().any(|open| open.left.is_none() && !open.asks)
    }

    /// The ends of calls that are open when the run ends: the run was cancelled, was too late, or did not wait.
    pub(crate) fn take(&self) -> Vec<Fact> {
        let open = std::mem::take(&mut self.0.lock().open);
        if open.is_empty() {
            return Vec::new();
        }
        let why = ApiError::new(ErrorCode::Cancelled, "the run ended, or dropped the call, before it was done");
        open.into_values().map(|call| call.unfinished(&why)).collect()
    }
}

/// A call that has begun. If an `OpenCall` is dropped without an end, the end of the run writes one.
pub(crate) struct OpenCall {
    run: Arc<Execution>,
    number: u64,
    observer: Observer,
    /// Requests to the provider that were sent again.
    retries: Retries,
    /// The size of the output of the tool, once it is known.
    output: Mutex<Option<OutputSize>>,
}

/// The observer of one call: its metric and its span end with the outcome that its fact is made of.
struct Observer {
    /// `None` where the call is over, or is not counted.
    subject: Option<ObservedSubject>,
    metrics: Option<Metrics>,
    span: Span,
    began: Instant,
}

enum ObservedSubject {
    Model(String, ModelOperation, Option<ModelPrice>),
    Tool(String),
}

impl Observer {
    fn new(run: &Execution, subject: ObservedSubject, span: Span) -> Self {
        Self { subject: Some(subject), metrics: run.metrics.clone(), span, began: Instant::now() }
    }

    fn none() -> Self {
        Self { subject: None, metrics: None, span: Span::nothing(), began: Instant::now() }
    }

    /// Another model of the fallback chain was asked: what it used is its own.
    fn asked(&mut self, asked: &AskedModel) {
        if let Some(ObservedSubject::Model(model, _, price)) = &mut self.subject {
            (*model, *price) = (asked.model_id.clone(), asked.price);
        }
    }

    /// The call is over. Returns the use of its model.
    fn observe(&mut self, outcome: CallOutcome<'_>) -> Option<ModelUsage> {
        let price = match &self.subject {
            Some(ObservedSubject::Model(_, _, price)) => Some(*price),
            _ => None,
        };
        let (error, usage) = match outcome {
            CallOutcome::Chat(outcome) => {
                let (reason, usage) = outcome.map_or((None, None), |(reason, usage)| (Some(reason), usage));
                spans::answered(&self.span, reason, usage);
                (outcome.err(), usage)
            }
            CallOutcome::Model(outcome) => {
                let usage = outcome.ok().flatten();
                spans::answered(&self.span, None, usage);
                (outcome.err(), usage)
            }
            CallOutcome::Tool(Ok(output)) => {
                spans::executed(&self.span, output);
                if output.is_error {
                    self.end("tool_error", Some("tool_error"), None);
                    return None;
                }
                (None, None)
            }
            CallOutcome::Tool(Err(error)) | CallOutcome::Unfinished(error) => (Some(error), None),
            CallOutcome::Action(outcome) => (outcome.err(), None),
        };
        self.end(metrics::outcome(error), error.map(ApiError::category), usage);
        let mut used = ModelUsage::default();
        used.count(usage, price?.and_then(|price| Some(price.cost_micros(usage?))));
        Some(used)
    }

    fn end(&mut self, outcome: &str, failure: Option<&str>, usage: Option<&TokenUsage>) {
        let Some(subject) = self.subject.take() else { return };
        if let Some(failure) = failure {
            self.span.failed(failure);
        }
        let Some(metrics) = &self.metrics else { return };
        match subject {
            ObservedSubject::Model(model, operation, _) => {
                metrics.model(&model, operation.as_str(), outcome, self.began.elapsed());
                if let Some(usage) = usage {
                    metrics.tokens(&model, usage);
                }
            }
            ObservedSubject::Tool(tool) => metrics.tool(&tool, outcome, self.began.elapsed()),
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end("cancelled", Some("cancelled"), None);
    }
}

impl OpenCall {
    /// Starts a call to a model.
    pub(crate) async fn model(
        run: &Arc<Execution>,
        ticket: &EffectTicket,
        model: &Model,
        operation: ModelOperation,
    ) -> Result<Self, ApiError> {
        let model_id = model.id().to_owned();
        let subject = |number| CallSubject::Model(model_call(number, &model_id, operation));
        let started = |number| vec![Fact::ModelCallStarted(model_call(number, &model_id, operation))];
        let open = Self::start(run, ticket, subject, started).await?;
        Ok(open.observed(ObservedSubject::Model(model_id.clone(), operation, model.price()), spans::of_model(model, operation)))
    }

    /// A call to a model that an earlier execution has started, and that has no end in the record yet.
    pub(crate) fn model_before(
        run: &Arc<Execution>,
        number: u64,
        model_id: &str,
        operation: ModelOperation,
        price: Option<ModelPrice>,
    ) -> Self {
        let subject = ObservedSubject::Model(model_id.to_owned(), operation, price);
        Self::open(run, number, CallSubject::Model(model_call(number, model_id, operation))).observed(subject, Span::nothing())
    }

    /// Starts a call of a tool.
    pub(crate) async fn tool(run: &Arc<Execution>, ticket: &EffectTicket, call: &ToolCall) -> Result<Self, ApiError> {
        let name = ToolCallName { tool_call_id: call.call_id.clone(), tool_name: call.tool_name.clone() };
        let facts = tool_call_started(&name, &call.parameters, run.limits.result_bytes / 2);
        // Long parameters are many events, which a guest could write without end.
        if facts.len() > 1 && ticket.doubt().is_none() {
            run.has_room(facts.len())?;
        }
        let started = |_| facts;
        let open = Self::start(run, ticket, |_| CallSubject::Tool(name.clone()), started).await?;
        Ok(open.observed(ObservedSubject::Tool(call.tool_name.clone()), spans::of_tool(call)))
    }

    /// Asks people, or starts a platform action. The id of the action is `action_id` of the call's number.
    pub(crate) async fn action(run: &Arc<Execution>, ticket: &EffectTicket, ask: Ask) -> Result<Self, ApiError> {
        let id = |number| action_id(run.run_id, number);
        let ask = run.in_time(ask);
        let requested = |number| vec![Fact::ActionRequested(ActionRequest { action_id: Some(id(number)), request: ask })];
        let open = Self::start(run, ticket, |number| CallSubject::Action { action_id: id(number) }, requested).await?;
        open.asks(true);
        Ok(open)
    }

    /// Starts an HTTP request. HTTP requests are no facts; their audit records describe them.
    pub(crate) async fn request(run: &Arc<Execution>, ticket: &EffectTicket) -> Result<u64, ApiError> {
        if let Some(Effect { number }) = ticket.doubt() {
            return Ok(number);
        }
        let number = run.open.next();
        let written = run.writer.start(ticket.inner(), Effect { number }, |_| RunWrite::default()).await?;
        if run.journal.is_recording() {
            written.durable().await?;
        }
        Ok(number)
    }

    /// A background action that the record already has.
    pub(crate) fn background(run: &Arc<Execution>, action_id: &str) -> Self {
        // A range apart from the numbers of calls, which are the same in every execution.
        let number = BACKGROUND | run.open.next_background();
        let open = Self::open(run, number, CallSubject::Action { action_id: action_id.to_owned() });
        open.asks(true);
        open
    }

    /// Writes the facts and the journal entry. All are durable when this function returns, so the effect may begin. If an
    /// earlier execution wrote them, the call continues under its number.
    async fn start(
        run: &Arc<Execution>,
        ticket: &EffectTicket,
        subject: impl FnOnce(u64) -> CallSubject,
        started: impl FnOnce(u64) -> Vec<Fact>,
    ) -> Result<Self, ApiError> {
        if let Some(Effect { number }) = ticket.doubt() {
            return Ok(Self::open(run, number, subject(number)));
        }
        let number = run.open.next();
        let (facts, at) = (started(number), time::now());
        // A request to people, or to a platform, is on disk before anybody hears of it, journal or not.
        let is_action = facts.iter().any(|fact| matches!(fact, Fact::ActionRequested(_)));
        let write = |sequence| RunWrite { events: events(&facts, sequence, at), ..RunWrite::default() };
        let written = run.writer.start(ticket.inner(), Effect { number }, write).await?;
        if run.journal.is_recording() || is_action {
            written.durable().await?;
        }
        Ok(Self::open(run, number, subject(number)))
    }

    fn open(run: &Arc<Execution>, number: u64, subject: CallSubject) -> Self {
        let open = OpenGuard { subject, began: Instant::now(), left: None, asks: false };
        let mut calls = run.open.0.lock();
        if number & BACKGROUND == 0 {
            calls.last = calls.last.max(number);
        }
        calls.open.insert(number, open);
        drop(calls);
        Self { run: Arc::clone(run), number, observer: Observer::none(), retries: Retries::default(), output: Mutex::default() }
    }

    fn observed(mut self, subject: ObservedSubject, span: Span) -> Self {
        self.observer = Observer::new(&self.run, subject, span);
        self
    }

    pub(crate) fn span(&self) -> &Span {
        &self.observer.span
    }

    /// The bounds of the call of a model; its record lists the requests that are sent again.
    pub(crate) fn bounds(&self) -> CallBounds<'_> {
        CallBounds::new(self.run.deadline.at(), &self.retries)
    }

    /// Notes the size of the output of a tool.
    pub(crate) fn note_output(&self, size: OutputSize) {
        *self.output.lock() = Some(size);
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sets whether the call waits for people and so outlives the execution.
    pub(crate) fn asks(&self, asks: bool) {
        if let Some(open) = self.run.open.0.lock().open.get_mut(&self.number) {
            open.asks = asks;
        }
    }

    /// An earlier execution has written the end of this call, and counted it.
    pub(crate) fn ended_before(mut self) {
        self.observer = Observer::none();
        self.run.open.0.lock().open.remove(&self.number);
    }

    /// The call has ended: metric, span and fact are made of its outcome.
    pub(crate) async fn end(mut self, outcome: CallOutcome<'_>) {
        let (asked, fallbacks) = self.retries.take_models();
        let answered_by = asked.map(|asked| {
            self.observer.asked(&asked);
            asked.model_id
        });
        let used = self.observer.observe(outcome);
        let Some(call) = self.run.open.0.lock().open.remove(&self.number) else { return };
        let fact = call.subject.end(call.began.elapsed(), outcome, self.run.limits.result_bytes / 2);
        let fact = fact
            .with_cost(used.and_then(|used| used.cost_micros), self.retries.take())
            .with_output(*self.output.lock())
            .with_fallbacks(answered_by, fallbacks);
        let reached = used.and_then(|used| self.run.budget.spend(&used)).map(Fact::LimitReached);
        // The call is done: that its end could not be written must not take the answer from the guest. The ledger that
        // cannot write fails the run by itself.
        for fact in [Some(fact), reached].into_iter().flatten() {
            if let Err(error) = self.run.writer.record_fact(&fact).await {
                tracing::error!(run_id = %self.run.run_id, %error, "the end of a call could not be recorded");
            }
        }
    }

    /// A report of a tool that works; `None` where the call is over.
    pub(crate) fn progress(&self, progress: f64, total: Option<f64>, message: Option<String>) -> Option<Fact> {
        let calls = self.run.open.0.lock();
        let CallSubject::Tool(call) = &calls.open.get(&self.number)?.subject else { return None };
        let message = message.map(|message| shortened(&message, MAX_PROGRESS_BYTES));
        let ToolCallName { tool_call_id, tool_name } = call.clone();
        let (progress, total) = (progress.into(), total.map(Into::into));
        Some(Fact::ToolCallProgress(ToolCallProgress { message, progress, tool_call_id, tool_name, total }))
    }
}

fn model_call(number: u64, model_id: &str, operation: ModelOperation) -> ModelCallStart {
    ModelCallStart { model_call_id: format!("c{number}"), model_id: model_id.to_owned(), operation: Some(operation) }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut calls = self.run.open.0.lock();
        let Some(call) = calls.open.get_mut(&self.number) else { return };
        call.left = Some(Instant::now());
        drop(calls);
        // An external run continues after a caller has gone away. If the run ends itself, its end closes the call.
        let ends = self.run.family.is_released() || self.run.cancelled.is_cancelled() || self.run.deadline.is_past();
        if self.run.is_external()
            && !ends
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (run, number) = (Arc::clone(&self.run), self.number);
            let tasks = run.family.tasks().background.clone();
            tasks.spawn_on(async move { withdraw(&run, number).await }, &runtime);
        }
    }
}

/// Writes the end of a call that nobody waits for any more.
async fn withdraw(run: &Execution, number: u64) {
    // An answer may be on its way into the record.
    if let Ok(written) = run.writer.append(|_| Ok(RunWrite::default())).await {
        let _ = written.durable().await;
    }
    let Some(call) = run.open.0.lock().open.remove(&number) else { return };
    if let CallSubject::Action { action_id } = &call.subject {
        run.waits.mail.refuse(action_id);
        if run.action(action_id).is_ok_and(|action| action.is_some_and(|action| action.resolved.is_some())) {
            return;
        }
    }
    let why = ApiError::new(ErrorCode::Cancelled, "the caller disconnected before it was done");
    if let Err(error) = run.writer.record_fact(&call.unfinished(&why)).await {
        tracing::warn!(run_id = %run.run_id, %error, "the end of an abandoned call could not be recorded");
    }
}
