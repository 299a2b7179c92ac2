//! The reasons why a run of a harness fails, with the codes that its record has.

use serde_json::{Value, json};

use crate::{results::cut, secrets::Secrets, stop::Stop};

/// Longest message of a failure, in bytes: an agent may quote as much as it likes in an error.
const MAX_MESSAGE: usize = 4 * 1024;
/// Longest finish reason of an agent, in bytes.
pub(crate) const MAX_REASON: usize = 100;

/// The reason why a run fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunFailure {
    /// The agent cannot be started, or nobody is logged in.
    #[error("{0}")]
    Unavailable(String),
    /// The agent ended before its answer.
    #[error("the agent ended before its answer: {0}")]
    Crashed(String),
    /// The agent does not keep to its protocol.
    #[error("the agent does not keep to its protocol: {0}")]
    Protocol(String),
    /// The agent answered with an error.
    #[error("the agent answered with an error: {0}")]
    Agent(String),
    /// The agent has said more than it may.
    #[error("the agent has said more than `limits.output_bytes` of its harness allows")]
    OutputLimit,
    /// The files of the run cannot be written.
    #[error("{0}")]
    Files(String),
}

impl RunFailure {
    /// The code of the failure.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "harness_unavailable",
            Self::Crashed(_) => "harness_crashed",
            Self::Protocol(_) => "harness_protocol",
            Self::Agent(_) => "harness_agent_error",
            Self::OutputLimit => "harness_output_limit",
            Self::Files(_) => "harness_files",
        }
    }

    /// The message, without secrets.
    pub(crate) fn message(&self, secrets: &Secrets) -> String {
        cut(&secrets.clean(self.to_string()), MAX_MESSAGE).to_owned()
    }

    /// The body of `finalize`.
    pub(crate) fn finalize(&self, secrets: &Secrets) -> Value {
        let is_retryable = matches!(self, Self::Crashed(_));
        json!({ "status": "failed", "code": self.code(), "message": self.message(secrets), "retryable": is_retryable })
    }
}

/// An agent's turn that did not end well.
#[derive(Debug)]
pub(crate) enum TurnError {
    Failed(RunFailure),
    Stopped(Stop),
}

impl From<RunFailure> for TurnError {
    fn from(failure: RunFailure) -> Self {
        Self::Failed(failure)
    }
}
