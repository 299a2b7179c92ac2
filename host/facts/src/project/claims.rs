//! Facts that only a runner knows (results `fact.*`): plans, progress, handoffs, compacted history. The host keeps them as
//! claims of the runner.

use agent_host_protocol::{
    fact::{CONTEXT_COMPACTED, HANDOFF_COMPLETED, HANDOFF_REQUESTED, PLAN, RETRY, TASK_DEPENDENCY, TASK_PROGRESS, USAGE},
    message::TokenUsage,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ids::{Ids, Kind, label},
    models,
    out::{Draft, Out, Source},
    tasks::Tasks,
};
use crate::{
    fact::ScopeIds,
    kind::FactType,
    safe::{line, small},
};

/// Steps of a plan that are shown.
const MAX_STEPS: usize = 64;

#[derive(Deserialize)]
struct Plan {
    #[serde(default)]
    steps: Vec<PlanStep>,
    #[serde(default, rename = "final")]
    is_final: bool,
}

#[derive(Deserialize)]
struct PlanStep {
    step: String,
    #[serde(default)]
    status: Option<String>,
}

#[derive(Deserialize)]
struct Progress {
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    completed: Option<u64>,
    #[serde(default)]
    total: Option<u64>,
    #[serde(default)]
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Dependency {
    #[serde(default)]
    task_id: Option<String>,
    depends_on: Vec<String>,
}

#[derive(Deserialize)]
struct Handoff {
    handoff_id: String,
    target: String,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Compaction {
    #[serde(default)]
    items: Option<u64>,
    #[serde(default)]
    summary: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(flatten)]
    usage: TokenUsage,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Deserialize)]
struct Retry {
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    delay_ms: Option<u64>,
}

/// Says a claim; false for a result of another type, or of another form than its type has.
pub(super) fn say(out: &mut Out, ids: &mut Ids, tasks: &Tasks, kind: &str, data: &str) -> bool {
    match kind {
        PLAN => read(data).map(|plan: Plan| {
            let steps: Vec<Value> = plan
                .steps
                .iter()
                .take(MAX_STEPS)
                .map(|step| json!({ "step": line(&step.step), "status": step.status.as_deref().map(line) }))
                .collect();
            let kind = if plan.is_final { FactType::PlanFinal } else { FactType::PlanDelta };
            out.say(Draft::new(kind).with("plan", steps).with("stepCount", plan.steps.len()).by(Source::Runner));
        }),
        TASK_PROGRESS => read(data).map(|progress: Progress| {
            let scope = scope_of(ids, tasks, progress.task_id.as_deref());
            out.say(
                Draft::new(FactType::TaskProgress)
                    .in_scope(&scope)
                    .with("progress", json!({ "completedSteps": progress.completed, "totalSteps": progress.total }))
                    .with_some("detail", progress.detail.as_deref().map(line))
                    .by(Source::Runner),
            );
        }),
        TASK_DEPENDENCY => read(data).map(|dependency: Dependency| {
            let scope = scope_of(ids, tasks, dependency.task_id.as_deref());
            let named = |name: &String| scope_of(ids, tasks, Some(name)).task_id.unwrap_or_default();
            let depends_on: Vec<String> = dependency.depends_on.iter().take(MAX_STEPS).map(named).collect();
            out.say(
                Draft::new(FactType::TaskDependencyUpdated).in_scope(&scope).with("dependencies", depends_on).by(Source::Runner),
            );
        }),
        HANDOFF_REQUESTED | HANDOFF_COMPLETED => read(data).map(|handoff: Handoff| {
            let kind = if kind == HANDOFF_REQUESTED { FactType::HandoffRequested } else { FactType::HandoffCompleted };
            let id = format!("{}:handoff:{}", ids.run(), label(&handoff.handoff_id));
            out.say(
                Draft::new(kind)
                    .scope(|scope| scope.handoff_id = Some(id))
                    .with("handoffSource", ids.run())
                    .with("target", line(&handoff.target))
                    .with_some("reason", handoff.reason.as_deref().map(line))
                    .by(Source::Runner),
            );
        }),
        CONTEXT_COMPACTED => read(data).map(|compaction: Compaction| {
            out.say(
                Draft::new(FactType::HistoryCompacted)
                    .with_some("items", compaction.items)
                    .with_some("summary", compaction.summary.and_then(|summary| small(Value::String(summary))))
                    .by(Source::Runner),
            );
        }),
        USAGE => read(data).map(|Usage { usage, model }| models::claimed(out, &usage, model.as_deref())),
        RETRY => read(data).map(|retry: Retry| {
            out.say(
                Draft::new(FactType::RunStatus)
                    .with("phase", "retrying")
                    .with_some("reason", retry.reason.as_deref().map(line))
                    .with_some("delayMs", retry.delay_ms)
                    .by(Source::Runner),
            );
        }),
        _ => None,
    }
    .is_some()
}

/// The scope of a task that a runner names; the turn itself where it names none.
fn scope_of(ids: &mut Ids, tasks: &Tasks, name: Option<&str>) -> ScopeIds {
    match name {
        None => ScopeIds { task_id: Some(ids.run().to_owned()), ..ScopeIds::default() },
        Some(name) => tasks.find(name).cloned().unwrap_or_else(|| ScopeIds {
            task_id: Some(ids.known(Kind::Task, name)),
            parent_task_id: Some(ids.run().to_owned()),
            ..ScopeIds::default()
        }),
    }
}

fn read<'a, T: Deserialize<'a>>(data: &'a str) -> Option<T> {
    serde_json::from_str(data).ok()
}
