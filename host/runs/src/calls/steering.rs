//! `steering`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_facts::record::SteeringReceipt;
use agent_host_ledger::RunWrite;
use agent_host_protocol::{
    ApiError, ErrorCode, EventId,
    context::{EventContext, SteeringInput},
    encoded::json_len,
    limits::{MAX_PAGE, MIN_PAGE},
    message::ContentPart,
    time,
};
use agent_host_sandbox::SteeringCalls;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::RunCalls;
use crate::{
    execution::{
        Execution,
        call::{Call, WriteTicket},
        neighbours::WaitingRun,
    },
    record::{
        WaitKey,
        facts::{self, Fact},
        journal::Stop,
        ledger_failed, steering,
    },
};

/// JSON bytes of the inputs of one pull: a guest has 64 MiB, and the journal stores them. A single larger input is still
/// given.
const MAX_PULL_BYTES: usize = 512 * 1024;

impl RunCalls {
    /// Takes the waiting inputs durably, together with the journal entry of the answer. `undelivered` receives the inputs that
    /// were taken.
    async fn take_inputs(
        &self,
        ticket: &mut Option<WriteTicket>,
        limit: usize,
        undelivered: &UndeliveredInputs<'_>,
    ) -> Result<Vec<SteeringInput>, ApiError> {
        let run = &self.run;
        let (mut inputs, mut bytes) = (Vec::new(), 0);
        while inputs.len() < limit
            && let Some(event_id) = { run.knowledge.pending_inputs.lock().pop_front() }
        {
            let Some(input) = self.input(event_id)? else { continue };
            bytes += weight(&input);
            if bytes > MAX_PULL_BYTES && !inputs.is_empty() {
                run.knowledge.pending_inputs.lock().push_front(event_id);
                return Ok(inputs);
            }
            undelivered.note([event_id]);
            inputs.push(input);
        }
        let Some(key) = &run.terms.grant.conversation else { return Ok(inputs) };
        let binding_id = &run.terms.grant.binding_id;
        let is_input = |run_no| {
            let record = run.ledger.run_by_no(run_no).ok().flatten();
            record.is_some_and(|record| steering::can_be_taken(&record, binding_id))
        };
        let (mut waiting_runs, mut facts, mut events) = (Vec::new(), Vec::new(), Vec::new());
        for waiting in self.neighbours.take_waiting(key, limit - inputs.len(), &is_input) {
            let Some(record) = run.ledger.run_by_no(waiting.run_no()).map_err(ledger_failed)? else { continue };
            let Some(input) = self.input(record.run.event_id)? else { continue };
            bytes += weight(&input);
            if bytes > MAX_PULL_BYTES && !inputs.is_empty() {
                break;
            }
            facts.push(Fact::SteeringReceived(SteeringReceipt {
                event_id: record.run.event_id.to_string(),
                run_id: Some(record.run.run_id.to_string()),
            }));
            events.push(record.run.event_id);
            inputs.push(input);
            waiting_runs.push(waiting);
        }
        if waiting_runs.is_empty() {
            return Ok(inputs);
        }
        if run.is_external() {
            self.receive(waiting_runs, facts, events.clone()).await?;
            undelivered.note(events);
            return Ok(inputs);
        }
        // A pull that takes something ends with it, so there is one commit at most.
        let Some(ticket) = ticket.take() else { return Err(lost_input()) };
        let make = |first| Ok((received(first, &facts), inputs));
        let (inputs, _) = run.commit(ticket, make).await?;
        // This run does not end before those that it has taken: a host that died in between would let them run.
        waiting_runs.into_iter().for_each(|place| drop(run.family.tasks().background.spawn(place.give_to(run.run_id))));
        Ok(inputs)
    }

