//! A ledger with many runs: copies of one real echo run, row for row, each with ids and a conversation of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use agent_host_ledger::Options;
use agent_host_runs::Config;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::sample::Sample;

const MIB: usize = 1024 * 1024;
/// Group commits are larger with more writers, and each waits for two of them a run.
const WRITERS: usize = 1024;
/// Fewer checkpoints than a host makes: what matters here is what is in the ledger in the end.
const CHECKPOINT_BYTES: u64 = 256 * MIB as u64;
/// A few times that, as the ledger's options advise.
const CACHE_BYTES: usize = 1024 * MIB;

/// The counts.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    runs: u64,
    seconds: f64,
    /// The ledger's directory, over the runs.
    bytes_per_run: f64,
}

/// Makes one run with the host that `config` describes, and copies it until there are `runs`.
pub(crate) async fn fill(config: Config, runs: u64) -> anyhow::Result<Report> {
    let dir = config.data_dir.join("ledger");
    let sample = Arc::new(Sample::make(config).await?);
    let options = Options { checkpoint_wal_bytes: CHECKPOINT_BYTES, cache_bytes: CACHE_BYTES, ..Options::new(&dir) };
    let ledger = options.open()?;
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(1));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (ledger, sample, next) = (ledger.clone(), Arc::clone(&sample), Arc::clone(&next));
        writers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= runs {
                    return anyhow::Ok(());
                }
                sample.copy(&ledger, number).await?;
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    ledger.close().await?;
    let bytes = std::fs::metadata(dir.join("ledger.redb"))?.len();
    Ok(Report { runs, seconds: started.elapsed().as_secs_f64(), bytes_per_run: bytes as f64 / runs as f64 })
}
