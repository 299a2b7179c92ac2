//! Runs that a platform makes by name: for a binding or a runner, for a new event or one that is there, now, in the queue,
//! or for an executor; and other attempts at runs that have ended.

use std::{collections::BTreeMap, sync::Arc};

use agent_host_config::{BindingConfig, BusyThread, Durability, ResourcePolicy, StatePolicy};
use agent_host_ledger::{AddRun, EntryWrite, Idempotency};
use agent_host_protocol::{
    EventId, Principal, Run, RunId, RunnerId, Scope, Timestamp,
    context::{Actor, Conversation, Delivery, Input},
    encoded::json_len,
    event::Envelope,
    time,
    tool::ClientTool,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Intake,
    accept::{PlannedRun, RunPlan, new_run, no_entries},
    delivery,
};
use crate::{
    execution::Resumption,
    lifecycle::{
        StoredRun,
        dead_letters::{DEAD, DeadLetter, dead_key},
    },
    policy::{
        binding::{Binding, BoundRunner, narrow},
        setup::Setup,
    },
    record::{HostError, is_forgotten, terms::Terms},
};

/// The binding id of runs that were created for a runner by name.
pub const AD_HOC: &str = "ad-hoc";
/// Prefix of the entries that map an idempotency key to its run.
pub(crate) const CREATED: &str = "created/";
/// For so long.
const REMEMBERED_MS: u64 = 24 * 60 * 60 * 1000;
/// Largest metadata of a client, in bytes of JSON.
const MAX_METADATA_BYTES: usize = 16 * 1024;

/// A run to be made.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// The binding of the run. Either the binding or `runner_id`.
    #[serde(default)]
    pub binding_id: Option<String>,
    /// The runner, without a binding. The scope `admin` is needed: no binding says what the run may use.
    #[serde(default)]
    pub runner_id: Option<RunnerId>,
    /// The event that it answers, a new one. This, or `event_id`, or `input`.
    #[serde(default)]
    pub event: Option<Envelope>,
    /// An event that is there.
    #[serde(default)]
    pub event_id: Option<EventId>,
    /// The input of a new event of type `message.received`.
    #[serde(default)]
    pub input: Option<Input>,
    /// Conversation of the run.
    #[serde(default)]
    pub conversation: Option<Conversation>,
    /// Sender of the input.
    #[serde(default)]
    pub actor: Option<Actor>,
    /// Replaces keys of the configuration of the binding.
    #[serde(default)]
    pub config: Option<Map<String, Value>>,
    /// Restriction of the resources that the binding allows.
    #[serde(default)]
    pub resources: Option<ResourcePolicy>,
    /// Tools that the client brings along: the run asks for what they answer with actions of kind `client_tool`.
    #[serde(default)]
    pub client_tools: Vec<ClientTool>,
    /// Scopes of state, likewise.
    #[serde(default)]
    pub state: Option<StatePolicy>,
    /// Capabilities of the client that shows the answer.
    #[serde(default)]
    pub delivery: Option<Delivery>,
    /// Webhooks that receive the results: some of those that the binding names. A run for a `runner_id` may have any.
    #[serde(default)]
    pub deliver: Option<Vec<String>>,
    /// Time limit of the run, in ms.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Largest number of attempts.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// Behaviour if the host stops while the run is active.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// Mode of execution.
    #[serde(default)]
    pub start: Option<StartMode>,
    /// Place in a queue.
    #[serde(default)]
    pub queue: Option<QueueRequest>,
    /// More of it, kept with the run.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

/// The mode of execution of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartMode {
    /// The host, as soon as there is a place for it: the bounds of its binding do not count.
    Now,
    /// The host, when its binding lets one more run begin.
    Queue,
    /// An executor that claims it.
    External,
}

/// A place in a queue. Absent fields default to the values of the binding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueRequest {
    /// The queue.
    pub name: Option<String>,
    /// Higher ones first.
    pub priority: Option<i32>,
    /// Labels that an executor must have, besides those of the binding.
    pub labels: BTreeMap<String, String>,
}

