//! The numbers of a host, for `/metrics` (docs/OPERATIONS-metrics.md has all of them).
//!
//! Each host has its own: several live in one process. To count is one atomic operation, or a look-up and one. Labels
//! come from the configuration and from the contract, never ids of runs or conversations, and a family has a bounded
//! number of rows whatever comes ([`sheet::Table`]).

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_host_ledger::Activity;
use agent_host_protocol::{ApiError, ErrorCode, Run, message::TokenUsage};
use agent_host_providers::trace;
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    registry::{Registry, Unit},
};

use crate::record::journal;

mod process;
pub mod sheet;

use sheet::{Count, Labels, OTHER, Sheet, Table, Timing};

/// The label of a host call's outcome: `ok`, or an error code of the contract.
const OUTCOMES: [&str; 11] = [
    "ok",
    "unauthorized",
    "not_found",
    "deadline_exceeded",
    "payload_too_large",
    "rate_limited",
    "invalid_argument",
    "conflict",
    "cancelled",
    "runtime_error",
    OTHER,
];

/// The label of an outcome.
pub(crate) fn outcome(error: Option<&ApiError>) -> &'static str {
    OUTCOMES.get(place(error)).copied().unwrap_or(OTHER)
}

fn place(error: Option<&ApiError>) -> usize {
    match error.map(|error| &error.code) {
        None => 0,
        Some(ErrorCode::Unauthorized) => 1,
        Some(ErrorCode::NotFound) => 2,
        Some(ErrorCode::DeadlineExceeded) => 3,
        Some(ErrorCode::PayloadTooLarge) => 4,
        Some(ErrorCode::RateLimited) => 5,
        Some(ErrorCode::InvalidArgument) => 6,
        Some(ErrorCode::Conflict) => 7,
        Some(ErrorCode::Cancelled) => 8,
        Some(ErrorCode::RuntimeError) => 9,
        Some(_) => 10,
    }
}

/// The metrics of one function of the contract.
#[derive(Debug)]
struct Function {
    outcomes: [AtomicU64; OUTCOMES.len()],
    took: Timing,
}

/// The runs of one runner under one binding.
#[derive(Debug)]
struct Runs {
    created: Count,
    started: Count,
    resumed: Count,
    ended: Table<Count>,
    lasted: Timing,
    waited: Timing,
}

impl Runs {
    fn new() -> Self {
        Self {
            created: Count::default(),
            started: Count::default(),
            resumed: Count::default(),
            ended: Table::default(),
            lasted: Timing::long(),
            waited: Timing::long(),
        }
    }
}

/// The numbers of one host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Numbers>);

#[derive(Debug)]
struct Numbers {
    events: Count,
    runs: Table<Runs>,
    results: Count,
    functions: HashMap<&'static str, Function>,
    other_functions: Function,
    models: Table<Count>,
    model_times: Table<Timing>,
    tokens: Table<Count>,
    tools: Table<Count>,
    tool_times: Table<Timing>,
    egress: Table<Count>,
    // Of the queue, of deliveries and of schedules.
    claims: Table<Count>,
    leases_lost: Table<Count>,
    queued: Table<Count>,
    deliveries: Table<Count>,
    ticks: Table<Count>,
}

impl Default for Metrics {
    fn default() -> Self {
        process::note_start();
        let function = || Function { outcomes: Default::default(), took: Timing::short() };
        Self(Arc::new(Numbers {
            events: Count::default(),
            runs: Table::default(),
            results: Count::default(),
            functions: journal::functions().map(|name| (name, function())).collect(),
            other_functions: function(),
            models: Table::default(),
            model_times: Table::default(),
            tokens: Table::default(),
            tools: Table::default(),
            tool_times: Table::default(),
            egress: Table::default(),
            claims: Table::default(),
            leases_lost: Table::default(),
            queued: Table::default(),
            deliveries: Table::default(),
            ticks: Table::default(),
        }))
    }
}

impl Metrics {
    /// An event was accepted, and is on disk.
    pub(crate) fn accepted(&self) {
        self.0.events.add();
    }

    fn runs(&self, run: &Run) -> Arc<Runs> {
        self.0.runs.row(&[run.runner_id.as_str(), &run.binding_id], Runs::new)
    }

    /// A run was created, and is on disk.
    pub fn created(&self, run: &Run) {
        self.runs(run).created.add();
    }

