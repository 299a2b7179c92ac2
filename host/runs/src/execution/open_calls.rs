//! Open calls: calls to models, tools and people that have begun. Each has an end in the record, whatever becomes of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use agent_host_ledger::{NewEvent, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, ResultKind, RunId,
    manifest::ModelOperation,
    message::{TokenUsage, ToolCall},
    result::host_data,
    time,
    tool::ToolOutput,
};
use agent_host_providers::{models::Model, trace::Span};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::{
    Execution,
    metrics::{self, Metrics},
    spans,
};
use crate::record::{
    action::{Ask, action_id},
    facts::{end, failure, object, shortened, text, tool_failure, unfinished, usage_or_unknown},
    journal::{Effect, Ticket},
};

/// Numbers of background actions: apart from those of calls.
const BACKGROUND: u64 = 1 << 63;

/// Calls that have begun and not ended.
#[derive(Default)]
pub(crate) struct OpenCalls(Mutex<Calls>, Arc<AtomicUsize>);

/// A response that streams: as long as it lives, the run stays in memory.
pub(crate) struct Streaming(Arc<AtomicUsize>);

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Calls {
    last: u64,
    background: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    kind: ResultKind,
    /// What names the call: it begins every fact about it.
    named: Map<String, Value>,
    began: Instant,
    /// When nobody waited for it any more.
    left: Option<Instant>,
    /// It waits for people, and outlives the execution.
    asks: bool,
}

impl OpenCalls {
    /// An execution before has given this number.
    pub(crate) fn note(&self, number: u64) {
        let mut calls = self.0.lock();
        calls.last = calls.last.max(number);
    }

    /// One more response that streams, where there are fewer than `most`.
    pub(crate) fn streaming(&self, most: usize) -> Option<Streaming> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        self.1.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Streaming(Arc::clone(&self.1)))
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

    /// Whether something has begun that would be lost with the execution.
    pub(crate) fn any(&self) -> bool {
        self.1.load(Ordering::Acquire) > 0 || self.0.lock().open.values().any(|open| open.left.is_none() && !open.asks)
    }

    /// The ends of calls that nobody waited for until they came: the run was cancelled, was too late, or did not care.
    pub(crate) fn take(&self) -> Vec<(ResultKind, Value)> {
        let open = std::mem::take(&mut self.0.lock().open);
        open.into_values()
            .map(|call| {
                let took = call.left.unwrap_or_else(Instant::now).saturating_duration_since(call.began);
                let why = ApiError::new(ErrorCode::Cancelled, "the run ended, or let go of the call, before it was done");
                (call.kind, end(call.named, took, object(unfinished(call.kind, &why))))
            })
            .collect()
    }
}

/// What every fact about a call begins with.
#[derive(Clone)]
struct Named {
    /// The fact of its end.
    kind: ResultKind,
    /// The field that its number stands in, and how.
    id: Option<(&'static str, IdForm)>,
    named: Map<String, Value>,
}

/// How a number becomes an id.
#[derive(Clone, Copy)]
enum IdForm {
    /// Of a call to a model.
    Model,
    /// Of something that this run asks people for.
    Action(RunId),
}

impl IdForm {
    fn id(self, number: u64) -> String {
        match self {
            Self::Model => format!("c{number}"),
            Self::Action(run_id) => action_id(run_id, number),
        }
    }
}

impl Named {
    fn model(model_id: &str, operation: ModelOperation) -> Self {
        Self {
            kind: ResultKind::ModelCallCompleted,
            id: Some(("model_call_id", IdForm::Model)),
            named: object(json!({ "model_id": model_id, "operation": operation })),
        }
    }

    fn numbered(self, number: u64) -> Map<String, Value> {
        let mut named = self.named;
        if let Some((field, form)) = self.id {
            named.insert(field.to_owned(), form.id(number).into());
        }
        named
    }
}

/// A call that has begun. Where it is dropped without an end, the end of the run writes it.
pub(crate) struct OpenCall {
    run: Arc<Execution>,
    number: u64,
    watched: Watched,
}

/// What is counted and traced of a call.
struct Watched {
    /// Nothing where it is over, or where it is counted elsewhere.
    what: Option<What>,
    metrics: Option<Metrics>,
    span: Span,
    began: Instant,
}

enum What {
    Model(String, ModelOperation),
    Tool(String),
}

impl Watched {
    fn new(run: &Execution, what: What, span: Span) -> Self {
        Self { what: Some(what), metrics: run.metrics.clone(), span, began: Instant::now() }
    }

