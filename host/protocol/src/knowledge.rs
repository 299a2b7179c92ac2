//! The answers of knowledge bases (wit/capabilities.wit, `knowledge`).

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
    /// Relevance; larger is better. Comparable within one answer only.
    pub score: f64,
    /// The document, where the host keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ArtifactRef>,
    /// Metadata of the document and of the passage.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}
