//! Accepting an event: which bindings answer it, on what terms, committed before anyone hears of it.

use std::sync::Arc;

use agent_host_ledger::{
    Accept, Accepted, ArtifactRecord, ArtifactScope, Blob, EntryWrite, Idempotency, NewItem, NewRun, RunRecord, new_artifact_id,
};
use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus, RunnerId,
    context::Delivery,
    event::Envelope,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart},
    run::{Execution, QueueEntry},
    time,
    tool::ClientTool,
};
use agent_host_providers::trace::{self, Attribute};
use agent_host_sandbox::Runner;
use serde_json::value::to_raw_value;

use crate::{
    agents::NewEntries,
    binding::{Binding, Serving, conversation_ids},
    config::BindingConfig,
    create::narrow,
    delivery,
    error::HostError,
    host::Host,
    life::{Life, Past},
    queue::QueuePolicy,
    spans,
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

/// No entries beside an event.
pub(crate) fn nothing_more(_: EventId, _: &[RunId]) -> Result<Vec<EntryWrite>, HostError> {
    Ok(Vec::new())
}

/// A run that is about to be created.
pub(crate) struct Planned {
    pub(crate) run: Run,
    pub(crate) terms: Arc<Terms>,
    pub(crate) runner: Option<Runner>,
}

/// How a run is to be made: its binding, and what somebody changed of that.
pub(crate) struct Plan {
    pub(crate) binding: Arc<Binding>,
    /// The same with less to use.
    pub(crate) narrowed: Option<Arc<Binding>>,
    /// Who executes it. Nothing: who serves now.
    pub(crate) serving: Option<Serving>,
    pub(crate) delivery: Option<Delivery>,
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    /// Tools that the client brings along.
    pub(crate) client_tools: Vec<ClientTool>,
    /// Values of state of its conversation that the client sets.
    pub(crate) state: serde_json::Map<String, serde_json::Value>,
    /// Whether no binding of the configuration stands behind it.
    pub(crate) ad_hoc: bool,
}

impl Plan {
    /// As the binding says.
    pub(crate) fn of(binding: Arc<Binding>) -> Self {
        Self {
            binding,
            narrowed: None,
            serving: None,
            delivery: None,
            metadata: serde_json::Map::new(),
            client_tools: Vec::new(),
            state: serde_json::Map::new(),
            ad_hoc: false,
        }
    }
}

impl Host {
    /// Accepts an event. When it returns, the event and its runs are on disk; no binding that matches means an
    /// event without runs.
    ///
    /// # Errors
    /// When the event is malformed, repeats a key with another body, or cannot be taken now. Then nothing was
    /// written.
    pub async fn accept(&self, envelope: Envelope, idempotency: Option<Idempotency>) -> Result<AcceptedEvent, HostError> {
        let bindings: Vec<_> =
            self.inner().setup().bindings.iter().filter(|binding| binding.matches(&envelope)).cloned().collect();
        self.accept_planned(envelope, idempotency, bindings.into_iter().map(Plan::of).collect(), &nothing_more).await
    }

    /// Accepts an event, and puts entries in the same commit.
    ///
    /// # Errors
    /// As [`Host::accept`].
    pub(crate) async fn accept_and_put(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        let bindings: Vec<_> =
            self.inner().setup().bindings.iter().filter(|binding| binding.matches(&envelope)).cloned().collect();
        self.accept_planned(envelope, idempotency, bindings.into_iter().map(Plan::of).collect(), entries).await
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
        if let Some(problem) = binding.report(Some(&Serving::Guest(runner))).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        self.accept_planned(envelope, None, vec![Plan::of(Arc::new(binding))], &nothing_more).await
    }

    /// Accepts an event for these runs.
    pub(crate) async fn accept_planned(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        plans: Vec<Plan>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        let span = spans::of_event(&envelope);
        let accepted = span.within(self.take(envelope, idempotency, plans, entries)).await;
        match &accepted {
            Ok(accepted) => span.set(|| vec![Attribute::new("agent_host.event.id", accepted.event_id.to_string())]),
            Err(_) => span.failed("refused"),
        }
        accepted
    }

    async fn take(
        &self,
        mut envelope: Envelope,
        idempotency: Option<Idempotency>,
        plans: Vec<Plan>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        let inner = self.inner();
        if inner.stopping.is_cancelled() {
            return Err(HostError::ShuttingDown);
        }
        envelope.check().map_err(HostError::Invalid)?;
        let key = envelope.conversation.as_ref().and_then(ConversationKey::of);
        if let Some(key) = key.as_ref().filter(|_| !plans.is_empty()) {
            let (waiting, steers) = inner.lines.waiting(key);
            let limits = Arc::clone(&inner.setup().limits);
            let most = if steers { limits.steering_queue.min(limits.conversation_queue) } else { limits.conversation_queue };
            if waiting >= most {
                return Err(HostError::QueueFull { waiting });
            }
        }

        if envelope.trace_id.is_none() {
            envelope.trace_id = trace::current().map(|context| context.trace_id().to_string());
        }
        let envelope = self.with_known_artifacts(envelope)?;
        let (envelope, payload) = self.with_small_payload(envelope).await?;
        let event = Event { event_id: EventId::new(), received_at: time::now(), envelope };
        let planned: Vec<_> = plans.iter().map(|plan| self.plan(plan, &event)).collect();
        planned.iter().try_for_each(|planned| self.has_room(planned))?;
        for (plan, planned) in plans.iter().zip(&planned) {
            self.check_client_tools(plan, planned).await?;
        }
        let mut state = Vec::new();
        for (plan, planned) in plans.iter().zip(&planned) {
            state.extend(self.state_of(plan, planned)?);
        }
        let ids: Vec<_> = planned.iter().map(|planned| planned.run.run_id).collect();
        let accept = Accept {
            transcript: key.and_then(|key| said(&event, key)),
            idempotency,
            artifacts: payload.iter().map(|(record, _)| record.clone()).collect(),
            refers_to: event.envelope.artifact_ids().map(str::to_owned).collect(),
            entries: Self::entries(&planned, entries(event.event_id, &ids)?)?,
            state,
            runs: planned.iter().map(Planned::new_run).collect::<Result<_, _>>()?,
            event: event.clone(),
        };
        let accepted = inner.ledger.accept(accept).await?;
        // Until here nothing referred to the content, and the collector left it alone.
        drop(payload);
        match accepted {
            Accepted::New { event_no, runs, transcript_seq } => {
                inner.metrics.accepted();
                runs.iter().for_each(|record| inner.metrics.created(&record.run));
                let event = Arc::new(event);
                let ids = runs.iter().map(|record| record.run.run_id).collect();
                for (record, planned) in runs.into_iter().zip(planned) {
                    let Planned { terms, runner, .. } = planned;
                    inner.deliveries.begin(&record, &terms.deliver);
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
        for artifact in envelope.artifacts_mut() {
            *artifact = self.known_artifact(artifact, &workspace, conversation.as_ref())?;
        }
        Ok(envelope)
    }

    /// What the host knows of an artifact that somebody names in a conversation, under their name for it.
    ///
    /// # Errors
    /// When it is not there.
    pub(crate) fn known_artifact(
        &self,
        artifact: &ArtifactRef,
        workspace: &str,
        conversation: Option<&ConversationKey>,
    ) -> Result<ArtifactRef, HostError> {
        let now = time::now();
        let record = self.inner().ledger.artifact(&artifact.artifact_id)?.filter(|record| {
            let scope = &record.scope;
            !record.is_expired(now)
                && scope.workspace == workspace
                && (scope.conversation.is_none() || scope.conversation.as_ref() == conversation)
        });
        let Some(record) = record else {
            return Err(HostError::Invalid(format!(
                "there is no artifact {:?} in this conversation: upload it with POST /api/v1/artifacts, then name it",
                artifact.artifact_id
            )));
        };
        Ok(ArtifactRef { name: artifact.name.clone().or(record.name.clone()), ..record.reference() })
    }

    /// The event without what is too large for the log: the whole of its `data` becomes an artifact, `raw_ref`, and
    /// those of its entries stay that are small.
    async fn with_small_payload(&self, mut envelope: Envelope) -> Result<(Envelope, Option<(ArtifactRecord, Blob)>), HostError> {
        let inner = self.inner();
        let limit = inner.setup().limits.event_inline_bytes;
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

    /// What is put beside runs that are about to be created.
    pub(crate) fn entries(planned: &[Planned], mut entries: Vec<EntryWrite>) -> Result<Vec<EntryWrite>, HostError> {
        for planned in planned {
            entries.extend(delivery::entries(&planned.run, &planned.terms)?);
        }
        Ok(entries)
    }

    pub(crate) fn plan(&self, plan: &Plan, event: &Event) -> Planned {
        let setup = self.inner().setup();
        let binding = &plan.binding;
        let runner = plan.serving.clone().or_else(|| self.serving(&binding.config.runner));
        let installed = || self.plugins_handle().runners().iter().map(|runner| runner.manifest.id.clone()).collect();
        let terms_of = |binding: &Binding| {
            binding.terms(&event.envelope, runner.as_ref(), &setup.services, &installed, setup.limits.run_deadline_ms)
        };
        let mut terms = terms_of(binding);
        if let Some(narrowed) = &plan.narrowed {
            narrow(&mut terms.grant, &terms_of(narrowed).grant);
        }
        if [Some(binding), plan.narrowed.as_ref()]
            .into_iter()
            .flatten()
            .all(|binding| binding.takes_client_tools(&terms.grant.permissions))
        {
            terms.grant.client_tools.clone_from(&plan.client_tools);
        }
        if let Some(delivery) = &plan.delivery {
            terms.delivery.clone_from(delivery);
        }
        terms.ad_hoc = plan.ad_hoc;
        let version = runner.as_ref().map(|runner| runner.manifest().version.to_string()).unwrap_or_default();
        let mut run = new_run(event, &binding.config.id, &binding.config.runner, version, &terms);
        run.metadata.extend(plan.metadata.clone());
        Planned { run, terms: Arc::new(terms), runner: runner.and_then(Serving::guest) }
    }

    /// Whether the queue of a run takes one more.
    pub(crate) fn has_room(&self, planned: &Planned) -> Result<(), HostError> {
        let Some(queue) = planned.run.queue.as_ref().filter(|_| planned.run.execution == Execution::External) else {
            return Ok(());
        };
        let waiting = self.inner().waiting.depth(&queue.name);
        if waiting >= self.inner().setup().limits.queue_length {
            return Err(HostError::QueueFull { waiting });
        }
        Ok(())
    }

    /// Who executes the runs of a runner now. What the configuration says of it comes before what the plugins directory holds.
    pub(crate) fn serving(&self, id: &RunnerId) -> Option<Serving> {
        match self.inner().setup().external(id) {
            Some(manifest) => Some(Serving::Outside { manifest, component: String::new() }),
            None => self.plugins_handle().runner(id).map(Serving::Guest),
        }
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
pub(crate) fn new_run(event: &Event, binding_id: &str, runner_id: &RunnerId, runner_version: String, terms: &Terms) -> Run {
    let mut metadata = serde_json::Map::new();
    spans::note(&mut metadata);
    let [conversation_id, thread_id, workspace_id, bot_id] = conversation_ids(event.envelope.conversation.as_ref());
    Run {
        run_id: RunId::new(),
        parent_run_id: None,
        retry_of: None,
        execution: terms.execution,
        queue: place(terms),
        event_id: event.event_id,
        binding_id: binding_id.to_owned(),
        runner_id: runner_id.clone(),
        runner_version,
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
        metadata,
    }
}

/// The place of a new run in a queue, where it may have to wait in one.
fn place(terms: &Terms) -> Option<Box<QueueEntry>> {
    match (&terms.queue, terms.execution) {
        (Some(policy), _) => Some(policy.entry()),
        (None, Execution::External) => Some(QueuePolicy::default().entry()),
        (None, Execution::Host) => None,
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
