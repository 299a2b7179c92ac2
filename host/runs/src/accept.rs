//! Accepting an event: which bindings answer it, on what terms, committed before anyone hears of it.

use std::sync::Arc;

use agent_host_ledger::{Accept, Accepted, Idempotency, NewItem, NewRun, RunRecord};
use agent_host_protocol::{
    Event, EventId, FailureCode, Run, RunId, RunStatus, event::Envelope, grant::ConversationKey, message::ContentPart, time,
};
use agent_host_sandbox::Runner;
use serde_json::value::to_raw_value;

use crate::{
    binding::{Binding, conversation_ids},
    config::BindingConfig,
    error::HostError,
    host::Host,
    life::Life,
    terms::Terms,
};

/// An event that was accepted, and the runs that answer it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedEvent {
    /// The event.
    pub event_id: EventId,
    /// Its runs, in the order of their bindings. None where no binding matches.
    pub runs: Vec<RunId>,
    /// Whether it was accepted before, under the same idempotency key.
    pub repeated: bool,
}

/// A run that is about to be created.
struct Planned {
    run: Run,
    terms: Arc<Terms>,
    runner: Option<Runner>,
}

impl Host {
    /// Accepts an event. When it returns, the event and its runs are on disk; no binding that matches means an
    /// event without runs.
    ///
    /// # Errors
    /// When the event is malformed, repeats a key with another body, or cannot be taken now. Then nothing was
    /// written.
    pub async fn accept(&self, envelope: Envelope, idempotency: Option<Idempotency>) -> Result<AcceptedEvent, HostError> {
        let bindings: Vec<_> = self.inner().bindings.iter().filter(|binding| binding.matches(&envelope)).cloned().collect();
        self.accept_with(envelope, idempotency, &bindings).await
    }

    /// Accepts an event for one runner, whatever the configuration binds.
    ///
    /// # Errors
    /// As [`Host::accept`]; also when no plugin holds the runner, or the configuration does not fit it.
    pub async fn accept_for(&self, binding: BindingConfig, envelope: Envelope) -> Result<AcceptedEvent, HostError> {
        let Some(runner) = self.plugins_handle().runner(&binding.runner) else {
            let known: Vec<_> = self.plugins_handle().runners().iter().map(|runner| runner.manifest.id.to_string()).collect();
            let hint = if known.is_empty() {
                "The plugins directory holds no runner.".to_owned()
            } else {
                format!("There are: {}", known.join(", "))
            };
            return Err(HostError::RunnerNotFound { id: binding.runner, hint });
        };
        let binding = Binding::new(binding).map_err(HostError::InvalidConfig)?;
        if let Some(problem) = binding.report(Some(&runner)).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        self.accept_with(envelope, None, &[Arc::new(binding)]).await
    }

    async fn accept_with(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        bindings: &[Arc<Binding>],
    ) -> Result<AcceptedEvent, HostError> {
        let inner = self.inner();
        if inner.stopping.is_cancelled() {
            return Err(HostError::ShuttingDown);
        }
        envelope.check().map_err(HostError::Invalid)?;
        let key = envelope.conversation.as_ref().and_then(ConversationKey::of);
        if let Some(key) = key.as_ref().filter(|_| !bindings.is_empty()) {
            let waiting = inner.lines.waiting(key);
            if waiting >= inner.config.limits.conversation_queue {
                return Err(HostError::QueueFull { waiting });
            }
        }

        let event = Event { event_id: EventId::new(), received_at: time::now(), envelope };
        let planned: Vec<_> = bindings.iter().map(|binding| self.plan(binding, &event)).collect();
        let accept = Accept {
            transcript: key.and_then(|key| said(&event, key)),
            idempotency,
            runs: planned.iter().map(Planned::new_run).collect::<Result<_, _>>()?,
            event: event.clone(),
        };
        match inner.ledger.accept(accept).await? {
            Accepted::New { event_no, runs, transcript_seq } => {
                let event = Arc::new(event);
                let ids = runs.iter().map(|record| record.run.run_id).collect();
                for (record, planned) in runs.into_iter().zip(planned) {
                    let Planned { terms, runner, .. } = planned;
                    self.begin(Life { record, event: Arc::clone(&event), event_no, transcript_seq, terms, runner });
                }
                Ok(AcceptedEvent { event_id: event.event_id, runs: ids, repeated: false })
            }
            Accepted::Repeated { event_id } => {
                let event = inner.ledger.event(event_id)?;
                Ok(AcceptedEvent { event_id, runs: event.map(|event| event.runs).unwrap_or_default(), repeated: true })
            }
        }
    }

