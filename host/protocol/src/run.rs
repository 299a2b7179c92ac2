//! Runs: one execution of one runner for one event, and the one machine of its status.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{
    error::FailureCode,
    grant::ConversationKey,
    id::{EventId, RunId, RunnerId},
    message::{Message, TokenUsage},
    record_digest::RecordDigest,
    time::Timestamp,
};

/// The status of a run.
///
/// ```text
/// created ─► [queued ─► dispatching ─► claimed ─►] running ⇄ waiting ─► completed | failed | cancelled | timeout
/// ```
///
/// A run is `dispatching` while it is offered to an executor. An offer that the executor does not take, and a claim that is given
/// back or lost, make a run `queued` again. A terminal status is final. [`RunStatus::transition`] is the only way from one to
/// the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum RunStatus {
    Created,
    Queued,
    Dispatching,
    Claimed,
    Running,
    Waiting,
    Completed,
    Failed,
    Cancelled,
    Timeout,
}

/// A step that the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot become {to}")]
pub struct IllegalTransition {
    /// Present status.
    pub from: RunStatus,
    /// Refused status.
    pub to: RunStatus,
}

impl RunStatus {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Created,
        Self::Queued,
        Self::Dispatching,
        Self::Claimed,
        Self::Running,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
    ];

    /// The status as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Queued => "queued",
            Self::Dispatching => "dispatching",
            Self::Claimed => "claimed",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }

    /// The status with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// True if no other status can follow.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout)
    }

    /// The one function by which a run moves.
    ///
    /// # Errors
    /// [`IllegalTransition`] where the machine has no such step: the status stays as it is.
    pub const fn transition(self, to: Self) -> Result<Self, IllegalTransition> {
        use RunStatus::{Cancelled, Claimed, Completed, Created, Dispatching, Failed, Queued, Running, Timeout, Waiting};
        let legal = match (self, to) {
            // A run that has not started can only start, wait its turn, or be called off.
            (Created, Queued | Running)
            | (Queued, Dispatching | Claimed | Running)
            | (Dispatching, Claimed)
            | (Claimed, Running) => true,
            // An offer that was not taken, or a claim given back or lost.
            (Dispatching | Claimed | Running | Waiting, Queued) => true,
            (Running, Waiting) | (Waiting, Running) => true,
            (Running, Completed) => true,
            (Created | Queued | Dispatching | Claimed | Running | Waiting, Failed | Cancelled | Timeout) => true,
            _ => false,
        };
        if legal { Ok(to) } else { Err(IllegalTransition { from: self, to }) }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The failure of a run: the `data` of `run.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunFailure {
    /// A [`FailureCode`], or a code of the runner.
    pub code: String,
    /// Description, for a person.
    pub message: String,
    /// True if another attempt may succeed.
    #[serde(default)]
    pub retryable: bool,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl RunFailure {
    /// A failure that the host found.
    pub fn host(code: FailureCode, message: impl Into<String>) -> Self {
        let retryable = matches!(code, FailureCode::HostRestarted | FailureCode::HostError);
        Self { code: code.as_str().to_owned(), message: message.into(), retryable, details: None }
    }
}

/// The completion of a run: the `data` of `run.completed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunCompletion {
    /// `stop`, `length`, `tool-calls`, `handoff`, ...
    pub finish_reason: String,
    /// The final message, where no `message.completed` carried it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Usage that the runner reports of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The use of models, as the host measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ModelUsage {
    /// Number of ended calls, failed ones included. 0 in runs stored before the host measured: their
    /// `usage` is what the runner reported.
    #[serde(default)]
    pub calls: u64,
    /// Number of calls whose provider reported no tokens; the other fields lack these calls.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unmeasured_calls: u64,
    /// Tokens read, cached ones included.
    pub input: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// Of `input`, how many came from a cache.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cached_input: u64,
    /// Of `output`, how many were reasoning.
    #[serde(default, skip_serializing_if = "is_none")]
    pub reasoning: u64,
    /// Cost in millionths of the currency of the prices. Absent where no called model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

impl ModelUsage {
    /// Counts one ended call.
    pub fn count(&mut self, usage: Option<&TokenUsage>, cost_micros: Option<u64>) {
        let mut call = Self { calls: 1, cost_micros, ..Self::default() };
        match usage {
            Some(usage) => {
                (call.input, call.output) = (usage.input, usage.output);
                call.cached_input = usage.cached_input.unwrap_or(0);
                call.reasoning = usage.reasoning.unwrap_or(0);
            }
            None => call.unmeasured_calls = 1,
        }
        self.add(&call);
    }

    /// Adds the use of others.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.calls, other.calls);
        add(&mut self.unmeasured_calls, other.unmeasured_calls);
        add(&mut self.input, other.input);
        add(&mut self.output, other.output);
        add(&mut self.cached_input, other.cached_input);
        add(&mut self.reasoning, other.reasoning);
        self.cost_micros = match (self.cost_micros, other.cost_micros) {
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            (one, other) => one.or(other),
        };
    }

    /// The tokens, read and written.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The one end of a run.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Terminal {
    Completed(RunCompletion),
    Failed(RunFailure),
    Cancelled { reason: String },
    Timeout { message: String },
}

impl Terminal {
    /// The status that it gives.
    #[must_use]
    pub const fn status(&self) -> RunStatus {
        match self {
            Self::Completed(_) => RunStatus::Completed,
            Self::Failed(_) => RunStatus::Failed,
            Self::Cancelled { .. } => RunStatus::Cancelled,
            Self::Timeout { .. } => RunStatus::Timeout,
        }
    }

    /// The failure that a run without a good end shows.
    #[must_use]
    pub fn failure(&self) -> Option<RunFailure> {
        match self {
            Self::Completed(_) => None,
            Self::Failed(failure) => Some(failure.clone()),
            Self::Cancelled { reason } => Some(RunFailure::host(FailureCode::Cancelled, reason.clone())),
            Self::Timeout { message } => Some(RunFailure::host(FailureCode::DeadlineExceeded, message.clone())),
        }
    }
}

/// The place of execution of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Execution {
    /// The host, as a guest in its sandbox.
    #[default]
    Host,
    /// An executor, which claims it from its queue.
    External,
}

