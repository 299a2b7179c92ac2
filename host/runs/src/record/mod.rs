//! The record of a run: pure functions from values to ledger writes, typed facts, wait keys, and the format of the journal.
//! No function waits, and none knows a host.

pub(crate) mod action;
pub(crate) mod artifacts;
pub(crate) mod claimed;
mod error;
pub(crate) mod facts;
pub(crate) mod journal;
pub(crate) mod results;
pub(crate) mod seen;
pub(crate) mod steering;
pub(crate) mod terminal;
pub(crate) mod terms;
pub(crate) mod transcript;
pub(crate) mod wait_key;

use agent_host_protocol::{Run, run::Execution};

pub use self::error::{HostError, RecordingError};
pub(crate) use self::{error::ledger_failed, wait_key::WaitKey};

/// Names the source run in the metadata of a fork.
pub(crate) const FORKED_FROM: &str = "forked_from";
/// Stands in the metadata of a run that was deleted with its conversation, and in the `data` of its event.
const FORGOTTEN: &str = "forgotten";

/// True if the content of a run was deleted with its conversation.
pub(crate) fn is_forgotten(run: &Run) -> bool {
    run.metadata.get(FORGOTTEN) == Some(&true.into())
}

/// True if an executor executes the run.
pub(crate) fn is_external(run: &Run) -> bool {
    run.execution == Execution::External
}
