//! The changes of a run by a write: all checked before any is applied, so that a refused write changes nothing. The park of
//! a change is part of them.

use agent_host_protocol::{
    Run, RunStatus, Timestamp,
    run::{IllegalTransition, Terminal},
};

use crate::{
    error::LedgerError,
    operation::measured::MeasuredUse,
    record::{Park, RunChange},
    rows::{MAX_KEY_BYTES, encode},
};

/// The events of one write, already known to follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventSpan {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Time of the last.
    pub(crate) at: Timestamp,
}

/// Checks that these changes and events can follow the present state of the run. `parked`: the run has a park row.
pub(crate) fn check(run: &Run, mut parked: bool, changes: &[RunChange], events: Option<EventSpan>) -> Result<(), LedgerError> {
    if run.status.is_terminal() {
        return Err(LedgerError::Terminal { run_id: run.run_id, status: run.status });
    }
    let mut status = run.status;
    for change in changes {
        if matches!(
            change,
            RunChange::Dispatch { .. } | RunChange::Claim { .. } | RunChange::Release { .. } | RunChange::Renew { .. }
        ) && run.queue.is_none()
        {
            return Err(LedgerError::invalid("only a run with a place in a queue is claimed"));
        }
        status = step(status, parked, change)?;
        parked &= target(change).is_none();
    }
    match events {
        Some(events) if events.first != run.last_sequence + 1 => {
            Err(LedgerError::Sequence { expected: run.last_sequence + 1, found: events.first })
        }
        _ => Ok(()),
    }
}

fn step(status: RunStatus, parked: bool, change: &RunChange) -> Result<RunStatus, LedgerError> {
    let under_way = matches!(status, RunStatus::Claimed | RunStatus::Running | RunStatus::Waiting);
    match (change, target(change)) {
        (RunChange::Retry { .. } | RunChange::Recover { .. }, _) if !under_way => Err(LedgerError::invalid(format!(
            "a run that is {status} was not under way: only one that is claimed, running or waiting is brought back"
        ))),
        // The end of a claim is the only change that returns a run to its queue.
        (RunChange::Queue { .. }, _) if status != RunStatus::Created => {
            Err(IllegalTransition { from: status, to: RunStatus::Queued }.into())
        }
        // An attempt that was running runs again, which is no step of the machine.
        (RunChange::Retry { .. }, _) => Ok(RunStatus::Running),
        // A run that was woken meanwhile is refused as a `Resume` of it is.
        (RunChange::Due { .. }, _) => match status.transition(RunStatus::Running)? {
            _ if parked => Ok(status),
            _ => Err(IllegalTransition { from: status, to: RunStatus::Waiting }.into()),
        },
        (_, Some(to)) => Ok(status.transition(to)?),
        (_, None) => Ok(status),
    }
}

/// True if the run becomes a turn of its conversation by these changes: it begins, or ends without having begun.
pub(crate) fn takes_turn(run: &Run, changes: &[RunChange]) -> bool {
    let begins = |change: &RunChange| matches!(change, RunChange::Start { .. } | RunChange::End { .. });
    run.turn.is_none() && run.conversation_id.is_some() && changes.iter().any(begins)
}

/// Checks the claim of a write.
pub(crate) fn fenced(run: &Run, claim: Option<u32>) -> Result<(), LedgerError> {
    let counts = |claim: u32| {
        let queue = run.queue.as_ref();
        !run.status.is_terminal() && queue.is_some_and(|queue| queue.claims == claim && queue.executor_id.is_some())
    };
    match claim {
        Some(claim) if !counts(claim) => Err(LedgerError::Fenced { run_id: run.run_id }),
        _ => Ok(()),
    }
}

/// Change of the park row of a run by a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParkChange {
    /// The row stays.
    Keep,
    /// The wake time becomes this; the keys stay.
    Due(Timestamp),
    /// The row goes.
    Remove,
}

