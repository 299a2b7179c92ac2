//! The cost of host calls: a guest makes one of them many times, in a host in this process. The cost of the run without
//! them is subtracted.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_host_runs::{Config, Host};
use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::{allocations, documents::Author, in_process, knowledge};

/// The conversation, and the number of its earlier items.
const CONVERSATION: &str = "calls";
const HISTORY: usize = 50;
/// Passages of the knowledge base.
const PASSAGES: usize = 1_000;
/// Calls that show how many to make in a run.
const TRIAL: u32 = 20;
/// A run has about this much of calls, so that a call is not lost in what the run itself takes.
const RUN: Duration = Duration::from_millis(100);
/// Calls of a run.
const CALLS: std::ops::RangeInclusive<u32> = TRIAL..=20_000;
/// Time of a measurement of one kind of call; the other value is the least number of calls.
const MEASURE: Duration = Duration::from_millis(600);
const LEAST_TURNS: usize = 5;
/// Time for remaining work of one kind of call after the end of its run.
const CALM: Duration = Duration::from_millis(50);
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// Measures each of `calls` of the contract, such as `state.get`; gives `NAME.us` and `NAME.allocations`.
pub(crate) async fn measure(config: Config, calls: &[String], documents: &Path) -> anyhow::Result<Map<String, Value>> {
    let mut author = Author::new();
    if let Some(base) = config.knowledge_bases.first() {
        author.write(documents, PASSAGES)?;
        knowledge::add(&agent_host_runs::knowledge(&config)?, &base.id, documents).await?;
    }
    let host = Host::start(config).await?;
    for _ in 0..HISTORY {
        in_process::run(&host, in_process::message(&author.question(), CONVERSATION.to_owned())).await?;
    }
    let mut report = Map::new();
    for call in calls {
        let cost = cost(&host, call).await.with_context(|| format!("{call} cannot be measured"))?;
        report.insert(format!("{call}.us"), json!(cost.us));
        report.insert(format!("{call}.allocations"), json!(cost.allocations));
    }
    host.shutdown(END).await;
    Ok(report)
}

struct Cost {
    us: f64,
    allocations: f64,
}

/// Makes one kind of call, all in one conversation.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) host: &'a Host,
    pub(crate) call: &'a str,
    pub(crate) conversation: &'a str,
}

impl Caller<'_> {
    /// The duration of a run with this many calls.
    pub(crate) async fn run(self, times: u32) -> anyhow::Result<Duration> {
        let text = json!({ "call": self.call, "times": times }).to_string();
        let started = Instant::now();
        in_process::run(self.host, in_process::message(&text, self.conversation.to_owned())).await?;
        Ok(started.elapsed())
    }

    /// The number of calls for a measurable run.
    pub(crate) async fn enough(self) -> anyhow::Result<u32> {
        // The first fills caches.
        self.run(TRIAL).await?;
        let (base, trial) = (self.run(0).await?, self.run(TRIAL).await?);
        let one = trial.saturating_sub(base).max(Duration::from_nanos(100)) / TRIAL;
        Ok((RUN.as_nanos() / one.as_nanos().max(1)).try_into().unwrap_or(u32::MAX).clamp(*CALLS.start(), *CALLS.end()))
    }
}

async fn cost(host: &Host, call: &str) -> anyhow::Result<Cost> {
    let caller = Caller { host, call, conversation: CONVERSATION };
    let run = async |times| caller.run(times).await;
    let times = caller.enough().await?;

    let end = Instant::now() + MEASURE;
    let mut turns = Vec::new();
    while Instant::now() < end || turns.len() < LEAST_TURNS {
        let (base, with) = (run(0).await?, run(times).await?);
        turns.push((with.as_secs_f64() - base.as_secs_f64()) * 1e6 / f64::from(times));
    }
    turns.sort_by(f64::total_cmp);
    let us = turns.get(turns.len() / 2).copied().unwrap_or(f64::NAN);

    // Apart from the time, since counting takes some of it.
    let counted = async |times: u32| {
        tokio::time::sleep(CALM).await;
        let before = allocations::count();
        allocations::start();
        let ended = run(times).await;
        tokio::time::sleep(CALM).await;
        allocations::stop();
        ended.map(|_| allocations::count() - before)
    };
    let (base, with) = (counted(0).await?, counted(times).await?);
    Ok(Cost { us, allocations: with.saturating_sub(base) as f64 / f64::from(times) })
}