    /// Takes these inputs. The write is completed even if the caller goes away.
    async fn receive(
        &self,
        waiting_runs: Vec<Box<dyn WaitingRun>>,
        facts: Vec<Fact>,
        events: Vec<EventId>,
    ) -> Result<(), ApiError> {
        let run = Arc::clone(&self.run);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let written = run.writer.append(|first| Ok(received(first, &facts))).await.map(drop);
            let is_taken = written.is_ok();
            if is_taken {
                waiting_runs.into_iter().for_each(|place| drop(run.family.tasks().background.spawn(place.give_to(run.run_id))));
            }
            if sender.send(written).is_err() && is_taken {
                run.knowledge.pending_inputs.lock().extend(events);
            }
        });
        receiver.await.unwrap_or_else(|_| Err(lost_input()))
    }

    fn input(&self, event_id: EventId) -> Result<Option<SteeringInput>, ApiError> {
        let record = self.run.ledger.event(event_id).map_err(ledger_failed)?;
        Ok(record.map(|record| SteeringInput { event: EventContext::of(&record.event), input: record.event.envelope.input }))
    }

    /// Adds the artifacts of the inputs to those that the run may read.
    fn may_read(&self, inputs: &[SteeringInput]) {
        let mut input_artifacts = self.run.knowledge.input_artifacts.lock();
        for SteeringInput { event, input } in inputs {
            let within = input.contents.iter().filter_map(|part| match part {
                ContentPart::Artifact(artifact) => Some(artifact),
                _ => None,
            });
            let named = event.raw_ref.iter().chain(&input.attachments).chain(within);
            input_artifacts.extend(named.map(|artifact| artifact.artifact_id.clone()));
        }
    }
}

fn received(first: u64, facts: &[Fact]) -> RunWrite {
    RunWrite { events: facts::events(facts, first, time::now()), ..RunWrite::default() }
}

fn lost_input() -> ApiError {
    ApiError::retryable(ErrorCode::RuntimeError, "the host could not take the input")
}

/// Inputs that were taken and have not reached the caller. If the caller goes away, the next pull gets the inputs.
struct UndeliveredInputs<'a> {
    run: &'a Execution,
    events: Mutex<Vec<EventId>>,
}

impl UndeliveredInputs<'_> {
    fn note(&self, events: impl IntoIterator<Item = EventId>) {
        self.events.lock().extend(events);
    }

    fn delivered(self) {
        self.events.lock().clear();
    }
}

impl Drop for UndeliveredInputs<'_> {
    fn drop(&mut self) {
        let mut waiting = self.run.knowledge.pending_inputs.lock();
        self.events.lock().drain(..).rev().for_each(|event_id| waiting.push_front(event_id));
    }
}

/// Bytes of an input, as JSON.
fn weight(input: &SteeringInput) -> usize {
    json_len(input)
}

impl SteeringCalls for RunCalls {
    fn steering_pull(&mut self, limit: u32, wait_ms: u32) -> BoxFuture<'_, Result<Vec<SteeringInput>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let allowed = || {
                if !run.terms.grant.steering {
                    return Err(ApiError::unauthorized("steering is not granted to this run"));
                }
                if (MIN_PAGE..=MAX_PAGE).contains(&limit) {
                    return Ok(());
                }
                Err(ApiError::invalid_argument(format!("`limit` is between {MIN_PAGE} and {MAX_PAGE}, not {limit}")))
            };
            let digest = run.journal.digest(&(limit, wait_ms));
            let undelivered = UndeliveredInputs { run, events: Mutex::default() };
            let effect = async |ticket: WriteTicket| {
                if wait_ms > 0 {
                    // A later execution of the run reads the start of the wait from the journal.
                    run.start_wait(&ticket);
                }
                let (began_us, mut ticket) = (ticket.began_us(), Some(ticket));
                let key = run.terms.grant.conversation.as_ref();
                // People answer soon or late: a wait that could be parked is waited in memory a moment first.
                let patient_until = Instant::now() + Duration::from_millis(run.limits.park_after_ms);
                loop {
                    let joined = key.and_then(|key| self.neighbours.joined(key));
                    let inputs = self.take_inputs(&mut ticket, limit as usize, &undelivered).await?;
                    let (left, until) = run.time_left(began_us, u64::from(wait_ms));
                    if !inputs.is_empty() || left.is_zero() {
                        return Ok(inputs);
                    }
                    let patience = patient_until.saturating_duration_since(Instant::now());
                    if patience.is_zero() && run.parks_for(left) {
                        let keys = key.map(WaitKey::steering).into_iter().collect();
                        run.stop(Stop::Park { until: Some(until), reason: "steering", keys }).await
                    }
                    let came = async {
                        match &joined {
                            Some(joined) => joined.notified().await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = came => {}
                        () = tokio::time::sleep(if patience.is_zero() { left } else { left.min(patience) }) => {}
                    }
                }
            };
            let inputs = run.pass(Call::write("steering.pull", digest), allowed, effect).await.outcome?;
            undelivered.delivered();
            self.may_read(&inputs);
            Ok(inputs)
        })
    }
}
