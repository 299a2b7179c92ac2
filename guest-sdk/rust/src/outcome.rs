//! End of a run: a [`Completion`] or a [`Failure`], the return value of [`Runner::run`](crate::Runner::run).

use std::error::Error;
use std::io;

use crate::contract::agent_host::runner::types;
use crate::contract::{Message, RunCompletion, RunFailure, TokenUsage};
use crate::error::ApiError;
use crate::json::IntoJson;
use crate::state::StateError;
use crate::storage::StorageError;

/// Successful end of a run. The host records it as `run.completed`.
///
/// ```
/// use agent_host_sdk::{Completion, Message};
///
/// let whole = Completion::stop().message(Message::assistant("Done."));
/// let cut = Completion::new("length");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    contract: RunCompletion,
}

impl Completion {
    /// Creates the usual completion, with the finish reason `stop`.
    #[must_use]
    pub fn stop() -> Self {
        Self::new("stop")
    }

    /// Creates a completion with another finish reason, such as `length`, `tool-calls` or `handoff`.
    pub fn new(finish_reason: impl Into<String>) -> Self {
        Self { contract: RunCompletion { finish_reason: finish_reason.into(), message: None, usage: None, metadata: None } }
    }

    /// Sets the final message, if no `message.completed` result carried it. A message from
    /// [`Context::message`](crate::Context::message) must not be set again.
    #[must_use]
    pub fn message(mut self, message: impl Into<Message>) -> Self {
        self.contract.message = Some(message.into());
        self
    }

    /// Sets the number of tokens that the run used, if known.
    #[must_use]
    pub fn usage(mut self, usage: impl Into<Option<TokenUsage>>) -> Self {
        self.contract.usage = usage.into();
        self
    }

    /// Sets metadata for readers of the run, a JSON object.
    #[must_use]
    pub fn metadata(mut self, metadata: impl IntoJson) -> Self {
        self.contract.metadata = Some(metadata.into_json());
        self
    }
}

impl Completion {
    /// Returns the record that the host receives.
    #[must_use]
    pub fn contract(&self) -> &RunCompletion {
        &self.contract
    }
}

impl From<RunCompletion> for Completion {
    fn from(contract: RunCompletion) -> Self {
        Self { contract }
    }
}

impl From<Completion> for RunCompletion {
    fn from(completion: Completion) -> Self {
        completion.contract
    }
}

/// Failure of a run. The host records it as `run.failed`.
///
/// Any [`std::error::Error`] becomes a failure by `?`:
///
/// | error | code | retryable |
/// |---|---|---|
/// | [`ApiError`], also as the source of another error | the `code` in its details, or else its error code | as in the error |
/// | [`StateError`], a value of another shape | `runner.invalid_state` | no |
/// | [`StorageError`], bytes of another shape | `runner.invalid_storage` | no |
/// | any other | `runner.error` | no |
///
/// `Failure` is not an error type itself, which makes this conversion possible.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Failure code, such as `runner.error`.
    pub code: String,
    /// Description for a person.
    pub message: String,
    /// True if a further attempt at the same event may succeed.
    pub retryable: bool,
    /// Further details, as a JSON object.
    pub details: Option<String>,
}

impl Failure {
    /// Creates a failure that is not retryable.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: false, details: None }
    }

    /// Marks the failure as retryable.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Sets details for diagnosis, a JSON object.
    #[must_use]
    pub fn details(mut self, details: impl IntoJson) -> Self {
        self.details = Some(details.into_json());
        self
    }

    fn of_host(error: ApiError, message: String) -> Self {
        let code = error.failure_code();
        let ApiError { retryable, details, .. } = error;
        Self { code, message, retryable, details }
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::from_error(&error)
    }
}

impl Failure {
    // Separate from the generic function, so that it is compiled once.
    fn from_error(error: &(dyn Error + 'static)) -> Self {
        let mut message = String::new();
        let mut next = Some(error);
        while let Some(cause) = next {
            let host = match cause.downcast_ref::<ApiError>() {
                Some(host) => Some(host.clone()),
                None => cause.downcast_ref::<types::ApiError>().cloned().map(ApiError::from),
            };
            if !message.is_empty() {
                message.push_str(": ");
            }
            if let Some(host) = host {
                message.push_str(&host.message);
                return Self::of_host(host, message);
            }
            message.push_str(&cause.to_string());
            // An error inside of an I/O error, such as that of an artifact, is not its `source`.
            let inside = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            next = match inside {
                Some(inside) => {
                    message.clear();
                    Some(inside)
                }
                None => cause.source(),
            };
        }
        let code = if error.is::<StateError>() {
            "runner.invalid_state"
        } else if error.is::<StorageError>() {
            "runner.invalid_storage"
        } else {
            "runner.error"
        };
        Self::new(code, message)
    }
}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> Self {
        let Failure { code, message, retryable, details } = failure;
        Self { code, message, retryable, details }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ErrorCode;

    fn refusal() -> ApiError {
        ApiError {
            code: ErrorCode::RateLimited,
            message: "600 calls a second".to_owned(),
            retryable: true,
            details: Some("{\"limit\":600}".to_owned()),
        }
    }

    #[test]
    fn a_host_error_keeps_code_retryable_and_details() {
        let failure = Failure::from(refusal());
        assert_eq!(failure.code, "rate_limited");
        assert_eq!(failure.message, "600 calls a second");
        assert!(failure.retryable);
        assert_eq!(failure.details.as_deref(), Some("{\"limit\":600}"));
    }

    #[test]
    fn a_host_error_inside_another_error_still_names_the_failure() {
        let failure = Failure::from(StateError::Host(refusal()));
        assert_eq!(failure.code, "rate_limited");
        assert_eq!(failure.message, "the state is not reachable: 600 calls a second");
    }

    #[test]
    fn an_error_of_the_raw_contract_converts_alike() {
        let raw = types::ApiError { code: ErrorCode::Cancelled, message: "by alice".to_owned(), retryable: false, details: None };
        let run = || -> Result<(), Failure> { Err(raw.clone())? };
        assert_eq!(run(), Err(Failure::new("cancelled", "by alice")));
    }

    #[test]
    fn any_other_error_is_a_runner_error_with_its_causes() {
        let failure = Failure::from("x".parse::<u32>().unwrap_err());
        assert_eq!(failure.code, "runner.error");
        assert_eq!(failure.message, "invalid digit found in string");
        assert!(!failure.retryable);
    }
}