/// A run that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct CreatedRun {
    /// The run.
    pub run: Arc<Run>,
    /// True if the run was created before, under the same idempotency key.
    pub repeated: bool,
}

/// The run that was created under an idempotency key.
#[derive(Serialize, Deserialize)]
struct CreatedRunEntry {
    run_id: RunId,
    body_hash: [u8; 32],
    at: Timestamp,
}

fn invalid(message: impl Into<String>) -> HostError {
    HostError::Invalid(message.into())
}

impl Intake {
    /// Creates a run. The run is durable when this function returns.
    pub(crate) async fn create_run(
        &self,
        mut request: CreateRun,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        let runner = match (&request.binding_id, &request.runner_id) {
            (Some(id), None) => self.shared.setup().binding(id).map(|binding| binding.config.runner.clone()),
            (_, runner_id) => runner_id.clone().filter(|_| caller.may(Scope::Admin)),
        };
        if let Some(runner) = &runner {
            self.await_runner(runner, self.runner_deadline()).await?;
        }
        let plan = self.planned_by(&mut request, caller)?;
        let inputs = [request.event.is_some(), request.event_id.is_some(), request.input.is_some()];
        if inputs.into_iter().filter(|is_there| *is_there).count() != 1 {
            return Err(invalid("give one of `event`, `event_id` and `input`, which the run answers"));
        }
        if request.input.is_none() && (request.conversation.is_some() || request.actor.is_some()) {
            return Err(invalid("`conversation` and `actor` go with `input`; an event has its own"));
        }
        if let Some(event_id) = request.event_id {
            return self.create_for(event_id, plan, caller, idempotency).await;
        }
        let mut envelope = match (request.event, request.input) {
            (Some(event), _) => event,
            (None, input) => Envelope {
                input: input.unwrap_or_default(),
                conversation: request.conversation,
                actor: request.actor,
                ..Envelope::message(String::new(), "api")
            },
        };
        in_workspace(&mut envelope, caller)?;
        let accepted = self.accept_with_plans(envelope, idempotency, vec![plan], &no_entries).await?;
        let run_id = accepted
            .runs
            .first()
            .ok_or_else(|| invalid("this idempotency key was used for an event without runs: use a new key for a new request"))?;
        Ok(CreatedRun { run: self.runs.record(*run_id)?.run, repeated: accepted.repeated })
    }

    /// The binding of a request, and what the request changes of it.
    fn planned_by(&self, request: &mut CreateRun, caller: &Principal) -> Result<RunPlan, HostError> {
        let setup = self.shared.setup();
        let (mut config, ad_hoc) = match (&request.binding_id, &request.runner_id) {
            (Some(id), None) => {
                let binding = setup.binding(id);
                let binding = binding.ok_or_else(|| HostError::NotFound(format!("there is no binding {id:?}")))?;
                (binding.config.clone(), false)
            }
            (None, Some(id)) => {
                if !caller.may(Scope::Admin) {
                    return Err(HostError::Forbidden(
                        "`runner_id` makes a run that no binding bounds, which needs the scope `admin`: name a `binding_id`"
                            .to_owned(),
                    ));
                }
                (BindingConfig { id: AD_HOC.to_owned(), ..BindingConfig::for_runner(id.clone()) }, true)
            }
            _ => return Err(invalid("give one of `binding_id` and `runner_id`")),
        };
        let Some(mut serving) = self.shared.serving(&config.runner) else {
            let known = self.shared.runner_ids();
            return Err(HostError::RunnerNotFound { id: config.runner, hint: format!("There are: {}", known.join(", ")) });
        };
        serving = change_config(&mut config, request, serving, ad_hoc, &setup)?;
        let mut narrowed = None;
        if request.resources.is_some() || request.state.is_some() {
            let resources = request.resources.take().unwrap_or_default().or(&config.resources);
            let state = request.state.take().or_else(|| config.state.clone());
            if ad_hoc {
                (config.resources, config.state) = (resources, state);
            } else {
                narrowed = Some(BindingConfig { resources, state, ..config.clone() });
            }
        }
        let metadata = std::mem::take(&mut request.metadata);
        check_metadata(&metadata)?;
        let checked = |config| Binding::new(config).map(Arc::new).map_err(invalid);
        let binding = checked(config)?;
        if let Some(problem) = binding.report(Some(&serving)).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        let narrowed = narrowed.map(checked).transpose()?;
        let (delivery, client_tools) = (request.delivery.take(), std::mem::take(&mut request.client_tools));
        Ok(RunPlan {
            binding,
            narrowed,
            serving: Some(serving),
            delivery,
            metadata,
            client_tools,
            state: Map::new(),
            history: Vec::new(),
            ad_hoc,
            streamed: false,
            busy: BusyThread::Queue,
            replaces: None,
            branch: None,
            charged_key: self.shared.keys.charged(caller)?,
        })
    }

