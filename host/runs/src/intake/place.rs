//! The place of a new run in the line of its conversation, and what happens to the run that is active there.
//!
//! | the active run | `reject` | `queue` | `steer` | `replace_abandoned` |
//! |---|---|---|---|---|
//! | none | first | first | first | first |
//! | watched by a client | refused | waits | input of the active run | refused |
//! | streamed, and no client watches it | refused | waits | input of the active run | cancelled, the new one is next |
//! | of a client that reads no stream, or of another API | refused | waits | input of the active run | refused |
//! | does not take input | refused | waits | refused | as above |
//! | waits for a tool of its client, which has gone on | cancelled | cancelled | cancelled | cancelled |
//! | with runs that wait behind it | refused | waits | input of the active run | refused |
//!
//! A run that begins a branch of the conversation is refused where it would wait or become input.
//!
//! The place is reserved under the lock of the lines, and every other run of the conversation is created before the
//! reservation or after the new run has joined.

use std::time::Duration;

use agent_host_config::BusyThread;
use agent_host_ledger::RunRecord;
use agent_host_protocol::{RunId, grant::ConversationKey};

use super::{Intake, accept::RunPlan};
use crate::{
    lifecycle::lines::{Busy, Reservation},
    record::HostError,
};

/// Time that a new run waits for the end of the run that it replaces. A guest ends within its grace of 20 ms; an executor may
/// take longer, and then the new run waits in the line.
const REPLACING: Duration = Duration::from_secs(2);

/// A reserved place in a line. Dropped once the runs have joined.
pub(super) struct LinePlace {
    _reservation: Reservation,
    /// The abandoned run that is to be cancelled first.
    pub(super) replaces: Option<RunId>,
}

impl Intake {
    /// Reserves a place in the line of the conversation.
    ///
    /// # Errors
    /// [`HostError::QueueFull`] where the line is full, [`HostError::Busy`] where the active run stays and a plan does not wait.
    pub(super) async fn reserve_line(
        &self,
        conversation: Option<&ConversationKey>,
        plans: &[RunPlan],
    ) -> Result<Option<LinePlace>, HostError> {
        let Some(key) = conversation.filter(|_| !plans.is_empty()) else { return Ok(None) };
        let lines = &self.runs.lines;
        let (waiting, steers) = lines.waiting(key);
        let limits = self.shared.limits();
        let most = if steers { limits.steering_queue.min(limits.conversation_queue) } else { limits.conversation_queue };
        if waiting >= most {
            return Err(HostError::QueueFull { waiting });
        }
        // All plans of an event but those of agents wait.
        let busy = plans.iter().map(|plan| plan.busy).find(|busy| *busy != BusyThread::Queue).unwrap_or(BusyThread::Queue);
        let replaces = plans.iter().find_map(|plan| plan.replaces);
        let busy = if plans.iter().any(|plan| plan.branch.is_some()) { busy.of_branch() } else { busy };
        if busy == BusyThread::Queue && replaces.is_none() {
            return Ok(Some(LinePlace { _reservation: lines.reserve(key).await, replaces: None }));
        }
        loop {
            let Busy { active } = match lines.reserve_idle(key, |key| self.runs.parked_turn(key)) {
                Ok(reservation) => return Ok(Some(LinePlace { _reservation: reservation, replaces: None })),
                Err(busy) => busy,
            };
            let Some((run_no, left)) = active else { return Err(HostError::Busy { run_id: None }) };
            let record = self.ledger.run_by_no(run_no)?;
            match (record, left) {
                // Clients know its end already: it leaves the line in a moment.
                (Some(record), Some(left)) if record.run.status.is_terminal() => left.await,
                (Some(record), _)
                    if replaces == Some(record.run.run_id)
                        || busy == BusyThread::ReplaceAbandoned && self.runs.is_abandoned(record.run.run_id)? =>
                {
                    match lines.reserve_behind(key, run_no, |key| self.runs.parked_turn(key)) {
                        Some(reservation) => {
                            return Ok(Some(LinePlace { _reservation: reservation, replaces: Some(record.run.run_id) }));
                        }
                        None if self.is_active(key, run_no) => return Err(HostError::Busy { run_id: Some(record.run.run_id) }),
                        // It has left meanwhile.
                        None => {}
                    }
                }
                _ if busy == BusyThread::Queue => {
                    return Ok(Some(LinePlace { _reservation: lines.reserve(key).await, replaces: None }));
                }
                (Some(record), _) if busy == BusyThread::Steer && self.takes(&record, plans)? => {
                    return Ok(Some(LinePlace { _reservation: lines.reserve(key).await, replaces: None }));
                }
                (record, _) => return Err(HostError::Busy { run_id: record.map(|record| record.run.run_id) }),
            }
        }
    }

    /// Fails as a run of an agent would that does not wait, without reserving anything: for callers that write something before
    /// they create the run.
    pub(crate) fn check_busy(&self, key: &ConversationKey, binding_id: &str, busy: BusyThread) -> Result<(), HostError> {
        let active = self.active_runs(key)?;
        let Some(run) = active.first() else { return Ok(()) };
        let stays = match busy {
            BusyThread::Queue => false,
            BusyThread::Reject => true,
            BusyThread::ReplaceAbandoned => active.len() > 1 || !self.runs.is_abandoned(run.run_id)?,
            BusyThread::Steer => run.binding_id != binding_id || !self.runs.takes_input_of(run.run_id)?,
        };
        if stays { Err(HostError::Busy { run_id: Some(run.run_id) }) } else { Ok(()) }
    }

    /// Waits a moment for the client of the active run of a thread to leave, where a new message would replace an abandoned run.
    pub(crate) async fn notice_hang_up(&self, key: &ConversationKey, busy: BusyThread) -> Result<(), HostError> {
        if busy == BusyThread::ReplaceAbandoned
            && let Some(run) = self.active_runs(key)?.first()
        {
            self.runs.notice_hang_up(run.run_id).await?;
        }
        Ok(())
    }

    fn is_active(&self, key: &ConversationKey, run_no: u64) -> bool {
        let active = self.runs.lines.members(key).first().copied();
        active.or_else(|| self.runs.parked_turn(key).map(|turn| turn.run_no)) == Some(run_no)
    }

    /// True if the active run takes the event of these plans as input.
    fn takes(&self, active: &RunRecord, plans: &[RunPlan]) -> Result<bool, HostError> {
        let is_of_binding = plans.iter().all(|plan| plan.binding.config.id == active.run.binding_id);
        Ok(is_of_binding && self.runs.takes_input_of(active.run.run_id)?)
    }

    /// Cancels an abandoned run, and waits a moment for its end, so that the run which replaces it sees what it left.
    pub(super) async fn replace(&self, run: RunId) -> Result<(), HostError> {
        let reason = "a new message came, and no client waited for the run".to_owned();
        match self.runs.cancel(run, reason).await {
            // It has ended by itself.
            Err(HostError::Conflict(_)) => return Ok(()),
            cancelled => cancelled?,
        };
        self.runs.wait(run, REPLACING).await.map(drop)
    }
}
