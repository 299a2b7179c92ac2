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
mod filter;
mod ids;
mod invocations;
mod out;
mod text;
mod tools;
mod ui;
mod usage;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub(crate) use children::{Children, LiveChild, ended_child};
pub(crate) use content::{claimed_message, user_message};
pub(crate) use ids::{run_of, tool_call_id};

use std::{fmt, mem, sync::Arc};

use agent_host_protocol::{
    ResultKind, RunEvent, RunId, Timestamp,
    run::{RunCompletion, RunFailure},
};
use agent_host_runs::facts::record::{ArtifactData, MessageEnd, StateData, StatusChange, read};
use serde_json::{Map, Value};

use self::{asks::Asks, ids::Ids, out::Out, text::Texts, tools::Tools, ui::Ui, usage::Tally};
use super::{
    cursor::{Cursor, Place, StampedEvent},
    event::{Event, Interrupt, Kind, Message, PatchOp, Usage},
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
    Correct(Message, Place),
    /// The segment is over, and all its elements are closed. Later steps belong to the next segment.
    End(End, Place),
}

impl Step {
    /// Position of the step.
    pub(crate) const fn at(&self) -> &Place {
        match self {
            Self::Event(stamped) | Self::Past(stamped) => &stamped.at,
            Self::Correct(_, at) | Self::End(_, at) => at,
        }
    }

