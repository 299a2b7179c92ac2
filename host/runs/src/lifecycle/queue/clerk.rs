//! The clerk of a cell in a cluster with several partitions: it gets permits from the database for bindings whose limits hold over all of them.

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{LedgerError, LentPermits, PermitRequest, Permits};
use tokio::time::Instant;

use super::admission::{AGAIN, Admissions};
use crate::lifecycle::Runs;

/// The runs that were executed when the cell was opened are counted after so long. Before, they would be reported as ended.
const COUNTED: Duration = Duration::from_secs(1);
/// Permits of the owner before, for bindings without runs, go back after so long.
const SETTLED: Duration = Duration::from_secs(5);
/// Pause after a request that the database did not answer.
const RETRY: Duration = Duration::from_millis(500);

impl Runs {
    /// Gets permits as long as the cell lives.
    pub(crate) fn keep_permits(&self) {
        let Some(permits) = self.ledger.permits() else { return };
        let (admissions, stopping) = (Arc::clone(&self.admissions), self.stopping.clone());
        tokio::spawn(async move { stopping.run_until_cancelled(serve(&admissions, permits)).await });
    }
}

async fn serve(admissions: &Arc<Admissions>, permits: Permits) {
    tokio::time::sleep(COUNTED).await;
    let mut settles_at = Some(Instant::now() + SETTLED);
    loop {
        let mut is_answered = true;
        if settles_at.is_some_and(|at| at <= Instant::now()) {
            let used = admissions.bindings();
            match asked(&permits, move |permits| permits.give_back_unused(&used)).await {
                Ok(()) => settles_at = None,
                Err(error) => {
                    tracing::debug!(%error, "the permits of the owner before cannot be given back");
                    is_answered = false;
                }
            }
        }
        let mut is_idle = true;
        for binding in admissions.bindings() {
            let Some(request) = admissions.request(&binding, Instant::now()) else { continue };
            is_idle = false;
            match lend(&permits, binding.clone(), request).await {
                Ok(answer) => admissions.lent(&binding, &request, answer),
                Err(error) => {
                    tracing::debug!(binding, %error, "no permits can be asked for: runs of the binding wait");
                    admissions.unanswered(&binding);
                    is_answered = false;
                }
            }
        }
        if !is_answered {
            tokio::time::sleep(RETRY).await;
        } else if is_idle && settles_at.is_none() && admissions.bindings().is_empty() {
            admissions.changed.notified().await;
        } else {
            // Others may give something back, and the rate allows the next start.
            let _ = tokio::time::timeout(AGAIN, admissions.changed.notified()).await;
        }
    }
}

async fn lend(permits: &Permits, binding: String, request: PermitRequest) -> Result<LentPermits, LedgerError> {
    asked(permits, move |permits| permits.lend(&binding, &request)).await
}

/// The answer of the database, which a thread of its own waits for.
async fn asked<T: Send + 'static>(
    permits: &Permits,
    ask: impl FnOnce(&Permits) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, LedgerError> {
    let permits = Arc::clone(permits);
    tokio::task::spawn_blocking(move || ask(&permits))
        .await
        .map_err(|error| LedgerError::Unavailable(error.to_string().into()))?
}
