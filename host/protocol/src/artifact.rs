//! What is said of an artifact (wit/capabilities.wit, `artifacts`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{message::ArtifactRef, time::Timestamp};

/// What is said of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactMetadata {
    /// It.
    #[serde(flatten)]
    pub artifact: ArtifactRef,
    /// When the host took it.
    pub created_at: Timestamp,
    /// When the host forgets it, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
