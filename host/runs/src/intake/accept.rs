//! Accepting an event: which bindings answer it, on what terms, committed before anyone hears of it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::{BindingConfig, BusyThread, QueuePolicy};
use agent_host_ledger::{
    Accept, AcceptOutcome, ArtifactRecord, ArtifactScope, Blob, EntryWrite, Idempotency, JsonParts, NewItem, NewRun, RunRecord,
    new_artifact_id,
};
use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus, RunnerId,
    context::Delivery,
    encoded::json_len,
    event::Envelope,
    grant::ConversationKey,
    message::ContentPart,
    run::{Execution, QueueEntry},
    time,
    tool::ClientTool,
};
use agent_host_providers::trace::{self, Attribute};
use agent_host_sandbox::Runner;

use super::{Intake, IntakeOfCell, agents::ThreadBranch, delivery};
use crate::{
    execution::spans,
    lifecycle::{StoredEvent, StoredRun},
    policy::{
        binding::{Binding, BoundRunner, conversation_ids, narrow},
        client_tools,
    },
    record::{HostError, artifacts::known_artifact, claimed::ClaimedMessage, facts, terms::Terms},
};

/// An event that was accepted, and the runs that answer it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedEvent {
    /// The event.
    pub event_id: EventId,
    /// The runs of the event, in the order of their bindings. Empty if no binding matches.
    pub runs: Vec<RunId>,
    /// True if the event was accepted before, under the same idempotency key.
    pub repeated: bool,
}

/// An entry of `data` that stays in an event whose `data` is large: an id, a name, a flag.
const SMALL_ENTRY_BYTES: usize = 1024;

/// No entries beside an event.
pub(crate) fn no_entries(_: EventId, _: &[RunId]) -> Result<Vec<EntryWrite>, HostError> {
    Ok(Vec::new())
}

/// Entries that are put in the ledger in the commit of an event, once the event and its runs have their ids.
pub type NewEntries<'a> = dyn Fn(EventId, &[RunId]) -> Result<Vec<EntryWrite>, HostError> + Send + Sync + 'a;

/// The payload of an event that is kept as an artifact, until the event refers to it.
type Payload = (ArtifactRecord, Blob);

/// A run that is about to be created.
pub(crate) struct PlannedRun {
    pub(crate) run: Run,
    pub(crate) terms: Arc<Terms>,
    /// The same, as the ledger stores them.
    pub(crate) stored_terms: JsonParts,
    pub(crate) runner: Option<Runner>,
}

/// The parameters of a run's task besides the record of the run and its event.
pub(crate) struct PlannedTask {
    pub(crate) terms: Arc<Terms>,
    pub(crate) runner: Option<Runner>,
}

/// The plan of a run: its binding, and the overrides of the caller.
pub(crate) struct RunPlan {
    pub(crate) binding: Arc<Binding>,
    /// The same with less to use.
    pub(crate) narrowed: Option<Arc<Binding>>,
    /// The runner that executes the run; `None` for the present one of the binding.
    pub(crate) serving: Option<BoundRunner>,
    pub(crate) delivery: Option<Delivery>,
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    /// Tools that the client brings along.
    pub(crate) client_tools: Vec<ClientTool>,
    /// Values of state of its conversation that the client sets.
    pub(crate) state: serde_json::Map<String, serde_json::Value>,
    /// History that the client claims, oldest first. It comes in front of the message of the event.
    pub(crate) history: Vec<ClaimedMessage>,
    /// True if the run has no binding of the configuration.
    pub(crate) ad_hoc: bool,
    /// True if the client has no other way to stop the run than to leave its stream.
    pub(crate) streamed: bool,
    /// The treatment of the run while another run of its conversation is active.
    pub(crate) busy: BusyThread,
    /// A run of the conversation that the new one replaces in any case.
    pub(crate) replaces: Option<RunId>,
    /// The branch of the conversation that begins with the run.
    pub(crate) branch: Option<ThreadBranch>,
    /// The API key whose budget pays for the run.
    pub(crate) charged_key: Option<String>,
}

