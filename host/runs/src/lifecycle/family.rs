//! Parents and children: no child outlives its parent, and a parent hears of the end of a child.

use std::{collections::HashSet, sync::Arc, time::Duration};

use agent_host_facts::record::ChildEnd;
use agent_host_ledger::LedgerError;
use agent_host_protocol::{ResultKind, Run, RunId};

use futures_util::{StreamExt, stream};

use super::Runs;
use crate::{
    execution::{Execution, family::Children},
    record::{HostError, WaitKey, facts::Fact},
};

/// Cancel requests of one parent that wait for their commit at one time.
const CANCELS_AT_ONCE: usize = 64;

impl Runs {
    /// Cancels the children of a run that ends.
    pub(crate) async fn end_children(&self, parent: RunId, children: &Children) {
        children.close();
        let active = children.active(&self.ledger).unwrap_or_else(|error| {
            tracing::error!(run_id = %parent, %error, "the children of a run cannot be read");
            Vec::new()
        });
        if active.is_empty() {
            return;
        }
        // All at once: their commits share a sync of the disk. Most runs have no children: their futures have no room for this.
        let ended = stream::iter(active).for_each_concurrent(CANCELS_AT_ONCE, |child| self.end_child(parent, child));
        Box::pin(ended).await;
    }

    pub(crate) async fn end_child(&self, parent: RunId, child: RunId) {
        match self.cancel(child, format!("run {parent}, which had started it, has ended")).await {
            Ok(_) | Err(HostError::Conflict(_)) => {}
            Err(error) => tracing::error!(run_id = %child, %error, "a child could not be cancelled; its deadline ends it"),
        }
    }

    /// Records the end of a child in the record of its parent, as long as the parent is executed.
    ///
    /// The fact is for readers of the record. The parent itself hears of the end from the calls that wait, and does nothing
    /// by the fact: a host that dies before it is written writes it in the next execution, or the end of the parent is enough.
    pub(crate) fn report_end(&self, parent: &Arc<Execution>, child: RunId) {
        let (runs, parent) = (self.clone(), Arc::clone(parent));
        let reporters = parent.family.tasks().reporters.clone();
        reporters.spawn(async move {
            tokio::select! {
                _ = runs.wait(child, Duration::MAX) => {}
                () = parent.family.tasks().released.cancelled() => {}
            }
            let Ok(record) = runs.record(child) else { return };
            if !record.run.status.is_terminal() {
                return;
            }
            parent.count_child(&record.run);
            let usage = Some(record.run.total_usage()).filter(|usage| usage.calls > 0);
            let end = Fact::ChildEnded(ChildEnd { run_id: child.to_string(), status: Some(record.run.status), usage });
            if let Err(error) = parent.writer.record_fact(&end).await {
                tracing::debug!(run_id = %parent.run_id, %child, error = error.message, "the end of a child could not be recorded");
            }
        });
    }

    /// Reports the ends of all children of earlier executions that their records do not have.
    pub(crate) fn report_ends(&self, parent: &Arc<Execution>) -> Result<(), LedgerError> {
        let reported = self.ledger.run_events_of(parent.run_no, parent.run_id, &[ResultKind::ChildEnded.as_str()])?;
        let reported: HashSet<RunId> =
            reported.iter().filter_map(|event| event.data_value().get("run_id")?.as_str()?.parse().ok()).collect();
        // The budget has what these have used.
        for child in &reported {
            parent.family.children.count(*child);
        }
        for child in parent.family.children.all().into_iter().filter(|child| !reported.contains(child)) {
            self.report_end(parent, child);
        }
        Ok(())
    }

    /// A child has ended: its parent may wait for that, in memory or on disk.
    pub(crate) async fn child_ended(&self, child: &Run) {
        let Some(parent) = child.parent_run_id else { return };
        if !self.registry.notify(parent) {
            self.wake_all_on(&WaitKey::Child(child.run_id)).await;
        }
    }
}
