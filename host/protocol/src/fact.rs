//! Results with facts that only a runner knows: types beside those of the contract, which the host keeps as claims of the runner, and
//! gives no effect.
//!
//! Threads show them as facts of source `runner`. `data` of each is an object with the members that follow its name.

/// A plan, as it is now: `steps`, objects of `step` and `status`, and `final` if it will not change.
pub const PLAN: &str = "fact.plan";
/// The progress of a task: `completed`, and perhaps `task_id`, `total` and `detail`. Without a task, that of the run.
pub const TASK_PROGRESS: &str = "fact.task.progress";
/// The tasks that a task waits for: `depends_on`, and perhaps `task_id`.
pub const TASK_DEPENDENCY: &str = "fact.task.dependency";
/// The work is to be given to somebody else: `handoff_id`, `target`, and perhaps `reason`.
pub const HANDOFF_REQUESTED: &str = "fact.handoff.requested";
/// The work was given to somebody else: `handoff_id`, `target`, and perhaps `reason`.
pub const HANDOFF_COMPLETED: &str = "fact.handoff.completed";
/// A part of the history was replaced by a summary: perhaps `items` and `summary`.
pub const CONTEXT_COMPACTED: &str = "fact.context.compacted";
/// Use of a model that the host does not see: `input` and `output`, and perhaps `cached_input` and `reasoning`, in
/// tokens; perhaps `model`, its name.
pub const USAGE: &str = "fact.usage";
/// The runner tries something again: perhaps `reason` and `delay_ms`.
pub const RETRY: &str = "fact.retry";

/// Every one.
pub const ALL: [&str; 8] =
    [PLAN, TASK_PROGRESS, TASK_DEPENDENCY, HANDOFF_REQUESTED, HANDOFF_COMPLETED, CONTEXT_COMPACTED, USAGE, RETRY];