    /// Makes a run for an event that is there.
    async fn create_for(
        &self,
        event_id: EventId,
        plan: RunPlan,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        let event = self.ledger.event(event_id)?.filter(|record| {
            let conversation = record.event.envelope.conversation.as_ref();
            caller.sees(conversation.and_then(|conversation| conversation.workspace_id.as_deref()))
        });
        let event = event.ok_or_else(|| HostError::NotFound(format!("there is no event {event_id}")))?;
        let planned = self.plan(&plan, &event.event)?;
        self.check_client_tools(&plan, &planned).await?;
        self.add(planned, Vec::new(), caller, idempotency).await
    }

    /// Makes another attempt at a run that has ended: for the same event, on the terms that it had, and no more than its
    /// binding allows now.
    pub(crate) async fn retry_run(
        &self,
        id: RunId,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        let record = self.runs.record(id)?;
        if !record.run.status.is_terminal() {
            return Err(HostError::Conflict(format!("run {id} has not ended ({}): cancel it first", record.run.status)));
        }
        // A dead letter that is tried again is none any more.
        let entries = vec![EntryWrite::delete(dead_key(id))];
        self.await_runner(&record.run.runner_id, self.runner_deadline()).await?;
        let planned = self.plan_retry(&record.run, self.shared.keys.charged(caller)?)?;
        self.add(planned, entries, caller, idempotency).await
    }

    fn plan_retry(&self, run: &Run, charged_key: Option<String>) -> Result<PlannedRun, HostError> {
        let refusal = |what: &str| HostError::Conflict(format!("run {} cannot be tried again: {what}", run.run_id));
        if is_forgotten(run) {
            return Err(refusal("its event was deleted with its conversation"));
        }
        let terms = self.ledger.terms(run.run_id)?.ok_or_else(|| refusal("its terms are not there"))?;
        let mut terms: Terms = serde_json::from_str(terms.get()).map_err(|error| HostError::Internal(error.to_string()))?;
        let event = self.ledger.event(run.event_id)?.ok_or_else(|| refusal("its event is not there"))?.event;
        if run.parent_run_id.is_some() {
            return Err(refusal("it is the child of another run: try that again"));
        }
        let mut serving = self.shared.serving(&run.runner_id);
        if terms.execution == agent_host_protocol::run::Execution::External {
            serving = serving.map(BoundRunner::external);
        }
        if !terms.ad_hoc {
            let setup = self.shared.setup();
            let binding = setup.binding(&run.binding_id);
            let binding = binding.ok_or_else(|| refusal(&format!("its binding `{}` is gone", run.binding_id)))?;
            let client_tools = terms.grant.client_tools.clone();
            let plan = RunPlan { serving: serving.clone(), client_tools, ..RunPlan::of(Arc::clone(binding)) };
            let now = self.plan(&plan, &event)?.terms;
            narrow(&mut terms.grant, &now.grant);
            terms.grant.component.clone_from(&now.grant.component);
            terms.refusal.clone_from(&now.refusal);
        } else if serving.is_none() {
            return Err(refusal(&format!("no plugin has {} any longer", run.runner_id)));
        }
        terms.charged_key = charged_key;
        let version = serving.as_ref().map(|serving| serving.manifest().version.to_string()).unwrap_or_default();
        let new = new_run(&event, &run.binding_id, &run.runner_id, version, &terms);
        let mut planned = PlannedRun::new(new, terms, serving.and_then(BoundRunner::guest))?;
        planned.run.created_at = time::now();
        planned.run.updated_at = planned.run.created_at;
        planned.run.retry_of = Some(run.run_id);
        for (name, value) in &run.metadata {
            planned.run.metadata.entry(name).or_insert_with(|| value.clone());
        }
        if let (Some(queue), Some(before)) = (&mut planned.run.queue, &run.queue) {
            queue.name.clone_from(&before.name);
            queue.priority = before.priority;
            queue.labels.clone_from(&before.labels);
        }
        Ok(planned)
    }

