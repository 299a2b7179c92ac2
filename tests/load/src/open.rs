//! Opening a ledger.

use std::time::Instant;

use agent_host_runs::Config;
use serde::Serialize;

/// The duration.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    open_ms: f64,
}

/// Opens the ledger as the host does, and closes it.
pub(crate) async fn open(config: &Config) -> anyhow::Result<Report> {
    let options = agent_host_ledger::Options::new(config.data_dir.join("ledger"));
    let started = Instant::now();
    let ledger = options.open()?;
    let report = Report { open_ms: started.elapsed().as_secs_f64() * 1e3 };
    ledger.close().await?;
    Ok(report)
}
