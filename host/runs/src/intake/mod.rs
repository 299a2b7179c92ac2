//! The intake: events, runs by name, schedules, signed requests, pipelines, forks, children and captures of other frameworks
//! become runs. Deliveries bring webhooks the results.

pub(crate) mod accept;
pub(crate) mod agents;
pub(crate) mod child;
pub(crate) mod create;
pub(crate) mod delivery;
pub(crate) mod fork;
pub(crate) mod hooks;
pub(crate) mod import;
pub(crate) mod pipeline;
mod place;
pub(crate) mod scheduler;

use std::{ops::Deref, sync::Arc};

use agent_host_ledger::Ledger;

use self::{delivery::Deliveries, scheduler::Scheduler};
use crate::{
    execution::{Shared, neighbours::Neighbours},
    lifecycle::Runs,
};

/// The way into one cell. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Intake(Arc<IntakeOfCell>);

/// The state of the intake of one ledger.
pub(crate) struct IntakeOfCell {
    pub(crate) shared: Arc<Shared>,
    pub(crate) ledger: Ledger,
    pub(crate) runs: Runs,
    /// Held while a run is made under an idempotency key of its own, or in a conversation that may be busy.
    pub(crate) creating: tokio::sync::Mutex<()>,
    /// One permit for each capture that is being checked.
    checking: Arc<tokio::sync::Semaphore>,
    pub(crate) scheduler: Scheduler,
    /// Webhook deliveries that are not finished.
    pub(crate) deliveries: Arc<Deliveries>,
}

impl Deref for Intake {
    type Target = IntakeOfCell;

    fn deref(&self) -> &IntakeOfCell {
        &self.0
    }
}

impl Intake {
    /// The intake of these runs; from now on they reach each other through it.
    pub(crate) fn new(runs: &Runs) -> Self {
        let intake = Arc::new(IntakeOfCell {
            shared: Arc::clone(&runs.shared),
            ledger: runs.ledger.clone(),
            runs: runs.clone(),
            creating: tokio::sync::Mutex::default(),
            checking: Arc::new(tokio::sync::Semaphore::new(import::CHECKED_AT_ONCE)),
            scheduler: Scheduler::default(),
            deliveries: Arc::default(),
        });
        let weak = Arc::downgrade(&intake);
        runs.connect(weak as std::sync::Weak<dyn Neighbours>);
        Self(intake)
    }

    /// The setup was replaced: what follows from it is looked at anew.
    pub(crate) fn setup_changed(&self) {
        self.scheduler.changed.notify_one();
        self.deliveries.setup_changed();
        for binding in &self.shared.setup().bindings {
            if let Some(policy) = &binding.config.queue {
                self.runs.admissions.adapt(&binding.config.id, policy);
            }
        }
    }
}
