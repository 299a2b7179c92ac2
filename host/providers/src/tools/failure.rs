//! The failures of a tool call. Each kind has a name, in `details.code` of the error.

use std::time::Duration;

use agent_host_protocol::{ApiError, ErrorCode};
use serde_json::{Map, Value, json};

use crate::redact::cut;

/// Bytes of a server's own text that an error repeats.
pub(super) const MAX_SERVER_WORDS: usize = 512;

fn with_details(mut error: ApiError, code: &str, details: Map<String, Value>) -> ApiError {
    let mut all = Map::from_iter([("code".to_owned(), Value::from(code))]);
    all.extend(details);
    error.details = Some(Value::Object(all));
    error
}

fn with_code(error: ApiError, code: &str) -> ApiError {
    with_details(error, code, Map::new())
}

/// No server has a tool of this name.
pub(super) fn not_found(name: &str) -> ApiError {
    let message = format!("there is no tool `{}`: the context of the run names those that it may use", cut(name, 128));
    with_code(ApiError::new(ErrorCode::NotFound, message), "tool_not_found")
}

/// The tool's server is not there, or went away during the call.
pub(super) fn unavailable(server: &str, why: &str) -> ApiError {
    let message = format!("the tool server `{server}` is not available: {why}");
    with_code(ApiError::retryable(ErrorCode::RuntimeError, message), "tool_server_unavailable")
}

/// The call took too long, and its effects are unknown.
pub(super) fn timeout(name: &str, waited: Duration) -> ApiError {
    let message = format!("the tool `{name}` did not answer within {} ms", waited.as_millis());
    with_code(ApiError::new(ErrorCode::DeadlineExceeded, message), "tool_timeout")
}

/// The answer is larger than `limit`. A known size is in the details.
pub(super) fn output_too_large(name: &str, size: Option<usize>, limit: usize) -> ApiError {
    let (mut error, details) = match size {
        Some(size) => (
            ApiError::too_large(&format!("the answer of the tool `{name}`"), size, limit),
            json!({ "size": size, "limit": limit }),
        ),
        None => (
            ApiError::new(
                ErrorCode::PayloadTooLarge,
                format!("the answer of the tool `{name}` is larger than the limit of {limit} bytes"),
            ),
            json!({ "limit": limit }),
        ),
    };
    error.message.push_str(": ask it for less, or raise `max_output_bytes` of its server");
    match details {
        Value::Object(details) => with_details(error, "tool_output_too_large", details),
        _ => error,
    }
}

/// The server's answer is not what the protocol asks for.
pub(super) fn protocol(name: &str, why: &str) -> ApiError {
    let message = format!("the server of the tool `{name}` broke the protocol: {why}");
    with_code(ApiError::new(ErrorCode::RuntimeError, message), "tool_protocol_error")
}

/// The server refused the call. `why` are its words, redacted and cut.
pub(super) fn refused(name: &str, rpc_code: i32, why: &str) -> ApiError {
    let message = format!("the server of the tool `{name}` answered with the error {rpc_code}: {why}");
    let details = Map::from_iter([("rpc_code".to_owned(), Value::from(rpc_code))]);
    with_details(ApiError::new(ErrorCode::RuntimeError, message), "tool_failed", details)
}

/// The parameters do not fit the tool. Each violation says where and what.
pub(super) fn invalid_parameters(what: &str, violations: &[Value]) -> ApiError {
    let message = format!("the parameters of {what} do not fit its schema");
    let details = Map::from_iter([("violations".to_owned(), Value::Array(violations.to_vec()))]);
    with_details(ApiError::invalid_argument(message), "invalid_parameters", details)
}

/// The server said that the parameters do not fit.
pub(super) fn refused_parameters(name: &str, why: &str) -> ApiError {
    let message = format!("the server of the tool `{name}` does not accept the parameters: {why}");
    with_code(ApiError::invalid_argument(message), "invalid_parameters")
}

/// The schema of the tool cannot be used, so nothing can be checked and nothing is called.
pub(super) fn invalid_schema(what: &str, why: &str) -> ApiError {
    let message = format!("{what} cannot be called: its schema cannot be used: {why}");
    with_code(ApiError::new(ErrorCode::RuntimeError, message), "invalid_tool_schema")
}
