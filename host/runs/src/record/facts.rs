//! Facts: the events that the host adds to the record of a run, one type each.
//!
//! The fields of a fact are the `data` of its event, in the order of their names.

use std::time::Duration;

use agent_host_ledger::NewEvent;
use agent_host_protocol::{
    ApiError, ErrorCode, EventId, EventSource, ResultKind, RunEvent, RunId, RunStatus, Timestamp,
    encoded::{JsonText, json_len},
    manifest::ModelOperation,
    message::{ContentPart, TokenUsage},
    run::ModelUsage,
    tool::ToolOutput,
};
use agent_host_providers::models::Retry;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::action::{Ask, Decision};

/// An event of the record that the host adds.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum Fact {
    ModelCallStarted(ModelCall),
    ModelCallCompleted(ModelCallEnd),
    ToolCallStarted(ToolCallStart),
    ToolCallArguments(ToolCallArguments),
    ToolCallProgress(ToolCallProgress),
    ToolCallCompleted(ToolCallEnd),
    ActionRequested(ActionRequest),
    ActionAnswered(ActionAnswer),
    ActionResolved(ActionEnd),
    SteeringReceived(SteeringReceipt),
    ConversationBranched(BranchStart),
    ChildStarted(ChildStart),
    ChildEnded(ChildEnd),
    PermissionDenied(PermissionDenial),
    LimitReached(Limit),
    SandboxViolation(Violation),
    RunStatus(StatusChange),
}

/// A call to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelCall {
    pub(crate) model_call_id: String,
    pub(crate) model_id: String,
    pub(crate) operation: ModelOperation,
}

/// The end of a call to a model.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ModelCallEnd {
    /// Cost in millionths of the currency of the price, where the model has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_micros: Option<u64>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<String>,
    #[serde(flatten)]
    call: ModelCall,
    /// Requests that failed and were sent again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    retries: Vec<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

/// The tokens of a call.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Usage {
    Known(TokenUsage),
    /// `"unknown"`: the provider does not say.
    Unknown(&'static str),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolCallName {
    pub(crate) tool_call_id: String,
    pub(crate) tool_name: String,
}

/// The start of a call of a tool.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolCallStart {
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
    /// In place of parameters that do not fit an event: pieces of them follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters_bytes: Option<usize>,
    #[serde(flatten)]
    call: ToolCallName,
}

/// A piece of the parameters of a call, as JSON text.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolCallArguments {
    delta: String,
    /// True for the last piece.
    last: bool,
    #[serde(flatten)]
    call: ToolCallName,
}

/// A report of a tool that works.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolCallProgress {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    pub(crate) progress: f64,
    #[serde(flatten)]
    pub(crate) call: ToolCallName,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<f64>,
}

/// The end of a call of a tool.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolCallEnd {
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<ErrorCode>,
    duration_ms: u64,
    /// A text, as it is of a tool that a runner executes itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Bytes of the whole output, wherever it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(flatten)]
    call: ToolCallName,
    /// True if `result` or `error` is not the whole output.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// The output of a tool, before long parts of it became artifacts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutputSize {
    pub(crate) bytes: u64,
    /// True if the guest gets an artifact in place of some of it.
    pub(crate) is_cut: bool,
}

/// A request to people.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionRequest {
    pub(crate) action_id: String,
    #[serde(flatten)]
    pub(crate) ask: Ask,
}

/// The answer of a person.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionAnswer {
    pub(crate) action_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Value>,
    pub(crate) at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    pub(crate) decision: Decision,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// A person, or the client whose tool was called.
    #[serde(skip)]
    pub(crate) source: EventSource,
}

/// The outcome of a request to people.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ActionEnd {
    pub(crate) action_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<Decision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
    pub(crate) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Value>,
}

/// Input that the run has taken while it was active.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SteeringReceipt {
    pub(crate) event_id: EventId,
    /// The run that would have answered the event.
    pub(crate) run_id: RunId,
}

/// A branch of the conversation that begins with the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BranchStart {
    /// The first event that has left the conversation.
    pub(crate) from_event_id: EventId,
    /// The message of the client that was asked again or changed, by its id.
    pub(crate) message_id: String,
    pub(crate) reason: BranchReason,
}

/// The reason why a conversation has a new branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchReason {
    /// A client asks for another answer to the same message.
    Regenerate,
    /// A client has changed a message, or put another one in its place.
    Edit,
}

