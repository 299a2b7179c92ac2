//! Latency of echo runs that end while the ledger merges rows into its store, and of those that end at other times. The host
//! runs in this process, without HTTP.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use agent_host_runs::{Config, Host};
use anyhow::Context;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    arguments::Load,
    echo, in_process,
    window::{Window, percentile_ms},
};

/// Time between two looks at the ledger's counters.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// Latencies of runs by what the ledger did at their end.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Merges that ended within the window.
    merges: usize,
    /// Part of the window that they took.
    share: f64,
    merging: Latencies,
    not_merging: Latencies,
}

#[derive(Debug, Serialize)]
struct Latencies {
    runs: usize,
    p50_ms: f64,
    p99_ms: f64,
}

/// A run by its end.
struct Ended {
    at: Instant,
    latency: Duration,
}

/// A merge, from its begin to its end.
#[derive(Clone, Copy)]
struct Merge {
    begin: Instant,
    end: Instant,
}

/// Measures one stretch.
pub(crate) async fn measure(config: Config, load: Load) -> anyhow::Result<Report> {
    let host = Host::start(config).await?;
    let report = stretch(&host, load).await;
    host.shutdown(END).await;
    report
}

async fn stretch(host: &Host, load: Load) -> anyhow::Result<Report> {
    let window = Window::new(load);
    let over = Arc::new(AtomicBool::new(false));
    let watch = thread::spawn({
        let (host, over) = (host.clone(), Arc::clone(&over));
        move || watch(&host, &over)
    });
    let mut workers = JoinSet::new();
    for worker in 0..load.in_flight {
        workers.spawn(work(host.clone(), worker, window));
    }
    let mut ended = Vec::new();
    while let Some(worker) = workers.join_next().await {
        ended.extend(worker??);
    }
    over.store(true, Ordering::Relaxed);
    let merges = watch.join().ok().context("the thread that looks for merges panicked")?;
    report(&ended, &merges, load.measure)
}

async fn work(host: Host, worker: usize, window: Window) -> anyhow::Result<Vec<Ended>> {
    let mut ended = Vec::new();
    let mut turn = 0;
    while window.is_open() {
        let envelope = in_process::envelope(format!("merges-{}", echo::conversation(worker, turn)));
        let started = Instant::now();
        in_process::run(&host, envelope).await?;
        ended.extend(window.latency(started).map(|latency| Ended { at: started + latency, latency }));
        turn += 1;
    }
    Ok(ended)
}

/// The merges from now on. The ledger counts a merge and its time when it ends.
fn watch(host: &Host, over: &AtomicBool) -> Vec<Merge> {
    let mut before = host.ledger().activity();
    let mut merges = Vec::new();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        let now = host.ledger().activity();
        if now.checkpoints > before.checkpoints {
            let end = Instant::now();
            let took = Duration::from_micros(now.checkpoint_us.saturating_sub(before.checkpoint_us));
            merges.extend(end.checked_sub(took).map(|begin| Merge { begin, end }));
        }
        before = now;
    }
    merges
}

fn report(ended: &[Ended], merges: &[Merge], measured: Duration) -> anyhow::Result<Report> {
    let (mut merging, mut not_merging) = (Vec::new(), Vec::new());
    for run in ended {
        let during = merges.iter().any(|merge| (merge.begin..merge.end).contains(&run.at));
        if during { &mut merging } else { &mut not_merging }.push(run.latency);
    }
    let first = ended.iter().map(|run| run.at).min().context("no run ended within the window")?;
    let last = ended.iter().map(|run| run.at).max().unwrap_or(first);
    let within: Vec<_> = merges.iter().filter(|merge| merge.end > first && merge.begin < last).collect();
    let took: Duration = within.iter().map(|merge| merge.end.min(last).saturating_duration_since(merge.begin.max(first))).sum();
    Ok(Report {
        merges: within.len(),
        share: took.as_secs_f64() / measured.as_secs_f64(),
        merging: Latencies::of(merging),
        not_merging: Latencies::of(not_merging),
    })
}

impl Latencies {
    fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        Self { runs: latencies.len(), p50_ms: percentile_ms(&latencies, 50), p99_ms: percentile_ms(&latencies, 99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_belongs_to_the_merge_in_which_it_ends() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let run = |end, latency| Ended { at: at(end), latency: Duration::from_millis(latency) };
        let ended = [run(0, 1), run(9, 2), run(10, 30), run(19, 40), run(20, 3), run(100, 4)];
        let merges = [Merge { begin: at(10), end: at(20) }, Merge { begin: at(200), end: at(300) }];
        let report = report(&ended, &merges, Duration::from_millis(100)).unwrap();
        assert_eq!((report.merges, report.merging.runs, report.not_merging.runs), (1, 2, 4));
        assert!((report.share - 0.1).abs() < 1e-9);
        assert!((report.merging.p99_ms - 40.0).abs() < 1e-9 && (report.not_merging.p99_ms - 4.0).abs() < 1e-9);
        assert!(super::report(&[], &merges, Duration::from_millis(100)).is_err());
    }
}
