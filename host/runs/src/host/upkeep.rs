//! Upkeep of a cell: what nothing refers to any more, and what has expired, is removed from time to time.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::time;
use serde::Deserialize;

use super::cell::Cell;
use crate::{execution::Shared, record::HostError};

/// Runs whose journals are removed in one go.
const PRUNED_AT_ONCE: usize = 256;

/// Interval between two writes of the tokens that keys have used. A crash forgets the use of one.
const USAGE: Duration = Duration::from_secs(2);
/// Interval between two looks at the clock.
const LOOK: Duration = Duration::from_secs(5);
/// Time of the host that is ahead of the clock of the machine by less is worth no line.
const AHEAD_MS: u64 = 1_000;

/// Lets the time go on from what the ledger has recorded, where the clock of the machine was set back meanwhile.
pub(super) fn set_clock(ledger: &Ledger) -> Result<(), HostError> {
    let Some(newest) = ledger.newest_at()? else { return Ok(()) };
    if !time::go_on_from(newest) {
        tracing::warn!(
            newest = time::display(newest),
            now = time::display(time::now()),
            "the ledger has records of more than a day after now: check the clock of the machine; what waits for a time waits for as much longer"
        );
    }
    Ok(())
}

/// The component that a run was created for, read from its terms without the rest of them.
fn component_of(terms: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Terms {
        grant: Grant,
    }
    #[derive(Deserialize)]
    struct Grant {
        component: String,
    }
    serde_json::from_str::<Terms>(terms).ok().map(|terms| terms.grant.component)
}

impl Cell {
    /// Tells the operator when the clock of the machine was set back, as long as the host lives.
    pub(crate) fn watch_clock(&self) {
        let stopping = self.runs.stopping.clone();
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::spawn(async move {
            let mut was_ahead = false;
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                let ahead_ms = time::ahead_ms();
                let is_ahead = ahead_ms > AHEAD_MS;
                if is_ahead && !was_ahead {
                    tracing::warn!(
                        ahead_ms,
                        "the clock of the machine was set back: the time of the host goes on more slowly until both agree"
                    );
                }
                was_ahead = is_ahead;
            }
        });
    }

    /// Writes the tokens that keys with a budget have used, from time to time.
    pub(crate) fn keep_key_usage(&self, shared: &Arc<Shared>) {
        let (cell, shared) = (self.clone(), Arc::clone(shared));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = cell.runs.stopping.cancelled() => return,
                    () = tokio::time::sleep(USAGE) => {}
                }
                if let Err(error) = shared.keys.usage().write(&cell.ledger, cell.runs.partition).await {
                    tracing::warn!(%error, "the tokens that keys have used could not be written");
                }
            }
        });
    }

    /// Removes from time to time what nothing refers to any more, and what has expired.
    pub(crate) fn keep_clean(&self, shared: &Arc<Shared>) {
        let (cell, shared) = (self.clone(), Arc::clone(shared));
        let mut ticks = tokio::time::interval(Duration::from_millis(shared.limits().gc_interval_ms.max(1_000)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = cell.runs.stopping.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                cell.prune_journals(&shared).await;
                cell.prune_components(&shared).await;
                cell.prune_audit(&shared).await;
                cell.prune_logs(&shared).await;
                if let Err(error) = cell.intake.forget_created().await {
                    tracing::warn!(%error, "old idempotency keys could not be removed");
                }
                match cell.ledger.collect_garbage(time::now()).await {
                    Ok(collected) => tracing::debug!(?collected, "artifacts that nothing refers to were removed"),
                    Err(error) => tracing::warn!(%error, "artifacts that nothing refers to could not be removed"),
                }
            }
        });
    }

    async fn prune_audit(&self, shared: &Shared) {
        let kept_ms = shared.setup().config.retention.audit_ms;
        match self.ledger.prune_audit(time::now().saturating_sub(kept_ms)).await {
            Ok(0) => {}
            Ok(records) => tracing::info!(records, "old audit records were removed"),
            Err(error) => tracing::warn!(%error, "old audit records could not be removed"),
        }
    }

    /// Removes the kept logs of runs that ended long ago.
    async fn prune_logs(&self, shared: &Shared) {
        let kept = Duration::from_millis(shared.setup().config.retention.journals_ms);
        let Some(before) = SystemTime::now().checked_sub(kept) else { return };
        let (logs, ledger) = (Arc::clone(&self.runs.logs), self.ledger.clone());
        // The log of a run that waits for weeks stays.
        let may_go = move |run_id| match ledger.run(run_id) {
            Ok(record) => record.is_none_or(|record| record.run.status.is_terminal()),
            Err(_) => false,
        };
        match tokio::task::spawn_blocking(move || logs.prune(before, may_go)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(files)) => tracing::info!(files, "old logs of runs were removed"),
            Ok(Err(error)) => tracing::warn!(%error, "old logs of runs could not be removed"),
        }
    }

    /// Removes journals of runs that ended long ago.
    async fn prune_journals(&self, shared: &Shared) {
        let kept_ms = shared.setup().config.retention.journals_ms;
        loop {
            match self.ledger.prune_journals(time::now().saturating_sub(kept_ms), PRUNED_AT_ONCE).await {
                Ok(pruned) if pruned.more && !self.runs.stopping.is_cancelled() => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "old journals could not be removed");
                    return;
                }
            }
        }
    }

    /// Removes components that no run needs any more. Runs that have not ended need theirs; those that ended lately may be replayed.
    async fn prune_components(&self, shared: &Shared) {
        let kept = Duration::from_millis(shared.setup().config.retention.journals_ms);
        if let Err(error) = self.try_prune_components(shared, kept).await {
            tracing::warn!(%error, "components that no run needs could not be looked for");
        }
    }

    async fn try_prune_components(&self, shared: &Shared, kept: Duration) -> Result<(), HostError> {
        let failed = |error: &dyn std::fmt::Display| HostError::Internal(error.to_string());
        let mut needed = HashSet::new();
        for record in self.ledger.active_runs()? {
            needed.extend(self.ledger.terms(record.run.run_id)?.and_then(|terms| component_of(terms.get())));
        }
        // Those of other partitions are not known here.
        let of_files = if self.runs.partition.is_only() {
            shared.sandbox.unused_components(needed.clone(), kept).await.map_err(|error| failed(&error))?
        } else {
            Vec::new()
        };
        // Parked runs may be many, and are read one by one: where there is something to remove.
        if !of_files.is_empty() {
            needed = self.needed_components().await?;
        }
        shared.sandbox.forget_components(of_files, needed, kept).await;
        if self.runs.components.has_unused(kept)? {
            let removed = self.runs.components.prune(kept, self.needed_components()).await?;
            if removed > 0 {
                tracing::info!(removed, "components that no run needs were removed from the ledger");
            }
        }
        Ok(())
    }

    /// The components of all runs that have not ended.
    async fn needed_components(&self) -> Result<HashSet<String>, LedgerError> {
        let ledger = self.ledger.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut needed = HashSet::new();
            ledger.each_unended_terms(|terms| needed.extend(component_of(terms)))?;
            Ok(needed)
        });
        reading.await.unwrap_or_else(|error| Err(LedgerError::Storage(error.to_string().into())))
    }
}
