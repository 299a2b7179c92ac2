//! The way of a run whose claim has ended: back into its queue, or to its end.

use agent_host_config::{OnLost, QueuePolicy};
use agent_host_facts::record::StatusChange;
use agent_host_ledger::{RunChange, RunWrite};
use agent_host_protocol::{run::RunFailure, time};

use super::{
    body::changes,
    executors::ExecutorNews,
    task::{RunOutcome, RunTask},
};
use crate::{
    execution::writer::OnStorageError,
    record::{
        HostError,
        facts::{self, Fact, UnendedCalls},
    },
};

/// The run goes back to its queue, or ends where it has no attempts left.
pub(crate) struct Requeue {
    pub(super) reason: String,
    /// True if the claim counts as an attempt.
    pub(super) attempted: bool,
    /// The failure of the run if no attempts are left.
    pub(super) failure: RunFailure,
    /// True if the claim was lost; false if it was released.
    pub(super) lost: bool,
    /// The executor to notify, unless its own request ended the claim.
    pub(super) notify: Option<String>,
}

impl RunTask {
    /// Puts a run whose claim has ended back into its queue. An outcome where it ends instead.
    pub(crate) async fn requeue(&mut self, claim: Option<u32>, requeue: Requeue) -> Result<Option<RunOutcome>, HostError> {
        let policy = self.run.terms.queue.as_deref().cloned().unwrap_or_default();
        if requeue.lost {
            self.runs.shared.metrics.lease_lost(&policy.name);
        }
        if let Some(executor_id) = &requeue.notify {
            let news = ExecutorNews::ClaimLost { run_id: self.run_id(), reason: requeue.reason.clone() };
            self.runs.executors.notify(executor_id, news);
        }
        if self.cancelled.is_cancelled() {
            return self.end_cancelled().await.map(Some);
        }
        let no_attempts = requeue.attempted && self.run.record.run.attempt >= self.run.terms.max_attempts;
        if no_attempts || (requeue.lost && policy.on_lost == OnLost::Fail) {
            return self.give_up(requeue.failure).await.map(Some);
        }
        self.write_release(claim, &policy, &requeue).await?;
        Ok(None)
    }

    /// Writes that the run waits in its queue again.
    async fn write_release(&mut self, claim: Option<u32>, policy: &QueuePolicy, requeue: &Requeue) -> Result<(), HostError> {
        let Requeue { reason, attempted, .. } = requeue;
        let (runs, record) = (&self.runs, self.runs.record(self.run_id())?);
        let writer = match claim {
            Some(claim) => self.writer().fenced(claim),
            None => self.writer(),
        };
        let released = writer.transact(&record, OnStorageError::Retry(&runs.ending), |record| {
            let (at, run) = (time::now(), &record.run);
            let not_before = if *attempted { policy.not_before(run.attempt, at) } else { None };
            let attempt = Some(run.attempt + u32::from(*attempted));
            let queued = StatusChange {
                status: "queued".into(),
                reason: reason.clone(),
                attempt,
                until: not_before,
                ..StatusChange::default()
            };
            let mut facts = UnendedCalls::read(&runs.ledger, record.run_no, run.run_id)?.ends(at);
            facts.push(Fact::RunStatus(queued));
            let events = facts::events(&facts, run.last_sequence + 1, at);
            let change = RunChange::Release { at, reason: reason.clone(), not_before, attempted: *attempted };
            Ok(RunWrite { events, ..changes(change) })
        });
        self.run.record.run = released.await?;
        Ok(())
    }
}
