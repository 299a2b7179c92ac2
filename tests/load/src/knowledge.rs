//! A knowledge base: taking documents in, and finding passages.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_host_runs::{
    Config,
    knowledge_bases::{AddOptions, Knowledge},
};
use anyhow::Context;
use serde::Serialize;

use crate::{documents::Author, window::percentile_ms};

/// Hits that an agent asks for.
const HITS: u32 = 8;
/// Questions before anything is counted.
const WARM_UP: usize = 50;
/// A question that takes longer than this is not waited for.
const WAIT: Duration = Duration::from_secs(30);

/// The measured values.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    passages: u64,
    passages_per_second: f64,
    /// Of one question after the other.
    p50_ms: f64,
    p99_ms: f64,
    /// Share of queries with a result.
    found: f64,
}

/// Makes documents in `dir`, adds them to the first knowledge base of `config`, and asks it questions for so long.
pub(crate) async fn measure(config: &Config, dir: &Path, passages: usize, measure: Duration) -> anyhow::Result<Report> {
    let mut author = Author::new();
    author.write(dir, passages)?;
    let base = config.knowledge_bases.first().context("the configuration has no knowledge base")?.id.as_str();
    let knowledge = agent_host_runs::knowledge(config)?;
    let started = Instant::now();
    let added = add(&knowledge, base, dir).await?;
    let took = started.elapsed();
    // Cutting may differ by a few, not by a share.
    anyhow::ensure!(added >= passages as u64 * 9 / 10, "the documents became {added} passages instead of {passages}");

    for _ in 0..WARM_UP {
        ask(&knowledge, base, &author.question()).await?;
    }
    let (mut latencies, mut found) = (Vec::new(), 0_usize);
    let end = Instant::now() + measure;
    while Instant::now() < end {
        let question = author.question();
        let asked = Instant::now();
        found += usize::from(ask(&knowledge, base, &question).await? > 0);
        latencies.push(asked.elapsed());
    }
    latencies.sort_unstable();
    Ok(Report {
        passages: added,
        passages_per_second: added as f64 / took.as_secs_f64(),
        p50_ms: percentile_ms(&latencies, 50),
        p99_ms: percentile_ms(&latencies, 99),
        found: found as f64 / latencies.len() as f64,
    })
}

/// Adds a folder; gives how many passages it became.
pub(crate) async fn add(knowledge: &Knowledge, base: &str, dir: &Path) -> anyhow::Result<u64> {
    let report = knowledge.add(base, &[dir.to_owned()], AddOptions::default(), &mut |_| {}).await?;
    anyhow::ensure!(report.failed.is_empty(), "not all documents could be added: {:?}", report.failed.first());
    Ok(report.passages)
}

async fn ask(knowledge: &Knowledge, base: &str, question: &str) -> anyhow::Result<usize> {
    match knowledge.retrieve(base, question, HITS, None, Instant::now() + WAIT).await {
        Ok(hits) => Ok(hits.len()),
        Err(error) => Err(anyhow::anyhow!("`{question}` could not be answered: {error}")),
    }
}
