//! Awaiting answers: how a run waits for people, or for the client that brought a tool along.
//!
//! The run is parked while it waits, so a restart of the host changes nothing for it. A run that cannot be parked (it has no
//! journal, or something streams) waits in memory, with the same facts in its record.

use std::time::Duration;

use agent_host_facts::record::{ActionEnd, Decision, StatusChange};
use agent_host_ledger::{RunChange, RunWrite};
use agent_host_protocol::{ApiError, ErrorCode, Timestamp, ask::ActionOutcome, time};

use super::{Execution, registry::PostedAnswer};
use crate::record::{
    HostError, WaitKey,
    action::{Action, Ask, AskKind, RecordedAnswer, actions_of},
    facts::{self, Fact},
    journal::Stop,
    ledger_failed,
};

/// The resolution of an action.
pub(crate) enum Resolution {
    /// The action has an answer.
    Answered(RecordedAnswer),
    /// The question expired.
    Expired,
}

impl Resolution {
    /// The outcome of a platform action that was not approved; `None` where it was.
    pub(crate) fn refusal(self) -> Option<ActionOutcome> {
        match self {
            Self::Expired => Some(ActionOutcome::Expired),
            Self::Answered(recorded_answer) if recorded_answer.decision == Decision::Approve => None,
            Self::Answered(recorded_answer) => Some(ActionOutcome::Denied(recorded_answer.reason.unwrap_or_default())),
        }
    }
}

/// The way in which a run waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// The guest waits, and the run leaves memory if it can.
    Park,
    /// The guest waits, and work of the run is open that would end with the execution.
    InMemory,
    /// The guest continues meanwhile.
    Background,
}

impl WaitMode {
    /// The way in which a run waits for the answer to one of its calls.
    pub(crate) fn of(run: &Execution) -> Self {
        if run.is_external() {
            // The executor continues meanwhile, and the caller may go away: the status of the run does not show the wait.
            Self::Background
        } else if run.open.any() {
            Self::InMemory
        } else {
            Self::Park
        }
    }
}

impl Execution {
    /// A request to people, answered in time: it expires no later than the run where the wait counts.
    pub(crate) fn in_time(&self, ask: Ask) -> Ask {
        let expires_at = ask.expires_at.map(|at| if self.terms.waiting_counts { at.min(self.deadline.timestamp()) } else { at });
        Ask { expires_at, ..ask }
    }

    /// Waits for the answer to what the run has asked, as its record says. A run that can be parked is: then this does not
    /// return, and the next execution finds the answer in the record.
    pub(crate) async fn await_answer(&self, action_id: &str, kind: AskKind, mode: WaitMode) -> Result<Resolution, ApiError> {
        let resolutions = self.await_answers(&[action_id.to_owned()], kind, mode).await?;
        resolutions.into_iter().next().ok_or_else(|| ApiError::new(ErrorCode::RuntimeError, "the host lost an answer"))
    }

