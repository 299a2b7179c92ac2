//! Accepting an event: which bindings answer it, on what terms, committed before anyone hears of it.

use std::sync::Arc;

use agent_host_ledger::{
    Accept, Accepted, ArtifactRecord, ArtifactScope, Blob, Idempotency, NewItem, NewRun, RunRecord, new_artifact_id,
};
use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus, RunnerId,
    event::Envelope,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart},
    time,
};
use agent_host_sandbox::Runner;
use serde_json::value::to_raw_value;

use crate::{
    binding::{Binding, conversation_ids},
    config::BindingConfig,
    error::HostError,
    host::Host,
    life::{Life, Past},
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

/// An entry of `data` that stays in an event whose `data` is large: an id, a name, a flag.
const SMALL_ENTRY_BYTES: usize = 1024;

/// A run that is about to be created.
pub(crate) struct Planned {
    pub(crate) run: Run,
    pub(crate) terms: Arc<Terms>,
    pub(crate) runner: Option<Runner>,
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
            let (waiting, steers) = inner.lines.waiting(key);
            let limits = &inner.config.limits;
            let most = if steers { limits.steering_queue.min(limits.conversation_queue) } else { limits.conversation_queue };
            if waiting >= most {
                return Err(HostError::QueueFull { waiting });
            }
        }

        let envelope = self.with_known_artifacts(envelope)?;
        let (envelope, payload) = self.with_small_payload(envelope).await?;
        let event = Event { event_id: EventId::new(), received_at: time::now(), envelope };
        let planned: Vec<_> = bindings.iter().map(|binding| self.plan(binding, &event)).collect();
        let accept = Accept {
            transcript: key.and_then(|key| said(&event, key)),
            idempotency,
            artifacts: payload.iter().map(|(record, _)| record.clone()).collect(),
            refers_to: event.envelope.artifact_ids().map(str::to_owned).collect(),
            runs: planned.iter().map(Planned::new_run).collect::<Result<_, _>>()?,
            event: event.clone(),
        };
        let accepted = inner.ledger.accept(accept).await?;
        // Until here nothing referred to the content, and the collector left it alone.
        drop(payload);
        match accepted {
            Accepted::New { event_no, runs, transcript_seq } => {
                let event = Arc::new(event);
                let ids = runs.iter().map(|record| record.run.run_id).collect();
                for (record, planned) in runs.into_iter().zip(planned) {
                    let Planned { terms, runner, .. } = planned;
                    self.begin(Life {
                        record,
                        event: Arc::clone(&event),
                        event_no,
                        transcript_seq,
                        terms,
                        runner,
                        past: Past::Nothing,
                        waking: None,
                    });
                }
                Ok(AcceptedEvent { event_id: event.event_id, runs: ids, repeated: false })
            }
            Accepted::Repeated { event_id } => {
                let event = inner.ledger.event(event_id)?;
                Ok(AcceptedEvent { event_id, runs: event.map(|event| event.runs).unwrap_or_default(), repeated: true })
            }
        }
    }

    /// The event with what the host knows of the artifacts that it names. One that is not there is refused: nobody could
    /// read it later.
    fn with_known_artifacts(&self, mut envelope: Envelope) -> Result<Envelope, HostError> {
        let workspace = envelope.conversation.as_ref().and_then(|it| it.workspace_id.clone()).unwrap_or_default();
        let conversation = envelope.conversation.as_ref().and_then(ConversationKey::of);
        let now = time::now();
        for artifact in envelope.artifacts_mut() {
            let record = self.inner().ledger.artifact(&artifact.artifact_id)?.filter(|record| {
                let scope = &record.scope;
                !record.is_expired(now)
                    && scope.workspace == workspace
                    && (scope.conversation.is_none() || scope.conversation == conversation)
            });
            let Some(record) = record else {
                return Err(HostError::Invalid(format!(
                    "there is no artifact {:?} in this conversation: upload it with POST /api/v1/artifacts, then send the event",
                    artifact.artifact_id
                )));
            };
            let name = artifact.name.take();
            *artifact = ArtifactRef { name: name.or(record.name.clone()), ..record.reference() };
        }
        Ok(envelope)
    }

    /// The event without what is too large for the log: the whole of its `data` becomes an artifact, `raw_ref`, and
    /// those of its entries stay that are small.
    async fn with_small_payload(&self, mut envelope: Envelope) -> Result<(Envelope, Option<(ArtifactRecord, Blob)>), HostError> {
        let inner = self.inner();
        let limit = inner.config.limits.event_inline_bytes;
        let internal = |error: String| HostError::Internal(error);
        let whole = serde_json::to_vec(&envelope.data).map_err(|error| internal(error.to_string()))?;
        if whole.len() <= limit {
            return Ok((envelope, None));
        }
        if envelope.raw_ref.is_some() {
            let bytes = whole.len();
            return Err(HostError::Invalid(format!(
                "`data` has {bytes} bytes; the limit is {limit} where `raw_ref` names the raw payload: leave one of them out"
            )));
        }
        let mut writer = inner.ledger.blob_writer(whole.len() as u64)?;
        let written = tokio::task::spawn_blocking(move || {
            writer.write(&whole)?;
            writer.finish()
        });
        let blob = written.await.map_err(|error| internal(error.to_string()))??;
        let conversation = envelope.conversation.as_ref();
        let record = ArtifactRecord {
            artifact_id: new_artifact_id(),
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type: "application/json".to_owned(),
            name: Some("data.json".to_owned()),
            created_at: time::now(),
            expires_at: None,
            scope: ArtifactScope {
                workspace: conversation.and_then(|it| it.workspace_id.clone()).unwrap_or_default(),
                conversation: conversation.and_then(ConversationKey::of),
                run_id: None,
                binding_id: None,
            },
            source: "event".to_owned(),
        };
        envelope.raw_ref = Some(record.reference());
        envelope.data.retain(|_, value| value.to_string().len() <= SMALL_ENTRY_BYTES);
        // Many small ones are large as well.
        if serde_json::to_vec(&envelope.data).is_ok_and(|rest| rest.len() > limit) {
            envelope.data.clear();
        }
        Ok((envelope, Some((record, blob))))
    }

    fn plan(&self, binding: &Binding, event: &Event) -> Planned {
        let runner = self.plugins_handle().runner(&binding.config.runner);
        let inner = self.inner();
        let installed = || self.plugins_handle().runners().iter().map(|runner| runner.manifest.id.clone()).collect();
        let limits = &inner.config.limits;
        let terms = binding.terms(&event.envelope, runner.as_ref(), &inner.services, &installed, limits.run_deadline_ms);
        let run = new_run(event, &binding.config.id, &binding.config.runner, runner.as_ref());
        Planned { run, terms: Arc::new(terms), runner }
    }

    /// The run of a record that the ledger holds, to be brought to its end.
    pub(crate) fn resumed(&self, record: RunRecord, past: Past) -> Result<Life, HostError> {
        let ledger = &self.inner().ledger;
        let missing =
            |what: &str| HostError::Internal(format!("run {} has no {what}: run `agent-host ledger check`", record.run.run_id));
        let terms = ledger.terms(record.run.run_id)?.ok_or_else(|| missing("terms"))?;
        let terms: Terms =
            serde_json::from_str(terms.get()).map_err(|error| missing(&format!("terms that can be read ({error})")))?;
        let event = ledger.event(record.run.event_id)?.ok_or_else(|| missing("event"))?;
        let runner = self.plugins_handle().runner(&record.run.runner_id);
        Ok(Life {
            record,
            event: Arc::new(event.event),
            event_no: event.event_no,
            transcript_seq: event.transcript_seq,
            terms: Arc::new(terms),
            runner,
            past,
            waking: None,
        })
    }
}

impl Planned {
    pub(crate) fn new_run(&self) -> Result<NewRun, HostError> {
        let terms = to_raw_value(&*self.terms).map_err(|error| HostError::Internal(error.to_string()))?;
        Ok(NewRun { run: self.run.clone(), terms })
    }
}

/// A run that answers an event, as it is before anything has happened to it.
pub(crate) fn new_run(event: &Event, binding_id: &str, runner_id: &RunnerId, runner: Option<&Runner>) -> Run {
    let [conversation_id, thread_id, workspace_id, bot_id] = conversation_ids(event.envelope.conversation.as_ref());
    Run {
        run_id: RunId::new(),
        parent_run_id: None,
        event_id: event.event_id,
        binding_id: binding_id.to_owned(),
        runner_id: runner_id.clone(),
        runner_version: runner.map(|runner| runner.manifest.version.to_string()).unwrap_or_default(),
        conversation_id,
        thread_id,
        workspace_id,
        bot_id,
        status: RunStatus::Created,
        status_reason: None,
        failure: None,
        attempt: 1,
        resumes: 0,
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
