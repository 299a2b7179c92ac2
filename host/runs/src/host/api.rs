//! Events, runs, actions, claims and deliveries: the facade delegates each to the room that owns it.

use std::time::Duration;

use agent_host_config::{BindingConfig, BusyThread};
use agent_host_ledger::{Forgotten, Idempotency};
use agent_host_protocol::{
    Page, Principal, Run, RunEvent, RunId, SentResult, event::Envelope, grant::ConversationKey, run::Terminal,
};
use futures_util::Stream;
use serde_json::value::RawValue;

use super::{
    Host, follow,
    recording::{Recording, journaled_calls},
};
use crate::{
    calls::remote::Calls,
    intake::{
        accept::{AcceptedEvent, NewEntries, no_entries},
        agents::{Agent, AgentRun},
        create::{CreateRun, CreatedRun},
        delivery::{Delivery, DeliveryFilter},
        fork::Fork,
        hooks::{HookOutcome, WebhookSourceReport},
        pipeline::Adapted,
        scheduler::ScheduleReport,
    },
    lifecycle::{
        claims::{Appended, ClaimRequest, ClaimedRun},
        dead_letters::DeadLetter,
        executors::{Executor, ExecutorNews, Registration},
    },
    policy::sources::{HookError, HookRequest},
    record::{
        HostError,
        action::{Action, Response},
        journal::timeline::JournaledCall,
    },
};

impl Host {
    /// Waits until a run has ended, at most `timeout`; gives its record as it is then.
    ///
    /// # Errors
    /// When there is no such run, or its end could not be written.
    pub async fn wait(&self, id: RunId, timeout: Duration) -> Result<Run, HostError> {
        self.0.cell.runs.wait(id, timeout).await
    }

    /// Asks for the end of a run. When it returns, that is on disk, and the guest has been told.
    ///
    /// # Errors
    /// When there is no such run, or it has ended.
    pub async fn cancel(&self, id: RunId, reason: String) -> Result<Run, HostError> {
        self.0.cell.runs.cancel(id, reason).await
    }

