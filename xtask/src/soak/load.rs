//! Hours of load on one host, and what grows meanwhile.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    bench::{
        isolation::{ATTACKS, site},
        memory::resident_kib,
        people::load,
        session::Session,
    },
    workspace::Workspace,
};

/// Hostile guests of each kind at a time.
const GUESTS: &str = "10";
/// Honest clients between two kinds.
const IN_FLIGHT: &str = "64";
const MEASURE_MS: &str = "10000";
/// The host is looked at when things have calmed down.
const CALM: Duration = Duration::from_secs(2);

/// Growth from the second quarter to the last one that is a finding.
const MAX_GROWTH: f64 = 0.2;
/// Less growth than this is none: memory in KiB, handles, threads.
const NOISE: [f64; 3] = [64.0 * 1024.0, 20.0, 10.0];
const NAMES: [&str; 3] = ["memory_kib", "handles", "threads"];

/// A look at the process of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Look {
    hours: f64,
    /// Memory, handles, threads.
    values: [f64; 3],
}

/// Puts load on a host for so long, and prints what it took. Gives whether nothing grows.
pub(super) fn run(workspace: &Workspace, hours: f64) -> anyhow::Result<bool> {
    let session = Session::open(workspace, String::new())?;
    let site = site(&session, "soak")?;
    let host = site.start(&session)?.host;
    let began = Instant::now();
    let mut looks = Vec::new();
    let mut is_failed = None;
    'load: while began.elapsed().as_secs_f64() < hours * 3_600.0 {
        for attack in &ATTACKS {
            let hostile = ["--attack", attack.text, "--guests", GUESTS, "--measure", MEASURE_MS];
            let loads = load(&session, &host, "isolation", &hostile)
                .and_then(|_| load(&session, &host, "http", &["--in-flight", IN_FLIGHT, "--measure", MEASURE_MS]));
            if let Err(error) = loads {
                is_failed = Some(error);
                break 'load;
            }
        }
        thread::sleep(CALM);
        let look = look(host.id(), began.elapsed().as_secs_f64() / 3_600.0)?;
        let [memory, handles, threads] = look.values;
        println!("after {:.2} h: {:.0} MiB, {handles} handles, {threads} threads", look.hours, memory / 1024.0);
        looks.push(look);
    }
    let stopped = host.stop();
    if let Some(error) = is_failed {
        return Err(error.context("the load failed"));
    }
    anyhow::ensure!(stopped?.success(), "the host did not end in order");
    let mut is_good = true;
    for (index, name) in NAMES.into_iter().enumerate() {
        let values: Vec<_> = looks.iter().filter_map(|look| Some((look.hours, *look.values.get(index)?))).collect();
        let noise = NOISE.get(index).copied().unwrap_or_default();
        let verdict = if grows(&values, noise) { "GROWS" } else { "does not grow" };
        is_good &= verdict != "GROWS";
        println!("soak.{name}.per_hour {:.1} ({verdict})", slope(&values));
    }
    Ok(is_good)
}

fn look(pid: u32, hours: f64) -> anyhow::Result<Look> {
    let count = |of: &str| {
        let dir = format!("/proc/{pid}/{of}");
        Ok::<_, anyhow::Error>(fs::read_dir(&dir).with_context(|| format!("{dir} cannot be read"))?.count() as f64)
    };
    Ok(Look { hours, values: [resident_kib(pid)? as f64, count("fd")?, count("task")?] })
}

/// The values after the first quarter, in which the host warms up.
fn warm(values: &[(f64, f64)]) -> &[(f64, f64)] {
    values.get(values.len() / 4..).unwrap_or_default()
}

/// Growth in an hour, by least squares. 0 for fewer than two values.
fn slope(values: &[(f64, f64)]) -> f64 {
    let values = warm(values);
    let mean = |of: fn(&(f64, f64)) -> f64| values.iter().map(of).sum::<f64>() / values.len() as f64;
    let (x, y) = (mean(|value| value.0), mean(|value| value.1));
    let square: f64 = values.iter().map(|value| (value.0 - x).powi(2)).sum();
    if square > 0.0 { values.iter().map(|value| (value.0 - x) * (value.1 - y)).sum::<f64>() / square } else { 0.0 }
}

/// True if the last quarter has clearly more than the second.
fn grows(values: &[(f64, f64)], noise: f64) -> bool {
    let values = warm(values);
    let part = values.len().div_ceil(3);
    let mean = |values: &[(f64, f64)]| values.iter().map(|value| value.1).sum::<f64>() / values.len().max(1) as f64;
    let first = mean(values.get(..part).unwrap_or_default());
    let last = mean(values.get(values.len() - part..).unwrap_or_default());
    values.len() > 2 && last - first > noise.max(first * MAX_GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..40).map(|look| f64::from(look) * 0.1).map(|hours| (hours, value(hours))).collect()
    }

    #[test]
    fn what_grows_is_found_and_its_slope_too() {
        let leak = values(|hours| 1_000.0 + 500.0 * hours);
        assert!((slope(&leak) - 500.0).abs() < 1e-6 && grows(&leak, 20.0));
        // A host that takes more at the beginning, and varies.
        let calm = values(|hours| if hours < 0.5 { 100.0 } else { 1_000.0 + 10.0 * (hours * 30.0).sin() });
        assert!(!grows(&calm, 20.0) && slope(&calm).abs() < 20.0, "{}", slope(&calm));
        assert!(!grows(&leak, 5_000.0) && !grows(&[(0.0, 1.0), (1.0, 900.0)], 20.0));
        assert!(slope(&[]).abs() < 1e-9 && slope(&[(1.0, 5.0)]).abs() < 1e-9);
    }

    #[test]
    fn a_process_is_looked_at() {
        let look = look(std::process::id(), 0.0).unwrap();
        assert!(look.values.iter().all(|value| *value >= 1.0), "{look:?}");
    }
}
