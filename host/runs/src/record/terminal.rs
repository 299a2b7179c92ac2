//! Terminals: how a run ends, as the record says it.

use std::time::Duration;

use agent_host_facts::record::{Limit, Violation};
use agent_host_ledger::{Ledger, LedgerError, NewEvent, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    FailureCode, ResultKind, RunStatus, Timestamp,
    encoded::{JsonText, json_len},
    run::{RunFailure, Terminal},
    time,
};
use serde_json::{Value, json};

use super::{
    facts::{self, Fact, UnendedCalls},
    journal::Stop,
    results::{Speaker, transcript_item},
    transcript::ItemPlace,
};

/// The limit of the CPU time of a tree, as facts name it.
const CPU_LIMIT: &str = "tree_cpu_ms";

/// The failure of a run whose results did not all reach the disk.
pub(crate) fn results_lost() -> RunFailure {
    RunFailure::host(
        FailureCode::HostError,
        "the ledger could not write all results of the run, so it cannot end well: free the disk, and send the event again",
    )
}

/// The failure of a run that was active when the host stopped.
pub(crate) fn host_restarted() -> RunFailure {
    RunFailure::host(
        FailureCode::HostRestarted,
        "the host stopped while the run was active: send the event again if it should be answered",
    )
}

/// The end of a run at its deadline.
pub(crate) fn timed_out(deadline_ms: u64) -> Terminal {
    Terminal::Timeout {
        message: format!(
            "the run did not end within {deadline_ms} ms: raise `deadline_ms` of its binding, or let the runner do less"
        ),
    }
}

/// The end of a run whose tree has used its CPU time.
pub(crate) fn out_of_cpu(limit: Duration) -> Terminal {
    let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let message = format!(
        "the run, with those above and below it, has used {ms} ms of CPU time: raise `limits.tree_cpu_ms`, or let the runners compute less"
    );
    let details = Some(json!({ "limit": CPU_LIMIT, "value": ms }));
    Terminal::Failed(RunFailure { details, ..RunFailure::host(FailureCode::CpuExceeded, message) })
}

/// The fact behind an end that the sandbox or a limit brought about.
fn cause(terminal: &Terminal, deadline_ms: u64) -> Option<Fact> {
    match terminal {
        Terminal::Timeout { .. } => {
            Some(Fact::LimitReached(Limit { limit: "deadline_ms".into(), value: Some(deadline_ms), ..Limit::default() }))
        }
        Terminal::Failed(failure) if failure.code == FailureCode::CpuExceeded.as_str() => {
            let value = failure.details.as_ref().and_then(|details| details.get("value")?.as_u64());
            Some(Fact::LimitReached(Limit { limit: CPU_LIMIT.into(), value, ..Limit::default() }))
        }
        Terminal::Failed(failure) => {
            let violations = [
                FailureCode::GuestTrapped,
                FailureCode::GuestExited,
                FailureCode::GuestMemory,
                FailureCode::GuestStack,
                FailureCode::GuestAbuse,
            ];
            let code = violations.into_iter().find(|code| code.as_str() == failure.code)?;
            Some(Fact::SandboxViolation(Violation { code: code.as_str().into(), message: failure.message.clone() }))
        }
        _ => None,
    }
}

/// The last event of a run.
pub(crate) fn terminal_event(terminal: &Terminal, sequence: u64, at: Timestamp) -> NewEvent {
    let (kind, data) = match terminal {
        Terminal::Completed(completion) => (ResultKind::RunCompleted, JsonText::of(completion)),
        other => (ResultKind::RunFailed, JsonText::of(&other.failure())),
    };
    let data = data.unwrap_or_else(|_| serde_json::value::RawValue::NULL.to_owned().into());
    facts::host_event(kind, data, sequence, at)
}

/// The return value of a guest becomes an event and has its bound. A value over the bound is left out, with a note.
pub(crate) fn bounded(terminal: Terminal, limit: usize) -> Terminal {
    let size = |value: &Option<Value>| value.as_ref().map_or(0, json_len);
    match terminal {
        Terminal::Completed(completion) => {
            let bytes = json_len(&completion);
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

/// The end of a run that has no execution in memory. Calls that are open in its record end with the run.
pub(crate) fn end_stored(
    ledger: &Ledger,
    record: &RunRecord,
    terminal: Terminal,
    deadline_ms: u64,
) -> Result<RunWrite, LedgerError> {
    let at = time::now();
    let open = UnendedCalls::read(ledger, record.run_no, record.run.run_id)?;
    let facts: Vec<_> = open.ends(at).into_iter().chain(cause(&terminal, deadline_ms)).collect();
    let transcript = ItemPlace::of(&record.run).and_then(|place| place.notice(&terminal, at)).into_iter().collect();
    Ok(RunWrite { transcript, ..end(&facts, terminal, record.run.last_sequence + 1, at) })
}

/// The end of a run that is executed: `open` are the ends of calls that nobody waits for any more. The message that
/// the runner completes with joins the transcript.
pub(crate) fn end_executed(speaker: &Speaker<'_>, open: &[Fact], terminal: &Terminal, first_sequence: u64) -> RunWrite {
    let at = time::now();
    let facts: Vec<_> = open.iter().cloned().chain(cause(terminal, speaker.terms.deadline_ms)).collect();
    let message = match terminal {
        Terminal::Completed(completion) => completion.message.clone(),
        _ => None,
    };
    let message = message.and_then(|message| transcript_item(speaker, message, at));
    let notice = || speaker.place().and_then(|place| place.notice(terminal, at));
    let transcript = message.or_else(notice).into_iter().collect();
    RunWrite { transcript, ..end(&facts, terminal.clone(), first_sequence, at) }
}

fn end(facts: &[Fact], terminal: Terminal, first_sequence: u64, at: Timestamp) -> RunWrite {
    let mut events = facts::events(facts, first_sequence, at);
    events.push(terminal_event(&terminal, first_sequence + events.len() as u64, at));
    RunWrite { changes: vec![RunChange::End { at, terminal }], events, ..RunWrite::default() }
}

/// True if an earlier host process began the run.
pub(crate) fn has_started(status: RunStatus) -> bool {
    matches!(status, RunStatus::Claimed | RunStatus::Running | RunStatus::Waiting)
}

/// The failure of a run without a journal that was active when the host stopped.
pub(crate) fn not_journaled() -> RunFailure {
    let message = "the host stopped while the run was active, and its runner uses `wasi:http`, whose requests are not journaled: \
                   use the contract's `http` interface for runs that are to be resumed, or send the event again";
    RunFailure { message: message.to_owned(), ..host_restarted() }
}

impl Stop {
    /// The failure of a run that this reason stops.
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
            Self::Over { .. } | Self::Park { .. } => host_restarted(),
        }
    }
}