    /// A run is executed for the first time, or tried again; `waited` is how long it had to wait for that.
    pub fn started(&self, run: &Run, waited: Duration) {
        let runs = self.runs(run);
        runs.started.add();
        runs.waited.took(waited);
    }

    /// Counts a run that was resumed after waiting on disk or after a crash.
    pub fn resumed(&self, run: &Run) {
        self.runs(run).resumed.add();
    }

    /// A run has ended, and its end is on disk.
    pub fn ended(&self, run: &Run) {
        let runs = self.runs(run);
        runs.ended.row(&[run.status.as_str()], Count::default).add();
        if let (Some(started), Some(finished)) = (run.started_at, run.finished_at) {
            runs.lasted.took(Duration::from_millis(finished.saturating_sub(started)));
        }
    }

    /// Results were emitted, or appended.
    pub fn emitted(&self, results: u64) {
        self.0.results.add_many(results);
    }

    /// A host call was answered.
    pub fn called(&self, function: &str, error: Option<&ApiError>, took: Duration) {
        let function = self.0.functions.get(function).unwrap_or(&self.0.other_functions);
        if let Some(count) = function.outcomes.get(place(error)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        function.took.took(took);
    }

    /// A model was called; both labels come from the configuration and the contract.
    pub(crate) fn model(&self, model: &str, operation: &str, outcome: &str, took: Duration) {
        self.0.models.row(&[model, operation, outcome], Count::default).add();
        self.0.model_times.row(&[model, operation], Timing::long).took(took);
    }

    /// Counts the tokens of a model call.
    pub(crate) fn tokens(&self, model: &str, usage: &TokenUsage) {
        for (direction, tokens) in [("input", usage.input), ("output", usage.output)] {
            self.0.tokens.row(&[model, direction], Count::default).add_many(tokens);
        }
    }

    /// A tool was called that the configuration names.
    pub(crate) fn tool(&self, tool: &str, outcome: &str, took: Duration) {
        self.0.tools.row(&[tool, outcome], Count::default).add();
        self.0.tool_times.row(&[tool], Timing::long).took(took);
    }

    /// A run has made a request to the outside.
    pub(crate) fn egress(&self, error: Option<&ApiError>) {
        self.0.egress.row(&[outcome(error)], Count::default).add();
    }

    /// An executor has claimed a run of this queue.
    pub fn claimed(&self, queue: &str) {
        self.0.claims.row(&[queue], Count::default).add();
    }

    /// The lease of a run of this queue has expired.
    pub fn lease_lost(&self, queue: &str) {
        self.0.leases_lost.row(&[queue], Count::default).add();
    }

    /// Sets the number of runs that wait in a queue.
    pub fn queued(&self, queue: &str, runs: u64) {
        self.0.queued.row(&[queue], Count::default).set(runs);
    }

    /// A delivery to this webhook was tried; `outcome` is a word of few: `delivered`, `failed`, `dead`.
    pub fn delivered(&self, webhook: &str, outcome: &str) {
        self.0.deliveries.row(&[webhook, outcome], Count::default).add();
    }

    /// A schedule has made an event.
    pub fn tick(&self, schedule: &str) {
        self.0.ticks.row(&[schedule], Count::default).add();
    }
}

/// Numbers that are read when somebody asks.
#[derive(Debug)]
pub(crate) struct Now {
    pub(crate) live: usize,
    pub(crate) waiting: usize,
    pub(crate) parked: u64,
    /// Plugin files that serve.
    pub(crate) ready: usize,
    pub(crate) refused: usize,
    /// Actions that wait for an answer.
    pub(crate) actions: usize,
    pub(crate) ledger: Activity,
    /// Bytes that the ledger keeps for each workspace with a quota of its own.
    pub(crate) workspaces: Vec<(String, u64)>,
}

impl Metrics {
    /// Writes all numbers in the text format of OpenMetrics, without the line that ends it.
    pub(crate) fn write(&self, now: Now, page: &mut String) -> fmt::Result {
        let mut of_host = Registry::with_prefix("agent_host");
        of_host.register_collector(Box::new(Page { numbers: Arc::clone(&self.0), now }));
        prometheus_client::encoding::text::encode_registry(page, &of_host)?;
        let mut of_process = Registry::with_prefix("process");
        of_process.register_collector(Box::new(Process));
        prometheus_client::encoding::text::encode_registry(page, &of_process)
    }
}

#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        process::write(&mut Sheet::new(encoder))
    }
}

