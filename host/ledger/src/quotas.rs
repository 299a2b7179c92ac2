//! Quotas of workspaces.

use std::collections::BTreeMap;

/// The bytes that workspaces may keep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkspaceQuotas {
    /// Quota of each workspace without one of its own, and of what has no workspace; `None` bounds nothing.
    pub default_bytes: Option<u64>,
    /// Quotas of single workspaces.
    pub workspaces: BTreeMap<String, u64>,
}

impl WorkspaceQuotas {
    /// The quota of a workspace.
    pub(crate) fn of(&self, workspace: &str) -> Option<u64> {
        self.workspaces.get(workspace).copied().or(self.default_bytes)
    }
}
