//! The life of a run: it waits its turn, takes a place, starts, and comes to its one end.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use agent_host_ledger::{LedgerError, NewEvent, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    Event, FailureCode, ResultKind, Run, RunStatus, Timestamp,
    result::host_data,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{Outcome, Place, Runner};
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    calls::RunCalls,
    context::{self, Sources},
    error::HostError,
    gate::RunState,
    host::Host,
    line::Turn,
    log::GuestLog,
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
    pub(crate) runner: Option<Runner>,
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
        inner.live.lock().insert(run_id, Handle { cancelled: cancelled.clone(), ended: on_end });
        let turn = inner.lines.join(life.terms.grant.conversation.clone(), run_no);
        let host = self.clone();
        inner.tasks.spawn(async move {
            let end = life.lived(&host, &cancelled, turn).await;
            let end = end.map(Box::new).map_err(|error| {
                tracing::error!(%run_id, %error, "the run could not be brought to its end; it will be when the host starts again");
                error.to_string()
            });
            host.inner().live.lock().remove(&run_id);
            let _ = ended.send(Some(end));
        });
    }
}

impl Life {
    /// Lives the run; gives its record after its end is committed. Its turn ends after that.
    async fn lived(self, host: &Host, cancelled: &CancellationToken, turn: Turn) -> Result<Run, HostError> {
        let inner = host.inner();
        if !turn.is_now() {
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
            () = inner.stopping.cancelled() => return Ok(self.record.run),
            () = cancelled.cancelled() => return self.end_unstarted(host, Terminal::Cancelled { reason: host.cancel_reason(&self.record)? }).await,
            place = ready => place,
        };
        match (&self.terms.refusal, &self.runner) {
            (Some(failure), _) => self.end_unstarted(host, Terminal::Failed(failure.clone())).await,
            (None, None) => {
                let failure =
                    RunFailure::host(FailureCode::RunnerNotFound, format!("no plugin holds {}", self.record.run.runner_id));
                self.end_unstarted(host, Terminal::Failed(failure)).await
            }
            (None, Some(runner)) => {
                // The guest's state machine is large; a run that waits in line should not carry it.
                let runner = runner.clone();
                Box::pin(self.run(host, cancelled, runner, place)).await
            }
        }
    }

    async fn end_unstarted(&self, host: &Host, terminal: Terminal) -> Result<Run, HostError> {
        let at = time::now();
        let sequence = self.record.run.last_sequence + 1;
        let events = vec![terminal_event(&terminal, sequence, at)];
        let write = RunWrite {
            run_no: self.record.run_no,
            changes: vec![RunChange::End { at, terminal }],
            events,
            ..RunWrite::default()
        };
        Ok(host.inner().ledger.submit(write).await?.await?)
    }

    async fn run(self, host: &Host, cancelled: &CancellationToken, runner: Runner, place: Place) -> Result<Run, HostError> {
        let inner = host.inner();
        let limits = &inner.config.limits;
        let run_id = self.record.run.run_id;

        let (started, at) = (Instant::now(), time::now());
        let deadline = started + Duration::from_millis(self.terms.deadline_ms);
        let deadline_at = at.saturating_add(self.terms.deadline_ms);
        let context = context::build(
            &inner.ledger,
            &Sources {
                run_id,
                attempt: self.record.run.attempt,
                event: &self.event,
                services: &inner.services,
                event_no: self.event_no,
                transcript_seq: self.transcript_seq,
                terms: &self.terms,
                deadline_at,
                snapshot_bytes: limits.state_snapshot_bytes,
            },
        )?;
        let start = RunWrite {
            run_no: self.record.run_no,
            changes: vec![RunChange::Start { at, deadline_at: Some(deadline_at) }],
            context: Some(to_raw_value(&context).map_err(|error| HostError::Internal(error.to_string()))?),
            ..RunWrite::default()
        };
        // Not waited for: whatever the run writes next is behind it in the same line.
        drop(inner.ledger.submit(start).await?);

        let state = Arc::new(RunState::new(
            run_id,
            self.record.run_no,
            Arc::clone(&self.terms),
            inner.ledger.clone(),
            Arc::clone(&inner.limits),
            cancelled.clone(),
            deadline,
            self.record.run.last_sequence,
        ));
        state.seen.note_snapshot(&self.terms, &context.state);
        let log = Arc::new(GuestLog::new(run_id, limits));
        let calls =
            Box::new(RunCalls { run: Arc::clone(&state), event: Arc::clone(&self.event), services: Arc::clone(&inner.services) });
        let interfaces = self.terms.grant.interfaces();
        let guest = inner.sandbox.run(
            place,
            &runner.component,
            interfaces,
            runner.manifest.name.as_str(),
            &context,
            calls,
            Arc::clone(&log) as _,
        );
        let grace = Duration::from_millis(limits.cancel_grace_ms);
        let terminal = tokio::select! {
            biased;
            () = after(cancelled.cancelled(), grace) => Terminal::Cancelled { reason: host.cancel_reason(&self.record)? },
            () = tokio::time::sleep_until((deadline + grace).into()) => self.timed_out(),
            // The host stops: whoever is still running then is told as after a crash.
            () = inner.ending.cancelled() => Terminal::Failed(host_restarted()),
            outcome = guest => match outcome {
                _ if cancelled.is_cancelled() => Terminal::Cancelled { reason: host.cancel_reason(&self.record)? },
                _ if Instant::now() >= deadline => self.timed_out(),
                Outcome::Completed(completion) => Terminal::Completed(completion),
                Outcome::Failed(failure) => Terminal::Failed(failure),
                Outcome::Broken { code, message } => Terminal::Failed(RunFailure::host(code, message)),
            },
        };
        self.end(host, &state, &log, terminal).await
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
        let unended = state.open.take();
        let mut sequence = state.next_sequence();
        loop {
            let write = RunWrite { audit: audit.clone(), ..self.ending(state, &terminal, &unended, sequence) };
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

/// Whether a run that the ledger holds had begun when the host went.
pub(crate) fn had_begun(status: RunStatus) -> bool {
    matches!(status, RunStatus::Claimed | RunStatus::Running | RunStatus::Waiting)
}
