//! `[retention]`.

use serde::{Deserialize, Serialize};

/// Retention of data of ended runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Journals, the components that they need, and logs of runs, for so long after the end of a run, in milliseconds. With journals a
    /// run can be replayed and forked. Journals of runs that have not ended are always kept.
    pub journals_ms: u64,
    /// Audit records for so long, in milliseconds. The newest of them are kept, whatever their age.
    pub audit_ms: u64,
    /// Deliveries that are dead letters, or whose webhook is configured no more, for so long, in milliseconds.
    pub dead_letters_ms: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            journals_ms: 7 * 24 * 60 * 60 * 1000,
            audit_ms: 90 * 24 * 60 * 60 * 1000,
            dead_letters_ms: 30 * 24 * 60 * 60 * 1000,
        }
    }
}