#[derive(Debug)]
struct Page {
    numbers: Arc<Numbers>,
    now: Now,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sheet = &mut Sheet::new(encoder);
        self.numbers.of_runs(sheet)?;
        self.of_now(sheet)?;
        self.numbers.of_calls(sheet)?;
        self.numbers.of_queue(sheet)?;
        self.of_ledger(sheet)?;
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        sheet.gauges("build_info", "The version of the host", [(version, 1.0)])
    }
}

/// The rows of a table of counts, with the names of its labels.
fn counted<const N: usize>(table: &Table<Count>, names: [&'static str; N]) -> Vec<(Labels, u64)> {
    table.rows().into_iter().map(|(labels, count)| (names.into_iter().zip(labels).collect(), count.get())).collect()
}

/// Likewise of durations.
fn timed<const N: usize>(table: &Table<Timing>, names: [&'static str; N]) -> Vec<(Labels, Arc<Timing>)> {
    table.rows().into_iter().map(|(labels, timing)| (names.into_iter().zip(labels).collect(), timing)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "numbers for people: what is beyond 2^53 may lose some")]
fn float(number: u64) -> f64 {
    number as f64
}

impl Numbers {
    fn of_runs(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        sheet.counts("events_accepted", "Events that were accepted", [(Labels::new(), self.events.get())])?;
        let rows = self.runs.rows();
        let named = |labels: &[String]| ["runner", "binding"].into_iter().zip(labels.iter().cloned()).collect::<Labels>();
        let counts = |count: fn(&Runs) -> &Count| {
            rows.iter().map(move |(labels, runs)| (named(labels), count(runs).get())).collect::<Vec<_>>()
        };
        sheet.counts("runs_created", "Runs that were created", counts(|runs| &runs.created))?;
        sheet.counts(
            "runs_started",
            "Runs that were executed for the first time, or tried again",
            counts(|runs| &runs.started),
        )?;
        sheet.counts("runs_resumed", "Runs that went on after waiting on disk or a crash", counts(|runs| &runs.resumed))?;
        let ended = rows.iter().flat_map(|(labels, runs)| {
            runs.ended.rows().into_iter().map(|(status, count)| {
                let status = status.into_iter().next().unwrap_or_default();
                (named(labels).into_iter().chain([("status", status)]).collect(), count.get())
            })
        });
        sheet.counts("runs_ended", "Runs that have ended, by their status", ended.collect::<Vec<_>>())?;
        sheet.timings(
            "run_duration",
            "From the start of a run to its end, with all its waiting",
            rows.iter().map(|(labels, runs)| (named(labels), &runs.lasted)),
        )?;
        sheet.timings(
            "run_queue_wait",
            "From the creation of a run to its start",
            rows.iter().map(|(labels, runs)| (named(labels), &runs.waited)),
        )?;
        sheet.counts("results_emitted", "Results of runs", [(Labels::new(), self.results.get())])
    }

    fn of_calls(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let mut functions: Vec<_> = self.functions.iter().map(|(name, function)| (*name, function)).collect();
        functions.sort_unstable_by_key(|(name, _)| *name);
        functions.push((OTHER, &self.other_functions));
        functions.retain(|(_, function)| function.outcomes.iter().any(|count| count.load(Ordering::Relaxed) > 0));
        let calls = functions.iter().flat_map(|(name, function)| {
            let outcomes =
                OUTCOMES.iter().zip(&function.outcomes).map(|(outcome, count)| (*outcome, count.load(Ordering::Relaxed)));
            outcomes
                .filter(|(_, count)| *count > 0)
                .map(|(outcome, count)| (vec![("function", (*name).to_owned()), ("outcome", outcome.to_owned())], count))
        });
        sheet.counts("host_calls", "Host calls of runs, by outcome", calls.collect::<Vec<_>>())?;
        sheet.timings(
            "host_call_duration",
            "How long host calls take",
            functions.iter().map(|(name, function)| (vec![("function", (*name).to_owned())], &function.took)),
        )?;
        sheet.counts("model_calls", "Calls of runs to models", counted(&self.models, ["model", "operation", "outcome"]))?;
        sheet.timings(
            "model_call_duration",
            "How long models take to answer whole",
            timed(&self.model_times, ["model", "operation"]),
        )?;
        sheet.counts(
            "model_tokens",
            "Tokens that models have read and written",
            counted(&self.tokens, ["model", "direction"]),
        )?;
        sheet.counts("tool_calls", "Calls of runs to tools", counted(&self.tools, ["tool", "outcome"]))?;
        sheet.timings("tool_call_duration", "How long tools take", timed(&self.tool_times, ["tool"]))?;
        sheet.counts("egress_requests", "Requests of runs to the outside", counted(&self.egress, ["outcome"]))?;
        sheet.counts("spans_lost", "Spans of traces that could not be exported", [(Labels::new(), trace::lost())])
    }

    fn of_queue(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        sheet.counts("queue_claims", "Runs that executors have claimed", counted(&self.claims, ["queue"]))?;
        sheet.counts("queue_leases_lost", "Leases that have expired", counted(&self.leases_lost, ["queue"]))?;
        let queued = counted(&self.queued, ["queue"]).into_iter().map(|(labels, count)| (labels, float(count)));
        sheet.gauges("queue_runs", "Runs that wait in a queue", queued)?;
        sheet.counts("deliveries", "Deliveries of results to webhooks", counted(&self.deliveries, ["webhook", "outcome"]))?;
        sheet.counts("schedule_ticks", "Events that schedules have made", counted(&self.ticks, ["schedule"]))
    }
}

impl Page {
    fn of_now(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let Now { live, waiting, parked, ready, refused, actions, .. } = self.now;
        let row = |name, value: &str, count: usize| (vec![(name, value.to_owned())], float(count as u64));
        let states = [
            row("state", "live", live),
            row("state", "waiting", waiting),
            row("state", "parked", usize::try_from(parked).unwrap_or(usize::MAX)),
        ];
        sheet.gauges(
            "runs",
            "Runs that have not ended: in memory, behind another of their conversation, waiting on disk",
            states,
        )?;
        let plugins = [row("status", "ready", ready), row("status", "refused", refused)];
        sheet.gauges("plugins", "Files of the plugins directory", plugins)?;
        sheet.gauges("actions_open", "Open questions and actions", [(Labels::new(), float(actions as u64))])
    }

    fn of_ledger(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let Activity {
            batches,
            rows,
            log_bytes,
            logged_bytes,
            busy_us,
            checkpoints,
            checkpoint_us,
            longest_checkpoint_us,
            waiting,
            disk_free,
        } = self.now.ledger;
        let one = |count: u64| [(Labels::new(), count)];
        let seconds = |microseconds: u64| float(microseconds) / 1e6;
        sheet.counts("ledger_batches", "Group commits", one(batches))?;
        sheet.counts("ledger_rows", "Rows that group commits have put or deleted", one(rows))?;
        sheet.gauges_of(
            "ledger_log",
            "Bytes of the log that a start after a crash would read",
            Some(&Unit::Bytes),
            [(Labels::new(), float(log_bytes))],
        )?;
        sheet.counts("ledger_logged_bytes", "Bytes that the log was given", one(logged_bytes))?;
        sheet.counts_seconds("ledger_busy", "Time in which the writer had operations to carry out", seconds(busy_us))?;
        sheet.counts("ledger_checkpoints", "Checkpoints of the ledger", one(checkpoints))?;
        sheet.counts_seconds("ledger_checkpoint", "Time of checkpoints; writes continue meanwhile", seconds(checkpoint_us))?;
        sheet.gauges_of(
            "ledger_checkpoint_longest",
            "The longest checkpoint since the start",
            Some(&Unit::Seconds),
            [(Labels::new(), seconds(longest_checkpoint_us))],
        )?;
        sheet.gauges("ledger_queue_operations", "Writes that wait for the writer", [(Labels::new(), float(waiting as u64))])?;
        let free = disk_free.map(|free| (Labels::new(), float(free)));
        sheet.gauges_of("ledger_disk_free", "Free space of the ledger's disk", Some(&Unit::Bytes), free)?;
        let kept = self.now.workspaces.iter().map(|(workspace, bytes)| (vec![("workspace", workspace.clone())], float(*bytes)));
        let help = "Bytes that the ledger keeps for a workspace with a quota of its own";
        sheet.gauges_of("workspace_kept", help, Some(&Unit::Bytes), kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_contract_is_an_outcome_of_its_own() {
        for (at, name) in OUTCOMES.iter().enumerate().skip(1) {
            let error = ApiError::new(ErrorCode::from(*name), "");
            assert_eq!((place(Some(&error)), outcome(Some(&error))), (at, *name));
        }
        let strange = ApiError::new(ErrorCode::Other("run-0190".into()), "");
        assert_eq!(outcome(Some(&strange)), OTHER, "a code that a service makes up is no label");
    }
}
