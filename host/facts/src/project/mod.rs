//! The record of a run, as facts: a pure function of the turn, its terms, its event and its record, in order.
//!
//! Every projection gives the same facts with the same numbers. The output is a legal stream for any record: whatever is
//! open is ended before the end of the turn, and nothing follows that end but the snapshot.
//!
//! `turn` says what a turn is projected from, `prelude` the facts before the record, `texts`, `models`, `tools`, `actions`,
//! `tasks`, `claims` and `imports` those of the record; `out` numbers them, `ids` names things.

mod actions;
pub mod claims;
mod ids;
mod imports;
mod models;
mod out;
mod prelude;
mod tasks;
mod texts;
mod tools;
mod turn;

#[cfg(test)]
pub(crate) mod properties;
#[cfg(test)]
pub(crate) mod tests;

use agent_host_protocol::{
    ResultKind, RunEvent,
    message::Role,
    run::{RunCompletion, RunFailure},
    ui,
};
use serde_json::json;

pub use self::turn::{ChildOutput, Children, NoChildren, ThreadIds, Turn, TurnBudget, TurnTerms};
use self::{
    actions::Actions,
    ids::Ids,
    imports::Imports,
    models::Models,
    out::{Draft, Out, Source},
    tasks::Tasks,
    texts::Texts,
    tools::Tools,
};
use crate::{
    fact::{Fact, RefKind, ScopeIds},
    failure::{FailureCategory, recovery_hint},
    kind::FactType,
    record::{
        ArtifactData, BranchStart, Limit, MessageEnd, PermissionDenial, StateData, StatusChange, SteeringReceipt, ToolCallEnd,
        Violation, read,
    },
    safe::{line, small},
};

/// The version of the projection: a host that numbers facts otherwise has another.
pub const PROJECTION: u32 = 1;

/// The code of a run that somebody has cancelled.
const CANCELLED: &str = "cancelled";

/// Projects the record of one turn.
#[derive(Debug)]
pub struct Projector {
    turn: Turn,
    out: Out,
    ids: Ids,
    texts: Texts,
    models: Models,
    tools: Tools,
    actions: Actions,
    tasks: Tasks,
    imports: Imports,
    /// The last event that was projected.
    last: u64,
    has_begun: bool,
    is_over: bool,
    has_steering: bool,
}

impl Projector {
    /// Of a turn of which nothing has been read yet.
    #[must_use]
    pub fn new(turn: Turn) -> Self {
        Self {
            out: Out::new(&turn),
            ids: Ids::new(turn.run_id),
            texts: Texts::default(),
            models: Models::default(),
            tools: Tools::default(),
            actions: Actions::default(),
            tasks: Tasks::default(),
            imports: Imports::default(),
            last: 0,
            has_begun: false,
            is_over: false,
            has_steering: false,
            turn,
        }
    }

    /// The facts before the record. Given once.
    pub fn begin(&mut self) -> Vec<Fact> {
        if !self.has_begun {
            self.has_begun = true;
            self.out.begin(0, self.turn.created_at, Source::Host);
            prelude::say(&mut self.out, &self.turn);
        }
        self.out.take()
    }

    /// The facts of the next event of the record. None for a repeated event, or one behind the end of the turn.
    pub fn push(&mut self, event: &RunEvent, children: &dyn Children) -> Vec<Fact> {
        let mut facts = self.begin();
        if self.is_over || event.sequence <= self.last {
            return facts;
        }
        self.last = event.sequence;
        self.out.begin(event.sequence, event.timestamp, Source::of(event.source));
        self.project(event, children);
        facts.append(&mut self.out.take());
        facts
    }

