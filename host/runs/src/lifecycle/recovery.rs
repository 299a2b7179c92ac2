//! Recovery: what a crash left. Runs that were active go on or end as their binding says, runs that waited in line go on
//! waiting, and parked runs stay parked.

use std::collections::HashMap;

use agent_host_protocol::run::Terminal;

use super::{Runs, StoredRun, queue::admission::Admission, wake::PAGE};
use crate::{
    execution::{Resumption, family::Children},
    record::{
        FORKED_FROM, HostError, WaitKey, steering,
        terminal::{end_stored, has_started},
    },
};

impl Runs {
    /// Begins the tasks of the runs that the ledger holds.
    pub(crate) async fn recover(&self) -> Result<(), HostError> {
        let ledger = &self.ledger;
        let active = ledger.active_runs()?;
        if !active.is_empty() || ledger.parked_count() > 0 {
            let started = active.iter().filter(|record| has_started(record.run.status)).count();
            tracing::info!(
                active = started,
                waiting = active.len() - started,
                parked = ledger.parked_count(),
                "runs of the host before"
            );
        }
        let mut commits = Vec::new();
        let (mut steered, mut cancelled) = (HashMap::new(), Vec::new());
        // Oldest first, so that the active run of a conversation takes its turn again before those behind it.
        for record in active {
            let is_started = has_started(record.run.status);
            if is_started && record.run.cancel_requested_at.is_some() {
                // The cancel request is fulfilled.
                let reason = record.run.cancel_reason.clone().unwrap_or_default();
                cancelled.push((record.run.run_id, Children::of(ledger, &record)?));
                let end = end_stored(ledger, &record, Terminal::Cancelled { reason }, 0)?;
                commits.push(self.writer(&record).append(end).await?);
                continue;
            }
            if is_started && record.run.conversation_id.is_some() {
                steered.extend(steering::taken_by(ledger, &record)?);
            }
            if let Some(by) = steered.get(&record.run.run_id).filter(|_| !is_started) {
                commits.push(self.writer(&record).append(steering::end_taken(&record, *by)).await?);
                continue;
            }
            let resumption = match is_started {
                true => Resumption::Interrupted,
                false if record.run.metadata.contains_key(FORKED_FROM) => Resumption::Forked,
                false => Resumption::New,
            };
            let stored = self.stored(record, resumption)?;
            if stored.terms.streamed {
                self.await_client(stored.record.run.run_id);
            }
            let admission = self.count_claimed(&stored);
            self.begin(StoredRun { found: true, admission, ..stored });
        }
        for commit in commits {
            let run = commit.await?;
            self.shared.metrics.ended(&run);
        }
        for (parent, children) in cancelled {
            self.end_children(parent, &children).await;
        }
        self.wake_parents().await
    }

    /// Counts a run that an executor holds for the limits of its binding, before any other run asks for its place.
    fn count_claimed(&self, stored: &StoredRun) -> Option<Box<Admission>> {
        let policy = stored.terms.queue.as_deref().filter(|_| stored.is_claimed())?;
        Some(Box::new(self.admissions.count(&stored.record.run.binding_id, policy)))
    }

    /// Parked runs whose children ended in the moment in which the host died.
    async fn wake_parents(&self) -> Result<(), HostError> {
        let mut after = None;
        loop {
            let keys = self.ledger.parked_keys(WaitKey::CHILDREN, after.as_ref(), PAGE)?;
            let Some(last) = keys.last() else { return Ok(()) };
            after = Some(last.clone());
            for (_, run_no) in keys {
                if self.is_due(run_no) {
                    self.wake(run_no).await?;
                }
            }
        }
    }
}