/// Change of the park row of a run by these changes.
pub(crate) fn park_change(changes: &[RunChange]) -> ParkChange {
    let change = |change: &RunChange| match change {
        RunChange::Due { at } => Some(ParkChange::Due(*at)),
        _ => target(change).map(|_| ParkChange::Remove),
    };
    changes.iter().rev().find_map(change).unwrap_or(ParkChange::Keep)
}

/// True if the run waits because of these changes.
fn ends_waiting(changes: &[RunChange]) -> bool {
    changes
        .iter()
        .rev()
        .find(|change| matches!(change, RunChange::Due { .. }) || target(change).is_some())
        .is_some_and(|last| matches!(last, RunChange::Wait { .. } | RunChange::Due { .. }))
}

fn target(change: &RunChange) -> Option<RunStatus> {
    match change {
        RunChange::Queue { .. } | RunChange::Release { .. } => Some(RunStatus::Queued),
        RunChange::Dispatch { .. } => Some(RunStatus::Dispatching),
        RunChange::Claim { .. } => Some(RunStatus::Claimed),
        RunChange::Start { .. } | RunChange::Resume { .. } | RunChange::Retry { .. } => Some(RunStatus::Running),
        RunChange::Wait { .. } => Some(RunStatus::Waiting),
        RunChange::CancelRequested { .. }
        | RunChange::Recover { .. }
        | RunChange::Renew { .. }
        | RunChange::Append { .. }
        | RunChange::Due { .. } => None,
        RunChange::End { terminal, .. } => Some(terminal.status()),
    }
}

/// Makes changes that [`check`] has allowed.
pub(crate) fn apply(run: &mut Run, changes: Vec<RunChange>, events: Option<EventSpan>, measured: Vec<MeasuredUse>) {
    for measured in measured {
        measured.add_to(run);
    }
    if let Some(events) = events {
        run.last_sequence = events.last;
        run.updated_at = run.updated_at.max(events.at);
    }
    for change in changes {
        if let Some(to) = target(&change) {
            run.status = to;
            run.status_reason = None;
        }
        let at = match change {
            RunChange::Resume { at } | RunChange::Due { at } | RunChange::Dispatch { at } => at,
            RunChange::Queue { at } => {
                if let Some(queue) = &mut run.queue {
                    queue.queued_at = Some(at);
                }
                at
            }
            RunChange::Claim { at, executor_id, lease_expires_at } => {
                if let Some(queue) = &mut run.queue {
                    queue.claims = queue.claims.saturating_add(1);
                    queue.executor_id = Some(executor_id);
                    queue.claimed_at = Some(at);
                    queue.lease_expires_at = Some(lease_expires_at);
                    queue.appended = 0;
                }
                at
            }
            RunChange::Renew { at, lease_expires_at } => {
                if let Some(queue) = &mut run.queue {
                    queue.lease_expires_at = Some(lease_expires_at);
                }
                at
            }
            RunChange::Append { through } => {
                if let Some(queue) = &mut run.queue {
                    queue.appended = through;
                }
                continue;
            }
            RunChange::Release { at, reason, not_before, attempted } => {
                if let Some(queue) = &mut run.queue {
                    queue.executor_id = None;
                    queue.lease_expires_at = None;
                    queue.queued_at = Some(at);
                    queue.not_before = not_before;
                }
                run.attempt = run.attempt.saturating_add(u32::from(attempted));
                run.status_reason = Some(reason);
                run.deadline_at = None;
                at
            }
            RunChange::Start { at, deadline_at } => {
                run.started_at.get_or_insert(at);
                run.deadline_at = deadline_at.or(run.deadline_at);
                at
            }
            RunChange::Wait { at, reason } => {
                run.status_reason = Some(reason);
                at
            }
            RunChange::Retry { at, deadline_at } => {
                run.attempt = run.attempt.saturating_add(1);
                run.deadline_at = deadline_at;
                at
            }
            RunChange::Recover { at } => {
                run.resumes = run.resumes.saturating_add(1);
                at
            }
            RunChange::CancelRequested { at, reason } => {
                if run.cancel_requested_at.is_none() {
                    run.cancel_requested_at = Some(at);
                    run.cancel_reason = Some(reason);
                }
                at
            }
            RunChange::End { at, terminal } => {
                end(run, at, terminal);
                at
            }
        };
        run.updated_at = run.updated_at.max(at);
    }
}

