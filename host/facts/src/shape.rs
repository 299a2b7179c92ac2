//! Other shapes of a fact, made when it is read: the form of `agent-ui-contracts` v0.1, and that of the Lime profile 0.4.0.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    fact::{Fact, RefKind},
    kind::FactType,
};

/// The shape in which a reader takes facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// The envelope of this crate.
    #[default]
    Seed,
    /// `AgentRuntimeExecutionEvent` of `agent-ui-contracts` v0.1.
    Contracts,
    /// The event of the Lime profile 0.4.0.
    Profile,
}

impl Shape {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Seed, Self::Contracts, Self::Profile];

    /// The name in queries.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Contracts => "contracts",
            Self::Profile => "profile-0.4.0",
        }
    }

    /// The shape with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.as_str() == name)
    }

    /// A fact as JSON text.
    ///
    /// # Errors
    /// Never fails for facts: their keys are texts.
    pub fn json(self, fact: &Fact) -> serde_json::Result<String> {
        match self {
            Self::Seed => serde_json::to_string(fact),
            Self::Contracts => serde_json::to_string(&contracts(fact)),
            Self::Profile => {
                let fact = Fact { schema_version: "lime-profile-0.4.0".to_owned(), ..fact.clone() };
                serde_json::to_string(&fact)
            }
        }
    }
}

/// A fact in the form of the contracts package.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Contract<'a> {
    id: &'a str,
    schema_version: &'a str,
    runtime_id: &'a str,
    sequence: u64,
    created_at: &'a str,
    event_class: &'a str,
    kind: &'static str,
    status: &'static str,
    title: String,
    thread_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(flatten)]
    scope: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ref_ids: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifact_refs: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence_refs: Vec<&'a str>,
    payload: Map<String, Value>,
}

fn contracts(fact: &Fact) -> Contract<'_> {
    let refs = |wanted: Option<RefKind>| -> Vec<&str> {
        let of_kind = fact.refs.iter().filter(|(kind, _)| match wanted {
            Some(wanted) => **kind == wanted,
            None => !matches!(kind, RefKind::Artifact | RefKind::Evidence),
        });
        of_kind.flat_map(|(_, uris)| uris).map(String::as_str).collect()
    };
    let mut payload = fact.payload.clone();
    payload.insert("sessionId".to_owned(), fact.session_id.as_str().into());
    Contract {
        id: &fact.event_id,
        schema_version: &fact.schema_version,
        runtime_id: &fact.runtime_id,
        sequence: fact.sequence,
        created_at: &fact.timestamp,
        event_class: fact.kind.as_str(),
        kind: kind(fact.kind),
        status: status(fact),
        title: fact.text("title").map_or_else(|| fact.kind.to_string(), str::to_owned),
        thread_id: &fact.thread_id,
        turn_id: fact.turn_id.as_deref(),
        run_id: fact.run_id.as_deref(),
        trace_id: fact.trace_id.as_deref(),
        scope: fact.scope.entries().map(|(name, id)| (name.to_owned(), id.into())).collect(),
        ref_ids: refs(None),
        artifact_refs: refs(Some(RefKind::Artifact)),
        evidence_refs: refs(Some(RefKind::Evidence)),
        payload,
    }
}

/// The kind of the contracts for a type. Only what a model says is `model`: front ends show a bubble for each of it.
fn kind(kind: FactType) -> &'static str {
    match kind.family() {
        "tool" | "output" => "tool",
        "action" => "action",
        "permission" => "permission",
        "sandbox" => "sandbox",
        "context" | "history" => "context",
        "artifact" => "draft",
        "evidence" => "evidence",
        "handoff" | "channel" | "subagent" => "handoff",
        "reasoning" | "plan" => "note",
        "model" if matches!(kind, FactType::ModelDelta | FactType::ModelCompleted) => "model",
        _ => "state",
    }
}

/// The status of the contracts for a fact. `pending` would be shown as an approval.
fn status(fact: &Fact) -> &'static str {
    match fact.kind {
        FactType::ActionRequired | FactType::SandboxBlocked | FactType::QuotaBlocked | FactType::PermissionRequested => "blocked",
        FactType::ActionCanceled | FactType::ActionExpired | FactType::TurnCanceled | FactType::TaskCancelled => "canceled",
        FactType::TurnFailed
        | FactType::ModelFailed
        | FactType::ToolFailed
        | FactType::SubagentFailed
        | FactType::TaskFailed
        | FactType::TaskTimedOut
        | FactType::TaskAttemptFailed
        | FactType::PermissionDenied
        | FactType::SandboxViolation => "failed",
        FactType::SnapshotUpdated => match fact.text("status") {
            Some("completed") => "completed",
            Some("failed") => "failed",
            Some("canceled") => "canceled",
            _ => "running",
        },
        FactType::TurnSubmitted => "pending",
        FactType::TurnCompleted
        | FactType::ModelCompleted
        | FactType::ToolResult
        | FactType::ActionResolved
        | FactType::PermissionResolved
        | FactType::SubagentCompleted
        | FactType::TaskCompleted
        | FactType::HandoffCompleted
        | FactType::ArtifactChanged
        | FactType::EvidenceChanged => "completed",
        _ => "running",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fact_is_shown_in_each_shape() {
        let seed = json!({
            "schemaVersion": "lime-runtime-event/v0.1", "runtimeId": "h", "sessionId": "s", "threadId": "t", "turnId": "r",
            "runId": "r", "eventId": "r:1.0", "sequence": 3, "timestamp": "2023-11-14T22:13:20.123Z", "type": "tool.result",
            "toolCallId": "r:c", "refs": { "artifact": ["/a"], "output": ["/o"] },
            "payload": { "source": "host", "toolCallId": "r:c", "toolName": "search" },
        });
        let fact: Fact = serde_json::from_value(seed.clone()).unwrap();
        let shown = |shape: Shape| serde_json::from_str::<Value>(&shape.json(&fact).unwrap()).unwrap();
        assert_eq!(shown(Shape::Seed), seed);
        let profile = shown(Shape::Profile);
        assert_eq!((&profile["schemaVersion"], &profile["type"]), (&json!("lime-profile-0.4.0"), &json!("tool.result")));
        let contract = shown(Shape::Contracts);
        assert_eq!(
            contract,
            json!({
                "id": "r:1.0", "schemaVersion": "lime-runtime-event/v0.1", "runtimeId": "h", "sequence": 3,
                "createdAt": "2023-11-14T22:13:20.123Z", "eventClass": "tool.result", "kind": "tool", "status": "completed",
                "title": "tool.result", "threadId": "t", "turnId": "r", "runId": "r", "toolCallId": "r:c",
                "refIds": ["/o"], "artifactRefs": ["/a"],
                "payload": { "source": "host", "toolCallId": "r:c", "toolName": "search", "sessionId": "s" },
            })
        );
        for shape in Shape::ALL {
            assert_eq!(Shape::from_name(shape.as_str()), Some(shape));
        }
    }
}
