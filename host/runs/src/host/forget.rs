//! The end of a conversation: what was said in it is deleted, and what its runs have left of that.
//!
//! The module owns the order of deletion and the rows besides those of the ledger: deliveries, dead letters, the transcript
//! index. The rows that remain are listed in `ledger/src/forget.rs`.

use std::{collections::HashSet, time::Duration};

use agent_host_ledger::{DeletedData, EntryWrite, Forget, Ledger, LedgerError, RunRecord};
use agent_host_protocol::{Run, RunId, grant::ConversationKey};

use super::cell::Cell;
use crate::{
    execution::{Shared, family::Children},
    intake::delivery,
    lifecycle::dead_letters::dead_key,
    record::{HostError, WaitKey},
};

/// The end of a run cancels its children, which need a moment to end.
const CHILDREN_END: Duration = Duration::from_secs(5);
/// Runs whose entries are deleted in one write.
const ENTRIES_AT_ONCE: usize = 256;

impl Cell {
    /// Forgets a conversation: deletes its transcript, its state of scope `conversation` of every runner, its artifacts, and
    /// what its runs and those that they have started did: their events but for the end, their contexts, their journals, and
    /// the input of their events. The record of each run stays, with `forgotten` in its metadata, and so do its terms and its
    /// audit records. Values that runners keep in other scopes and in storage are theirs. Doing it again does no harm, and
    /// ends what was interrupted.
    pub(crate) async fn forget_conversation(&self, shared: &Shared, key: &ConversationKey) -> Result<DeletedData, HostError> {
        self.runs.check_running()?;
        if let Some(run) = self.intake.active_runs(key)?.first() {
            return Err(is_active(run));
        }
        let (ledger, of) = (self.ledger.clone(), key.clone());
        let runs = blocking(move || Ok(with_children(&ledger, ledger.conversation_runs(&of)?)?)).await?;
        for record in runs.iter().filter(|record| !record.run.status.is_terminal()) {
            let run = self.runs.wait(record.run.run_id, CHILDREN_END).await?;
            if !run.status.is_terminal() {
                return Err(is_active(&run));
            }
        }
        let runners: HashSet<_> = runs.iter().map(|record| &record.run.runner_id).collect();
        let forget = Forget {
            state: runners.into_iter().map(|runner| key.state_key(runner)).collect(),
            runs: runs.iter().map(|record| (record.run_no, record.run.run_id)).collect(),
            waits: WaitKey::conversation(key).to_string(),
            conversation: key.clone(),
        };
        for runs in forget.runs.chunks(ENTRIES_AT_ONCE) {
            let (ledger, ids) = (self.ledger.clone(), runs.iter().map(|(_, id)| *id).collect::<Vec<_>>());
            let entries = blocking(move || entries_of(&ledger, &ids)).await?;
            self.ledger.put_entries(&entries).await?;
        }
        let forgotten = self.ledger.forget_conversation(forget).await?;
        let (logs, runs) = (std::sync::Arc::clone(&self.runs.logs), runs);
        blocking(move || {
            let removed = logs.forget(runs.iter().map(|record| record.run.run_id));
            removed.map_err(|error| HostError::Unavailable(format!("the logs of its runs could not be removed: {error}")))
        })
        .await?;
        let (services, of) = (std::sync::Arc::clone(&shared.setup().services), key.clone());
        blocking(move || services.forget_transcript(&of).map_err(|error| HostError::Unavailable(error.message))).await?;
        tracing::info!(?forgotten, "a conversation was forgotten");
        Ok(forgotten)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, HostError> + Send + 'static) -> Result<T, HostError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| HostError::Internal(error.to_string()))?
}

fn is_active(run: &Run) -> HostError {
    HostError::Conflict(format!(
        "run {} of this conversation has not ended ({}): cancel it, or wait for its end, then do this again",
        run.run_id, run.status
    ))
}

/// These runs and all their descendants, each before its parent.
fn with_children(ledger: &Ledger, runs: Vec<RunRecord>) -> Result<Vec<RunRecord>, LedgerError> {
    let mut seen: HashSet<RunId> = HashSet::new();
    let mut all = Vec::new();
    // Parents come first here, and are turned round at the end.
    let mut next = runs;
    while !next.is_empty() {
        let mut started = Vec::new();
        for record in next {
            if !seen.insert(record.run.run_id) {
                continue;
            }
            for child in Children::of(ledger, &record)?.all() {
                started.extend(ledger.run(child)?);
            }
            all.push(record);
        }
        next = started;
    }
    all.reverse();
    Ok(all)
}

/// The entries of these runs.
fn entries_of(ledger: &Ledger, runs: &[RunId]) -> Result<Vec<EntryWrite>, HostError> {
    let mut entries = Vec::new();
    for run in runs {
        let of_run = ledger.entries(&delivery::of_run(*run), None, usize::MAX)?;
        entries.extend(of_run.into_iter().map(|(key, _)| EntryWrite::delete(key)));
        let dead = dead_key(*run);
        if ledger.entry(&dead)?.is_some() {
            entries.push(EntryWrite::delete(dead));
        }
    }
    Ok(entries)
}
