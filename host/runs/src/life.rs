//! The life of a run: it waits its turn, takes a place, starts, and comes to its one end.

use std::{
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use agent_host_ledger::{Ledger, LedgerError, NewEvent, Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    Event, FailureCode, ResultKind, Run, RunId, RunStatus, Timestamp,
    result::host_data,
    run::{RunFailure, Terminal},
    time,
};
use agent_host_sandbox::{Outcome, Place, Runner};
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    asks::waiting_data,
    beginning::{Beginning, fact, status_event},
    calls::RunCalls,
    children::Children,
    config::Durability,
    detached::Detached,
    error::HostError,
    facts,
    gate::RunState,
    held::is_outside,
    host::Host,
    journal::Stop,
    line::{Called, Turn},
    log::GuestLog,
    mail::Mailbox,
    queue::admission::Admitted,
    recovery::conversation_key,
    results::{self, Speaker},
    spans, steering,
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

/// What a run that has its turn is executed by.
enum Ready {
    /// A guest in this place.
    Inside(Place, Admitted),
    /// Somebody outside.
    Outside,
    /// Nobody: another run has taken its event as input.
    TakenBy(RunId),
}

/// How others reach a run that has not ended.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Set when the end of the run was asked for and that is committed.
    pub(crate) cancelled: CancellationToken,
    /// The record after the end, once that is committed; or that it could not be written.
    pub(crate) ended: watch::Receiver<Option<Result<Box<Run>, String>>>,
    /// Takes what comes for it.
    pub(crate) mail: Arc<Mailbox>,
}

/// How others reach the run that is lived.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    pub(crate) cancelled: &'a CancellationToken,
    pub(crate) mail: &'a Arc<Mailbox>,
}

