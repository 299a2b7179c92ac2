//! What a crash left: runs that were active end, runs that waited go on waiting.

use agent_host_ledger::{RunChange, RunRecord, RunWrite};
use agent_host_protocol::{run::Terminal, time};

use crate::{
    error::HostError,
    host::Host,
    life::{had_begun, host_restarted, terminal_event},
};

impl Host {
    /// Brings the ledger to what a host that has just started is: nothing active.
    pub(crate) async fn recover(&self) -> Result<(), HostError> {
        let (begun, waiting): (Vec<_>, Vec<_>) =
            self.inner().ledger.active_runs()?.into_iter().partition(|record| had_begun(record.run.status));
        if !begun.is_empty() || !waiting.is_empty() {
            tracing::info!(ended = begun.len(), resumed = waiting.len(), "runs of the host before");
        }
        let mut commits = Vec::with_capacity(begun.len());
        for record in begun {
            commits.push(self.inner().ledger.submit(ended(record)).await?);
        }
        for commit in commits {
            commit.await?;
        }
        for record in waiting {
            let life = self.resumed(record)?;
            self.begin(life);
        }
        Ok(())
    }
}

fn ended(record: RunRecord) -> RunWrite {
    let at = time::now();
    // A run that was to be cancelled has got what was asked for.
    let terminal = match (record.run.cancel_requested_at, record.run.cancel_reason) {
        (Some(_), reason) => Terminal::Cancelled { reason: reason.unwrap_or_default() },
        (None, _) => Terminal::Failed(host_restarted()),
    };
    let events = vec![terminal_event(&terminal, record.run.last_sequence + 1, at)];
    RunWrite { run_no: record.run_no, changes: vec![RunChange::End { at, terminal }], events, ..RunWrite::default() }
}
