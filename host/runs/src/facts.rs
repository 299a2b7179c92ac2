//! Facts about calls to models and tools: each that begins has an end in the record, whatever becomes of it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_ledger::{NewEvent, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, ResultKind, RunEvent, Timestamp,
    manifest::ModelOperation,
    message::{TokenUsage, ToolCall},
    result::host_data,
    time,
    tool::ToolOutput,
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::{
    gate::RunState,
    journal::{Effect, Ticket},
};

/// Calls that have begun and not ended.
#[derive(Default)]
pub(crate) struct OpenCalls(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    last: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    kind: ResultKind,
    /// What names the call: it begins every fact about it.
    named: Map<String, Value>,
    began: Instant,
    /// When nobody waited for it any more.
    left: Option<Instant>,
}

impl OpenCalls {
    /// An execution before has given this number.
    pub(crate) fn note(&self, number: u64) {
        let mut calls = self.0.lock();
        calls.last = calls.last.max(number);
    }

    /// Whether a call has begun and not ended.
    pub(crate) fn any(&self) -> bool {
        self.0.lock().open.values().any(|open| open.left.is_none())
    }

    /// The ends of calls that nobody waited for until they came: the run was cancelled, was too late, or did not care.
    pub(crate) fn take(&self) -> Vec<(ResultKind, Value)> {
        let open = std::mem::take(&mut self.0.lock().open);
        open.into_values()
            .map(|call| {
                let took = call.left.unwrap_or_else(Instant::now).saturating_duration_since(call.began);
                let why = ApiError::new(ErrorCode::Cancelled, "the run ended, or let go of the call, before it was done");
                let failed = if call.kind == ResultKind::ToolCallCompleted {
                    tool_failure(&why)
                } else {
                    json!({ "error": failure(&why) })
                };
                (call.kind, end(call.named, took, object(failed)))
            })
            .collect()
    }
}

/// What every fact about a call begins with.
#[derive(Clone)]
struct Named {
    /// The fact of its end.
    kind: ResultKind,
    /// The field that its number stands in.
    id: Option<&'static str>,
    named: Map<String, Value>,
}

impl Named {
    fn model(model_id: &str, operation: ModelOperation) -> Self {
        Self {
            kind: ResultKind::ModelCallCompleted,
            id: Some("model_call_id"),
            named: object(json!({ "model_id": model_id, "operation": operation })),
        }
    }

    fn numbered(self, number: u64) -> Map<String, Value> {
        let mut named = self.named;
        if let Some(id) = self.id {
            named.insert(id.to_owned(), format!("c{number}").into());
        }
        named
    }
}

/// A call that has begun. Where it is dropped without an end, the end of the run writes it.
pub(crate) struct Begun {
    run: Arc<RunState>,
    number: u64,
}

impl Begun {
    /// A model is about to be called.
    pub(crate) async fn model(
        run: &Arc<RunState>,
        ticket: &Ticket,
        model_id: &str,
        operation: ModelOperation,
    ) -> Result<Self, ApiError> {
        Self::new(run, ticket, ResultKind::ModelCallStarted, &Named::model(model_id, operation), Value::Null).await
    }

    /// An execution before has called a model, and that call has no end in the record yet.
    pub(crate) fn model_before(run: &Arc<RunState>, number: u64, model_id: &str, operation: ModelOperation) -> Self {
        Self::open(run, number, Named::model(model_id, operation))
    }

    /// A tool is about to be called.
    pub(crate) async fn tool(run: &Arc<RunState>, ticket: &Ticket, call: &ToolCall) -> Result<Self, ApiError> {
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
        Self::new(run, ticket, ResultKind::ToolCallStarted, &named, more).await
    }

    /// The fact and the entry of the journal are durable when this returns: only then may the effect begin. Where an
    /// execution before has written both, the call goes on under its number.
    async fn new(
        run: &Arc<RunState>,
        ticket: &Ticket,
        started: ResultKind,
        named: &Named,
        more: Value,
    ) -> Result<Self, ApiError> {
        if let Some(Effect { number }) = ticket.doubt {
            return Ok(Self::open(run, number, named.clone()));
        }
        let number = {
            let mut calls = run.open.0.lock();
            calls.last += 1;
            calls.last
        };
        let data = named.clone().numbered(number).into_iter().chain(object(more)).collect();
        let (data, at) = (host_data(&Value::Object(data)), time::now());
        let write = |sequence| {
            run.journal.started(ticket, Effect { number });
            let event = NewEvent { sequence, kind: started.as_str().to_owned(), data, timestamp: at };
            Ok(RunWrite { events: vec![event], ..RunWrite::default() })
        };
        let written = run.write(Some(ticket), write).await?;
        if run.journal.is_recording() {
            written.durable().await?;
        }
        Ok(Self::open(run, number, named.clone()))
    }

    fn open(run: &Arc<RunState>, number: u64, named: Named) -> Self {
        let open = Open { kind: named.kind, named: named.numbered(number), began: Instant::now(), left: None };
        let mut calls = run.open.0.lock();
        calls.last = calls.last.max(number);
        calls.open.insert(number, open);
        drop(calls);
        Self { run: Arc::clone(run), number }
    }

