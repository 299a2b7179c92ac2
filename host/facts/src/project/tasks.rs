//! Other runs and agents that work for the turn: tasks, subagents and the channels to them.

use agent_host_protocol::{RunId, RunStatus, message::ArtifactRef};
use serde::Deserialize;
use serde_json::Value;

use super::{
    ids::{Ids, Kind},
    models,
    out::{Draft, Out, Source, artifact_uri},
    turn::Children,
};
use crate::{
    fact::{RefKind, ScopeIds},
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::{ChildEnd, ChildStart},
    safe::line,
};

/// Artifacts of a child that are named: the others are in the thread of the child.
const MAX_ARTIFACTS: usize = 100;

/// The tasks of an attempt.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    children: OpenElements<ScopeIds>,
    /// Subagents that a runner claims, by its names.
    claimed: OpenElements<ScopeIds>,
}

#[derive(Deserialize)]
pub(super) struct SubagentStart {
    subagent_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    description: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct SubagentEnd {
    subagent_id: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    code: Option<String>,
}

/// The end of a task.
#[derive(Clone, Copy)]
enum TaskEnd {
    Completed,
    Failed(FailureCategory),
}

impl Tasks {
    pub(super) fn child_started(&mut self, out: &mut Out, ids: &mut Ids, start: &ChildStart) {
        if self.children.contains(&start.run_id) {
            return out.warn("duplicate_task", "a run was started that had been started before");
        }
        let scope = opened(out, ids, &start.run_id, &start.objective, &start.runner_id, None);
        out.say(
            Draft::new(FactType::ChannelOpened)
                .in_scope(&ScopeIds { channel_id: scope.task_id.as_ref().map(|task| format!("{task}:channel")), ..scope.clone() })
                .with("channelType", "subagent")
                .with("targetThreadId", line(&start.run_id)),
        );
        self.children.insert(&start.run_id, scope);
    }

    pub(super) fn child_ended(&mut self, out: &mut Out, children: &dyn Children, end: &ChildEnd) {
        let Some(scope) = self.children.remove(&end.run_id) else {
            return out.warn("task_end_without_start", "a run ended that had not been started");
        };
        let task = scope.task_id.clone().unwrap_or_default();
        if let Ok(child) = end.run_id.parse::<RunId>() {
            for found in children.output(child).artifacts.iter().take(MAX_ARTIFACTS) {
                out.say(artifact(found).in_scope(&ScopeIds { artifact_id: Some(found.artifact_id.clone()), ..scope.clone() }));
            }
            out.say(
                evidence(&child.to_string())
                    .in_scope(&ScopeIds { evidence_id: Some(evidence_id(&child.to_string())), ..scope.clone() }),
            );
        }
        models::of_child(out, &task, end.usage.as_ref());
        match end.status {
            Some(RunStatus::Completed) => ended(out, &scope, TaskEnd::Completed, FactType::TaskCompleted, None),
            Some(RunStatus::Cancelled) => {
                ended(out, &scope, TaskEnd::Failed(FailureCategory::Cancelled), FactType::TaskCancelled, None);
            }
            Some(RunStatus::Timeout) => {
                ended(out, &scope, TaskEnd::Failed(FailureCategory::DeadlineExceeded), FactType::TaskTimedOut, None);
            }
            Some(_) => {
                let why = Some("the record of the child has the reason");
                ended(out, &scope, TaskEnd::Failed(FailureCategory::ExecutionFailed), FactType::TaskFailed, why);
            }
            None => {
                let why = Some("the record does not say how");
                ended(out, &scope, TaskEnd::Failed(FailureCategory::Unknown), FactType::TaskFailed, why);
            }
        }
    }

    pub(super) fn subagent_started(&mut self, out: &mut Out, ids: &mut Ids, start: &SubagentStart) {
        if self.claimed.contains(&start.subagent_id) {
            return;
        }
        let objective = start.description.as_deref().unwrap_or_default();
        let scope = opened(out, ids, &start.subagent_id, objective, &start.name, Some(Source::Runner));
        self.claimed.insert(&start.subagent_id, scope);
    }

