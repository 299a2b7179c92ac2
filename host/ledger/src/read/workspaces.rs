//! Bytes that the ledger keeps for workspaces.

use serde::Serialize;

use crate::{
    error::LedgerError,
    handle::Ledger,
    quotas::WorkspaceQuotas,
    rows::{Table, malformed, read_number},
};

/// The bytes that the ledger keeps for a workspace: rows of its events and runs, its state and storage, and the contents of its
/// artifacts. Transcripts, audit records and large answers in journals are not among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkspaceUsage {
    /// The workspace; empty for what has none.
    pub workspace: String,
    /// The bytes.
    pub bytes: u64,
}

impl Ledger {
    /// Sets the quotas of workspaces. From now on, events, runs and uploads of a workspace that keeps as much as it may are refused.
    /// Writes to runs are not: see [`Ledger::check_quota`].
    pub fn set_quotas(&self, quotas: WorkspaceQuotas) {
        *self.shared().quotas.write() = quotas;
    }

    /// Fails if a workspace keeps as many bytes as it may. What is admitted and not written yet does not count, so the sum may exceed
    /// the quota by that. Without a quota, nothing is looked up.
    ///
    /// # Errors
    /// [`LedgerError::WorkspaceFull`]; and where the ledger is damaged or not available.
    pub fn check_quota(&self, workspace: &str) -> Result<(), LedgerError> {
        let Some(limit) = self.shared().quotas.read().of(workspace) else { return Ok(()) };
        let bytes = self.workspace_bytes(workspace)?;
        if bytes < limit { Ok(()) } else { Err(LedgerError::WorkspaceFull { workspace: workspace.into(), bytes, limit }) }
    }

    /// Bytes that the ledger keeps for a workspace (`""`: for all that has none). Costs one look into redb.
    ///
    /// Rows since the last checkpoint count whole, also those that replace others, and rows that were deleted since then count on:
    /// the figure is at most the bytes of the log too high.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn workspace_bytes(&self, workspace: &str) -> Result<u64, LedgerError> {
        // First what is not merged: a merge between the two counts twice and not never.
        let pending = self.shared().views.pending_usage(workspace);
        let merged = self.reader()?.merged(Table::Workspaces)?.get(workspace.as_bytes())?;
        let merged = merged.map(|row| read_number(row.value()).ok_or_else(|| malformed(Table::Workspaces))).transpose()?;
        Ok(pending.saturating_add(merged.unwrap_or(0)))
    }

    /// The workspaces that the ledger keeps something for, those with the most bytes first, at most `limit`; exact. For operators:
    /// each row since the last checkpoint is looked at.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn workspaces(&self, limit: usize) -> Result<Vec<WorkspaceUsage>, LedgerError> {
        let sums = self.reader()?.workspace_usage()?;
        let mut usage: Vec<_> = sums.into_iter().map(|(workspace, bytes)| WorkspaceUsage { workspace, bytes }).collect();
        usage.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.workspace.cmp(&b.workspace)));
        usage.truncate(limit);
        Ok(usage)
    }
}
