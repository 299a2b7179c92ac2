//! The errors of the contract, by name.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Codes of errors that a host call answers (protocol v1, section 8).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The resource or the scope is not granted to this run.
    Unauthorized,
    /// The resource does not exist, or must not be seen by this run.
    NotFound,
    /// The deadline of the run, or of this call, has passed.
    DeadlineExceeded,
    /// A request or a response is larger than its limit.
    PayloadTooLarge,
    /// The host limits how often this may be called.
    RateLimited,
    /// An argument is malformed.
    InvalidArgument,
    /// The write lost against a concurrent one, or repeats a key with another body.
    Conflict,
    /// The run has been cancelled: clean up and return.
    Cancelled,
    /// The host, or a service behind it, failed.
    RuntimeError,
    /// A code that this version does not name.
    Other(String),
}

impl ErrorCode {
    /// Every code with a name, in the order of the protocol.
    pub const NAMED: [Self; 9] = [
        Self::Unauthorized,
        Self::NotFound,
        Self::DeadlineExceeded,
        Self::PayloadTooLarge,
        Self::RateLimited,
        Self::InvalidArgument,
        Self::Conflict,
        Self::Cancelled,
        Self::RuntimeError,
    ];

    /// The code as JSON shows it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::PayloadTooLarge => "payload_too_large",
            Self::RateLimited => "rate_limited",
            Self::InvalidArgument => "invalid_argument",
            Self::Conflict => "conflict",
            Self::Cancelled => "cancelled",
            Self::RuntimeError => "runtime_error",
            Self::Other(code) => code,
        }
    }
}

impl From<&str> for ErrorCode {
    fn from(code: &str) -> Self {
        match code {
            "unauthorized" => Self::Unauthorized,
            "not_found" => Self::NotFound,
            "deadline_exceeded" => Self::DeadlineExceeded,
            "payload_too_large" => Self::PayloadTooLarge,
            "rate_limited" => Self::RateLimited,
            "invalid_argument" => Self::InvalidArgument,
            "conflict" => Self::Conflict,
            "cancelled" => Self::Cancelled,
            "runtime_error" => Self::RuntimeError,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(std::borrow::Cow::<'de, str>::deserialize(deserializer)?.as_ref()))
    }
}

/// The refusal of a host call. The guest can read it and adapt; it is never a trap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, ToSchema)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// Kind of the refusal.
    #[schema(value_type = String)]
    pub code: ErrorCode,
    /// Description and remedy, for a person.
    pub message: String,
    /// True if the same call may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// Facts that belong to the code, such as a limit and what was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl ApiError {
    /// A refusal that the same call will meet again.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false, details: None }
    }

    /// A refusal that may go away.
    pub fn retryable(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new(code, message) }
    }

    /// The finest known kind of the failure: a name without content, safe for logs. The message may quote a service, which
    /// may quote the request.
    #[must_use]
    pub fn category(&self) -> &str {
        let category = self.details.as_ref().and_then(|details| details.get("code")).and_then(Value::as_str);
        category.unwrap_or_else(|| self.code.as_str())
    }

    /// An argument is malformed.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// The resource or the scope is not granted.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, message)
    }

    /// A thing is larger than its limit. Both numbers are in bytes, and in `details`.
    #[must_use]
    pub fn too_large(what: &str, size: usize, limit: usize) -> Self {
        Self {
            details: Some(serde_json::json!({ "size": size, "limit": limit })),
            ..Self::new(ErrorCode::PayloadTooLarge, format!("{what} has {size} bytes; the limit is {limit}"))
        }
    }
}

/// The codes with which the host itself ends a run as `failed`, `timeout` or `cancelled`.
///
/// A runner that fails by itself brings its own code (`runner.error` where it has none).
/// This list is the documentation: a test compares `docs/FAILURES.md` with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureCode {
    /// The runner returned a failure without a usable code.
    RunnerError,
    /// The guest trapped: a panic, an unreachable instruction, a bad memory access.
    GuestTrapped,
    /// The guest called `exit` instead of returning.
    GuestExited,
    /// The guest needed more memory, tables or instances than a run may have.
    GuestMemory,
    /// The guest recursed deeper than its stack.
    GuestStack,
    /// The guest passed more bytes in one call, or holds more handles, than a run may.
    GuestAbuse,
    /// The return value of the guest breaks the contract, such as metadata that is not JSON.
    InvalidResult,
    /// The runner is not there (any more), or its component does not hold it.
    RunnerNotFound,
    /// The component could not be instantiated for this run.
    RunnerStart,
    /// The deadline of the run passed.
    DeadlineExceeded,
    /// The run and the runs of its tree have used their CPU time.
    CpuExceeded,
    /// The run was cancelled.
    Cancelled,
    /// The host stopped or died while the run was active.
    HostRestarted,
    /// Brought back after the host had stopped, the runner asked for something else than it had asked before.
    ReplayDiverged,
    /// The executor that held the run was gone, did not renew its lease, or gave the run back, and no attempt is left.
    LeaseLost,
    /// No executor has claimed the run in time.
    ClaimTimeout,
    /// The configuration of the binding does not fit the form of the runner.
    InvalidConfig,
    /// The host failed: its log says how.
    HostError,
}

impl FailureCode {
    /// Every code, in the order of the documentation.
    pub const ALL: [Self; 18] = [
        Self::RunnerError,
        Self::GuestTrapped,
        Self::GuestExited,
        Self::GuestMemory,
        Self::GuestStack,
        Self::GuestAbuse,
        Self::InvalidResult,
        Self::RunnerNotFound,
        Self::RunnerStart,
        Self::DeadlineExceeded,
        Self::CpuExceeded,
        Self::Cancelled,
        Self::HostRestarted,
        Self::ReplayDiverged,
        Self::LeaseLost,
        Self::ClaimTimeout,
        Self::InvalidConfig,
        Self::HostError,
    ];

    /// The code in `run.failed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RunnerError => "runner.error",
            Self::GuestTrapped => "runner.trapped",
            Self::GuestExited => "runner.exited",
            Self::GuestMemory => "runner.memory_exceeded",
            Self::GuestStack => "runner.stack_exceeded",
            Self::GuestAbuse => "runner.limit_exceeded",
            Self::InvalidResult => "runner.invalid_result",
            Self::RunnerNotFound => "runner_not_found",
            Self::RunnerStart => "runner_start_failed",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::CpuExceeded => "cpu_exceeded",
            Self::Cancelled => "cancelled",
            Self::HostRestarted => "host_restarted",
            Self::ReplayDiverged => "replay_diverged",
            Self::LeaseLost => "lease_lost",
            Self::ClaimTimeout => "claim_timeout",
            Self::InvalidConfig => "invalid_config",
            Self::HostError => "host_error",
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_is_not_named_here_survives() {
        let json = r#"{"code":"quota_exceeded","message":"m"}"#;
        let error: ApiError = serde_json::from_str(json).unwrap();
        assert_eq!(error.code, ErrorCode::Other("quota_exceeded".into()));
        assert_eq!(serde_json::to_value(&error).unwrap()["code"], "quota_exceeded");
    }

    #[test]
    fn every_named_code_reads_back() {
        for code in [
            "unauthorized",
            "not_found",
            "deadline_exceeded",
            "payload_too_large",
            "rate_limited",
            "invalid_argument",
            "conflict",
            "cancelled",
            "runtime_error",
        ] {
            assert_eq!(ErrorCode::from(code).as_str(), code);
            assert!(!matches!(ErrorCode::from(code), ErrorCode::Other(_)), "{code} is not named");
        }
    }
}
