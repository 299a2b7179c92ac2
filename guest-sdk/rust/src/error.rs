//! What a host call can answer instead of a value.

use std::fmt;

use crate::contract::ErrorCode;
use crate::contract::agent_host::runner::types;
use crate::state::member;

/// A refusal or a failure of the host, as every interface of the contract reports it.
///
/// It is an ordinary [`std::error::Error`]; in [`Runner::run`](crate::Runner::run) the `?` operator
/// turns it into a [`Failure`](crate::Failure) with the code in its details, such as
/// `provider_not_ready`, else with its own, such as `not_found`.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// What went wrong.
    pub code: ErrorCode,
    /// Why, for a person.
    pub message: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// More, as a JSON object.
    pub details: Option<String>,
}

impl ApiError {
    /// An error that another try would not mend: for tests, and for helpers of a runner's own.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false, details: None }
    }

    /// Whether the run has been cancelled. Every later call answers the same: clean up and return.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.code, ErrorCode::Cancelled)
    }

    /// The code of a run that fails for this error: the string `code` in the details, where the host
    /// says more than the contract has codes for, else the code itself.
    #[must_use]
    pub fn failure_code(&self) -> String {
        self.details
            .as_deref()
            .and_then(|details| member::<String>(details, "code").ok().flatten())
            .filter(|code| !code.is_empty())
            .unwrap_or_else(|| self.code.as_str().to_owned())
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.as_str())?;
        f.write_str(": ")?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<types::ApiError> for ApiError {
    fn from(error: types::ApiError) -> Self {
        let types::ApiError { code, message, retryable, details } = error;
        Self { code, message, retryable, details }
    }
}

impl From<ApiError> for types::ApiError {
    fn from(error: ApiError) -> Self {
        let ApiError { code, message, retryable, details } = error;
        Self { code, message, retryable, details }
    }
}

impl ErrorCode {
    /// The code as the protocol spells it, such as `payload_too_large`.
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
