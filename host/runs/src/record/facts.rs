//! Facts: the events that the host adds to the record of a run. Their data are the types of `agent_host_facts::record`.

use std::time::Duration;

use agent_host_facts::record::{
    ActionAnswer, ActionEnd, ActionRequest, BranchStart, CallFailure, ChildEnd, ChildStart, Limit, ModelCallEnd, ModelCallStart,
    PermissionDenial, StatusChange, SteeringReceipt, ToolCallArguments, ToolCallEnd, ToolCallProgress, ToolCallStart, Usage,
    Violation,
};
use agent_host_ledger::{Ledger, LedgerError, NewEvent};
use agent_host_protocol::{
    ApiError, ErrorCode, EventSource, ResultKind, RunEvent, RunId, Timestamp,
    encoded::{JsonText, json_len},
    message::{ContentPart, TokenUsage},
    model::{Fallback, Retry},
    tool::ToolOutput,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::action::Ask;

/// An event of the record that the host adds.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum Fact {
    ModelCallStarted(ModelCallStart),
    ModelCallCompleted(ModelCallEnd),
    ToolCallStarted(ToolCallStart),
    ToolCallArguments(ToolCallArguments),
    ToolCallProgress(ToolCallProgress),
    ToolCallCompleted(ToolCallEnd),
    ActionRequested(ActionRequest<Ask>),
    ActionAnswered(ActionAnswer),
    /// An answer of the client whose tool was called.
    ClientAnswered(ActionAnswer),
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

/// The output of a tool, before long parts of it became artifacts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutputSize {
    pub(crate) bytes: u64,
    /// True if the guest gets an artifact in place of some of it.
    pub(crate) is_cut: bool,
}

/// Bytes of one piece of parameters. As a JSON string a piece takes at most twice as many: parameters are JSON, without control
/// characters.
const ARGUMENT_PIECE_BYTES: usize = 8 * 1024;

