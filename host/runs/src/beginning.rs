//! How an execution of a run begins: for the first time, for another try, or on from its journal.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_ledger::{LedgerError, NewEvent, RunChange, RunWrite};
use agent_host_protocol::{
    FailureCode, ResultKind, RunStatus, Timestamp, context::RunContext, result::host_data, run::RunFailure, time,
};
use agent_host_sandbox::{GuestClock, Runner, World};
use serde_json::{json, value::to_raw_value};

use crate::{
    config::Durability,
    context::{self, Sources},
    error::HostError,
    facts::unended,
    fork::FORKED_FROM,
    host::Host,
    journal::{Journal, Mode, Recorded, Stop},
    life::{Life, Past, host_restarted},
};

/// What an execution begins with.
pub(crate) struct Beginning {
    pub(crate) context: RunContext,
    pub(crate) world: World,
    pub(crate) journal: Journal,
    /// When the guest must have returned.
    pub(crate) deadline: Instant,
    pub(crate) deadline_at: Timestamp,
    /// Sequence of the last event that the run has.
    pub(crate) last_sequence: u64,
    pub(crate) attempt: u32,
}

impl Life {
    /// Begins the execution: what it begins with is on its way to the disk when this returns, and whatever the run
    /// writes is behind it in the same line. The inner error is the end of the run.
    pub(crate) async fn beginning(&self, host: &Host, runner: &Runner) -> Result<Result<Beginning, RunFailure>, HostError> {
        // Requests of `wasi:http` are in no journal.
        let journals = !runner.component.uses_wasi_http();
        match (self.past, self.terms.durability) {
            (Past::Nothing, _) => self.first_try(host, self.record.run.attempt, journals).await.map(Ok),
            (Past::Interrupted, Durability::Resume) if !journals => Ok(Err(not_journaled())),
            (Past::Parked | Past::Forked, _) | (Past::Interrupted, Durability::Resume) => self.going_on(host).await,
            (Past::Interrupted, Durability::Retry) => {
                let attempt = self.record.run.attempt;
                if attempt >= self.terms.max_attempts {
                    let message = format!("the host stopped in each of {attempt} attempts at the run, and it may have no more");
                    return Ok(Err(RunFailure { message, ..host_restarted() }));
                }
                self.first_try(host, attempt + 1, journals).await.map(Ok)
            }
            (Past::Interrupted, Durability::Fail) => Ok(Err(host_restarted())),
        }
    }

