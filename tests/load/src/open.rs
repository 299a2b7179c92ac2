//! Opening a ledger, and lists of its runs.

use std::time::Instant;

use agent_host_ledger::{Ledger, RunFilter};
use agent_host_protocol::{RunId, RunStatus};
use agent_host_runs::Config;
use anyhow::Context;
use serde::Serialize;

/// Items on a page: the default of the API.
const PAGE: u32 = 50;
/// Pages of each list. Odd, so that there is one in the middle.
const PAGES: usize = 51;

/// The durations.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    open_ms: f64,
    /// The median time of a page, of the slowest of the lists.
    list_ms: f64,
}

/// Opens the ledger as the host does, lists runs by conversation, parent, binding and status, and closes it.
pub(crate) async fn open(config: &Config) -> anyhow::Result<Report> {
    let options = agent_host_ledger::Options::new(config.data_dir.join("ledger"));
    let started = Instant::now();
    let ledger = options.open()?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    let list_ms = slowest_list(&ledger)?;
    ledger.close().await?;
    Ok(Report { open_ms, list_ms })
}

fn slowest_list(ledger: &Ledger) -> anyhow::Result<f64> {
    let newest = ledger.runs_page(&RunFilter::default(), None, 1)?.items;
    let newest = newest.first().context("the ledger has no runs")?;
    let filters = [
        RunFilter { conversation_id: newest.conversation_id.clone(), ..RunFilter::default() },
        RunFilter { parent_run_id: Some(RunId::new()), ..RunFilter::default() },
        RunFilter { binding_id: Some(newest.binding_id.clone()), ..RunFilter::default() },
        RunFilter { binding_id: Some("nothing".to_owned()), ..RunFilter::default() },
        RunFilter { status: Some(RunStatus::Completed), ..RunFilter::default() },
        RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() },
    ];
    let mut slowest = 0.0_f64;
    for filter in filters {
        let mut times = Vec::with_capacity(PAGES);
        for _ in 0..PAGES {
            let started = Instant::now();
            ledger.runs_page(&filter, None, PAGE)?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        slowest = slowest.max(times.get(PAGES / 2).copied().unwrap_or(f64::NAN));
    }
    Ok(slowest)
}
