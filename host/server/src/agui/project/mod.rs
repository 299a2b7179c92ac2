//! The record of a host run, as AG-UI events: a pure function of its events, in order.
//!
//! Every projection gives the same events with the same ids and positions ([`super::cursor::Cursor`]): a client that joins
//! late projects from the beginning and skips what it has. The output is a legal stream for any order of a guest's results
//! ([`super::verify`] has the rules): open elements are known and end before the next end.
//!
//! RUN_STARTED and the terminal events are made by the stream, since the ids in them differ for each connection. Between two
//! [`Step::End`] is one *segment*: one AG-UI run.

mod asks;
mod children;
mod content;
mod ids;
mod ordered;
mod text;
mod tools;
mod ui;
mod usage;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub(crate) use children::Children;
pub(crate) use content::{claimed_message, user_message};
pub(crate) use ids::{run_of, tool_call_id};

use std::{collections::HashMap, mem};

use agent_host_protocol::{
    ResultKind, RunEvent, RunId, Timestamp,
    run::{RunCompletion, RunFailure},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use self::{asks::Asks, ids::Ids, text::Texts, tools::Tools, ui::Ui, usage::Tally};
use super::{
    cursor::{Cursor, StampedEvent},
    event::{Event, Interrupt, Kind, Message, PatchOp, ReasoningRole, Usage},
};

/// The code of a run that somebody has cancelled.
const CANCELLED: &str = "cancelled";

/// A step of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// To be sent, and folded.
    Event(StampedEvent),
    /// To be folded and not sent: the client of this run knows it by itself, such as its own answer to a frontend tool.
    Past(StampedEvent),
    /// The message with this id has this content and not the streamed one. Its END was sent before. Only the content
    /// counts: calls that the message carries stay.
    Correct(Message, Cursor),
    /// The segment is over, and all its elements are closed. Later steps belong to the next segment.
    End(End, Cursor),
}

impl Step {
    /// Position of the step.
    pub(crate) const fn at(&self) -> Cursor {
        match self {
            Self::Event(stamped) | Self::Past(stamped) => stamped.at,
            Self::Correct(_, at) | Self::End(_, at) => *at,
        }
    }
}

/// The end of a segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// The host run has completed, or waits for the client to make the `pending` calls.
    Success {
        /// The completion of the host run: `{finishReason, metadata?}`; `None` while the run waits.
        result: Option<Value>,
        /// Ids of calls of frontend tools without an answer. The host run continues when all of them are answered.
        pending: Vec<String>,
        usage: Vec<Usage>,
    },
    /// The host run waits for people. At least one.
    Interrupt { interrupts: Vec<Interrupt>, usage: Vec<Usage> },
    /// The host run was cancelled.
    Cancelled { usage: Vec<Usage> },
    /// The host run has failed.
    Error { message: String, code: Option<String>, usage: Vec<Usage> },
}

/// Projects the record of one host run.
#[derive(Debug)]
pub(crate) struct Projector {
    /// True if an executor executes the run: its status does not show that it waits for people.
    is_external: bool,
    is_over: bool,
    ids: Ids,
    out: Out,
    texts: Texts,
    tools: Tools,
    asks: Asks,
    ui: Ui,
    usage: Tally,
    children: Children,
}

/// The reason to close all open elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// The run waits, and continues in the next segment.
    Waits,
    /// The run has completed.
    Completes,
    /// The run has failed or was cancelled.
    Fails,
    /// Another attempt begins, which knows nothing of this one.
    Retries,
}

impl Projector {
    /// Of a run of which nothing has been read yet. `outside`: an executor executes it.
    pub(crate) fn new(run: RunId, outside: bool) -> Self {
        Self {
            is_external: outside,
            is_over: false,
            ids: Ids::new(run),
            out: Out::default(),
            texts: Texts::default(),
            tools: Tools::default(),
            asks: Asks::default(),
            ui: Ui::default(),
            usage: Tally::default(),
            children: Children::default(),
        }
    }

