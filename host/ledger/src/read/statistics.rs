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
pub const SCAN_RUNS: u64 = 250_000;

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

impl Tokens {
    fn add(&mut self, other: &Self) {
        let Self { input, output, cached_input, reasoning } = self;
        for (sum, more) in
            [(input, other.input), (output, other.output), (cached_input, other.cached_input), (reasoning, other.reasoning)]
        {
            *sum = sum.saturating_add(more);
        }
    }
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
    pub fn of(times: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut counted = Times::default();
        times.into_iter().for_each(|time| counted.add(time, 1));
        counted.percentiles()
    }
}

/// Times in milliseconds, each with the number of its occurrences.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Times(HashMap<u64, u64>);

impl Times {
    fn add(&mut self, time: u64, occurrences: u64) {
        *self.0.entry(time).or_default() += occurrences;
    }

    fn percentiles(self) -> Option<Percentiles> {
        let mut times: Vec<_> = self.0.into_iter().collect();
        times.sort_unstable();
        let max = times.last()?.0;
        let count: u64 = times.iter().map(|(_, occurrences)| occurrences).sum();
        let rank = |percent: u64| {
            let wanted = (count * percent).div_ceil(100).max(1);
            let mut passed = 0;
            let reaches = |(_, occurrences): &&(u64, u64)| {
                passed += occurrences;
                passed >= wanted
            };
            times.iter().find(reaches).map_or(max, |(time, _)| *time)
        };
        Some(Percentiles { count, p50: rank(50), p90: rank(90), p95: rank(95), p99: rank(99), max })
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

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Tally {
    by_status: HashMap<RunStatus, u64>,
    durations: Times,
    waits: Times,
    used: ModelUsage,
    claimed: Tokens,
}

impl Tally {
    fn add(&mut self, run: &RunSample) {
        *self.by_status.entry(run.status).or_default() += 1;
        if let Some(started) = run.started_at {
            // A run that came back into its queue was put there after its first start.
            let queued = run.queue.as_ref().and_then(|queue| queue.queued_at).filter(|queued| *queued <= started);
            self.waits.add(started.saturating_sub(queued.unwrap_or(run.created_at)), 1);
            if let Some(finished) = run.finished_at {
                self.durations.add(finished.saturating_sub(started), 1);
            }
        }
        if let Some(usage) = &run.usage {
            self.used.add(usage);
        }
        if let Some(usage) = &run.claimed_usage {
            self.claimed.add(&Tokens {
                input: usage.input,
                output: usage.output,
                cached_input: usage.cached_input.unwrap_or(0),
                reasoning: usage.reasoning.unwrap_or(0),
            });
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { by_status, durations, waits, used, claimed } = other;
        by_status.into_iter().for_each(|(status, count)| *self.by_status.entry(status).or_default() += count);
        durations.0.into_iter().for_each(|(time, occurrences)| self.durations.add(time, occurrences));
        waits.0.into_iter().for_each(|(time, occurrences)| self.waits.add(time, occurrences));
        self.used.add(&used);
        self.claimed.add(&claimed);
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
            duration_ms: self.durations.percentiles(),
            queue_wait_ms: self.waits.percentiles(),
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

/// Runs of a ledger, counted. Counts of several ledgers are merged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunCounts {
    /// The ledger has more runs than were looked at.
    pub truncated: bool,
    /// The earliest time of a run that was looked at, where the ledger has more.
    pub looked_at_since: Option<Timestamp>,
    covered_since: Option<Timestamp>,
    total: Tally,
    groups: HashMap<String, Tally>,
}

impl RunCounts {
    fn add(&mut self, run: &RunSample, group_by: Option<GroupBy>) {
        self.covered_since = Some(self.covered_since.map_or(run.created_at, |earliest| earliest.min(run.created_at)));
        self.total.add(run);
        let key = match group_by {
            None => return,
            Some(GroupBy::Runner) => run.runner_id.as_str(),
            Some(GroupBy::Binding) => run.binding_id.as_str(),
        };
        match self.groups.get_mut(key) {
            Some(group) => group.add(run),
            None => self.groups.entry(key.to_owned()).or_default().add(run),
        }
    }

    /// Adds the counts of another ledger.
    pub fn merge(&mut self, other: Self) {
        let Self { truncated, looked_at_since, covered_since, total, groups } = other;
        self.truncated |= truncated;
        self.looked_at_since = self.looked_at_since.max(looked_at_since);
        self.covered_since = [self.covered_since, covered_since].into_iter().flatten().min();
        self.total.merge(total);
        groups.into_iter().for_each(|(key, group)| self.groups.entry(key).or_default().merge(group));
    }

    /// The statistics of the runs that a request of this time asked for.
    #[must_use]
    pub fn statistics(self, since: Option<Timestamp>, until: Option<Timestamp>) -> Statistics {
        let mut groups: Vec<_> = self.groups.into_iter().map(|(key, tally)| tally.group(Some(key))).collect();
        groups.sort_by(|a, b| b.runs.cmp(&a.runs).then_with(|| a.key.cmp(&b.key)));
        groups.truncate(MAX_GROUPS);
        let Self { truncated, covered_since, .. } = self;
        Statistics { since, until, truncated, covered_since, total: self.total.group(None), groups }
    }
}

impl Ledger {
    /// Counts runs, newest first, at most 250,000. Blocks while reading, a few microseconds for each run.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn statistics(&self, query: &StatisticsQuery) -> Result<Statistics, LedgerError> {
        Ok(self.count_runs(query, SCAN_RUNS)?.statistics(query.since, query.until))
    }

    /// As [`Ledger::statistics`], for counts that are merged with others, and with a bound of one's own.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn count_runs(&self, query: &StatisticsQuery, most: u64) -> Result<RunCounts, LedgerError> {
        let reader = self.reader()?;
        let runs = reader.table(Table::Runs)?;
        let oldest = query.since.map_or(0, |since| since.saturating_sub(DISORDER_MS));
        let (mut counts, mut looked_at, mut earliest) = (RunCounts::default(), 0, None::<Timestamp>);
        for row in runs.iter()?.rev() {
            let run: RunSample = json(Table::Runs, row?.1.value())?;
            if run.created_at < oldest {
                break;
            }
            if looked_at == most {
                (counts.truncated, counts.looked_at_since) = (true, earliest.or(Some(run.created_at)));
                break;
            }
            looked_at += 1;
            earliest = Some(earliest.map_or(run.created_at, |earliest| earliest.min(run.created_at)));
            if query.counts(&run) {
                counts.add(&run, query.group_by);
            }
        }
        Ok(counts)
    }
}