/// A run that the run has started.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ChildStart {
    pub(crate) objective: String,
    pub(crate) run_id: RunId,
    pub(crate) runner_id: String,
}

/// The end of a run that the run has started.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ChildEnd {
    pub(crate) run_id: RunId,
    pub(crate) status: RunStatus,
    /// Use of models by the child and its descendants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<ModelUsage>,
}

/// A host call that the grant of the run does not allow.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PermissionDenial {
    pub(crate) code: String,
    /// Further refusals of this kind; none at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    pub(crate) function: String,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resource: Option<String>,
}

/// A limit that was met.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Limit {
    /// Further times at which it was met; none at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<&'static str>,
    pub(crate) limit: &'static str,
    pub(crate) value: u64,
}

/// A rule of the sandbox that the guest broke.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Violation {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// A change of the status of the run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StatusChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forked_from: Option<Value>,
    pub(crate) reason: String,
    /// The number of this resumption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumes: Option<u32>,
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
}

/// An error in a fact.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    /// The provider's code of the error, where it has one.
    category: Value,
    code: ErrorCode,
    message: String,
}

impl From<&ApiError> for Failure {
    fn from(error: &ApiError) -> Self {
        let category = error.details.as_ref().and_then(|details| details.get("code")).cloned();
        Self {
            category: category.unwrap_or_else(|| error.code.as_str().into()),
            code: error.code.clone(),
            message: error.message.clone(),
        }
    }
}

impl StatusChange {
    pub(crate) fn running(reason: impl Into<String>) -> Self {
        Self { status: "running", reason: reason.into(), ..Self::default() }
    }

    pub(crate) fn waiting(reason: impl Into<String>, until: Option<Timestamp>) -> Self {
        Self { status: "waiting", reason: reason.into(), until, ..Self::default() }
    }
}

/// Bytes of one piece of parameters. As a JSON string a piece takes at most twice as many: parameters are JSON, without control
/// characters.
const ARGUMENT_PIECE_BYTES: usize = 8 * 1024;

/// The facts of a call of a tool that begins. Parameters of more than `room` bytes follow their first event in pieces, in the
/// same commit.
pub(crate) fn tool_call_started(call: &ToolCallName, parameters: &Value, room: usize) -> Vec<Fact> {
    let bytes = json_len(parameters);
    if bytes <= room {
        let parameters = Some(parameters.clone());
        return vec![Fact::ToolCallStarted(ToolCallStart { parameters, parameters_bytes: None, call: call.clone() })];
    }
    let start = ToolCallStart { parameters: None, parameters_bytes: Some(bytes), call: call.clone() };
    let mut facts = vec![Fact::ToolCallStarted(start)];
    let text = parameters.to_string();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(ARGUMENT_PIECE_BYTES));
        let piece = ToolCallArguments { delta: piece.to_owned(), last: after.is_empty(), call: call.clone() };
        facts.push(Fact::ToolCallArguments(piece));
        rest = after;
    }
    facts
}

impl Fact {
    pub(crate) const fn kind(&self) -> ResultKind {
        match self {
            Self::ModelCallStarted(_) => ResultKind::ModelCallStarted,
            Self::ModelCallCompleted(_) => ResultKind::ModelCallCompleted,
            Self::ToolCallStarted(_) => ResultKind::ToolCallStarted,
            Self::ToolCallArguments(_) => ResultKind::ToolCallArguments,
            Self::ToolCallProgress(_) => ResultKind::ToolCallProgress,
            Self::ToolCallCompleted(_) => ResultKind::ToolCallCompleted,
            Self::ActionRequested(_) => ResultKind::ActionRequested,
            Self::ActionAnswered(_) => ResultKind::ActionAnswered,
            Self::ActionResolved(_) => ResultKind::ActionResolved,
            Self::SteeringReceived(_) => ResultKind::SteeringReceived,
            Self::ConversationBranched(_) => ResultKind::ConversationBranched,
            Self::ChildStarted(_) => ResultKind::ChildStarted,
            Self::ChildEnded(_) => ResultKind::ChildEnded,
            Self::PermissionDenied(_) => ResultKind::PermissionDenied,
            Self::LimitReached(_) => ResultKind::LimitReached,
            Self::SandboxViolation(_) => ResultKind::SandboxViolation,
            Self::RunStatus(_) => ResultKind::RunStatus,
        }
    }

