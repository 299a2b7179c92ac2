//! Platform actions that a runner does not wait for (`results.action-requested`): asked for with the result, judged by the
//! same policy, done while the run goes on. The run ends when all of them are resolved.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{ApiError, RunId, ask::ActionOutcome, time};
use opentelemetry::context::FutureExt;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::{
    approval::ApprovalPolicy,
    asks::{Action, ActionStatus, AskKind, Wait, actions_of, key},
    calls::{Wanted, not_approved},
    error::ledger_failed,
    facts::Begun,
    gate::RunState,
    journal::Stop,
    services::Services,
};

/// Names such an action by the event that asks for it: it is not among the numbered calls of its run.
pub(crate) fn action_id(run_id: RunId, sequence: u64) -> String {
    format!("{run_id}.e{sequence}")
}

/// Whether an action is one that goes on beside its run.
pub(crate) fn is_passing(action_id: &str) -> bool {
    action_id.split_once('.').is_some_and(|(_, name)| name.starts_with('e'))
}

fn is_detached(action: &Action) -> bool {
    is_passing(&action.action_id)
}

/// The actions of one execution that go on beside its guest.
#[derive(Clone)]
pub(crate) struct Detached {
    run: Arc<RunState>,
    services: Arc<Services>,
}

impl Detached {
    pub(crate) fn new(run: &Arc<RunState>, services: &Arc<Services>) -> Self {
        Self { run: Arc::clone(run), services: Arc::clone(services) }
    }

    /// Takes up what executions before have left open.
    pub(crate) fn take_up(&self) -> Result<(), ApiError> {
        // A new attempt asks anew. What the one before has left open is closed by its first write, which may be on its way.
        if !self.run.journal.is_recording() {
            return Ok(());
        }
        let record = self.run.ledger.run_by_no(self.run.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(()) };
        for action in actions_of(&self.run.ledger, &record).map_err(ledger_failed)? {
            // A fork has the facts of another run, and nothing of what that has asked for.
            let is_own = action.action_id.starts_with(&self.run.run_id.to_string());
            if action.status == ActionStatus::Resolved || !is_detached(&action) || !is_own {
                continue;
            }
            let field = |name: &str| action.request.get(name).cloned().unwrap_or_default();
            let name = field("action").as_str().unwrap_or_default().to_owned();
            let wanted = Wanted::judge(&self.run.terms, &self.services, name, field("target"), field("payload"));
            self.spawn(action.action_id, wanted);
        }
        Ok(())
    }

    /// Lets an action go its way. That it was asked for is durable.
    pub(crate) fn spawn(&self, id: String, wanted: Result<Wanted, ApiError>) {
        let begun = Begun::passing(&self.run, &id);
        // As long as it is not resolved, the run is not parked for anything else: what it is parked for then would not say
        // that an answer to this wakes it as well.
        begun.asks(false);
        let Self { run, services } = self.clone();
        let (cancelled, deadline) = (run.cancelled.clone(), run.deadline);
        let tasks = run.passing.clone();
        let acting = async move {
            let outcome = tokio::select! {
                outcome = resolve(&run, &services, &id, wanted) => outcome,
                // The end of the run says of what is left that it was cancelled.
                () = cancelled.cancelled() => return,
                () = tokio::time::sleep_until(deadline.into()) => return,
                () = run.let_go.cancelled() => return,
            };
            match outcome {
                Ok(Some(value)) => begun.acted(Ok(&value)).await,
                // A person or the clock has said no, and the record says so already.
                Ok(None) => begun.ended_before(),
                Err(error) => begun.acted(Err(&error)).await,
            }
        };
        tasks.spawn(acting.with_current_context());
    }
}

/// Nothing where the record says already what came of it.
async fn resolve(
    run: &RunState,
    services: &Services,
    id: &str,
    wanted: Result<Wanted, ApiError>,
) -> Result<Option<Value>, ApiError> {
    let wanted = wanted?;
    if wanted.ruling.policy == ApprovalPolicy::Ask {
        let told = run.told(id, AskKind::PlatformAction, Wait::InPassing).await?;
        if let Some(ActionOutcome::Denied(_) | ActionOutcome::Expired) = not_approved(told) {
            return Ok(None);
        }
    }
    services.actions.call(&wanted.action, id, &wanted.order(&run.terms, run.run_id, id), run.deadline).await.map(Some)
}

impl RunState {
    /// Waits, after the guest has come to a good end, until what it has asked for in passing is resolved. A run that waits
    /// for people only leaves memory: its guest is executed again when they have answered, and comes to the same end.
    pub(crate) async fn passed_by(&self) {
        self.passing.close();
        if self.passing.is_empty() {
            return;
        }
        let mut mail = self.mail.watch();
        loop {
            mail.mark_unchanged();
            // Looked at again when nobody can answer any more: one that was answered meanwhile is done first.
            if self.journal.can_resume() && self.only_people().is_some() && self.mail.close_if_idle() {
                match self.only_people() {
                    Some(stop) => self.stop(stop).await,
                    None => self.mail.open(),
                }
            }
            tokio::select! {
                () = self.passing.wait() => return,
                _ = mail.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// How the run is parked, where it waits for people and for nothing else.
    fn only_people(&self) -> Option<Stop> {
        let open = self.open_in_passing().ok()?;
        if open.is_empty() || open.len() > MAX_KEYS || open.iter().any(|action| action.status != ActionStatus::Open) {
            return None;
        }
        let until = open.iter().filter_map(Action::expires_at).min();
        if until.is_some_and(|until| until <= time::now()) {
            // That is being written.
            return None;
        }
        let keys = open.iter().map(|action| key(&action.action_id)).collect();
        Some(Stop::Park { until, reason: AskKind::PlatformAction.reason(), keys })
    }

    fn open_in_passing(&self) -> Result<Vec<Action>, ApiError> {
        let record = self.ledger.run_by_no(self.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(Vec::new()) };
        let actions = actions_of(&self.ledger, &record).map_err(ledger_failed)?.into_iter();
        Ok(actions.filter(|action| action.status != ActionStatus::Resolved && is_detached(action)).collect())
    }
}

/// Between two looks at whether only people are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Keys of a parked run; it has one for its conversation as well.
pub(crate) const MAX_KEYS: usize = 60;

/// The tasks of such actions.
pub(crate) type Passing = TaskTracker;
