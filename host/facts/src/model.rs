//! References in read models, and what they have in common.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::fact::{Fact, RefKind};

/// A reference to an object that somebody else keeps: an artifact, an output, evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Kind of the object.
    pub kind: RefKind,
    /// Id of the object.
    pub id: String,
    /// The turn that made it, or the task of the turn.
    pub owner: String,
    /// Address of the object in the API.
    pub uri: String,
    /// A line for people.
    pub summary: String,
}

/// A reference to an artifact.
pub type ArtifactRef = ObjectRef;
/// A reference to evidence.
pub type EvidenceRef = ObjectRef;

impl ObjectRef {
    /// The artifact that a fact names.
    #[must_use]
    pub fn artifact(fact: &Fact) -> Option<Self> {
        let id = fact.scope.artifact_id.clone()?;
        let uri = fact.text("contentRef")?.to_owned();
        Some(Self { kind: RefKind::Artifact, id, owner: owner(fact), uri, summary: text(fact, "title") })
    }

    /// The evidence that a fact names.
    #[must_use]
    pub fn evidence(fact: &Fact) -> Option<Self> {
        let id = fact.scope.evidence_id.clone()?;
        let uri = fact.text("packRef")?.to_owned();
        let summary = format!("evidence of run {}", text(fact, "evidenceRunId"));
        Some(Self { kind: RefKind::Evidence, id, owner: owner(fact), uri, summary })
    }
}

fn owner(fact: &Fact) -> String {
    fact.scope.task_id.clone().or_else(|| fact.turn_id.clone()).unwrap_or_default()
}

pub(crate) fn text(fact: &Fact, key: &str) -> String {
    fact.text(key).unwrap_or_default().to_owned()
}

pub(crate) fn value(fact: &Fact, key: &str) -> Value {
    fact.payload.get(key).cloned().unwrap_or_default()
}

/// Adds an item to a list that keeps its newest; counts what it drops.
pub(crate) fn keep<T>(list: &mut Vec<T>, most: usize, omitted: &mut u64, item: T) {
    if list.len() >= most {
        list.remove(0);
        *omitted += 1;
    }
    list.push(item);
}
