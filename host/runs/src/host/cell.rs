//! A cell: everything that belongs to one ledger.

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{Ledger, Partition};

use crate::{execution::Shared, intake::Intake, lifecycle::Runs, record::HostError};

/// One ledger with its runs and the handle to them. The embedded host has one cell. No value outside of a cell refers to
/// its runs, so a closed cell can be dropped as a whole.
#[derive(Clone)]
pub(crate) struct Cell {
    pub(crate) ledger: Ledger,
    pub(crate) runs: Runs,
    pub(crate) intake: Intake,
}

impl Cell {
    /// Opens the cell of a ledger: waiting runs go on, runs that a crash left are resumed or ended, and the clocks begin.
    pub(crate) async fn open(shared: &Arc<Shared>, ledger: Ledger, partition: Partition) -> Result<Self, HostError> {
        let runs = Runs::open(shared, ledger.clone(), partition).await?;
        let intake = Intake::new(&runs);
        let cell = Self { ledger, runs, intake };
        tokio::spawn(Arc::clone(&cell.runs.logs).keep_writing(cell.runs.stopping.clone()));
        cell.runs.recover().await?;
        cell.runs.keep_permits();
        cell.runs.watch_executors();
        cell.runs.keep_time();
        cell.runs.keep_watch();
        cell.intake.keep_schedules();
        cell.intake.keep_delivering();
        Ok(cell)
    }

    /// Closes the cell: it takes no new events, gives runs that have started `grace` to end, and closes the ledger. Runs that
    /// are still active go on at the next start where their binding lets them, and end as `host_restarted` where it does not;
    /// runs that wait stay where they are.
    pub(crate) async fn close(&self, grace: Duration) {
        let runs = &self.runs;
        runs.stopping.cancel();
        runs.tasks.close();
        if tokio::time::timeout(grace, runs.tasks.wait()).await.is_err() {
            runs.ending.cancel();
            // Each run has one commit left. A disk that hangs must not keep the process.
            if tokio::time::timeout(Duration::from_secs(10), runs.tasks.wait()).await.is_err() {
                tracing::error!("some runs could not be ended; they will be ended when the host starts again");
            }
        }
        runs.forget_manifests();
        if let Err(error) = runs.shared.keys.usage().write(&self.ledger, runs.partition).await {
            tracing::warn!(%error, "the tokens that keys have used could not be written");
        }
        let logs = Arc::clone(&runs.logs);
        let _ = tokio::task::spawn_blocking(move || logs.write_all()).await;
        if let Err(error) = self.ledger.clone().close().await {
            tracing::error!(%error, "the ledger could not be closed cleanly; nothing that was acknowledged is lost");
        }
    }
}
