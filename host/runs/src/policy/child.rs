//! The terms of a child run: what its parent was granted and its own manifest asks for.

use std::time::Duration;

use agent_host_config::Budget;
use agent_host_protocol::{
    Grant,
    manifest::{ArtifactOperation, EventOperation, RunOperation, StateScope},
    run::Execution,
};
use agent_host_sandbox::Runner;
use serde_json::{Map, Value};

use crate::record::terms::Terms;

/// The terms of a child of a run with the terms `parent`, which has `time_left` until its deadline and `budget` left.
pub(crate) fn terms(parent: &Terms, runner: &Runner, config: Map<String, Value>, time_left: Duration, budget: Budget) -> Terms {
    let mut delivery = parent.delivery.clone();
    "run".clone_into(&mut delivery.surface);
    delivery.reply_target = None;
    Terms {
        grant: grant(&parent.grant, runner),
        config,
        delivery,
        deadline_ms: u64::try_from(time_left.max(Duration::from_millis(1)).as_millis()).unwrap_or(u64::MAX),
        waiting_counts: parent.waiting_counts,
        bootstrap: None,
        inline_reason: None,
        durability: parent.durability,
        max_attempts: parent.max_attempts,
        in_doubt: parent.in_doubt,
        budget: parent.budget.map(|_| budget),
        charged_key: parent.charged_key.clone(),
        approvals: parent.approvals.clone(),
        execution: Execution::Host,
        queue: None,
        ad_hoc: false,
        streamed: false,
        // The parent receives the outcome.
        deliver: Vec::new(),
        depth: parent.depth + 1,
        refusal: None,
    }
}

/// The grant of a child: manifest of the child ∩ grant of the parent. A child has no conversation, so it neither reads
/// history nor adds to a transcript; of the events it reads its own.
fn grant(parent: &Grant, runner: &Runner) -> Grant {
    let manifest = &runner.manifest;
    let mut permissions = manifest.permissions.intersection(&parent.permissions);
    permissions.history.clear();
    permissions.conversations.clear();
    permissions.events.retain(|operation| *operation == EventOperation::Get);
    permissions.state.retain(|scope| *scope != StateScope::Conversation);
    fn of<T: Clone>(all: &[T], may: bool) -> Vec<T> {
        if may { all.to_vec() } else { Vec::new() }
    }
    let reads = permissions.artifacts.contains(&ArtifactOperation::Read);
    Grant {
        runner_id: manifest.id.clone(),
        component: runner.component.digest().to_owned(),
        models: of(&parent.models, !permissions.models.is_empty()),
        tools: of(&parent.tools, !permissions.tools.is_empty()),
        // The client of the parent answers calls of the parent, and knows nothing of a child.
        client_tools: Vec::new(),
        knowledge_bases: of(&parent.knowledge_bases, !permissions.knowledge_bases.is_empty()),
        runners: of(&parent.runners, permissions.runs.contains(&RunOperation::Start)),
        http_secrets: of(&parent.http_secrets, !permissions.http_hosts.is_empty()),
        skills: of(&parent.skills, reads),
        skill_files: of(&parent.skill_files, reads),
        steering: false,
        conversation: None,
        permissions,
        ..parent.clone()
    }
}
