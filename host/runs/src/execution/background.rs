//! Background actions: platform actions that a runner does not wait for (`results.action-requested`). The request is made
//! with the result, judged by the same policy, and carried out while the run continues. The run ends when all its
//! background actions are resolved.

use std::{sync::Arc, time::Duration};

use agent_host_config::ApprovalPolicy;
use agent_host_protocol::{ApiError, time};
use agent_host_providers::log_context;
use opentelemetry::context::FutureExt;
use serde_json::Value;

use super::{Execution, answers::WaitMode, open_calls::OpenCall};
use crate::{
    policy::{platform_action::PlatformAction, services::Services},
    record::{
        WaitKey,
        action::{Action, ActionStatus, AskKind, actions_of, is_background},
        facts::CallOutcome,
        journal::Stop,
        ledger_failed,
    },
};

/// The background actions of one execution.
#[derive(Clone)]
pub(crate) struct BackgroundActions {
    run: Arc<Execution>,
    services: Arc<Services>,
}

impl BackgroundActions {
    pub(crate) fn new(run: &Arc<Execution>, services: &Arc<Services>) -> Self {
        Self { run: Arc::clone(run), services: Arc::clone(services) }
    }

    /// Continues the actions that the execution before has left open.
    pub(crate) fn resume(&self) -> Result<(), ApiError> {
        let record = self.run.ledger.run_by_no(self.run.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(()) };
        for action in actions_of(&self.run.ledger, &record).map_err(ledger_failed)? {
            // A fork has the facts of another run, and nothing of what that has asked for.
            let is_own = action.action_id.starts_with(&self.run.run_id.to_string());
            if action.status == ActionStatus::Resolved || !is_background(&action.action_id) || !is_own {
                continue;
            }
            let field = |name: &str| action.request.get(name).cloned().unwrap_or_default();
            let name = field("action").as_str().unwrap_or_default().to_owned();
            let judged = PlatformAction::judge(&self.run.terms, &self.services, name, field("target"), field("payload"));
            self.spawn(action.action_id, judged);
        }
        Ok(())
    }

    /// Starts an action whose request is durable.
    pub(crate) fn spawn(&self, id: String, action: Result<PlatformAction, ApiError>) {
        let open = OpenCall::background(&self.run, &id);
        // As long as it is not resolved, the run is not parked for anything else: what it is parked for then would not say
        // that an answer to this wakes it as well.
        open.asks(false);
        let Self { run, services } = self.clone();
        let cancelled = run.cancelled.clone();
        let tasks = run.family.tasks().background.clone();
        let acting = async move {
            let outcome = tokio::select! {
                outcome = resolve(&run, &services, &id, action) => outcome,
                // The end of the run says of what is left that it was cancelled.
                () = cancelled.cancelled() => return,
                () = run.deadline.passed() => return,
                () = run.family.tasks().released.cancelled() => return,
            };
            match outcome {
                Ok(Some(value)) => open.end(CallOutcome::Action(Ok(&value))).await,
                // A person or the clock has said no, and the record says so already.
                Ok(None) => open.ended_before(),
                Err(error) => open.end(CallOutcome::Action(Err(&error))).await,
            }
        };
        tasks.spawn(log_context::inherit(acting.with_current_context()));
    }
}

/// `None` where the record has the outcome already.
async fn resolve(
    run: &Execution,
    services: &Services,
    id: &str,
    action: Result<PlatformAction, ApiError>,
) -> Result<Option<Value>, ApiError> {
    let action = action?;
    if action.ruling.policy == ApprovalPolicy::Ask {
        let resolution = run.await_answer(id, AskKind::PlatformAction, WaitMode::Background).await?;
        if resolution.refusal().is_some() {
            return Ok(None);
        }
    }
    services.actions.call(&action.action, id, &action.order(&run.terms, run.run_id, id), run.deadline.at()).await.map(Some)
}

impl Execution {
    /// Waits, after a run was completed, until its background actions are resolved. A run that waits for people only leaves
    /// memory: its guest is executed again when they have answered, and comes to the same end.
    pub(crate) async fn await_background(&self) {
        let Some(tasks) = self.family.known_tasks() else { return };
        tasks.background.close();
        if tasks.background.is_empty() {
            return;
        }
        let mut arrivals = self.waits.mail.arrivals();
        loop {
            arrivals.mark_unchanged();
            // Looked at again when nobody can answer any more: one that was answered meanwhile is done first.
            if self.journal.can_resume() && self.only_people().is_some() && self.waits.mail.close_if_idle() {
                match self.only_people() {
                    Some(stop) => self.stop(stop).await,
                    None => self.waits.mail.reopen(),
                }
            }
            tokio::select! {
                () = tasks.background.wait() => return,
                _ = arrivals.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// The reason to park if the run waits for people and for no other work; `None` otherwise.
    fn only_people(&self) -> Option<Stop> {
        let open = self.open_background_actions().ok()?;
        if open.is_empty() || open.len() > MAX_KEYS || open.iter().any(|action| action.status != ActionStatus::Open) {
            return None;
        }
        let until = open.iter().filter_map(Action::expires_at).min();
        if until.is_some_and(|until| until <= time::now()) {
            // The action is being written.
            return None;
        }
        let keys = open.iter().map(|action| WaitKey::action(&action.action_id)).collect();
        Some(Stop::Park { until, reason: AskKind::PlatformAction.reason(), keys })
    }

    fn open_background_actions(&self) -> Result<Vec<Action>, ApiError> {
        let record = self.ledger.run_by_no(self.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(Vec::new()) };
        let actions = actions_of(&self.ledger, &record).map_err(ledger_failed)?.into_iter();
        Ok(actions.filter(|action| action.status != ActionStatus::Resolved && is_background(&action.action_id)).collect())
    }
}

/// Between two looks at whether only people are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Keys of a parked run; it has one for its conversation as well.
pub(crate) const MAX_KEYS: usize = 60;
