//! Executing a run again, offline: its calls are answered from its journal, without effect and without a network.
//!
//! A replay uses the code path of a resumed run, with an empty ledger of its own and no services behind the gate: a call
//! that the journal does not answer stops the execution.

use std::{path::Path, sync::Arc, time::Duration};

use agent_host_config::Config;
use agent_host_protocol::{
    FailureCode, Limits, ResultKind, RunEvent,
    context::RunContext,
    run::{ModelUsage, RunFailure},
};
use agent_host_sandbox::{Component, ComputeShare, CpuBudget, Outcome, Sandbox};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::recording::Recording;
use crate::{
    calls::RunCalls,
    execution::{Execution, NewExecution, log::GuestLog, neighbours::NoNeighbours, registry::Mailbox},
    policy::{StartError, library::Library, services::Services},
    record::{
        RecordingError,
        journal::{Divergence, EarlierJournal, Journal, Mode, RequestDigest, Stop, request_digest::first_difference},
        terms::Terms,
    },
};

/// Time limit of the guest's computation. Host calls take no time in a replay.
const PATIENCE: Duration = Duration::from_secs(120);

/// The parameters of a replay.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The component: the one that the run was of, or another build of its runner.
    pub component: Arc<Component>,
    /// If set, the replay stops after this many calls.
    pub until: Option<u64>,
}

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// Calls that were answered as they were recorded.
    pub calls: u64,
    /// The end of the replayed execution.
    pub ending: ReplayEnd,
}

impl ReplayReport {
    /// True if the replay did the same as the recorded execution.
    #[must_use]
    pub fn is_same(&self) -> bool {
        matches!(self.ending, ReplayEnd::Same { .. } | ReplayEnd::Until | ReplayEnd::Recorded)
    }
}

/// The end of a replayed execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ending", rename_all = "snake_case")]
pub enum ReplayEnd {
    /// As the recorded one did.
    Same {
        /// The terminal event.
        end: Value,
    },
    /// After as many calls as were wanted.
    Until,
    /// The recorded execution was ended from outside (cancelled, timed out, or not over yet), and the replay matched all
    /// that is recorded.
    Recorded,
    /// The replay made a different call.
    Diverged {
        /// The number of the call, from 1.
        call: u64,
        /// The recorded call: its function and its request.
        recorded: Value,
        /// The call of the replay.
        now: Value,
        /// The first difference between the two, with both values.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        difference: Option<Value>,
    },
    /// The replay made more calls than the recorded execution.
    Longer {
        /// The additional call.
        now: Value,
    },
    /// The replay returned another value, or returned earlier.
    Otherwise {
        /// The end of the recorded execution.
        recorded: Value,
        /// The end of the replay.
        now: Value,
    },
}

/// The reason why a run cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The component does not hold the runner.
    #[error("the component does not hold {0}: name the build of the plugin that has it")]
    Runner(String),
    /// The surroundings.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The journal.
    #[error("the run cannot be executed again: {0}")]
    Journal(String),
    /// The guest computes for ever.
    #[error("the runner computed for longer than {} s without ending", PATIENCE.as_secs())]
    Endless,
}

/// Executes a recorded run again, in the folder `scratch`, which is to be empty.
///
/// # Errors
/// Fails if the run cannot be executed at all. A replay that differs is no error: the report says where.
pub async fn replay(
    sandbox: &Sandbox,
    recording: &Recording,
    replay: &Replay,
    limits: &Limits,
    scratch: &Path,
) -> Result<ReplayReport, ReplayError> {
    let malformed = |error: serde_json::Error| RecordingError::Malformed(error.to_string());
    let terms: Terms = serde_json::from_str(recording.terms.get()).map_err(malformed)?;
    let context: Box<RunContext> = serde_json::from_str(recording.context.get()).map_err(malformed)?;
    let id = &recording.run.runner_id;
    let manifest = replay.component.runners().iter().find(|manifest| manifest.id == *id);
    let manifest = manifest.ok_or_else(|| ReplayError::Runner(id.to_string()))?;
    let services = Arc::new(Services::open(&Config::default_in(scratch), Library::default(), None).await?);
    let (ledger, run_no) = recording.unpack(scratch).await?;

    let failed = |stop: Stop| ReplayError::Journal(stop.failure().message);
    let recorded = EarlierJournal::read(&ledger, run_no, limits).map_err(failed)?;
    let recorded = recorded.ok_or(RecordingError::NoJournal(recording.run.run_id))?;
    let world = recorded.world.clone();
    let mode = Mode::Offline { calls: replay.until.unwrap_or(u64::MAX) };
    let journal = Journal::resume(mode, recorded, limits);
    let deadline = Instant::now() + PATIENCE;
    let run_id = recording.run.run_id;
    let execution = Arc::new(Execution::new(NewExecution {
        run_id,
        event_id: recording.run.event_id,
        run_no,
        attempt: recording.run.attempt,
        terms: Arc::new(terms),
        limits: Arc::new(limits.clone()),
        ledger: &ledger,
        cancelled: CancellationToken::new(),
        deadline: deadline.into_std(),
        last_sequence: 0,
        journal,
        start: None,
        mail: Mailbox::unreachable(run_id),
        claim: None,
        used: ModelUsage::default(),
        tree: None,
        key: None,
        metrics: None,
    }));
    let log = Arc::new(GuestLog::new(recording.run.run_id, limits, Arc::default(), None));
    let calls = Box::new(RunCalls {
        run: Arc::clone(&execution),
        event: Arc::new(recording.event.clone()),
        services: Arc::clone(&services),
        neighbours: Arc::new(NoNeighbours),
    });
    let place = sandbox.place().await;
    let granted = execution.terms.grant.interfaces();
    let stopped = {
        let manifest = Arc::new(manifest.clone());
        let guest = sandbox.guest(place, &replay.component, granted, manifest, context, world, calls, log);
        // The deadline bounds it.
        let cpu = Arc::new(CpuBudget::new(Duration::ZERO));
        let mut guest = sandbox.pace(ComputeShare::default, cpu, guest);
        let stopped = tokio::select! {
            biased;
            stop = execution.waits.stopped() => Err(stop),
            outcome = &mut guest => Ok(outcome),
            () = tokio::time::sleep_until(deadline) => return Err(ReplayError::Endless),
        };
        guest.end().await;
        stopped
    };
    let calls = execution.journal.calls();
    let unasked = execution.journal.has_more();
    drop(execution);
    let _ = ledger.close().await;
    services.tools.shutdown().await;
    let (calls, ending) = match stopped {
        Err(Stop::Diverged(divergence)) => (divergence.call - 1, diverged(recording, &divergence)),
        Err(Stop::Over { calls, .. }) if replay.until.is_some_and(|until| calls >= until) => (calls, ReplayEnd::Until),
        Err(Stop::Over { calls, now }) => {
            (calls, if ended_by_itself(recording) { ReplayEnd::Longer { now } } else { ReplayEnd::Recorded })
        }
        Err(stop) => return Err(failed(stop)),
        Ok(outcome) => (calls, compared(recording, outcome, unasked)),
    };
    Ok(ReplayReport { calls, ending })
}

