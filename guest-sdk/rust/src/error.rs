//! What a host call can answer instead of a value.

use std::fmt;

use crate::contract::ErrorCode;
use crate::contract::agent_host::runner::types;

/// A refusal or a failure of the host, as every interface of the contract reports it.
///
/// It is an ordinary [`std::error::Error`]; in [`Runner::run`](crate::Runner::run) the `?` operator
/// turns it into a [`Failure`](crate::Failure) with the code `host.` and the code of the error,
/// such as `host.not_found`.
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
    /// Whether the run has been cancelled. Every later call answers the same: clean up and return.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.code, ErrorCode::Cancelled)
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
