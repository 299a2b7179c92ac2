//! Dead letters: runs that were given up.

use agent_host_ledger::EntryWrite;
use agent_host_protocol::{
    Run, RunId, RunnerId, Timestamp,
    run::{RunFailure, Terminal},
    time,
};
use serde::{Deserialize, Serialize};

use super::task::{RunOutcome, RunTask};
use crate::record::HostError;

/// The beginning of the key of every dead letter in the ledger.
pub(crate) const DEAD: &str = "dead/";

/// A run that was given up: all its attempts were lost, or nobody has claimed it in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeadLetter {
    /// The run. Its status is `failed`.
    pub run_id: RunId,
    /// Runner of the run.
    pub runner_id: RunnerId,
    /// Binding of the run.
    pub binding_id: String,
    /// Workspace of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// The queue that it was in.
    pub queue: String,
    /// Number of attempts.
    pub attempts: u32,
    /// Failure of the last attempt.
    pub failure: RunFailure,
    /// Time at which the run was given up.
    pub at: Timestamp,
}

/// The key of the dead letter of a run. Ids of runs sort by time.
pub(crate) fn dead_key(run_id: RunId) -> String {
    format!("{DEAD}{run_id}")
}

impl DeadLetter {
    fn new(run: &Run, failure: RunFailure) -> Self {
        Self {
            run_id: run.run_id,
            runner_id: run.runner_id.clone(),
            binding_id: run.binding_id.clone(),
            workspace_id: run.workspace_id.clone(),
            queue: run.queue.as_ref().map(|queue| queue.name.clone()).unwrap_or_default(),
            attempts: run.attempt,
            failure,
            at: time::now(),
        }
    }
}

impl RunTask {
    /// Ends a run that has no attempts left, and writes its dead letter in the same commit.
    pub(crate) async fn give_up(&self, failure: RunFailure) -> Result<RunOutcome, HostError> {
        self.end_stored_with(Terminal::Failed(failure.clone()), |mut write, record| {
            let letter = DeadLetter::new(&record.run, failure.clone());
            write.entries.push(EntryWrite::put(dead_key(record.run.run_id), &letter)?);
            Ok(write)
        })
        .await
    }
}
