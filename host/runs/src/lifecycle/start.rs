//! Start of an execution: a first one, a new attempt, or a resumed one.

use std::time::{Duration, Instant};

use agent_host_config::Durability;
use agent_host_facts::record::StatusChange;
use agent_host_ledger::{NewContext, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{ResultKind, RunStatus, Timestamp, context::RunContext, run::RunFailure, time};
use agent_host_sandbox::{GuestClock, Runner, World};

use super::task::RunTask;
use crate::{
    execution::{
        Resumption,
        writer::{OnStorageError, UnwrittenStart},
    },
    policy::context::{self, Sources},
    record::{
        FORKED_FROM, HostError,
        action::AskKind,
        facts::{self, Fact, UnendedCalls},
        journal::{EarlierJournal, Journal, Mode, Stop},
        terminal::{host_restarted, not_journaled},
    },
};

/// The kind of an execution's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartKind {
    /// Of the first attempt.
    First,
    /// Of a further attempt, which knows nothing of the ones before.
    Retry,
    /// On from where the execution before stopped.
    Resumed,
}

/// The parts that an execution starts with.
pub(crate) struct Start {
    pub(crate) kind: StartKind,
    /// In a box: the start of a run passes it on several times.
    pub(crate) context: Box<RunContext>,
    pub(crate) world: World,
    pub(crate) journal: Journal,
    /// The start itself, where the execution is to write it.
    pub(crate) unwritten: Option<UnwrittenStart>,
    /// Time limit of the guest.
    pub(crate) deadline: Instant,
    /// Sequence of the last event that the run has.
    pub(crate) last_sequence: u64,
    pub(crate) attempt: u32,
}

impl RunTask {
    /// Begins the execution. The start of a first attempt goes with the first write of the execution, but for a run that the
    /// host found when it started, whose start is on disk when this returns. Any other start is on its way to the disk then,
    /// and whatever the run writes is behind it in the same line. The inner error is the end of the run.
    pub(crate) async fn start_guest(&self, runner: &Runner) -> Result<Result<Start, RunFailure>, HostError> {
        // Requests of `wasi:http` are in no journal.
        let journals = !runner.component.uses_wasi_http();
        match (self.run.resumption, self.run.terms.durability) {
            (Resumption::New, _) => self.start_attempt(self.run.record.run.attempt, journals).await.map(Ok),
            (Resumption::Interrupted, Durability::Resume) if !journals => Ok(Err(not_journaled())),
            (Resumption::Parked | Resumption::Forked, _) | (Resumption::Interrupted, Durability::Resume) => {
                Box::pin(self.resume()).await
            }
            (Resumption::Interrupted, Durability::Retry) => {
                let attempt = self.run.record.run.attempt;
                if attempt >= self.run.terms.max_attempts {
                    let message = format!("the host stopped in each of {attempt} attempts at the run, which is the limit");
                    return Ok(Err(RunFailure { message, ..host_restarted() }));
                }
                self.start_attempt(attempt + 1, journals).await.map(Ok)
            }
            (Resumption::Interrupted, Durability::Fail) => Ok(Err(host_restarted())),
        }
    }

    pub(crate) async fn start_attempt(&self, attempt: u32, journals: bool) -> Result<Start, HostError> {
        let runs = &self.runs;
        let setup = runs.shared.setup();
        let limits = &*setup.limits;
        let (started, began_us) = (Instant::now(), time::now_us());
        let at = began_us / 1_000;
        let deadline_at = at.saturating_add(self.run.terms.deadline_ms);
        let context = Box::new(context::build(
            &runs.ledger,
            &Sources {
                run_id: self.run.record.run.run_id,
                parent_run_id: self.run.record.run.parent_run_id,
                attempt,
                event: &self.run.event,
                services: &setup.services,
                event_no: self.run.event_no,
                transcript_seq: self.run.transcript_seq,
                terms: &self.run.terms,
                deadline_at,
                snapshot_bytes: limits.state_snapshot_bytes,
            },
        )?);
        let world = World::new(limits, GuestClock::new(began_us), rand::random());
        let mode = if journals && self.run.terms.durability == Durability::Resume { Mode::Recording } else { Mode::Off };
        let journal = Journal::begin(mode, &world, limits);
        let stored = NewContext::of(&context).map_err(|error| HostError::Internal(error.to_string()))?;
        let (unwritten, last_sequence) = if attempt == self.run.record.run.attempt {
            let change = RunChange::Start { at, deadline_at: Some(deadline_at) };
            let unwritten = self.first_start(UnwrittenStart { change, context: stored }, &journal).await?;
            (unwritten, self.run.record.run.last_sequence)
        } else {
            (None, Box::pin(self.write_retry(attempt, at, deadline_at, stored, &journal)).await?)
        };
        let deadline = started + Duration::from_millis(self.run.terms.deadline_ms);
        let kind = if attempt > 1 { StartKind::Retry } else { StartKind::First };
        Ok(Start { kind, context, world, journal, unwritten, deadline, last_sequence, attempt })
    }

    /// The start of the first attempt, for the execution to write. Written here for a run that the host found when it
    /// started: it may be what the host before died of, and must have begun should that happen again.
    async fn first_start(&self, start: UnwrittenStart, journal: &Journal) -> Result<Option<UnwrittenStart>, HostError> {
        if !self.run.found {
            return Ok(Some(start));
        }
        let write = RunWrite { journal: journal.take().split().0, ..start.into() };
        Box::pin(self.writer().commit(write)).await?;
        Ok(None)
    }

