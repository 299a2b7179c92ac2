//! The rate of ledgers alone, without a host: echo runs that are accepted, and written with all that such a run writes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use agent_host_ledger::{Ledger, Options, Partition};
use agent_host_runs::{Config, Host};
use anyhow::Context;
use tokio::task::JoinSet;

use crate::{
    arguments::Load,
    sample::Sample,
    window::{Report, Window},
};

/// Keeps `in_flight` runs going, in turn in each of the ledgers: those of the partitions of `cluster`, all of which this process takes, or one in files
/// beside that of `config`, whose host makes the run that is copied.
pub(crate) async fn load(config: Config, cluster: Option<Config>, load: Load) -> anyhow::Result<Report> {
    let dir = config.data_dir.join("alone");
    let sample = Arc::new(Sample::make(config).await?);
    let ledgers = match cluster {
        Some(cluster) => of_cluster(&cluster).await?,
        None => vec![Options::new(dir).open()?],
    };
    let (window, next) = (Window::new(load), Arc::new(AtomicU64::new(1)));
    let mut writers = JoinSet::new();
    for place in 0..load.in_flight {
        let ledger = ledgers.get(place % ledgers.len()).context("no ledger")?.clone();
        let (sample, next) = (Arc::clone(&sample), Arc::clone(&next));
        writers.spawn(async move {
            let mut latencies = Vec::new();
            while window.is_open() {
                let started = Instant::now();
                sample.copy(&ledger, next.fetch_add(1, Ordering::Relaxed)).await?;
                latencies.extend(window.latency(started));
            }
            anyhow::Ok(latencies)
        });
    }
    let cpu = window.cpu(std::process::id()).await?;
    let mut latencies = Vec::new();
    while let Some(writer) = writers.join_next().await {
        latencies.extend(writer??);
    }
    for ledger in ledgers {
        ledger.close().await?;
    }
    window.report(latencies, cpu)
}

async fn of_cluster(config: &Config) -> anyhow::Result<Vec<Ledger>> {
    let member = Host::join(config, "load").await?.context("the configuration has no cluster")?;
    let mut ledgers = Vec::new();
    let of = member.partitions();
    for partition in (0..of).map(|number| Partition::new(number, of)) {
        let standby = Host::follow_ledger(config, &member, partition).await?;
        let taken = tokio::task::spawn_blocking(move || standby.activate(|| false, |_| std::process::exit(1))).await??;
        ledgers.push(taken.context("the partition was not taken")?);
    }
    Ok(ledgers)
}