    /// The `data` of its event.
    pub(crate) fn data(&self) -> JsonText {
        JsonText::of(self).unwrap_or_else(|_| JsonText::from(RawValue::NULL.to_owned()))
    }

    pub(crate) fn event(&self, sequence: u64, at: Timestamp) -> NewEvent {
        NewEvent { source: self.source(), ..host_event(self.kind(), self.data(), sequence, at) }
    }

    fn source(&self) -> EventSource {
        match self {
            Self::ActionAnswered(answer) => answer.source,
            _ => EventSource::Host,
        }
    }

    /// The kind and the id of the call that it ends; `None` for other facts.
    pub(crate) fn ended_call(&self) -> Option<(ResultKind, &str)> {
        let id = match self {
            Self::ModelCallCompleted(end) => &end.call.model_call_id,
            Self::ToolCallCompleted(end) => &end.call.tool_call_id,
            Self::ActionResolved(end) => &end.action_id,
            _ => return None,
        };
        Some((self.kind(), id))
    }
}

/// An event that the host writes.
pub(crate) fn host_event(kind: ResultKind, data: JsonText, sequence: u64, timestamp: Timestamp) -> NewEvent {
    NewEvent { sequence, kind: kind.as_str().into(), data, timestamp, source: EventSource::Host, metadata: None }
}

/// Facts as the events from `first` on.
pub(crate) fn events<'a>(facts: impl IntoIterator<Item = &'a Fact>, first: u64, at: Timestamp) -> Vec<NewEvent> {
    (first..).zip(facts).map(|(sequence, fact)| fact.event(sequence, at)).collect()
}

/// The subject of a call that has a start and an end in the record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallSubject {
    Model(ModelCall),
    Tool(ToolCallName),
    Action { action_id: String },
}

/// The outcome of such a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallOutcome<'a> {
    /// Of a chat model: its finish reason and its tokens.
    Chat(Result<(&'a str, Option<&'a TokenUsage>), &'a ApiError>),
    /// Of another model.
    Model(Result<Option<&'a TokenUsage>, &'a ApiError>),
    /// Of a tool. A failure that it reports itself is a failure here.
    Tool(Result<&'a ToolOutput, &'a ApiError>),
    /// Of a platform action: what the platform answered.
    Action(Result<&'a Value, &'a ApiError>),
    /// The caller stopped waiting.
    Unfinished(&'a ApiError),
}

impl Fact {
    /// The same fact with the cost of the call, and its requests that were sent again.
    pub(crate) fn with_cost(mut self, cost_micros: Option<u64>, retries: Vec<Retry>) -> Self {
        if let Self::ModelCallCompleted(end) = &mut self {
            (end.cost_micros, end.retries) = (cost_micros, retries);
        }
        self
    }

    /// The same fact with the size of the output of the tool.
    pub(crate) fn with_output(mut self, size: Option<OutputSize>) -> Self {
        if let (Self::ToolCallCompleted(end), Some(size)) = (&mut self, size) {
            end.output_bytes = Some(size.bytes);
            end.truncated |= size.is_cut;
        }
        self
    }
}

impl CallSubject {
    /// The fact of its end. Results of more than `room` bytes are cut or left out.
    pub(crate) fn end(self, took: Duration, outcome: CallOutcome<'_>, room: usize) -> Fact {
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Model(call) => Fact::ModelCallCompleted(model_end(call, duration_ms, outcome)),
            Self::Tool(call) => Fact::ToolCallCompleted(tool_end(call, duration_ms, outcome, room)),
            Self::Action { action_id } => Fact::ActionResolved(action_end(action_id, duration_ms, outcome, room)),
        }
    }

    /// The call that an event of the record starts or ends.
    fn of(event: &RunEvent) -> Option<(Self, bool)> {
        #[derive(Deserialize)]
        struct ActionId {
            action_id: String,
        }
        let kind = ResultKind::from_name(&event.kind)?;
        let data = event.data.get();
        let subject = match kind {
            ResultKind::ModelCallStarted | ResultKind::ModelCallCompleted => serde_json::from_str(data).map(Self::Model).ok()?,
            ResultKind::ToolCallStarted | ResultKind::ToolCallCompleted => serde_json::from_str(data).map(Self::Tool).ok()?,
            ResultKind::ActionRequested | ResultKind::ActionResolved => {
                let ActionId { action_id } = serde_json::from_str(data).ok()?;
                Self::Action { action_id }
            }
            _ => return None,
        };
        let is_end = matches!(kind, ResultKind::ModelCallCompleted | ResultKind::ToolCallCompleted | ResultKind::ActionResolved);
        Some((subject, is_end))
    }

    fn id(&self) -> (u8, &str) {
        match self {
            Self::Model(call) => (0, &call.model_call_id),
            Self::Tool(call) => (1, &call.tool_call_id),
            Self::Action { action_id } => (2, action_id),
        }
    }
}