impl RunPlan {
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
            history: Vec::new(),
            ad_hoc: false,
            streamed: false,
            busy: BusyThread::Queue,
            replaces: None,
            branch: None,
            charged_key: None,
        }
    }
}

impl Intake {
    /// Accepts an event for the bindings that match it. The event and its runs are durable when this function returns. An
    /// event that no binding matches has no runs. The runs are charged to the budget of `charged_key`, where there is one.
    pub(crate) async fn accept(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
        charged_key: Option<String>,
    ) -> Result<AcceptedEvent, HostError> {
        let setup = self.shared.setup();
        let matching = setup.bindings.iter().filter(|binding| binding.matches(&envelope));
        let plan = |binding| RunPlan { charged_key: charged_key.clone(), ..RunPlan::of(binding) };
        let plans = matching.cloned().map(plan).collect();
        self.accept_with_plans(envelope, idempotency, plans, entries).await
    }

    /// Accepts an event for one runner, whatever the configuration binds.
    pub(crate) async fn accept_for(&self, binding: BindingConfig, envelope: Envelope) -> Result<AcceptedEvent, HostError> {
        self.await_runner(&binding.runner, self.runner_deadline()).await?;
        let Some(runner) = self.shared.plugins.runner(&binding.runner) else {
            let known = self.shared.runner_ids();
            let hint = if known.is_empty() {
                "The plugins directory holds no runner.".to_owned()
            } else {
                format!("There are: {}", known.join(", "))
            };
            return Err(HostError::RunnerNotFound { id: binding.runner, hint });
        };
        let binding = Binding::new(binding).map_err(HostError::InvalidConfig)?;
        if let Some(problem) = binding.report(Some(&BoundRunner::Guest(runner))).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        self.accept_with_plans(envelope, None, vec![RunPlan::of(Arc::new(binding))], &no_entries).await
    }

    /// Accepts an event for these runs.
    pub(crate) async fn accept_with_plans(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        plans: Vec<RunPlan>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        let span = spans::of_event(&envelope);
        let accepted = span.within(self.accept_event(envelope, idempotency, plans, entries)).await;
        match &accepted {
            Ok(accepted) => span.set(|| vec![Attribute::new("agent_host.event.id", accepted.event_id.to_string())]),
            Err(_) => span.failed("refused"),
        }
        accepted
    }

    /// The steps of accepting an event: admit it, bound it, plan its runs, commit all of it, and begin the runs.
    async fn accept_event(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        plans: Vec<RunPlan>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        self.runs.check_running()?;
        envelope.check().map_err(HostError::Invalid)?;
        self.check_workspace(envelope.workspace())?;
        if !self.shared.plugins.is_settled() {
            let deadline = self.runner_deadline();
            for plan in &plans {
                self.await_runner(&plan.binding.config.runner, deadline).await?;
            }
        }
        let conversation = envelope.conversation.as_ref().and_then(ConversationKey::of);
        // Held until the runs have joined the line: a run that wants an idle conversation sees them before.
        let place = self.reserve_line(conversation.as_ref(), &plans).await?;
        let (event, payload) = self.bounded_event(envelope).await?;
        let planned = self.plan_all(&plans, &event).await?;
        let (accept, tasks) = self.assemble(&event, conversation, idempotency, &payload, &plans, planned, entries)?;
        if let Some(run) = place.as_ref().and_then(|place| place.replaces) {
            self.replace(run).await?;
        }
        let accepted = self.ledger.accept(accept).await?;
        // Until here nothing referred to the content, and the collector left it alone.
        drop(payload);
        match accepted {
            AcceptOutcome::New { event_no, runs, transcript_seq } => {
                Ok(self.begin_accepted(event, event_no, transcript_seq, runs, tasks))
            }
            AcceptOutcome::Repeated { event_id } => {
                let event = self.ledger.event(event_id)?;
                Ok(AcceptedEvent { event_id, runs: event.map(|event| event.runs).unwrap_or_default(), repeated: true })
            }
        }
    }

