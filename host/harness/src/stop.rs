//! The end of a run that its agent does not decide on.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::host_client::HostError;

/// The reason why a run is not gone on with, though the agent could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The end of the run was asked for.
    Cancelled,
    /// The run is not this executor's any more.
    ClaimLost,
    /// The harness ends.
    Shutdown,
}

/// Says once, and to everybody, that a run is not gone on with.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag {
    token: CancellationToken,
    reason: Arc<OnceLock<Stop>>,
}

impl StopFlag {
    /// Stops the run. The first reason counts.
    pub(crate) fn stop(&self, reason: Stop) {
        // A later reason changes nothing.
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// The reason, if the run is stopped.
    pub(crate) fn reason(&self) -> Option<Stop> {
        self.reason.get().copied()
    }

    /// Waits until the run is stopped.
    pub(crate) async fn stopped(&self) -> Stop {
        self.token.cancelled().await;
        self.reason().unwrap_or(Stop::ClaimLost)
    }

    /// Stops the run for what the host has answered, if that is a reason.
    pub(crate) fn hear(&self, error: &HostError) {
        match error {
            HostError::Cancelled => self.stop(Stop::Cancelled),
            HostError::ClaimLost => self.stop(Stop::ClaimLost),
            error if error.is("deadline_exceeded") => self.stop(Stop::ClaimLost),
            HostError::Refused { .. } | HostError::Unreachable(_) => {}
        }
    }
}