fn end(run: &mut Run, at: Timestamp, terminal: Terminal) {
    run.finished_at = Some(at);
    if let Some(queue) = &mut run.queue {
        queue.lease_expires_at = None;
    }
    run.failure = terminal.failure();
    run.status_reason = run.failure.as_ref().map(|failure| failure.code.clone());
    match terminal {
        Terminal::Completed(completion) => run.claimed_usage = completion.usage,
        Terminal::Cancelled { reason } => run.status_reason = Some(reason),
        Terminal::Failed(_) | Terminal::Timeout { .. } => {}
    }
}

/// Keys that one run may wait for: more is a list that belongs into a table of its own.
const MAX_KEYS: usize = 64;

/// A key, in bytes: the number of the run follows it.
const MAX_PARK_KEY_BYTES: usize = MAX_KEY_BYTES - 8;

/// A park, checked and encoded.
pub(crate) struct NewPark {
    pub(crate) park: Box<Park>,
    pub(crate) row: Vec<u8>,
}

impl NewPark {
    pub(crate) fn prepare(park: Park, changes: &[RunChange]) -> Result<Self, LedgerError> {
        if !ends_waiting(changes) {
            return Err(LedgerError::invalid("a run is parked only by a write whose last step is `Wait` or `Due`"));
        }
        if park.keys.len() > MAX_KEYS {
            return Err(LedgerError::invalid(format!(
                "a parked run waits for {} keys; the limit is {MAX_KEYS}",
                park.keys.len()
            )));
        }
        if park.keys.iter().any(|key| key.is_empty() || key.len() > MAX_PARK_KEY_BYTES) {
            return Err(LedgerError::invalid(format!("a key that a run waits for has 1 to {MAX_PARK_KEY_BYTES} bytes")));
        }
        let row = encode(&park)?;
        Ok(Self { park: Box::new(park), row })
    }

    pub(crate) fn bytes(&self) -> usize {
        // Once in the row, once as rows of their own.
        self.row.len() + self.park.keys.iter().map(|key| key.len() + 16).sum::<usize>() + 64
    }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::{
        EventId, FailureCode,
        message::TokenUsage,
        run::{RunCompletion, RunFailure},
    };

    use super::*;
    use crate::samples;

    fn run() -> Run {
        samples::run(EventId::new())
    }

    fn after(changes: Vec<RunChange>) -> Run {
        let mut run = run();
        check(&run, false, &changes, None).unwrap();
        apply(&mut run, changes, None, Vec::new());
        run
    }

    fn completed() -> Terminal {
        let usage = Some(TokenUsage { input: 1, output: 2, cached_input: None, reasoning: None });
        Terminal::Completed(RunCompletion { finish_reason: "stop".into(), message: None, usage, metadata: None })
    }

    #[test]
    fn a_run_starts_once_and_ends_with_what_it_used() {
        let run = after(vec![
            RunChange::Queue { at: 2 },
            RunChange::Start { at: 3, deadline_at: Some(100) },
            RunChange::Wait { at: 4, reason: "approval".into() },
            RunChange::Start { at: 5, deadline_at: None },
            RunChange::End { at: 6, terminal: completed() },
        ]);
        assert_eq!((run.status, run.started_at, run.finished_at, run.updated_at), (RunStatus::Completed, Some(3), Some(6), 6));
        assert_eq!((run.deadline_at, run.status_reason, run.claimed_usage.unwrap().output), (Some(100), None, 2));
    }

