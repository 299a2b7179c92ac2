//! The raw cost of one commit: what no durable store can go below on this disk.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::Instant,
};

use serde::Serialize;

use crate::window::percentile_ms;

/// Bytes of a small group commit.
const BLOCK: usize = 4096;
/// Enough for a percentile, and some seconds on a slow disk.
const COMMITS: usize = 1_000;

/// The measured values.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    p50_ms: f64,
    p99_ms: f64,
}

/// Overwrites a file that has its blocks already, one block after the other, each followed by `fdatasync`.
pub(crate) fn measure(dir: &Path) -> anyhow::Result<Report> {
    let path = dir.join("commit.bench");
    let measured = commits(&path);
    fs::remove_file(&path)?;
    measured
}

fn commits(path: &Path) -> anyhow::Result<Report> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(&vec![0; COMMITS * BLOCK], 0)?;
    file.sync_all()?;
    let mut latencies = Vec::with_capacity(COMMITS);
    for place in 0..COMMITS {
        let started = Instant::now();
        file.write_all_at(&[1; BLOCK], (place * BLOCK) as u64)?;
        file.sync_data()?;
        latencies.push(started.elapsed());
    }
    latencies.sort_unstable();
    Ok(Report { p50_ms: percentile_ms(&latencies, 50), p99_ms: percentile_ms(&latencies, 99) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_are_removed_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let report = super::measure(dir.path()).unwrap();
        assert!(report.p50_ms > 0.0 && report.p50_ms <= report.p99_ms);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
