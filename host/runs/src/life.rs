//! The life of a run: it waits its turn, takes a place, starts, and comes to its one end.

use std::{
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use agent_host_ledger::{Ledger, LedgerError, NewEvent, Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    Event, FailureCode, ResultKind, Run, RunStatus, Timestamp,
    result::host_data,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{Outcome, Place, Runner};
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    beginning::{Beginning, fact, status_event},
    calls::RunCalls,
    config::Durability,
    error::HostError,
    facts::unended,
    gate::RunState,
    host::Host,
    journal::Stop,
    line::Turn,
    log::GuestLog,
    recovery::conversation_key,
    results::{self, Speaker},
    terms::Terms,
};

/// A run and all that it needs to be lived.
pub(crate) struct Life {
    pub(crate) record: RunRecord,
    pub(crate) event: Arc<Event>,
    pub(crate) event_no: u64,
    pub(crate) transcript_seq: Option<u64>,
    pub(crate) terms: Arc<Terms>,
    /// The runner as it serves now. A run that goes on does so with the one that it began with.
    pub(crate) runner: Option<Runner>,
    pub(crate) past: Past,
    /// Held until a run that comes back has its place.
    pub(crate) waking: Option<OwnedSemaphorePermit>,
}

/// What a run has behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    /// Nothing: it has not begun.
    Nothing,
    /// The host stopped while it was active.
    Interrupted,
    /// It was parked.
    Parked,
    /// It has the beginning of another run.
    Forked,
}

/// How a run leaves its task.
pub(crate) enum Left {
    /// It has ended.
    Ended(Box<Run>),
    /// It waits on disk.
    Parked(Turn),
    /// The host stops, and the run goes on when it starts again.
    Suspended,
}

/// How others reach a run that has not ended.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Set when the end of the run was asked for and that is committed.
    pub(crate) cancelled: CancellationToken,
    /// The record after the end, once that is committed; or that it could not be written.
    pub(crate) ended: watch::Receiver<Option<Result<Box<Run>, String>>>,
}

impl Host {
    /// Lets a run that is on disk live.
    pub(crate) fn begin(&self, life: Life) {
        let inner = self.inner();
        let (run_id, run_no) = (life.record.run.run_id, life.record.run_no);
        let (ended, on_end) = watch::channel(None);
        let cancelled = CancellationToken::new();
        if life.record.run.cancel_requested_at.is_some() {
            cancelled.cancel();
        }
        match inner.live.lock().entry(run_id) {
            // Somebody else was quicker to wake it.
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => drop(place.insert(Handle { cancelled: cancelled.clone(), ended: on_end })),
        }
        let turn = inner.lines.join(life.terms.grant.conversation.clone(), run_no, |key| self.parked_in(key));
        let host = self.clone();
        inner.tasks.spawn(async move {
            let left = life.lived(&host, &cancelled, turn).await;
            host.inner().live.lock().remove(&run_id);
            match left {
                Ok(Left::Ended(run)) => drop(ended.send(Some(Ok(run)))),
                Ok(Left::Parked(turn)) => {
                    turn.leave_parked();
                    host.parked(run_no);
                }
                Ok(Left::Suspended) => {}
                Err(error) => {
                    tracing::error!(%run_id, %error, "the run could not be brought to its end; it will be when the host starts again");
                    let _ = ended.send(Some(Err(error.to_string())));
                }
            }
        });
    }
}

impl Life {
    /// Lives the run until it ends or leaves memory. Its turn ends after its end is committed.
    async fn lived(mut self, host: &Host, cancelled: &CancellationToken, turn: Turn) -> Result<Left, HostError> {
        let inner = host.inner();
        if !turn.is_now() && self.past == Past::Nothing {
            let change = RunChange::Queue { at: time::now() };
            drop(
                inner
                    .ledger
                    .submit(RunWrite { run_no: self.record.run_no, changes: vec![change], ..RunWrite::default() })
                    .await?,
            );
        }
        let ready = async {
            turn.wait().await;
            inner.sandbox.place().await
        };
        let place = tokio::select! {
            biased;
            () = inner.stopping.cancelled() => return Ok(Left::Suspended),
            () = cancelled.cancelled() => return self.end_unstarted(host, Terminal::Cancelled { reason: host.cancel_reason(&self.record)? }).await,
            place = ready => place,
        };
        if self.past != Past::Nothing && self.record.run.deadline_at.is_some_and(|deadline| deadline <= time::now()) {
            return self.end_unstarted(host, self.timed_out()).await;
        }
        if let Some(failure) = &self.terms.refusal {
            return self.end_unstarted(host, Terminal::Failed(failure.clone())).await;
        }
        let runner = match self.runner(host).await {
            Ok(runner) => runner,
            Err(failure) => return self.end_unstarted(host, Terminal::Failed(failure)).await,
        };
        let waking = self.waking.take();
        let beginning = match self.beginning(host).await? {
            Ok(beginning) => beginning,
            Err(failure) => return self.end_unstarted(host, Terminal::Failed(failure)).await,
        };
        drop(waking);
        // The guest's state machine is large; a run that waits in line should not carry it.
        Box::pin(self.run(host, cancelled, runner, place, beginning, turn)).await
    }

