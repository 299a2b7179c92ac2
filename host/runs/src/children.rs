//! Runs that a run has started: each with a grant that is no more than its parent's, and none outlives it.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_ledger::{Accept, Accepted, Idempotency, Ledger, LedgerError, RunRecord, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, Event, EventId, Grant, ResultKind, Run, RunId,
    context::{Conversation, Input},
    event::Envelope,
    manifest::{ArtifactOperation, RunOperation, StateScope},
    run::Execution,
    time,
};
use agent_host_sandbox::Runner;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::{
    accept::{Planned, new_run},
    beginning::fact,
    error::{HostError, ledger_failed},
    gate::RunState,
    host::Host,
    life::{Life, Past},
    terms::Terms,
};

/// The type of the event that starts a child.
const EVENT_TYPE: &str = "run.requested";

/// The runs that one run has started.
#[derive(Default)]
pub(crate) struct Children(Mutex<Known>);

#[derive(Default)]
struct Known {
    all: Vec<RunId>,
    ended: HashSet<RunId>,
    /// Their parent has come to its end.
    closed: bool,
}

impl Children {
    /// What the record of a run says that it has started.
    pub(crate) fn of(ledger: &Ledger, record: &RunRecord) -> Result<Self, LedgerError> {
        let events = ledger.run_events_of(record.run_no, record.run.run_id, &[ResultKind::ChildStarted.as_str()])?;
        let id = |data: Value| data.get("run_id")?.as_str()?.parse::<RunId>().ok();
        let mut all = Vec::new();
        for child in events.iter().filter_map(|event| id(event.data_value())) {
            // A fork has the facts of another run, and none of its children.
            if ledger.run(child)?.is_some_and(|child| child.run.parent_run_id == Some(record.run.run_id)) {
                all.push(child);
            }
        }
        Ok(Self(Mutex::new(Known { all, ..Known::default() })))
    }

    pub(crate) fn take_from(&self, other: Self) {
        *self.0.lock() = other.0.into_inner();
    }

    /// Whether their parent still looks after one more.
    fn add(&self, id: RunId) -> bool {
        let mut known = self.0.lock();
        if !known.all.contains(&id) {
            known.all.push(id);
        }
        !known.closed
    }

    fn close(&self) {
        self.0.lock().closed = true;
    }

    pub(crate) fn has(&self, id: RunId) -> bool {
        self.0.lock().all.contains(&id)
    }

    /// In the order in which they were started.
    pub(crate) fn all(&self) -> Vec<RunId> {
        self.0.lock().all.clone()
    }

    /// Those that have not ended.
    pub(crate) fn active(&self, ledger: &Ledger) -> Result<Vec<RunId>, LedgerError> {
        let mut known = self.0.lock();
        let maybe: Vec<_> = known.all.iter().filter(|id| !known.ended.contains(*id)).copied().collect();
        let mut active = Vec::new();
        for id in maybe {
            match ledger.run(id)? {
                Some(record) if !record.run.status.is_terminal() => active.push(id),
                _ => drop(known.ended.insert(id)),
            }
        }
        Ok(active)
    }
}

/// A run that is to be started.
pub(crate) struct Wanted {
    pub(crate) runner: Runner,
    pub(crate) input: Input,
    pub(crate) objective: String,
    pub(crate) config: Map<String, Value>,
    /// Makes a repetition of the same call of the same parent harmless.
    pub(crate) key: String,
}

/// The grant of a child: what its manifest asks for of what its parent was granted. It has no conversation, so it sees no
/// history, and says nothing in it.
fn grant(parent: &Grant, runner: &Runner) -> Grant {
    let manifest = &runner.manifest;
    let mut permissions = manifest.permissions.intersection(&parent.permissions);
    permissions.history.clear();
    permissions.events.clear();
    permissions.state.retain(|scope| *scope != StateScope::Conversation);
    fn of<T: Clone>(all: &[T], may: bool) -> Vec<T> {
        if may { all.to_vec() } else { Vec::new() }
    }
    let reads = permissions.artifacts.contains(&ArtifactOperation::Read);
    Grant {
        runner_id: manifest.id.clone(),
        component: runner.component.digest().to_owned(),
        models: of(&parent.models, !permissions.models.is_empty()),
        tools: of(&parent.tools, !permissions.tools.is_empty()),
        // Whoever asked for the parent carries out what the parent asks for, and knows nothing of a child.
        client_tools: Vec::new(),
        knowledge_bases: of(&parent.knowledge_bases, !permissions.knowledge_bases.is_empty()),
        runners: of(&parent.runners, permissions.runs.contains(&RunOperation::Start)),
        http_secrets: of(&parent.http_secrets, !permissions.http_hosts.is_empty()),
        skills: of(&parent.skills, reads),
        skill_files: of(&parent.skill_files, reads),
        steering: false,
        conversation: None,
        permissions,
        ..parent.clone()
    }
}