    /// Accepts an event. When it returns, the event and its runs are on disk; no binding that matches means an
    /// event without runs.
    ///
    /// # Errors
    /// When the event is malformed, repeats a key with another body, or cannot be taken now. Then nothing was
    /// written.
    pub async fn accept(&self, envelope: Envelope, idempotency: Option<Idempotency>) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.accept(envelope, idempotency, &no_entries).await
    }

    /// Accepts an event for one runner, whatever the configuration binds.
    ///
    /// # Errors
    /// As [`Host::accept`]; also when no plugin holds the runner, or the configuration does not fit it.
    pub async fn accept_for(&self, binding: BindingConfig, envelope: Envelope) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.accept_for(binding, envelope).await
    }

    /// The agents of clients: bindings that have a runner now, in the order of their configuration. [`Host::bindings`] says
    /// why another has none.
    #[must_use]
    pub fn agents(&self) -> Vec<Agent> {
        self.0.cell.intake.agents()
    }

    /// The agent with this id.
    ///
    /// # Errors
    /// When no binding has this id, or it has no runner.
    pub fn agent(&self, id: &str) -> Result<Agent, HostError> {
        self.0.cell.intake.agent(id)
    }

    /// Makes a run of an agent for what a client says to it, whatever the `match` of its binding says, with entries in
    /// the same commit. When it returns, all of it is on disk.
    ///
    /// # Errors
    /// When there is no such agent, its binding does not fit its runner, the event, the tools, the state or the metadata
    /// are malformed or too large, or the host cannot take it now. Then nothing was written.
    pub async fn begin_agent_run(
        &self,
        run: AgentRun,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.begin_agent_run(run, idempotency, entries, BusyThread::Queue).await
    }

    /// As [`Host::begin_agent_run`], where no other run of the thread is active: the new run is first, whichever API another
    /// event of the thread comes through in the same moment.
    ///
    /// # Errors
    /// As [`Host::begin_agent_run`]; [`HostError::Busy`] where another run of the thread is active.
    pub async fn begin_agent_run_if_idle(
        &self,
        run: AgentRun,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.begin_agent_run(run, idempotency, entries, BusyThread::Reject).await
    }

    /// Takes what somebody says in a conversation without having anybody answer it: it joins the transcript.
    ///
    /// # Errors
    /// When it belongs to no conversation or says nothing, and as [`Host::accept`].
    pub async fn note_message(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.note_message(envelope, idempotency, entries).await
    }

    /// The runs of a conversation that have not ended: the one that has its turn, parked or not, and then those that wait
    /// behind it, in order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn active_runs(&self, key: &ConversationKey) -> Result<Vec<Run>, HostError> {
        self.0.cell.intake.active_runs(key)
    }

    /// Makes a run. When it returns, the run is on disk.
    ///
    /// # Errors
    /// When the request contradicts itself, names what is not there or more than the caller may, or cannot be taken now.
    pub async fn create_run(
        &self,
        request: CreateRun,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        self.0.cell.intake.create_run(request, caller, idempotency).await
    }

    /// Makes another attempt at a run that has ended: for the same event, on the terms that it had, and no more than its
    /// binding allows now.
    ///
    /// # Errors
    /// When there is no such run, it has not ended, or its binding is gone.
    pub async fn retry_run(
        &self,
        id: RunId,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        self.0.cell.intake.retry_run(id, caller, idempotency).await
    }

    /// Runs that were given up, oldest first, after `after`: those that the caller sees.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn dead_letters(
        &self,
        caller: &Principal,
        queue: Option<&str>,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, HostError> {
        self.0.cell.intake.dead_letters(caller, queue, after, limit)
    }

    /// The dead letter of a run.
    ///
    /// # Errors
    /// When the run is none, or the ledger cannot be read.
    pub fn dead_letter(&self, id: RunId) -> Result<DeadLetter, HostError> {
        self.0.cell.intake.dead_letter(id)
    }

    /// Puts a run that was given up back into its queue, as another attempt.
    ///
    /// # Errors
    /// When it is no dead letter (any more), or cannot be tried again.
    pub async fn put_back(
        &self,
        id: RunId,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedRun, HostError> {
        self.0.cell.intake.put_back(id, caller, idempotency).await
    }

    /// Makes a run that shares the first calls of another, with what that was given but for the changes, and lets it live.
    ///
    /// The runner sees the context of the other run, its ids included, so that it asks for the same; the effects of the
    /// shared calls are not done again. A change that makes the runner ask for something else within them fails the fork
    /// with `replay_diverged`.
    ///
    /// # Errors
    /// When there is no such run, it has no journal or fewer calls, or the ledger does not take it.
    pub async fn fork(&self, id: RunId, fork: Fork) -> Result<Run, HostError> {
        self.0.cell.intake.fork(id, fork).await
    }

    /// Makes a run for a query. When it returns, the event and the run are on disk.
    ///
    /// # Errors
    /// When the query is malformed, no plugin has its runner, or it cannot be taken now; when the caller is not an
    /// administrator, as nothing in the configuration bounds what the run may use.
    pub async fn run_pipeline_query(
        &self,
        adapted: Adapted,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.run_pipeline_query(adapted, caller, idempotency).await
    }

    /// Takes a request to a webhook source. When it returns, the event is on disk.
    ///
    /// # Errors
    /// Why nothing became of it; then nothing was written.
    pub async fn accept_hook(&self, name: &str, request: &HookRequest<'_>) -> Result<HookOutcome, HookError> {
        self.0.cell.intake.accept_hook(name, request).await
    }

    /// Whether a webhook source has this name.
    #[must_use]
    pub fn has_hook(&self, name: &str) -> bool {
        self.0.cell.intake.has_hook(name)
    }

    /// A report of each webhook source.
    #[must_use]
    pub fn webhook_sources(&self) -> Vec<WebhookSourceReport> {
        self.0.cell.intake.webhook_sources()
    }

    /// A report of each schedule.
    ///
    /// # Errors
    /// Where the ledger cannot be read.
    pub fn schedules(&self) -> Result<Vec<ScheduleReport>, HostError> {
        self.0.cell.intake.schedules()
    }

    /// Whose answer the record says it is: an approver's by its id, a key's as `key:NAME`. Ids of approvers have no colon, so
    /// a key is none of those that a rule names, whatever it is called. Where no approvers are configured, nobody on this
    /// machine is asked who they are.
    ///
    /// # Errors
    /// When approvers are configured, and who answers is none of them and has no key.
    pub fn answers_as(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        self.0.cell.runs.answers_as(principal)
    }

    /// Whether an action takes this response now, from `by`. Another answer can come first.
    ///
    /// # Errors
    /// As [`Host::respond`].
    pub fn may_respond(&self, action_id: &str, response: &Response, by: Option<&str>) -> Result<Action, HostError> {
        self.0.cell.runs.may_respond(action_id, response, by)
    }

    /// Answers what a run has asked. When it returns, the answer is durable, and the run goes on by it.
    ///
    /// # Errors
    /// When there is no such action, or it takes no such answer: it was answered before ([`HostError::Answered`], with the
    /// first answer), has expired, its run has ended, `by` may not answer it, or the answer does not fit it.
    pub async fn respond(&self, action_id: &str, response: Response, by: Option<String>) -> Result<Action, HostError> {
        self.0.cell.runs.respond(action_id, response, by).await
    }

    /// Something that a run has asked people for.
    ///
    /// # Errors
    /// When there is no such action.
    pub fn action(&self, action_id: &str) -> Result<Action, HostError> {
        self.0.cell.runs.action(action_id)
    }

    /// All that a run has asked people for, in order.
    ///
    /// # Errors
    /// When there is no such run.
    pub fn actions(&self, run_id: RunId) -> Result<Vec<Action>, HostError> {
        self.0.cell.runs.actions(run_id)
    }

    /// Open actions that `by` may see, in order of their ids: at most `limit`, after `after`. Ids of later runs are larger.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn open_actions(&self, by: &Principal, after: Option<&str>, limit: usize) -> Result<Vec<Action>, HostError> {
        self.0.cell.runs.open_actions(by, after, limit)
    }

    /// Claims the first run that fits, waiting for one at most `wait`. Nothing where none came.
    ///
    /// # Errors
    /// When the executor is not registered, or has no free slot.
    pub async fn claim(&self, executor_id: &str, request: ClaimRequest, wait: Duration) -> Result<Option<ClaimedRun>, HostError> {
        self.0.cell.runs.claim(executor_id, request, wait).await
    }

    /// Begins a run that was claimed; gives what its runner is given. Repeating it is harmless.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn start_claimed(&self, run_id: RunId, token: &str) -> Result<(Run, Box<RawValue>), HostError> {
        self.0.cell.runs.start_claimed(run_id, token).await
    }

    /// Makes a claim last longer; gives the run as it is.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn renew(&self, run_id: RunId, token: &str, lease_ms: Option<u64>) -> Result<Run, HostError> {
        self.0.cell.runs.renew(run_id, token, lease_ms).await
    }

    /// Gives a claim back: the run waits for another executor.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn release(&self, run_id: RunId, token: &str, reason: String) -> Result<Run, HostError> {
        self.0.cell.runs.release(run_id, token, reason).await
    }

    /// Brings a run that was claimed to its end. Where it failed in a way that may pass, and it has attempts left, it goes
    /// back to the queue instead.
    ///
    /// # Errors
    /// When the claim does not count.
    pub async fn finalize(&self, run_id: RunId, token: &str, terminal: Terminal) -> Result<Run, HostError> {
        self.0.cell.runs.finalize(run_id, token, terminal).await
    }

    /// Appends results to a run that was claimed. `first` is the number of the first of them, as the executor counts from 1 in
    /// each claim: those that the host has already are not appended again. They are durable when this returns.
    ///
    /// # Errors
    /// When the claim does not count, the run has not begun, a number is left out, or a result is refused: then none of
    /// them is appended.
    pub async fn append(&self, run_id: RunId, token: &str, first: u64, results: Vec<SentResult>) -> Result<Appended, HostError> {
        self.0.cell.runs.append(run_id, token, first, results).await
    }

    /// The host calls of a run, for who shows the token of its claim.
    ///
    /// # Errors
    /// When the token is not that of a claim of this run, the claim does not count any more, or the run has not begun.
    pub fn held_calls(&self, run_id: RunId, token: &str) -> Result<Calls, HostError> {
        self.0.cell.runs.held_calls(run_id, token)
    }

    /// Registers an executor, which sees the runs of this workspace, or of all; gives its credential, once.
    ///
    /// # Errors
    /// When what it says of itself cannot be, or cannot be written.
    pub async fn register_executor(
        &self,
        registration: Registration,
        workspace: Option<String>,
    ) -> Result<(Executor, String), HostError> {
        self.0.cell.runs.register_executor(registration, workspace).await
    }

    /// An executor that is registered.
    ///
    /// # Errors
    /// When there is none with this id.
    pub fn executor(&self, id: &str) -> Result<Executor, HostError> {
        self.0.cell.runs.executor(id)
    }

    /// Everyone who is registered, in the order in which they came.
    #[must_use]
    pub fn executors(&self) -> Vec<Executor> {
        self.0.cell.runs.executors()
    }

    /// An executor says that it lives.
    ///
    /// # Errors
    /// When it is not registered.
    pub fn heartbeat(&self, id: &str) -> Result<Executor, HostError> {
        self.0.cell.runs.heartbeat(id)
    }

    /// An executor goes: what it holds is taken from it, and its credential is no longer good.
    ///
    /// # Errors
    /// When it is not registered, or that cannot be written.
    pub async fn deregister_executor(&self, id: &str) -> Result<(), HostError> {
        self.0.cell.runs.deregister_executor(id).await
    }

    /// News for an executor, as they come. The answer to its next request has those that came before it listened.
    ///
    /// # Errors
    /// When it is not registered.
    pub fn executor_news(&self, id: &str) -> Result<impl Stream<Item = ExecutorNews> + Send + 'static + use<>, HostError> {
        self.0.cell.runs.executor_news(id)
    }

    /// The committed events of a run after sequence `after`, as they come. The stream ends after the terminal event, or
    /// when the host goes down.
    ///
    /// It is pulled: a reader that is slow, or stops, holds up nobody and nothing but itself.
    ///
    /// # Errors
    /// When there is no such run.
    pub fn follow(
        &self,
        id: RunId,
        after: u64,
    ) -> Result<impl Stream<Item = Result<RunEvent, HostError>> + Send + 'static + use<>, HostError> {
        follow::follow(&self.0.cell.runs, id, after)
    }

    /// A run with all that is needed to execute it again.
    ///
    /// # Errors
    /// When there is no such run, or it has no journal.
    pub fn recording(&self, id: RunId) -> Result<Recording, HostError> {
        Ok(Recording::read(&self.0.cell.ledger, id)?)
    }

    /// The host calls of a run, as far as they are recorded: those after call `after`, at most `limit`.
    ///
    /// # Errors
    /// When there is no such run, it has no journal, or that cannot be read.
    pub fn calls(&self, id: RunId, after: u64, limit: u64) -> Result<Vec<JournaledCall>, HostError> {
        Ok(journaled_calls(&self.0.cell.ledger, id, after, limit)?)
    }

    /// Forgets a conversation: deletes its transcript, its state of scope `conversation` of every runner, its artifacts, and
    /// what its runs and those that they have started did: their events but for the end, their contexts, their journals, and
    /// the input of their events. The record of each run stays, with `forgotten` in its metadata, and so do its terms and its
    /// audit records. Values that runners keep in other scopes and in storage are theirs. Doing it again does no harm, and
    /// ends what was interrupted.
    ///
    /// # Errors
    /// [`HostError::Conflict`] while one of its runs is active, and when the ledger cannot write.
    pub async fn forget_conversation(&self, key: &ConversationKey) -> Result<Forgotten, HostError> {
        self.0.cell.forget_conversation(&self.0.shared, key).await
    }

    /// Deliveries that are not finished, oldest run first.
    ///
    /// # Errors
    /// [`HostError::InvalidCursor`], and where the ledger cannot be read.
    pub async fn deliveries(
        &self,
        filter: DeliveryFilter,
        cursor: Option<String>,
        limit: u32,
    ) -> Result<Page<Delivery>, HostError> {
        self.0.cell.intake.deliveries(filter, cursor, limit).await
    }

    /// Has a delivery tried now: a dead letter is put back, with all its attempts; one that waits for its time waits no more.
    ///
    /// # Errors
    /// [`HostError::NotFound`] where there is none, and where the ledger cannot write.
    pub async fn retry_delivery(&self, run_id: RunId, webhook: &str) -> Result<Delivery, HostError> {
        self.0.cell.intake.retry_delivery(run_id, webhook).await
    }

    /// How many deliveries are not finished, and how many requests to webhooks are under way.
    #[must_use]
    pub fn delivery_counts(&self) -> (usize, usize) {
        self.0.cell.intake.delivery_counts()
    }
}