    pub(crate) async fn first_try(&self, host: &Host, attempt: u32, journals: bool) -> Result<Beginning, HostError> {
        let inner = host.inner();
        let setup = inner.setup();
        let limits = &*setup.limits;
        let (started, began_us) = (Instant::now(), time::now_us());
        let at = began_us / 1_000;
        let deadline_at = at.saturating_add(self.terms.deadline_ms);
        let context = context::build(
            &inner.ledger,
            &Sources {
                run_id: self.record.run.run_id,
                parent_run_id: self.record.run.parent_run_id,
                attempt,
                event: &self.event,
                services: &setup.services,
                event_no: self.event_no,
                transcript_seq: self.transcript_seq,
                terms: &self.terms,
                deadline_at,
                snapshot_bytes: limits.state_snapshot_bytes,
            },
        )?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| HostError::Internal(format!("there is no randomness: {error}")))?;
        let world = World::new(limits, GuestClock::new(began_us), seed);
        let mode = if journals && self.terms.durability == Durability::Resume { Mode::Recording } else { Mode::Off };
        let journal = Journal::begin(mode, &world, limits);
        let mut last_sequence = self.record.run.last_sequence;
        let (change, events) = if attempt == self.record.run.attempt {
            (RunChange::Start { at, deadline_at: Some(deadline_at) }, Vec::new())
        } else {
            // What the attempt before has left open, nobody waits for any more.
            let before = inner.ledger.run_events_after(self.record.run_no, self.record.run.run_id, 0, usize::MAX)?;
            let data = json!({ "status": "running", "reason": "retried", "attempt": attempt });
            let facts = unended(&before, at).into_iter().chain([(ResultKind::RunStatus, data)]);
            let events: Vec<_> =
                (last_sequence + 1..).zip(facts).map(|(sequence, (kind, data))| fact(kind, sequence, at, &data)).collect();
            last_sequence += events.len() as u64;
            (RunChange::Retry { at, deadline_at: Some(deadline_at) }, events)
        };
        let (segment, _) = journal.take().split();
        let start = RunWrite {
            run_no: self.record.run_no,
            changes: vec![change],
            context: Some(to_raw_value(&context).map_err(|error| HostError::Internal(error.to_string()))?),
            events,
            journal: segment,
            ..RunWrite::default()
        };
        // Not waited for: whatever the run writes next is behind it in the same line.
        drop(inner.ledger.submit(start).await?);
        let deadline = started + Duration::from_millis(self.terms.deadline_ms);
        Ok(Beginning { context, world, journal, deadline, deadline_at, last_sequence, attempt })
    }

    /// On from the journal: the context byte for byte, the deadline as it was.
    async fn going_on(&self, host: &Host) -> Result<Result<Beginning, RunFailure>, HostError> {
        let inner = host.inner();
        let limits = Arc::clone(&inner.setup().limits);
        let run = &self.record.run;
        let recorded = match Recorded::read(&inner.ledger, self.record.run_no, &limits) {
            Ok(Some(recorded)) => recorded,
            // It began before there were journals, or its binding wanted none then.
            Ok(None) => return Ok(Err(host_restarted())),
            Err(stop) => return Ok(Err(stop.failure())),
        };
        if let Some(failure) = self.cannot_go_on(&recorded) {
            return Ok(Err(failure));
        }
        let Some(context) = inner.ledger.context(run.run_id)? else { return Ok(Err(host_restarted())) };
        let context: RunContext = match serde_json::from_str(context.get()) {
            Ok(context) => context,
            Err(error) => return Ok(Err(Stop::Lost(format!("the context of the run cannot be read: {error}")).failure())),
        };
        let world = recorded.world.clone();
        let journal = match Journal::resume(Mode::Recording, recorded, &limits) {
            Ok(journal) => journal,
            Err(stop) => return Ok(Err(stop.failure())),
        };
        let at = time::now();
        let mut changes = Vec::new();
        if run.status == RunStatus::Waiting {
            changes.push(RunChange::Resume { at });
        }
        let mut deadline_at = run.deadline_at.unwrap_or_else(|| at.saturating_add(self.terms.deadline_ms));
        let data = match self.past {
            Past::Parked => json!({ "status": "running", "reason": "woken" }),
            Past::Forked => {
                deadline_at = at.saturating_add(self.terms.deadline_ms);
                changes.push(RunChange::Start { at, deadline_at: Some(deadline_at) });
                json!({ "status": "running", "reason": "forked", "forked_from": run.metadata.get(FORKED_FROM) })
            }
            Past::Nothing | Past::Interrupted => {
                changes.push(RunChange::Recover { at });
                json!({ "status": "running", "reason": "resumed", "resumes": run.resumes + 1 })
            }
        };
        let mut last_sequence = run.last_sequence + 1;
        let (segment, _) = journal.take().split();
        loop {
            let write = RunWrite {
                run_no: self.record.run_no,
                changes: changes.clone(),
                events: vec![status_event(last_sequence, at, &data)],
                journal: segment.clone(),
                ..RunWrite::default()
            };
            // Waited for: a run that cannot write must not go on as if it could.
            match inner.ledger.submit(write).await?.await {
                Ok(_) => break,
                // Somebody has answered what it asks in this very moment.
                Err(LedgerError::Sequence { expected, .. }) if expected > last_sequence => last_sequence = expected,
                Err(error) => return Err(error.into()),
            }
        }
        let deadline = Instant::now() + Duration::from_millis(deadline_at.saturating_sub(at));
        Ok(Ok(Beginning { context, world, journal, deadline, deadline_at, last_sequence, attempt: run.attempt }))
    }

    fn cannot_go_on(&self, recorded: &Recorded) -> Option<RunFailure> {
        if !recorded.is_whole {
            let message = "the host stopped, and the journal of the run had become too long to resume it: raise \
                           `limits.journal_bytes`, or let the run do less";
            return Some(RunFailure { message: message.to_owned(), ..host_restarted() });
        }
        if self.past == Past::Interrupted && recorded.in_vain >= self.terms.max_attempts {
            let times = if recorded.in_vain == 1 { "once".to_owned() } else { format!("{} times in a row", recorded.in_vain) };
            let message = format!("the host died {times} before the run had got any further; it is not brought back again");
            return Some(RunFailure { message, ..host_restarted() });
        }
        None
    }
}

/// How a run ends that was active when the host went, and has no journal.
fn not_journaled() -> RunFailure {
    let message = "the host stopped while the run was active, and its runner uses `wasi:http`, whose requests are not journaled: \
                   use the contract's `http` interface for runs that are to be resumed, or send the event again";
    RunFailure { message: message.to_owned(), ..host_restarted() }
}

/// Says where a run is in its life.
pub(crate) fn status_event(sequence: u64, at: Timestamp, data: &serde_json::Value) -> NewEvent {
    fact(ResultKind::RunStatus, sequence, at, data)
}

/// A fact that the host adds to the record of a run.
pub(crate) fn fact(kind: ResultKind, sequence: u64, at: Timestamp, data: &serde_json::Value) -> NewEvent {
    NewEvent { sequence, kind: kind.as_str().to_owned(), data: host_data(data), timestamp: at }
}

impl Stop {
    /// How a run ends that cannot go on for this.
    pub(crate) fn failure(&self) -> RunFailure {
        match self {
            Self::Diverged(divergence) => RunFailure {
                details: Some(divergence.to_json()),
                ..RunFailure::host(
                    FailureCode::ReplayDiverged,
                    format!(
                        "executed again, the runner asked for something else in call {}: `{}` before, `{}` now. A runner that \
                         takes nothing but its context, its host calls, its clocks and its random bytes as input does not do that",
                        divergence.call, divergence.recorded.function, divergence.now.function
                    ),
                )
            },
            Self::Lost(why) => {
                tracing::error!(why, "the journal of a run cannot be read: run `agent-host ledger check`");
                RunFailure::host(FailureCode::HostError, format!("the run cannot be resumed: {why}"))
            }
            Self::Over { .. } | Self::Park { .. } | Self::Suspend => host_restarted(),
        }
    }
}