fn model_end(call: ModelCall, duration_ms: u64, outcome: CallOutcome<'_>) -> ModelCallEnd {
    let (finish_reason, usage, error) = match outcome {
        CallOutcome::Chat(Ok((reason, usage))) => (Some(reason.to_owned()), Some(usage), None),
        CallOutcome::Model(Ok(usage)) => (None, Some(usage), None),
        CallOutcome::Chat(Err(error)) | CallOutcome::Model(Err(error)) | CallOutcome::Unfinished(error) => {
            (None, None, Some(error.into()))
        }
        CallOutcome::Tool(_) | CallOutcome::Action(_) => (None, None, None),
    };
    let usage = usage.map(|usage| usage.cloned().map_or(Usage::Unknown("unknown"), Usage::Known));
    ModelCallEnd { cost_micros: None, duration_ms, error, finish_reason, call, retries: Vec::new(), usage }
}

fn tool_end(call: ToolCallName, duration_ms: u64, outcome: CallOutcome<'_>, room: usize) -> ToolCallEnd {
    let end = ToolCallEnd {
        category: None,
        code: None,
        duration_ms,
        error: None,
        output_bytes: None,
        result: None,
        call,
        truncated: false,
    };
    match outcome {
        CallOutcome::Tool(Ok(output)) if output.is_error => {
            let text = text(output);
            let truncated = text.len() > room;
            ToolCallEnd { error: Some(shortened(&text, room)), category: Some("tool_error".into()), truncated, ..end }
        }
        CallOutcome::Tool(Ok(output)) => {
            match serde_json::to_value(&output.content).ok().filter(|content| json_len(content) <= room) {
                Some(content) => ToolCallEnd { result: Some(content), ..end },
                None => ToolCallEnd { result: Some(shortened(&text(output), room).into()), truncated: true, ..end },
            }
        }
        CallOutcome::Tool(Err(error)) | CallOutcome::Unfinished(error) => {
            let Failure { category, code, message } = error.into();
            ToolCallEnd { error: Some(message), code: Some(code), category: Some(category), ..end }
        }
        CallOutcome::Chat(_) | CallOutcome::Model(_) | CallOutcome::Action(_) => end,
    }
}

fn action_end(action_id: String, duration_ms: u64, outcome: CallOutcome<'_>, room: usize) -> ActionEnd {
    let end = ActionEnd { action_id, duration_ms: Some(duration_ms), outcome: "cancelled", ..ActionEnd::default() };
    match outcome {
        CallOutcome::Action(Ok(value)) => {
            let result = Some(value).filter(|value| json_len(*value) <= room).cloned();
            ActionEnd { outcome: "executed", result, ..end }
        }
        CallOutcome::Action(Err(error)) => ActionEnd { outcome: "failed", error: Some(error.into()), ..end },
        _ => end,
    }
}

/// The ends of calls that these events start and do not end, for a run whose guest is not in memory: nobody waits for them
/// any more.
pub(crate) fn unended(events: &[RunEvent], at: Timestamp) -> Vec<Fact> {
    let why = ApiError::new(ErrorCode::Cancelled, "the host stopped before the call ended, and the call was abandoned");
    let mut open: Vec<(CallSubject, Timestamp)> = Vec::new();
    for event in events {
        match CallSubject::of(event) {
            Some((ended, true)) => open.retain(|(call, _)| call.id() != ended.id()),
            Some((started, false)) => open.push((started, event.timestamp)),
            None => {}
        }
    }
    let end = |(call, began): (CallSubject, Timestamp)| {
        call.end(Duration::from_millis(at.saturating_sub(began)), CallOutcome::Unfinished(&why), 0)
    };
    open.into_iter().map(end).collect()
}

fn text(output: &ToolOutput) -> String {
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
