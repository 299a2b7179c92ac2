//! What a crash left: runs that were active go on or end as their binding says, runs that waited in line go on waiting,
//! and parked runs sleep on.

use std::collections::HashMap;

use agent_host_protocol::{Run, Timestamp, grant::ConversationKey, run::Terminal, time};
use tokio::time::{Duration, sleep};

use crate::{
    asks::{self, ActionStatus},
    children::{self, Children},
    error::HostError,
    fork::FORKED_FROM,
    host::Host,
    life::{Past, ended, had_begun},
    line::ParkedTurn,
    steering,
    terms::Terms,
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
        let inner = self.inner();
        let ledger = &inner.ledger;
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
        let (mut taken, mut dying) = (HashMap::new(), Vec::new());
        // Oldest first, so that the active run of a conversation takes its turn again before those behind it.
        for record in active {
            let begun = had_begun(record.run.status);
            if begun && record.run.cancel_requested_at.is_some() {
                // It has got what was asked for.
                let reason = record.run.cancel_reason.clone().unwrap_or_default();
                dying.push((record.run.run_id, Children::of(ledger, &record)?));
                commits.push(ledger.submit(ended(ledger, &record, Terminal::Cancelled { reason }, 0)?).await?);
                continue;
            }
            if begun && record.run.conversation_id.is_some() {
                taken.extend(steering::taken_by(ledger, &record)?);
            }
            if let Some(by) = taken.get(&record.run.run_id).filter(|_| !begun) {
                commits.push(ledger.submit(steering::taken(&record, *by)).await?);
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
            inner.metrics.ended(&commit.await?);
        }
        for (parent, children) in dying {
            self.end_children(parent, &children).await;
        }
        self.wake_parents().await
    }

    /// Parked runs whose children ended in the moment in which the host died.
    async fn wake_parents(&self) -> Result<(), HostError> {
        let mut after = None;
        loop {
            let keys = self.inner().ledger.parked_keys(children::KEYS, after.as_ref(), PAGE)?;
            let Some(last) = keys.last() else { return Ok(()) };
            after = Some(last.clone());
            for (_, run_no) in keys {
                if self.has_what_it_waits_for(run_no) {
                    self.wake(run_no).await?;
                }
            }
        }
    }

    /// Brings back parked runs that wait for this.
    pub(crate) async fn wake_all_on(&self, key: &str) {
        let ledger = &self.inner().ledger;
        if ledger.parked_count() == 0 {
            return;
        }
        let found = ledger.parked_on(key, PAGE).map_err(HostError::from);
        let woken = async {
            for run_no in found? {
                self.wake(run_no).await?;
            }
            Ok::<_, HostError>(())
        };
        if let Err(error) = woken.await {
            tracing::error!(key, %error, "parked runs cannot be woken; they will be when their time comes");
        }
    }

    /// The parked run that has its turn in a conversation.
    pub(crate) fn parked_in(&self, key: &ConversationKey) -> Option<ParkedTurn> {
        let ledger = &self.inner().ledger;
        if ledger.parked_count() == 0 {
            return None;
        }
        let found = ledger.parked_on(&conversation_key(key), 1);
        let run_no =
            found.inspect_err(|error| tracing::error!(%error, "a parked run cannot be looked for")).ok()?.first().copied()?;
        Some(ParkedTurn { run_no, steers: self.takes_input(run_no) })
    }

    fn takes_input(&self, run_no: u64) -> bool {
        let ledger = &self.inner().ledger;
        let terms = ledger.run_by_no(run_no).and_then(|record| record.map_or(Ok(None), |record| ledger.terms(record.run.run_id)));
        let terms = terms.ok().flatten().and_then(|terms| serde_json::from_str::<Terms>(terms.get()).ok());
        terms.is_some_and(|terms| terms.grant.steering)
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
        if called || self.has_what_it_waits_for(run_no) {
            let host = self.clone();
            tokio::spawn(async move {
                if let Err(error) = host.wake(run_no).await {
                    tracing::error!(%error, "a parked run cannot be woken; it will be when its time comes");
                }
            });
        }
    }

    /// Whether something that a parked run waits for was there before it was parked.
    fn has_what_it_waits_for(&self, run_no: u64) -> bool {
        let inner = self.inner();
        let Ok(Some(park)) = inner.ledger.parked(run_no) else { return false };
        park.keys.iter().any(|key| {
            if let Some(action) = key.strip_prefix(asks::KEYS) {
                return self.action(action).is_ok_and(|action| action.status != ActionStatus::Open);
            }
            if let Some(child) = key.strip_prefix(children::KEYS) {
                let child = child.parse().ok().and_then(|id| inner.ledger.run(id).ok().flatten());
                return child.is_none_or(|child| child.run.status.is_terminal());
            }
            key.starts_with(steering::KEYS) && {
                let record = inner.ledger.run_by_no(run_no).ok().flatten();
                record.is_some_and(|record| self.something_waits_behind(&record.run))
            }
        })
    }

    fn something_waits_behind(&self, run: &Run) -> bool {
        let key = run.conversation_id.clone().map(|conversation| ConversationKey {
            workspace: run.workspace_id.clone().unwrap_or_default(),
            conversation,
            thread: run.thread_id.clone().unwrap_or_default(),
        });
        let ledger = &self.inner().ledger;
        let can_be_taken = |run_no| {
            let record = ledger.run_by_no(run_no).ok().flatten();
            record.is_some_and(|record| steering::can_be_taken(&record, &run.binding_id))
        };
        // Nothing is done with what was taken, so it goes back to its place.
        key.is_some_and(|key| !self.inner().lines.take(&key, 1, can_be_taken).is_empty())
    }
}
