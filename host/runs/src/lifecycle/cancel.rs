//! Cancelling a run, and waiting for its end.

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{RunChange, RunWrite};
use agent_host_protocol::{Run, RunId, time};

use super::Runs;
use crate::{execution::writer::OnStorageError, record::HostError};

impl Runs {
    /// Requests the cancellation of a run. The request is durable, and the guest is being stopped, when this function
    /// returns.
    pub(crate) async fn cancel(&self, id: RunId, reason: String) -> Result<Arc<Run>, HostError> {
        let record = self.record(id)?;
        if record.run.status.is_terminal() {
            return Err(HostError::Conflict(format!("run {id} has ended ({}): there is nothing to cancel", record.run.status)));
        }
        let at = time::now();
        let request = RunChange::CancelRequested { at, reason };
        let writer = self.writer(&record);
        let written = writer.transact(&record, OnStorageError::Fail, |record| {
            // A parked run is due at once: a host that dies before it wakes the run does so at its next start.
            let due = self.ledger.parked(record.run_no)?.map(|_| RunChange::Due { at });
            Ok(RunWrite { changes: [request.clone()].into_iter().chain(due).collect(), ..RunWrite::default() })
        });
        let run = written.await?;
        let cancel_active = || self.registry.handle(id).inspect(|handle| handle.cancelled.cancel()).is_some();
        if !cancel_active() {
            self.wake(record.run_no).await?;
            // A task that was begun meanwhile may not know of the request.
            cancel_active();
        }
        Ok(run)
    }

    /// Waits until a run has ended, at most `timeout`; gives its record as it is then.
    pub(crate) async fn wait(&self, id: RunId, timeout: Duration) -> Result<Arc<Run>, HostError> {
        match tokio::time::timeout(timeout, self.wait_for_end(id)).await {
            Ok(end) => end,
            Err(_) => Ok(self.record(id)?.run),
        }
    }

    async fn wait_for_end(&self, id: RunId) -> Result<Arc<Run>, HostError> {
        loop {
            let Some(mut handle) = self.registry.handle(id) else {
                // The run has ended or is parked, or is about to.
                let record = self.record(id)?;
                let mut watch = self.ledger.watch(record.run_no);
                let run = self.record(id)?.run;
                if run.status.is_terminal() || self.stopping.is_cancelled() {
                    return Ok(run);
                }
                tokio::select! {
                    () = watch.changed() => {}
                    () = self.stopping.cancelled() => {}
                }
                continue;
            };
            // The sender is dropped where the run leaves memory without an end.
            if let Ok(end) = handle.ended.wait_for(Option::is_some).await {
                match end.as_ref() {
                    Some(Ok(run)) => return Ok(Arc::clone(run)),
                    Some(Err(error)) => return Err(HostError::Unavailable(error.clone())),
                    None => {}
                }
            }
        }
    }
}