    /// The same, with the content of child runs.
    pub(crate) fn with_children(self, children: Children) -> Self {
        Self { children, ..self }
    }

    /// Processes the next event of the record. Returns no step for a repeated event, or for an event after the terminal
    /// one.
    pub(crate) fn push(&mut self, event: &RunEvent) -> Vec<Step> {
        if self.is_over || !self.out.begin(event) {
            return Vec::new();
        }
        self.project(event);
        mem::take(&mut self.out.steps)
    }

    /// The open calls of the client: for each call of a frontend tool without an answer the id of the action, and the id of
    /// the call on the wire, which differ even if a guest uses one call id for several calls.
    pub(crate) fn client_calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.asks.calls()
    }

    fn project(&mut self, event: &RunEvent) {
        let Self { ids, out, texts, tools, asks, ui, usage, children, .. } = self;
        match ResultKind::from_name(&event.kind) {
            Some(ResultKind::MessageDelta) => {
                if let Some(delta) = read(event) {
                    texts.delta(out, ids, delta);
                }
            }
            Some(ResultKind::MessageCompleted) => {
                if let Some(completed) = read::<text::MessageEnd>(event) {
                    match completed.answered_call() {
                        Some(call) => tools.answered_in_message(out, ids, texts, call, &completed.message),
                        None => texts.completed(out, ids, completed),
                    }
                }
            }
            Some(ResultKind::ReasoningDelta) => {
                if let Some(delta) = read(event) {
                    out.reasoning(ids, delta);
                }
            }
            Some(ResultKind::ToolCallStarted) => {
                if let Some(started) = read(event) {
                    tools.started(out, ids, texts, started);
                }
            }
            Some(ResultKind::ToolCallArguments) => {
                if let Some(arguments) = read(event) {
                    tools.arguments(out, arguments);
                }
            }
            Some(ResultKind::ToolCallProgress) => {
                if let Some(progress) = read(event) {
                    tools.progress(out, progress);
                }
            }
            Some(ResultKind::ToolCallCompleted) => {
                if let Some(completed) = read(event) {
                    tools.completed(out, ids, texts, completed);
                }
            }
            Some(ResultKind::ArtifactCreated) => {
                #[derive(Deserialize)]
                struct ArtifactData {
                    artifact: agent_host_protocol::message::ArtifactRef,
                }
                if let Some(ArtifactData { artifact }) = read(event) {
                    out.custom(content::ARTIFACT, content::artifact_content(&artifact, None));
                }
            }
            Some(ResultKind::StateUpdated) => {
                #[derive(Deserialize)]
                struct StateData {
                    scope: String,
                    key: String,
                    value: Value,
                }
                if let Some(StateData { scope, key, value }) = read(event)
                    && scope == "conversation"
                {
                    out.say(Kind::StateDelta { delta: vec![PatchOp::Add { path: pointer(&key), value }] });
                }
            }
            Some(ResultKind::ActionRequested) => {
                let asked = asks::Request::of(event).is_some_and(|request| asks.requested(out, ids, texts, tools, request));
                if asked && self.is_external {
                    self.waits();
                }
            }
            Some(ResultKind::ActionAnswered) => {
                if let Some(answered) = read(event) {
                    asks.answered(out, ids, answered);
                }
            }
            Some(ResultKind::ActionResolved) => {
                if let Some(resolved) = read(event) {
                    asks.resolved(out, ids, &resolved);
                }
            }
            Some(ResultKind::ChildStarted) => {
                if let Some(started) = read(event) {
                    ui.child_started(out, ids, started);
                }
            }
            Some(ResultKind::ChildEnded) => {
                if let Some(ended) = read(event) {
                    ui.child_ended(out, children, ended);
                }
            }
            Some(ResultKind::ModelCallCompleted) => {
                if let Some(call) = read(event) {
                    usage.count(call);
                }
            }
            Some(ResultKind::RunStatus) => {
                if let Some(status) = read(event) {
                    self.status(&status);
                }
            }
            Some(ResultKind::RunCompleted) => self.run_completed(read(event)),
            Some(ResultKind::RunFailed) => self.run_failed(read(event)),
            _ => self.ui.other(&mut self.out, &mut self.ids, &mut self.texts, &mut self.tools, event),
        }
    }

    fn status(&mut self, status: &Status) {
        if let Some(attempt) = status.attempt.filter(|attempt| *attempt > self.ids.attempt()) {
            self.close(CloseReason::Retries);
            self.ids.begin_attempt(attempt);
        }
        let for_people = matches!(status.reason.as_deref(), Some("approval" | "question" | "effect_in_doubt" | "client_tool"));
        if status.status == "waiting" && for_people {
            self.waits();
        }
    }

    /// The segment ends here, where something is asked.
    fn waits(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        self.close(CloseReason::Waits);
        let usage = self.usage.take();
        let end = match self.asks.pending() {
            Some(pending) => End::Success { result: None, pending, usage },
            None => End::Interrupt { interrupts: self.asks.interrupts(self.ids.run()), usage },
        };
        self.out.end(end);
    }

    fn run_completed(&mut self, completion: Option<RunCompletion>) {
        let mut result = Map::new();
        if let Some(completion) = completion {
            if let Some(message) = completion.message {
                self.texts.concluded(&mut self.out, &mut self.ids, message);
            }
            result.insert("finishReason".to_owned(), completion.finish_reason.into());
            result.extend(completion.metadata.map(|metadata| ("metadata".to_owned(), metadata)));
            if let Some(usage) = completion.usage.and_then(|usage| serde_json::to_value(usage).ok()) {
                result.insert("claimedUsage".to_owned(), usage);
            }
        }
        self.close(CloseReason::Completes);
        let result = (!result.is_empty()).then_some(Value::Object(result));
        let usage = self.usage.take();
        self.finish_run(End::Success { result, pending: Vec::new(), usage });
    }

    fn run_failed(&mut self, failure: Option<RunFailure>) {
        self.close(CloseReason::Fails);
        let usage = self.usage.take();
        self.finish_run(match failure {
            Some(failure) if failure.code == CANCELLED => End::Cancelled { usage },
            // The details may have lines of its log, which are the operator's.
            Some(failure) => End::Error { message: failure.message, code: Some(failure.code), usage },
            None => End::Error { message: "the run failed".to_owned(), code: None, usage },
        });
    }

    fn finish_run(&mut self, end: End) {
        self.out.end(end);
        self.is_over = true;
    }

    /// Ends all that is open.
    fn close(&mut self, closing: CloseReason) {
        let Self { ids, out, texts, tools, asks, ui, .. } = self;
        out.end_reasoning();
        texts.close(out, closing);
        if closing == CloseReason::Waits {
            tools.cut_all(out);
        } else {
            asks.close(out, ids);
            tools.close(out, ids, closing);
        }
        ui.close(out, closing);
    }
}

