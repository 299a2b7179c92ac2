//! Facts that only a runner knows: plans, progress, handoffs, compacted history, use of models of its own.
//!
//! The types of these results are outside the contract: the host stores them as claims of the runner and does not act on them.
//! Interfaces that read a thread as facts (`/api/v1/threads`) see them as `plan.delta`, `task.progress`, `handoff.requested` and so on,
//! of source `runner`. Send them with [`results::emit`](crate::results::emit) or in a [`Batch`](crate::results::Batch).
//! [`Memory::compact`](crate::memory::Memory::compact) sends [`compacted`] by itself.
//!
//! ```
//! use agent_host_sdk::facts::{self, StepStatus};
//! use agent_host_sdk::{Completion, Context, Failure, results};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     results::emit(&[facts::plan(&[("Read the report", StepStatus::InProgress), ("Answer", StepStatus::Pending)])])?;
//!     results::emit(&[facts::progress(1, Some(2))])?;
//!     results::emit(&[facts::final_plan(&[("Read the report", StepStatus::Completed), ("Answer", StepStatus::Completed)])])?;
//!     ctx.reply("The report is fine.")?;
//!     Ok(Completion::stop())
//! }
//! ```

use crate::contract::RunResult;
use crate::json::IntoJson;
use crate::results::{result_of, text};

/// The state of a step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStatus {
    /// The step has not begun.
    Pending,
    /// The step is under way.
    InProgress,
    /// The step is done.
    Completed,
    /// The step has failed.
    Failed,
    /// The step is left out.
    Skipped,
}

impl StepStatus {
    /// The name of the state in facts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// Shows the plan of the run as it is now. A later plan replaces it.
pub fn plan(steps: &[(&str, StepStatus)]) -> RunResult {
    result_of("fact.plan", [("steps", Some(steps_of(steps)))])
}

/// Shows the plan of the run for the last time.
pub fn final_plan(steps: &[(&str, StepStatus)]) -> RunResult {
    result_of("fact.plan", [("steps", Some(steps_of(steps))), ("final", Some(true.into_json()))])
}

/// Shows the progress of the run: completed steps, and their number where it is known.
pub fn progress(completed: u64, total: Option<u64>) -> RunResult {
    progress_of(None, completed, total)
}

/// Shows the progress of a task of the run: a child run by its id, or a task by a name of the runner.
pub fn task_progress(task_id: &str, completed: u64, total: Option<u64>) -> RunResult {
    progress_of(text(task_id), completed, total)
}

fn progress_of(task_id: Option<String>, completed: u64, total: Option<u64>) -> RunResult {
    let (completed, total) = (Some(completed.into_json()), total.map(IntoJson::into_json));
    result_of("fact.task.progress", [("task_id", task_id), ("completed", completed), ("total", total)])
}

/// Shows the tasks that a task of the run waits for.
pub fn task_dependencies(task_id: &str, depends_on: &[&str]) -> RunResult {
    let depends_on = list(depends_on.iter().map(|task| task.into_json()));
    result_of("fact.task.dependency", [("task_id", text(task_id)), ("depends_on", Some(depends_on))])
}

/// Handoff of the work to another agent or to a person.
#[derive(Clone, Debug)]
pub struct Handoff {
    handoff_id: String,
    target: String,
    reason: Option<String>,
}

impl Handoff {
    /// Creates a handoff with an id that is unique in the run, and the name of who gets the work.
    pub fn new(handoff_id: impl Into<String>, target: impl Into<String>) -> Self {
        Self { handoff_id: handoff_id.into(), target: target.into(), reason: None }
    }

    /// Sets the reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Marks the request.
    pub fn requested(&self) -> RunResult {
        self.result("fact.handoff.requested")
    }

    /// Marks the end of the handoff: the other one has the work.
    pub fn completed(&self) -> RunResult {
        self.result("fact.handoff.completed")
    }

    fn result(&self, kind: &str) -> RunResult {
        let reason = self.reason.as_deref().and_then(text);
        result_of(kind, [("handoff_id", text(&self.handoff_id)), ("target", text(&self.target)), ("reason", reason)])
    }
}

/// Marks that so many messages of the history were replaced by a summary.
pub fn compacted(items: u64, summary: &str) -> RunResult {
    result_of("fact.context.compacted", [("items", Some(items.into_json())), ("summary", text(summary))])
}

/// Reports the tokens that the runner has used at a model which the host does not see.
pub fn usage(input: u64, output: u64) -> RunResult {
    result_of("fact.usage", [("input", Some(input.into_json())), ("output", Some(output.into_json()))])
}

/// Marks that the runner tries something again, after this pause.
pub fn retry(reason: &str, delay_ms: Option<u64>) -> RunResult {
    result_of("fact.retry", [("reason", text(reason)), ("delay_ms", delay_ms.map(IntoJson::into_json))])
}

fn steps_of(steps: &[(&str, StepStatus)]) -> String {
    list(steps.iter().map(|(step, status)| {
        let (step, status) = (step.into_json(), status.as_str().into_json());
        format!(r#"{{"step":{step},"status":{status}}}"#)
    }))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::results::tests::check;

    #[test]
    fn each_is_a_type_with_its_members() {
        let steps = [("a \"step\"", StepStatus::Completed), ("b", StepStatus::Skipped)];
        let shown = json!([{"step": "a \"step\"", "status": "completed"}, {"step": "b", "status": "skipped"}]);
        check(plan(&steps), "fact.plan", json!({"steps": shown}));
        check(final_plan(&steps), "fact.plan", json!({"steps": shown, "final": true}));
        check(plan(&[]), "fact.plan", json!({"steps": []}));
        check(progress(1, None), "fact.task.progress", json!({"completed": 1}));
        check(task_progress("t", 1, Some(3)), "fact.task.progress", json!({"task_id": "t", "completed": 1, "total": 3}));
        check(task_dependencies("t", &["u", "v"]), "fact.task.dependency", json!({"task_id": "t", "depends_on": ["u", "v"]}));
        let handoff = Handoff::new("h", "ada").reason("a person decides");
        let data = json!({"handoff_id": "h", "target": "ada", "reason": "a person decides"});
        check(handoff.requested(), "fact.handoff.requested", data.clone());
        check(handoff.completed(), "fact.handoff.completed", data);
        check(Handoff::new("h", "ada").requested(), "fact.handoff.requested", json!({"handoff_id": "h", "target": "ada"}));
        check(compacted(12, "They talked."), "fact.context.compacted", json!({"items": 12, "summary": "They talked."}));
        check(usage(3, 4), "fact.usage", json!({"input": 3, "output": 4}));
        check(retry("busy", Some(250)), "fact.retry", json!({"reason": "busy", "delay_ms": 250}));
        check(retry("busy", None), "fact.retry", json!({"reason": "busy"}));
    }
}
