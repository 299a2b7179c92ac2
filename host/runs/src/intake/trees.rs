//! Trees of runs: a run that a client or a source began, and all that it and its children start. Each run has bounds of its own;
//! this one holds for all of them together, so that one event does not become thousands of runs.

use std::collections::HashMap;

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::RunId;
use parking_lot::Mutex;

use crate::execution::family::Children;

/// Roots that are remembered before those that have ended are forgotten.
const ROOTS: usize = 1_000;

/// The number of runs below each root that has started some.
#[derive(Default)]
pub(crate) struct Trees(Mutex<HashMap<RunId, usize>>);

impl Trees {
    /// Adds a run below `parent`, and gives the root; `None` if the tree has as many as it may.
    pub(super) fn grow(&self, ledger: &Ledger, parent: RunId, most: usize) -> Result<Option<RunId>, LedgerError> {
        let root = root(ledger, parent)?;
        let known = self.0.lock().get(&root).copied();
        // The host has started since, or the root is new.
        let found = if known.is_none() { descendants(ledger, root, most)? } else { 0 };
        let mut counts = self.0.lock();
        if counts.len() >= ROOTS && !counts.contains_key(&root) {
            counts.retain(|root, _| !has_ended(ledger, *root));
        }
        let count = counts.entry(root).or_insert(found);
        if *count >= most {
            return Ok(None);
        }
        *count += 1;
        Ok(Some(root))
    }

    /// Takes back a run that was not made.
    pub(super) fn shrink(&self, root: RunId) {
        if let Some(count) = self.0.lock().get_mut(&root) {
            *count = count.saturating_sub(1);
        }
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

/// The number of runs below a run, counted up to `most`.
fn descendants(ledger: &Ledger, root: RunId, most: usize) -> Result<usize, LedgerError> {
    let (mut count, mut waiting) = (0, vec![root]);
    while count < most
        && let Some(run) = waiting.pop()
    {
        let Some(record) = ledger.run(run)? else { continue };
        let children = Children::of(ledger, &record)?.all();
        count += children.len();
        waiting.extend(children);
    }
    Ok(count)
}

/// A root that cannot be read is kept: its tree stays bounded.
fn has_ended(ledger: &Ledger, root: RunId) -> bool {
    matches!(ledger.run(root), Ok(record) if record.as_ref().is_none_or(|record| record.run.status.is_terminal()))
}