impl Execution {
    /// True if the host executes the run.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub const fn is_host(&self) -> bool {
        matches!(self, Self::Host)
    }
}

/// The queue that a queue has where nobody names one.
pub const DEFAULT_QUEUE: &str = "default";

/// The place of a run in a queue, and its claim. `claims` is the number of the claim, which fences late writes: every claim
/// of a run has a higher number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueEntry {
    /// The queue.
    pub name: String,
    /// Higher ones first, then older ones.
    #[serde(default)]
    pub priority: i32,
    /// Labels that an executor must have to claim the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Time at which the run was last put into the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    /// Earliest time of a claim: the end of the pause before another attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Number of claims.
    #[serde(default)]
    pub claims: u32,
    /// Executor that holds the claim, while the claim is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_id: Option<String>,
    /// Time of the last claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// Time at which the claim is lost unless the lease is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// Number of the last result that the executor has appended in this claim.
    #[serde(default)]
    pub appended: u64,
}

impl QueueEntry {
    /// A place in a queue that nobody has claimed.
    #[must_use]
    pub fn new(name: impl Into<String>, priority: i32) -> Self {
        Self {
            name: name.into(),
            priority,
            labels: BTreeMap::new(),
            queued_at: None,
            not_before: None,
            claims: 0,
            executor_id: None,
            claimed_at: None,
            lease_expires_at: None,
            appended: 0,
        }
    }
}

