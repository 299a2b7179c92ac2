//! The read model of a task: a child run, a subagent that a runner claims, or a turn with its attempts.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    fact::{Fact, SCHEMA_VERSION},
    kind::FactType,
    model::{ArtifactRef, EvidenceRef, ObjectRef, keep, value},
};

/// Items of each list: the newest.
const MOST: usize = 100;

/// An attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Id of the attempt.
    pub attempt_id: String,
    /// `running`, `completed` or `failed`.
    pub status: String,
}

/// An agent that works on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubagentView {
    /// Id of the subagent.
    pub subagent_id: String,
    /// The runner, or the role that a runner claims.
    pub role: String,
    /// `running`, `completed` or `failed`.
    pub status: String,
    /// Channels to it.
    pub channel_ids: Vec<String>,
}

/// The progress of a task, as its runner says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskProgress {
    /// Steps that are done; `null` where nobody has said it.
    pub completed_steps: Option<u64>,
    /// All steps; `null` where nobody has said it.
    pub total_steps: Option<u64>,
}

/// A task, as far as one fact of its thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSnapshot {
    /// The version of the form.
    pub schema_version: String,
    /// The host.
    pub runtime_id: String,
    /// The conversation.
    pub session_id: String,
    /// The thread.
    pub thread_id: String,
    /// Id of the task.
    pub task_id: String,
    /// The task that it is part of.
    pub parent_task_id: Option<String>,
    /// The work to be done; `null` where the record does not say it.
    pub objective: Option<String>,
    /// `queued`, `running`, `waiting`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// The run that works on it; `null` for a task that a runner claims.
    pub current_run_id: Option<String>,
    /// Attempts, the newest last.
    pub attempts: Vec<Attempt>,
    /// Tasks that it waits for, as its runner says.
    pub dependencies: Vec<String>,
    /// Agents that work on it.
    pub subagents: Vec<SubagentView>,
    /// The progress; `null` where the record does not say it.
    pub progress: Option<TaskProgress>,
    /// Addresses of its outputs.
    pub outputs: Vec<String>,
    /// The artifacts of the task.
    pub artifact_refs: Vec<ArtifactRef>,
    /// The evidence of the task.
    pub evidence_refs: Vec<EvidenceRef>,
    /// The category of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
    /// The last fact that was read.
    pub event_cursor: String,
    /// Older items that the lists do not have.
    pub omitted: u64,
}

/// Folds the stream of a thread to one of its tasks.
#[derive(Debug)]
pub struct TaskFold {
    task_id: String,
    found: Option<TaskSnapshot>,
}

impl TaskFold {
    /// Of a task of which nothing is known yet. The id of a turn names the turn as a task.
    #[must_use]
    pub fn new(task_id: &str) -> Self {
        Self { task_id: task_id.to_owned(), found: None }
    }

    /// The task; `None` where the thread has none with this id.
    #[must_use]
    pub fn finish(self) -> Option<TaskSnapshot> {
        self.found
    }

    /// Takes the next fact of the thread.
    pub fn apply(&mut self, fact: &Fact) {
        let is_task = fact.scope.task_id.as_deref() == Some(self.task_id.as_str());
        let is = |id: &Option<String>| id.as_deref() == Some(self.task_id.as_str());
        let is_turn = is(&fact.turn_id) || is(&fact.run_id);
        if !is_task && !is_turn {
            if let Some(task) = &mut self.found {
                task.event_cursor = fact.sequence.to_string();
            }
            return;
        }
        let task = self.found.get_or_insert_with(|| TaskSnapshot {
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: fact.runtime_id.clone(),
            session_id: fact.session_id.clone(),
            thread_id: fact.thread_id.clone(),
            task_id: self.task_id.clone(),
            parent_task_id: None,
            objective: None,
            status: "queued".to_owned(),
            current_run_id: None,
            attempts: Vec::new(),
            dependencies: Vec::new(),
            subagents: Vec::new(),
            progress: None,
            outputs: Vec::new(),
            artifact_refs: Vec::new(),
            evidence_refs: Vec::new(),
            failure_category: None,
            event_cursor: String::new(),
            omitted: 0,
        });
        task.event_cursor = fact.sequence.to_string();
        if is_task {
            task.of_task(fact);
        } else {
            task.of_turn(fact);
        }
    }
}

