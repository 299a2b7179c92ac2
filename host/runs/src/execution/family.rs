//! The family of an execution: the runs that it has started, and the tasks that go on beside its guest.

use std::{
    collections::HashSet,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_host_ledger::{Ledger, LedgerError, RunRecord};
use agent_host_protocol::{ResultKind, RunId};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The runs and tasks that belong to one execution.
#[derive(Default)]
pub(crate) struct Family {
    pub(crate) children: Children,
    /// Made for the first task: most runs have none.
    tasks: OnceLock<FamilyTasks>,
    released: AtomicBool,
}

/// The tasks that go on beside a guest.
#[derive(Default)]
pub(crate) struct FamilyTasks {
    /// Background actions, and calls that outlive their caller.
    pub(crate) background: TaskTracker,
    /// Tasks that record the ends of children.
    pub(crate) reporters: TaskTracker,
    /// Cancelled at the end of the execution; stops the background tasks of the run.
    pub(crate) released: CancellationToken,
}

impl Family {
    /// The tasks, for one more. A task that begins after the end of the execution is stopped at once.
    pub(crate) fn tasks(&self) -> &FamilyTasks {
        let tasks = self.tasks.get_or_init(FamilyTasks::default);
        if self.is_released() {
            tasks.released.cancel();
        }
        tasks
    }

    /// The tasks of a run that has had one.
    pub(crate) fn known_tasks(&self) -> Option<&FamilyTasks> {
        self.tasks.get()
    }

    /// True after the end of the execution.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    /// Stops the background tasks of the run and waits for their end.
    pub(crate) async fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        let Some(tasks) = self.tasks.get() else { return };
        tasks.released.cancel();
        tasks.background.close();
        tasks.background.wait().await;
        tasks.reporters.close();
        tasks.reporters.wait().await;
    }
}

/// The runs that one run has started.
#[derive(Default)]
pub(crate) struct Children(Mutex<ChildSets>);

#[derive(Default)]
struct ChildSets {
    all: Vec<RunId>,
    ended: HashSet<RunId>,
    /// Children whose use of models is in the budget of the parent.
    counted: HashSet<RunId>,
    /// Their parent has ended.
    closed: bool,
}

impl Children {
    /// The children that the record of a run has.
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
        Ok(Self(Mutex::new(ChildSets { all, ..ChildSets::default() })))
    }

    pub(crate) fn inherit(&self, other: Self) {
        *self.0.lock() = other.0.into_inner();
    }

    /// Adds a child. Returns false if the parent no longer accepts children.
    pub(crate) fn add(&self, id: RunId) -> bool {
        let mut known = self.0.lock();
        if !known.all.contains(&id) {
            known.all.push(id);
        }
        !known.closed
    }

    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }

    /// True if the use of models by this child was not counted before; it counts as counted from now on.
    pub(crate) fn count(&self, id: RunId) -> bool {
        self.0.lock().counted.insert(id)
    }

    pub(crate) fn has(&self, id: RunId) -> bool {
        self.0.lock().all.contains(&id)
    }

    /// In the order in which they were started.
    pub(crate) fn all(&self) -> Vec<RunId> {
        self.0.lock().all.clone()
    }

    /// The children that have not ended.
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