    /// Writes the start of a further attempt; gives the sequence of the last event of the run.
    async fn write_retry(
        &self,
        attempt: u32,
        at: Timestamp,
        deadline_at: Timestamp,
        context: NewContext,
        journal: &Journal,
    ) -> Result<u64, HostError> {
        let run = &self.run.record.run;
        // The calls that the attempt before left open are closed.
        let mut facts = UnendedCalls::read(&self.runs.ledger, self.run.record.run_no, run.run_id)?.ends(at);
        facts.push(Fact::RunStatus(StatusChange { attempt: Some(attempt), ..StatusChange::running("retried") }));
        let events = facts::events(&facts, run.last_sequence + 1, at);
        let last_sequence = run.last_sequence + events.len() as u64;
        let (segment, _) = journal.take().split();
        let retry = RunWrite {
            changes: vec![RunChange::Retry { at, deadline_at: Some(deadline_at) }],
            context: Some(context),
            events,
            journal: segment,
            ..RunWrite::default()
        };
        // The commit is not awaited: every later write of the run comes after it.
        drop(self.writer().append(retry).await?);
        Ok(last_sequence)
    }

    /// On from the journal: the context byte for byte, the deadline as it was.
    async fn resume(&self) -> Result<Result<Start, RunFailure>, HostError> {
        let runs = &self.runs;
        let limits = runs.shared.limits();
        let run = &self.run.record.run;
        let recorded = match EarlierJournal::read(&runs.ledger, self.run.record.run_no, &limits) {
            Ok(Some(recorded)) => recorded,
            // The run began before journals existed, or its binding had none then.
            Ok(None) => return Ok(Err(host_restarted())),
            Err(stop) => return Ok(Err(stop.failure())),
        };
        if let Some(failure) = self.cannot_resume(&recorded) {
            return Ok(Err(failure));
        }
        let Some(context) = runs.ledger.context(run.run_id)? else { return Ok(Err(host_restarted())) };
        let context: Box<RunContext> = match serde_json::from_str(context.get()) {
            Ok(context) => context,
            Err(error) => return Ok(Err(Stop::Lost(format!("the context of the run cannot be read: {error}")).failure())),
        };
        let world = recorded.world.clone();
        let journal = Journal::resume(Mode::Recording, recorded, &limits);
        let at = time::now();
        let mut deadline_at = self.deadline_at(at)?.unwrap_or_else(|| at.saturating_add(self.run.terms.deadline_ms));
        let mut changes = Vec::new();
        if run.status == RunStatus::Waiting {
            changes.push(match run.deadline_at {
                Some(before) if before == deadline_at => RunChange::Resume { at },
                _ => RunChange::Start { at, deadline_at: Some(deadline_at) },
            });
        }
        let change = match self.run.resumption {
            Resumption::Parked => StatusChange::running("woken"),
            Resumption::Forked => {
                deadline_at = at.saturating_add(self.run.terms.deadline_ms);
                changes.push(RunChange::Start { at, deadline_at: Some(deadline_at) });
                StatusChange { forked_from: run.metadata.get(FORKED_FROM).cloned(), ..StatusChange::running("forked") }
            }
            Resumption::New | Resumption::Interrupted => {
                changes.push(RunChange::Recover { at });
                StatusChange { resumes: Some(run.resumes + 1), ..StatusChange::running("resumed") }
            }
        };
        let fact = Fact::RunStatus(change);
        let (segment, _) = journal.take().split();
        let make = |record: &RunRecord| {
            Ok(RunWrite {
                changes: changes.clone(),
                events: vec![fact.event(record.run.last_sequence + 1, at)],
                journal: segment.clone(),
                ..RunWrite::default()
            })
        };
        // Waited for: a run that cannot write must not go on as if it could. An answer may be written in the same moment.
        let resumed = self.writer().transact(&self.run.record, OnStorageError::Fail, make).await?;
        let deadline = Instant::now() + Duration::from_millis(deadline_at.saturating_sub(at));
        Ok(Ok(Start {
            kind: StartKind::Resumed,
            context,
            world,
            journal,
            unwritten: None,
            deadline,
            last_sequence: resumed.last_sequence,
            attempt: run.attempt,
        }))
    }

    /// The deadline of a run that comes back at `at`. The time in which it has waited for people is not counted.
    pub(crate) fn deadline_at(&self, at: Timestamp) -> Result<Option<Timestamp>, HostError> {
        let run = &self.run.record.run;
        let waits_for_people = run.status == RunStatus::Waiting && run.status_reason.as_deref().is_some_and(AskKind::is_reason);
        let Some(deadline_at) = run.deadline_at.filter(|_| waits_for_people && !self.run.terms.waiting_counts) else {
            return Ok(run.deadline_at);
        };
        let kinds = [ResultKind::RunStatus.as_str()];
        let changes = self.runs.ledger.run_events_of(self.run.record.run_no, run.run_id, &kinds)?;
        let waiting =
            changes.iter().rev().find(|event| event.data_value().get("status").is_some_and(|status| status == "waiting"));
        let waited = waiting.map_or(0, |event| at.saturating_sub(event.timestamp));
        Ok(Some(deadline_at.saturating_add(waited)))
    }

    fn cannot_resume(&self, recorded: &EarlierJournal) -> Option<RunFailure> {
        if !recorded.is_whole {
            let message = "the host stopped, and the journal of the run had become too long to resume it: raise \
                           `limits.journal_bytes`, or let the run do less";
            return Some(RunFailure { message: message.to_owned(), ..host_restarted() });
        }
        if self.run.resumption == Resumption::Interrupted && recorded.without_progress >= self.run.terms.max_attempts {
            let times = if recorded.without_progress == 1 {
                "once".to_owned()
            } else {
                format!("{} times in a row", recorded.without_progress)
            };
            let message = format!("the host died {times} before the run had got any further; it is not brought back again");
            return Some(RunFailure { message, ..host_restarted() });
        }
        None
    }
}
