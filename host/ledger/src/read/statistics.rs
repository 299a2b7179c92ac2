//! Counts of runs by outcome.

use std::collections::{BTreeMap, HashMap};

use agent_host_protocol::{RunStatus, Timestamp, message::TokenUsage, run::ModelUsage};
use serde::{Deserialize, Serialize};

use crate::{
    error::LedgerError,
    handle::Ledger,
    rows::{Table, json},
};

/// Runs that are looked at for one answer, newest first: about a second of reading, and a few megabytes. An answer that
/// this cuts off says so ([`Statistics::truncated`]), and from when on it counts.
pub(crate) const SCAN_RUNS: u64 = 250_000;

/// Runs are read in the order in which they were committed, which is nearly that of their times. The reading stops this
/// long before `since`: a clock that was set back by more hides runs.
const DISORDER_MS: u64 = 10 * 60 * 1000;

/// Groups of one answer, those with the most runs.
const MAX_GROUPS: usize = 1_000;

/// The selection of runs, and their groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatisticsQuery {
    /// Runs created at this time or later.
    pub since: Option<Timestamp>,
    /// Runs created before this time.
    pub until: Option<Timestamp>,
    /// Runs of this runner.
    pub runner_id: Option<String>,
    /// Runs of this binding.
    pub binding_id: Option<String>,
    /// Runs of this queue.
    pub queue: Option<String>,
    /// Runs of this workspace.
    pub workspace_id: Option<String>,
    /// Groups besides the total.
    pub group_by: Option<GroupBy>,
}

/// The property that groups runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    /// By the id of the runner.
    Runner,
    /// By the id of the binding.
    Binding,
}

/// The counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Statistics {
    /// Runs created at this time or later are counted, where the request said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Runs created before this time are counted, where the request said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// More runs than one answer looks at: those from before `covered_since` are not counted.
    pub truncated: bool,
    /// The earliest time of a run that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered_since: Option<Timestamp>,
    /// All of them together.
    pub total: Group,
    /// By runner or binding, where that was asked for: those with the most runs first, at most a thousand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

/// The counts of some runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = StatisticsGroup)]
pub struct Group {
    /// The id of the runner or binding; nothing for all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Number of runs.
    pub runs: u64,
    /// Number of runs by present status.
    pub by_status: BTreeMap<String, u64>,
    /// Number of ended runs.
    pub ended: u64,
    /// Share of completed runs among ended ones, 0 to 1; `None` without ended runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// From the first start to the end, of those that have both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<Percentiles>,
    /// From the creation, or from when it was put into its queue, to the first start, of those that have started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_wait_ms: Option<Percentiles>,
    /// Tokens of model calls, as the host measured them.
    pub tokens: Tokens,
    /// Cost of model calls, in millionths of the currency of the prices, where a called model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Tokens that runners reported of themselves. The host does not check them.
    #[serde(default)]
    pub claimed_tokens: Tokens,
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = StatisticsTokens)]
pub struct Tokens {
    /// Read, cached ones included.
    pub input: u64,
    /// Written, reasoning included.
    pub output: u64,
    /// Of `input`, how many came from a cache.
    pub cached_input: u64,
    /// Of `output`, how many were reasoning.
    pub reasoning: u64,
}

/// Percentiles of times in milliseconds, exact: the smallest of them that so many percent do not exceed (nearest rank).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Percentiles {
    /// Number of durations.
    pub count: u64,
    /// Half of them are no longer.
    pub p50: u64,
    /// 90 of 100 are no longer.
    pub p90: u64,
    /// 95 of 100 are no longer.
    pub p95: u64,
    /// 99 of 100 are no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    /// Of these times; nothing where there are none.
    #[must_use]
    pub fn of(mut times: Vec<u64>) -> Option<Self> {
        times.sort_unstable();
        let max = *times.last()?;
        let rank = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(max);
        Some(Self { count: times.len() as u64, p50: rank(50), p90: rank(90), p95: rank(95), p99: rank(99), max })
    }
}

/// The part of a run that is counted. The rest of its record is passed over unread.
#[derive(Deserialize)]
struct RunSample {
    runner_id: String,
    binding_id: String,
    #[serde(default)]
    workspace_id: Option<String>,
    #[serde(default)]
    queue: Option<QueueTimes>,
    status: RunStatus,
    created_at: Timestamp,
    #[serde(default)]
    started_at: Option<Timestamp>,
    #[serde(default)]
    finished_at: Option<Timestamp>,
    #[serde(default)]
    usage: Option<ModelUsage>,
    #[serde(default)]
    claimed_usage: Option<TokenUsage>,
}

#[derive(Deserialize)]
struct QueueTimes {
    name: String,
    #[serde(default)]
    queued_at: Option<Timestamp>,
}

