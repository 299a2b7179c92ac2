//! What a guest may use beyond the ledger: models, tools, knowledge, requests to the outside.
//!
//! It is: the way from a granted call to a service. It is not: a judge of who may call; the gate in `runs` has
//! decided that before anything arrives here.
//!
//! This build has no provider. A run that is granted one of these interfaces gets [`unavailable`], so that a
//! runner can tell "not here" from "not allowed".

use agent_host_protocol::{ApiError, ErrorCode, Interface};

/// The answer of an interface that this build of the host has no provider for.
#[must_use]
pub fn unavailable(interface: Interface, function: &str) -> ApiError {
    ApiError::new(ErrorCode::RuntimeError, format!("{interface}.{function} is not available in this build"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_here_says_so_and_is_not_worth_a_retry() {
        let error = unavailable(Interface::Models, "invoke");
        assert_eq!((error.code, error.retryable), (ErrorCode::RuntimeError, false));
        assert_eq!(error.message, "models.invoke is not available in this build");
    }
}