    /// Makes a planned run for an event that is there, and lets it live.
    async fn add(
        &self,
        planned: PlannedRun,
        mut entries: Vec<EntryWrite>,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        self.runs.check_running()?;
        self.has_room(&planned)?;
        // Two requests with the same key come one after the other.
        let _creating = self.creating.lock().await;
        if let Some(Idempotency { key, body_hash }) = idempotency {
            let key = format!("{CREATED}{}/{key}", caller.workspace.as_deref().unwrap_or_default());
            let entry = self.ledger.entry(&key)?.and_then(|entry| serde_json::from_str::<CreatedRunEntry>(entry.get()).ok());
            if let Some(entry) = entry.filter(|entry| time::now().saturating_sub(entry.at) < REMEMBERED_MS) {
                if entry.body_hash != body_hash {
                    return Err(HostError::IdempotencyConflict);
                }
                return Ok(CreatedRun { run: self.runs.record(entry.run_id)?.run, repeated: true });
            }
            entries.push(EntryWrite::put(key, &CreatedRunEntry { run_id: planned.run.run_id, body_hash, at: time::now() })?);
        }
        let PlannedRun { run, terms, stored_terms, runner } = planned;
        entries.extend(delivery::entries(&run, &terms)?);
        let add = AddRun { run, terms: stored_terms, context: None, events: Vec::new(), journal: None, entries };
        let record = self.ledger.add_run(add).await?;
        self.shared.metrics.created(&record.run);
        let run = record.run.clone();
        self.deliveries.begin(&record, &terms.deliver);
        let stored = self.runs.stored(record, Resumption::New)?;
        self.runs.begin(StoredRun { runner: runner.or(stored.runner), terms, ..stored });
        Ok(CreatedRun { run, repeated: false })
    }

