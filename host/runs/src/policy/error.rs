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
    /// The ledger is a cluster's, and only `serve` takes over one.
    #[error(
        "the ledger of this configuration is in a cluster ([server] ledger): start a host with `agent-host serve`, and send it what is to be done"
    )]
    InCluster,
    /// The password of the ledger's database.
    #[error("cluster: `password`: {0}")]
    Password(#[from] agent_host_providers::secret::SecretError),
    /// The secret of the cluster cannot be read.
    #[error("cluster: `secret`: {0}")]
    ClusterSecret(#[source] agent_host_providers::secret::SecretError),
    /// The secret of the cluster is short enough to be guessed.
    #[error(
        "cluster: `secret` has {bytes} bytes, and a cluster's secret has at least {least}: make one with `openssl rand -hex 32`, the same for each host"
    )]
    ShortClusterSecret {
        /// Length of the secret.
        bytes: usize,
        /// Least length.
        least: usize,
    },
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
