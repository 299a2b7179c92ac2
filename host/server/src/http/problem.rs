//! Errors as clients see them: problem documents (RFC 9457) with a code.

use std::time::Duration;

use agent_host_protocol::{ApiError, ErrorCode};
use agent_host_runs::{Action, HostError, LedgerError};
use axum::{
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::codes::problem_codes;

/// Time that a client should wait after a passing condition, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Time that a client should wait for a plugin that is being compiled.
const COMPILING: Duration = Duration::from_secs(5);

problem_codes! {
    /// The kind of problem, for programs. The list is the documentation: a code keeps its name and status.
    #[derive(Hash)]
    #[non_exhaustive]
    pub enum ProblemCode;

    /// The body is not JSON.
    InvalidJson = "invalid_json", BAD_REQUEST;
    /// A field, parameter or header has a value that it cannot have.
    InvalidArgument = "invalid_argument", BAD_REQUEST;
    /// The cursor was not made by this host for what it was used on.
    InvalidCursor = "invalid_cursor", BAD_REQUEST;
    /// The configuration of a binding does not fit its runner.
    InvalidConfig = "invalid_config", BAD_REQUEST;
    /// The caller is unknown: a token is missing, or is not valid.
    Unauthenticated = "unauthenticated", UNAUTHORIZED;
    /// The caller has no right to this request.
    Forbidden = "forbidden", FORBIDDEN;
    /// The grant of the run does not include the resource: the manifest must ask for it, and the binding must allow it.
    Unauthorized = "unauthorized", FORBIDDEN;
    /// The object or path does not exist.
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
    /// The claim does not hold the run any more: stop working on it.
    ClaimLost = "claim_lost", CONFLICT;
    /// Results were left out: append what is missing first.
    SequenceGap = "sequence_gap", CONFLICT;
    /// The action takes no answer any more: `action` shows what was said first.
    AlreadyAnswered = "already_answered", CONFLICT;
    /// The time for an answer is over.
    Expired = "expired", GONE;
    /// A run of the thread is under way: `details.activeRunId` names it.
    ThreadBusy = "thread_busy", CONFLICT;
    /// The id of a run was used before, for something else.
    RunIdConflict = "run_id_conflict", CONFLICT;
    /// The run of the thread waits, and the request does not answer all that it asks: `details` has what is open.
    InterruptsOpen = "interrupts_open", CONFLICT;
    /// No open question matches this answer.
    UnknownInterrupt = "unknown_interrupt", UNPROCESSABLE_ENTITY;
    /// No call waits for this result.
    UnknownToolCall = "unknown_tool_call", UNPROCESSABLE_ENTITY;
    /// A client may not speak in this role, or not say this in it.
    RoleForbidden = "role_forbidden", UNPROCESSABLE_ENTITY;
    /// The request has no new message that a run could answer.
    NothingToDo = "nothing_to_do", UNPROCESSABLE_ENTITY;
    /// The id of a turn was used before, for something else.
    TurnIdConflict = "turn_id_conflict", CONFLICT;
    /// Another turn of the thread is under way: `details.activeTurnId` names it.
    TurnAlreadyActive = "turn_already_active", CONFLICT;
    /// The turn has ended.
    TurnEnded = "turn_ended", CONFLICT;
    /// The action belongs to another session, thread or turn: `details` names them.
    ActionScopeMismatch = "action_scope_mismatch", CONFLICT;
    /// The host numbers the facts of a thread otherwise than the host that gave the cursor.
    ProjectionChanged = "projection_changed", GONE;
    /// The content of the thread was deleted.
    ThreadForgotten = "thread_forgotten", GONE;
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
    /// The run has been cancelled: nothing more is done for it.
    Cancelled = "cancelled", CONFLICT;
    /// The time of the run, or of this call, is over.
    DeadlineExceeded = "deadline_exceeded", CONFLICT;
    /// The run, or the key of the request, does this too often.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS;
    /// The service behind a call has failed, or the host has in asking it: `retryable` says whether to try again.
    RuntimeError = "runtime_error", BAD_GATEWAY;
    /// Runs for the key have used the tokens of its day.
    TokenBudgetExhausted = "token_budget_exhausted", TOO_MANY_REQUESTS;
    /// The conversation has as many waiting runs as it may have.
    QueueFull = "queue_full", TOO_MANY_REQUESTS;
    /// As many streams of events are open as there may be.
    TooManyStreams = "too_many_streams", SERVICE_UNAVAILABLE;
    /// A part of a message is not what it is said to be: its encoding, its media type or its source.
    MediaInvalid = "media_invalid", UNPROCESSABLE_ENTITY;
    /// A part of a message has more bytes than it may have.
    MediaTooLarge = "media_too_large", UNPROCESSABLE_ENTITY;
    /// The media of a part cannot be fetched: its host is not allowed, or does not answer with it.
    MediaUnavailable = "media_unavailable", UNPROCESSABLE_ENTITY;
    /// In the strict profile: the input of a run is malformed.
    AgentRunInputInvalid = "AGENT_RUN_INPUT_INVALID", UNPROCESSABLE_ENTITY;
    /// In the strict profile: the messages of a run are not those that it takes.
    AgentRunMessagesInvalid = "AGENT_RUN_MESSAGES_INVALID", UNPROCESSABLE_ENTITY;
    /// In the strict profile: the id of a thread is no UUID.
    AgentSessionIdInvalid = "AGENT_SESSION_ID_INVALID", UNPROCESSABLE_ENTITY;
    /// A changed setting is read only at the start of the host: `fields` names it.
    RestartNeeded = "restart_needed", CONFLICT;
    /// The configuration on the machine of the host cannot be used; the one before still serves.
    ConfigRefused = "config_refused", UNPROCESSABLE_ENTITY;
    /// The host is at fault: its log says how.
    Internal = "internal", INTERNAL_SERVER_ERROR;
    /// The host cannot do it now.
    Unavailable = "unavailable", SERVICE_UNAVAILABLE;
    /// The plugin of the runner may be among those that are still being compiled at the start of the host.
    RunnerCompiling = "runner_compiling", SERVICE_UNAVAILABLE;
    /// The host is going down.
    ShuttingDown = "shutting_down", SERVICE_UNAVAILABLE;
    /// The ledger is at another host of the cluster, or is being taken over: the host that answers is only warm.
    PartitionMoving = "partition_moving", SERVICE_UNAVAILABLE;
    /// The active host of the cluster cannot be reached from the host that answers; nothing was done with the request.
    PartitionUnreachable = "partition_unreachable", SERVICE_UNAVAILABLE;
    /// The active host of the cluster broke off before it answered: what became of the request is not known.
    OutcomeUnknown = "outcome_unknown", BAD_GATEWAY;
    /// The disk of the ledger is nearly full.
    InsufficientStorage = "insufficient_storage", INSUFFICIENT_STORAGE;
    /// The workspace keeps as many bytes as it may.
    WorkspaceFull = "workspace_full", INSUFFICIENT_STORAGE;
}

impl ProblemCode {
    /// The code with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }

    /// True if the same request may succeed soon.
    pub(crate) const fn passes(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::RateLimited
                | Self::TooManyStreams
                | Self::Unavailable
                | Self::RunnerCompiling
                | Self::ShuttingDown
                | Self::PartitionMoving
                | Self::PartitionUnreachable
        )
    }
}