    /// The runner: the one that the run was created for, kept by its digest. A run that has not begun takes the one that
    /// serves now where that is gone.
    async fn runner(&self, host: &Host) -> Result<Runner, RunFailure> {
        let (id, digest) = (&self.record.run.runner_id, &self.terms.grant.component);
        if let Some(runner) = self.runner.as_ref().filter(|runner| runner.component.digest() == digest) {
            return Ok(runner.clone());
        }
        let why = match host.inner().sandbox.component(digest).await {
            Ok(component) => match component.runners().iter().find(|manifest| manifest.id == *id) {
                Some(manifest) => return Ok(Runner { manifest: Arc::new(manifest.clone()), component: Arc::clone(&component) }),
                None => format!("component {digest} does not hold it"),
            },
            Err(why) => why,
        };
        match (&self.runner, self.past) {
            (Some(runner), Past::Nothing) => Ok(runner.clone()),
            _ => Err(RunFailure::host(FailureCode::RunnerNotFound, format!("no plugin holds {id} any more: {why}"))),
        }
    }

    async fn end_unstarted(&self, host: &Host, terminal: Terminal) -> Result<Left, HostError> {
        let ledger = &host.inner().ledger;
        let write = ended(ledger, &self.record, terminal, self.terms.deadline_ms)?;
        let run = ledger.submit(write).await?.await?;
        Ok(Left::Ended(Box::new(run)))
    }

    async fn run(
        self,
        host: &Host,
        cancelled: &CancellationToken,
        runner: Runner,
        place: Place,
        beginning: Beginning,
        turn: Turn,
    ) -> Result<Left, HostError> {
        let inner = host.inner();
        let limits = &inner.config.limits;
        let run_id = self.record.run.run_id;
        let Beginning { context, world, journal, deadline, deadline_at, last_sequence } = beginning;
        let state = Arc::new(RunState::new(
            run_id,
            self.record.run_no,
            Arc::clone(&self.terms),
            inner.ledger.clone(),
            Arc::clone(&inner.limits),
            cancelled.clone(),
            deadline,
            last_sequence,
            journal,
        ));
        state.seen.note_snapshot(&self.terms, &context.state);
        let log = Arc::new(GuestLog::new(run_id, limits, state.journal.replaying()));
        let calls =
            Box::new(RunCalls { run: Arc::clone(&state), event: Arc::clone(&self.event), services: Arc::clone(&inner.services) });
        let interfaces = self.terms.grant.interfaces();
        let grace = Duration::from_millis(limits.cancel_grace_ms);
        let terminal = {
            let guest = inner.sandbox.run(
                place,
                &runner.component,
                interfaces,
                runner.manifest.name.as_str(),
                &context,
                world,
                calls,
                Arc::clone(&log) as _,
            );
            tokio::select! {
                biased;
                () = after(cancelled.cancelled(), grace) => Ok(Terminal::Cancelled { reason: host.cancel_reason(&self.record)? }),
                () = tokio::time::sleep_until((deadline + grace).into()) => Ok(self.timed_out()),
                // The host stops: whoever is still running goes on at its next start, or is told as after a crash.
                () = inner.ending.cancelled() => {
                    if state.journal.can_resume() || self.terms.durability == Durability::Retry { Err(Stop::Suspend) } else { Ok(Terminal::Failed(host_restarted())) }
                }
                stop = state.stopped() => Err(stop),
                outcome = guest => Ok(match outcome {
                    _ if cancelled.is_cancelled() => Terminal::Cancelled { reason: host.cancel_reason(&self.record)? },
                    _ if Instant::now() >= deadline => self.timed_out(),
                    Outcome::Completed(completion) => Terminal::Completed(completion),
                    Outcome::Failed(failure) => Terminal::Failed(failure),
                    Outcome::Broken { code, message } => Terminal::Failed(RunFailure::host(code, message)),
                }),
            }
        };
        let terminal = match terminal {
            Ok(terminal) => terminal,
            Err(Stop::Park { until, reason, keys }) => {
                let park = Park { wake_at: until.map_or(deadline_at, |until| until.min(deadline_at)), keys };
                self.park(host, &state, until, reason, park).await?;
                return Ok(Left::Parked(turn));
            }
            Err(Stop::Suspend) => {
                state.journal.suspend();
                state.put_down().await?;
                return Ok(Left::Suspended);
            }
            Err(stop) => Terminal::Failed(stop.failure()),
        };
        let run = self.end(host, &state, &log, terminal).await?;
        Ok(Left::Ended(Box::new(run)))
    }

