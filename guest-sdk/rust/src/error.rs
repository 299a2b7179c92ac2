//! Error of a host call.

use std::fmt;

use crate::contract::ErrorCode;
use crate::contract::agent_host::runner::types;
use crate::state::member;

/// Error that the host returns: a refusal or a failure. Every interface of the contract uses this type.
///
/// In [`Runner::run`](crate::Runner::run) the `?` operator converts an `ApiError` into a [`Failure`](crate::Failure). The
/// code of the failure is the `code` in `details`, such as `provider_not_ready`, or else the error code, such as
/// `not_found`.
///
/// ```
/// use agent_host_sdk::{ApiError, Context, Failure, ModelRequest};
///
/// /// The answer of the model, or an apology where no model is ready.
/// fn answer(ctx: &Context) -> Result<String, Failure> {
///     match ctx.default_model()?.invoke(&ModelRequest::new().user(ctx.text())) {
///         Ok(response) => Ok(response.text()),
///         Err(ApiError { retryable: true, .. }) => Ok("Please try again in a minute.".to_owned()),
///         Err(error) => Err(error.into()),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// Error code.
    pub code: ErrorCode,
    /// Description for a person.
    pub message: String,
    /// True if the same call may succeed later.
    pub retryable: bool,
    /// Further details, as a JSON object.
    pub details: Option<String>,
}

impl ApiError {
    /// Creates an error that is not retryable, for tests and for helper functions of a runner.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false, details: None }
    }

    /// Returns true if the run has been cancelled. Every later call fails with the same error: clean up and return.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.code, ErrorCode::Cancelled)
    }

    /// Returns the code of a run that fails with this error: the non-empty string `code` in `details`, or else the error
    /// code.
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
    /// Returns the code in the spelling of the protocol, such as `payload_too_large`.
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
