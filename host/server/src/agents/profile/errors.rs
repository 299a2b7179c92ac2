//! Problems as the clients of the profile know them: RFC 7807 documents with a `code` in upper case.
//!
//! All refusals under `/api/v1/agent` have this form: those of the handlers, and, by [`in_dialect`], those of earlier
//! layers.

use std::collections::BTreeMap;

use agent_host_runs::LedgerError;
use axum::{
    body::{Body, to_bytes},
    extract::{MatchedPath, Request},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema, Type,
        schema::{AdditionalProperties, SchemaType},
    },
};

use crate::{
    http::{Problem, problem_codes},
    openapi::{by_status, refusal},
};

/// The path prefix of the profile.
const PREFIX: &str = "/api/v1/agent/";
/// No problem document is longer.
const MAX_DOCUMENT_BYTES: usize = 256 * 1024;

problem_codes! {
    /// The kind of problem, for programs. Names and statuses are those of the profile where it has them.
    pub(crate) enum Code;

    /// The caller is unknown: a key is missing, or is not valid.
    AuthUnauthorized = "AUTH_UNAUTHORIZED", UNAUTHORIZED;
    /// The caller has no right to this request.
    Forbidden = "AGENT_FORBIDDEN", FORBIDDEN;
    /// The signature of an address is not that of this address.
    SignatureInvalid = "AGENT_ATTACHMENT_SIGNATURE_INVALID", FORBIDDEN;
    /// The host has no agent for these routes: `[agui.api] agent` names one.
    NotEnabled = "AGENT_NOT_ENABLED", NOT_FOUND;
    /// No such thread or run exists in the caller's workspace.
    SessionNotFound = "AGENT_SESSION_NOT_FOUND", NOT_FOUND;
    /// No such attachment exists in the caller's workspace.
    AttachmentNotFound = "AGENT_ATTACHMENT_NOT_FOUND", NOT_FOUND;
    /// The path does not take the method: `Allow` lists those that it takes.
    MethodNotAllowed = "AGENT_METHOD_NOT_ALLOWED", METHOD_NOT_ALLOWED;
    /// The answer cannot be given in a form that `Accept` names.
    NotAcceptable = "AGENT_NOT_ACCEPTABLE", NOT_ACCEPTABLE;
    /// The body did not arrive in time.
    RequestTimeout = "AGENT_REQUEST_TIMEOUT", REQUEST_TIMEOUT;
    /// The thread has a run that has not ended: `params.activeRunId` names it.
    RunLimitExceeded = "AGENT_SESSION_RUN_LIMIT_EXCEEDED", CONFLICT;
    /// The run id was used before, for another request.
    RunIdConflict = "AGENT_RUN_ID_CONFLICT", CONFLICT;
    /// The thread waits for answers that the request does not have.
    InterruptsOpen = "AGENT_INTERRUPTS_OPEN", CONFLICT;
    /// The thing is in a state in which this cannot be done.
    Conflict = "AGENT_CONFLICT", CONFLICT;
    /// The time of the thing is over.
    Expired = "AGENT_EXPIRED", GONE;
    /// The time of the signed address is over: ask for a new one.
    UrlExpired = "AGENT_ATTACHMENT_URL_EXPIRED", GONE;
    /// The body is larger than it may be.
    PayloadTooLarge = "AGENT_PAYLOAD_TOO_LARGE", PAYLOAD_TOO_LARGE;
    /// The body is not of the type that the path takes.
    UnsupportedMediaType = "AGENT_UNSUPPORTED_MEDIA_TYPE", UNSUPPORTED_MEDIA_TYPE;
    /// The attachment is no image, or not the one that it says it is.
    AttachmentUnsupported = "AGENT_ATTACHMENT_UNSUPPORTED", UNSUPPORTED_MEDIA_TYPE;
    /// The range begins behind the end.
    RangeNotSatisfiable = "AGENT_RANGE_NOT_SATISFIABLE", RANGE_NOT_SATISFIABLE;
    /// A member of the input has a value that it cannot have.
    RunInputInvalid = "AGENT_RUN_INPUT_INVALID", UNPROCESSABLE_ENTITY;
    /// The messages of the input are not such as a run takes.
    RunMessagesInvalid = "AGENT_RUN_MESSAGES_INVALID", UNPROCESSABLE_ENTITY;
    /// The run id is none.
    InvalidRunId = "AGENT_INVALID_RUN_ID", UNPROCESSABLE_ENTITY;
    /// The id of the last event is not one of this run.
    InvalidLastEventId = "AGENT_INVALID_LAST_EVENT_ID", UNPROCESSABLE_ENTITY;
    /// The thread id is none.
    SessionIdInvalid = "AGENT_SESSION_ID_INVALID", UNPROCESSABLE_ENTITY;
    /// The body is not JSON, or a parameter has a value that it cannot have.
    PayloadInvalid = "AGENT_PAYLOAD_INVALID", UNPROCESSABLE_ENTITY;
    /// The attachment has no bytes.
    AttachmentEmpty = "AGENT_ATTACHMENT_EMPTY", UNPROCESSABLE_ENTITY;
    /// An answered question was not asked, or is answered already.
    UnknownInterrupt = "AGENT_INTERRUPT_UNKNOWN", UNPROCESSABLE_ENTITY;
    /// The limit of open streams of events is reached.
    SseConnectionLimit = "AGENT_SSE_CONNECTION_LIMIT", TOO_MANY_REQUESTS;
    /// As many runs wait as may wait.
    QueueFull = "AGENT_QUEUE_FULL", TOO_MANY_REQUESTS;
    /// The host is at fault: its log says how.
    Internal = "AGENT_INTERNAL", INTERNAL_SERVER_ERROR;
    /// Something that the host needs has failed.
    UpstreamFailed = "AGENT_UPSTREAM_FAILED", BAD_GATEWAY;
    /// The host cannot do it now.
    Unavailable = "AGENT_UNAVAILABLE", SERVICE_UNAVAILABLE;
    /// The disk of the host is nearly full.
    InsufficientStorage = "AGENT_INSUFFICIENT_STORAGE", INSUFFICIENT_STORAGE;
}