/// True if the recorded execution ended without outside influence.
fn ended_by_itself(recording: &Recording) -> bool {
    let host = [
        FailureCode::Cancelled,
        FailureCode::DeadlineExceeded,
        FailureCode::CpuExceeded,
        FailureCode::HostRestarted,
        FailureCode::HostError,
    ];
    match end(recording) {
        Some(end) => !host.iter().any(|code| code_of(&end) == Some(code.as_str())),
        None => false,
    }
}

/// The code of a failure.
fn code_of(end: &Value) -> Option<&str> {
    end.pointer("/data/code")?.as_str()
}

/// The terminal event.
fn end(recording: &Recording) -> Option<Value> {
    let event = recording.events.last().filter(|event| event.is_terminal())?;
    let data: Value = serde_json::from_str(event.data.get()).ok()?;
    Some(json!({ "type": event.kind, "data": data }))
}

fn compared(recording: &Recording, outcome: Outcome, unasked: bool) -> ReplayEnd {
    let failure = |failure: &RunFailure| json!({ "type": ResultKind::RunFailed.as_str(), "data": failure });
    let now = match outcome {
        Outcome::Completed(completion) => json!({ "type": ResultKind::RunCompleted.as_str(), "data": completion }),
        Outcome::Failed(failed) => failure(&failed),
        Outcome::Broken { code, message } => failure(&RunFailure::host(code, message)),
    };
    let recorded = end(recording);
    // The host adds the end of the log to the details of a failure, and cuts what is long.
    let failed = |event: &Value| event.get("type").and_then(Value::as_str) == Some(ResultKind::RunFailed.as_str());
    let is_same = |recorded: &Value| {
        if failed(recorded) { failed(&now) && code_of(recorded) == code_of(&now) } else { *recorded == now }
    };
    match recorded {
        Some(recorded) if !unasked && is_same(&recorded) => ReplayEnd::Same { end: recorded },
        Some(_) if !unasked && !ended_by_itself(recording) => ReplayEnd::Recorded,
        Some(recorded) => ReplayEnd::Otherwise { recorded, now },
        None => ReplayEnd::Recorded,
    }
}

fn diverged(recording: &Recording, divergence: &Divergence) -> ReplayEnd {
    let (mut recorded, now) = (divergence.recorded.to_json(), divergence.now.to_json());
    let mut difference = divergence.difference.clone();
    // Emitted results are in the events, not in the journal.
    if let Some((after, last)) = divergence.emitted {
        let of_the_runner = |event: &&RunEvent| {
            (after + 1..=last).contains(&event.sequence)
                && !ResultKind::from_name(&event.kind).is_some_and(ResultKind::is_host_only)
        };
        let emitted = recording.events.iter().filter(of_the_runner);
        let request: Value = emitted.map(|event| json!({ "type": event.kind, "data": event.data })).collect();
        // As long as what it is compared with.
        let outline = RequestDigest::of(&request).outline.unwrap_or_default();
        if divergence.now.function == divergence.recorded.function {
            difference = Some(first_difference(&outline, &divergence.now.request.to_string()));
        }
        if let Some(recorded) = recorded.as_object_mut() {
            recorded.insert("request".to_owned(), serde_json::from_str(&outline).unwrap_or_default());
        }
    }
    let difference = difference.map(|(at, recorded, now)| json!({ "at": at, "recorded": recorded, "now": now }));
    ReplayEnd::Diverged { call: divergence.call, recorded, now, difference }
}