    /// Fails for a workspace of another partition of the cluster.
    pub(crate) fn check_workspace(&self, workspace: Option<&str>) -> Result<(), HostError> {
        if self.runs.partition.has(workspace) {
            return Ok(());
        }
        Err(HostError::Invalid(
            "`workspace_id` is of another partition of the cluster than the request came to: name the workspace in the header \
             `X-Workspace`, or use a key of that workspace"
                .to_owned(),
        ))
    }

    /// Checks that the client tools of a plan can be tools of its run.
    pub(crate) async fn check_client_tools(&self, plan: &RunPlan, planned: &PlannedRun) -> Result<(), HostError> {
        if plan.client_tools.is_empty() {
            return Ok(());
        }
        let (tools, limits, terms) = (plan.client_tools.clone(), self.shared.limits(), Arc::clone(&planned.terms));
        // Schemas of strangers are compiled: some milliseconds, in the worst case.
        let checking = tokio::task::spawn_blocking(move || client_tools::check(&tools, &terms.grant.tools, &limits));
        let checked = checking.await.map_err(|error| HostError::Internal(error.to_string()))?;
        checked.map_err(HostError::Invalid)
    }

    /// The event as it is stored: with its trace, with what the host knows of its artifacts, and with a payload that is too
    /// large for the log as an artifact.
    async fn bounded_event(&self, mut envelope: Envelope) -> Result<(Arc<Event>, Option<Payload>), HostError> {
        if envelope.trace_id.is_none() {
            envelope.trace_id = trace::current().map(|context| context.trace_id().to_string());
        }
        let envelope = self.with_known_artifacts(envelope)?;
        let (envelope, payload) = self.with_small_payload(envelope).await?;
        let event_id = EventId::of_workspace(envelope.workspace());
        Ok((Arc::new(Event { event_id, received_at: time::now(), envelope }), payload))
    }

    /// Plans the runs of an event, and checks that each may be created.
    async fn plan_all(&self, plans: &[RunPlan], event: &Event) -> Result<Vec<PlannedRun>, HostError> {
        // With room for as many as there are: a plan is large.
        let mut planned = Vec::with_capacity(plans.len());
        for plan in plans {
            planned.push(self.plan(plan, event)?);
        }
        planned.iter().try_for_each(|planned| self.has_room(planned))?;
        for (plan, planned) in plans.iter().zip(&planned) {
            self.check_client_tools(plan, planned).await?;
        }
        Ok(planned)
    }

    /// All rows of an event, for one commit.
    #[allow(clippy::too_many_arguments, reason = "each is one part of the commit, made by the step before")]
    fn assemble(
        &self,
        event: &Arc<Event>,
        conversation: Option<ConversationKey>,
        idempotency: Option<Idempotency>,
        payload: &Option<Payload>,
        plans: &[RunPlan],
        planned: Vec<PlannedRun>,
        entries: &NewEntries<'_>,
    ) -> Result<(Accept, Vec<PlannedTask>), HostError> {
        let mut state = Vec::new();
        for (plan, planned) in plans.iter().zip(&planned) {
            state.extend(self.state_of(plan, planned)?);
        }
        let ids: Vec<_> = planned.iter().map(|planned| planned.run.run_id).collect();
        let mut entries = entries(event.event_id, &ids)?;
        for planned in &planned {
            entries.extend(delivery::entries(&planned.run, &planned.terms)?);
        }
        let branch = plans.iter().find_map(|plan| plan.branch.as_ref());
        let (mut runs, mut tasks) = (Vec::with_capacity(planned.len()), Vec::with_capacity(planned.len()));
        for (run, task) in planned.into_iter().map(PlannedRun::split) {
            runs.push(run);
            tasks.push(task);
        }
        for new in branch.map(|_| runs.as_mut_slice()).unwrap_or_default() {
            new.events = facts::events(&branch.map(ThreadBranch::fact), 1, event.received_at);
            new.run.last_sequence = new.events.len() as u64;
        }
        let claims = plans.iter().flat_map(|plan| &plan.history);
        let history: Vec<NewItem> = match &conversation {
            Some(conversation) => claims.map(|message| message.item(event, conversation)).collect(),
            None => Vec::new(),
        };
        let accept = Accept {
            refers_to: event.envelope.artifact_ids().map(str::to_owned).collect(),
            history,
            transcript: conversation.and_then(|conversation| transcript_item(event, conversation)),
            idempotency,
            artifacts: payload.iter().map(|(record, _)| record.clone()).collect(),
            entries,
            state,
            branch: branch.map(ThreadBranch::rows),
            runs,
            event: Arc::clone(event),
        };
        Ok((accept, tasks))
    }

