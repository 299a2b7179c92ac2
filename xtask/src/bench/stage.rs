//! Cost of the stages of an echo run, 256 in flight: microseconds of CPU, and the time of the ledger's writer.
//!
//! A stage is measured if it can be separated without stop watches in the host: by its own thread, or by the difference
//! between two hosts of which one leaves it out.

use super::{echo, people::load, session::Session, site::Site};

const HTTP: &str = "echo.stage.http.us";
const LOG: &str = "echo.stage.log.us";
const WORKERS: &str = "echo.stage.workers.us";
const WRITER: &str = "echo.stage.writer.us";
const MERGE: &str = "echo.stage.merge.us";
const MERGING: &str = "ledger.merge.during.p99_ms";
const NOT_MERGING: &str = "ledger.merge.without.p99_ms";
const WALL: &str = "ledger.writer.wall_us_per_run";

const IN_FLIGHT: &str = "256";
/// Switches the log of the host off.
const QUIET: &[(&str, &str)] = &[("AGENT_HOST_LOG", "off")];

/// Merges that a stretch has to have for its percentiles to say something.
const MERGES: f64 = 5.0;

/// Latency of runs that end while the ledger merges rows into its store, and of the others.
pub(crate) fn merges(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&[MERGING, NOT_MERGING]) {
        return Ok(());
    }
    let config = echo::site(session, "merges")?.config();
    let report = session.load(&["merges", "--config", &config, "--in-flight", IN_FLIGHT])?;
    let merges = report.number("merges")?;
    anyhow::ensure!(merges >= MERGES, "only {merges} merges in this stretch: measure on a quiet machine");
    session.record(MERGING, report.part("merging")?.number("p99_ms")?)?;
    session.record(NOT_MERGING, report.part("not_merging")?.number("p99_ms")?)
}

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    let over_http = session.wants(&[HTTP, LOG]);
    if !over_http && !session.wants(&[WORKERS, WRITER, MERGE, WALL]) {
        return Ok(());
    }
    let config = echo::site(session, "stages")?.config();
    let report = session.load(&["stages", "--config", &config, "--in-flight", IN_FLIGHT])?;
    session.record(WORKERS, report.number("workers_us")?)?;
    session.record(WRITER, report.number("writer_us")?)?;
    if let Some(merge) = report.number_or_null("merge_us")? {
        session.record(MERGE, merge)?;
    }
    session.record(WALL, report.number("writer_wall_us")?)?;
    if over_http {
        let quiet = cpu(session, &echo::site(session, "stages-quiet")?, QUIET)?;
        let logging = cpu(session, &echo::site(session, "stages-log")?, &[])?;
        // In-process runs have no log.
        session.record(HTTP, quiet - report.number("cpu_us")?)?;
        session.record(LOG, logging - quiet)?;
    }
    Ok(())
}

/// The CPU of an echo run over HTTP.
fn cpu(session: &Session, site: &Site, environment: &[(&str, &str)]) -> anyhow::Result<f64> {
    let host = site.start_in(session, environment)?.host;
    let report = load(session, &host, "http", &["--in-flight", IN_FLIGHT]);
    host.kill();
    report?.number("cpu_us_per_run")
}
