//! Threads as streams of facts: read models, pages deep in a thread, and clients that follow.

use super::{
    calls::UNLIMITED,
    people::{load, record},
    queue::{OTHER_FILES, allow_files, external_site},
    session::{Report, Session},
    site::Site,
};

/// A thread as a person has it, of some hundred turns, and one of a very busy agent: facts, and deltas in each turn.
const LONG: (u64, &str) = (10_000, "20");
const HUGE: (u64, &str) = (1_000_000, "5000");
const THREAD: &str = "measured";
/// The runner that emits as many deltas as it is asked for.
const RUNNER: &str = "plugin:test/hostile/default";
/// Read models and pages of each thread.
const ROUNDS: &str = "100";
/// Clients of one thread, and the results that come to each.
const FOLLOWERS: u32 = 1_000;
const RESULTS: &str = "100";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    const LONG_FIGURES: [(&str, &str); 3] = [
        ("threads.10000.model_first_ms", "model_first_ms"),
        ("threads.10000.model_p50_ms", "model_p50_ms"),
        ("threads.10000.facts_per_cpu_second", "facts_per_cpu_second"),
    ];
    const HUGE_FIGURES: [(&str, &str); 4] = [
        ("threads.1000000.model_first_ms", "model_first_ms"),
        ("threads.1000000.page_p50_ms", "page_p50_ms"),
        ("threads.1000000.page_p99_ms", "page_p99_ms"),
        ("threads.1000000.facts_per_cpu_second", "facts_per_cpu_second"),
    ];
    reads(session, LONG, &LONG_FIGURES)?;
    reads(session, HUGE, &HUGE_FIGURES)?;
    followers(session, "one", &[("threads.follow_1000.p50_ms", "p50_ms"), ("threads.follow_1000.p99_ms", "p99_ms")])?;
    followers(session, "own", &[("threads.follow_1000_own.p50_ms", "p50_ms"), ("threads.follow_1000_own.p99_ms", "p99_ms")])
}

/// Reads of a thread by a host that has just started, so that its first read finds nothing in memory.
fn reads(session: &mut Session, (facts, deltas): (u64, &str), figures: &[(&str, &str)]) -> anyhow::Result<()> {
    let names: Vec<_> = figures.iter().map(|(figure, _)| *figure).collect();
    if !session.wants(&names) {
        return Ok(());
    }
    let config = format!("{UNLIMITED}\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n");
    let site = Site::configured(session, &format!("threads-{facts}"), &session.hostile, &config)?;
    let facts = facts.to_string();
    let host = site.start(session)?.host;
    let filled = load(session, &host, "thread-fill", &["--thread", THREAD, "--facts", &facts, "--deltas", deltas]);
    host.stop()?;
    filled?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "thread-read", &["--thread", THREAD, "--rounds", ROUNDS]);
    host.kill();
    record(session, figures, &report?)
}

/// From a result that an executor sends to its fact at each of the clients that follow its thread: all of many, or one of them.
fn followers(session: &mut Session, followed: &str, figures: &[(&str, &str); 2]) -> anyhow::Result<()> {
    if !session.wants(&figures.map(|(figure, _)| figure)) {
        return Ok(());
    }
    allow_files(u64::from(FOLLOWERS) + OTHER_FILES)?;
    let host = external_site(session, &format!("threads-follow-{followed}"))?.start(session)?.host;
    let arguments = ["--thread", THREAD, "--followed", followed, "--followers", &FOLLOWERS.to_string(), "--rounds", RESULTS];
    let report: anyhow::Result<Report> = load(session, &host, "thread-follow", &arguments);
    host.kill();
    record(session, figures, &report?)
}