    /// The number of the next fact of the thread.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.out.next()
    }

    /// The last event of the record that was projected.
    #[must_use]
    pub const fn last_event(&self) -> u64 {
        self.last
    }

    /// True if the turn has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    fn project(&mut self, event: &RunEvent, children: &dyn Children) {
        let Self { out, ids, texts, models, tools, actions, tasks, .. } = self;
        let kind = ResultKind::from_name(&event.kind);
        // What only the host writes is no claim, whoever has stored it.
        if kind.is_some_and(ResultKind::is_host_only) {
            out.source = Source::Host;
        }
        let read = match kind {
            Some(ResultKind::MessageDelta) => read(event).map(|delta| texts.delta(out, ids, models, &delta)),
            Some(ResultKind::MessageCompleted) => read::<MessageEnd>(event).map(|end| {
                if end.message.role == Role::Tool {
                    if let Some(call) = &end.message.tool_call_id {
                        actions.release(out, call);
                    }
                    tools.answered_in_message(out, &end.message);
                } else {
                    texts.completed(out, ids, models, &end);
                }
            }),
            Some(ResultKind::ReasoningDelta) => read(event).map(|delta| Texts::reasoning(out, ids, &delta)),
            Some(ResultKind::ToolCallStarted) => read(event).map(|start| tools.started(out, ids, texts, start)),
            // The arguments are in the record; a piece of JSON cannot be cleaned of secrets.
            Some(ResultKind::ToolCallArguments) => Some(()),
            Some(ResultKind::ToolCallProgress) => read(event).map(|progress| tools.progress(out, progress)),
            Some(ResultKind::ToolCallCompleted) => read::<ToolCallEnd>(event).map(|end| {
                actions.release(out, &end.tool_call_id);
                tools.completed(out, ids, texts, end);
            }),
            Some(ResultKind::ArtifactCreated) => read(event).map(|ArtifactData { artifact }| out.say(tasks::artifact(&artifact))),
            Some(ResultKind::StateUpdated) => read(event).map(|data| state(out, data)),
            Some(ResultKind::ActionRequested) => {
                read(event).map(|request| actions.requested(out, ids, texts, tools, request, event.sequence))
            }
            Some(ResultKind::ActionAnswered) => read(event).map(|answer| actions.answered(out, tools, answer)),
            Some(ResultKind::ActionResolved) => read(event).map(|end| actions.ended(out, tools, end)),
            Some(ResultKind::SteeringReceived) => read(event).map(|data| self.steering(&data)),
            Some(ResultKind::ConversationBranched) => read(event).map(|data| branch(out, &data)),
            Some(ResultKind::ChildStarted) => read(event).map(|start| tasks.child_started(out, ids, &start)),
            Some(ResultKind::ChildEnded) => read(event).map(|end| tasks.child_ended(out, children, &end)),
            Some(ResultKind::ModelCallStarted) => read(event).map(|start| models.started(out, ids, &start)),
            Some(ResultKind::ModelCallCompleted) => read(event).map(|end| models.ended(out, end)),
            Some(ResultKind::PermissionDenied) => read(event).map(|denial| denied(out, &denial)),
            Some(ResultKind::LimitReached) => read(event).map(|limit| limited(out, &limit)),
            Some(ResultKind::SandboxViolation) => read(event).map(|violation| violated(out, &violation)),
            Some(ResultKind::RunStatus) => read(event).map(|status| self.status(&status)),
            Some(ResultKind::RunCompleted) => {
                self.completed(read(event));
                Some(())
            }
            Some(ResultKind::RunFailed) => {
                self.failed(read(event));
                Some(())
            }
            _ => self.other(event).then_some(()),
        };
        if read.is_none() {
            let known = kind.is_some();
            let code = if known { "unreadable_result" } else { "unknown_result_type" };
            let uri = self.out.event_uri();
            self.out.say(
                Draft::new(FactType::RuntimeWarning)
                    .refers(RefKind::Raw, uri.as_str())
                    .with("code", code)
                    .with("resultType", line(&event.kind))
                    .with("rawRef", uri),
            );
        }
    }

    /// Results that the contract does not name; false for one that nobody knows.
    fn other(&mut self, event: &RunEvent) -> bool {
        let Self { out, ids, tasks, tools, actions, imports, .. } = self;
        if out.source == Source::Import
            && let Some(read) = imports.say(out, ids, tools, actions, event)
        {
            return read;
        }
        match event.kind.as_str() {
            ui::SUBAGENT_STARTED => read(event).map(|start| tasks.subagent_started(out, ids, &start)).is_some(),
            ui::SUBAGENT_FINISHED => read(event).map(|end| tasks.subagent_ended(out, &end, false)).is_some(),
            ui::SUBAGENT_FAILED => read(event).map(|end| tasks.subagent_ended(out, &end, true)).is_some(),
            kind => claims::say(out, ids, tasks, kind, event.data.get()),
        }
    }

    fn steering(&mut self, data: &SteeringReceipt) {
        let channel = format!("{}:steering", self.ids.run());
        let scope = ScopeIds { channel_id: Some(channel), ..ScopeIds::default() };
        if !self.has_steering {
            self.has_steering = true;
            self.out.say(
                Draft::new(FactType::ChannelOpened)
                    .in_scope(&scope)
                    .with("channelType", "steering")
                    .with("targetThreadId", self.turn.thread.thread_id.as_str()),
            );
        }
        let uri = format!("/api/v1/events/{}", line(&data.event_id));
        self.out.say(
            Draft::new(FactType::ChannelMessage)
                .in_scope(&scope)
                .refers(RefKind::Raw, uri.as_str())
                .with("inputRef", uri)
                .with_some("fromTurnId", data.run_id.as_deref().map(line)),
        );
    }

    fn status(&mut self, status: &StatusChange) {
        let attempt = status.attempt.filter(|attempt| *attempt > self.ids.attempt());
        if let Some(attempt) = attempt {
            let before = self.ids.attempt();
            let why = "another attempt of the run began";
            self.close(Some(FailureCategory::HostRestarted), why);
            let (failed, started) = (self.of_attempt(before), self.of_attempt(attempt));
            let run = self.ids.run().to_owned();
            self.ids.begin_attempt(attempt);
            let category = FailureCategory::of_code(&status.reason).unwrap_or(FailureCategory::HostRestarted);
            self.out.say(
                Draft::new(FactType::TaskAttemptFailed)
                    .in_scope(&failed)
                    .with("runId", run.as_str())
                    .with("retryable", true)
                    .with("failureCategory", category.as_str())
                    .with("reason", line(&status.reason)),
            );
            self.out.say(
                Draft::new(FactType::RunStatus)
                    .with("phase", "retrying")
                    .with("attempt", attempt)
                    .with_some("until", status.until.map(crate::fact::timestamp)),
            );
            self.out.say(Draft::new(FactType::TaskAttemptStarted).in_scope(&started).with("runId", run).with("attempt", attempt));
            return;
        }
        let phase = match &*status.status {
            "waiting" => "waiting",
            "queued" => "queued",
            _ => "acting",
        };
        self.out.say(
            Draft::new(FactType::RunStatus)
                .with("phase", phase)
                .with("reason", line(&status.reason))
                .with_some("until", status.until.map(crate::fact::timestamp))
                .with_some("resumes", status.resumes),
        );
        if status.resumes.is_some() {
            let cursor = self.out.next();
            self.out.say(
                Draft::new(FactType::SnapshotUpdated)
                    .with("threadStatus", "running")
                    .with("status", "running")
                    .with("repairReason", "resumed")
                    .with("eventCursor", cursor.to_string()),
            );
        }
    }

    /// The scope of an attempt at the run.
    fn of_attempt(&self, attempt: u32) -> ScopeIds {
        ScopeIds {
            task_id: Some(self.ids.run().to_owned()),
            attempt_id: Some(self.ids.attempt_id(attempt)),
            ..ScopeIds::default()
        }
    }

    fn completed(&mut self, completion: Option<RunCompletion>) {
        let Self { out, ids, texts, models, .. } = self;
        let mut finish_reason = None;
        let mut usage = None;
        if let Some(completion) = completion {
            if let Some(message) = completion.message {
                texts.concluded(out, ids, models, message);
            }
            finish_reason = Some(completion.finish_reason);
            usage = completion.usage;
        }
        self.close(None, "the run ended before the end of this was recorded");
        if let Some(usage) = usage {
            models::claimed(&mut self.out, &usage, None);
        }
        let turn = Draft::new(FactType::TurnCompleted).with_some("finishReason", finish_reason.as_deref().map(line));
        self.end(turn, "completed", None);
    }

    fn failed(&mut self, failure: Option<RunFailure>) {
        let code = failure.as_ref().map_or("unknown", |failure| failure.code.as_str());
        let is_cancelled = code == CANCELLED;
        let category = FailureCategory::of_code(code).unwrap_or(match &failure {
            Some(_) => FailureCategory::ExecutionFailed,
            None => FailureCategory::Unknown,
        });
        let closing = if is_cancelled { "the turn was cancelled" } else { "the turn failed" };
        self.close(Some(category), closing);
        let message = failure.as_ref().map_or("the record does not say why the run failed", |failure| failure.message.as_str());
        if is_cancelled {
            let turn = Draft::new(FactType::TurnCanceled).with("reason", line(message));
            return self.end(turn, "canceled", Some(FailureCategory::Cancelled));
        }
        let turn = Draft::new(FactType::TurnFailed)
            .with("failureCategory", category.as_str())
            .with("code", line(code))
            .with("message", line(message))
            .with("retryable", failure.as_ref().is_some_and(|failure| failure.retryable))
            .with("recoveryHint", recovery_hint(code, category));
        self.end(turn, "failed", Some(category));
    }

    /// Ends all that is open. `failure`: the category of a turn that does not end well.
    fn close(&mut self, failure: Option<FailureCategory>, why: &str) {
        let Self { out, texts, models, tools, actions, tasks, imports, .. } = self;
        out.source = Source::Host;
        let category = failure.unwrap_or(FailureCategory::ProtocolViolation);
        actions.close(out, why);
        tools.close(out, category, why);
        tasks.close(out);
        imports.close(out, why);
        models.close(out, category, why);
        texts.close(out, failure, why);
    }

    fn end(&mut self, turn: Draft, status: &str, failure: Option<FailureCategory>) {
        let run = self.ids.run().to_owned();
        // The first attempt begins and ends with the turn, without facts of its own.
        if self.ids.attempt() > 1 {
            let draft = match failure {
                None => Draft::new(FactType::TaskAttemptCompleted),
                Some(category) => Draft::new(FactType::TaskAttemptFailed)
                    .with("retryable", false)
                    .with("failureCategory", category.as_str())
                    .with("reason", "the turn ended"),
            };
            let scope = self.of_attempt(self.ids.attempt());
            self.out.say(draft.in_scope(&scope).with("runId", run.as_str()));
        }
        let correlation = json!({
            "runtimeId": self.turn.runtime_id, "sessionId": self.turn.thread.session_id, "threadId": self.turn.thread.thread_id,
            "turnId": self.turn.turn_id, "runId": run, "traceId": self.turn.trace_id, "taskId": run,
        });
        self.out.say(tasks::evidence(&run).with("runtimeCorrelation", correlation));
        self.out.say(turn);
        let cursor = self.out.next();
        self.out.say(
            Draft::new(FactType::SnapshotUpdated)
                .with("threadStatus", status)
                .with("status", status)
                .with("eventCursor", cursor.to_string()),
        );
        self.is_over = true;
    }
}

