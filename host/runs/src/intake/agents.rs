//! Agents: what a client talks to by name, thread by thread. An agent is a binding, a thread a conversation.
//!
//! The module owns the list of agents, a run of one agent for one message whatever the bindings match, the active run of a
//! thread, and its cancellation. Protocols of clients are built on it elsewhere.

use std::sync::Arc;

use agent_host_config::{BusyThread, ClientInstructions};
use agent_host_facts::record::{BranchReason, BranchStart};
use agent_host_ledger::{Branch, Idempotency, Quota, StateWrite, state_tag};
use agent_host_protocol::{
    EventId, Limits, Run, RunId, RunnerId,
    encoded::json_len,
    event::Envelope,
    grant::ConversationKey,
    limits::is_shallow,
    manifest::{Capabilities, Permissions, StateScope},
    tool::ClientTool,
};
use serde_json::{Map, Value, value::to_raw_value};

use super::{
    Intake,
    accept::{AcceptedEvent, NewEntries, PlannedRun, RunPlan},
    create::check_metadata,
};
use crate::{
    policy::binding::{Binding, BoundRunner},
    record::{HostError, WaitKey, claimed::ClaimedMessage, facts::Fact, results::check_key},
};

/// An agent: a binding that has a runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// Id of the binding.
    pub id: String,
    /// Id of the runner.
    pub runner_id: RunnerId,
    /// Name for people: the label of the binding, or that of the runner.
    pub name: String,
    /// Description, from the manifest of the runner.
    pub description: Option<String>,
    /// Capabilities of the runner.
    pub capabilities: Capabilities,
    /// Permissions: manifest ∩ binding.
    pub permissions: Permissions,
    /// True if runs of the agent accept tools of the client.
    pub client_tools: bool,
    /// The treatment of instructions of the client.
    pub client_instructions: ClientInstructions,
}

/// A run of an agent that is to begin.
#[derive(Debug, Clone)]
pub struct AgentRun {
    /// The agent.
    pub binding_id: String,
    /// The event that the run answers, with the thread as `conversation`.
    pub envelope: Envelope,
    /// Tools that the client brings along.
    pub client_tools: Vec<ClientTool>,
    /// Values of state of scope `conversation` that the client sets, written in the commit that creates the run. The host
    /// ignores them if the run is not granted that scope.
    pub state: Map<String, Value>,
    /// History of the thread that the client claims, oldest first, and that the host has not seen.
    pub history: Vec<ClaimedMessage>,
    /// True if the client reads the run as a stream, and has no other way to stop it than to leave.
    pub streamed: bool,
    /// The treatment of the run while another run of the thread is active, decided in the moment of its creation.
    pub busy: BusyThread,
    /// A run of the thread that the new one replaces, whatever `busy` says: it waits for a client that has gone on.
    pub replaces: Option<RunId>,
    /// The branch of the thread that begins with the run.
    pub branch: Option<ThreadBranch>,
    /// More of the run, kept with it.
    pub metadata: Map<String, Value>,
    /// The API key whose budget pays for the run ([`crate::Host::charged_key`]).
    pub charged_key: Option<String>,
}

impl AgentRun {
    /// A run for a message of a client that says nothing more; it waits for the runs of its thread.
    #[must_use]
    pub fn new(binding_id: impl Into<String>, envelope: Envelope) -> Self {
        Self {
            binding_id: binding_id.into(),
            envelope,
            client_tools: Vec::new(),
            state: Map::new(),
            history: Vec::new(),
            streamed: false,
            busy: BusyThread::Queue,
            replaces: None,
            branch: None,
            metadata: Map::new(),
            charged_key: None,
        }
    }
}

/// A branch of a thread: a message that a client asks again or has changed takes the place of what followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadBranch {
    /// The reason of the branch.
    pub reason: BranchReason,
    /// The id that the client gave the message.
    pub message_id: String,
    /// The first event that leaves the thread. A run is refused with [`HostError::Conflict`] if the event has left it before.
    pub from: EventId,
    /// The first event that stays, where the client sent messages before the one that the run answers.
    pub until: Option<EventId>,
}