impl StatisticsQuery {
    fn counts(&self, run: &RunSample) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        self.since.is_none_or(|since| run.created_at >= since)
            && self.until.is_none_or(|until| run.created_at < until)
            && is(&self.runner_id, Some(&run.runner_id))
            && is(&self.binding_id, Some(&run.binding_id))
            && is(&self.workspace_id, run.workspace_id.as_deref())
            && is(&self.queue, run.queue.as_ref().map(|queue| queue.name.as_str()))
    }
}

#[derive(Default)]
struct Tally {
    by_status: HashMap<RunStatus, u64>,
    durations: Vec<u64>,
    waits: Vec<u64>,
    used: ModelUsage,
    claimed: Tokens,
}

impl Tally {
    fn add(&mut self, run: &RunSample) {
        *self.by_status.entry(run.status).or_default() += 1;
        if let Some(started) = run.started_at {
            // A run that came back into its queue was put there after its first start.
            let queued = run.queue.as_ref().and_then(|queue| queue.queued_at).filter(|queued| *queued <= started);
            self.waits.push(started.saturating_sub(queued.unwrap_or(run.created_at)));
            self.durations.extend(run.finished_at.map(|finished| finished.saturating_sub(started)));
        }
        if let Some(usage) = &run.usage {
            self.used.add(usage);
        }
        if let Some(usage) = &run.claimed_usage {
            let Tokens { input, output, cached_input, reasoning } = &mut self.claimed;
            *input = input.saturating_add(usage.input);
            *output = output.saturating_add(usage.output);
            *cached_input = cached_input.saturating_add(usage.cached_input.unwrap_or(0));
            *reasoning = reasoning.saturating_add(usage.reasoning.unwrap_or(0));
        }
    }

    fn group(self, key: Option<String>) -> Group {
        let ended = self.by_status.iter().filter(|(status, _)| status.is_terminal()).map(|(_, count)| count).sum();
        let completed = self.by_status.get(&RunStatus::Completed).copied().unwrap_or(0);
        Group {
            key,
            runs: self.by_status.values().sum(),
            by_status: self.by_status.into_iter().map(|(status, count)| (status.as_str().to_owned(), count)).collect(),
            ended,
            success_rate: (ended > 0).then(|| completed as f64 / ended as f64),
            duration_ms: Percentiles::of(self.durations),
            queue_wait_ms: Percentiles::of(self.waits),
            tokens: Tokens {
                input: self.used.input,
                output: self.used.output,
                cached_input: self.used.cached_input,
                reasoning: self.used.reasoning,
            },
            cost_micros: self.used.cost_micros,
            claimed_tokens: self.claimed,
        }
    }
}

impl Ledger {
    /// Counts runs, newest first, at most 250,000. Blocks while reading, a few microseconds for each run.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn statistics(&self, query: &StatisticsQuery) -> Result<Statistics, LedgerError> {
        self.statistics_within(query, SCAN_RUNS)
    }

    /// As [`Ledger::statistics`], with a bound of one's own.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn statistics_within(&self, query: &StatisticsQuery, most: u64) -> Result<Statistics, LedgerError> {
        let reader = self.reader()?;
        let runs = reader.table(Table::Runs)?;
        let oldest = query.since.map_or(0, |since| since.saturating_sub(DISORDER_MS));
        let (mut total, mut groups) = (Tally::default(), HashMap::<String, Tally>::new());
        let (mut looked_at, mut truncated, mut covered_since) = (0, false, None::<Timestamp>);
        for row in runs.iter()?.rev() {
            let run: RunSample = json(Table::Runs, row?.1.value())?;
            if run.created_at < oldest {
                break;
            }
            if looked_at == most {
                truncated = true;
                break;
            }
            looked_at += 1;
            if !query.counts(&run) {
                continue;
            }
            covered_since = Some(covered_since.map_or(run.created_at, |earliest| earliest.min(run.created_at)));
            total.add(&run);
            let key = match query.group_by {
                None => continue,
                Some(GroupBy::Runner) => run.runner_id.as_str(),
                Some(GroupBy::Binding) => run.binding_id.as_str(),
            };
            match groups.get_mut(key) {
                Some(group) => group.add(&run),
                None => groups.entry(key.to_owned()).or_default().add(&run),
            }
        }
        let mut groups: Vec<_> = groups.into_iter().map(|(key, tally)| tally.group(Some(key))).collect();
        groups.sort_by(|a, b| b.runs.cmp(&a.runs).then_with(|| a.key.cmp(&b.key)));
        groups.truncate(MAX_GROUPS);
        let StatisticsQuery { since, until, .. } = *query;
        Ok(Statistics { since, until, truncated, covered_since, total: total.group(None), groups })
    }
}
