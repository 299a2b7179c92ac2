//! `[quotas]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes that workspaces may keep in the ledger: their events and runs, state and storage, and artifacts. A workspace that keeps as
/// much gets no new events, runs and uploads, and its runs no further results, values and artifacts; they can still end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Quota of each workspace without one of its own, in bytes, and of all together that has no workspace. Without it, those have
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<u64>,
    /// Quotas of single workspaces, in bytes, by the id of the workspace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub workspaces: BTreeMap<String, u64>,
}
