//! What a guest may use beyond the ledger: models, tools, knowledge, requests to the outside.
//!
//! It is: the way from a granted call to a service. It is not: a judge of who may call; the gate in `runs` has
//! decided that before anything arrives here. Nothing here knows a run, a grant or a ledger.
//!
//! What an interface has no provider for yet, [`unavailable`] answers, so that a runner can tell "not here" from "not
//! allowed".

use agent_host_protocol::{ApiError, ErrorCode, Interface, message::ArtifactRef};
use async_trait::async_trait;

pub mod knowledge;
pub mod models;
mod redact;
pub mod search;
pub mod secret;
pub mod tools;

/// The content of artifacts that a message names, for a service that needs the bytes. The kernel implements it, and
/// gives only what the run may read.
#[async_trait]
pub trait ArtifactSource: Send + Sync {
    /// The whole content; refused where it has more than `max_bytes`.
    async fn content(&self, artifact: &ArtifactRef, max_bytes: usize) -> Result<ArtifactContent, ApiError>;
}

/// The bytes of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactContent {
    /// As the host found it out, whatever the message says.
    pub media_type: String,
    /// All of it.
    pub bytes: bytes::Bytes,
}

/// The answer of an interface that this build of the host has no provider for.
#[must_use]
pub fn unavailable(interface: Interface, function: &str) -> ApiError {
    ApiError::new(ErrorCode::RuntimeError, format!("{interface}.{function} is not available in this build"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_here_says_so_and_is_not_worth_a_retry() {
        let error = unavailable(Interface::Http, "send");
        assert_eq!((error.code, error.retryable), (ErrorCode::RuntimeError, false));
        assert_eq!(error.message, "http.send is not available in this build");
    }
}
