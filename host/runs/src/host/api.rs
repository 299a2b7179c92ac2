//! Events, runs, actions and deliveries: the facade delegates each to the room that owns it.

use std::{path::Path, sync::Arc, time::Duration};

use agent_host_config::{BindingConfig, BusyThread};
use agent_host_facts::Fact;
use agent_host_ledger::{AuditRecord, DeletedData, EventRecord, Feed, FeedBounds, FeedStep, Idempotency, Ledger, LedgerError};
use agent_host_protocol::{Page, Principal, Run, RunEvent, RunId, RunLogPage, event::Envelope, grant::ConversationKey};
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::{
    Host,
    evidence::Evidence,
    follow::{self, FollowedFeed},
    follow_thread::follow_thread,
    recording::journaled_calls,
    recording_text::RecordingText,
    threads::ThreadKey,
};
use crate::{
    execution::run_logs::{kept_log, logs_path},
    intake::{
        accept::{AcceptedEvent, NewEntries, no_entries},
        agents::{Agent, AgentRun},
        create::{CreateRun, CreatedRun},
        delivery::{Delivery, DeliveryFilter},
        fork::Fork,
        hooks::{HookOutcome, WebhookSourceReport},
        import::{ImportedRun, NewImport},
        pipeline::AdaptedQuery,
        scheduler::ScheduleReport,
    },
    lifecycle::{dead_letters::DeadLetter, watchers::RunWatch},
    policy::sources::{HookError, HookRequest},
    record::{
        HostError,
        action::{Action, Response},
        journal::timeline::JournaledCall,
    },
};

impl Host {
    /// At most `limit` lines of the kept log of a run after the cursor `after`, those of a running execution included. Blocks.
    ///
    /// # Errors
    /// [`HostError::InvalidCursor`] where the cursor is none of a log, [`HostError::Unavailable`] where a file cannot be read or written.
    pub fn run_log(&self, id: RunId, after: Option<&str>, limit: u32) -> Result<RunLogPage, HostError> {
        let after = log_cursor(after)?;
        let page = self.0.cell.runs.logs.page(id, after, limit as usize);
        page.map_err(|error| HostError::Unavailable(format!("the log of run {id} cannot be read: {error}")))
    }

    /// True while an execution may write to the log of a run.
    #[must_use]
    pub fn is_logging(&self, id: RunId) -> bool {
        self.0.cell.runs.logs.is_open(id)
    }

    /// Waits until a run has ended, at most `timeout`; gives its record as it is then.
    ///
    /// # Errors
    /// Fails if the run does not exist or its end could not be written.
    pub async fn wait(&self, id: RunId, timeout: Duration) -> Result<Arc<Run>, HostError> {
        self.0.cell.runs.wait(id, timeout).await
    }

    /// Requests the cancellation of a run. The request is durable, and the guest is being stopped, when this function
    /// returns.
    ///
    /// # Errors
    /// Fails if the run does not exist or has ended.
    pub async fn cancel(&self, id: RunId, reason: String) -> Result<Arc<Run>, HostError> {
        self.0.cell.runs.cancel(id, reason).await
    }

