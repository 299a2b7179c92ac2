//! What a test makes child runs do.

use std::time::Duration;

use serde_json::{Value, json};

use super::TestHost;
use crate::Failure;
use crate::contract::{RunEvent, RunStatus, RunSummary, StartRequest};
use crate::error::ApiError;
use crate::limits::millis;

/// What a scripted child run does. A text is one: it says that and ends well, at once. A [`Failure`] is how it fails; an
/// [`ApiError`] is what the host answers instead of starting it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReply {
    pub(super) refused: Option<ApiError>,
    pub(super) messages: Vec<String>,
    pub(super) end: Option<Ending>,
    pub(super) after: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    Completed,
    Failed(Failure),
    Cancelled(String),
    Timeout,
}

impl ChildReply {
    /// It says these messages, one after the other, and ends well.
    #[must_use]
    pub fn messages<'m>(messages: impl IntoIterator<Item = &'m str>) -> Self {
        let messages = messages.into_iter().map(str::to_owned).collect();
        Self { refused: None, messages, end: Some(Ending::Completed), after: Duration::ZERO }
    }

    /// It fails.
    #[must_use]
    pub fn failed(code: &str, message: &str) -> Self {
        Failure::new(code, message).into()
    }

    /// It runs out of time.
    #[must_use]
    pub fn timeout() -> Self {
        Self { end: Some(Ending::Timeout), ..Self::messages([]) }
    }

    /// It never ends by itself.
    #[must_use]
    pub fn never() -> Self {
        Self { end: None, ..Self::messages([]) }
    }

    /// It takes so long, by the clock of the test, which moves when the runner waits.
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
        Self { end: Some(Ending::Failed(failure)), ..Self::messages([]) }
    }
}

impl From<ApiError> for ChildReply {
    fn from(error: ApiError) -> Self {
        Self { refused: Some(error), ..Self::messages([]) }
    }
}

/// A child that a run started, as it was when the run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TestChild {
    /// The child.
    pub run_id: String,
    /// What it was to do.
    pub request: StartRequest,
    /// How it was when its parent ended.
    pub status: RunStatus,
    /// Why the parent cancelled it, where it did.
    pub cancelled: Option<String>,
}

/// A child on its way.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) run_id: String,
    pub(super) parent: String,
    pub(super) request: StartRequest,
    pub(super) started_at: u64,
    /// When it ends, and how; none where it never does.
    pub(super) ends: Option<(u64, Ending)>,
    pub(super) messages: Vec<String>,
}

impl Child {
    pub(super) fn new(run_id: String, parent: String, request: StartRequest, now: u64, reply: ChildReply) -> Self {
        let at = now.saturating_add(millis(reply.after));
        Self { run_id, parent, request, started_at: now, ends: reply.end.map(|end| (at, end)), messages: reply.messages }
    }

    pub(super) fn ended(&self, now: u64) -> Option<&(u64, Ending)> {
        self.ends.as_ref().filter(|(at, _)| *at <= now)
    }

    pub(super) fn status(&self, now: u64) -> RunStatus {
        match self.ended(now) {
            None => RunStatus::Running,
            Some((_, Ending::Completed)) => RunStatus::Completed,
            Some((_, Ending::Failed(_))) => RunStatus::Failed,
            Some((_, Ending::Cancelled(_))) => RunStatus::Cancelled,
            Some((_, Ending::Timeout)) => RunStatus::Timeout,
        }
    }

    pub(super) fn summary(&self, now: u64) -> RunSummary {
        let reason = self.ended(now).and_then(|(_, end)| match end {
            Ending::Completed => None,
            Ending::Failed(failure) => Some(failure.code.clone()),
            Ending::Cancelled(reason) => Some(reason.clone()),
            Ending::Timeout => Some("deadline_exceeded".to_owned()),
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

    /// What it has done so far. What it says it says at its end.
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
                Ending::Completed => ("run.completed", json!({"finish_reason": "stop"}), *at),
                Ending::Failed(failure) => failed(&failure.code, &failure.message, failure.retryable),
                Ending::Cancelled(reason) => failed("cancelled", reason, false),
                Ending::Timeout => failed("deadline_exceeded", "the run took longer than it may", false),
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

/// Other runs, and input that arrives meanwhile.
impl TestHost {
    /// What children of this runner do, by what they are to do. A runner without a script is
    /// not granted: `unauthorized`.
    pub fn child<R: Into<ChildReply>>(mut self, runner_id: &str, mut child: impl FnMut(&StartRequest) -> R + 'static) -> Self {
        let answer = Box::new(move |request: &StartRequest| child(request).into());
        self.host.beyond.runners.push((runner_id.to_owned(), answer));
        self
    }

    /// Input that is there when the next run starts. The manifest must declare steering.
    pub fn steering(self, text: &str) -> Self {
        self.arrives(Arrival::AtStart, text)
    }

    /// Input that arrives after the next run has asked so many times.
    pub fn steering_after_pulls(self, pulls: usize, text: &str) -> Self {
        self.arrives(Arrival::AfterPulls(pulls), text)
    }

    /// Input that arrives after the next run has emitted so many results.
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
