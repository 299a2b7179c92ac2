//! The failures of HTTP requests, by name. No message contains a secret or the query of a URL.

use std::{error::Error, io};

use agent_host_protocol::{ApiError, ErrorCode};
use serde_json::{Map, Value, json};

use super::resolve::ResolveError;

/// The category of a failure. A test compares the table in the documentation of the module with this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    InvalidRequest,
    HostNotAllowed,
    AddressNotAllowed,
    RedirectNotAllowed,
    TooManyRedirects,
    SecretNotGranted,
    SecretNotForHost,
    SecretNeedsTls,
    SecretMissing,
    RequestTooLarge,
    RequestBodyFailed,
    DnsFailed,
    ConnectFailed,
    TlsFailed,
    ConnectionClosed,
    Timeout,
    InvalidResponse,
    ResponseHeadTooLarge,
    ResponseTooLarge,
    ResponseEncoded,
}

impl Category {
    #[cfg(test)]
    pub(super) const ALL: [Self; 20] = [
        Self::InvalidRequest,
        Self::HostNotAllowed,
        Self::AddressNotAllowed,
        Self::RedirectNotAllowed,
        Self::TooManyRedirects,
        Self::SecretNotGranted,
        Self::SecretNotForHost,
        Self::SecretNeedsTls,
        Self::SecretMissing,
        Self::RequestTooLarge,
        Self::RequestBodyFailed,
        Self::DnsFailed,
        Self::ConnectFailed,
        Self::TlsFailed,
        Self::ConnectionClosed,
        Self::Timeout,
        Self::InvalidResponse,
        Self::ResponseHeadTooLarge,
        Self::ResponseTooLarge,
        Self::ResponseEncoded,
    ];

    /// As `details.code` shows it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::HostNotAllowed => "host_not_allowed",
            Self::AddressNotAllowed => "address_not_allowed",
            Self::RedirectNotAllowed => "redirect_not_allowed",
            Self::TooManyRedirects => "too_many_redirects",
            Self::SecretNotGranted => "secret_not_granted",
            Self::SecretNotForHost => "secret_not_for_host",
            Self::SecretNeedsTls => "secret_needs_tls",
            Self::SecretMissing => "secret_missing",
            Self::RequestTooLarge => "request_too_large",
            Self::RequestBodyFailed => "request_body_failed",
            Self::DnsFailed => "dns_failed",
            Self::ConnectFailed => "connect_failed",
            Self::TlsFailed => "tls_failed",
            Self::ConnectionClosed => "connection_closed",
            Self::Timeout => "http_timeout",
            Self::InvalidResponse => "invalid_response",
            Self::ResponseHeadTooLarge => "response_head_too_large",
            Self::ResponseTooLarge => "response_too_large",
            Self::ResponseEncoded => "response_encoded",
        }
    }

    /// The code of the error, and whether the same call may succeed later.
    pub(super) const fn kind(self) -> (ErrorCode, bool) {
        match self {
            Self::InvalidRequest => (ErrorCode::InvalidArgument, false),
            Self::HostNotAllowed
            | Self::AddressNotAllowed
            | Self::RedirectNotAllowed
            | Self::SecretNotGranted
            | Self::SecretNotForHost
            | Self::SecretNeedsTls => (ErrorCode::Unauthorized, false),
            Self::RequestTooLarge | Self::ResponseTooLarge => (ErrorCode::PayloadTooLarge, false),
            Self::DnsFailed | Self::ConnectFailed | Self::TlsFailed | Self::ConnectionClosed => (ErrorCode::RuntimeError, true),
            Self::Timeout => (ErrorCode::DeadlineExceeded, true),
            Self::TooManyRedirects
            | Self::SecretMissing
            | Self::RequestBodyFailed
            | Self::InvalidResponse
            | Self::ResponseHeadTooLarge
            | Self::ResponseEncoded => (ErrorCode::RuntimeError, false),
        }
    }

    /// An error of this category.
    pub(super) fn error(self, message: impl Into<String>) -> ApiError {
        self.error_with(message, Map::new())
    }

    /// An error of this category with facts beside its code.
    pub(super) fn error_with(self, message: impl Into<String>, mut details: Map<String, Value>) -> ApiError {
        let (code, retryable) = self.kind();
        details.insert("code".into(), self.as_str().into());
        ApiError { code, message: message.into(), retryable, details: Some(Value::Object(details)) }
    }

    /// More bytes than there may be.
    pub(super) fn too_many_bytes(self, what: &str, limit: u64) -> ApiError {
        let details = Map::from_iter([("limit".to_owned(), json!(limit))]);
        self.error_with(format!("{what} has more than {limit} bytes"), details)
    }
}

/// The time for a request has passed.
pub(super) fn timed_out() -> ApiError {
    Category::Timeout.error("the response was not there, or not at its end, in time")
}

/// A secret would be sent in the open.
pub(super) fn needs_tls(host: &str) -> ApiError {
    Category::SecretNeedsTls.error(format!(
        "a secret is sent to {host} by https only; by http it may go to a loopback address in `egress.allow_addresses`"
    ))
}

/// No address of a host may be reached.
pub(super) fn address_not_allowed(host: &str) -> ApiError {
    Category::AddressNotAllowed
        .error(format!("{host} has no public address, and none that the operator allows in `egress.allow_addresses`"))
}

/// The error for one of the HTTP client, for a request to `host`.
pub(super) fn of_client(error: &reqwest::Error, host: &str) -> ApiError {
    let causes = causes(error);
    if let Some(refused) = causes.iter().find_map(|cause| cause.downcast_ref::<ResolveError>()) {
        return match refused {
            ResolveError::Failed(_) => Category::DnsFailed.error(format!("the name {host} cannot be resolved")),
            ResolveError::NotAllowed => address_not_allowed(host),
            ResolveError::NeedsTls => needs_tls(host),
        };
    }
    // The reason is for the operator: it names addresses.
    let reason = causes.iter().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    tracing::debug!(host, reason, "a request to the outside failed");
    if causes.iter().any(|cause| cause.is::<rustls::Error>()) {
        return Category::TlsFailed.error(format!("no secure connection to {host}: its certificate or its TLS is not accepted"));
    }
    if error.is_connect() {
        return Category::ConnectFailed.error(format!("no connection to {host}"));
    }
    match causes.iter().find_map(|cause| cause.downcast_ref::<hyper::Error>()) {
        Some(error) if error.is_parse_too_large() => head_too_large(),
        Some(error) if error.is_parse() => Category::InvalidResponse.error(format!("what {host} answers is no HTTP")),
        Some(error) if error.is_user() || error.is_body_write_aborted() => {
            Category::RequestBodyFailed.error("the body of the request ended early, or has another length than its header says")
        }
        _ => Category::ConnectionClosed.error(format!("{host} closed the connection before the end of its response")),
    }
}

/// The head of a response is too large.
pub(super) fn head_too_large() -> ApiError {
    Category::ResponseHeadTooLarge
        .error(format!("the response has more than {} bytes of headers, or too many of them", super::MAX_RESPONSE_HEAD))
}

/// An error and what caused it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut causes = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        causes.push(cause);
        // The error inside an I/O error is not its source; only the source of the inner error is.
        let held = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = held.map(|held| held as &(dyn Error + 'static)).or_else(|| cause.source());
    }
    causes
}
