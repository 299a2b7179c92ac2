//! Scripted child runs, and scripted input for steering.

use std::time::Duration;

use serde_json::{Value, json};

use super::TestHost;
use crate::Failure;
use crate::contract::{RunEvent, RunStatus, RunSummary, StartRequest};
use crate::error::ApiError;
use crate::limits::millis;

/// Scripted child run. A text is a child that completes with this message immediately, a [`Failure`] a child that fails,
/// and an [`ApiError`] a refusal of the start.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReply {
    pub(super) refused: Option<ApiError>,
    pub(super) messages: Vec<String>,
    pub(super) end: Option<ScriptedEnd>,
    pub(super) after: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScriptedEnd {
    Completed,
    Failed(Failure),
    Cancelled(String),
    Timeout,
}

impl ChildReply {
    /// Creates a child that emits these messages in order and completes.
    #[must_use]
    pub fn messages<'m>(messages: impl IntoIterator<Item = &'m str>) -> Self {
        let messages = messages.into_iter().map(str::to_owned).collect();
        Self { refused: None, messages, end: Some(ScriptedEnd::Completed), after: Duration::ZERO }
    }

    /// Creates a child that fails.
    #[must_use]
    pub fn failed(code: &str, message: &str) -> Self {
        Failure::new(code, message).into()
    }

    /// Creates a child that exceeds its deadline.
    #[must_use]
    pub fn timeout() -> Self {
        Self { end: Some(ScriptedEnd::Timeout), ..Self::messages([]) }
    }

    /// Creates a child that never ends unless cancelled.
    #[must_use]
    pub fn never() -> Self {
        Self { end: None, ..Self::messages([]) }
    }

    /// Sets the duration, by the clock of the test, which advances when the runner waits.
    #[must_use]
    pub fn after(mut self, time: Duration) -> Self {
        self.after = time;
        self
    }
}

impl From<&str> for ChildReply {
    fn from(text: &str) -> Self {
        Self::messages([text])
    }
}

impl From<String> for ChildReply {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Failure> for ChildReply {
    fn from(failure: Failure) -> Self {
        Self { end: Some(ScriptedEnd::Failed(failure)), ..Self::messages([]) }
    }
}

impl From<ApiError> for ChildReply {
    fn from(error: ApiError) -> Self {
        Self { refused: Some(error), ..Self::messages([]) }
    }
}

/// Child of a run, in its state at the end of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct TestChild {
    /// Id of the child run.
    pub run_id: String,
    /// Request that started the child.
    pub request: StartRequest,
    /// Status at the end of the parent.
    pub status: RunStatus,
    /// Reason of the cancel by the parent; `None` if not cancelled.
    pub cancelled: Option<String>,
}

/// Child that was started.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) run_id: String,
    pub(super) parent: String,
    pub(super) request: StartRequest,
    pub(super) started_at: u64,
    /// End time and end; `None` if the child never ends.
    pub(super) ends: Option<(u64, ScriptedEnd)>,
    pub(super) messages: Vec<String>,
}

impl Child {
    pub(super) fn new(run_id: String, parent: String, request: StartRequest, now: u64, reply: ChildReply) -> Self {
        let at = now.saturating_add(millis(reply.after));
        Self { run_id, parent, request, started_at: now, ends: reply.end.map(|end| (at, end)), messages: reply.messages }
    }

    pub(super) fn ended(&self, now: u64) -> Option<&(u64, ScriptedEnd)> {
        self.ends.as_ref().filter(|(at, _)| *at <= now)
    }

    pub(super) fn status(&self, now: u64) -> RunStatus {
        match self.ended(now) {
            None => RunStatus::Running,
            Some((_, ScriptedEnd::Completed)) => RunStatus::Completed,
            Some((_, ScriptedEnd::Failed(_))) => RunStatus::Failed,
            Some((_, ScriptedEnd::Cancelled(_))) => RunStatus::Cancelled,
            Some((_, ScriptedEnd::Timeout)) => RunStatus::Timeout,
        }
    }

    pub(super) fn summary(&self, now: u64) -> RunSummary {
        let reason = self.ended(now).and_then(|(_, end)| match end {
            ScriptedEnd::Completed => None,
            ScriptedEnd::Failed(failure) => Some(failure.code.clone()),
            ScriptedEnd::Cancelled(reason) => Some(reason.clone()),
            ScriptedEnd::Timeout => Some("deadline_exceeded".to_owned()),
        });
        RunSummary {
            run_id: self.run_id.clone(),
            parent_run_id: Some(self.parent.clone()),
            runner_id: self.request.runner_id.clone(),
            status: self.status(now),
            status_reason: reason,
            created_at: self.started_at,
            finished_at: self.ended(now).map(|(at, _)| *at),
        }
    }

    /// Returns the events so far. All messages are emitted at the end.
    pub(super) fn events(&self, now: u64) -> Vec<RunEvent> {
        let mut events = vec![("run.status", json!({"status": "running"}), self.started_at)];
        if let Some((at, end)) = self.ended(now) {
            for (number, text) in self.messages.iter().enumerate() {
                let message = json!({"role": "assistant", "content": text});
                events.push(("message.completed", json!({"message_id": format!("m{}", number + 1), "message": message}), *at));
            }
            let failed = |code: &str, message: &str, retryable: bool| {
                ("run.failed", json!({"code": code, "message": message, "retryable": retryable}), *at)
            };
            events.push(match end {
                ScriptedEnd::Completed => ("run.completed", json!({"finish_reason": "stop"}), *at),
                ScriptedEnd::Failed(failure) => failed(&failure.code, &failure.message, failure.retryable),
                ScriptedEnd::Cancelled(reason) => failed("cancelled", reason, false),
                ScriptedEnd::Timeout => failed("deadline_exceeded", "the run took longer than it may", false),
            });
        }
        let event = |((kind, data, created_at), sequence): ((&str, Value, u64), u64)| RunEvent {
            run_id: self.run_id.clone(),
            sequence,
            type_: kind.to_owned(),
            data: data.to_string(),
            created_at,
        };
        events.into_iter().zip(1..).map(event).collect()
    }
}

/// Child runs, and input for steering.
impl TestHost {
    /// Sets the function that scripts the children of a runner. A runner without a script is not granted: `unauthorized`.
    pub fn child<R: Into<ChildReply>>(mut self, runner_id: &str, mut child: impl FnMut(&StartRequest) -> R + 'static) -> Self {
        let answer = Box::new(move |request: &StartRequest| child(request).into());
        self.host.beyond.runners.push((runner_id.to_owned(), answer));
        self
    }

    /// Adds input that is available when the next run starts. The manifest must declare steering.
    pub fn steering(self, text: &str) -> Self {
        self.arrives(Arrival::AtStart, text)
    }

    /// Adds input that arrives after this number of pulls of the next run.
    pub fn steering_after_pulls(self, pulls: usize, text: &str) -> Self {
        self.arrives(Arrival::AfterPulls(pulls), text)
    }

    /// Adds input that arrives after this number of results of the next run.
    pub fn steering_after_results(self, results: usize, text: &str) -> Self {
        self.arrives(Arrival::AfterResults(results), text)
    }

    fn arrives(mut self, when: Arrival, text: &str) -> Self {
        self.host.beyond.arrivals.push((when, text.to_owned()));
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrival {
    AtStart,
    AfterPulls(usize),
    AfterResults(usize),
}
