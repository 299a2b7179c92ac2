//! The services of guests besides the ledger: models, tools, knowledge, HTTP requests. And the key sets of identity providers.
//!
//! The crate carries out granted calls. The gate in `runs` has checked each call before. No code here knows a run, a grant
//! or a ledger.

use agent_host_protocol::{ApiError, message::ArtifactRef};
use futures_util::future::BoxFuture;

pub mod egress;
#[doc(hidden)]
pub mod fuzz;
mod http_client;
pub mod key_set;
pub mod knowledge;
pub mod log_context;
pub mod models;
mod redact;
mod retry_after;
pub mod search;
pub mod secret;
pub mod tools;
pub mod trace;
pub mod webhook;

/// The content of artifacts that a message names, for a service that needs the bytes. The kernel implements it, and
/// gives only what the run may read.
pub trait ArtifactSource: Send + Sync {
    /// The whole content; refused where it has more than `max_bytes`.
    fn content<'a>(&'a self, artifact: &'a ArtifactRef, max_bytes: usize) -> BoxFuture<'a, Result<ArtifactContent, ApiError>>;
}

/// The bytes of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactContent {
    /// As the host found it out, whatever the message says.
    pub media_type: String,
    /// All of it.
    pub bytes: bytes::Bytes,
}
