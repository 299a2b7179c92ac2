//! The source of a turn, besides its record.

use agent_host_protocol::{Event, Grant, Run, RunId, Timestamp, grant::of_end_user, message::ArtifactRef, run::Execution};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The ids of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThreadIds {
    /// The conversation; the run where there is none.
    pub session_id: String,
    /// The thread in the conversation, or the conversation.
    pub thread_id: String,
}

impl ThreadIds {
    /// The thread that a run belongs to: its conversation, or the run itself.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        match &run.conversation_id {
            Some(conversation) => Self::new(conversation, run.thread_id.as_deref()),
            None => Self::new(&run.run_id.to_string(), None),
        }
    }

    /// The ids of a thread in a conversation. The thread of an end user is named like the conversation, as the end user knows it.
    #[must_use]
    pub fn new(conversation: &str, thread: Option<&str>) -> Self {
        let own = of_end_user("");
        let thread = thread.filter(|thread| !thread.is_empty() && !thread.starts_with(&own)).unwrap_or(conversation);
        Self { session_id: conversation.to_owned(), thread_id: thread.to_owned() }
    }
}

/// The output of a child run that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildOutput {
    /// The artifacts that its record names, in order.
    pub artifacts: Vec<ArtifactRef>,
}

/// Reads child runs that have ended. A reader gives the same answer whenever it is asked.
pub trait Children {
    /// The output of a child whose end is in the record of its parent.
    fn output(&self, child: RunId) -> ChildOutput;
}

/// No child has any output.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoChildren;

impl Children for NoChildren {
    fn output(&self, _: RunId) -> ChildOutput {
        ChildOutput::default()
    }
}

/// The terms of a run, as far as facts say them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TurnTerms {
    /// The rights of the run.
    pub grant: Option<Grant>,
    /// Time limit, in ms.
    pub deadline_ms: Option<u64>,
    /// The tokens and the cost that the run may use.
    pub budget: Option<TurnBudget>,
}

/// The budget of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TurnBudget {
    /// Tokens.
    #[serde(rename = "max_tokens")]
    pub tokens: Option<u64>,
    /// Cost in millionths of the currency.
    #[serde(rename = "max_cost_micros")]
    pub cost_micros: Option<u64>,
}

impl TurnTerms {
    /// The terms in their stored form. Terms of another form say nothing.
    #[must_use]
    pub fn read(terms: &RawValue) -> Self {
        serde_json::from_str(terms.get()).unwrap_or_default()
    }
}

/// A turn, before its record is read: what is set when a run is created, and once when it begins or ends.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The host.
    pub runtime_id: String,
    /// The run.
    pub run_id: RunId,
    /// The id of the turn: that of the run, unless the client has given it one.
    pub turn_id: String,
    /// The thread.
    pub thread: ThreadIds,
    /// True for the first turn of its thread.
    pub is_first: bool,
    /// The number of its first fact in the thread.
    pub first_sequence: u64,
    /// The agent that answers.
    pub agent: String,
    /// The runner.
    pub runner_id: String,
    /// The run that started it.
    pub parent_run_id: Option<RunId>,
    /// The run that it is another attempt at.
    pub retry_of: Option<RunId>,
    /// The place of execution.
    pub execution: Execution,
    /// True if the run has a place in a queue.
    pub has_queue: bool,
    /// Creation time.
    pub created_at: Timestamp,
    /// Start of the run; `None` for a run that ended without beginning.
    pub started_at: Option<Timestamp>,
    /// The terms.
    pub terms: TurnTerms,
    /// Id of the event that the run answers.
    pub event_id: String,
    /// The source of the event, such as `api`.
    pub origin: String,
    /// The beginning of the input.
    pub input: Option<String>,
    /// The trace of the event.
    pub trace_id: Option<String>,
}

impl Turn {
    /// A turn that has a place in its thread. `event` is the event that the run answers.
    #[must_use]
    pub fn new(
        runtime_id: &str,
        run: &Run,
        event: Option<&Event>,
        terms: TurnTerms,
        is_first: bool,
        first_sequence: u64,
    ) -> Self {
        let envelope = event.map(|event| &event.envelope);
        Self {
            runtime_id: runtime_id.to_owned(),
            run_id: run.run_id,
            turn_id: run.run_id.to_string(),
            thread: ThreadIds::of(run),
            is_first,
            first_sequence,
            agent: if run.agent_id.is_empty() { run.binding_id.clone() } else { run.agent_id.clone() },
            runner_id: run.runner_id.to_string(),
            parent_run_id: run.parent_run_id,
            retry_of: run.retry_of,
            execution: run.execution,
            has_queue: run.queue.is_some(),
            created_at: run.created_at,
            started_at: run.started_at,
            terms,
            event_id: run.event_id.to_string(),
            origin: envelope.map_or_else(|| "unknown".to_owned(), |envelope| envelope.source.clone()),
            input: envelope.and_then(|envelope| envelope.input.text.clone()).filter(|text| !text.is_empty()),
            trace_id: envelope.and_then(|envelope| envelope.trace_id.clone()),
        }
    }
}