impl RunState {
    /// The execution is over: waits until nobody has anything to say of its children any more.
    pub(crate) async fn told_all_ends(&self) {
        self.tellers.close();
        self.tellers.wait().await;
    }

    /// What of a parent's terms a child has, and what is its own.
    fn child_terms(&self, wanted: &Wanted) -> Terms {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut delivery = self.terms.delivery.clone();
        "run".clone_into(&mut delivery.surface);
        delivery.reply_target = None;
        Terms {
            grant: grant(&self.terms.grant, &wanted.runner),
            config: wanted.config.clone(),
            delivery,
            deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            bootstrap: None,
            durability: self.terms.durability,
            max_attempts: self.terms.max_attempts,
            in_doubt: self.terms.in_doubt,
            approvals: self.terms.approvals.clone(),
            execution: Execution::Host,
            queue: None,
            ad_hoc: false,
            // Its parent tells what came of it.
            deliver: Vec::new(),
            depth: self.terms.depth + 1,
            refusal: None,
        }
    }
}

impl Host {
    /// Starts a child of a run. It is durable when this returns, and is the same one where the call is repeated.
    pub(crate) async fn start_child(&self, parent: &Arc<RunState>, event: &Event, wanted: Wanted) -> Result<RunId, ApiError> {
        let inner = self.inner();
        if inner.stopping.is_cancelled() {
            return Err(ApiError::retryable(ErrorCode::RuntimeError, "the host is shutting down"));
        }
        let grant = &parent.terms.grant;
        let envelope = Envelope {
            event_type: EVENT_TYPE.to_owned(),
            conversation: grant.workspace.clone().map(|id| Conversation { workspace_id: Some(id), ..Conversation::default() }),
            actor: event.envelope.actor.clone(),
            subject: event.envelope.subject.clone(),
            data: [
                ("parent_run_id".to_owned(), parent.run_id.to_string().into()),
                ("objective".to_owned(), wanted.objective.clone().into()),
            ]
            .into_iter()
            .collect(),
            trace_id: Some(event.envelope.trace_id.clone().unwrap_or_else(|| parent.run_id.to_string())),
            locale: event.envelope.locale.clone(),
            timezone: event.envelope.timezone.clone(),
            input: wanted.input.clone(),
            ..Envelope::message(String::new(), "run")
        };
        envelope.check().map_err(ApiError::invalid_argument)?;
        let event = Event { event_id: EventId::new(), received_at: time::now(), envelope };
        let terms = Arc::new(parent.child_terms(&wanted));
        let mut run = Run {
            parent_run_id: Some(parent.run_id),
            ..new_run(&event, &grant.binding_id, &wanted.runner.manifest.id, wanted.runner.manifest.version.to_string(), &terms)
        };
        run.metadata.insert("objective".to_owned(), wanted.objective.into());
        let planned = Planned { run, terms, runner: Some(wanted.runner) };
        let accept = Accept {
            transcript: None,
            idempotency: Some(Idempotency { key: wanted.key, body_hash: [0; 32] }),
            artifacts: Vec::new(),
            refers_to: event.envelope.artifact_ids().map(str::to_owned).collect(),
            entries: Vec::new(),
            state: Vec::new(),
            runs: vec![planned.new_run().map_err(|error| host_failed(&error))?],
            event,
        };
        // Its parent may end in the middle of this, and whoever waits for it with it; the child is on its way to the disk then.
        let (host, parent) = (self.clone(), Arc::clone(parent));
        let started = inner.tasks.spawn(async move {
            let id = host.accept_child(accept, planned).await?;
            if !parent.children.add(id) {
                host.end_child(parent.run_id, id).await;
            }
            Ok(id)
        });
        started.await.map_err(|error| host_failed(&error))?
    }

