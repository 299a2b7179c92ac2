//! A run with many host calls, executed again.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use agent_host_runs::{Config, Host, Recording, Replay, replay};
use agent_host_sandbox::Options;
use anyhow::Context;
use serde::Serialize;
use serde_json::json;

use crate::{in_process, journal::median, model_server::now_us, parking};

/// Executions that are timed. Odd, so that there is one in the middle.
const TURNS: usize = 5;
/// A run that is to be resumed wakes up so long after it began; by then it has made its calls, and the host has stopped.
const NAP_MS: u64 = 8_000;
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// The measured values; medians.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    calls: u64,
    /// With all that comes before the first call: a ledger is made, and the recording unpacked into it.
    whole_ms: f64,
    whole_calls_per_second: f64,
    /// In a restarted host: from the resumption of the run to its first new result. No journal is decoded there, so this is
    /// the execution alone.
    calls_per_second: f64,
}

/// Lets a run make `times` calls of one kind, and executes it again.
pub(crate) async fn measure(config: Config, call: &str, times: u32) -> anyhow::Result<Report> {
    let (limits, data) = (config.limits.clone(), config.data_dir.clone());
    let host = Host::start(config.clone()).await?;
    let text = json!({ "call": call, "times": times }).to_string();
    let run = in_process::run(&host, in_process::message(&text, "replay".to_owned())).await?;
    let recording = Recording::read(host.ledger(), run.run_id)?;
    host.shutdown(END).await;

    let sandbox = Options {
        limits: limits.clone(),
        code_cache: Some(data.join("code")),
        compiler: None,
        components: Some(data.join("components")),
    }
    .build()?;
    let digest = recording.component().context("the recording names no component")?;
    let component = sandbox.component(&digest).await.map_err(anyhow::Error::msg)?;
    let execute = async || {
        let scratch = data.join("scratch");
        fs::create_dir(&scratch)?;
        let how = Replay { component: component.clone(), until: None };
        let started = Instant::now();
        let report = replay(&sandbox, &recording, &how, &limits, &scratch).await?;
        let took = started.elapsed();
        remove(&scratch)?;
        anyhow::ensure!(report.is_same(), "executed again, the run differs: {report:?}");
        anyhow::Ok((report.calls, took.as_secs_f64()))
    };
    // The first of a process fills caches.
    let (calls, _) = execute().await?;
    anyhow::ensure!(calls >= u64::from(times), "{times} calls were made, and {calls} executed again");
    let mut whole = Vec::new();
    for _ in 0..TURNS {
        whole.push(execute().await?.1);
    }
    let mut resumed = Vec::new();
    for turn in 0..TURNS {
        resumed.push(resume(&config, call, times, &format!("replay-{turn}")).await?.as_secs_f64());
    }
    let whole = median(whole);
    Ok(Report {
        calls,
        whole_ms: whole * 1e3,
        whole_calls_per_second: calls as f64 / whole,
        calls_per_second: f64::from(times) / median(resumed),
    })
}

/// Stops a host while a run sleeps that has made its calls, and starts another after the time that it waits for; gives how
/// long the run takes to get there again.
async fn resume(config: &Config, call: &str, times: u32, conversation: &str) -> anyhow::Result<Duration> {
    let host = Host::start(config.clone()).await?;
    let until_ms = now_us() / 1_000 + NAP_MS;
    let text = json!({ "call": call, "times": times, "until_ms": until_ms }).to_string();
    let accepted = host.accept(in_process::message(&text, conversation.to_owned()), None).await?;
    let id = *accepted.runs.first().context("the event made no run")?;
    parking::sleeps(&host, id).await?;
    anyhow::ensure!(now_us() / 1_000 < until_ms, "this machine takes more than {NAP_MS} ms for {times} calls");
    host.shutdown(Duration::ZERO).await;
    drop(host);
    tokio::time::sleep(Duration::from_millis(until_ms.saturating_sub(now_us() / 1_000) + 50)).await;

    let host = Host::start(config.clone()).await?;
    let (resumed, live) = parking::back(&host, id, tokio::time::Instant::now()).await?;
    host.shutdown(END).await;
    Ok(live.saturating_sub(resumed))
}

fn remove(scratch: &Path) -> anyhow::Result<()> {
    fs::remove_dir_all(scratch).with_context(|| format!("{} cannot be removed", scratch.display()))
}