/// A run, as the ledger keeps it and as clients see it (run ledger note, section 4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Id of the run.
    pub run_id: RunId,
    /// The run that started it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The run that this one is another attempt at, where a client asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// The event that it answers.
    pub event_id: EventId,
    /// The agent that answers: the binding, by the name that front ends use.
    #[serde(default)]
    pub agent_id: String,
    /// The binding that made it.
    pub binding_id: String,
    /// The runner.
    pub runner_id: RunnerId,
    /// Version of the plugin when the run was created.
    pub runner_version: String,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Place of execution.
    #[serde(default, skip_serializing_if = "Execution::is_host")]
    pub execution: Execution,
    /// Place in a queue, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Box<QueueEntry>>,
    /// The place of the run among the turns of its conversation: 1 for the first. Given in the commit in which the run begins, or
    /// ends without having begun. Absent before, for a run without a conversation, and for runs of hosts before turns were
    /// numbered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// Status of the run.
    pub status: RunStatus,
    /// Reason of the status: the failure code, the reason of the cancellation, or the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// The failure, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RunFailure>,
    /// 1 for the first try.
    pub attempt: u32,
    /// Number of resumptions after a stop of the host.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumes: u32,
    /// Creation time.
    pub created_at: Timestamp,
    /// Start of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// End of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Time of the last change of this record.
    pub updated_at: Timestamp,
    /// Deadline. Counted from the start of the guest, so waiting in line does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// Time of the cancel request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// Reason of the cancel request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// Number of events.
    pub last_sequence: u64,
    /// Digest of these events and of the event that the run answers: evidence is compared with it. Absent in runs that were created
    /// before the host kept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub record_digest: Option<RecordDigest>,
    /// Use of models by the run, as the host measured it, all models together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
    /// The same by model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_by_model: BTreeMap<String, ModelUsage>,
    /// Usage that the runner reported of itself. The host does not check it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_usage: Option<TokenUsage>,
    /// Use of models by the children of the run and their descendants, as far as their ends are in the record of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children_usage: Option<ModelUsage>,
    /// More of it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Run {
    /// Use of models by the run and its descendants.
    #[must_use]
    pub fn total_usage(&self) -> ModelUsage {
        let mut total = self.usage.unwrap_or_default();
        total.add(&self.children_usage.unwrap_or_default());
        total
    }

    /// The conversation of its event, where that has one.
    #[must_use]
    pub fn conversation_key(&self) -> Option<ConversationKey> {
        let (workspace, thread) = (self.workspace_id.as_deref(), self.thread_id.as_deref());
        let id = self.conversation_id.as_deref()?;
        Some(ConversationKey::new(workspace.unwrap_or_default(), id, thread.unwrap_or_default()))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn statuses_read_back() {
        for status in RunStatus::ALL {
            assert_eq!(RunStatus::from_name(status.as_str()), Some(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn every_status_can_be_reached_and_every_life_can_end() {
        for status in RunStatus::ALL {
            if status != RunStatus::Created {
                assert!(RunStatus::ALL.into_iter().any(|from| from.transition(status).is_ok()), "{status} cannot be reached");
            }
            let ends = RunStatus::ALL.into_iter().any(|to| to.is_terminal() && status.transition(to).is_ok());
            assert_eq!(ends, !status.is_terminal(), "{status}");
        }
    }

    proptest! {
        /// In any order of transitions, a run completes only from `running`, never leaves a terminal status, and never
        /// becomes `created` again.
        #[test]
        fn any_walk_keeps_the_rules(asked in prop::collection::vec(prop::sample::select(RunStatus::ALL.to_vec()), 0..64)) {
            let mut status = RunStatus::Created;
            let mut was_running = false;
            for to in asked {
                let before = status;
                match status.transition(to) {
                    Ok(next) => {
                        prop_assert!(!before.is_terminal() && next == to && next != RunStatus::Created);
                        prop_assert!(next != RunStatus::Completed || before == RunStatus::Running);
                        status = next;
                    }
                    Err(IllegalTransition { from, to: refused }) => prop_assert!(from == before && refused == to),
                }
                was_running |= status == RunStatus::Running;
            }
            prop_assert!(status != RunStatus::Completed || was_running);
        }
    }
}
