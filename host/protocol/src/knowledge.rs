//! What knowledge bases answer (wit/capabilities.wit, `knowledge`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::ArtifactRef;

/// A passage that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnowledgeHit {
    /// The document that it is from.
    pub document_id: String,
    /// The passage.
    pub text: String,
    /// How well it fits; larger is better. Comparable within one answer only.
    pub score: f64,
    /// The document, where the host keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ArtifactRef>,
    /// What is known of the document and of the place of the passage in it.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}