    /// Begins the runs of an event that was committed.
    fn begin_accepted(
        &self,
        event: Arc<Event>,
        event_no: u64,
        transcript_seq: Option<u64>,
        records: Vec<RunRecord>,
        tasks: Vec<PlannedTask>,
    ) -> AcceptedEvent {
        let metrics = &self.shared.metrics;
        metrics.accepted();
        records.iter().for_each(|record| metrics.created(&record.run));
        let event_id = event.event_id;
        let event = StoredEvent { event, event_no, transcript_seq };
        let ids = records.iter().map(|record| record.run.run_id).collect();
        for (record, PlannedTask { terms, runner }) in records.into_iter().zip(tasks) {
            self.deliveries.begin(&record, &terms.deliver);
            if terms.streamed {
                self.runs.watchers.expect(record.run.run_id);
            }
            self.runs.begin(StoredRun::new(record, event.clone(), terms, runner));
        }
        AcceptedEvent { event_id, runs: ids, repeated: false }
    }

    /// The envelope with the records of the artifacts that it names. An unknown artifact is refused, because no reader
    /// could open it later.
    fn with_known_artifacts(&self, mut envelope: Envelope) -> Result<Envelope, HostError> {
        if envelope.artifacts().next().is_none() {
            return Ok(envelope);
        }
        let workspace = envelope.workspace().unwrap_or_default().to_owned();
        let conversation = envelope.conversation.as_ref().and_then(ConversationKey::of);
        for artifact in envelope.artifacts_mut() {
            *artifact = known_artifact(&self.ledger, artifact, &workspace, conversation.as_ref())?;
        }
        Ok(envelope)
    }

    /// The event without what is too large for the log: the whole of its `data` becomes an artifact, `raw_ref`, and
    /// those of its entries stay that are small.
    async fn with_small_payload(&self, mut envelope: Envelope) -> Result<(Envelope, Option<Payload>), HostError> {
        let limit = self.shared.limits().event_inline_bytes;
        let internal = |error: String| HostError::Internal(error);
        let bytes = json_len(&envelope.data);
        if bytes <= limit {
            return Ok((envelope, None));
        }
        if envelope.raw_ref.is_some() {
            return Err(HostError::Invalid(format!(
                "`data` has {bytes} bytes; the limit is {limit} where `raw_ref` names the raw payload: leave one of them out"
            )));
        }
        let whole = serde_json::to_vec(&envelope.data).map_err(|error| internal(error.to_string()))?;
        let mut writer = self.ledger.blob_writer(whole.len() as u64)?;
        let written = tokio::task::spawn_blocking(move || {
            writer.write(&whole)?;
            writer.finish()
        });
        let blob = written.await.map_err(|error| internal(error.to_string()))??;
        let conversation = envelope.conversation.as_ref();
        let workspace = envelope.workspace().unwrap_or_default().to_owned();
        let record = ArtifactRecord {
            artifact_id: new_artifact_id(&workspace),
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type: "application/json".to_owned(),
            name: Some("data.json".to_owned()),
            created_at: time::now(),
            expires_at: None,
            scope: ArtifactScope {
                workspace,
                conversation: conversation.and_then(ConversationKey::of),
                run_id: None,
                binding_id: None,
            },
            source: "event".to_owned(),
        };
        envelope.raw_ref = Some(record.reference());
        envelope.data.retain(|_, value| json_len(value) <= SMALL_ENTRY_BYTES);
        // Many small ones are large as well.
        if json_len(&envelope.data) > limit {
            envelope.data.clear();
        }
        Ok((envelope, Some((record, blob))))
    }

