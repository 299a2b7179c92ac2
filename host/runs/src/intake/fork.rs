//! A new run that shares the first calls of another, and is live after them.

use std::{collections::BTreeMap, sync::Arc};

use agent_host_ledger::{AddRun, Blob, JournalSegment, Ledger, NewContext, NewEvent};
use agent_host_protocol::{ResultKind, Run, RunEvent, RunId, RunStatus, context::RunContext, encoded::JsonText, hex, time};
use serde_json::{Map, Value};

use super::Intake;
use crate::{
    execution::{Resumption, spans},
    record::{
        FORKED_FROM, HostError, RecordingError,
        journal::{Entry, Outcome, Source, entry, function::Function},
        terms::Terms,
    },
};

/// The parameters of a fork.
#[derive(Debug, Clone, Default)]
pub struct Fork {
    /// Number of host calls that the fork shares with the run.
    pub at: u64,
    /// Another configuration, in place of keys of the run's.
    pub config: Option<Map<String, Value>>,
    /// Another text of the event.
    pub input: Option<String>,
    /// The API key whose budget pays for the run ([`crate::Host::charged_key`]).
    pub charged_key: Option<String>,
}

/// Bytes of the journal that are read at one time.
const PAGE_BYTES: usize = 1 << 20;
/// Events of the record that are read at one time.
const PAGE_EVENTS: usize = 256;
/// Bytes of the entries and events that a fork shares: they are written in one operation of the ledger.
const MAX_SHARED_BYTES: usize = 16 * 1024 * 1024;

/// The part of a journal that a fork shares.
#[derive(Default)]
struct SharedCalls {
    bytes: Vec<u8>,
    /// Sequence of the last result that it emitted.
    emitted: u64,
    /// Calls to models and tools in it: the largest number, and the ids of the tools.
    number: u64,
    tool_calls: Vec<String>,
}

impl Intake {
    /// Makes a run that shares the first calls of another, with what that was given but for the changes, and lets it live.
    ///
    /// The runner sees the context of the other run, its ids included, so that it asks for the same; the effects of the
    /// shared calls are not done again. A change that makes the runner ask for something else within them fails the fork
    /// with `replay_diverged`.
    pub(crate) async fn fork(&self, id: RunId, fork: Fork) -> Result<Arc<Run>, HostError> {
        self.runs.check_running()?;
        let record = self.runs.record(id)?;
        let ledger = &self.ledger;
        let no_journal = || HostError::from(RecordingError::NoJournal(id));
        let unreadable = |error: serde_json::Error| HostError::Internal(error.to_string());
        let mut terms: Terms = serde_json::from_str(ledger.terms(id)?.ok_or_else(no_journal)?.get()).map_err(unreadable)?;
        let mut context: RunContext =
            serde_json::from_str(ledger.context(id)?.ok_or_else(no_journal)?.get()).map_err(unreadable)?;
        let shared = self.shared(id, record.run_no, fork.at)?;
        if let Some(config) = fork.config {
            let mut config: Map<_, _> = terms.config.clone().into_iter().chain(config).collect();
            if let Ok(component) = self.runs.component(&terms.grant.component).await
                && let Some(manifest) = component.runners().iter().find(|manifest| manifest.id == record.run.runner_id)
            {
                config = manifest.check_config(config).map_err(|problems| {
                    HostError::InvalidConfig(format!("the configuration does not fit {}: {}", manifest.id, problems.join("; ")))
                })?;
            }
            terms.config.clone_from(&config);
            context.config = config;
        }
        if let Some(text) = fork.input {
            context.input.contents.clear();
            context.input.text = Some(text);
        }
        let events = shared.events(ledger, record.run_no, id, fork.at)?;
        let blobs = self.pinned_blobs(record.run_no)?;
        let mut metadata = record.run.metadata.clone();
        spans::note(&mut metadata);
        metadata.insert(FORKED_FROM.to_owned(), id.to_string().into());
        metadata.insert("forked_at".to_owned(), fork.at.into());
        let at = time::now();
        let run = Run {
            run_id: RunId::of_workspace(record.run.workspace_id.as_deref()),
            turn: None,
            status: RunStatus::Created,
            status_reason: None,
            failure: None,
            attempt: 1,
            resumes: 0,
            created_at: at,
            started_at: None,
            finished_at: None,
            updated_at: at,
            deadline_at: None,
            cancel_requested_at: None,
            cancel_reason: None,
            last_sequence: events.len() as u64,
            usage: None,
            usage_by_model: BTreeMap::new(),
            claimed_usage: None,
            children_usage: None,
            metadata,
            ..Arc::unwrap_or_clone(record.run)
        };
        let add = AddRun {
            run,
            terms: Terms { deliver: Vec::new(), charged_key: fork.charged_key, ..terms }.stored().map_err(unreadable)?,
            context: Some(NewContext::Whole(JsonText::of(&context).map_err(unreadable)?)),
            events,
            journal: Some(JournalSegment { first: 1, bytes: shared.bytes, blobs }),
            entries: Vec::new(),
        };
        let record = ledger.add_run(add).await?;
        let run = record.run.clone();
        self.shared.metrics.created(&run);
        self.runs.begin(self.runs.stored(record, Resumption::Forked)?);
        Ok(run)
    }

