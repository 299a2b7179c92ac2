//! Subagents at work: those that a guest names, and child runs.

use agent_host_runs::facts::open::OpenElements;

use super::{CloseReason, out::Out};
use crate::agui::event::{Kind, SubagentOutcome};

/// Subagents of one kind, by the name that the guest or the host gave them.
#[derive(Debug, Default)]
pub(super) struct Invocations {
    open: OpenElements<Invocation>,
    /// Invocations that were open when the run began to wait. They begin again with the next event about them.
    suspended: OpenElements<Invocation>,
}

/// A subagent at work.
#[derive(Debug, Clone)]
pub(super) struct Invocation {
    /// The id on the wire.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parent_tool_call_id: Option<String>,
}

impl Invocation {
    fn started(&self) -> Kind {
        let Self { id, name, description, parent_tool_call_id } = self.clone();
        Kind::SubagentStarted { subagent_run_id: id, name, description, parent_subagent_run_id: None, parent_tool_call_id }
    }
}

impl Invocations {
    /// Begins a subagent, or one that was suspended again. One that is open stays so.
    pub(super) fn begin(&mut self, out: &mut Out, name: &str, new: impl FnOnce() -> Invocation) {
        if !self.open.contains(name) {
            let invocation = self.suspended.remove(name).unwrap_or_else(new);
            out.say(invocation.started());
            self.open.get_or_insert_with(name, || invocation);
        }
    }

    /// The id on the wire of an open subagent.
    pub(super) fn id_of(&self, name: &str) -> Option<&str> {
        self.open.get(name).map(|open| open.id.as_str())
    }

    /// Begins in another segment all that are open or were suspended.
    pub(super) fn resume(&mut self, out: &mut Out) {
        for (name, invocation) in self.suspended.take() {
            self.open.get_or_insert_with(&name, || invocation);
        }
        self.open.iter().for_each(|(_, open)| out.say(open.started()));
    }

    /// Takes a subagent that ends: one that was suspended begins again before.
    pub(super) fn end(&mut self, out: &mut Out, name: &str) -> Option<String> {
        if let Some(open) = self.open.remove(name) {
            return Some(open.id);
        }
        let suspended = self.suspended.remove(name)?;
        out.say(suspended.started());
        Some(suspended.id)
    }

    pub(super) fn close(&mut self, out: &mut Out, closing: CloseReason) {
        for (name, invocation) in self.open.take() {
            let subagent_run_id = invocation.id.clone();
            out.say(match closing {
                CloseReason::Waits => {
                    self.suspended.get_or_insert_with(&name, || invocation);
                    Kind::SubagentFinished { subagent_run_id, result: None, outcome: Some(SubagentOutcome::Suspended) }
                }
                CloseReason::Completes => Kind::SubagentFinished { subagent_run_id, result: None, outcome: None },
                CloseReason::Fails | CloseReason::Retries => {
                    Kind::SubagentError { subagent_run_id, message: "its run ended before it did".to_owned(), code: None }
                }
            });
        }
    }
}
