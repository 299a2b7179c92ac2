//! Permits of a cell in a cluster with several partitions: a task requests them from the database for the gates of [`Admissions`].

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{LedgerError, LentPermits, PermitRequest, Permits};
use tokio::time::Instant;

use super::admission::{AGAIN, Admissions};
use crate::lifecycle::Runs;

/// Permits that the owner before had for bindings without runs are given back after so long: runs that were recovered have asked for theirs.
const SETTLED: Duration = Duration::from_secs(5);
/// Pause after a request that the database did not answer.
const RETRY: Duration = Duration::from_millis(500);

impl Runs {
    /// Requests permits as long as the cell lives.
    pub(crate) fn keep_permits(&self) {
        let Some(permits) = self.ledger.permits() else { return };
        let (admissions, stopping) = (Arc::clone(&self.admissions), self.stopping.clone());
        tokio::spawn(async move { stopping.run_until_cancelled(request_all(&admissions, permits)).await });
    }
}

async fn request_all(admissions: &Arc<Admissions>, permits: Permits) {
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
                    tracing::debug!(binding, %error, "the database lends no permits: runs of the binding wait");
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
            // Other partitions may give permits back, and the rate allows the next start.
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