    /// The blobs of the journal of a run.
    fn pinned_blobs(&self, run_no: u64) -> Result<Vec<Blob>, HostError> {
        let (mut blobs, mut from) = (Vec::new(), 0);
        loop {
            let page = self.ledger.journal_page(run_no, from, PAGE_BYTES)?;
            let Some(last) = page.last() else { return Ok(blobs) };
            from = last.first + 1;
            for digest in page.iter().flat_map(|row| &row.blobs) {
                blobs.extend(self.ledger.pin_blob(&hex::encode(digest))?);
            }
        }
    }

    /// The first `calls` calls of a journal, each with its answer.
    fn shared(&self, id: RunId, run_no: u64, calls: u64) -> Result<SharedCalls, HostError> {
        let mut source = Source::new(&self.ledger, run_no);
        let mut shared = SharedCalls::default();
        let (mut seen, mut open) = (0, false);
        'read: while let Some(page) = source.more().map_err(|error| HostError::Internal(error.to_string()))? {
            for entry in page.entries {
                let begins = matches!(&entry, Entry::Call(call, _) | Entry::Started(call, _) if call.part == 0);
                if begins {
                    if seen == calls {
                        break 'read;
                    }
                    seen += 1;
                    open = matches!(entry, Entry::Started(..));
                }
                match &entry {
                    Entry::Ended { part: 0, .. } => open = false,
                    Entry::Resumed { .. } | Entry::Full | Entry::Suspended => continue,
                    _ => {}
                }
                shared.add(&entry);
                within(shared.bytes.len(), calls)?;
            }
        }
        if shared.bytes.is_empty() {
            return Err(RecordingError::NoJournal(id).into());
        }
        if seen < calls || open {
            let answered = seen - u64::from(open);
            return Err(HostError::Invalid(format!("`at` is {calls}, and the run has {answered} calls that were answered")));
        }
        Ok(shared)
    }
}

/// Fails if a fork would have more than it may.
fn within(bytes: usize, calls: u64) -> Result<(), HostError> {
    if bytes <= MAX_SHARED_BYTES {
        return Ok(());
    }
    Err(HostError::Invalid(format!(
        "`at` is {calls}, and these calls have more than {MAX_SHARED_BYTES} bytes of answers and events: share fewer calls"
    )))
}

impl SharedCalls {
    fn add(&mut self, added: &Entry) {
        entry::write(&mut self.bytes, added);
        match added {
            Entry::Call(call, Outcome::Answer(text)) if call.function == Function::named("results.emit").0 => {
                self.emitted = text.parse().unwrap_or(self.emitted);
            }
            Entry::Started(call, effect) => {
                self.number = self.number.max(effect.number);
                let request = call.outline.as_deref().filter(|_| call.function == Function::named("tools.call").0);
                let request: Option<Value> = request.and_then(|text| serde_json::from_str(text).ok());
                self.tool_calls.extend(request.and_then(|request| Some(request.get("call_id")?.as_str()?.to_owned())));
            }
            _ => {}
        }
    }

    /// The events that belong to these calls: what they emitted, and what the host recorded of them. The record is read as far as
    /// that.
    fn events(&self, ledger: &Ledger, run_no: u64, id: RunId, calls: u64) -> Result<Vec<NewEvent>, HostError> {
        let (mut events, mut bytes) = (Vec::new(), self.bytes.len());
        loop {
            let page = ledger.run_events_after(run_no, id, events.len() as u64, PAGE_EVENTS)?;
            let is_last = page.len() < PAGE_EVENTS;
            for event in page {
                if event.sequence > self.emitted && !self.is_fact_of(&event) {
                    return Ok(events);
                }
                bytes += event.data.get().len();
                within(bytes, calls)?;
                events.push(copied(&event));
            }
            if is_last {
                return Ok(events);
            }
        }
    }

    fn is_fact_of(&self, event: &RunEvent) -> bool {
        let data: Value = serde_json::from_str(event.data.get()).unwrap_or_default();
        match ResultKind::from_name(&event.kind) {
            Some(ResultKind::ModelCallStarted | ResultKind::ModelCallCompleted) => {
                let number =
                    data.get("model_call_id").and_then(Value::as_str).and_then(|id| id.strip_prefix('c')?.parse::<u64>().ok());
                number.is_some_and(|number| number <= self.number)
            }
            Some(
                ResultKind::ToolCallStarted
                | ResultKind::ToolCallArguments
                | ResultKind::ToolCallProgress
                | ResultKind::ToolCallCompleted,
            ) => {
                let id = data.get("tool_call_id").and_then(Value::as_str);
                self.tool_calls.iter().any(|call_id| Some(call_id.as_str()) == id)
            }
            _ => false,
        }
    }
}

fn copied(event: &RunEvent) -> NewEvent {
    NewEvent {
        sequence: event.sequence,
        kind: event.kind.clone().into(),
        data: event.data.clone().into(),
        timestamp: event.timestamp,
        source: event.source,
        metadata: event.metadata.clone().map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_shares_so_many_bytes_and_no_more() {
        within(MAX_SHARED_BYTES, 3).unwrap();
        let refused = within(MAX_SHARED_BYTES + 1, 3).unwrap_err();
        assert!(refused.code() == "invalid_argument" && refused.to_string().starts_with("`at` is 3"), "{refused}");
    }
}
