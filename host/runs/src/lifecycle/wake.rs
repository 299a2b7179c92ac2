//! Waking: parked runs come back when they are due, or when somebody comes with one of their wait keys.

use agent_host_protocol::{Run, RunId, Timestamp, grant::ConversationKey, time};
use tokio::time::{Duration, sleep};

use super::{Runs, StoredRun, lines::ParkedTurn};
use crate::{
    execution::{Resumption, registry::Location},
    record::{HostError, WaitKey, action::ActionStatus, steering, terms::Terms},
};

/// Runs that are woken at one time. Each needs a place for its guest, and reads its journal.
pub(crate) const MAX_WAKING: usize = 64;
/// Parked runs that are looked for at one time.
pub(crate) const PAGE: usize = 256;
/// Pause before runs that are due, and were woken already, are looked at again.
const PAUSE: Duration = Duration::from_millis(200);

impl Runs {
    /// Brings back parked runs that wait for this.
    pub(crate) async fn wake_all_on(&self, key: &WaitKey) {
        let ledger = &self.ledger;
        if ledger.parked_count() == 0 {
            return;
        }
        let found = ledger.parked_on(&key.to_string(), PAGE).map_err(HostError::from);
        let woken = async {
            for run_no in found? {
                self.wake(run_no).await?;
            }
            Ok::<_, HostError>(())
        };
        if let Err(error) = woken.await {
            tracing::error!(%key, %error, "parked runs cannot be woken; they will be when their time comes");
        }
    }

    /// The parked run that has its turn in a conversation.
    pub(crate) fn parked_turn(&self, key: &ConversationKey) -> Option<ParkedTurn> {
        let ledger = &self.ledger;
        if ledger.parked_count() == 0 {
            return None;
        }
        let found = ledger.parked_on(&WaitKey::conversation(key).to_string(), 1);
        let run_no =
            found.inspect_err(|error| tracing::error!(%error, "a parked run cannot be looked for")).ok()?.first().copied()?;
        Some(ParkedTurn { run_no, steers: self.takes_input(run_no) })
    }

    fn takes_input(&self, run_no: u64) -> bool {
        let record = self.ledger.run_by_no(run_no).ok().flatten();
        record.is_some_and(|record| self.takes_input_of(record.run.run_id).unwrap_or(false))
    }

    /// True if a run takes the events of waiting runs as input.
    pub(crate) fn takes_input_of(&self, run: RunId) -> Result<bool, HostError> {
        let Some(terms) = self.ledger.terms(run)? else { return Ok(false) };
        Ok(serde_json::from_str::<Terms>(terms.get()).is_ok_and(|terms| terms.grant.steering))
    }

    /// Brings back parked runs whose time has come, as long as the host lives.
    pub(crate) fn keep_time(&self) {
        let runs = self.clone();
        tokio::spawn(async move {
            loop {
                let next = runs.ledger.next_wake().unwrap_or_else(|error| {
                    tracing::error!(%error, "parked runs cannot be looked for; trying again");
                    Some(time::now())
                });
                let left = match next {
                    None => Duration::MAX,
                    Some(at) => Duration::from_millis(at.saturating_sub(time::now())),
                };
                tokio::select! {
                    () = runs.stopping.cancelled() => return,
                    () = runs.alarm.notified() => continue,
                    () = sleep(left) => {}
                }
                if let Err(error) = runs.wake_due().await {
                    tracing::error!(%error, "parked runs cannot be woken; trying again");
                }
                // Woken runs stay due on disk until they have their place.
                if runs.ledger.next_wake().ok().flatten().is_some_and(|at| at <= time::now()) {
                    tokio::select! {
                        () = runs.stopping.cancelled() => return,
                        () = sleep(PAUSE) => {}
                    }
                }
            }
        });
    }

    async fn wake_due(&self) -> Result<(), HostError> {
        let mut after: Option<(Timestamp, u64)> = None;
        loop {
            let due = self.ledger.due(time::now(), after, PAGE)?;
            let Some(last) = due.last() else { return Ok(()) };
            after = Some(*last);
            for (_, run_no) in due {
                self.wake(run_no).await?;
            }
        }
    }

    /// Brings back a parked run, once there is room for one more that comes back. A run that is back already is left alone.
    pub(crate) async fn wake(&self, run_no: u64) -> Result<(), HostError> {
        let permit = tokio::select! {
            () = self.stopping.cancelled() => return Ok(()),
            permit = self.waking.clone().acquire_owned() => permit.ok(),
        };
        let Some(record) = self.ledger.run_by_no(run_no)? else { return Ok(()) };
        let run = &record.run;
        if run.status.is_terminal() || !matches!(self.registry.locate(run.run_id), Location::Parked) {
            return Ok(());
        }
        let run = self.stored(record, Resumption::Parked)?;
        self.begin(StoredRun { waking: permit, ..run });
        Ok(())
    }

    /// A run was parked and has left memory: wakes it where something that it waits for came in this moment.
    pub(crate) fn check_parked(&self, run_no: u64) {
        let record = self.ledger.run_by_no(run_no);
        let cancelled = matches!(&record, Ok(Some(record)) if record.run.cancel_requested_at.is_some());
        if cancelled || self.is_due(run_no) {
            let runs = self.clone();
            tokio::spawn(async move {
                if let Err(error) = runs.wake(run_no).await {
                    tracing::error!(%error, "a parked run cannot be woken; it will be when its time comes");
                }
            });
        }
    }

    /// True if an event that a parked run waits for came before the run was parked.
    pub(crate) fn is_due(&self, run_no: u64) -> bool {
        let Ok(Some(park)) = self.ledger.parked(run_no) else { return false };
        park.keys.iter().filter_map(|key| WaitKey::parse(key)).any(|key| match key {
            WaitKey::Action(id) => self.action(&id).is_ok_and(|action| action.status != ActionStatus::Open),
            WaitKey::Child(id) => {
                let child = self.ledger.run(id).ok().flatten();
                child.is_none_or(|child| child.run.status.is_terminal())
            }
            WaitKey::Steering(_) => {
                let record = self.ledger.run_by_no(run_no).ok().flatten();
                record.is_some_and(|record| self.has_input(&record.run))
            }
            WaitKey::Conversation(_) => false,
        })
    }

    /// True if a run waits behind this one whose event this run can take as input.
    fn has_input(&self, run: &Run) -> bool {
        let key = run.conversation_key();
        let can_be_taken = |run_no| {
            let record = self.ledger.run_by_no(run_no).ok().flatten();
            record.is_some_and(|record| steering::can_be_taken(&record, &run.binding_id))
        };
        // The taken run is dropped here, so it goes back to its place.
        key.is_some_and(|key| !self.lines.take(&key, 1, can_be_taken).is_empty())
    }
}
