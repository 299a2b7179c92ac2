//! The import body: a run whose results are in a capture of another framework. The event of the run names it (`raw_ref`).

use std::sync::Arc;

use agent_host_facts::import::{self, Form, NativeEnd, Translator};
use agent_host_protocol::{
    ApiError, ErrorCode, FailureCode, Run,
    run::{RunCompletion, RunFailure, Terminal},
};
use agent_host_sandbox::Batch;

use super::{
    body::{AssembledContext, Body, Exit, Ready, RunningExecution},
    native,
    queue::admission::Admission,
    task::{RunOutcome, RunTask},
};
use crate::{
    calls::RunCalls,
    execution::Resumption,
    record::{
        HostError,
        terminal::{host_restarted, timed_out},
    },
};

/// Native events are gathered to so many results before they are written.
const BATCH_RESULTS: usize = 64;
/// The failure of a run that its capture says.
const RECORDED_FAILURE: &str = "import.failed";
/// The failure of a run whose capture cannot be read.
const UNREADABLE: &str = "import.unreadable";
/// The reason of an end that the capture does not say.
const UNKNOWN: &str = "unknown";

/// The import of a capture.
pub(crate) struct ImportBody {
    form: Form,
    calls: Option<Box<RunCalls>>,
    running: Option<RunningExecution>,
    /// Held as long as the run counts as executed.
    admission: Option<Admission>,
}

impl ImportBody {
    pub(crate) const fn new(form: Form) -> Self {
        Self { form, calls: None, running: None, admission: None }
    }
}

impl Body for ImportBody {
    fn takes_cancel(&self) -> bool {
        true
    }

    async fn start(&mut self, task: &mut RunTask) -> Result<Ready, HostError> {
        self.admission = match task.unless_interrupted(task.admission()).await {
            Ok(admission) => Some(admission?),
            Err(interruption) => return Ok(Ready::Interrupted(interruption)),
        };
        if let Some(failure) = &task.run.terms.refusal {
            return Ok(Ready::Ends(Terminal::Failed(failure.clone())));
        }
        // Half of a capture may be written. The same file again makes a run of its own.
        if task.run.resumption != Resumption::New {
            return Ok(Ready::Ends(Terminal::Failed(host_restarted())));
        }
        let start = task.start_attempt(task.run.record.run.attempt, false).await?;
        task.count_start(false);
        let AssembledContext { running, calls, .. } = task.assemble(start, None).await?;
        self.running = Some(running);
        self.calls = Some(Box::new(calls));
        Ok(Ready::Started)
    }

    async fn run(&mut self, task: &mut RunTask) -> Result<Exit, HostError> {
        let (Some(calls), Some(running)) = (self.calls.take(), &self.running) else {
            return Err(HostError::Internal("a capture is imported that was not started".to_owned()));
        };
        let execution = &running.execution;
        let imported = Box::pin(write_all(self.form, *calls));
        Ok(tokio::select! {
            biased;
            () = task.cancelled.cancelled() => Exit::End(task.cancelled_terminal()?),
            () = execution.deadline.passed() => Exit::End(timed_out(task.run.terms.deadline_ms)),
            () = task.runs.ending.cancelled() => self.on_host_stop(task, running),
            terminal = imported => Exit::End(terminal),
        })
    }

    async fn stop(&mut self) -> Option<RunningExecution> {
        self.running.take()
    }

    fn on_host_stop(&self, _: &RunTask, _: &RunningExecution) -> Exit {
        Exit::End(Terminal::Failed(host_restarted()))
    }

    fn claim(&self) -> Option<u32> {
        None
    }

    fn answer(&mut self, _: &Arc<Run>, _: Option<&RunOutcome>) {}
}

/// Writes what the capture says; gives the end of the run.
async fn write_all(form: Form, mut calls: RunCalls) -> Terminal {
    let unreadable =
        |message: String| Terminal::Failed(RunFailure { code: UNREADABLE.to_owned(), message, retryable: false, details: None });
    match write(form, &mut calls).await {
        Ok(Ok(end)) => terminal(end),
        Ok(Err(message)) => unreadable(message),
        Err(error) => {
            let message = format!("the capture could not be imported: {}", error.message);
            match error.code {
                // The same capture meets the same limit again.
                ErrorCode::PayloadTooLarge => unreadable(message),
                _ => Terminal::Failed(RunFailure::host(FailureCode::HostError, message)),
            }
        }
    }
}

/// The end that the capture says, if it says one. The inner error is of the capture.
async fn write(form: Form, calls: &mut RunCalls) -> Result<Result<Option<NativeEnd>, String>, ApiError> {
    let artifacts = calls.artifacts();
    let Some(raw) = &calls.event.envelope.raw_ref else {
        return Ok(Err("the event of the run names no capture: import one with `agent-host import`".to_owned()));
    };
    let content = artifacts.whole(&raw.artifact_id).await?;
    let Ok(text) = std::str::from_utf8(&content) else {
        return Ok(Err("the capture is not UTF-8 text".to_owned()));
    };
    let events = match import::events(text, 1) {
        Ok(events) => events,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let limits = Arc::clone(&calls.run.limits);
    let mut translator = Translator::new(form);
    let mut sent = Vec::new();
    let last = events.len();
    for (number, event) in (1..).zip(events) {
        match import::lines::parse(event, number) {
            Ok(event) => sent.extend(native::written(&artifacts, &limits, translator.push(&event)).await?),
            Err(error) => return Ok(Err(error.to_string())),
        }
        // Events without results wait for nothing else: a cancel, the deadline and other tasks come in here.
        tokio::task::consume_budget().await;
        if sent.len() >= BATCH_RESULTS || !sent.is_empty() && number == last as u64 {
            calls.emit_imported(Batch::sent(std::mem::take(&mut sent)), Vec::new(), &[]).await?;
        }
    }
    Ok(Ok(translator.end().cloned()))
}

fn terminal(end: Option<NativeEnd>) -> Terminal {
    let completed = |finish_reason: Option<String>| {
        let finish_reason = finish_reason.unwrap_or_else(|| UNKNOWN.to_owned());
        Terminal::Completed(RunCompletion { finish_reason, message: None, usage: None, metadata: None })
    };
    match end {
        None => completed(None),
        Some(NativeEnd::Completed { finish_reason }) => completed(finish_reason),
        Some(NativeEnd::Failed { message }) => {
            Terminal::Failed(RunFailure { code: RECORDED_FAILURE.to_owned(), message, retryable: false, details: None })
        }
        Some(NativeEnd::Cancelled { reason }) => Terminal::Cancelled { reason: reason.unwrap_or_else(|| UNKNOWN.to_owned()) },
    }
}
