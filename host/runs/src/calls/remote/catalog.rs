//! The catalog of a run: what it was granted, for a protocol that lists it. Lists are read here; every use of what they name is a
//! call, and passes the gate.

use agent_host_protocol::{
    ApiError, Limits, ResultKind, context::KnowledgeBaseResource, grant::Grant, manifest::ToolOperation, message::ArtifactRef,
    tool::ToolDetail,
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{CallError, Calls};
use crate::record::ledger_failed;

/// The data of `artifact.created`.
#[derive(Deserialize)]
struct ArtifactFact {
    artifact: ArtifactRef,
}

impl Calls {
    /// The grant of the run.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.run.run.terms.grant
    }

    /// The number of the claim under which the calls are made.
    #[must_use]
    pub fn claim(&self) -> u32 {
        self.scope.claim
    }

    /// The limits of the run.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.run.run.limits
    }

    /// A token that is cancelled when the claim ends. To cancel it ends nothing.
    #[must_use]
    pub fn claim_end(&self) -> CancellationToken {
        self.scope.closing.child_token()
    }

    /// The tools that the run may call: those of the host, then those of the client.
    #[must_use]
    pub fn tools(&self) -> Vec<ToolDetail> {
        let grant = self.grant();
        if !grant.permissions.tools.contains(&ToolOperation::Call) {
            return Vec::new();
        }
        let of_host = grant.tools.iter().filter_map(|name| self.run.services.tools.get(name)).map(|tool| tool.detail.clone());
        of_host.chain(grant.client_tools.iter().map(|tool| tool.detail())).collect()
    }

    /// The knowledge bases of the run.
    #[must_use]
    pub fn knowledge_bases(&self) -> Vec<KnowledgeBaseResource> {
        self.run.services.knowledge_resources(self.grant())
    }

    /// The artifacts that the run was given or has made, without the texts of its skills: those of its event, the files of its
    /// skills, then its own in their order.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub fn artifacts(&self) -> Result<Vec<ArtifactRef>, CallError> {
        let run = &self.run.run;
        let kinds = [ResultKind::ArtifactCreated.as_str()];
        let events = run.ledger.run_events_of(run.run_no, run.run_id, &kinds).map_err(ledger_failed)?;
        let own = events.iter().filter_map(|event| serde_json::from_str::<ArtifactFact>(event.data.get()).ok());
        let given = self.run.event.envelope.artifacts().chain(&self.grant().skill_files).cloned();
        let mut artifacts: Vec<ArtifactRef> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for artifact in given.chain(own.map(|created| created.artifact)) {
            if seen.insert(artifact.artifact_id.clone()) {
                artifacts.push(artifact);
            }
        }
        Ok(artifacts)
    }

    /// The reference of an artifact that the run may read, without a call: for content that a call has answered.
    ///
    /// # Errors
    /// `not_found`, as for every artifact that the run does not see.
    pub fn visible_artifact(&self, id: &str) -> Result<ArtifactRef, ApiError> {
        Ok(self.run.artifacts().visible(id)?.reference())
    }
}