/// The content of `run.status`.
#[derive(Deserialize)]
struct Status {
    status: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    attempt: Option<u32>,
}

/// A piece of a text.
#[derive(Deserialize)]
struct Delta {
    message_id: String,
    chunk: Chunk,
}

#[derive(Deserialize)]
struct Chunk {
    role: agent_host_protocol::message::Role,
    content: String,
}

/// The data of an event; nothing where it has another form, which neither the host nor its contract makes.
fn read<T: DeserializeOwned>(event: &RunEvent) -> Option<T> {
    serde_json::from_str(event.data.get()).ok()
}

/// The metadata that an executor has sent with a result, for the first event of it. Members that the host or the client defines
/// are left out.
fn metadata_of(event: &RunEvent) -> Map<String, Value> {
    const RESERVED: [&str; 3] = ["agentHost", "agnoBackground", "@ag-ui/client"];
    let Some(metadata) = &event.metadata else { return Map::new() };
    let mut metadata: Map<String, Value> = serde_json::from_str(metadata.get()).unwrap_or_default();
    metadata.retain(|name, _| !RESERVED.contains(&name.as_str()));
    metadata
}

/// The JSON Pointer (RFC 6901) of a key of an object.
fn pointer(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The output of the present event.
#[derive(Debug, Default)]
struct Out {
    steps: Vec<Step>,
    next: Cursor,
    timestamp: Timestamp,
    reasoning: Option<Reasoning>,
    /// The ids of reasoning by the names that the guest gave it: of the last one under each.
    reasoned: HashMap<String, String>,
    /// The subagent that speaks.
    subagent: Option<String>,
    /// Metadata for the next event.
    metadata: Map<String, Value>,
}

/// An open reasoning: the next element of another kind ends it.
#[derive(Debug)]
struct Reasoning {
    /// As the guest names it.
    name: String,
    id: String,
}

impl Out {
    /// True if the event is the next one.
    fn begin(&mut self, event: &RunEvent) -> bool {
        let is_next = event.sequence > self.next.sequence || self.next == Cursor::default();
        if is_next {
            self.next = Cursor { sequence: event.sequence, part: 0 };
            self.timestamp = event.timestamp;
            self.metadata = metadata_of(event);
        }
        is_next
    }

    fn say(&mut self, kind: Kind) {
        self.end_reasoning();
        self.event(kind);
    }

    /// Adds a member to the metadata of the next event.
    fn mark(&mut self, name: &str, value: Value) {
        self.metadata.insert(name.to_owned(), value);
    }

    /// The last reasoning under this name.
    fn reasoning_of(&self, name: &str) -> Option<&str> {
        self.reasoned.get(name).map(String::as_str)
    }

    fn custom(&mut self, name: impl Into<String>, value: Value) {
        self.say(Kind::Custom { name: name.into(), value });
    }

    fn past(&mut self, kind: Kind) {
        self.end_reasoning();
        let stamped = self.stamped(kind);
        self.steps.push(Step::Past(stamped));
    }

    fn correct(&mut self, message: Message) {
        self.end_reasoning();
        let at = self.place();
        self.steps.push(Step::Correct(message, at));
    }

    fn end(&mut self, end: End) {
        let at = self.place();
        self.steps.push(Step::End(end, at));
    }

    fn reasoning(&mut self, ids: &mut Ids, delta: Delta) {
        let Delta { message_id: name, chunk: Chunk { content: delta, .. } } = delta;
        if delta.is_empty() {
            return;
        }
        let id = match &self.reasoning {
            Some(open) if open.name == name => open.id.clone(),
            _ => {
                self.end_reasoning();
                let id = ids.reasoning(&name);
                self.event(Kind::ReasoningStart { message_id: id.clone() });
                self.event(Kind::ReasoningMessageStart { message_id: id.clone(), role: ReasoningRole::Reasoning });
                self.reasoned.insert(name.clone(), id.clone());
                self.reasoning = Some(Reasoning { name, id: id.clone() });
                id
            }
        };
        self.event(Kind::ReasoningMessageContent { message_id: id, delta });
    }

    fn end_reasoning(&mut self) {
        if let Some(Reasoning { id, .. }) = self.reasoning.take() {
            self.event(Kind::ReasoningMessageEnd { message_id: id.clone() });
            self.event(Kind::ReasoningEnd { message_id: id });
        }
    }

    fn event(&mut self, kind: Kind) {
        let stamped = self.stamped(kind);
        self.steps.push(Step::Event(stamped));
    }

    fn stamped(&mut self, kind: Kind) -> StampedEvent {
        let (subagent, metadata) = (self.subagent.clone(), mem::take(&mut self.metadata));
        StampedEvent { event: Event { subagent, metadata, ..Event::from(kind).at(self.timestamp) }, at: self.place() }
    }

    fn place(&mut self) -> Cursor {
        let at = self.next;
        self.next.part = self.next.part.saturating_add(1);
        at
    }
}

/// Adds a member where there is a value.
fn with<V: Into<Value>>(value: &mut Value, name: &str, member: Option<V>) {
    if let (Some(object), Some(member)) = (value.as_object_mut(), member) {
        object.insert(name.to_owned(), member.into());
    }
}