    /// As [`Execution::await_answer`], of several: in their order, once all are answered.
    pub(crate) async fn await_answers(&self, ids: &[String], kind: AskKind, mode: WaitMode) -> Result<Vec<Resolution>, ApiError> {
        let mail = &self.waits.mail;
        let _awaited: Vec<_> = ids.iter().map(|id| mail.await_action(id)).collect();
        let mut arrivals = mail.arrivals();
        let (mut resolutions, expires) = self.recorded_resolutions(ids).await?;
        // A guest goes on beside its background actions.
        let goes_on = mode == WaitMode::Background && !self.is_external();
        let _uncounted = (!self.terms.waiting_counts && !goes_on).then(|| self.deadline.pause());
        let mut waits = false;
        loop {
            arrivals.mark_unchanged();
            for ((id, resolution), expires_at) in ids.iter().zip(&mut resolutions).zip(&expires) {
                if resolution.is_none() {
                    *resolution = self.resolution(id, kind, *expires_at).await?;
                }
                if resolution.is_some() {
                    mail.refuse(id);
                }
            }
            let open = || ids.iter().zip(&expires).zip(&resolutions).filter(|(_, it)| it.is_none()).map(|(asked, _)| asked);
            if open().next().is_none() {
                if waits {
                    self.record_resume().await?;
                }
                return Ok(resolutions.into_iter().flatten().collect());
            }
            let until = open().filter_map(|(_, expires_at)| *expires_at).min();
            if mode == WaitMode::Park && self.journal.can_resume() {
                let keys = open().map(|(id, _)| WaitKey::action(id)).collect();
                self.stop(Stop::Park { until, reason: kind.reason(), keys }).await
            }
            if !waits && mode != WaitMode::Background {
                self.record_wait(kind.reason(), until).await?;
                waits = true;
            }
            let left = until.map_or(Duration::MAX, |at| Duration::from_millis(at.saturating_sub(time::now())));
            tokio::select! {
                _ = arrivals.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// The resolutions that the record has of these actions, and the time when each expires.
    async fn recorded_resolutions(&self, ids: &[String]) -> Result<(Vec<Option<Resolution>>, Vec<Option<Timestamp>>), ApiError> {
        let mut resolutions = Vec::with_capacity(ids.len());
        let mut expires = Vec::with_capacity(ids.len());
        for id in ids {
            let mut action = self.action(id)?;
            if action.is_none() {
                // The action of a run without a journal may still be on its way to the ledger.
                self.writer.flush().await?;
                action = self.action(id)?;
            }
            expires.push(action.as_ref().and_then(Action::expires_at));
            resolutions.push(action.and_then(|action| match action.recorded_answer() {
                Some(recorded_answer) => Some(Resolution::Answered(recorded_answer)),
                None => action.resolved.map(|_| Resolution::Expired),
            }));
        }
        Ok((resolutions, expires))
    }

    /// The present resolution of an action: a posted answer, or expiry. `None` while the action is open.
    async fn resolution(
        &self,
        action_id: &str,
        kind: AskKind,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<Resolution>, ApiError> {
        while let Some((letter, _writing)) = self.waits.mail.take(action_id) {
            if let Some(recorded_answer) = self.record_answer(action_id, kind, letter).await {
                return Ok(Some(Resolution::Answered(recorded_answer)));
            }
        }
        if expires_at.is_some_and(|at| at <= time::now()) {
            let end = ActionEnd { action_id: action_id.to_owned(), outcome: "expired".into(), ..ActionEnd::default() };
            self.writer.record_fact(&Fact::ActionResolved(end)).await?;
            return Ok(Some(Resolution::Expired));
        }
        Ok(None)
    }

    /// An action of the run, from the record.
    pub(crate) fn action(&self, action_id: &str) -> Result<Option<Action>, ApiError> {
        let record = self.ledger.run_by_no(self.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(None) };
        let actions = actions_of(&self.ledger, &record).map_err(ledger_failed)?;
        Ok(actions.into_iter().find(|action| action.action_id == action_id))
    }

    /// Writes an answer that was posted. Returns `None` if the write failed; the sender receives an error.
    async fn record_answer(&self, action_id: &str, kind: AskKind, letter: PostedAnswer) -> Option<RecordedAnswer> {
        let PostedAnswer { recorded_answer, receipt, .. } = letter;
        let at = time::now();
        let facts = recorded_answer.facts(action_id, kind);
        let refers_to = recorded_answer.artifacts(kind);
        let make = |first: u64| Ok(RunWrite { events: facts::events(&facts, first, at), refers_to, ..RunWrite::default() });
        let written = match self.writer.append(make).await {
            Ok(written) => written.durable().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                let _ = receipt.send(Ok(()));
                Some(recorded_answer)
            }
            Err(error) => {
                let _ = receipt.send(Err(HostError::Unavailable(error.message)));
                None
            }
        }
    }

    /// Records that the run waits, in memory.
    async fn record_wait(&self, reason: &str, until: Option<Timestamp>) -> Result<(), ApiError> {
        self.record_status(|at| RunChange::Wait { at, reason: reason.to_owned() }, StatusChange::waiting(reason, until)).await
    }

    /// Records that the run is executed again.
    async fn record_resume(&self) -> Result<(), ApiError> {
        // A resumed run has the time back that it has waited.
        let deadline_at = Some(self.deadline.timestamp());
        self.record_status(|at| RunChange::Start { at, deadline_at }, StatusChange::running("answered")).await
    }

    async fn record_status(&self, change: impl FnOnce(Timestamp) -> RunChange, status: StatusChange) -> Result<(), ApiError> {
        let at = time::now();
        let make = |sequence| {
            let events = vec![Fact::RunStatus(status).event(sequence, at)];
            Ok(RunWrite { changes: vec![change(at)], events, ..RunWrite::default() })
        };
        self.writer.append(make).await.map(drop)
    }
}
