//! Children: runs that a run starts, and what else a run reaches of its neighbours.

use std::{sync::Arc, time::Instant};

use agent_host_ledger::{Accept, AcceptOutcome, Idempotency};
use agent_host_protocol::{
    ApiError, ErrorCode, Event, EventId, Run, RunId, RunnerId, context::Conversation, event::Envelope, grant::ConversationKey,
    time,
};
use agent_host_sandbox::Runner;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Notify;

use super::{
    IntakeOfCell,
    accept::{PlannedRun, PlannedTask, new_run},
};
use crate::{
    execution::{
        Execution,
        neighbours::{ChildRequest, Neighbours, WaitingRun},
    },
    lifecycle::{Runs, StoredEvent, StoredRun},
    policy::child,
    record::{HostError, ledger_failed},
};

/// The type of the event that starts a child.
const EVENT_TYPE: &str = "run.requested";

impl Neighbours for IntakeOfCell {
    fn runner(&self, id: &RunnerId) -> Option<Runner> {
        self.shared.plugins.runner(id)
    }

    fn await_runner<'a>(&'a self, id: &'a RunnerId) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(IntakeOfCell::await_runner(self, id, self.runner_deadline()))
    }

    fn start_child<'a>(
        &'a self,
        parent: &'a Arc<Execution>,
        event: &'a Event,
        request: ChildRequest,
    ) -> BoxFuture<'a, Result<RunId, ApiError>> {
        Box::pin(async move {
            if self.runs.stopping.is_cancelled() {
                return Err(ApiError::retryable(ErrorCode::RuntimeError, "the host is shutting down"));
            }
            let (accept, task) = plan_child(parent, event, request)?;
            let most = parent.limits.tree_runs;
            let tree =
                self.runs.trees.grow(&self.ledger, parent.run_id, &parent.limits).map_err(ledger_failed)?.ok_or_else(|| {
                    ApiError {
                        details: Some(json!({ "code": "tree_runs", "limit": most })),
                        ..ApiError::new(
                            ErrorCode::Unauthorized,
                            format!("one event leads to at most {most} runs that start each other: do the work in this run"),
                        )
                    }
                })?;
            // The parent may end in the middle of this, and its call with it; the child is on its way to the disk then.
            let (runs, parent) = (self.runs.clone(), Arc::clone(parent));
            let started = self.runs.tasks.spawn(async move {
                let (id, is_new) = accept_child(&runs, accept, task).await?;
                if !parent.family.children.add(id) {
                    runs.end_child(parent.run_id, id).await;
                }
                Ok((id, is_new))
            });
            let started = started.await.map_err(|error| host_failed(&error))?;
            if !matches!(started, Ok((_, true))) {
                tree.shrink();
            }
            started.map(|(id, _)| id)
        })
    }

    fn report_end(&self, parent: &Arc<Execution>, child: RunId) {
        self.runs.report_end(parent, child);
    }

    fn cancel(&self, run_id: RunId, reason: String) -> BoxFuture<'_, Result<(), HostError>> {
        Box::pin(async move { self.runs.cancel(run_id, reason).await.map(drop) })
    }

    fn take_waiting(
        &self,
        conversation: &ConversationKey,
        limit: usize,
        accepts: &(dyn Fn(u64) -> bool + Sync),
    ) -> Vec<Box<dyn WaitingRun>> {
        let taken = self.runs.lines.take(conversation, limit, accepts);
        taken.into_iter().map(|run| Box::new(run) as Box<dyn WaitingRun>).collect()
    }

    fn joined(&self, conversation: &ConversationKey) -> Option<Arc<Notify>> {
        self.runs.lines.joined(conversation)
    }
}

/// The event and the run of a child.
fn plan_child(parent: &Execution, event: &Event, request: ChildRequest) -> Result<(Accept, PlannedTask), ApiError> {
    let ChildRequest { runner, input, objective, config, idempotency_key } = request;
    let grant = &parent.terms.grant;
    let envelope = Envelope {
        event_type: EVENT_TYPE.to_owned(),
        conversation: grant.workspace.clone().map(|id| Conversation { workspace_id: Some(id), ..Conversation::default() }),
        actor: event.envelope.actor.clone(),
        subject: event.envelope.subject.clone(),
        data: [
            ("parent_run_id".to_owned(), parent.run_id.to_string().into()),
            ("objective".to_owned(), objective.clone().into()),
        ]
        .into_iter()
        .collect(),
        trace_id: Some(event.envelope.trace_id.clone().unwrap_or_else(|| parent.run_id.to_string())),
        locale: event.envelope.locale.clone(),
        timezone: event.envelope.timezone.clone(),
        input,
        ..Envelope::message(String::new(), "run")
    };
    envelope.check().map_err(ApiError::invalid_argument)?;
    let event_id = EventId::of_workspace(envelope.workspace());
    let event = Arc::new(Event { event_id, received_at: time::now(), envelope });
    let time_left = parent.deadline.at().saturating_duration_since(Instant::now());
    let terms = child::terms(&parent.terms, &runner, config, time_left, parent.budget.rest());
    let version = runner.manifest.version.to_string();
    let mut run =
        Run { parent_run_id: Some(parent.run_id), ..new_run(&event, &grant.binding_id, &runner.manifest.id, version, &terms) };
    run.metadata.insert("objective".to_owned(), objective.into());
    let (run, task) = PlannedRun::new(run, terms, Some(runner)).map_err(|error| host_failed(&error))?.split();
    let accept = Accept {
        history: Vec::new(),
        transcript: None,
        idempotency: Some(Idempotency { key: idempotency_key, body_hash: [0; 32] }),
        artifacts: Vec::new(),
        refers_to: event.envelope.artifact_ids().map(str::to_owned).collect(),
        entries: Vec::new(),
        state: Vec::new(),
        branch: None,
        runs: vec![run],
        event,
    };
    Ok((accept, task))
}

/// Accepts a child; true if it is new.
async fn accept_child(runs: &Runs, accept: Accept, task: PlannedTask) -> Result<(RunId, bool), ApiError> {
    let event = Arc::clone(&accept.event);
    match runs.ledger.accept(accept).await.map_err(ledger_failed)? {
        AcceptOutcome::New { event_no, runs: records, transcript_seq } => {
            let record = records.into_iter().next().ok_or_else(|| host_failed(&"a child was not made"))?;
            let id = record.run.run_id;
            runs.shared.metrics.created(&record.run);
            let event = StoredEvent { event, event_no, transcript_seq };
            runs.begin(StoredRun::new(record, event, task.terms, task.runner));
            Ok((id, true))
        }
        // The host has died right after this, and the child has a task again.
        AcceptOutcome::Repeated { event_id } => {
            let event = runs.ledger.event(event_id).map_err(ledger_failed)?;
            let id = event.and_then(|event| event.runs.first().copied());
            Ok((id.ok_or_else(|| host_failed(&"a child is not there"))?, false))
        }
    }
}

fn host_failed(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "a run could not start another");
    ApiError::retryable(ErrorCode::RuntimeError, "the host could not start the run; its log has the reason")
}