    async fn accept_child(&self, accept: Accept, planned: Planned) -> Result<RunId, ApiError> {
        let ledger = &self.inner().ledger;
        let event = accept.event.clone();
        match ledger.accept(accept).await.map_err(ledger_failed)? {
            Accepted::New { event_no, runs, transcript_seq } => {
                let Planned { terms, runner, .. } = planned;
                let record = runs.into_iter().next().ok_or_else(|| host_failed(&"a child was not made"))?;
                let id = record.run.run_id;
                self.inner().metrics.created(&record.run);
                let event = Arc::new(event);
                self.begin(Life { record, event, event_no, transcript_seq, terms, runner, past: Past::Nothing, waking: None });
                Ok(id)
            }
            // The host has died right after this, and whoever was there then is alive again.
            Accepted::Repeated { event_id } => {
                let event = ledger.event(event_id).map_err(ledger_failed)?;
                let id = event.and_then(|event| event.runs.first().copied());
                id.ok_or_else(|| host_failed(&"a child is not there"))
            }
        }
    }

    /// A run comes to its end: so do those that it has started.
    pub(crate) async fn end_children(&self, parent: RunId, children: &Children) {
        children.close();
        let active = children.active(&self.inner().ledger).unwrap_or_else(|error| {
            tracing::error!(run_id = %parent, %error, "the children of a run cannot be read");
            Vec::new()
        });
        for child in active {
            self.end_child(parent, child).await;
        }
    }

    async fn end_child(&self, parent: RunId, child: RunId) {
        match self.cancel(child, format!("run {parent}, which had started it, has ended")).await {
            Ok(_) | Err(HostError::Conflict(_)) => {}
            Err(error) => tracing::error!(run_id = %child, %error, "a child could not be cancelled; its deadline ends it"),
        }
    }

    /// Says in the record of a run, as long as it is executed, when a run that it has started has ended.
    ///
    /// It is for those who read the record. The run itself is told by the calls that wait, and what it does depends on none
    /// of this: a host that dies before it is said says it at the next execution, or the end of the parent says enough.
    pub(crate) fn tell_end(&self, parent: &Arc<RunState>, child: RunId) {
        let (host, run) = (self.clone(), Arc::clone(parent));
        parent.tellers.spawn(async move {
            tokio::select! {
                // As long as the parent is executed; it ends no later than that.
                _ = host.wait(child, Duration::MAX) => {}
                () = run.let_go.cancelled() => {}
            }
            let Ok(record) = host.record(child) else { return };
            if !record.run.status.is_terminal() {
                return;
            }
            let data = json!({ "run_id": child, "status": record.run.status });
            let make = |sequence| {
                Ok(RunWrite { events: vec![fact(ResultKind::ChildEnded, sequence, time::now(), &data)], ..RunWrite::default() })
            };
            if let Err(error) = run.write(None, make).await {
                tracing::debug!(run_id = %run.run_id, %child, error = error.message, "the end of a child could not be noted");
            }
        });
    }

    /// The same for all that executions before have started, and whose end they have not said.
    pub(crate) fn tell_ends(&self, parent: &Arc<RunState>) -> Result<(), LedgerError> {
        let said = parent.ledger.run_events_of(parent.run_no, parent.run_id, &[ResultKind::ChildEnded.as_str()])?;
        let said: HashSet<RunId> =
            said.iter().filter_map(|event| event.data_value().get("run_id")?.as_str()?.parse().ok()).collect();
        for child in parent.children.all().into_iter().filter(|child| !said.contains(child)) {
            self.tell_end(parent, child);
        }
        Ok(())
    }

    /// A child has ended: its parent may wait for that, in memory or on disk.
    pub(crate) async fn child_ended(&self, child: &Run) {
        let Some(parent) = child.parent_run_id else { return };
        let inner = self.inner();
        let mail = inner.live.lock().get(&parent).map(|handle| Arc::clone(&handle.mail));
        match mail {
            Some(mail) => mail.poke(),
            None => self.wake_all_on(&key(child.run_id)).await,
        }
    }
}

/// What a parked run that waits for a child is found by.
pub(crate) fn key(child: RunId) -> String {
    format!("{KEYS}{child}")
}

/// What all those keys begin with.
pub(crate) const KEYS: &str = "run/";

fn host_failed(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "a run could not start another");
    ApiError::retryable(ErrorCode::RuntimeError, "the host could not start the run; its log says why")
}

/// A limit of what runs may start.
pub(crate) fn too_many(code: &str, retryable: bool, message: String, limit: usize) -> ApiError {
    ApiError {
        retryable,
        details: Some(json!({ "code": code, "limit": limit })),
        ..ApiError::new(if retryable { ErrorCode::RateLimited } else { ErrorCode::Unauthorized }, message)
    }
}