    fn nothing() -> Self {
        Self { what: None, metrics: None, span: Span::nothing(), began: Instant::now() }
    }

    /// The call is over.
    fn over(&mut self, error: Option<&ApiError>, usage: Option<&TokenUsage>) {
        self.over_as(metrics::outcome(error), error.map(ApiError::category), usage);
    }

    fn over_as(&mut self, outcome: &str, failure: Option<&str>, usage: Option<&TokenUsage>) {
        let Some(what) = self.what.take() else { return };
        if let Some(failure) = failure {
            self.span.failed(failure);
        }
        let Some(metrics) = &self.metrics else { return };
        match what {
            What::Model(model, operation) => {
                metrics.model(&model, operation.as_str(), outcome, self.began.elapsed());
                if let Some(usage) = usage {
                    metrics.tokens(&model, usage);
                }
            }
            What::Tool(tool) => metrics.tool(&tool, outcome, self.began.elapsed()),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.over_as("cancelled", Some("cancelled"), None);
    }
}

impl OpenCall {
    /// A model is about to be called.
    pub(crate) async fn model(
        run: &Arc<Execution>,
        ticket: &Ticket,
        model: &Model,
        operation: ModelOperation,
    ) -> Result<Self, ApiError> {
        let begun =
            Self::new(run, ticket, ResultKind::ModelCallStarted, &Named::model(model.id(), operation), Value::Null).await?;
        Ok(begun.watched(What::Model(model.id().to_owned(), operation), spans::of_model(model, operation)))
    }

    fn watched(mut self, what: What, span: Span) -> Self {
        self.watched = Watched::new(&self.run, what, span);
        self
    }

    /// What is traced of it.
    pub(crate) fn span(&self) -> &Span {
        &self.watched.span
    }

    /// An execution before has called a model, and that call has no end in the record yet.
    pub(crate) fn model_before(run: &Arc<Execution>, number: u64, model_id: &str, operation: ModelOperation) -> Self {
        let what = What::Model(model_id.to_owned(), operation);
        Self::open(run, number, Named::model(model_id, operation)).watched(what, Span::nothing())
    }

    /// A tool is about to be called.
    pub(crate) async fn tool(run: &Arc<Execution>, ticket: &Ticket, call: &ToolCall) -> Result<Self, ApiError> {
        let named = Named {
            kind: ResultKind::ToolCallCompleted,
            id: None,
            named: object(json!({ "tool_call_id": call.call_id, "tool_name": call.tool_name })),
        };
        let bytes = call.parameters.to_string().len();
        // What does not fit an event is not cut in the middle of its meaning.
        let more = if bytes <= run.limits.result_bytes / 2 {
            json!({ "parameters": call.parameters })
        } else {
            json!({ "parameters_bytes": bytes })
        };
        let begun = Self::new(run, ticket, ResultKind::ToolCallStarted, &named, more).await?;
        Ok(begun.watched(What::Tool(call.tool_name.clone()), spans::of_tool(call)))
    }

    /// People are about to be asked, or a platform action to be done. Its id is `asks::action_id` of its number.
    pub(crate) async fn action(run: &Arc<Execution>, ticket: &Ticket, ask: Ask) -> Result<Self, ApiError> {
        let id = Some(("action_id", IdForm::Action(run.run_id)));
        let named = Named { kind: ResultKind::ActionResolved, id, named: Map::new() };
        let begun = Self::new(run, ticket, ResultKind::ActionRequested, &named, ask.data()).await?;
        begun.asks(true);
        Ok(begun)
    }

