//! Artifacts that somebody names, as the ledger knows them.

use agent_host_ledger::Ledger;
use agent_host_protocol::{grant::ConversationKey, message::ArtifactRef, time};

use super::HostError;

/// The entry of an artifact that a caller names in a conversation, under the name that the caller has for it.
///
/// # Errors
/// Fails if the artifact does not exist, has expired, or belongs to another conversation: no reader could open it later.
pub(crate) fn known_artifact(
    ledger: &Ledger,
    artifact: &ArtifactRef,
    workspace: &str,
    conversation: Option<&ConversationKey>,
) -> Result<ArtifactRef, HostError> {
    let now = time::now();
    let record = ledger.artifact(&artifact.artifact_id)?.filter(|record| {
        let scope = &record.scope;
        !record.is_expired(now)
            && scope.workspace == workspace
            && (scope.conversation.is_none() || scope.conversation.as_ref() == conversation)
    });
    let Some(record) = record else {
        return Err(HostError::Invalid(format!(
            "there is no artifact {:?} in this conversation: upload it with POST /api/v1/artifacts, then name it",
            artifact.artifact_id
        )));
    };
    Ok(ArtifactRef { name: artifact.name.clone().or(record.name.clone()), ..record.reference() })
}
