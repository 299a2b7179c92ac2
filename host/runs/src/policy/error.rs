//! The reasons why a host does not start.

use std::path::PathBuf;

use agent_host_config::ConfigError;
use agent_host_ledger::OpenError;
use agent_host_sandbox::{PluginsError, SandboxError};

use super::library::LibraryError;
use crate::record::HostError;

/// The reason why the host could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// The ledger, once it was open.
    #[error("the ledger could not be recovered: {0}")]
    Recovery(#[from] HostError),
    /// The sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The plugins directory.
    #[error(transparent)]
    Plugins(#[from] PluginsError),
    /// The knowledge bases.
    #[error(transparent)]
    Knowledge(#[from] agent_host_providers::knowledge::KnowledgeError),
    /// Skills and static references.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A directory.
    #[error("{path} cannot be made: {source}", path = path.display())]
    Directory {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}