    pub(super) fn subagent_ended(&mut self, out: &mut Out, end: &SubagentEnd, has_failed: bool) {
        let Some(scope) = self.claimed.remove(&end.subagent_id) else { return };
        if has_failed {
            let category = end.code.as_deref().and_then(FailureCategory::of_code).unwrap_or(FailureCategory::ExecutionFailed);
            ended(out, &scope, TaskEnd::Failed(category), FactType::TaskFailed, end.message.as_deref());
        } else {
            ended(out, &scope, TaskEnd::Completed, FactType::TaskCompleted, None);
        }
    }

    /// The task that a runner names, where it is one that the turn has.
    pub(super) fn find(&self, name: &str) -> Option<&ScopeIds> {
        self.claimed.get(name).or_else(|| self.children.get(name))
    }

    /// Ends all open tasks: none outlives its turn.
    pub(super) fn close(&mut self, out: &mut Out) {
        for (_, scope) in self.children.take().into_iter().chain(self.claimed.take()) {
            let why = Some("its turn ended before the end of the task was recorded");
            ended(out, &scope, TaskEnd::Failed(FailureCategory::Cancelled), FactType::TaskCancelled, why);
        }
    }
}

fn opened(out: &mut Out, ids: &mut Ids, name: &str, objective: &str, role: &str, by: Option<Source>) -> ScopeIds {
    // The id of a run is unique in the host; the name of a claimed subagent is not.
    let is_run = name.parse::<RunId>().is_ok();
    let task = if is_run { ids.foreign(Kind::Task, name) } else { ids.of(Kind::Task, name) };
    let run = ids.run().to_owned();
    let scope = ScopeIds {
        subagent_id: Some(task.clone()),
        task_id: Some(task),
        parent_task_id: Some(run.clone()),
        ..ScopeIds::default()
    };
    let by = by.unwrap_or(out.source);
    let objective = Some(objective).filter(|objective| !objective.is_empty());
    let draft = Draft::new(FactType::TaskCreated).in_scope(&scope).with("parentRunId", run.as_str()).by(by);
    out.say(match objective {
        Some(objective) => draft.with("objective", line(objective)),
        None => draft.with("objective", Value::Null).with("reason", "not_recorded"),
    });
    out.say(
        Draft::new(FactType::SubagentStarted)
            .in_scope(&scope)
            .with("role", line(role))
            .with("title", line(objective.unwrap_or(role)))
            .with("parentRunId", run)
            .by(by),
    );
    scope
}

fn ended(out: &mut Out, scope: &ScopeIds, end: TaskEnd, task: FactType, why: Option<&str>) {
    let (subagent, category) = match end {
        TaskEnd::Completed => (FactType::SubagentCompleted, None),
        TaskEnd::Failed(category) => (FactType::SubagentFailed, Some(category)),
    };
    for kind in [subagent, task] {
        let draft = Draft::new(kind).in_scope(scope).with_some("reason", why.map(line));
        out.say(match category {
            Some(category) => draft.with("failureCategory", category.as_str()).with("recoveryHint", category.hint()),
            None => draft,
        });
    }
}

/// An artifact, as a fact. Its content is read at its address.
pub(super) fn artifact(artifact: &ArtifactRef) -> Draft {
    let uri = artifact_uri(&artifact.artifact_id);
    let title = artifact.name.as_deref().unwrap_or(&artifact.artifact_id);
    Draft::new(FactType::ArtifactChanged)
        .scope(|scope| scope.artifact_id = Some(artifact.artifact_id.clone()))
        .refers(RefKind::Artifact, uri.as_str())
        .with("title", line(title))
        .with("mimeType", line(&artifact.media_type))
        .with("contentRef", uri)
        .with_some("bytes", artifact.size)
        .with_some("sha256", artifact.sha256.as_deref())
}

/// The id of the evidence of a run.
pub(super) fn evidence_id(run: &str) -> String {
    format!("{run}:evidence")
}

/// The evidence of a run, as a fact. It is made when it is read.
pub(super) fn evidence(run: &str) -> Draft {
    let uri = format!("/api/v1/runs/{run}/evidence");
    Draft::new(FactType::EvidenceChanged)
        .scope(|scope| scope.evidence_id = Some(evidence_id(run)))
        .refers(RefKind::Evidence, uri.as_str())
        .with("packRef", uri)
        .with("evidenceRunId", run)
}