    /// A request to the outside is about to be made. It is no fact of the record: what is recorded of it is its audit.
    pub(crate) async fn request(run: &Arc<Execution>, ticket: &Ticket) -> Result<u64, ApiError> {
        if let Some(Effect { number }) = ticket.doubt {
            return Ok(number);
        }
        let number = run.open.next();
        let write = |_| {
            run.journal.started(ticket, Effect { number });
            Ok(RunWrite::default())
        };
        let written = run.writer.append(Some(ticket), write).await?;
        if run.journal.is_recording() {
            written.durable().await?;
        }
        Ok(number)
    }

    /// A background action, as the record has it.
    pub(crate) fn background(run: &Arc<Execution>, action_id: &str) -> Self {
        let named = object(json!({ "action_id": action_id }));
        // Not among the numbers of calls: those are the same in every execution.
        let number = BACKGROUND | run.open.next_background();
        let begun = Self::open(run, number, Named { kind: ResultKind::ActionResolved, id: None, named });
        begun.asks(true);
        begun
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it waits for people now, and outlives the execution.
    pub(crate) fn asks(&self, asks: bool) {
        if let Some(open) = self.run.open.0.lock().open.get_mut(&self.number) {
            open.asks = asks;
        }
    }

    /// The fact and the entry of the journal are durable when this returns: only then may the effect begin. Where an
    /// execution before has written both, the call goes on under its number.
    async fn new(
        run: &Arc<Execution>,
        ticket: &Ticket,
        started: ResultKind,
        named: &Named,
        more: Value,
    ) -> Result<Self, ApiError> {
        if let Some(Effect { number }) = ticket.doubt {
            return Ok(Self::open(run, number, named.clone()));
        }
        let number = run.open.next();
        let data = named.clone().numbered(number).into_iter().chain(object(more)).collect();
        let (data, at) = (host_data(&Value::Object(data)), time::now());
        let write = |sequence| {
            run.journal.started(ticket, Effect { number });
            let event = NewEvent { sequence, kind: started.as_str().to_owned(), data, timestamp: at };
            Ok(RunWrite { events: vec![event], ..RunWrite::default() })
        };
        let written = run.writer.append(Some(ticket), write).await?;
        // What a person is asked, or a platform is to do, is on disk before anybody hears of it, journal or not.
        if run.journal.is_recording() || started == ResultKind::ActionRequested {
            written.durable().await?;
        }
        Ok(Self::open(run, number, named.clone()))
    }

    fn open(run: &Arc<Execution>, number: u64, named: Named) -> Self {
        let open = Open { kind: named.kind, named: named.numbered(number), began: Instant::now(), left: None, asks: false };
        let mut calls = run.open.0.lock();
        if number & BACKGROUND == 0 {
            calls.last = calls.last.max(number);
        }
        calls.open.insert(number, open);
        drop(calls);
        Self { run: Arc::clone(run), number, watched: Watched::nothing() }
    }

    /// An execution before has written the end of this call, and counted it.
    pub(crate) fn ended_before(mut self) {
        self.watched = Watched::nothing();
        self.run.open.0.lock().open.remove(&self.number);
    }

    /// The call has ended; `more` is what came of it.
    async fn end(self, more: Value) {
        let Some(call) = self.run.open.0.lock().open.remove(&self.number) else { return };
        let data = end(call.named, call.began.elapsed(), object(more));
        // The call is done: that its end could not be written must not take the answer from the guest. The ledger that
        // cannot write fails the run by itself.
        if let Err(error) = self.run.writer.record_fact(call.kind, &data).await {
            tracing::error!(run_id = %self.run.run_id, %error, "the end of a call could not be recorded");
        }
    }

    /// What came of an action: `executed` with what the platform answered, or `failed`.
    pub(crate) async fn acted(self, outcome: Result<&Value, &ApiError>) {
        let room = self.run.limits.result_bytes / 2;
        self.end(match outcome {
            Ok(value) if value.to_string().len() <= room => json!({ "outcome": "executed", "result": value }),
            Ok(_) => json!({ "outcome": "executed" }),
            Err(error) => json!({ "outcome": "failed", "error": failure(error) }),
        })
        .await;
    }

    /// A chat model has answered, or not.
    pub(crate) async fn answered(mut self, outcome: Result<(&str, Option<&TokenUsage>), &ApiError>) {
        let (reason, usage) = outcome.map_or((None, None), |(reason, usage)| (Some(reason), usage));
        spans::answered(self.span(), reason, usage);
        self.watched.over(outcome.err(), usage);
        self.end(match outcome {
            Ok((finish_reason, usage)) => json!({ "finish_reason": finish_reason, "usage": usage_or_unknown(usage) }),
            Err(error) => json!({ "error": failure(error) }),
        })
        .await;
    }

    /// A model of another kind has answered, or not.
    pub(crate) async fn used(mut self, outcome: Result<Option<&TokenUsage>, &ApiError>) {
        let usage = outcome.ok().flatten();
        spans::answered(self.span(), None, usage);
        self.watched.over(outcome.err(), usage);
        self.end(match outcome {
            Ok(usage) => json!({ "usage": usage_or_unknown(usage) }),
            Err(error) => json!({ "error": failure(error) }),
        })
        .await;
    }

    /// A tool has answered, or not. What it reports as its own failure is a failure here.
    pub(crate) async fn executed(mut self, outcome: Result<&ToolOutput, &ApiError>) {
        match outcome {
            Ok(output) => {
                spans::executed(self.span(), output);
                let (word, failure) = if output.is_error { ("tool_error", Some("tool_error")) } else { ("ok", None) };
                self.watched.over_as(word, failure, None);
            }
            Err(error) => self.watched.over(Some(error), None),
        }
        let room = self.run.limits.result_bytes / 2;
        self.end(match outcome {
            Ok(output) if output.is_error => {
                json!({ "error": shortened(&text(output), room), "category": "tool_error" })
            }
            Ok(output) => match serde_json::to_value(&output.content) {
                Ok(content) if content.to_string().len() <= room => json!({ "result": content }),
                _ => json!({ "result": shortened(&text(output), room) }),
            },
            Err(error) => tool_failure(error),
        })
        .await;
    }

    /// A tool says how far it is.
    pub(crate) fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) -> Option<Value> {
        let calls = self.run.open.0.lock();
        let mut data = calls.open.get(&self.number)?.named.clone();
        data.insert("progress".to_owned(), json!(progress));
        if let Some(total) = total {
            data.insert("total".to_owned(), json!(total));
        }
        if let Some(message) = message {
            data.insert("message".to_owned(), shortened(message, 1024).into());
        }
        Some(Value::Object(data))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut calls = self.run.open.0.lock();
        let Some(call) = calls.open.get_mut(&self.number) else { return };
        call.left = Some(Instant::now());
        drop(calls);
        // A run that is executed outside goes on when somebody has gone away from one of its calls. Where it ends itself, its
        // end says so.
        let ends =
            self.run.family.released.is_cancelled() || self.run.cancelled.is_cancelled() || Instant::now() >= self.run.deadline;
        if self.run.is_external()
            && !ends
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (run, number) = (Arc::clone(&self.run), self.number);
            let tasks = run.family.background.clone();
            tasks.spawn_on(async move { withdraw(&run, number).await }, &runtime);
        }
    }
}

/// Writes the end of a call that nobody waits for any more.
async fn withdraw(run: &Execution, number: u64) {
    // An answer may be on its way into the record.
    if let Ok(written) = run.writer.append(None, |_| Ok(RunWrite::default())).await {
        let _ = written.durable().await;
    }
    let Some(call) = run.open.0.lock().open.remove(&number) else { return };
    if let Some(id) = call.named.get("action_id").and_then(Value::as_str) {
        run.waits.mail.refuse(id);
        if run.action(id).is_ok_and(|action| action.is_some_and(|action| action.resolved.is_some())) {
            return;
        }
    }
    let took = call.left.unwrap_or_else(Instant::now).saturating_duration_since(call.began);
    let why = ApiError::new(ErrorCode::Cancelled, "who asked for it went away before it was done");
    let data = end(call.named, took, object(unfinished(call.kind, &why)));
    if let Err(error) = run.writer.record_fact(call.kind, &data).await {
        tracing::warn!(run_id = %run.run_id, %error, "the end of a call that nobody waits for could not be recorded");
    }
}