impl TaskSnapshot {
    fn of_task(&mut self, fact: &Fact) {
        if self.parent_task_id.is_none() {
            self.parent_task_id.clone_from(&fact.scope.parent_task_id);
        }
        match fact.kind {
            FactType::TaskCreated => {
                self.objective = fact.text("objective").map(str::to_owned);
                "running".clone_into(&mut self.status);
            }
            FactType::SubagentStarted => {
                let subagent_id = fact.scope.subagent_id.clone().unwrap_or_default();
                let role = fact.text("role").unwrap_or_default().to_owned();
                let view = SubagentView { subagent_id, role, status: "running".to_owned(), channel_ids: Vec::new() };
                keep(&mut self.subagents, MOST, &mut self.omitted, view);
            }
            FactType::ChannelOpened => {
                // A channel leads to a run of the host: the task is that run.
                self.current_run_id = fact.text("targetThreadId").map(str::to_owned);
                if let (Some(last), Some(channel)) = (self.subagents.last_mut(), fact.scope.channel_id.clone()) {
                    last.channel_ids.push(channel);
                    last.channel_ids.truncate(MOST);
                }
            }
            FactType::SubagentCompleted | FactType::SubagentFailed => {
                let status = if fact.kind == FactType::SubagentCompleted { "completed" } else { "failed" };
                let of_fact = fact.scope.subagent_id.as_deref();
                for view in self.subagents.iter_mut().filter(|view| Some(view.subagent_id.as_str()) == of_fact) {
                    status.clone_into(&mut view.status);
                }
            }
            FactType::TaskCompleted => self.end("completed", fact),
            FactType::TaskFailed | FactType::TaskTimedOut => self.end("failed", fact),
            FactType::TaskCancelled => self.end("cancelled", fact),
            FactType::TaskAttemptStarted => {
                let attempt_id = fact.scope.attempt_id.clone().unwrap_or_default();
                keep(&mut self.attempts, MOST, &mut self.omitted, Attempt { attempt_id, status: "running".to_owned() });
            }
            FactType::TaskAttemptCompleted | FactType::TaskAttemptFailed => {
                let status = if fact.kind == FactType::TaskAttemptFailed { "failed" } else { "completed" };
                let attempt_id = fact.scope.attempt_id.clone().unwrap_or_default();
                match self.attempts.iter_mut().find(|attempt| attempt.attempt_id == attempt_id) {
                    Some(known) => status.clone_into(&mut known.status),
                    // The first attempt begins with the run, without a fact of its own.
                    None => keep(&mut self.attempts, MOST, &mut self.omitted, Attempt { attempt_id, status: status.to_owned() }),
                }
            }
            FactType::TaskProgress => {
                let number = |key: &str| value(fact, "progress").get(key).and_then(Value::as_u64);
                self.progress =
                    Some(TaskProgress { completed_steps: number("completedSteps"), total_steps: number("totalSteps") });
            }
            FactType::TaskDependencyUpdated => {
                let listed = fact.payload.get("dependencies").and_then(Value::as_array);
                self.dependencies =
                    listed.into_iter().flatten().filter_map(Value::as_str).take(MOST).map(str::to_owned).collect();
            }
            _ => self.refers(fact),
        }
    }

    /// A fact of the turn that is this task.
    fn of_turn(&mut self, fact: &Fact) {
        self.current_run_id.clone_from(&fact.run_id);
        match fact.kind {
            FactType::TurnSubmitted => self.objective = fact.text("inputPreview").map(str::to_owned),
            FactType::TurnStarted => "running".clone_into(&mut self.status),
            FactType::RunStatus if fact.text("phase") == Some("waiting") => "waiting".clone_into(&mut self.status),
            FactType::RunStatus if fact.text("phase") == Some("acting") => "running".clone_into(&mut self.status),
            FactType::TurnCompleted => self.end("completed", fact),
            FactType::TurnFailed => self.end("failed", fact),
            FactType::TurnCanceled => self.end("cancelled", fact),
            // Artifacts of other tasks are theirs.
            _ if fact.scope.task_id.is_none() => self.refers(fact),
            _ => {}
        }
    }

    fn refers(&mut self, fact: &Fact) {
        match fact.kind {
            FactType::ArtifactChanged => {
                if let Some(artifact) = ObjectRef::artifact(fact) {
                    keep(&mut self.artifact_refs, MOST, &mut self.omitted, artifact);
                }
            }
            FactType::EvidenceChanged => {
                if let Some(evidence) = ObjectRef::evidence(fact) {
                    keep(&mut self.evidence_refs, MOST, &mut self.omitted, evidence);
                }
            }
            FactType::OutputSpilled => {
                if let Some(output) = fact.text("outputRef") {
                    keep(&mut self.outputs, MOST, &mut self.omitted, output.to_owned());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, status: &str, fact: &Fact) {
        status.clone_into(&mut self.status);
        self.failure_category = fact.text("failureCategory").map(str::to_owned);
        if let Some(last) = self.attempts.last_mut().filter(|last| last.status == "running") {
            if status == "completed" { "completed" } else { "failed" }.clone_into(&mut last.status);
        }
    }
}
