//! Errors as clients see them: problem documents (RFC 9457) with a code.

use agent_host_ledger::LedgerError;
use agent_host_runs::{Action, HostError};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// How long a client that met a passing condition should wait, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:ident;)*) => {
        /// What went wrong, for programs. The list is the documentation: a code keeps its name and status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemCode { $($(#[$doc])* $variant),* }

        impl ProblemCode {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as JSON shows it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The HTTP status that goes with it.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status),* }
            }

            /// The code with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// The body is not JSON.
    InvalidJson = "invalid_json", BAD_REQUEST;
    /// A field, parameter or header has a value that it cannot have.
    InvalidArgument = "invalid_argument", BAD_REQUEST;
    /// The cursor was not made by this host for what it was used on.
    InvalidCursor = "invalid_cursor", BAD_REQUEST;
    /// The configuration of a binding does not fit its runner.
    InvalidConfig = "invalid_config", BAD_REQUEST;
    /// Nobody knows who asks: a token is missing, or is nobody's.
    Unauthenticated = "unauthenticated", UNAUTHORIZED;
    /// Who asks may not do this.
    Forbidden = "forbidden", FORBIDDEN;
    /// There is no such thing, or no such path.
    NotFound = "not_found", NOT_FOUND;
    /// No plugin has this runner.
    RunnerNotFound = "runner_not_found", NOT_FOUND;
    /// The path does not take this method: see `Allow`.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED;
    /// The answer cannot be given in a form that `Accept` names.
    NotAcceptable = "not_acceptable", NOT_ACCEPTABLE;
    /// The body did not arrive in time.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT;
    /// The thing is in a state in which this cannot be done.
    Conflict = "conflict", CONFLICT;
    /// The action takes no answer any more: `action` shows what was said first.
    AlreadyAnswered = "already_answered", CONFLICT;
    /// The time for an answer is over.
    Expired = "expired", GONE;
    /// The run left nothing to execute again.
    NoJournal = "no_journal", CONFLICT;
    /// The body is larger than a request may be.
    PayloadTooLarge = "payload_too_large", PAYLOAD_TOO_LARGE;
    /// The body is not of the type that the path takes, or not what it is declared as.
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE;
    /// The range begins behind the end.
    RangeNotSatisfiable = "range_not_satisfiable", RANGE_NOT_SATISFIABLE;
    /// The idempotency key was used before, with another body.
    IdempotencyConflict = "idempotency_conflict", UNPROCESSABLE_ENTITY;
    /// The conversation has as many waiting runs as it may have.
    QueueFull = "queue_full", TOO_MANY_REQUESTS;
    /// The host is at fault: its log says how.
    Internal = "internal", INTERNAL_SERVER_ERROR;
    /// The host cannot do it now.
    Unavailable = "unavailable", SERVICE_UNAVAILABLE;
    /// The host is going down.
    ShuttingDown = "shutting_down", SERVICE_UNAVAILABLE;
    /// The disk of the ledger is nearly full.
    InsufficientStorage = "insufficient_storage", INSUFFICIENT_STORAGE;
}

impl ProblemCode {
    /// Whether the same request may succeed in a moment.
    const fn passes(self) -> bool {
        matches!(self, Self::QueueFull | Self::Unavailable | Self::ShuttingDown)
    }
}

/// An error answer: `application/problem+json` (RFC 9457).
///
/// ```json
/// {"type":"about:blank","title":"Not Found","status":404,"detail":"there is no run …","code":"not_found"}
/// ```
///
/// `type` is `about:blank`, so `title` is the phrase of the status; `code` is what programs decide by, and
/// `detail` says what happened and what to do. `field` names the parameter, header or member of the body that
/// is wrong, where one is; `action` is what was answered before, where that is the problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    code: ProblemCode,
    detail: String,
    field: Option<String>,
    action: Option<Box<Action>>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None, action: None }
    }

    /// There is no such thing.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::NotFound, detail)
    }

    /// `field` has a value that it cannot have.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ProblemCode::InvalidArgument, detail) }
    }

    /// The host is at fault. What happened goes to its log, not to the client: it may name files of the machine.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(error = %what, "a request failed in the host");
        Self::new(ProblemCode::Internal, "the host failed to answer; its log says how")
    }

    /// What kind of problem it is.
    #[must_use]
    pub const fn code(&self) -> ProblemCode {
        self.code
    }

    /// The document.
    #[must_use]
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            r#type: &'a str,
            title: &'a str,
            status: u16,
            detail: &'a str,
            code: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            action: Option<&'a Action>,
        }
        let status = self.code.status();
        let document = Document {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            field: self.field.as_deref(),
            action: self.action.as_deref(),
        };
        // Strings and one number: it cannot fail, and an empty object is still a problem document.
        serde_json::to_string(&document).unwrap_or_else(|_| "{}".to_owned())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        let mut response = (self.code.status(), headers, self.to_json()).into_response();
        if self.code == ProblemCode::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code.passes() {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

impl From<HostError> for Problem {
    fn from(error: HostError) -> Self {
        match ProblemCode::from_name(error.code()) {
            Some(ProblemCode::Internal) | None => Self::internal(error),
            Some(code) => {
                let detail = error.to_string();
                let action = if let HostError::Answered { action, .. } = error { Some(action) } else { None };
                Self { action, ..Self::new(code, detail) }
            }
        }
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        HostError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_name() {
        for code in ProblemCode::ALL {
            assert_eq!(ProblemCode::from_name(code.as_str()), Some(*code));
            assert!(code.status().is_client_error() || code.status().is_server_error());
        }
    }

    #[test]
    fn a_problem_is_a_document_of_rfc_9457() {
        insta::assert_snapshot!(
            Problem::invalid("limit", "`limit` must be a number from 1 to 100").to_json(),
            @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"`limit` must be a number from 1 to 100","code":"invalid_argument","field":"limit"}"#
        );
    }

    #[test]
    fn what_failed_inside_stays_inside() {
        let problem = Problem::internal("/var/lib/secret: permission denied");
        assert!(!problem.to_json().contains("secret"));
    }
}