/// A refusal of the profile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    code: Code,
    detail: String,
    params: Map<String, Value>,
    /// True if the same request may succeed soon.
    passes: bool,
}

/// The document of a refusal.
#[derive(Serialize)]
struct Document<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    params: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
}

/// The members of a problem document of the host.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HostProblem {
    status: u16,
    detail: String,
    code: String,
    field: Option<String>,
    details: Option<Value>,
}

impl Refusal {
    /// A refusal of this kind.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), params: Map::new(), passes: false }
    }

    /// With the facts of it.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// The code of the refusal.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    /// The same refusal, as one of another kind.
    pub(crate) fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// Replaces the code of a `not_found` refusal by that of the missing object.
    pub(crate) fn not_there(self, code: Code) -> Self {
        if self.code == Code::SessionNotFound { self.with_code(code) } else { self }
    }

    fn to_json(&self, instance: Option<&str>) -> String {
        let status = self.code.status();
        let document = Document {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            params: &self.params,
            instance,
        };
        // Strings and JSON values: it cannot fail, and an empty object is still a problem document.
        serde_json::to_string(&document).unwrap_or_else(|_| "{}".to_owned())
    }

    fn of(problem: HostProblem) -> Self {
        let code = code_of(&problem);
        let mut refusal = Self::new(code, problem.detail);
        refusal.params.extend(problem.field.map(|field| ("field".to_owned(), field.into())));
        match problem.details {
            Some(Value::Object(details)) => refusal.params.extend(details),
            Some(details) => drop(refusal.params.insert("details".to_owned(), details)),
            None => {}
        }
        // The budget of a day does not come back in a second.
        refusal.passes = matches!(code, Code::SseConnectionLimit | Code::QueueFull | Code::Unavailable)
            && problem.code != "token_budget_exhausted";
        refusal
    }
}

