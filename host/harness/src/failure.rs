//! The reasons why a run of a harness fails, with the codes that its record has.

use agent_host_config::{HarnessConfig, HarnessPreset};
use serde_json::{Value, json};

use crate::{results::cut, secrets::Secrets, stop::Stop};

/// Longest message of a failure, in bytes: an agent may quote as much as it likes in an error.
const MAX_MESSAGE: usize = 4 * 1024;
/// Longest finish reason of an agent, in bytes.
const MAX_REASON: usize = 100;

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

/// The failure of a run whose agent wants a login first. `said` are the words of the agent.
pub(crate) fn no_login(config: &HarnessConfig, said: &str) -> RunFailure {
    let hint = login_hint(config.preset);
    RunFailure::Unavailable(format!("nobody is logged in: give the harness `{}` {hint} in `env` ({said})", config.id))
}

/// The variables that `env` must have for the agent of a preset.
pub(crate) const fn login_hint(preset: HarnessPreset) -> &'static str {
    match preset {
        HarnessPreset::ClaudeCode => "ANTHROPIC_API_KEY, or CLAUDE_CODE_OAUTH_TOKEN of `claude setup-token`,",
        HarnessPreset::Codex => "OPENAI_API_KEY, or CODEX_HOME of a login by `codex login` (and name that folder in `writable`),",
        HarnessPreset::Gemini => "GEMINI_API_KEY",
        HarnessPreset::OpenCode | HarnessPreset::Kimi | HarnessPreset::Pi | HarnessPreset::Acp | HarnessPreset::Command => {
            "a key, as its agent documents it,"
        }
    }
}

/// The finish reason of the contract for that of an agent.
pub(crate) fn finish_reason(stop_reason: &str) -> String {
    match stop_reason {
        "end_turn" | "stop_sequence" | "tool_use" | "" | "cancelled" => "stop",
        "max_tokens" | "max_turn_requests" | "error_max_turns" => "length",
        other => cut(other, MAX_REASON),
    }
    .to_owned()
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
