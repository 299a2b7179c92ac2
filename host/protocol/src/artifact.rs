//! Metadata of artifacts (wit/capabilities.wit, `artifacts`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{message::ArtifactRef, time::Timestamp};

/// Metadata of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactMetadata {
    /// The artifact.
    #[serde(flatten)]
    pub artifact: ArtifactRef,
    /// Creation time.
    pub created_at: Timestamp,
    /// Expiry time, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