/// The code of the profile that says the most of a problem of the host.
fn code_of(problem: &HostProblem) -> Code {
    let field = problem.field.as_deref().unwrap_or_default();
    let first = field.split(['.', '[']).next().unwrap_or_default();
    match (problem.code.as_str(), first) {
        ("unauthenticated", _) => Code::AuthUnauthorized,
        ("thread_busy", _) => Code::RunLimitExceeded,
        ("run_id_conflict", _) => Code::RunIdConflict,
        ("interrupts_open", _) => Code::InterruptsOpen,
        ("unknown_interrupt" | "unknown_tool_call", _) => Code::UnknownInterrupt,
        ("AGENT_RUN_MESSAGES_INVALID" | "role_forbidden" | "nothing_to_do" | "foreign_history", _) => Code::RunMessagesInvalid,
        ("media_invalid" | "media_too_large" | "media_unavailable", _) => Code::RunMessagesInvalid,
        ("AGENT_RUN_INPUT_INVALID", _) => Code::RunInputInvalid,
        ("AGENT_SESSION_ID_INVALID", _) => Code::SessionIdInvalid,
        ("invalid_cursor", _) => Code::InvalidLastEventId,
        ("invalid_json", _) => Code::PayloadInvalid,
        ("too_many_streams", _) => Code::SseConnectionLimit,
        ("queue_full" | "rate_limited", _) => Code::QueueFull,
        ("invalid_argument", "threadId" | "thread_id") => Code::SessionIdInvalid,
        ("invalid_argument", "runId" | "run_id") => Code::InvalidRunId,
        ("invalid_argument", "messages") => Code::RunMessagesInvalid,
        ("invalid_argument", "Last-Event-ID" | "after") => Code::InvalidLastEventId,
        (_, _) => match problem.status {
            400 | 422 => Code::RunInputInvalid,
            401 => Code::AuthUnauthorized,
            403 => Code::Forbidden,
            404 => Code::SessionNotFound,
            405 => Code::MethodNotAllowed,
            406 => Code::NotAcceptable,
            408 => Code::RequestTimeout,
            409 => Code::Conflict,
            410 => Code::Expired,
            413 => Code::PayloadTooLarge,
            415 => Code::UnsupportedMediaType,
            416 => Code::RangeNotSatisfiable,
            429 => Code::QueueFull,
            502 => Code::UpstreamFailed,
            503 => Code::Unavailable,
            507 => Code::InsufficientStorage,
            _ => Code::Internal,
        },
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::of(serde_json::from_str(&problem.to_json()).unwrap_or_default())
    }
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        Problem::from(error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        let mut response = (self.code.status(), headers, self.to_json(None)).into_response();
        if self.code == Code::AuthUnauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.passes {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The path of a request to the profile; `None` elsewhere.
pub(crate) fn instance(request: &Request) -> Option<String> {
    let matched = request.extensions().get::<MatchedPath>()?;
    matched.as_str().starts_with(PREFIX).then(|| request.uri().path().to_owned())
}

/// An answer of the profile: a refusal has the form of the profile, and names the path of the request in `instance`.
pub(crate) async fn in_dialect(instance: &str, response: Response) -> Response {
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    if !is_problem {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let refusal = match parts.extensions.remove::<Refusal>() {
        Some(refusal) => refusal,
        None => {
            let bytes = to_bytes(body, MAX_DOCUMENT_BYTES).await.unwrap_or_default();
            Refusal::of(serde_json::from_slice(&bytes).unwrap_or_default())
        }
    };
    parts.status = refusal.code.status();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(refusal.to_json(Some(instance))))
}

/// Declares what a route of the profile refuses with, beside what every route may.
macro_rules! agent_refusals {
    ($name:ident = [$($code:ident),* $(,)?]) => {
        enum $name {}

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                $crate::agents::profile::errors::responses(&[$($crate::agents::profile::errors::Code::$code),*])
            }
        }
    };
}
pub(super) use agent_refusals;

/// The codes that every route may answer.
const ALWAYS: &[Code] = &[
    Code::AuthUnauthorized,
    Code::Forbidden,
    Code::RunInputInvalid,
    Code::PayloadInvalid,
    Code::NotEnabled,
    Code::Internal,
    Code::Unavailable,
];

/// A response for each status, with the codes that it may have.
pub(super) fn responses(own: &[Code]) -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    let declared = Code::ALL.iter().copied().filter(|code| ALWAYS.contains(code) || own.contains(code));
    by_status(declared, Code::status, |_, codes| {
        refusal(&AgentProblem::name(), codes.iter().map(|code| (code.as_str(), code.description()))).build()
    })
}