    /// Writes that the run waits on disk, and for what; durable when it returns.
    async fn park(
        &self,
        host: &Host,
        state: &RunState,
        until: Option<Timestamp>,
        reason: &'static str,
        mut park: Park,
    ) -> Result<(), HostError> {
        let at = time::now();
        park.keys.extend(self.terms.grant.conversation.as_ref().map(conversation_key));
        let mut data = json!({ "status": "waiting", "reason": reason });
        if let (Some(until), Some(data)) = (until, data.as_object_mut()) {
            data.insert("until".to_owned(), until.into());
        }
        let make = |sequence| {
            Ok(RunWrite {
                changes: vec![RunChange::Wait { at, reason: reason.to_owned() }],
                events: vec![status_event(sequence, at, &data)],
                park: Some(park),
                ..RunWrite::default()
            })
        };
        let written = state.write(None, make).await.map_err(|error| HostError::Unavailable(error.message))?;
        written.durable().await.map_err(|error| HostError::Unavailable(error.message))?;
        host.inner().alarm.notify_one();
        Ok(())
    }

    fn timed_out(&self) -> Terminal {
        let deadline = self.terms.deadline_ms;
        Terminal::Timeout {
            message: format!(
                "the run did not end within {deadline} ms: raise `deadline_ms` of its binding, or let the runner do less"
            ),
        }
    }

