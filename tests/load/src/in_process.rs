//! Echo runs of a host in this process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_protocol::{
    RunStatus,
    context::{Actor, Conversation},
    event::Envelope,
};
use agent_host_runs::{Config, Host};
use anyhow::Context;
use tokio::task::JoinSet;

use crate::{
    arguments::Load,
    cpu, echo,
    window::{Report, Window},
};

/// A run that takes longer than this is not waited for.
const WAIT: Duration = Duration::from_secs(30);

/// Keeps `in_flight` runs going.
pub(crate) async fn load(config: Config, load: Load) -> anyhow::Result<Report> {
    let host = Host::start(config).await?;
    let report = stretch(&host, load, "echo").await;
    host.shutdown(WAIT).await;
    report
}

/// The same in a host that is there; the names of conversations start with `prefix`.
pub(crate) async fn stretch(host: &Host, load: Load, prefix: &str) -> anyhow::Result<Report> {
    let (window, latencies, (before, after)) = read_stretch(host, load, prefix, || cpu::time(std::process::id())).await?;
    window.report(latencies, after.saturating_sub(before))
}

/// The same with a reading at both ends of the window, and the latencies of the runs that ended in between.
pub(crate) async fn read_stretch<T>(
    host: &Host,
    load: Load,
    prefix: &str,
    read: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<(Window, Vec<Duration>, (T, T))> {
    let window = Window::new(load);
    let mut workers = JoinSet::new();
    for worker in 0..load.in_flight {
        workers.spawn(work(host.clone(), prefix.to_owned(), worker, window));
    }
    let readings = window.both_ends(read).await?;
    let mut latencies = Vec::new();
    while let Some(worker) = workers.join_next().await {
        latencies.extend(worker??);
    }
    Ok((window, latencies, readings))
}

/// Makes `runs` runs and no more, `in_flight` at a time, so that what they take can be divided by them.
pub(crate) async fn runs(host: &Host, in_flight: usize, runs: usize, prefix: &str) -> anyhow::Result<()> {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..in_flight {
        let (host, prefix, begun) = (host.clone(), prefix.to_owned(), Arc::clone(&begun));
        workers.spawn(async move {
            loop {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                if number >= runs {
                    return anyhow::Ok(());
                }
                run(&host, envelope(format!("{prefix}-{}", echo::conversation(worker, number)))).await?;
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

async fn work(host: Host, prefix: String, worker: usize, window: Window) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut turn = 0;
    while window.is_open() {
        let envelope = envelope(format!("{prefix}-{}", echo::conversation(worker, turn)));
        let started = Instant::now();
        run(&host, envelope).await?;
        latencies.extend(window.latency(started));
        turn += 1;
    }
    Ok(latencies)
}

/// Creates a run and waits for its end.
pub(crate) async fn run(host: &Host, envelope: Envelope) -> anyhow::Result<Arc<agent_host_protocol::Run>> {
    let accepted = host.accept(envelope, None).await?;
    let run = host.wait(*accepted.runs.first().context("the event made no run")?, WAIT).await?;
    anyhow::ensure!(run.status == RunStatus::Completed, "a run did not complete: {run:?}");
    Ok(run)
}

/// The same event as over HTTP.
pub(crate) fn envelope(conversation: String) -> Envelope {
    message(echo::TEXT, conversation)
}

/// A message with this text.
pub(crate) fn message(text: &str, conversation: String) -> Envelope {
    Envelope {
        conversation: Some(Conversation { conversation_id: Some(conversation), ..Conversation::default() }),
        actor: Some(Actor {
            actor_type: "user".to_owned(),
            actor_id: Some("bench".to_owned()),
            actor_name: None,
            metadata: serde_json::Map::new(),
        }),
        ..Envelope::message(text, "api")
    }
}