    /// The same step at another position.
    pub(crate) fn moved(self, at: Place) -> Self {
        match self {
            Self::Event(stamped) => Self::Event(StampedEvent { at, ..stamped }),
            Self::Past(stamped) => Self::Past(StampedEvent { at, ..stamped }),
            Self::Correct(message, _) => Self::Correct(message, at),
            Self::End(end, _) => Self::End(end, at),
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

/// The ends that are none for the client: all that the run waits for then is answered already.
#[derive(Clone, Default)]
struct AnsweredEnds(Option<Arc<EndTest>>);

/// True for such an end.
type EndTest = dyn Fn(&End) -> bool + Send + Sync;

impl fmt::Debug for AnsweredEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnsweredEnds").field(&self.0.is_some()).finish()
    }
}

/// Projects the record of one host run, and those of its children.
#[derive(Debug)]
pub(crate) struct Projector {
    /// True if an executor executes the run: its status does not show that it waits for people.
    is_external: bool,
    answered: AnsweredEnds,
    is_over: bool,
    ids: Ids,
    out: Out,
    texts: Texts,
    tools: Tools,
    asks: Asks,
    ui: Ui,
    usage: Tally,
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
            answered: AnsweredEnds::default(),
            is_over: false,
            ids: Ids::new(run),
            out: Out::default(),
            texts: Texts::default(),
            tools: Tools::default(),
            asks: Asks::default(),
            ui: Ui::default(),
            usage: Tally::default(),
        }
    }

    /// The same, with the content of child runs.
    pub(crate) fn with_children(mut self, children: Children) -> Self {
        self.ui.children.show(children);
        self
    }

    /// The same, for a client that has answered what the run waits for at such an end: the segment goes on there.
    pub(crate) fn with_answers(self, answered: impl Fn(&End) -> bool + Send + Sync + 'static) -> Self {
        Self { answered: AnsweredEnds(Some(Arc::new(answered))), ..self }
    }

    /// Of the run of a subagent with this id.
    fn of_subagent(run: RunId, subagent: String, children: Children) -> Self {
        Self { out: Out::of_subagent(subagent), ..Self::new(run, false).with_children(children) }
    }

    /// Processes the next event of the record. Returns no step for a repeated event, or for an event after the terminal
    /// one.
    pub(crate) fn push(&mut self, event: &RunEvent) -> Vec<Step> {
        if self.is_over || !self.out.begin(event, self.ui.children.places()) {
            return Vec::new();
        }
        self.project(event);
        self.out.take()
    }

    /// Processes the next event of the record of a live child, or of a live child of one.
    pub(crate) fn push_child(&mut self, child: RunId, event: &RunEvent) -> Vec<Step> {
        self.ui.children.push(self.out.last(), child, event)
    }

    /// The place of the last step.
    pub(crate) fn place(&self) -> Place {
        Place { cursor: self.out.last(), children: self.ui.children.places() }
    }

    /// Sets the cursor of the last step, of which the client has been told otherwise.
    pub(crate) const fn move_to(&mut self, cursor: Cursor) {
        self.out.move_to(cursor);
    }

    /// Sets the cursors of the last steps to the place of a client. An event that closes children has fewer steps where these
    /// were not read again, and the client has seen all of them.
    pub(crate) fn settle(&mut self, place: &Place) {
        let last = self.out.last();
        if last.sequence == place.cursor.sequence && last < place.cursor {
            self.out.move_to(place.cursor);
        }
        self.ui.children.settle(&place.children);
    }

    /// The children whose records are followed, each before its own.
    pub(crate) fn live_children(&self) -> Vec<LiveChild> {
        let mut live = Vec::new();
        self.ui.children.live(&mut Vec::new(), &mut live);
        live
    }

    /// True if children are open, or were when the run began to wait.
    pub(crate) fn has_children(&self) -> bool {
        !self.ui.children.is_empty()
    }

    /// True if a child was shown that had not ended.
    pub(crate) const fn is_partial(&self) -> bool {
        self.ui.children.is_partial()
    }

    /// Begins another segment: gives the STARTs of the children in it.
    pub(crate) fn resume(&mut self) -> Vec<Event> {
        let Self { out, ui, .. } = self;
        let before = out.bookmark();
        ui.children.resume(out);
        let steps = out.take_aside(before);
        let started =
            steps.into_iter().filter_map(|step| if let Step::Event(stamped) = step { Some(stamped.event) } else { None });
        let mut started: Vec<Event> = started.collect();
        let at = self.out.timestamp();
        self.ui.children.for_each(|child| {
            child.out.set_timestamp(at);
            started.extend(child.resume());
        });
        started
    }

    /// Shows what open children have said: up to `limit`, or all that is there. For views that nothing is added to.
    pub(crate) fn catch_up(&mut self, limit: Option<&Place>, with: &mut dyn FnMut(Step)) {
        self.ui.children.catch_up(limit, with);
    }

    /// Closes what is open in the run of a subagent, at a time of its parent. The steps have no place in its record.
    fn close_aside(&mut self, closing: CloseReason, at: Timestamp) -> Vec<Step> {
        if self.is_over {
            return Vec::new();
        }
        if closing != CloseReason::Waits {
            self.out.drop_calls();
        }
        let before = self.out.bookmark();
        self.out.set_timestamp(at);
        self.close(closing);
        self.out.take_aside(before)
    }

    /// The open calls of the client: for each call of a frontend tool without an answer the id of the action, and the id of
    /// the call on the wire, which differ even if a guest uses one call id for several calls.
    pub(crate) fn client_calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.asks.calls()
    }

    fn project(&mut self, event: &RunEvent) {
        let Self { ids, out, texts, tools, asks, ui, usage, .. } = self;
        match ResultKind::from_name(&event.kind) {
            Some(ResultKind::MessageDelta) => {
                if let Some(delta) = read(event) {
                    texts.delta(out, ids, delta);
                }
            }
            Some(ResultKind::MessageCompleted) => {
                if let Some(completed) = read::<MessageEnd>(event) {
                    match text::answered_call(&completed.message) {
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
                if let Some(ArtifactData { artifact }) = read(event) {
                    out.custom(content::ARTIFACT, content::artifact_content(&artifact, None));
                }
            }
            Some(ResultKind::StateUpdated) => {
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
                    ui.children.child_started(out, ids, event.sequence, started);
                }
            }
            Some(ResultKind::ChildEnded) => {
                if let Some(ended) = read(event) {
                    ui.children.child_ended(out, ended);
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

    fn status(&mut self, status: &StatusChange) {
        if let Some(attempt) = status.attempt.filter(|attempt| *attempt > self.ids.attempt()) {
            self.close(CloseReason::Retries);
            self.ids.begin_attempt(attempt);
        }
        let for_people = matches!(status.reason.as_str(), "approval" | "question" | "effect_in_doubt" | "client_tool");
        if status.status == "waiting" && for_people {
            self.waits();
        }
    }

    /// The segment ends here, where something is asked.
    fn waits(&mut self) {
        // The segments of a subagent are those of its parent.
        if self.asks.is_empty() || self.out.is_embedded() {
            return;
        }
        let usage = self.usage.take();
        let end = match self.asks.pending() {
            Some(pending) => End::Success { result: None, pending, usage },
            None => End::Interrupt { interrupts: self.asks.interrupts(self.ids.run()), usage },
        };
        if self.answered.0.as_ref().is_some_and(|answered| answered(&end)) {
            // The children go on with the segment.
            let children = mem::take(&mut self.ui.children);
            self.close(CloseReason::Waits);
            self.ui.children = children;
        } else {
            self.close(CloseReason::Waits);
        }
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

/// Adds a member where there is a value.
fn with<V: Into<Value>>(value: &mut Value, name: &str, member: Option<V>) {
    if let (Some(object), Some(member)) = (value.as_object_mut(), member) {
        object.insert(name.to_owned(), member.into());
    }
}
