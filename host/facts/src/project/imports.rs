//! Results `import.*`: what a capture of another framework says of its runtime, its questions to people, progress of tools, tasks.

use agent_host_protocol::{
    RunEvent,
    import::{
        ACTION_REQUESTED, ACTION_RESOLVED, ActionEnd, EVENTS, NATIVE, NativeEvent, RawEvents, TASK_ENDED, TASK_STARTED,
        TOOL_PROGRESS, TaskEnd, TaskOutcome, TaskStart,
    },
};

use super::{
    actions::Actions,
    ids::{Ids, Kind},
    out::{Draft, Out, Source},
    tools::Tools,
};
use crate::{
    fact::{RefKind, ScopeIds},
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::read,
    safe::line,
};

/// The tasks of a capture that have not ended, by the names that its framework gave them.
#[derive(Debug, Default)]
pub(super) struct Imports {
    tasks: OpenElements<OpenTask>,
}

#[derive(Debug)]
struct OpenTask {
    scope: ScopeIds,
    attempt: u32,
}

impl Imports {
    /// Says a result of an importer: false for one of another form than its type has, `None` for another type.
    pub(super) fn say(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        tools: &mut Tools,
        actions: &mut Actions,
        event: &RunEvent,
    ) -> Option<bool> {
        let said = match event.kind.as_str() {
            ACTION_REQUESTED => read(event).map(|request| actions.imported_request(out, ids, tools, request)),
            ACTION_RESOLVED => read(event).map(|end: ActionEnd| actions.imported_end(out, tools, &end)),
            TOOL_PROGRESS => read(event).map(|progress| tools.progress(out, progress)),
            TASK_STARTED => read(event).map(|start: TaskStart| self.task_started(out, ids, &start)),
            TASK_ENDED => read(event).map(|end: TaskEnd| self.task_ended(out, &end)),
            NATIVE => read(event).map(|native: NativeEvent| {
                let uri = out.event_uri();
                out.say(
                    Draft::new(FactType::RuntimeWarning)
                        .refers(RefKind::Raw, uri.as_str())
                        .with("code", "foreign_event")
                        .with("resultType", line(&format!("{} {}", native.form.as_str(), native.native_type)))
                        .with("rawRef", uri),
                );
            }),
            // The artifact has a fact of its own.
            EVENTS => read::<RawEvents>(event).map(drop),
            _ => return None,
        };
        Some(said.is_some())
    }

    fn task_started(&mut self, out: &mut Out, ids: &mut Ids, start: &TaskStart) {
        let run = ids.run().to_owned();
        if !self.tasks.contains(&start.task_id) {
            let scope = ScopeIds {
                task_id: Some(ids.of(Kind::Task, &start.task_id)),
                parent_task_id: Some(run.clone()),
                ..ScopeIds::default()
            };
            out.say(
                Draft::new(FactType::TaskCreated)
                    .in_scope(&scope)
                    .with("parentRunId", run.as_str())
                    .with("objective", line(&start.name)),
            );
            self.tasks.insert(&start.task_id, OpenTask { scope, attempt: 0 });
        }
        let Some(task) = self.tasks.get_mut(&start.task_id) else { return };
        task.attempt += 1;
        let attempt_id = task.scope.task_id.as_ref().map(|id| format!("{id}:attempt:{}", task.attempt));
        out.say(
            Draft::new(FactType::TaskAttemptStarted)
                .in_scope(&ScopeIds { attempt_id, ..task.scope.clone() })
                .with("runId", run)
                .with("attempt", task.attempt),
        );
    }

    fn task_ended(&mut self, out: &mut Out, end: &TaskEnd) {
        // A task that waits for an answer begins again under its name.
        if end.outcome == TaskOutcome::Waiting {
            return;
        }
        let Some(task) = self.tasks.remove(&end.task_id) else {
            return out.warn("task_end_without_start", "a task ended that had not begun");
        };
        if end.outcome == TaskOutcome::Completed {
            return out.say(Draft::new(FactType::TaskCompleted).in_scope(&task.scope));
        }
        let category = FailureCategory::ExecutionFailed;
        out.say(
            Draft::new(FactType::TaskFailed)
                .in_scope(&task.scope)
                .with("failureCategory", category.as_str())
                .with("recoveryHint", category.hint())
                .with_some("reason", end.error.as_deref().map(line)),
        );
    }

    /// Ends all open tasks: none outlives its turn.
    pub(super) fn close(&mut self, out: &mut Out, why: &str) {
        for (_, task) in self.tasks.take() {
            let category = FailureCategory::Cancelled;
            out.say(
                Draft::new(FactType::TaskCancelled)
                    .in_scope(&task.scope)
                    .with("failureCategory", category.as_str())
                    .with("recoveryHint", category.hint())
                    .with("reason", why)
                    .by(Source::Host),
            );
        }
    }
}