    fn plan(&self, binding: &Binding, event: &Event) -> Planned {
        let runner = self.plugins_handle().runner(&binding.config.runner);
        let terms = binding.terms(&event.envelope, runner.as_ref(), self.inner().config.limits.run_deadline_ms);
        let [conversation_id, thread_id, workspace_id, bot_id] = conversation_ids(event.envelope.conversation.as_ref());
        let run = Run {
            run_id: RunId::new(),
            event_id: event.event_id,
            binding_id: binding.config.id.clone(),
            runner_id: binding.config.runner.clone(),
            runner_version: runner.as_ref().map(|runner| runner.manifest.version.to_string()).unwrap_or_default(),
            conversation_id,
            thread_id,
            workspace_id,
            bot_id,
            status: RunStatus::Created,
            status_reason: None,
            failure: None,
            attempt: 1,
            created_at: event.received_at,
            started_at: None,
            finished_at: None,
            updated_at: event.received_at,
            deadline_at: None,
            cancel_requested_at: None,
            cancel_reason: None,
            last_sequence: 0,
            usage: None,
            metadata: serde_json::Map::new(),
        };
        Planned { run, terms: Arc::new(terms), runner }
    }

    /// The run of a record that the ledger holds, to be brought to its end.
    pub(crate) fn resumed(&self, record: RunRecord) -> Result<Life, HostError> {
        let ledger = &self.inner().ledger;
        let missing =
            |what: &str| HostError::Internal(format!("run {} has no {what}: run `agent-host ledger check`", record.run.run_id));
        let terms = ledger.terms(record.run.run_id)?.ok_or_else(|| missing("terms"))?;
        let mut terms: Terms =
            serde_json::from_str(terms.get()).map_err(|error| missing(&format!("terms that can be read ({error})")))?;
        let event = ledger.event(record.run.event_id)?.ok_or_else(|| missing("event"))?;
        let runner = self.plugins_handle().runner(&record.run.runner_id);
        if runner.is_none() && terms.refusal.is_none() {
            let message = format!("no plugin holds {} any more", record.run.runner_id);
            terms.refusal = Some(agent_host_protocol::run::RunFailure::host(FailureCode::RunnerNotFound, message));
        }
        Ok(Life {
            record,
            event: Arc::new(event.event),
            event_no: event.event_no,
            transcript_seq: event.transcript_seq,
            terms: Arc::new(terms),
            runner,
        })
    }
}

impl Planned {
    fn new_run(&self) -> Result<NewRun, HostError> {
        let terms = to_raw_value(&*self.terms).map_err(|error| HostError::Internal(error.to_string()))?;
        Ok(NewRun { run: self.run.clone(), terms })
    }
}

/// What the event says in its conversation, if it says something.
fn said(event: &Event, conversation: ConversationKey) -> Option<NewItem> {
    let input = &event.envelope.input;
    let mut content = input.contents.clone();
    if content.is_empty() {
        content.extend(input.text.clone().map(ContentPart::Text));
    }
    if content.is_empty() && input.attachments.is_empty() {
        return None;
    }
    Some(NewItem {
        conversation,
        event_id: event.event_id,
        run_id: None,
        role: "user".to_owned(),
        item_type: "message".to_owned(),
        content,
        artifacts: input.attachments.clone(),
        created_at: event.received_at,
    })
}
