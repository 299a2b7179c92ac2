//! Runs that a run has started (wit/capabilities.wit, `runs`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    id::{RunId, RunnerId},
    run::{Run, RunStatus},
    time::Timestamp,
};

/// A run, as the run that started it sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "as in a run")]
pub struct RunSummary {
    pub run_id: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    pub runner_id: RunnerId,
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl From<&Run> for RunSummary {
    fn from(run: &Run) -> Self {
        Self {
            run_id: run.run_id,
            parent_run_id: run.parent_run_id,
            runner_id: run.runner_id.clone(),
            status: run.status,
            status_reason: run.status_reason.clone(),
            created_at: run.created_at,
            finished_at: run.finished_at,
        }
    }
}