impl ThreadBranch {
    /// The branch as the ledger takes it.
    pub(super) const fn rows(&self) -> Branch {
        Branch { from: self.from, until: self.until }
    }

    /// The fact in the record of the run.
    pub(super) fn fact(&self) -> Fact {
        let Self { reason, message_id, from, .. } = self;
        Fact::ConversationBranched(BranchStart {
            from_event_id: from.to_string(),
            message_id: message_id.clone(),
            reason: *reason,
        })
    }
}

impl Intake {
    /// The agents: bindings that have a runner now, in matching order. [`crate::Host::bindings`] has the reasons why other
    /// bindings have none.
    #[must_use]
    pub(crate) fn agents(&self) -> Vec<Agent> {
        self.shared.setup().bindings.iter().filter_map(|binding| self.agent_of(binding)).collect()
    }

    /// The agent with this id.
    pub(crate) fn agent(&self, id: &str) -> Result<Agent, HostError> {
        let (binding, _) = self.agent_binding(id)?;
        self.agent_of(&binding).ok_or_else(|| self.no_agent(id))
    }

    /// Waits for the runner of an agent as a request for it does. [`Intake::agent`] says whether it has come.
    pub(crate) async fn await_agent(&self, id: &str) {
        let runner = self.shared.setup().binding(id).map(|binding| binding.config.runner.clone());
        if let Some(runner) = &runner {
            // The request that follows says whether it has come.
            let _ = self.await_runner(runner, self.runner_deadline()).await;
        }
    }

    fn agent_of(&self, binding: &Binding) -> Option<Agent> {
        let serving = self.shared.serving(&binding.config.runner)?;
        let manifest = serving.manifest();
        let permissions = binding.permissions(manifest);
        let labels = [binding.config.label.as_deref().unwrap_or_default(), manifest.label.fallback(), &binding.config.id];
        let described = manifest.description.as_ref().map(|text| text.fallback().to_owned());
        Some(Agent {
            id: binding.config.id.clone(),
            runner_id: manifest.id.clone(),
            name: labels.into_iter().find(|label| !label.is_empty()).unwrap_or_default().to_owned(),
            description: described.filter(|text| !text.is_empty()),
            capabilities: manifest.capabilities.clone(),
            client_tools: binding.takes_client_tools(&permissions),
            client_instructions: binding.config.client_instructions,
            permissions,
        })
    }

    fn agent_binding(&self, id: &str) -> Result<(std::sync::Arc<Binding>, BoundRunner), HostError> {
        let setup = self.shared.setup();
        let binding = setup.binding(id).cloned();
        let found = binding.and_then(|binding| self.shared.serving(&binding.config.runner).map(|serving| (binding, serving)));
        found.ok_or_else(|| self.no_agent(id))
    }

    fn no_agent(&self, id: &str) -> HostError {
        let setup = self.shared.setup();
        if let Some(binding) = setup.binding(id) {
            if let Err(compiling) = self.check_compiled(&binding.config.runner) {
                return compiling;
            }
            let problem = binding.report(None).problem.unwrap_or_default();
            return HostError::NotFound(format!("there is no agent {id:?} now: {problem}"));
        }
        let known: Vec<_> = self.agents().into_iter().map(|agent| format!("{:?}", agent.id)).collect();
        HostError::NotFound(match known.as_slice() {
            [] => format!("there is no agent {id:?}, nor any other: no binding has a runner"),
            known => format!("there is no agent {id:?}: there are {}", known.join(", ")),
        })
    }

