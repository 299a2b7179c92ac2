//! The closed list of types of facts.

use std::{borrow::Cow, fmt};

use agent_host_protocol::named_enum;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

named_enum! {
    /// The type of a fact. The host writes these types and no others.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    #[allow(missing_docs, reason = "the names are the meaning")]
    pub enum FactType {
        SessionCreated = "session.created",
        ThreadStarted = "thread.started",
        ThreadUpdated = "thread.updated",
        TurnSubmitted = "turn.submitted",
        TurnStarted = "turn.started",
        TurnCompleted = "turn.completed",
        TurnFailed = "turn.failed",
        TurnCanceled = "turn.canceled",
        RunStatus = "run.status",
        ContextResolved = "context.resolved",
        HistoryCompacted = "history.compacted",
        RoutingCandidatesResolved = "routing.candidates.resolved",
        RoutingSingleCandidate = "routing.single_candidate",
        RoutingNotPossible = "routing.not_possible",
        ModelRequested = "model.requested",
        ModelDelta = "model.delta",
        ModelCompleted = "model.completed",
        ModelFailed = "model.failed",
        ReasoningDelta = "reasoning.delta",
        PlanDelta = "plan.delta",
        PlanFinal = "plan.final",
        ToolStarted = "tool.started",
        ToolArgs = "tool.args",
        ToolProgress = "tool.progress",
        ToolResult = "tool.result",
        ToolFailed = "tool.failed",
        ActionRequired = "action.required",
        ActionResolved = "action.resolved",
        ActionExpired = "action.expired",
        ActionCanceled = "action.canceled",
        PermissionEvaluated = "permission.evaluated",
        PermissionRequested = "permission.requested",
        PermissionResolved = "permission.resolved",
        PermissionDenied = "permission.denied",
        SandboxApplied = "sandbox.applied",
        SandboxViolation = "sandbox.violation",
        SandboxBlocked = "sandbox.blocked",
        CostRecorded = "cost.recorded",
        RateLimitHit = "rate_limit.hit",
        QuotaBlocked = "quota.blocked",
        LimitReached = "limit.reached",
        LimitChanged = "limit.changed",
        OutputSpilled = "output.spilled",
        ArtifactChanged = "artifact.changed",
        EvidenceChanged = "evidence.changed",
        TaskCreated = "task.created",
        TaskProgress = "task.progress",
        TaskDependencyUpdated = "task.dependency.updated",
        TaskCompleted = "task.completed",
        TaskFailed = "task.failed",
        TaskCancelled = "task.cancelled",
        TaskTimedOut = "task.timed_out",
        TaskAttemptStarted = "task.attempt.started",
        TaskAttemptCompleted = "task.attempt.completed",
        TaskAttemptFailed = "task.attempt.failed",
        SubagentStarted = "subagent.started",
        SubagentCompleted = "subagent.completed",
        SubagentFailed = "subagent.failed",
        ChannelOpened = "channel.opened",
        ChannelMessage = "channel.message",
        HandoffRequested = "handoff.requested",
        HandoffCompleted = "handoff.completed",
        SnapshotUpdated = "snapshot.updated",
        RuntimeWarning = "runtime.warning",
    }
}

impl FactType {
    /// True for the one end of a turn.
    #[must_use]
    pub const fn is_turn_terminal(self) -> bool {
        matches!(self, Self::TurnCompleted | Self::TurnFailed | Self::TurnCanceled)
    }

    /// True for the end of an action.
    #[must_use]
    pub const fn is_action_terminal(self) -> bool {
        matches!(self, Self::ActionResolved | Self::ActionExpired | Self::ActionCanceled)
    }

    /// True for the end of a tool call.
    #[must_use]
    pub const fn is_tool_terminal(self) -> bool {
        matches!(self, Self::ToolResult | Self::ToolFailed)
    }

    /// The text before the first dot, such as `tool`.
    #[must_use]
    pub fn family(self) -> &'static str {
        self.as_str().split_once('.').map_or("", |(family, _)| family)
    }
}

impl fmt::Display for FactType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FactType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FactType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("`{name}` is no type of fact that this version knows")))
    }
}

/// Families that only the host knows. A runner has no part in them.
const OF_HOST: [&str; 9] = ["session", "turn", "sandbox", "limit", "quota", "rate_limit", "routing", "evidence", "snapshot"];

/// Types of other families that only the host knows: a runner asks, and others answer.
const TYPES_OF_HOST: [&str; 6] =
    ["permission.evaluated", "permission.resolved", "permission.denied", "action.resolved", "action.canceled", "action.expired"];

/// True for a type that only the host knows.
pub(crate) fn is_of_host(kind: &str) -> bool {
    let family = kind.split_once('.').map_or(kind, |(family, _)| family);
    OF_HOST.contains(&family) || TYPES_OF_HOST.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reads_back_and_has_a_family() {
        for kind in FactType::ALL {
            assert_eq!(FactType::from_name(kind.as_str()), Some(*kind));
            assert!(!kind.family().is_empty(), "{kind}");
        }
        assert_eq!(FactType::from_name("turn.cancelled"), None);
        assert_eq!(FactType::from_name("tool.catalog.resolved"), None, "tool facts belong to a call");
    }
}