    /// The run that a plan makes of an event, with its terms.
    pub(crate) fn plan(&self, plan: &RunPlan, event: &Event) -> Result<PlannedRun, HostError> {
        let setup = self.shared.setup();
        let binding = &plan.binding;
        let runner = plan.serving.clone().or_else(|| self.shared.serving(&binding.config.runner));
        let installed = || self.shared.plugins.runners().iter().map(|runner| runner.manifest.id.clone()).collect();
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
        terms.charged_key.clone_from(&plan.charged_key);
        terms.streamed = plan.streamed;
        let version = runner.as_ref().map(|runner| runner.manifest().version.to_string()).unwrap_or_default();
        let mut run = new_run(event, &binding.config.id, &binding.config.runner, version, &terms);
        run.metadata.extend(plan.metadata.clone());
        PlannedRun::new(run, terms, runner.and_then(BoundRunner::guest))
    }

    /// Fails if the queue of a run is full.
    pub(crate) fn has_room(&self, planned: &PlannedRun) -> Result<(), HostError> {
        let Some(queue) = planned.run.queue.as_ref().filter(|_| planned.run.execution == Execution::External) else {
            return Ok(());
        };
        let waiting = self.runs.waiting.depth(&queue.name);
        if waiting >= self.shared.limits().queue_length {
            return Err(HostError::QueueFull { waiting });
        }
        Ok(())
    }
}

/// Runners that may be among the plugins which are still being compiled at the start of the host.
impl IntakeOfCell {
    /// The end of the wait of a request that begins now (`limits.runner_wait_ms`).
    pub(crate) fn runner_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.shared.limits().runner_wait_ms)
    }

    /// Waits for a runner that may still be compiled.
    pub(crate) async fn await_runner(&self, runner: &RunnerId, deadline: Instant) -> Result<(), HostError> {
        if self.check_compiled(runner).is_err() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.shared.plugins.settled_or(|| self.shared.serving(runner).is_some(), left).await;
        }
        self.check_compiled(runner)
    }

    /// Fails if a runner is not there and may still be compiled.
    pub(crate) fn check_compiled(&self, runner: &RunnerId) -> Result<(), HostError> {
        if self.shared.plugins.is_settled() || self.shared.serving(runner).is_some() {
            return Ok(());
        }
        Err(HostError::RunnerCompiling(runner.clone()))
    }
}

impl PlannedRun {
    pub(crate) fn new(run: Run, mut terms: Terms, runner: Option<Runner>) -> Result<Self, HostError> {
        let stored_terms = terms.stored().map_err(|error| HostError::Internal(error.to_string()))?;
        Ok(Self { run, terms: Arc::new(terms), stored_terms, runner })
    }

    /// The run as the ledger takes it, and what its task needs.
    pub(crate) fn split(self) -> (NewRun, PlannedTask) {
        let Self { run, terms, stored_terms, runner } = self;
        (NewRun { run, terms: stored_terms, events: Vec::new() }, PlannedTask { terms, runner })
    }
}

/// A run that answers an event, as it is before anything has happened to it.
pub(crate) fn new_run(event: &Event, binding_id: &str, runner_id: &RunnerId, runner_version: String, terms: &Terms) -> Run {
    let mut metadata = serde_json::Map::new();
    spans::note(&mut metadata);
    let [conversation_id, thread_id, workspace_id, bot_id] = conversation_ids(event.envelope.conversation.as_ref());
    Run {
        run_id: RunId::of_workspace(workspace_id.as_deref()),
        parent_run_id: None,
        retry_of: None,
        execution: terms.execution,
        queue: place(terms),
        event_id: event.event_id,
        agent_id: binding_id.to_owned(),
        binding_id: binding_id.to_owned(),
        runner_id: runner_id.clone(),
        runner_version,
        conversation_id,
        thread_id,
        workspace_id,
        bot_id,
        turn: None,
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
        record_digest: None,
        usage: None,
        usage_by_model: BTreeMap::new(),
        claimed_usage: None,
        children_usage: None,
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

/// The transcript item of an event that says something in its conversation.
fn transcript_item(event: &Event, conversation: ConversationKey) -> Option<NewItem> {
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
        role: "user".into(),
        item_type: "message".into(),
        content,
        artifacts: input.attachments.clone(),
        created_at: event.received_at,
    })
}