fn state(out: &mut Out, data: StateData) {
    let uri = out.event_uri();
    let is_secret = crate::safe::is_secret_key(&data.key);
    let draft = Draft::new(FactType::ThreadUpdated).with("stateScope", line(&data.scope)).with("stateKey", line(&data.key));
    out.say(match small(data.value).filter(|_| !is_secret) {
        Some(value) => draft.with("value", value),
        None => draft.refers(RefKind::Raw, uri.as_str()).with("valueRef", uri),
    });
}

fn branch(out: &mut Out, data: &BranchStart) {
    out.say(
        Draft::new(FactType::ThreadUpdated)
            .with("change", "branched")
            .with("reason", data.reason.as_str())
            .with("fromEventRef", format!("/api/v1/events/{}", line(&data.from_event_id))),
    );
}

fn denied(out: &mut Out, denial: &PermissionDenial) {
    out.say(
        Draft::new(FactType::PermissionDenied)
            .with("reasonCode", line(&denial.code))
            .with("function", line(&denial.function))
            .with_some("resource", denial.resource.as_deref().map(line))
            .with("message", line(&denial.message))
            .with_some("repetitions", denial.count)
            .with("failureCategory", FailureCategory::PermissionDenied.as_str())
            .with("recoveryHint", FailureCategory::PermissionDenied.hint()),
    );
}

fn limited(out: &mut Out, limit: &Limit) {
    let value = json!(limit.value);
    let draft = |kind| {
        Draft::new(kind)
            .with("kind", line(&limit.limit))
            .with("limit", value.clone())
            .with_some("effect", limit.effect.as_deref().map(line))
            .with_some("repetitions", limit.count)
    };
    out.say(draft(FactType::LimitReached));
    if limit.limit == "host_calls_per_second" {
        out.say(draft(FactType::RateLimitHit).with("retryAfter", "1s"));
    } else {
        out.say(draft(FactType::QuotaBlocked).with("reasonCode", line(&limit.limit)));
    }
}

fn violated(out: &mut Out, violation: &Violation) {
    let category = FailureCategory::of_code(&violation.code).unwrap_or(FailureCategory::SandboxBlocked);
    for kind in [FactType::SandboxViolation, FactType::SandboxBlocked] {
        out.say(
            Draft::new(kind)
                .with("reasonCode", line(&violation.code))
                .with("message", line(&violation.message))
                .with("failureCategory", category.as_str())
                .with("recoveryHint", recovery_hint(&violation.code, category)),
        );
    }
}
