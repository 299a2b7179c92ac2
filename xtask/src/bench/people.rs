//! Runs that wait for people, take what is said to them meanwhile, and start others.

use serde_json::{Value, json};

use super::{
    calls::UNLIMITED,
    echo,
    parking::{settled, until},
    session::{Report, Session},
    site::{Site, target},
};
use crate::{host::HostProcess, http::Client};

/// The runner that waits, asks and sends.
pub(crate) const RUNNER: &str = "plugin:test/bench-people/default";

/// Runs that wait for an answer on disk, and runs that wait for one in memory.
const PARKED: u64 = 10_000;
const IN_MEMORY: u64 = 1_000;
const TWO_GIB_KIB: f64 = 2.0 * 1024.0 * 1024.0;

/// Questions that are answered one after the other; people who answer at once, and how many questions each.
const ROUNDS: &str = "300";
const ANSWERING: &str = "64";
const ANSWERS: &str = "40";
/// Messages to a run that waits for them.
const MESSAGES: &str = "500";

/// A deadline that is never reached.
const NIGHT: &str = "deadline_ms = 14400000\n";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    waiting(session)?;
    approval(session)?;
    steering(session)?;
    children(session)
}

/// The memory of runs that wait for an answer, and the effect on other runs. A process with waiting runs is compared with
/// one that has completed as many; runs that cannot be parked are measured too.
fn waiting(session: &mut Session) -> anyhow::Result<()> {
    const MEMORY: [&str; 3] = ["waiting.runs.in_2gib", "waiting.in_memory.kib_per_run", "waiting.parked.10000.added_mib"];
    const HONEST: [(&str, &str); 2] = [("waiting.honest.p50_ms", "p50_ms"), ("waiting.honest.p99_ms", "p99_ms")];
    const ALONE: [(&str, &str); 2] = [("waiting.honest.alone.p50_ms", "p50_ms"), ("waiting.honest.alone.p99_ms", "p99_ms")];
    let [of_honest, of_alone] = [HONEST, ALONE].map(|figures| session.wants(&figures.map(|(figure, _)| figure)));
    if !(session.wants(&MEMORY) || of_honest || of_alone) {
        return Ok(());
    }
    let config = format!(
        "{UNLIMITED}\n{}{}{}",
        binding("parked", RUNNER, NIGHT),
        binding("memory", RUNNER, &format!("durability = \"fail\"\n{NIGHT}")),
        binding("bench", echo::RUNNER, "")
    );
    let site = Site::holding(session, "asking", &[&session.people, &session.echo], &config)?;
    let (ask, nothing) = (json!({ "do": "ask" }), json!({ "do": "nothing" }));

    let host = site.start(session)?.host;
    let client = Client::new(host.url());
    send(&client, "parked-before", PARKED, &nothing)?;
    until(&client, "live_runs", 0)?;
    let ended = settled(&host)?;
    let alone = honest(session, &host)?;
    host.stop()?;

    let host = site.start(session)?.host;
    let client = Client::new(host.url());
    send(&client, "parked", PARKED, &ask)?;
    until(&client, "parked_runs", PARKED)?;
    let parked = settled(&host)?;
    send(&client, "memory", IN_MEMORY, &ask)?;
    until(&client, "live_runs", IN_MEMORY)?;
    let in_memory = settled(&host)?;
    let beside = honest(session, &host)?;
    until(&client, "parked_runs", PARKED)?;
    host.kill();

    let per_run = (in_memory - parked) * 1024.0 / IN_MEMORY as f64;
    anyhow::ensure!(per_run > 0.0, "{IN_MEMORY} runs in memory take none: {parked} MiB without, {in_memory} MiB with them");
    // The host itself has its part of it.
    let fit = (TWO_GIB_KIB - parked * 1024.0) / per_run;
    for (figure, value) in MEMORY.into_iter().zip([fit, per_run, parked - ended]) {
        session.record(figure, value)?;
    }
    record(session, &HONEST, &beside)?;
    record(session, &ALONE, &alone)
}

/// Echo runs over HTTP, one after the other.
fn honest(session: &Session, host: &HostProcess) -> anyhow::Result<Report> {
    load(session, host, "http", &["--in-flight", "1"])
}

/// From an answer to what its run says then.
fn approval(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 3] = [
        ("approval.round_trip.p50_ms", "p50_ms"),
        ("approval.round_trip.p99_ms", "p99_ms"),
        ("approval.answers_per_second", "answers_per_second"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let config = format!("{UNLIMITED}\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n{NIGHT}");
    let site = Site::configured(session, "approval", &session.people, &config)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "approval", &["--rounds", ROUNDS, "--in-flight", ANSWERING, "--each", ANSWERS])?;
    host.kill();
    record(session, &FIGURES, &report)
}

/// From a message to what the run says that waits for it in memory.
fn steering(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 2] = [("steering.p50_ms", "p50_ms"), ("steering.p99_ms", "p99_ms")];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let config = format!("{UNLIMITED}park_after_ms = 3600000\n\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n{NIGHT}");
    let site = Site::configured(session, "steering", &session.people, &config)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "steering", &["--rounds", MESSAGES])?;
    host.kill();
    record(session, &FIGURES, &report)
}

/// Runs that a run starts, over plain ones.
fn children(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 3] = [
        ("child.runs_per_second", "runs_per_second"),
        ("child.long_wait.runs_per_second", "long_wait_runs_per_second"),
        ("child.cost_ratio", "ratio"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let config = format!(
        "{UNLIMITED}\n[[bindings]]\nid = \"plain\"\nrunner = \"{}\"\nmatch = {{ source = \"scheduler\" }}\n\n{}",
        echo::RUNNER,
        binding("parent", RUNNER, "resources = { runs = [\"start\", \"get\"] }\n")
    );
    let site = Site::holding(session, "children", &[&session.people, &session.echo], &config)?;
    let report = session.load(&["children", "--config", &site.config()])?;
    record(session, &FIGURES, &report)
}

/// A binding of the conversations whose names begin with its own.
fn binding(id: &str, runner: &str, more: &str) -> String {
    format!("[[bindings]]\nid = \"{id}\"\nrunner = \"{runner}\"\nmatch = {{ conversation = \"{id}-.*\" }}\n{more}\n")
}

fn send(client: &Client, conversations: &str, runs: u64, task: &Value) -> anyhow::Result<()> {
    for run in 0..runs {
        let event = json!({
            "event_type": "message.received",
            "conversation": { "conversation_id": format!("{conversations}-{run}") },
            "input": { "text": task.to_string() },
        });
        client.post("/api/v1/events", &[], &event)?;
    }
    Ok(())
}

/// Runs a command of `agent-host-load` on a host that serves.
pub(crate) fn load(session: &Session, host: &HostProcess, command: &str, arguments: &[&str]) -> anyhow::Result<Report> {
    let target = target(host);
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    session.load(&[&[command][..], &target, arguments].concat())
}

/// Takes figures, each by its name in the report.
pub(crate) fn record(session: &mut Session, figures: &[(&str, &str)], report: &Report) -> anyhow::Result<()> {
    figures.iter().try_for_each(|(figure, name)| session.record(figure, report.number(name)?))
}
