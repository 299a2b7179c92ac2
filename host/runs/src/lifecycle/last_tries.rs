//! Runs on their last try: the host died in each try before, and they came no further. One of them may be what it died of, such as a
//! run for which the machine has too little memory. They come back after all others, by workspace: one at first, and with
//! each that the host survives one more at a time. So one of them costs neither the runs of other workspaces nor most of its
//! own their last try, which is not counted while they wait.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_host_ledger::Watch;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::task::RunTask;
use crate::{
    execution::Resumption,
    record::{HostError, journal::EarlierJournal},
};

/// Time after the start of the cell in which the other runs come back.
const OTHERS_FIRST: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 1_000 });
/// Time after which a run that has come back counts as survived, although it has written nothing.
const SURVIVED: Duration = Duration::from_secs(5);

/// The lines in which such runs wait, by workspace.
pub(crate) struct LastTries {
    began: Instant,
    lines: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The place of a run among those that come back at one time.
pub(crate) struct LastTry {
    line: Arc<Semaphore>,
    place: OwnedSemaphorePermit,
}

impl Default for LastTries {
    fn default() -> Self {
        Self { began: Instant::now(), lines: Mutex::default() }
    }
}

impl LastTries {
    /// Waits for a place, first come first served.
    async fn enter(&self, workspace: &str) -> Result<LastTry, HostError> {
        tokio::time::sleep_until(self.began + OTHERS_FIRST).await;
        let line = {
            let mut lines = self.lines.lock();
            Arc::clone(lines.entry(workspace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // A line is never closed.
        let place = Arc::clone(&line).acquire_owned().await.map_err(|error| HostError::Internal(error.to_string()))?;
        Ok(LastTry { line, place })
    }
}

impl LastTry {
    /// Gives the place on once the run has written something or has ended, or the host has survived it for a while; from then on
    /// there is one place more.
    pub(crate) async fn until_survived(self, mut run: Watch) {
        let _either = tokio::time::timeout(SURVIVED, run.changed()).await;
        self.give_on();
    }

    fn give_on(self) {
        drop(self.place);
        self.line.add_permits(1);
    }
}

impl RunTask {
    /// Waits for the place of a run on its last try. `None` for all other runs.
    pub(crate) async fn last_try(&self) -> Result<Option<LastTry>, HostError> {
        let record = &self.run.record;
        if self.run.resumption != Resumption::Interrupted || record.run.resumes == 0 {
            return Ok(None);
        }
        let limits = self.runs.shared.limits();
        match EarlierJournal::read(&self.runs.ledger, record.run_no, &limits) {
            Ok(Some(journal)) if journal.without_progress > 0 && journal.without_progress + 1 >= self.run.terms.max_attempts => {}
            // The start of the run says what is wrong with its journal.
            _ => return Ok(None),
        }
        self.runs.last_tries.enter(self.run.terms.grant.workspace()).await.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_workspace_has_one_more_place_for_each_run_that_was_survived_and_others_have_their_own() {
        let last_tries = LastTries::default();
        let is_full =
            async |workspace| tokio::time::timeout(Duration::from_millis(10), last_tries.enter(workspace)).await.is_err();
        assert!(is_full("a").await, "other runs come first");
        tokio::time::sleep(OTHERS_FIRST).await;
        let first = last_tries.enter("a").await.unwrap();
        assert!(is_full("a").await && !is_full("b").await);
        first.give_on();
        let _two = (last_tries.enter("a").await.unwrap(), last_tries.enter("a").await.unwrap());
        assert!(is_full("a").await);
    }
}
