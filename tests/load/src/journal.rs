//! The cost of journals. The host has two bindings of one runner: conversations whose names start with `resume` are
//! answered by runs with a journal, those that start with `fail` by runs without. Both take turns, so that changes of the
//! machine affect both.

use std::time::Duration;

use agent_host_runs::{Config, Host};
use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    arguments::{Load, Weighed},
    calls::Caller,
    echo, in_process,
};

/// With a journal, and without one.
const WITH: &str = "resume";
const WITHOUT: &str = "fail";
/// Of every stretch, this goes before anything is counted.
const WARM_UP: Duration = Duration::from_millis(200);
/// Turns of host calls, each with all four runs that it takes.
const TURNS: usize = 9;
/// Runs whose journals are weighed.
const ECHO_RUNS: usize = 200;
const STATE_CALLS: u32 = 2_000;
const TOKENS: u32 = 400;
/// As fast as a model that is fast; each token comes by itself.
const PACE_US: u32 = 2_000;
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// Echo runs with a journal, over those without.
#[derive(Debug, Serialize)]
pub(crate) struct Echo {
    runs_per_second: f64,
    off_runs_per_second: f64,
    /// Time of a run, and CPU time of it; medians of pairs.
    ratio: f64,
    cpu_ratio: f64,
}

/// Measures `pairs` of stretches, one right after the other.
pub(crate) async fn echo(config: Config, in_flight: usize, pairs: usize, measure: Duration) -> anyhow::Result<Echo> {
    let host = Host::start(config).await?;
    let load = Load { in_flight, warm_up: WARM_UP, measure };
    // The first of a process fills caches.
    in_process::stretch(&host, load, "fail-first").await?;
    let (mut with, mut without, mut ratios, mut cpu_ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let stretch = async |which: &str| in_process::stretch(&host, load, &format!("{which}-{pair}")).await;
        // In turn the one and the other comes first.
        let (on, off) = if pair % 2 == 0 {
            let on = stretch(WITH).await?;
            (on, stretch(WITHOUT).await?)
        } else {
            let off = stretch(WITHOUT).await?;
            (stretch(WITH).await?, off)
        };
        with.push(on.runs_per_second);
        without.push(off.runs_per_second);
        ratios.push(off.runs_per_second / on.runs_per_second);
        cpu_ratios.push(on.cpu_us_per_run / off.cpu_us_per_run);
    }
    host.shutdown(END).await;
    Ok(Echo {
        runs_per_second: median(with),
        off_runs_per_second: median(without),
        ratio: median(ratios),
        cpu_ratio: median(cpu_ratios),
    })
}

/// Measures each of `calls`; gives `NAME.us` and `NAME.off_us`.
pub(crate) async fn calls(config: Config, calls: &[String]) -> anyhow::Result<Map<String, Value>> {
    let host = Host::start(config).await?;
    let mut report = Map::new();
    for call in calls {
        let caller = |conversation| Caller { host: &host, call, conversation };
        let (with, without) = (caller(WITH), caller(WITHOUT));
        let times = with.enough().await?.min(without.enough().await?);
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            let mut both = [(with, &mut on), (without, &mut off)];
            if turn % 2 == 1 {
                both.reverse();
            }
            for (caller, costs) in both {
                let (base, calls) = (caller.run(0).await?, caller.run(times).await?);
                costs.push((calls.as_secs_f64() - base.as_secs_f64()) * 1e6 / f64::from(times));
            }
        }
        report.insert(format!("{call}.us"), json!(median(on)));
        report.insert(format!("{call}.off_us"), json!(median(off)));
    }
    host.shutdown(END).await;
    Ok(report)
}

/// Bytes in the ledger, keys included, for each host call.
#[derive(Debug, Serialize)]
pub(crate) struct Weight {
    calls: usize,
    bytes_per_call: f64,
    bytes_per_run: f64,
}

/// Weighs journals.
pub(crate) async fn weight(config: Config, of: Weighed) -> anyhow::Result<Weight> {
    let message = |text: Value| in_process::message(&text.to_string(), WITH.to_owned());
    let envelopes: Vec<_> = match of {
        Weighed::Echo => {
            (0..ECHO_RUNS).map(|turn| in_process::envelope(format!("{WITH}-{}", echo::conversation(0, turn)))).collect()
        }
        Weighed::State => ["state.get", "state.set"].map(|call| message(json!({ "call": call, "times": STATE_CALLS }))).into(),
        Weighed::Stream => vec![message(json!({ "call": "relay", "times": TOKENS, "pace_us": PACE_US }))],
    };
    let host = Host::start(config).await?;
    let before = host.ledger().stats()?.journal.bytes;
    let runs = envelopes.len();
    let mut calls = 0;
    for envelope in envelopes {
        let run = in_process::run(&host, envelope).await?;
        calls += host.calls(run.run_id, 0, u64::MAX)?.len();
    }
    let bytes = host.ledger().stats()?.journal.bytes.checked_sub(before).context("journals became shorter")?;
    host.shutdown(END).await;
    anyhow::ensure!(calls > 0, "no call was recorded");
    Ok(Weight { calls, bytes_per_call: bytes as f64 / calls as f64, bytes_per_run: bytes as f64 / runs as f64 })
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_in_the_middle() {
        assert!((super::median(vec![3.0, -1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!(super::median(Vec::new()).is_nan());
    }
}