/// An error answer: `application/problem+json` (RFC 9457).
///
/// ```json
/// {"type":"about:blank","title":"Not Found","status":404,"detail":"there is no run …","code":"not_found",
///  "message":"there is no run …"}
/// ```
///
/// `type` is `about:blank`, so `title` is the phrase of the status. Programs decide by `code`. `detail` says what happened and
/// what to do; `message` repeats it for clients of the protocol (v1, section 8). `field` names the parameter, header or member
/// of the body that is wrong, where one is, `fields` several of a configuration; `action` is the earlier answer, where that is
/// the problem. A refusal of the gate of a run also says whether the same may succeed later (`retryable`), and its facts
/// (`details`).
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    code: ProblemCode,
    detail: String,
    field: Option<String>,
    fields: Vec<String>,
    action: Option<Box<Action>>,
    refusal: Option<Box<Refusal>>,
    /// A header, instead of the one of the code.
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

/// The members of a gate's refusal, besides its code and message.
#[derive(Debug, Clone, PartialEq)]
struct Refusal {
    retryable: bool,
    details: Option<Value>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None, fields: Vec::new(), action: None, refusal: None, header: None }
    }

    /// The object does not exist.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::NotFound, detail)
    }

    /// `field` has a value that it cannot have.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ProblemCode::InvalidArgument, detail) }
    }

    /// A cursor of another host, or of something else.
    pub(crate) fn foreign_cursor() -> Self {
        Self::new(ProblemCode::InvalidCursor, "`cursor` is not one that this host gave")
    }

    /// The caller may not set `field` to this value.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ProblemCode::Forbidden, detail) }
    }

    /// A refusal of the kernel whose message begins with the field, in backticks.
    pub fn of_field(error: HostError) -> Self {
        match &error {
            HostError::Invalid(complaint) => match complaint.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
                Some((field, _)) => Self::invalid(field, complaint.clone()),
                None => error.into(),
            },
            _ => error.into(),
        }
    }

    /// A problem of this kind with `field`.
    pub(crate) fn at(code: ProblemCode, field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(code, detail) }
    }

    /// The same as a problem of another kind.
    pub(crate) fn with_code(self, code: ProblemCode) -> Self {
        Self { code, ..self }
    }

    /// The same, with the field that it is about.
    #[must_use]
    pub(crate) fn in_field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// The same, with facts for programs.
    #[must_use]
    pub(crate) fn with_details(self, details: Value) -> Self {
        Self { refusal: Some(Box::new(Refusal { retryable: false, details: Some(details) })), ..self }
    }

    /// A token of an identity provider that is refused (RFC 6750, section 3.1).
    pub(crate) fn invalid_token(detail: impl Into<String>) -> Self {
        let header = (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
        Self { header: Some(Box::new(header)), ..Self::new(ProblemCode::Unauthenticated, detail) }
    }

    /// The same, with the time after which the request may succeed, in whole seconds.
    #[must_use]
    pub(crate) fn retry_after(self, pause: Duration) -> Self {
        let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
        Self { header: Some(Box::new((header::RETRY_AFTER, seconds.max(1).into()))), ..self }
    }

    /// A problem with several things, which it names.
    pub(crate) fn with_fields(code: ProblemCode, detail: impl Into<String>, fields: Vec<String>) -> Self {
        Self { fields, ..Self::new(code, detail) }
    }

    /// An error of the host. The description goes to the log, not to the client: it may name files of the machine.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(error = %what, "a request failed in the host");
        Self::new(ProblemCode::Internal, "the host failed; its log has the reason")
    }

    /// The code of the problem.
    #[must_use]
    pub const fn code(&self) -> ProblemCode {
        self.code
    }

    /// Description and remedy.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The same as the refusal of a call.
    pub(crate) fn into_refusal(self) -> ApiError {
        let (retryable, details) =
            self.refusal.map_or((self.code.passes(), None), |refusal| (refusal.retryable, refusal.details));
        ApiError { code: ErrorCode::from(self.code.as_str()), message: self.detail, retryable, details }
    }

    /// The parameter, header or member of the body that is wrong, where one is.
    pub(crate) fn field(&self) -> Option<&str> {
        self.field.as_deref()
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
            /// The same as `detail`, under the name of the protocol (v1, section 8).
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            fields: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            action: Option<&'a Action>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retryable: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            details: Option<&'a Value>,
        }
        let status = self.code.status();
        let document = Document {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            message: &self.detail,
            field: self.field.as_deref(),
            fields: &self.fields,
            action: self.action.as_deref(),
            retryable: self.refusal.as_ref().map(|refusal| refusal.retryable),
            details: self.refusal.as_ref().and_then(|refusal| refusal.details.as_ref()),
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
        response.extensions_mut().insert(self.code);
        if self.code == ProblemCode::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code.passes() {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if let Some((name, value)) = self.header.map(|header| *header) {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<HostError> for Problem {
    fn from(error: HostError) -> Self {
        if let HostError::Refused(refusal) = error {
            return refusal.into();
        }
        match ProblemCode::from_name(error.code()) {
            Some(ProblemCode::Internal) | None => Self::internal(error),
            Some(ProblemCode::RunnerCompiling) => {
                Self::new(ProblemCode::RunnerCompiling, error.to_string()).retry_after(COMPILING)
            }
            Some(code) => {
                let detail = error.to_string();
                if let HostError::TokenBudget { again_in, .. } = error {
                    return Self::new(code, detail).retry_after(again_in);
                }
                let action = if let HostError::Answered { action, .. } = error { Some(action) } else { None };
                Self { action, ..Self::new(code, detail) }
            }
        }
    }
}

/// A refusal of the gate keeps its code, where that has a status of its own.
impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        let ApiError { code, message, retryable, details } = error;
        let code = match code {
            ErrorCode::RuntimeError => ProblemCode::RuntimeError,
            code => ProblemCode::from_name(code.as_str()).unwrap_or(ProblemCode::RuntimeError),
        };
        Self { refusal: Some(Box::new(Refusal { retryable, details })), ..Self::new(code, message) }
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
            @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"`limit` must be a number from 1 to 100","code":"invalid_argument","message":"`limit` must be a number from 1 to 100","field":"limit"}"#
        );
    }

    #[test]
    fn a_refusal_of_the_gate_keeps_its_code() {
        for (code, status) in [
            (ErrorCode::Unauthorized, 403),
            (ErrorCode::NotFound, 404),
            (ErrorCode::DeadlineExceeded, 409),
            (ErrorCode::PayloadTooLarge, 413),
            (ErrorCode::RateLimited, 429),
            (ErrorCode::InvalidArgument, 400),
            (ErrorCode::Conflict, 409),
            (ErrorCode::Cancelled, 409),
            (ErrorCode::RuntimeError, 502),
        ] {
            let problem = Problem::from(ApiError::new(code.clone(), "m"));
            assert_eq!((problem.code().as_str(), problem.code().status().as_u16()), (code.as_str(), status));
        }
        insta::assert_snapshot!(
            Problem::from(ApiError { retryable: true, ..ApiError::too_large("a batch", 9, 8) }).to_json(),
            @r#"{"type":"about:blank","title":"Payload Too Large","status":413,"detail":"a batch has 9 bytes; the limit is 8","code":"payload_too_large","message":"a batch has 9 bytes; the limit is 8","retryable":true,"details":{"limit":8,"size":9}}"#
        );
    }

    #[test]
    fn a_refusal_of_the_kernel_names_its_field() {
        let complaint = "`at` is 9, and the run has 2 calls that were answered".to_owned();
        let problem = Problem::of_field(HostError::Invalid(complaint));
        assert!(problem.to_json().contains(r#""field":"at""#), "{}", problem.to_json());
        assert_eq!(Problem::of_field(HostError::ShuttingDown).code(), ProblemCode::ShuttingDown);
    }

    #[test]
    fn internal_errors_are_not_shown_to_clients() {
        let problem = Problem::internal("/var/lib/secret: permission denied");
        assert!(!problem.to_json().contains("secret"));
    }
}
