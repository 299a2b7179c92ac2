//! What a crash left: runs that were active go on or end as their binding says, runs that waited in line go on waiting,
//! and parked runs sleep on.

use agent_host_protocol::{Timestamp, grant::ConversationKey, run::Terminal, time};
use tokio::time::{Duration, sleep};

use crate::{
    error::HostError,
    fork::FORKED_FROM,
    host::Host,
    life::{Past, ended, had_begun},
};

/// Runs that are woken at one time. Each needs a place for its guest, and reads its journal.
pub(crate) const WAKING: usize = 64;
/// Parked runs that are looked for at one time.
const PAGE: usize = 256;
/// How long is waited before runs that are due and were woken already are looked at again.
const AGAIN: Duration = Duration::from_millis(200);

/// What a parked run of a conversation is found by.
pub(crate) fn conversation_key(key: &ConversationKey) -> String {
    format!("conversation/{}", key.index())
}

impl Host {
    /// Lets what the ledger holds live on.
    pub(crate) async fn recover(&self) -> Result<(), HostError> {
        let ledger = &self.inner().ledger;
        let active = ledger.active_runs()?;
        if !active.is_empty() || ledger.parked_count() > 0 {
            let begun = active.iter().filter(|record| had_begun(record.run.status)).count();
            tracing::info!(
                active = begun,
                waiting = active.len() - begun,
                parked = ledger.parked_count(),
                "runs of the host before"
            );
        }
        let mut commits = Vec::new();
        // Oldest first, so that the active run of a conversation takes its turn again before those behind it.
        for record in active {
            let begun = had_begun(record.run.status);
            if begun && record.run.cancel_requested_at.is_some() {
                // It has got what was asked for.
                let reason = record.run.cancel_reason.clone().unwrap_or_default();
                commits.push(ledger.submit(ended(ledger, &record, Terminal::Cancelled { reason }, 0)?).await?);
                continue;
            }
            let past = match begun {
                true => Past::Interrupted,
                false if record.run.metadata.contains_key(FORKED_FROM) => Past::Forked,
                false => Past::Nothing,
            };
            self.begin(self.resumed(record, past)?);
        }
        for commit in commits {
            commit.await?;
        }
        Ok(())
    }

    /// The parked run that has its turn in a conversation.
    pub(crate) fn parked_in(&self, key: &ConversationKey) -> Option<u64> {
        let ledger = &self.inner().ledger;
        if ledger.parked_count() == 0 {
            return None;
        }
        let found = ledger.parked_on(&conversation_key(key), 1);
        found.inspect_err(|error| tracing::error!(%error, "a parked run cannot be looked for")).ok()?.first().copied()
    }

    /// Brings back parked runs whose time has come, as long as the host lives.
    pub(crate) fn keep_time(&self) {
        let host = self.clone();
        tokio::spawn(async move {
            let inner = host.inner();
            loop {
                let next = inner.ledger.next_wake().unwrap_or_else(|error| {
                    tracing::error!(%error, "parked runs cannot be looked for; trying again");
                    Some(time::now())
                });
                let left = match next {
                    None => Duration::MAX,
                    Some(at) => Duration::from_millis(at.saturating_sub(time::now())),
                };
                tokio::select! {
                    () = inner.stopping.cancelled() => return,
                    () = inner.alarm.notified() => continue,
                    () = sleep(left) => {}
                }
                if let Err(error) = host.wake_due().await {
                    tracing::error!(%error, "parked runs cannot be woken; trying again");
                }
                // Those that were woken are due on disk until they have their place.
                if inner.ledger.next_wake().ok().flatten().is_some_and(|at| at <= time::now()) {
                    tokio::select! {
                        () = inner.stopping.cancelled() => return,
                        () = sleep(AGAIN) => {}
                    }
                }
            }
        });
    }

    async fn wake_due(&self) -> Result<(), HostError> {
        let mut after: Option<(Timestamp, u64)> = None;
        loop {
            let due = self.inner().ledger.due(time::now(), after, PAGE)?;
            let Some(last) = due.last() else { return Ok(()) };
            after = Some(*last);
            for (_, run_no) in due {
                self.wake(run_no).await?;
            }
        }
    }

    /// Brings back a parked run, once there is room for one more that comes back. One that is back already is left alone.
    pub(crate) async fn wake(&self, run_no: u64) -> Result<(), HostError> {
        let inner = self.inner();
        let permit = tokio::select! {
            () = inner.stopping.cancelled() => return Ok(()),
            permit = inner.waking.clone().acquire_owned() => permit.ok(),
        };
        let Some(record) = inner.ledger.run_by_no(run_no)? else { return Ok(()) };
        if record.run.status.is_terminal() || inner.live.lock().contains_key(&record.run.run_id) {
            return Ok(());
        }
        let mut life = self.resumed(record, Past::Parked)?;
        life.waking = permit;
        self.begin(life);
        Ok(())
    }

    /// A run has been parked and has left memory. What came for it in this very moment found it neither here nor there.
    pub(crate) fn parked(&self, run_no: u64) {
        let record = self.inner().ledger.run_by_no(run_no);
        let called = matches!(&record, Ok(Some(record)) if record.run.cancel_requested_at.is_some());
        if called {
            let host = self.clone();
            tokio::spawn(async move {
                if let Err(error) = host.wake(run_no).await {
                    tracing::error!(%error, "a parked run cannot be woken; it will be when its time comes");
                }
            });
        }
    }
}
