//! Readiness of the host, for operators and for `/metrics`.

use std::collections::{BTreeMap, HashSet};

use agent_host_ledger::{Activity, Health};
use agent_host_protocol::PluginStatus;
use serde::Serialize;

use super::cell::Cell;
use crate::{
    execution::{Shared, metrics::Now},
    policy::binding::BindingReport,
    record::WaitKey,
};

/// Open questions are counted up to here: more than that is as much as to say.
const MAX_OPEN_ACTIONS: usize = 10_000;

/// The readiness of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// True if the host accepts events, for every plugin that was there at its start.
    pub ready: bool,
    /// `ok`, or what is wrong with the ledger.
    pub ledger: String,
    /// Files of the plugins directory that serve.
    pub plugins_ready: usize,
    /// Files that were refused.
    pub plugins_refused: usize,
    /// Runs whose guest is in memory.
    pub live_runs: usize,
    /// Runs that wait behind another of their conversation.
    pub waiting_runs: usize,
    /// Runs that wait on disk for a time or an answer, and take no memory.
    pub parked_runs: u64,
    /// Problems that an operator should look at. None of them keeps the host from taking events for other bindings.
    pub problems: Vec<String>,
}

/// A report of each binding, in the order of the configuration.
pub(crate) fn bindings(shared: &Shared) -> Vec<BindingReport> {
    let setup = shared.setup();
    setup.bindings.iter().map(|binding| binding.report(shared.serving(&binding.config.runner).as_ref())).collect()
}

/// Logs the problems that an operator should look at, when a host starts. A model that nothing uses is no such problem: readiness
/// shows it, and the first call of it is logged.
pub(super) fn log_problems(shared: &Shared) {
    for (id, problem) in bindings(shared).into_iter().filter_map(|report| report.problem.map(|problem| (report.id, problem))) {
        tracing::warn!(binding = id, "{problem}");
    }
    let used = used_models(shared);
    for problem in shared.setup().problems(|model| used.contains(model)) {
        tracing::warn!("{problem}");
    }
}

/// The models that the runs of a binding may use, and those of knowledge bases.
fn used_models(shared: &Shared) -> HashSet<String> {
    let setup = shared.setup();
    let bases = setup.config.knowledge_bases.iter();
    let of_bases = bases.flat_map(|base| [&base.embedding_model, &base.rerank_model]).flatten().cloned();
    let of_bindings = setup.bindings.iter().flat_map(|binding| {
        let runner = shared.serving(&binding.config.runner);
        runner
            .map(|runner| setup.services.named(&binding.config.resources, &runner.manifest().permissions).models)
            .unwrap_or_default()
    });
    of_bases.chain(of_bindings).collect()
}

/// Problems of a process and its cells, for an operator.
pub(super) fn problems(shared: &Shared, cells: &[Cell]) -> Vec<String> {
    let mut problems: Vec<_> = bindings(shared).into_iter().filter_map(|binding| binding.problem).collect();
    problems.extend(cells.iter().filter_map(Cell::problem));
    problems.extend(shared.setup().problems(|_| true));
    if !shared.plugins.is_settled() {
        problems.push("plugins are still being compiled: events for those that serve are accepted".to_owned());
    }
    problems
}

/// The numbers that nobody counts: they are read now, of all cells together.
pub(super) fn numbers(shared: &Shared, cells: &[Cell]) -> Now {
    let mut depths = BTreeMap::<String, u64>::new();
    for (queue, depth) in cells.iter().flat_map(|cell| cell.runs.waiting.depths()) {
        *depths.entry(queue).or_default() += depth;
    }
    depths.iter().for_each(|(queue, depth)| shared.metrics.queued(queue, *depth));
    let setup = shared.setup();
    let bytes = |id: &String| cells.iter().filter_map(|cell| cell.ledger.workspace_bytes(id).ok()).sum();
    let plugins = shared.plugins.reports();
    let count = |status| plugins.iter().filter(|plugin| plugin.status == status).count();
    Now {
        live: shared.sandbox.live(),
        waiting: cells.iter().map(|cell| cell.runs.lines.waiting_in_all()).sum(),
        parked: cells.iter().map(|cell| cell.ledger.parked_count()).sum(),
        ready: count(PluginStatus::Ready),
        refused: count(PluginStatus::Refused),
        actions: cells.iter().map(Cell::count_open_actions).sum(),
        ledger: cells.iter().map(|cell| cell.ledger.activity()).reduce(Activity::and).unwrap_or_default(),
        workspaces: setup.config.quotas.workspaces.keys().map(|id| (id.clone(), bytes(id))).collect(),
    }
}

impl Cell {
    /// A problem of the ledger that keeps nobody from using it.
    fn problem(&self) -> Option<String> {
        let Health::MergesFail { reason, is_full: false } = self.ledger.health() else { return None };
        Some(format!(
            "rows of the log cannot be merged into ledger.redb ({reason}): nothing is lost, but the log fills: check the disk"
        ))
    }

    /// The readiness of the cell.
    pub(crate) fn readiness(&self, shared: &Shared) -> Readiness {
        let mut problems = problems(shared, std::slice::from_ref(self));
        let ledger = match self.ledger.health() {
            Health::Ok | Health::MergesFail { is_full: false, .. } => "ok".to_owned(),
            Health::MergesFail { reason, is_full: true } => {
                format!("the log is full, and its rows cannot be merged into ledger.redb ({reason}): check the disk")
            }
            Health::WritesFail { reason } => {
                format!("the last write failed ({reason}): check the disk; the host tries again by itself")
            }
            Health::WritesHang { for_ms } => format!("the disk has not answered for {for_ms} ms: check it"),
            Health::DiskLow { free, needed } => format!("the disk has {free} bytes left and needs {needed}: free some space"),
            Health::Failed(reason) => format!("{reason}: restart the host"),
            other => format!("{other:?}"),
        };
        let stopping = self.runs.stopping.is_cancelled();
        let plugins = shared.plugins.reports();
        let count = |status| plugins.iter().filter(|plugin| plugin.status == status).count();
        let settled = shared.plugins.is_settled();
        if stopping {
            problems.push("the host is shutting down".to_owned());
        }
        Readiness {
            ready: ledger == "ok" && settled && !stopping,
            ledger,
            plugins_ready: count(PluginStatus::Ready),
            plugins_refused: count(PluginStatus::Refused),
            live_runs: shared.sandbox.live(),
            waiting_runs: self.runs.lines.waiting_in_all(),
            parked_runs: self.ledger.parked_count(),
            problems,
        }
    }

    /// Actions that wait for an answer now: of runs in memory, and of parked runs.
    fn count_open_actions(&self) -> usize {
        let awaited = self.runs.registry.awaited_count();
        if self.ledger.parked_count() == 0 {
            return awaited;
        }
        awaited + self.ledger.parked_keys(WaitKey::ACTIONS, None, MAX_OPEN_ACTIONS).map_or(0, |keys| keys.len())
    }
}