    #[test]
    fn the_first_request_to_cancel_is_kept() {
        let run = after(vec![
            RunChange::CancelRequested { at: 2, reason: "user".into() },
            RunChange::CancelRequested { at: 3, reason: "other".into() },
            RunChange::End { at: 4, terminal: Terminal::Cancelled { reason: "user".into() } },
        ]);
        assert_eq!(
            (run.cancel_requested_at, run.cancel_reason.as_deref(), run.status_reason.as_deref()),
            (Some(2), Some("user"), Some("user"))
        );
        assert_eq!(run.failure.unwrap().code, FailureCode::Cancelled.as_str());
    }

    #[test]
    fn a_failure_gives_its_code_as_the_reason() {
        let failure = RunFailure { code: "x.y".into(), message: "m".into(), retryable: false, details: None };
        assert_eq!(
            after(vec![RunChange::End { at: 4, terminal: Terminal::Failed(failure) }]).status_reason.as_deref(),
            Some("x.y")
        );
    }

    #[test]
    fn due_leaves_the_record_that_resume_and_wait_leave() {
        let waiting = after(vec![
            RunChange::Start { at: 3, deadline_at: Some(100) },
            RunChange::Wait { at: 4, reason: "approval".into() },
            RunChange::CancelRequested { at: 5, reason: "user".into() },
        ]);
        let with = |changes: Vec<RunChange>| {
            let (mut run, events) = (waiting.clone(), Some(EventSpan { first: 1, last: 2, at: 9 }));
            check(&run, true, &changes, events).unwrap();
            assert!(ends_waiting(&changes));
            apply(&mut run, changes, events, Vec::new());
            run
        };
        for at in [1, 7, 12] {
            let pair = vec![RunChange::Resume { at }, RunChange::Wait { at, reason: "approval".into() }];
            let due = with(vec![RunChange::Due { at }]);
            assert_eq!((due.status, due.status_reason.as_deref()), (RunStatus::Waiting, Some("approval")));
            assert_eq!((due.updated_at, &due), (at.max(9), &with(pair)));
        }
    }

    #[test]
    fn only_a_parked_run_is_made_due() {
        let refused = |run: &Run, parked, changes: &[RunChange]| match check(run, parked, changes, None) {
            Err(LedgerError::Transition(refusal)) => (refusal.from, refusal.to),
            other => panic!("{other:?}"),
        };
        let (due, resume) = (RunChange::Due { at: 7 }, RunChange::Resume { at: 7 });
        let wait = RunChange::Wait { at: 7, reason: "x".into() };
        let created = run();
        assert_eq!(refused(&created, false, std::slice::from_ref(&due)), (RunStatus::Created, RunStatus::Waiting));
        let running = after(vec![RunChange::Start { at: 3, deadline_at: None }]);
        let woken = refused(&running, false, std::slice::from_ref(&due));
        assert_eq!(woken, refused(&running, false, &[resume.clone(), wait.clone()]));
        let waiting = after(vec![RunChange::Start { at: 3, deadline_at: None }, wait.clone()]);
        assert_eq!(refused(&waiting, false, std::slice::from_ref(&due)), (RunStatus::Waiting, RunStatus::Waiting));
        assert_eq!(refused(&waiting, true, &[resume.clone(), due.clone()]), woken);
        assert_eq!(refused(&waiting, true, &[resume.clone(), wait, due.clone()]), (RunStatus::Waiting, RunStatus::Waiting));
        assert_eq!(park_change(&[due.clone(), RunChange::Recover { at: 8 }]), ParkChange::Due(7));
        assert_eq!((park_change(&[due, resume]), park_change(&[])), (ParkChange::Remove, ParkChange::Keep));
    }

    #[test]
    fn illegal_transitions_are_refused() {
        let mut run = run();
        let end = RunChange::End { at: 1, terminal: completed() };
        assert!(matches!(check(&run, false, std::slice::from_ref(&end), None), Err(LedgerError::Transition(_))));
        let span = EventSpan { first: 2, last: 2, at: 1 };
        assert!(matches!(check(&run, false, &[], Some(span)), Err(LedgerError::Sequence { expected: 1, found: 2 })));
        run.status = RunStatus::Failed;
        assert!(matches!(check(&run, false, &[], None), Err(LedgerError::Terminal { .. })));
    }
}
