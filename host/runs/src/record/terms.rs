//! The terms of a run: what was settled when it was created, and holds whatever is configured later.

use agent_host_protocol::{
    Grant,
    context::Delivery,
    run::{Execution, RunFailure},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use agent_host_config::{ApprovalRule, Bootstrap, Durability, InDoubt, QueuePolicy, default_max_attempts};

/// Stored with the run in the same commit, and read by everything that happens to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// What it may use.
    pub grant: Grant,
    /// The configuration of its binding, with the defaults of the runner's form.
    pub config: Map<String, Value>,
    /// What the place that shows the answer can do.
    pub delivery: Delivery,
    /// How long the guest may take.
    pub deadline_ms: u64,
    /// What of the transcript its context brings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// What becomes of it when the host stops while it is active.
    #[serde(default)]
    pub durability: Durability,
    /// How often it may be tried, or brought back without getting any further.
    #[serde(default = "default_max_attempts")]
    pub max_attempts: u32,
    /// What becomes of an effect whose outcome nobody knows.
    #[serde(default)]
    pub in_doubt: InDoubt,
    /// What of that which it wants is done at once, asked of people, or refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalRule>,
    /// Who executes it.
    #[serde(default, skip_serializing_if = "Execution::is_host")]
    pub execution: Execution,
    /// How it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Box<QueuePolicy>>,
    /// Whether no binding of the configuration stands behind it: somebody made it by naming the runner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ad_hoc: bool,
    /// The webhooks that are told what it does, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deliver: Vec<String>,
    /// How many runs stand above it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// Why it can only fail, if it can only fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RunFailure>,
}

fn is_zero(depth: &u32) -> bool {
    *depth == 0
}