    /// Accepts an event. The event and its runs are durable when this function returns. An event that no binding matches
    /// has no runs.
    ///
    /// # Errors
    /// Fails if the event is malformed, repeats a key with another body, or cannot be accepted now. Nothing is written
    /// then.
    pub async fn accept(&self, envelope: Envelope, idempotency: Option<Idempotency>) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.accept(envelope, idempotency, &no_entries, None).await
    }

    /// As [`Host::accept`], with the key whose budget pays for the runs ([`Host::charged_key`]).
    ///
    /// # Errors
    /// As [`Host::accept`].
    pub async fn accept_charged(
        &self,
        envelope: Envelope,
        idempotency: Option<Idempotency>,
        charged_key: Option<String>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.accept(envelope, idempotency, &no_entries, charged_key).await
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
    /// Fails if no binding has this id, or the binding has no runner; with [`HostError::RunnerCompiling`] where the runner may be among the
    /// plugins that are still being compiled.
    pub fn agent(&self, id: &str) -> Result<Agent, HostError> {
        self.0.cell.intake.agent(id)
    }

    /// Waits for an agent whose runner may still be compiled at the start of the host, at most `limits.runner_wait_ms`.
    pub async fn await_agent(&self, id: &str) {
        self.0.cell.intake.await_agent(id).await;
    }

    /// Creates a run of an agent for a message of a client, whatever the `match` of its binding says, with entries in the
    /// same commit. The commit is durable when this function returns.
    ///
    /// # Errors
    /// [`HostError::Busy`] where another run of the thread is active, stays active, and the run does not wait for it: the
    /// decision holds whichever API another event of the thread comes through in the same moment.
    /// Fails if the agent does not exist, its binding does not fit its runner, the event, tools, state or metadata are
    /// malformed or too large, or the host cannot accept the run now. Nothing is written then.
    pub async fn begin_agent_run(
        &self,
        run: AgentRun,
        idempotency: Option<Idempotency>,
        entries: &NewEntries<'_>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.begin_agent_run(run, idempotency, entries).await
    }

    /// Fails as [`Host::begin_agent_run`] would because of another active run of the thread, without creating anything: the
    /// decision itself is made when the run is created.
    ///
    /// # Errors
    /// [`HostError::Busy`]; also if the ledger cannot be read.
    pub fn check_busy(&self, key: &ConversationKey, binding_id: &str, busy: BusyThread) -> Result<(), HostError> {
        self.0.cell.intake.check_busy(key, binding_id, busy)
    }

    /// Waits a moment, where `busy` replaces abandoned runs, for the client of the active run of a thread to leave: a client that
    /// stops a run and sends its next message at once may be faster than the end of its connection.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub async fn notice_hang_up(&self, key: &ConversationKey, busy: BusyThread) -> Result<(), HostError> {
        self.0.cell.intake.notice_hang_up(key, busy).await
    }

    /// A client watches a run until the value is dropped. A run that is streamed and that no client watches is abandoned: a
    /// new message may replace it, and it is cancelled after `agui.disconnect_grace_ms`.
    #[must_use]
    pub fn watch(&self, run: RunId) -> RunWatch {
        self.0.cell.runs.watch(run)
    }

    /// A client is about to watch a run: it counts as watched for some seconds.
    pub fn expect_client(&self, run: RunId) {
        self.0.cell.runs.watchers.expect(run);
    }

    /// Takes what somebody says in a conversation without having anybody answer it: it joins the transcript.
    ///
    /// # Errors
    /// Fails if the message has no conversation or no content, and as [`Host::accept`] does.
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
    /// Fails if the ledger cannot be read.
    pub fn active_runs(&self, key: &ConversationKey) -> Result<Vec<Arc<Run>>, HostError> {
        self.0.cell.intake.active_runs(key)
    }

    /// Creates a run. The run is durable when this function returns.
    ///
    /// # Errors
    /// Fails if the request contradicts itself, names an unknown resource or one outside the caller's rights, or cannot be
    /// accepted now.
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
    /// Fails if the run does not exist, has not ended, or has a binding that was removed.
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
    /// Fails if the ledger cannot be read.
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
    /// Fails if the run is no dead letter or the ledger cannot be read.
    pub fn dead_letter(&self, id: RunId) -> Result<DeadLetter, HostError> {
        self.0.cell.intake.dead_letter(id)
    }

    /// Puts a run that was given up back into its queue, as another attempt.
    ///
    /// # Errors
    /// Fails if the run is no dead letter (any more) or cannot be tried again.
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
    /// Fails if the run does not exist, has no journal or fewer calls, or the ledger refuses the fork.
    pub async fn fork(&self, id: RunId, fork: Fork) -> Result<Arc<Run>, HostError> {
        self.0.cell.intake.fork(id, fork).await
    }

    /// Creates a run for a pipeline query. The event and the run are durable when this function returns.
    ///
    /// # Errors
    /// Fails if the query is malformed, no plugin has its runner, or the query cannot be accepted now; also if the caller
    /// is not an administrator, because no configuration bounds the grant of such a run.
    pub async fn run_pipeline_query(
        &self,
        adapted: AdaptedQuery,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<AcceptedEvent, HostError> {
        self.0.cell.intake.run_pipeline_query(adapted, caller, idempotency).await
    }

    /// Accepts a request to a webhook source. The event is durable when this function returns.
    ///
    /// # Errors
    /// The reason of the refusal; nothing is written then.
    pub async fn accept_hook(&self, name: &str, request: &HookRequest<'_>) -> Result<HookOutcome, HookError> {
        self.0.cell.intake.accept_hook(name, request).await
    }

    /// True if a webhook source has this name.
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
    /// Fails if the ledger cannot be read.
    pub fn schedules(&self) -> Result<Vec<ScheduleReport>, HostError> {
        self.0.cell.intake.schedules()
    }

    /// The name that the record gives to an answer of this principal: the id of an approver, or `key:NAME` for a key. Ids
    /// of approvers have no colon, so a key never equals an approver that a rule names. Without configured approvers, a
    /// caller on this machine needs no name.
    ///
    /// # Errors
    /// Fails if approvers are configured and the caller is none of them and has no key.
    pub fn answers_as(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        self.0.cell.runs.answers_as(principal)
    }

    /// Checks that an action accepts this response from `by` now. Another answer can still come first.
    ///
    /// # Errors
    /// As [`Host::respond`].
    pub fn may_respond(&self, action_id: &str, response: &Response, by: Option<&str>) -> Result<Action, HostError> {
        self.0.cell.runs.may_respond(action_id, response, by)
    }

    /// Answers an action. The answer is durable when this function returns, and the run continues with the answer.
    ///
    /// # Errors
    /// Fails if the action does not exist or refuses the answer: the action was answered before ([`HostError::Answered`],
    /// with the first answer), has expired, or its run has ended; `by` may not answer the action; or the answer does not
    /// match the request.
    pub async fn respond(&self, action_id: &str, response: Response, by: Option<String>) -> Result<Action, HostError> {
        self.0.cell.runs.respond(action_id, response, by).await
    }

    /// Something that a run has asked people for.
    ///
    /// # Errors
    /// Fails if the action does not exist.
    pub fn action(&self, action_id: &str) -> Result<Action, HostError> {
        self.0.cell.runs.action(action_id)
    }

    /// All that a run has asked people for, in order.
    ///
    /// # Errors
    /// Fails if the run does not exist.
    pub fn actions(&self, run_id: RunId) -> Result<Vec<Action>, HostError> {
        self.0.cell.runs.actions(run_id)
    }

    /// Open actions that `by` may see, in order of their ids: at most `limit`, after `after`. Ids of later runs are larger.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub fn open_actions(&self, by: &Principal, after: Option<&str>, limit: usize) -> Result<Vec<Action>, HostError> {
        self.0.cell.runs.open_actions(by, after, limit)
    }

    /// Imports a capture of another framework. Its run is durable when this function returns, and ends by itself; the same
    /// capture has the same run.
    ///
    /// # Errors
    /// Fails if the capture cannot be read, or cannot be accepted now. Nothing is written then.
    pub async fn import(&self, new: NewImport) -> Result<ImportedRun, HostError> {
        self.0.cell.intake.import(new).await
    }

    /// The committed events of a run after sequence `after`, as they come. The stream ends after the terminal event, or
    /// when the host goes down.
    ///
    /// The stream is pulled: a slow or stopped reader delays no other reader and no run.
    ///
    /// # Errors
    /// Fails if the run does not exist.
    pub fn follow(
        &self,
        id: RunId,
        after: u64,
    ) -> Result<impl Stream<Item = Result<RunEvent, HostError>> + Send + 'static + use<>, HostError> {
        follow::follow(&self.0.cell.runs, id, after)
    }

    /// The facts of a thread after the number `after`, as they come, on through later turns. The stream ends when the host goes
    /// down.
    ///
    /// The stream is pulled: a slow or stopped reader delays no other reader and no run.
    ///
    /// # Errors
    /// Fails if the thread is a run that does not exist.
    pub fn follow_thread(
        &self,
        key: ThreadKey,
        after: u64,
    ) -> Result<impl Stream<Item = Result<Fact, HostError>> + Send + 'static + use<>, HostError> {
        follow_thread(&self.0.cell.runs, self.threads(), key, after)
    }

    /// The accepted events after the cursor `after` that `filter` accepts, each with its cursor, as they come; without a cursor
    /// those that are accepted from now on. The stream ends when the host goes down.
    ///
    /// # Errors
    /// Fails if the cursor is not one of the events of this host.
    pub fn follow_events(
        &self,
        after: Option<&str>,
        filter: impl Fn(&EventRecord) -> bool + Send + 'static,
    ) -> Result<FollowedFeed<EventRecord>, HostError> {
        let read = move |ledger: &Ledger, bounds| ledger.events_feed(bounds, &filter);
        self.follow_feed(Feed::Events, after, read)
    }

    /// The audit records after the cursor `after` that `filter` accepts, each with its cursor, as they come; without a cursor
    /// those that are written from now on. The stream ends when the host goes down.
    ///
    /// # Errors
    /// Fails if the cursor is not one of the audit.
    pub fn follow_audit(
        &self,
        after: Option<&str>,
        filter: impl Fn(&AuditRecord) -> bool + Send + 'static,
    ) -> Result<FollowedFeed<AuditRecord>, HostError> {
        let read = move |ledger: &Ledger, bounds| ledger.audit_feed(bounds, &filter);
        self.follow_feed(Feed::Audit, after, read)
    }

    fn follow_feed<T: Send + 'static>(
        &self,
        feed: Feed,
        after: Option<&str>,
        read: impl Fn(&Ledger, FeedBounds) -> Result<FeedStep<T>, LedgerError> + Send + 'static,
    ) -> Result<FollowedFeed<T>, HostError> {
        let runs = &self.0.cell.runs;
        let after = match after {
            Some(cursor) => feed.number(cursor)?,
            None => runs.ledger.feed_end(feed)?,
        };
        let items = follow::follow_feed(runs, after, read);
        let items = items.map_ok(move |(number, item)| (feed.cursor(number), item)).boxed();
        Ok(FollowedFeed { after: feed.cursor(after), items })
    }

    /// The text of a [`crate::Recording`] of a run.
    ///
    /// # Errors
    /// Fails if the run does not exist or has no journal.
    pub fn recording(&self, id: RunId) -> Result<RecordingText, HostError> {
        Ok(RecordingText::open(&self.0.cell.ledger, id)?)
    }

    /// The evidence of a run, as lines that are chained by hashes. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// Fails if the run does not exist.
    pub fn evidence(&self, id: RunId) -> Result<Evidence, HostError> {
        Evidence::open(&self.0.cell.ledger, &self.0.threads, id)
    }

    /// The host calls of a run, as far as they are recorded: those after call `after`, at most `limit`.
    ///
    /// # Errors
    /// Fails if the run does not exist, has no journal, or cannot be read.
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
    pub async fn forget_conversation(&self, key: &ConversationKey) -> Result<DeletedData, HostError> {
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

    /// The number of unfinished deliveries, and the number of open requests to webhooks.
    #[must_use]
    pub fn delivery_counts(&self) -> (usize, usize) {
        self.0.cell.intake.delivery_counts()
    }
}

/// The number of a cursor of a kept log.
fn log_cursor(cursor: Option<&str>) -> Result<u64, HostError> {
    let Some(cursor) = cursor else { return Ok(0) };
    cursor.parse().map_err(|_| HostError::InvalidCursor("this is not a cursor of the log of a run".to_owned()))
}

/// The kept log of a run in a data directory that no host uses: at most `limit` lines after the cursor `after`. Blocks.
///
/// # Errors
/// As [`Host::run_log`].
pub fn kept_run_log(data_dir: &Path, id: RunId, after: Option<&str>, limit: u32) -> Result<RunLogPage, HostError> {
    let page = kept_log(&logs_path(data_dir), id, log_cursor(after)?, limit as usize);
    page.map_err(|error| HostError::Unavailable(format!("the log of run {id} cannot be read: {error}")))
}