impl Host {
    /// Lets a run that is on disk live.
    pub(crate) fn begin(&self, life: Life) {
        let inner = self.inner();
        let (run_id, run_no) = (life.record.run.run_id, life.record.run_no);
        let (ended, on_end) = watch::channel(None);
        let mail = Mailbox::new(&inner.asked);
        let cancelled = CancellationToken::new();
        if life.record.run.cancel_requested_at.is_some() {
            cancelled.cancel();
        }
        match inner.live.lock().entry(run_id) {
            // Somebody else was quicker to wake it.
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => {
                let handle = Handle { cancelled: cancelled.clone(), ended: on_end, mail: Arc::clone(&mail) };
                place.insert(handle);
            }
        }
        let conversation = life.terms.grant.conversation.clone();
        let turn = inner.lines.join(conversation.clone(), run_no, life.terms.grant.steering, |key| self.parked_in(key));
        let waits = !turn.is_now();
        let host = self.clone();
        let run = &life.record.run;
        // The log says of each line in it whose it is, at whatever level.
        let named = tracing::error_span!(
            target: "agent_host::context",
            "run",
            run_id = %run.run_id,
            runner_id = %run.runner_id,
            binding_id = run.binding_id,
        );
        let living = async move {
            if let Some(conversation) = conversation.filter(|_| waits) {
                host.wake_all_on(&steering::key(&conversation)).await;
            }
            let left = life.lived(&host, Reach { cancelled: &cancelled, mail: &mail }, turn).await;
            host.inner().live.lock().remove(&run_id);
            mail.close();
            match left {
                Ok(Left::Ended(run)) => {
                    tracing::debug!(status = %run.status, "the run has ended");
                    host.inner().metrics.ended(&run);
                    host.child_ended(&run).await;
                    let _ = ended.send(Some(Ok(run)));
                }
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
        };
        inner.tasks.spawn(living.instrument(named));
    }
}

impl Life {
    /// Lives the run until it ends or leaves memory. Its turn ends after its end is committed.
    async fn lived(mut self, host: &Host, reach: Reach<'_>, turn: Turn) -> Result<Left, HostError> {
        let inner = host.inner();
        let outside = is_outside(&self.record.run);
        if outside || !turn.is_now() {
            self.queued(host).await?;
        }
        let ready = async {
            match turn.wait().await {
                Called::TakenBy(by) => Ok(Ready::TakenBy(by)),
                Called::Now if outside => Ok(Ready::Outside),
                Called::Now => {
                    let admitted = self.its_turn(host).await?;
                    Ok::<_, HostError>(Ready::Inside(inner.sandbox.place().await, admitted))
                }
            }
        };
        let ready = tokio::select! {
            biased;
            () = inner.stopping.cancelled() => return match turn.taken_by() {
                Some(by) => self.end_taken(host, by).await,
                None => Ok(Left::Suspended),
            },
            () = reach.cancelled.cancelled(), if !(outside && self.past == Past::Interrupted) => return self.end_cancelled(host).await,
            ready = ready => ready?,
        };
        // Held as long as the guest is in memory.
        let (place, _admitted) = match ready {
            Ready::Inside(place, admitted) => (place, admitted),
            Ready::TakenBy(by) => return self.end_taken(host, by).await,
            Ready::Outside => return self.outside(host, reach, turn).await,
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
        let beginning = match self.beginning(host, &runner).await? {
            Ok(beginning) => beginning,
            Err(failure) => return self.end_unstarted(host, Terminal::Failed(failure)).await,
        };
        drop(waking);
        self.count_begun(host, beginning.attempt);
        let span = spans::of_run(&self, &runner, beginning.attempt);
        // The guest's state machine is large; a run that waits in line should not carry it.
        let left = span.within(Box::pin(self.run(host, reach, runner, place, beginning, turn))).await;
        spans::left(&span, &left);
        left
    }

    fn count_begun(&self, host: &Host, attempt: u32) {
        let (metrics, run) = (&host.inner().metrics, &self.record.run);
        match self.past {
            Past::Interrupted | Past::Parked if attempt == run.attempt => metrics.resumed(run),
            _ => metrics.started(run, Duration::from_millis(time::now().saturating_sub(run.created_at))),
        }
    }

    /// Writes that the run waits, where it has not begun and does not say so yet.
    async fn queued(&mut self, host: &Host) -> Result<(), HostError> {
        if self.record.run.status != RunStatus::Created || self.past != Past::Nothing {
            return Ok(());
        }
        let change = RunChange::Queue { at: time::now() };
        let write = RunWrite { run_no: self.record.run_no, changes: vec![change], ..RunWrite::default() };
        let commit = host.inner().ledger.submit(write).await?;
        if is_outside(&self.record.run) {
            // Who claims it finds it in the queue.
            self.record.run = commit.await?;
        } else {
            self.record.run.status = RunStatus::Queued;
        }
        Ok(())
    }

    /// Waits until its binding lets one more run be executed.
    async fn its_turn(&self, host: &Host) -> Result<Admitted, HostError> {
        let Some(policy) = self.terms.queue.as_deref() else { return Ok(Admitted::at_once()) };
        let mut waits = match self.enter(host, policy) {
            Ok(admitted) => return Ok(admitted),
            Err(waits) => waits,
        };
        if self.record.run.status == RunStatus::Created && self.past == Past::Nothing {
            let change = RunChange::Queue { at: time::now() };
            let write = RunWrite { run_no: self.record.run_no, changes: vec![change], ..RunWrite::default() };
            drop(host.inner().ledger.submit(write).await?);
        }
        Ok(waits.wait().await)
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

    pub(crate) async fn end_unstarted(&self, host: &Host, terminal: Terminal) -> Result<Left, HostError> {
        let ledger = &host.inner().ledger;
        if self.past != Past::Nothing && !self.terms.grant.permissions.runs.is_empty() {
            let children = Children::of(ledger, &self.record)?;
            host.end_children(self.record.run.run_id, &children).await;
        }
        self.end_as(host, |record| ended(ledger, record, terminal.clone(), self.terms.deadline_ms)).await
    }

    /// Another run has taken its event as input, and says so in its own record.
    async fn end_taken(&self, host: &Host, by: RunId) -> Result<Left, HostError> {
        self.end_as(host, |record| Ok(steering::taken(record, by))).await
    }

    /// Ends a run whose guest is not in memory. Who answers what it has asked may write to it in the same moment.
    pub(crate) async fn end_as(
        &self,
        host: &Host,
        write: impl Fn(&RunRecord) -> Result<RunWrite, HostError>,
    ) -> Result<Left, HostError> {
        let ledger = &host.inner().ledger;
        let mut record = self.record.clone();
        loop {
            match ledger.submit(write(&record)?).await?.await {
                Ok(run) => return Ok(Left::Ended(Box::new(run))),
                Err(LedgerError::Sequence { .. } | LedgerError::Transition(_)) => {
                    let now = host.record(record.run.run_id)?;
                    if now == record {
                        return Err(HostError::Internal(format!("run {} cannot be ended", record.run.run_id)));
                    }
                    record = now;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn run(
        self,
        host: &Host,
        Reach { cancelled, mail }: Reach<'_>,
        runner: Runner,
        place: Place,
        beginning: Beginning,
        turn: Turn,
    ) -> Result<Left, HostError> {
        let inner = host.inner();
        let setup = inner.setup();
        let limits = &*setup.limits;
        let run_id = self.record.run.run_id;
        let Beginning { context, world, journal, deadline, deadline_at, last_sequence, attempt } = beginning;
        let state = RunState::new(
            run_id,
            self.record.run_no,
            Arc::clone(&self.terms),
            inner.ledger.clone(),
            Arc::clone(&setup.limits),
            cancelled.clone(),
            deadline,
            last_sequence,
            journal,
            Arc::clone(mail),
            attempt,
        );
        let state = Arc::new(state.counted_by(&inner.metrics));
        self.take_up(host, &state).await?;
        let detached = Detached::new(&state, &setup.services);
        if self.past != Past::Nothing {
            detached.take_up().map_err(|error| HostError::Unavailable(error.message))?;
        }
        state.seen.note_snapshot(&self.terms, &context.state);
        let log = Arc::new(GuestLog::new(run_id, limits, state.journal.replaying()));
        let calls = Box::new(RunCalls {
            run: Arc::clone(&state),
            event: Arc::clone(&self.event),
            services: Arc::clone(&setup.services),
            host: Some(host.clone()),
        });
        let interfaces = self.terms.grant.interfaces();
        let grace = Duration::from_millis(limits.cancel_grace_ms);
        let terminal = {
            let ran = inner.sandbox.run(
                place,
                &runner.component,
                interfaces,
                runner.manifest.name.as_str(),
                &context,
                world,
                calls,
                Arc::clone(&log) as _,
            );
            // What it has asked for in passing is part of the run; a guest that failed has asked for nothing more.
            let guest = async {
                let outcome = ran.await;
                if matches!(outcome, Outcome::Completed(_)) {
                    state.passed_by().await;
                }
                outcome
            };
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
        state.let_go.cancel();
        state.passing.close();
        state.passing.wait().await;
        state.told_all_ends().await;
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
        host.end_children(run_id, &state.children).await;
        let run = self.end(host, &state, &log, terminal).await?;
        Ok(Left::Ended(Box::new(run)))
    }

    /// What executions before have begun, and this one goes on with.
    async fn take_up(&self, host: &Host, state: &Arc<RunState>) -> Result<(), HostError> {
        let ledger = &host.inner().ledger;
        if self.past == Past::Nothing {
            return Ok(());
        }
        let is_another_attempt = state.attempt > self.record.run.attempt;
        if !self.terms.grant.permissions.runs.is_empty() {
            let children = Children::of(ledger, &self.record)?;
            if is_another_attempt {
                // It knows nothing of them, and starts its own.
                host.end_children(state.run_id, &children).await;
            } else {
                state.children.take_from(children);
                host.tell_ends(state)?;
            }
        }
        if self.terms.grant.steering && is_another_attempt {
            *state.taken_before.lock() = steering::taken_before(ledger, &self.record)?;
        }
        Ok(())
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
        let data = waiting_data(reason, until);
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

    pub(crate) fn timed_out(&self) -> Terminal {
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
    pub(crate) async fn end(&self, host: &Host, state: &RunState, log: &GuestLog, terminal: Terminal) -> Result<Run, HostError> {
        let inner = host.inner();
        let mut terminal = bounded(terminal, inner.setup().limits.result_bytes);
        if let Terminal::Failed(failure) = &mut terminal
            && failure.details.is_none()
        {
            failure.details = log.tail().map(|tail| json!({ "log": tail }));
        }
        let mut unended = state.open.take();
        if self.past != Past::Nothing || is_outside(&self.record.run) {
            self.add_unended_before(host, state, &mut unended).await;
        }
        let audit = state.take_audit();
        let (journal, _) = state.journal.take().split();
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

    /// Calls that an execution before has begun, and that this one has not come to again before it was over.
    async fn add_unended_before(&self, host: &Host, state: &RunState, unended: &mut Vec<(ResultKind, Value)>) {
        // The record has what this execution has ended once all of that is on disk. Where the disk refuses, the end of the
        // run has another reason, and says it.
        if state.put_down().await.is_err() {
            return;
        }
        let before = host.inner().ledger.run_events_after(state.run_no, state.run_id, 0, usize::MAX).unwrap_or_default();
        let known: Vec<_> = unended.iter().map(|(kind, data)| (*kind, id_of(data))).collect();
        let left = facts::unended(&before, time::now());
        unended.extend(left.into_iter().filter(|(kind, data)| !known.contains(&(*kind, id_of(data)))));
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

/// What names the call that a fact is about.
fn id_of(data: &Value) -> Option<String> {
    let ids = ["action_id", "tool_call_id", "model_call_id"];
    ids.iter().find_map(|id| data.get(id)?.as_str()).map(str::to_owned)
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
pub(crate) async fn after(signal: impl Future<Output = ()>, grace: Duration) {
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
    let facts = facts::unended(&before, at).into_iter().chain(cause(&terminal, deadline_ms));
    let mut events: Vec<_> =
        (record.run.last_sequence + 1..).zip(facts).map(|(sequence, (kind, data))| fact(kind, sequence, at, &data)).collect();
    events.push(terminal_event(&terminal, record.run.last_sequence + 1 + events.len() as u64, at));
    Ok(RunWrite { run_no: record.run_no, changes: vec![RunChange::End { at, terminal }], events, ..RunWrite::default() })
}

/// Whether a run that the ledger holds had begun when the host went.
pub(crate) fn had_begun(status: RunStatus) -> bool {
    matches!(status, RunStatus::Claimed | RunStatus::Running | RunStatus::Waiting)
}