    /// Creates a run of an agent for a message of a client, whatever the `match` of its binding says, with entries in the
    /// same commit. The commit is durable when this function returns.
    pub(crate) async fn begin_agent_run(
        &self,
        run: AgentRun,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        let AgentRun {
            binding_id,
            envelope,
            client_tools,
            state,
            history,
            streamed,
            busy,
            replaces,
            branch,
            metadata,
            charged_key,
        } = run;
        let (binding, serving) = self.agent_binding(&binding_id)?;
        if let Some(problem) = binding.report(Some(&serving)).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        check_metadata(&metadata)?;
        check_state(&state, &self.shared.limits())?;
        let plan = RunPlan {
            serving: Some(serving),
            client_tools,
            metadata,
            state,
            history,
            streamed,
            busy,
            replaces,
            branch,
            charged_key,
            ..RunPlan::of(binding)
        };
        self.accept_with_plans(envelope, idempotency, vec![plan], entries).await
    }

    /// Takes what somebody says in a conversation without having anybody answer it: it joins the transcript.
    pub(crate) async fn note_message(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        if envelope.conversation.as_ref().and_then(ConversationKey::of).is_none() {
            return Err(HostError::Invalid("a message without a `conversation` joins no transcript".to_owned()));
        }
        let input = &envelope.input;
        if input.contents.is_empty() && input.text.is_none() && input.attachments.is_empty() {
            return Err(HostError::Invalid("a message has `text`, `contents` or `attachments`".to_owned()));
        }
        self.accept_with_plans(envelope, idempotency, Vec::new(), entries).await
    }

    /// The runs of a conversation that have not ended: the one that has its turn, parked or not, and then those that wait
    /// behind it, in order.
    pub(crate) fn active_runs(&self, key: &ConversationKey) -> Result<Vec<Arc<Run>>, HostError> {
        let mut numbers = self.runs.lines.members(key);
        if numbers.is_empty() && self.ledger.parked_count() > 0 {
            numbers = self.ledger.parked_on(&WaitKey::conversation(key).to_string(), 1)?;
        }
        let mut runs = Vec::with_capacity(numbers.len());
        for run_no in numbers {
            let record = self.ledger.run_by_no(run_no)?;
            runs.extend(record.map(|record| record.run).filter(|run| !run.status.is_terminal()));
        }
        Ok(runs)
    }

    /// The writes of state that come with a run, where it is granted the state of its conversation. Values that are as
    /// they are stay as they are.
    pub(crate) fn state_of(&self, plan: &RunPlan, planned: &PlannedRun) -> Result<Vec<StateWrite>, HostError> {
        if plan.state.is_empty() {
            return Ok(Vec::new());
        }
        let Some(scope_key) = planned.terms.grant.state_key(StateScope::Conversation) else { return Ok(Vec::new()) };
        let limits = self.shared.limits();
        let mut writes = Vec::new();
        for (key, value) in &plan.state {
            let value = to_raw_value(value).map_err(|error| HostError::Internal(error.to_string()))?;
            let is_there = self.ledger.state_get_tagged(&scope_key, key)?.is_some_and(|(_, tag)| tag == state_tag(value.get()));
            if !is_there {
                writes.push(StateWrite {
                    scope_key: scope_key.clone(),
                    key: key.clone(),
                    value: Some(value),
                    expected: None,
                    quota: Some(Quota { max_bytes: limits.state_scope_bytes, max_keys: limits.state_scope_keys }),
                });
            }
        }
        Ok(writes)
    }
}

/// Checks values of state.
fn check_state(state: &Map<String, Value>, limits: &Limits) -> Result<(), HostError> {
    let mut all = 0;
    for (key, value) in state {
        check_key("a key of `state`", key, limits).map_err(|error| HostError::Invalid(error.message))?;
        let bytes = json_len(value);
        if bytes > limits.state_value_bytes || !is_shallow(value) {
            return Err(HostError::Invalid(format!(
                "`state` has {bytes} bytes at {key:?}; a value has at most {}, and nests at most 64 levels",
                limits.state_value_bytes
            )));
        }
        all += (key.len() + bytes) as u64;
    }
    if all > limits.state_scope_bytes {
        return Err(HostError::Invalid(format!("`state` has {all} bytes; the limit is {}", limits.state_scope_bytes)));
    }
    Ok(())
}
