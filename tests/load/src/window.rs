//! A stretch of time in which things are counted, and what was counted in it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{arguments::Load, cpu};

/// The stretch of time: after the warm-up, as long as asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    begin: Instant,
    end: Instant,
}

/// The counts.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    runs: usize,
    pub(crate) runs_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU time of the host in user and system mode, all threads, over the runs.
    pub(crate) cpu_us_per_run: f64,
}

impl Window {
    pub(crate) fn new(load: Load) -> Self {
        let begin = Instant::now() + load.warm_up;
        Self { begin, end: begin + load.measure }
    }

    /// True if another run should be started.
    pub(crate) fn is_open(self) -> bool {
        Instant::now() < self.end
    }

    /// The latency of a run that ends now, where it ends within the window.
    pub(crate) fn latency(self, started: Instant) -> Option<Duration> {
        let now = Instant::now();
        (self.begin..self.end).contains(&now).then(|| now - started)
    }

    /// The CPU time that a process takes within the window.
    pub(crate) async fn cpu(self, pid: u32) -> anyhow::Result<Duration> {
        let (before, after) = self.both_ends(|| cpu::time(pid)).await?;
        Ok(after.saturating_sub(before))
    }

    /// A reading at the beginning of the window, and one at its end.
    pub(crate) async fn both_ends<T>(self, mut read: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<(T, T)> {
        tokio::time::sleep_until(self.begin.into()).await;
        let before = read()?;
        tokio::time::sleep_until(self.end.into()).await;
        Ok((before, read()?))
    }

    /// The latencies of the runs that ended within the window, and the host's CPU time in it, as a report.
    pub(crate) fn report(self, mut latencies: Vec<Duration>, cpu: Duration) -> anyhow::Result<Report> {
        anyhow::ensure!(!latencies.is_empty(), "no run ended within {:?}", self.end - self.begin);
        latencies.sort_unstable();
        let runs = latencies.len();
        Ok(Report {
            runs,
            runs_per_second: runs as f64 / (self.end - self.begin).as_secs_f64(),
            p50_ms: percentile_ms(&latencies, 50),
            p99_ms: percentile_ms(&latencies, 99),
            cpu_us_per_run: cpu.as_secs_f64() * 1e6 / runs as f64,
        })
    }
}

/// The latency that `percent` of the sorted latencies are not above.
pub(crate) fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let latencies: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        let close = |percent, ms: f64| assert!((percentile_ms(&latencies, percent) - ms).abs() < 1e-9);
        close(50, 100.0);
        close(99, 198.0);
        assert!((percentile_ms(&latencies[..1], 99) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn only_what_ends_within_the_window_counts() {
        let second = Duration::from_secs(1);
        let started = Instant::now();
        let window = |warm_up, measure| Window::new(Load { in_flight: 1, warm_up, measure });
        assert!(window(Duration::ZERO, second).latency(started).is_some());
        assert!(window(second, second).latency(started).is_none());
        let over = window(Duration::ZERO, Duration::ZERO);
        assert!(over.latency(started).is_none() && !over.is_open());
        assert!(over.report(Vec::new(), second).is_err());
    }
}