/// The facts of a call of a tool that begins. Parameters of more than `room` bytes follow their first event in pieces, in the
/// same commit.
pub(crate) fn tool_call_started(call: &ToolCallName, parameters: &Value, room: usize) -> Vec<Fact> {
    let text = parameters.to_string();
    let bytes = text.len();
    let start = |parameters, parameters_bytes| {
        let ToolCallName { tool_call_id, tool_name } = call.clone();
        Fact::ToolCallStarted(ToolCallStart { message_id: None, parameters, parameters_bytes, tool_call_id, tool_name })
    };
    if bytes <= room
        && let Ok(parameters) = RawValue::from_string(text.clone())
    {
        return vec![start(Some(parameters), None)];
    }
    let mut facts = vec![start(None, Some(bytes as u64))];
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(ARGUMENT_PIECE_BYTES));
        let ToolCallName { tool_call_id, tool_name } = call.clone();
        let (delta, last) = (piece.to_owned(), after.is_empty());
        facts.push(Fact::ToolCallArguments(ToolCallArguments { delta, last, tool_call_id, tool_name }));
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
            Self::ActionAnswered(_) | Self::ClientAnswered(_) => ResultKind::ActionAnswered,
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

    const fn source(&self) -> EventSource {
        match self {
            Self::ActionAnswered(_) => EventSource::Person,
            Self::ClientAnswered(_) => EventSource::Client,
            _ => EventSource::Host,
        }
    }

    /// The kind and the id of the call that it ends; `None` for other facts.
    pub(crate) fn ended_call(&self) -> Option<(ResultKind, &str)> {
        let id = match self {
            Self::ModelCallCompleted(end) => &end.call.model_call_id,
            Self::ToolCallCompleted(end) => &end.tool_call_id,
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

/// A call of a tool, by its names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct ToolCallName {
    pub(crate) tool_call_id: String,
    pub(crate) tool_name: String,
}

/// The subject of a call that has a start and an end in the record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallSubject {
    Model(ModelCallStart),
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

    /// The same fact with the model that was asked last, and those that failed before.
    pub(crate) fn with_fallbacks(mut self, asked: Option<String>, fallbacks: Vec<Fallback>) -> Self {
        if let Self::ModelCallCompleted(end) = &mut self {
            end.fallbacks = fallbacks;
            if let Some(asked) = asked {
                end.call.model_id = asked;
            }
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
    /// The types of the events that start or end a call.
    const KINDS: [ResultKind; 6] = [
        ResultKind::ModelCallStarted,
        ResultKind::ModelCallCompleted,
        ResultKind::ToolCallStarted,
        ResultKind::ToolCallCompleted,
        ResultKind::ActionRequested,
        ResultKind::ActionResolved,
    ];

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

fn model_end(call: ModelCallStart, duration_ms: u64, outcome: CallOutcome<'_>) -> ModelCallEnd {
    let (finish_reason, usage, error) = match outcome {
        CallOutcome::Chat(Ok((reason, usage))) => (Some(reason.to_owned()), Some(Usage::of(usage)), None),
        CallOutcome::Model(Ok(usage)) => (None, Some(Usage::of(usage)), None),
        CallOutcome::Chat(Err(error)) | CallOutcome::Model(Err(error)) | CallOutcome::Unfinished(error) => {
            (None, None, Some(error.into()))
        }
        CallOutcome::Tool(_) | CallOutcome::Action(_) => (None, None, None),
    };
    ModelCallEnd {
        cost_micros: None,
        duration_ms: Some(duration_ms),
        error,
        fallbacks: Vec::new(),
        finish_reason,
        call,
        retries: Vec::new(),
        usage,
    }
}

fn tool_end(call: ToolCallName, duration_ms: u64, outcome: CallOutcome<'_>, room: usize) -> ToolCallEnd {
    let ToolCallName { tool_call_id, tool_name } = call;
    let end = ToolCallEnd { duration_ms: Some(duration_ms), tool_call_id, tool_name, ..ToolCallEnd::default() };
    match outcome {
        CallOutcome::Tool(Ok(output)) if output.is_error => {
            let text = text(output);
            let truncated = text.len() > room;
            let error = Some(shortened(&text, room).into());
            ToolCallEnd { error, category: Some("tool_error".into()), truncated, ..end }
        }
        CallOutcome::Tool(Ok(output)) => {
            match serde_json::to_value(&output.content).ok().filter(|content| json_len(content) <= room) {
                Some(content) => ToolCallEnd { result: Some(content), ..end },
                None => ToolCallEnd { result: Some(shortened(&text(output), room).into()), truncated: true, ..end },
            }
        }
        CallOutcome::Tool(Err(error)) | CallOutcome::Unfinished(error) => {
            let CallFailure { category, code, message } = error.into();
            ToolCallEnd { error: Some(message.into()), code: Some(code), category: Some(category), ..end }
        }
        CallOutcome::Chat(_) | CallOutcome::Model(_) | CallOutcome::Action(_) => end,
    }
}

fn action_end(action_id: String, duration_ms: u64, outcome: CallOutcome<'_>, room: usize) -> ActionEnd {
    let end = ActionEnd { action_id, duration_ms: Some(duration_ms), outcome: "cancelled".into(), ..ActionEnd::default() };
    match outcome {
        CallOutcome::Action(Ok(value)) => {
            let result = Some(value).filter(|value| json_len(*value) <= room).cloned();
            ActionEnd { outcome: "executed".into(), result, ..end }
        }
        CallOutcome::Action(Err(error)) => ActionEnd { outcome: "failed".into(), error: Some(error.into()), ..end },
        _ => end,
    }
}

/// The calls that the record of a run starts and does not end, each with the time of its start: of a run whose guest is not in
/// memory, so nobody waits for them any more.
#[derive(Debug, Default)]
pub(crate) struct UnendedCalls(Vec<(CallSubject, Timestamp)>);

impl UnendedCalls {
    pub(crate) fn read(ledger: &Ledger, run_no: u64, id: RunId) -> Result<Self, LedgerError> {
        let mut open = Self::default();
        ledger.each_run_event(run_no, id, &CallSubject::KINDS.map(ResultKind::as_str), |event| open.note(&event))?;
        Ok(open)
    }

    fn note(&mut self, event: &RunEvent) {
        match CallSubject::of(event) {
            Some((ended, true)) => self.0.retain(|(call, _)| call.id() != ended.id()),
            Some((started, false)) => self.0.push((started, event.timestamp)),
            None => {}
        }
    }

    /// The ends of the calls: each was abandoned.
    pub(crate) fn ends(self, at: Timestamp) -> Vec<Fact> {
        let why = ApiError::new(ErrorCode::Cancelled, "the host stopped before the call ended, and the call was abandoned");
        let end = |(call, began): (CallSubject, Timestamp)| {
            call.end(Duration::from_millis(at.saturating_sub(began)), CallOutcome::Unfinished(&why), 0)
        };
        self.0.into_iter().map(end).collect()
    }
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
