//! A ledger with a million runs in it.

use std::{thread, time::Duration};

use super::{
    echo,
    session::Session,
    site::{Site, target},
};

const RATIO: &str = "ledger.million.ratio";
const BYTES: &str = "ledger.bytes_per_run";
const OPEN: &str = "ledger.open.million.ms";
const LIST: &str = "ledger.list.million.ms";

/// Pairs of measurements, one of each ledger right after the other, since machines and disks change from minute to
/// minute. Odd, so that there is a pair in the middle.
const PAIRS: usize = 5;
const IN_FLIGHT: &str = "256";
const MEASURE_MS: &str = "3000";
/// The host is killed in the midst of its work, with this much of it since it started.
const WORK: Duration = Duration::from_secs(3);

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&[RATIO, BYTES, OPEN, LIST]) {
        return Ok(());
    }
    let site = echo::site(session, "million")?;
    let runs = session.million.to_string();
    let report = session.load(&["fill", "--config", &site.config(), "--runs", &runs])?;
    session.record(BYTES, report.number("bytes_per_run")?)?;
    if session.wants(&[RATIO]) {
        ratio(session, &site)?;
    }
    if session.wants(&[OPEN, LIST]) {
        open_after_kill(session, &site)?;
    }
    Ok(())
}

/// The cost of an echo run beside a million others, relative to its cost alone: the median of some pairs.
fn ratio(session: &mut Session, full: &Site) -> anyhow::Result<()> {
    let rate = |site: &Site| {
        let arguments = ["in-process", "--config", &site.config(), "--in-flight", IN_FLIGHT, "--measure", MEASURE_MS];
        session.load(&arguments)?.number("runs_per_second")
    };
    let mut ratios = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        let empty = echo::site(session, &format!("empty-{pair}"))?;
        // In turn the one and the other comes first.
        let (alone, among_others) = if pair % 2 == 0 {
            let alone = rate(&empty)?;
            (alone, rate(full)?)
        } else {
            let among_others = rate(full)?;
            (rate(&empty)?, among_others)
        };
        ratios.push(alone / among_others);
    }
    ratios.sort_by(f64::total_cmp);
    session.record(RATIO, ratios.get(PAIRS / 2).copied().unwrap_or(f64::NAN))
}

/// The cost of a crash for the next start, and of a page of runs out of all of them.
fn open_after_kill(session: &mut Session, site: &Site) -> anyhow::Result<()> {
    let host = site.start(session)?.host;
    let target = target(&host);
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    let mut load = session.spawn_load(&[&["http"], target.as_slice(), &["--in-flight", IN_FLIGHT]].concat())?;
    thread::sleep(WORK);
    host.kill();
    // The load generator fails when the host ends.
    load.wait()?;
    let report = session.load(&["open", "--config", &site.config()])?;
    session.record(OPEN, report.number("open_ms")?)?;
    session.record(LIST, report.number("list_ms")?)
}
