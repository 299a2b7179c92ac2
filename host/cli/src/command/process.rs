//! The start of the process of a host in a cluster, while the host follows the ledger: it has its engine, plugins and services when it
//! takes over.

use agent_host_config::Config;
use agent_host_runs::{HostError, HostProcess, StartError};
use tokio::task::JoinHandle;

/// A process that starts, or has started.
pub(crate) enum StartingProcess {
    Starting(JoinHandle<Result<HostProcess, StartError>>),
    Started(HostProcess),
}

impl StartingProcess {
    /// Begins to start the process; `then` is called as soon as it has started.
    pub(crate) fn start(config: Config, then: impl FnOnce(&HostProcess) + Send + 'static) -> Self {
        Self::Starting(tokio::spawn(async move {
            let process = HostProcess::start(config, super::compiler()).await?;
            then(&process);
            Ok(process)
        }))
    }

    pub(crate) const fn is_starting(&self) -> bool {
        matches!(self, Self::Starting(_))
    }

    /// Waits until the process has started. Not to be called again after an error.
    pub(crate) async fn ready(&mut self) -> Result<HostProcess, StartError> {
        if let Self::Starting(starting) = self {
            let started = starting.await.map_err(|error| HostError::Internal(error.to_string()))??;
            *self = Self::Started(started);
        }
        match self {
            Self::Started(process) => Ok(process.clone()),
            Self::Starting(_) => Err(HostError::Internal("the process has not started".to_owned()).into()),
        }
    }
}