    /// An execution before has written the end of this call.
    pub(crate) fn ended_before(self) {
        self.run.open.0.lock().open.remove(&self.number);
    }

    /// The call has ended; `more` is what came of it.
    async fn end(self, more: Value) {
        let Some(call) = self.run.open.0.lock().open.remove(&self.number) else { return };
        let data = end(call.named, call.began.elapsed(), object(more));
        // The call is done: that its end could not be written must not take the answer from the guest. The ledger that
        // cannot write fails the run by itself.
        if let Err(error) = self.run.record_fact(call.kind, &data).await {
            tracing::error!(run_id = %self.run.run_id, %error, "the end of a call could not be recorded");
        }
    }

    /// A chat model has answered, or not.
    pub(crate) async fn answered(self, outcome: Result<(&str, Option<&TokenUsage>), &ApiError>) {
        self.end(match outcome {
            Ok((finish_reason, usage)) => json!({ "finish_reason": finish_reason, "usage": usage_or_unknown(usage) }),
            Err(error) => json!({ "error": failure(error) }),
        })
        .await;
    }

    /// A model of another kind has answered, or not.
    pub(crate) async fn used(self, outcome: Result<Option<&TokenUsage>, &ApiError>) {
        self.end(match outcome {
            Ok(usage) => json!({ "usage": usage_or_unknown(usage) }),
            Err(error) => json!({ "error": failure(error) }),
        })
        .await;
    }

    /// A tool has answered, or not. What it reports as its own failure is a failure here.
    pub(crate) async fn executed(self, outcome: Result<&ToolOutput, &ApiError>) {
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

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(call) = self.run.open.0.lock().open.get_mut(&self.number) {
            call.left = Some(Instant::now());
        }
    }
}

/// The ends of calls that have begun in these events and not ended, for a run whose guest is not in memory: nobody waits
/// for them any more.
pub(crate) fn unended(events: &[RunEvent], at: Timestamp) -> Vec<(ResultKind, Value)> {
    let why = ApiError::new(ErrorCode::Cancelled, "the host stopped before the call was done, and nobody waits for it any more");
    let mut open: Vec<(ResultKind, String, Timestamp, Map<String, Value>)> = Vec::new();
    for event in events {
        let (ends, field) = match ResultKind::from_name(&event.kind) {
            Some(ResultKind::ModelCallStarted | ResultKind::ModelCallCompleted) => {
                (ResultKind::ModelCallCompleted, "model_call_id")
            }
            Some(ResultKind::ToolCallStarted | ResultKind::ToolCallCompleted) => (ResultKind::ToolCallCompleted, "tool_call_id"),
            _ => continue,
        };
        let mut data = object(serde_json::from_str(event.data.get()).unwrap_or_default());
        let id = data.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        if event.kind == ends.as_str() {
            open.retain(|(kind, open, ..)| (*kind, open) != (ends, &id));
        } else {
            data.retain(|name, _| {
                matches!(name.as_str(), "model_call_id" | "model_id" | "operation" | "tool_call_id" | "tool_name")
            });
            open.push((ends, id, event.timestamp, data));
        }
    }
    let ended = |(kind, _, began, named): (ResultKind, String, Timestamp, Map<String, Value>)| {
        let failed = if kind == ResultKind::ToolCallCompleted { tool_failure(&why) } else { json!({ "error": failure(&why) }) };
        (kind, end(named, Duration::from_millis(at.saturating_sub(began)), object(failed)))
    };
    open.into_iter().map(ended).collect()
}

impl RunState {
    /// Adds a fact to the record of the run.
    pub(crate) async fn record_fact(&self, kind: ResultKind, data: &Value) -> Result<(), ApiError> {
        let event =
            |sequence| NewEvent { sequence, kind: kind.as_str().to_owned(), data: host_data(data), timestamp: time::now() };
        let write = |sequence| Ok(RunWrite { events: vec![event(sequence)], ..RunWrite::default() });
        self.write(None, write).await.map(drop)
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn end(mut named: Map<String, Value>, took: Duration, more: Map<String, Value>) -> Value {
    named.insert("duration_ms".to_owned(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into());
    named.extend(more);
    Value::Object(named)
}

fn usage_or_unknown(usage: Option<&TokenUsage>) -> Value {
    usage.and_then(|usage| serde_json::to_value(usage).ok()).unwrap_or_else(|| "unknown".into())
}

/// What is said of an error: its category is the provider's, where it has one.
fn failure(error: &ApiError) -> Value {
    let category = error.details.as_ref().and_then(|details| details.get("code")).cloned();
    json!({ "code": error.code, "category": category.unwrap_or_else(|| error.code.as_str().into()), "message": error.message })
}

/// Likewise of a tool: `error` is a text there, as it is for a tool that a runner executes by itself.
fn tool_failure(error: &ApiError) -> Value {
    let category = failure(error).get("category").cloned().unwrap_or_default();
    json!({ "error": error.message, "code": error.code, "category": category })
}

fn text(output: &ToolOutput) -> String {
    use agent_host_protocol::message::ContentPart;
    output.content.iter().filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// The beginning of a text, in bytes, cut between characters.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}… [cut]", text.get(..end).unwrap_or_default())
}