    /// Runs that were given up, oldest first, after `after`: those that the caller sees.
    pub(crate) fn dead_letters(
        &self,
        caller: &Principal,
        queue: Option<&str>,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, HostError> {
        /// Letters that are read at one time.
        const PIECE: usize = 256;
        let mut after = after.map(dead_key);
        let mut found = Vec::new();
        while found.len() < limit {
            let piece = self.ledger.entries(DEAD, after.as_deref(), PIECE)?;
            let Some((last, _)) = piece.last() else { break };
            after = Some(last.clone());
            let letters = piece.iter().filter_map(|(_, entry)| serde_json::from_str::<DeadLetter>(entry.get()).ok());
            let is_visible = |letter: &DeadLetter| {
                caller.sees(letter.workspace_id.as_deref()) && queue.is_none_or(|queue| queue == letter.queue)
            };
            found.extend(letters.filter(is_visible).take(limit - found.len()));
        }
        Ok(found)
    }

    /// The dead letter of a run.
    pub(crate) fn dead_letter(&self, id: RunId) -> Result<DeadLetter, HostError> {
        let letter = self.ledger.entry(&dead_key(id))?;
        let letter = letter.and_then(|letter| serde_json::from_str(letter.get()).ok());
        letter.ok_or_else(|| HostError::NotFound(format!("run {id} is no dead letter")))
    }

    /// Puts a run that was given up back into its queue, as another attempt.
    pub(crate) async fn put_back(
        &self,
        id: RunId,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        if idempotency.is_none() {
            self.dead_letter(id)?;
        }
        self.retry_run(id, caller, idempotency).await
    }

    /// Forgets idempotency keys whose time is over.
    pub(crate) async fn forget_created(&self) -> Result<(), HostError> {
        let ledger = &self.ledger;
        let mut old = Vec::new();
        for (key, entry) in ledger.entries(CREATED, None, usize::MAX)? {
            let at = serde_json::from_str::<CreatedRunEntry>(entry.get()).map_or(0, |entry| entry.at);
            if time::now().saturating_sub(at) >= REMEMBERED_MS {
                old.push(EntryWrite::delete(key));
            }
        }
        Ok(ledger.put_entries(&old).await?)
    }
}

/// Changes the configuration of a binding as a request wants; gives what executes the run.
fn change_config(
    config: &mut BindingConfig,
    request: &mut CreateRun,
    mut serving: BoundRunner,
    ad_hoc: bool,
    setup: &Setup,
) -> Result<BoundRunner, HostError> {
    config.config.extend(request.config.take().unwrap_or_default());
    if let Some(deliver) = request.deliver.take() {
        let allowed =
            |name: &str| if ad_hoc { setup.webhooks.get(name).is_some() } else { config.deliver.iter().any(|it| it == name) };
        if let Some(name) = deliver.iter().find(|name| !allowed(name)) {
            return Err(invalid(format!("`deliver`: the binding of the run names no webhook {name:?}")));
        }
        config.deliver = deliver.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    }
    config.deadline_ms = request.deadline_ms.or(config.deadline_ms);
    config.max_attempts = request.max_attempts.unwrap_or(config.max_attempts);
    config.durability = request.durability.unwrap_or(config.durability);
    match (request.start, &serving) {
        (Some(StartMode::Now | StartMode::Queue), BoundRunner::External { .. }) => {
            return Err(invalid(format!(
                "{} is executed by executors: leave `start` out, or set it to `external`",
                config.runner
            )));
        }
        (Some(StartMode::Now), _) => config.queue = None,
        (Some(StartMode::External), _) => serving = serving.external(),
        _ => {}
    }
    if let Some(queue) = request.queue.take() {
        if request.start == Some(StartMode::Now) {
            return Err(invalid("a run that starts `now` has no place in a queue: leave `queue` out"));
        }
        let mut policy = config.queue.take().unwrap_or_default();
        policy.name = queue.name.unwrap_or(policy.name);
        policy.priority = queue.priority.unwrap_or(policy.priority);
        policy.labels.extend(queue.labels);
        config.queue = Some(policy);
    }
    Ok(serving)
}

/// Checks the metadata of a client.
pub(crate) fn check_metadata(metadata: &Map<String, Value>) -> Result<(), HostError> {
    let bytes = json_len(metadata);
    if bytes > MAX_METADATA_BYTES || !metadata.values().all(agent_host_protocol::limits::is_shallow) {
        return Err(invalid(format!("`metadata` has at most {MAX_METADATA_BYTES} bytes, and nests at most 64 levels")));
    }
    Ok(())
}

/// Puts an event into the workspace of its sender.
///
/// # Errors
/// Fails if the envelope names another workspace.
pub fn in_workspace(envelope: &mut Envelope, caller: &Principal) -> Result<(), HostError> {
    let Some(workspace) = &caller.workspace else { return Ok(()) };
    let conversation = envelope.conversation.get_or_insert_default();
    match &conversation.workspace_id {
        None => conversation.workspace_id = Some(workspace.clone()),
        Some(named) if named == workspace => {}
        Some(_) => {
            return Err(HostError::Forbidden(format!(
                "`conversation.workspace_id` is another than `{workspace}`, which is that of your key: leave it out"
            )));
        }
    }
    Ok(())
}