    /// Brings a run that has started to its one end: status and terminal event in one commit.
    ///
    /// A disk that is full now may have room later, so a write that fails for that is tried again, as long as the
    /// host lives. Where earlier results of the run were lost to such a disk, it cannot end well any more.
    async fn end(&self, host: &Host, state: &RunState, log: &GuestLog, terminal: Terminal) -> Result<Run, HostError> {
        let inner = host.inner();
        let mut terminal = bounded(terminal, inner.config.limits.result_bytes);
        if let Terminal::Failed(failure) = &mut terminal
            && failure.details.is_none()
        {
            failure.details = log.tail().map(|tail| json!({ "log": tail }));
        }
        let audit = state.take_audit();
        let (journal, _) = state.journal.take().split();
        let unended = state.open.take();
        let mut sequence = state.next_sequence();
        loop {
            let write =
                RunWrite { audit: audit.clone(), journal: journal.clone(), ..self.ending(state, &terminal, &unended, sequence) };
            let written = match inner.ledger.submit(write).await {
                Ok(commit) => commit.await,
                Err(error) => Err(error),
            };
            match written {
                Ok(run) => {
                    state.last_sequence.store(run.last_sequence, Ordering::Release);
                    return Ok(run);
                }
                Err(LedgerError::Storage(reason)) if !inner.ending.is_cancelled() => {
                    tracing::error!(run_id = %state.run_id, %reason, "the end of the run could not be written; trying again");
                    tokio::time::sleep(WRITE_AGAIN).await;
                }
                Err(LedgerError::Sequence { expected, .. }) if sequence != expected => {
                    sequence = expected;
                    terminal = Terminal::Failed(results_lost());
                }
                Err(LedgerError::Transition(_)) if matches!(terminal, Terminal::Completed(_)) => {
                    terminal = Terminal::Failed(results_lost())
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What the end of a run writes, events from `sequence` on.
    fn ending(&self, state: &RunState, terminal: &Terminal, unended: &[(ResultKind, Value)], mut sequence: u64) -> RunWrite {
        let at = time::now();
        let mut events = Vec::with_capacity(2 + unended.len());
        for (kind, data) in unended {
            events.push(NewEvent { sequence, kind: kind.as_str().to_owned(), data: host_data(data), timestamp: at });
            sequence += 1;
        }
        if let Some((kind, data)) = cause(terminal, self.terms.deadline_ms) {
            events.push(NewEvent { sequence, kind: kind.as_str().to_owned(), data: host_data(&data), timestamp: at });
            sequence += 1;
        }
        events.push(terminal_event(terminal, sequence, at));
        let speaker = Speaker { run_id: state.run_id, event_id: self.event.event_id, terms: &self.terms };
        let said = match terminal {
            Terminal::Completed(completion) => {
                completion.message.clone().and_then(|message| results::transcript_item(&speaker, message, at))
            }
            _ => None,
        };
        RunWrite {
            run_no: state.run_no,
            changes: vec![RunChange::End { at, terminal: terminal.clone() }],
            events,
            transcript: said.into_iter().collect(),
            ..RunWrite::default()
        }
    }
}

/// Between two tries to write the end of a run.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// How a run ends whose results did not all reach the disk.
fn results_lost() -> RunFailure {
    RunFailure::host(
        FailureCode::HostError,
        "the ledger could not write all results of the run, so it cannot end well: free the disk, and send the event again",
    )
}

/// Waits for `signal`, and then a little longer.
async fn after(signal: impl Future<Output = ()>, grace: Duration) {
    signal.await;
    tokio::time::sleep(grace).await;
}

/// How a run ends that was active when the host went.
pub(crate) fn host_restarted() -> RunFailure {
    RunFailure::host(
        FailureCode::HostRestarted,
        "the host stopped while the run was active: send the event again if it should be answered",
    )
}

/// The fact behind an end that the sandbox or a limit brought about.
fn cause(terminal: &Terminal, deadline_ms: u64) -> Option<(ResultKind, Value)> {
    match terminal {
        Terminal::Timeout { .. } => Some((ResultKind::LimitReached, json!({ "limit": "deadline_ms", "value": deadline_ms }))),
        Terminal::Failed(failure) => {
            let violations = [
                FailureCode::GuestTrapped,
                FailureCode::GuestExited,
                FailureCode::GuestMemory,
                FailureCode::GuestStack,
                FailureCode::GuestAbuse,
            ];
            let code = violations.into_iter().find(|code| code.as_str() == failure.code)?;
            Some((ResultKind::SandboxViolation, json!({ "code": code.as_str(), "message": failure.message })))
        }
        _ => None,
    }
}

/// The last event of a run.
pub(crate) fn terminal_event(terminal: &Terminal, sequence: u64, at: Timestamp) -> NewEvent {
    let (kind, data) = match terminal {
        Terminal::Completed(completion) => (ResultKind::RunCompleted, to_raw_value(completion)),
        other => (ResultKind::RunFailed, to_raw_value(&other.failure())),
    };
    let data = data.unwrap_or_else(|_| serde_json::value::RawValue::NULL.to_owned());
    NewEvent { sequence, kind: kind.as_str().to_owned(), data, timestamp: at }
}

/// What a guest returns becomes an event, and has the bound of one. What is over it is left out, and said so.
fn bounded(terminal: Terminal, limit: usize) -> Terminal {
    let size = |value: &Option<Value>| value.as_ref().map_or(0, |value| value.to_string().len());
    match terminal {
        Terminal::Completed(completion) => {
            let bytes = to_raw_value(&completion).map_or(usize::MAX, |data| data.get().len());
            if bytes <= limit {
                return Terminal::Completed(completion);
            }
            Terminal::Failed(RunFailure::host(
                FailureCode::InvalidResult,
                format!(
                    "the completion has {bytes} bytes; the limit is {limit}: emit long messages as results, and large content as an artifact"
                ),
            ))
        }
        Terminal::Failed(mut failure) => {
            if failure.code.len() > 128 || failure.code.chars().any(char::is_control) {
                failure.code = FailureCode::RunnerError.as_str().to_owned();
            }
            if failure.message.len() > limit / 2 {
                failure.message = failure.message.chars().take(limit / 8).chain("… [cut]".chars()).collect();
            }
            if size(&failure.details) > limit / 2 {
                failure.details = Some(json!({ "note": "the details were larger than an event may be, and were left out" }));
            }
            Terminal::Failed(failure)
        }
        other => other,
    }
}

/// The end of a run whose guest is not in memory, with the ends of the calls that it left open.
pub(crate) fn ended(ledger: &Ledger, record: &RunRecord, terminal: Terminal, deadline_ms: u64) -> Result<RunWrite, HostError> {
    let at = time::now();
    let before = ledger.run_events_after(record.run_no, record.run.run_id, 0, usize::MAX)?;
    let facts = unended(&before, at).into_iter().chain(cause(&terminal, deadline_ms));
    let mut events: Vec<_> =
        (record.run.last_sequence + 1..).zip(facts).map(|(sequence, (kind, data))| fact(kind, sequence, at, &data)).collect();
    events.push(terminal_event(&terminal, record.run.last_sequence + 1 + events.len() as u64, at));
    Ok(RunWrite { run_no: record.run_no, changes: vec![RunChange::End { at, terminal }], events, ..RunWrite::default() })
}

/// Whether a run that the ledger holds had begun when the host went.
pub(crate) fn had_begun(status: RunStatus) -> bool {
    matches!(status, RunStatus::Claimed | RunStatus::Running | RunStatus::Waiting)
}