/// The document of a refusal (RFC 7807), as a schema.
pub(crate) enum AgentProblem {}

impl PartialSchema for AgentProblem {
    fn schema() -> RefOr<Schema> {
        let text = |description: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(description));
        let any = || ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        let row = |code: &Code| format!("- `{}` ({}): {}", code.as_str(), code.status().as_u16(), code.description());
        let codes: Vec<String> = Code::ALL.iter().map(row).collect();
        let code = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Code::ALL.iter().map(|code| code.as_str())))
            .description(Some(codes.join("\n")));
        let status = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(400)).maximum(Some(599));
        let params = any().schema_type(Type::Object).additional_properties(Some(AdditionalProperties::FreeForm(true)));
        let document = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("An error in the form of the profile (RFC 7807). Programs decide by `code`."))
            .property("type", ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["about:blank"])))
            .property("title", text("The phrase of the status."))
            .property("status", status.description(Some("The status of the answer.")))
            .property("detail", text("The error and its remedy, for a person."))
            .property("code", code)
            .property("params", params.description(Some("The facts of it, such as `field` or `activeRunId`.")))
            .property("instance", text("The path of the request."));
        let document = ["type", "title", "status", "detail", "code"].into_iter().fold(document, ObjectBuilder::required);
        document.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for AgentProblem {}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use crate::http::ProblemCode;

    use super::*;

    #[test]
    fn a_problem_of_the_host_becomes_one_of_the_profile() {
        for (problem, code, status) in [
            (Problem::invalid("threadId", "x"), "AGENT_SESSION_ID_INVALID", 422),
            (Problem::invalid("runId", "x"), "AGENT_INVALID_RUN_ID", 422),
            (Problem::invalid("messages[2].content", "x"), "AGENT_RUN_MESSAGES_INVALID", 422),
            (Problem::invalid("tools[0].name", "x"), "AGENT_RUN_INPUT_INVALID", 422),
            (Problem::new(ProblemCode::InvalidJson, "x"), "AGENT_PAYLOAD_INVALID", 422),
            (Problem::new(ProblemCode::InvalidCursor, "x"), "AGENT_INVALID_LAST_EVENT_ID", 422),
            (Problem::new(ProblemCode::Unauthenticated, "x"), "AUTH_UNAUTHORIZED", 401),
            (Problem::new(ProblemCode::TooManyStreams, "x"), "AGENT_SSE_CONNECTION_LIMIT", 429),
            (Problem::not_found("x"), "AGENT_SESSION_NOT_FOUND", 404),
        ] {
            let refusal = Refusal::from(problem);
            assert_eq!((refusal.code().as_str(), refusal.code().status().as_u16()), (code, status));
        }
    }

    #[test]
    fn every_problem_of_the_host_has_a_place() {
        for code in ProblemCode::ALL {
            let refusal = Refusal::from(Problem::new(*code, "x"));
            let class = |status: StatusCode| status.as_u16() / 100;
            // Streams are too many for the client here, and for the host there.
            let same = class(refusal.code().status()) == class(code.status()) || *code == ProblemCode::TooManyStreams;
            assert!(same, "{code:?}: {refusal:?}");
        }
    }

    #[test]
    fn a_refusal_is_a_document_of_rfc_7807() {
        let refusal = Refusal::new(Code::RunLimitExceeded, "the thread has a run").with("activeRunId", "r-1");
        insta::assert_snapshot!(refusal.to_json(Some("/api/v1/agent/runs")), @r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"the thread has a run","code":"AGENT_SESSION_RUN_LIMIT_EXCEEDED","params":{"activeRunId":"r-1"},"instance":"/api/v1/agent/runs"}"#);
    }
}
