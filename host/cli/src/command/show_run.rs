//! A run that a command shows to its end: `run`, `fork --follow`, `runs create --stream` and `--wait`.

use std::process::ExitCode;

use agent_host_protocol::{Run, RunId, RunStatus};
use futures_util::StreamExt;

use super::{event_text::RunningText, failure_text, open_actions::ActionDesk, run_host::RunHost};
use crate::{
    output::Output,
    signals::{INTERRUPTED, Signals},
};

/// The part of a run that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// The text as it comes, or with JSON each event and then the run.
    Stream,
    /// The text when the run has ended, or with JSON the run alone.
    End,
}

/// Shows a run until its end, and asks at the terminal for the answers that the run needs. A signal cancels the run, and the output
/// continues to its end; a second signal ends the process.
pub(super) async fn show(
    host: RunHost<'_>,
    id: RunId,
    shown: Shown,
    signals: &mut Signals,
    output: Output,
) -> anyhow::Result<Run> {
    let mut events = host.follow(id)?;
    let (mut running, mut text) = (RunningText::default(), String::new());
    let mut desk = ActionDesk::new(host, output);
    let mut cancelled = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            line = desk.line() => {
                desk.on_line(line).await;
                continue;
            }
            () = signals.next() => {
                if cancelled {
                    std::process::exit(INTERRUPTED);
                }
                cancelled = true;
                output.remark("cancelling; Ctrl-C again leaves at once");
                // The run may have ended at this very moment: then its last event comes anyway.
                if let Err(error) = host.cancel(id, "interrupted at the command line").await {
                    tracing::debug!(%error, "the run was not cancelled");
                }
                continue;
            }
        };
        let Some(event) = event else { break };
        let event = event?;
        match shown {
            Shown::Stream if output.is_json() => output.json_line(&event)?,
            Shown::Stream => running.add(&event).map_or(Ok(()), |text| output.text(text))?,
            Shown::End => text.extend(running.add(&event)),
        }
        desk.on_event(&event);
    }
    let run = host.run(id).await?;
    if output.is_json() {
        output.json_line(&run)?;
    } else if shown == Shown::End {
        output.text(text)?;
    }
    Ok(run)
}

/// The exit code for the end of a run, with a message unless the run completed.
pub(super) fn exit_code_of(run: &Run, output: Output) -> ExitCode {
    if run.status == RunStatus::Completed {
        return ExitCode::SUCCESS;
    }
    let why = run.failure.as_ref().map_or_else(String::new, |failure| {
        format!(" ({}): {}\n{}", failure.code, failure.message, failure_text::quoted(failure))
    });
    output.remark(format!("run {} ended as {}{why}", run.run_id, run.status).trim_end());
    ExitCode::FAILURE
}
