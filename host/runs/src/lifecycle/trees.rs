//! Trees of runs: a run that a client or a source began, and all that it and its children start. Each run has bounds of its own;
//! those of a tree hold for all of them together, so that one event does not become thousands of runs, and children who work at the same
//! time do not spend the budget of their parent once each, nor its CPU time.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent_host_config::Budget;
use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::{Limits, RunId, run::ModelUsage};
use agent_host_sandbox::CpuBudget;
use parking_lot::Mutex;

use crate::{
    execution::{budget::Spending, family::Children},
    record::terms::Terms,
};

/// Roots that are remembered before those that have ended are forgotten.
const ROOTS: usize = 1_000;

/// The trees with more than one run, and those that may get more.
#[derive(Default)]
pub(crate) struct Trees(Mutex<KnownTrees>);

#[derive(Default)]
struct KnownTrees {
    by_root: HashMap<RunId, Arc<Tree>>,
    /// Number of roots that were active when all were last looked at.
    active: usize,
}

/// The runs below one root.
pub(crate) struct Tree {
    /// Their number, without the root.
    runs: AtomicUsize,
    /// The use of models by all, the root included, and the budget of the root.
    spending: Arc<Spending>,
    /// The CPU time of all, the root included. It begins anew with the host.
    cpu: Arc<CpuBudget>,
}

impl Tree {
    /// Takes back a run that was not made.
    pub(crate) fn shrink(&self) {
        let _ = self.runs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |runs| runs.checked_sub(1));
    }
}

impl Trees {
    /// Adds a run below `parent`, and gives the tree; `None` if the tree has as many as it may.
    pub(crate) fn grow(&self, ledger: &Ledger, parent: RunId, limits: &Limits) -> Result<Option<Arc<Tree>>, LedgerError> {
        let (tree, most) = (self.of(ledger, parent, limits)?, limits.tree_runs);
        let grown = tree.runs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |runs| (runs < most).then_some(runs + 1));
        Ok(grown.is_ok().then_some(tree))
    }

    /// The sums of the tree of a run.
    pub(crate) fn spending(&self, ledger: &Ledger, run: RunId, limits: &Limits) -> Result<Arc<Spending>, LedgerError> {
        Ok(Arc::clone(&self.of(ledger, run, limits)?.spending))
    }

    /// The CPU time of the tree of a run.
    pub(crate) fn cpu(&self, ledger: &Ledger, run: RunId, limits: &Limits) -> Result<Arc<CpuBudget>, LedgerError> {
        Ok(Arc::clone(&self.of(ledger, run, limits)?.cpu))
    }

    fn of(&self, ledger: &Ledger, run: RunId, limits: &Limits) -> Result<Arc<Tree>, LedgerError> {
        let root = root(ledger, run)?;
        if let Some(tree) = self.0.lock().by_root.get(&root) {
            return Ok(Arc::clone(tree));
        }
        // The host has started since, or the root is new.
        let found = Arc::new(read(ledger, root, limits)?);
        let mut known = self.0.lock();
        // Each root that stays is looked at again when there are twice as many, so that many active ones cost a new one nothing.
        if known.by_root.len() >= ROOTS.max(2 * known.active) {
            known.by_root.retain(|root, _| !has_ended(ledger, *root));
            known.active = known.by_root.len();
        }
        Ok(Arc::clone(known.by_root.entry(root).or_insert(found)))
    }
}

/// The run at the top of the tree of a run. The way to it is at most `limits.child_depth` long.
fn root(ledger: &Ledger, run: RunId) -> Result<RunId, LedgerError> {
    let mut root = run;
    while let Some(parent) = ledger.run(root)?.and_then(|record| record.run.parent_run_id) {
        root = parent;
    }
    Ok(root)
}

/// A tree as the ledger has it. It has at most `limits.tree_runs` runs.
fn read(ledger: &Ledger, root: RunId, limits: &Limits) -> Result<Tree, LedgerError> {
    let (mut runs, mut used, mut waiting) = (0, ModelUsage::default(), vec![root]);
    while let Some(run) = waiting.pop() {
        let Some(record) = ledger.run(run)? else { continue };
        used.add(&record.run.usage.unwrap_or_default());
        let children = Children::of(ledger, &record)?.all();
        runs += children.len();
        waiting.extend(children);
    }
    let terms = ledger.terms(root)?.and_then(|terms| serde_json::from_str::<Terms>(terms.get()).ok());
    let budget: Budget = terms.and_then(|terms| terms.budget).unwrap_or_default();
    Ok(Tree {
        runs: AtomicUsize::new(runs),
        spending: Arc::new(Spending::new(budget, &used)),
        cpu: Arc::new(CpuBudget::new(Duration::from_millis(limits.tree_cpu_ms))),
    })
}

/// A root that cannot be read is kept: its tree stays bounded.
fn has_ended(ledger: &Ledger, root: RunId) -> bool {
    matches!(ledger.run(root), Ok(record) if record.as_ref().is_none_or(|record| record.run.status.is_terminal()))
}
