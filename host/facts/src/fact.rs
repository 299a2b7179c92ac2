//! The envelope of a fact.

use std::collections::BTreeMap;

use agent_host_protocol::{Timestamp, time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::kind::FactType;

/// The version of the envelope.
pub const SCHEMA_VERSION: &str = "lime-runtime-event/v0.1";

/// The object that a reference names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum RefKind {
    Output,
    Artifact,
    Evidence,
    Diagnostic,
    Trace,
    Raw,
}

/// References of a fact by kind, each as a URI of the API.
pub type Refs = BTreeMap<RefKind, Vec<String>>;

/// The ids that say to what a fact belongs. Each is unique in the thread, and stands in the payload too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct ScopeIds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence_id: Option<String>,
}

impl ScopeIds {
    /// The ids that are set, by their names in JSON.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("toolCallId", &self.tool_call_id),
            ("stepId", &self.step_id),
            ("actionId", &self.action_id),
            ("taskId", &self.task_id),
            ("parentTaskId", &self.parent_task_id),
            ("attemptId", &self.attempt_id),
            ("subagentId", &self.subagent_id),
            ("channelId", &self.channel_id),
            ("handoffId", &self.handoff_id),
            ("modelRequestId", &self.model_request_id),
            ("artifactId", &self.artifact_id),
            ("evidenceId", &self.evidence_id),
        ]
        .into_iter()
        .filter_map(|(name, id)| id.as_deref().map(|id| (name, id)))
    }
}

/// A fact of a thread: what a front end reads, one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// [`SCHEMA_VERSION`].
    pub schema_version: String,
    /// The host that wrote the fact.
    pub runtime_id: String,
    /// The conversation.
    pub session_id: String,
    /// The thread: that of the conversation, or the conversation.
    pub thread_id: String,
    /// The turn. Absent in facts of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// The run that executes the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The trace of the event that the turn answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// `RUN:SEQUENCE.PART`: the event of the record that the fact comes from. Sequence 0 is the record of the run itself.
    pub event_id: String,
    /// 1 for the first fact of the thread, then without a gap.
    pub sequence: u64,
    /// Time of the fact, as RFC 3339 in UTC.
    pub timestamp: String,
    /// Type of the fact.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: FactType,
    /// The ids that say to what the fact belongs.
    #[serde(flatten)]
    pub scope: ScopeIds,
    /// References by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub refs: Refs,
    /// As the type says. `source` is `host`, `runner` or `import`; the scope ids are repeated.
    pub payload: Map<String, Value>,
}

impl Fact {
    /// A text of the payload.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.payload.get(key).and_then(Value::as_str)
    }
}

/// The form of times in facts.
#[must_use]
pub fn timestamp(at: Timestamp) -> String {
    time::display(at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fact_has_the_form_of_the_envelope() {
        let fact = Fact {
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: "host".into(),
            session_id: "c1".into(),
            thread_id: "c1".into(),
            turn_id: Some("RUN".into()),
            run_id: Some("RUN".into()),
            trace_id: None,
            event_id: "RUN:12.0".into(),
            sequence: 57,
            timestamp: timestamp(1_700_000_000_123),
            kind: FactType::ToolResult,
            scope: ScopeIds { tool_call_id: Some("RUN:call_1".into()), ..ScopeIds::default() },
            refs: Refs::from([(RefKind::Artifact, vec!["a".to_owned()])]),
            payload: Map::from_iter([("source".to_owned(), json!("host"))]),
        };
        let value = serde_json::to_value(&fact).unwrap();
        assert_eq!(
            value,
            json!({
                "schemaVersion": "lime-runtime-event/v0.1", "runtimeId": "host", "sessionId": "c1", "threadId": "c1",
                "turnId": "RUN", "runId": "RUN", "eventId": "RUN:12.0", "sequence": 57,
                "timestamp": "2023-11-14T22:13:20.123Z", "type": "tool.result", "toolCallId": "RUN:call_1",
                "refs": { "artifact": ["a"] }, "payload": { "source": "host" },
            })
        );
        assert_eq!(serde_json::from_value::<Fact>(value).unwrap(), fact);
        assert_eq!(fact.scope.entries().collect::<Vec<_>>(), [("toolCallId", "RUN:call_1")]);
    }
}
