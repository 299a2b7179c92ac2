//! The failures of model calls, by category. Each error has `details.code`, so that a runner or an operator can distinguish
//! them without reading the message.

use std::time::{Duration, Instant};

use agent_host_protocol::{ApiError, ErrorCode};
use serde_json::{Map, Value, json};

use super::milliseconds;
use crate::redact::Redactor;

/// Of a provider's own words, this much is passed on.
const MAX_MESSAGE_CHARS: usize = 500;

/// Entries of `details` of an error that are read.
const MAX_DETAILS: usize = 16;
/// Longest pause that the body of an error can ask for.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(86_400);
/// The message where the provider refuses the key. The words of the provider may quote the key; even redacted, they do not help a
/// runner.
const REFUSED_KEY: &str = "the provider refuses the credentials of this model: the operator must check them";

/// The category of a failure. A test compares the table in the documentation of the module with this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    NotReady,
    NotSupported,
    ExtraArgument,
    Unauthorized,
    ModelNotFound,
    Refused,
    ContextLength,
    RequestTooLarge,
    RateLimited,
    QuotaExceeded,
    Unavailable,
    Stalled,
    Interrupted,
    ProviderError,
    InvalidResponse,
    InvalidToolCall,
    ResponseTooLarge,
    ScriptUnmatched,
    Scripted,
}

impl Category {
    /// As `details.code` shows it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NotReady => "provider_not_ready",
            Self::NotSupported => "operation_not_supported",
            Self::ExtraArgument => "extra_argument_refused",
            Self::Unauthorized => "provider_unauthorized",
            Self::ModelNotFound => "model_not_found",
            Self::Refused => "provider_refused",
            Self::ContextLength => "context_length_exceeded",
            Self::RequestTooLarge => "request_too_large",
            Self::RateLimited => "provider_rate_limited",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Unavailable => "provider_unavailable",
            Self::Stalled => "provider_stalled",
            Self::Interrupted => "stream_interrupted",
            Self::ProviderError => "provider_error",
            Self::InvalidResponse => "invalid_response",
            Self::InvalidToolCall => "invalid_tool_call",
            Self::ResponseTooLarge => "response_too_large",
            Self::ScriptUnmatched => "script_unmatched",
            Self::Scripted => "scripted_error",
        }
    }

    /// The code of the error, and whether the same call may succeed later.
    const fn kind(self) -> (ErrorCode, bool) {
        match self {
            Self::NotSupported | Self::ExtraArgument | Self::Refused => (ErrorCode::InvalidArgument, false),
            Self::ContextLength | Self::RequestTooLarge | Self::ResponseTooLarge => (ErrorCode::PayloadTooLarge, false),
            Self::RateLimited => (ErrorCode::RateLimited, true),
            Self::QuotaExceeded => (ErrorCode::RateLimited, false),
            Self::NotReady
            | Self::Unauthorized
            | Self::ModelNotFound
            | Self::ProviderError
            | Self::InvalidResponse
            | Self::ScriptUnmatched
            | Self::Scripted => (ErrorCode::RuntimeError, false),
            Self::Unavailable | Self::Stalled | Self::Interrupted | Self::InvalidToolCall => (ErrorCode::RuntimeError, true),
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
}

/// The answer where no model can answer: none is configured, or what it needs is not there.
#[must_use]
pub fn not_ready(message: impl Into<String>) -> ApiError {
    Category::NotReady.error(message)
}

/// The deadline of the call has passed.
pub(super) fn deadline_exceeded() -> ApiError {
    ApiError::new(ErrorCode::DeadlineExceeded, "the model did not answer before the deadline of the call")
}

/// True if another model may answer the same request: the provider has failed, and not the request.
pub(super) fn lets_another_answer(error: &ApiError) -> bool {
    let category = error.category();
    let of_provider = [Category::NotReady, Category::Unauthorized, Category::ModelNotFound, Category::QuotaExceeded];
    let in_answer = [Category::ProviderError, Category::InvalidResponse];
    let is_of_provider = of_provider.iter().chain(&in_answer).any(|known| known.as_str() == category);
    is_of_provider
        || (error.retryable && error.code != ErrorCode::DeadlineExceeded && category != Category::InvalidToolCall.as_str())
}

/// The time left until a deadline.
pub(super) fn remaining(deadline: Instant) -> Result<Duration, ApiError> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or_else(deadline_exceeded)
}

/// A provider's words in a form that can be passed on: short, and without control characters. Secrets are out already.
pub(super) fn quote(text: &str) -> String {
    let mut quoted: String = text.trim().chars().take(MAX_MESSAGE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().chars().nth(MAX_MESSAGE_CHARS).is_some() {
        quoted.push_str("...");
    }
    quoted
}

/// The error of a provider: `{"error":{"message","code","type"}}`, and other common forms.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProviderMessage {
    /// For people.
    pub(super) message: String,
    /// `code`, `type`, `status` and the reasons in `details`, for programs, in lower case.
    pub(super) kind: String,
    /// A status within the body, as routers give it.
    pub(super) status: Option<u16>,
    /// The time until the provider wants to be asked again, where the body has it.
    pub(super) retry_after: Option<Duration>,
}

impl ProviderMessage {
    /// From the body of an answer. Keys are removed before anything is cut, so that no part of one is left.
    pub(super) fn of_body(body: &str, redactor: &Redactor) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => {
                // Google answers some requests for a stream with a list of one error.
                let value = value.get(0).unwrap_or(&value);
                Self::of_value(value.get("error").unwrap_or(value), redactor)
            }
            Err(_) => Self { message: quote(&redactor.text(body)), ..Self::default() },
        }
    }

    /// From the error object itself.
    pub(super) fn of_value(error: &Value, redactor: &Redactor) -> Self {
        let text = |key: &str| match error.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let message = error
            .as_str()
            .map(str::to_owned)
            .or_else(|| text("message"))
            .or_else(|| text("detail"))
            .or_else(|| error.get("detail").filter(|detail| !detail.is_null()).map(Value::to_string))
            .unwrap_or_default();
        let details = error.get("details").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let details = details.get(..MAX_DETAILS).unwrap_or(details);
        let words = [text("code"), text("type"), text("status")].into_iter().flatten();
        let kind = words.chain(reasons(details)).collect::<Vec<_>>().join(" ").to_lowercase();
        let status = error.get("code").or_else(|| error.get("status")).and_then(Value::as_u64);
        Self {
            message: quote(&redactor.text(&message)),
            kind: quote(&redactor.text(&kind)),
            status: status.and_then(|status| u16::try_from(status).ok()),
            retry_after: details.iter().find_map(retry_delay),
        }
    }

    fn has_words(&self, words: &[&str]) -> bool {
        let message = self.message.to_lowercase();
        words.iter().any(|word| self.kind.contains(word) || message.contains(word))
    }

    fn or(&self, default: &str) -> String {
        if self.message.is_empty() { default.to_owned() } else { self.message.clone() }
    }

    /// The error for an answer with this status. `retry_after` is when the provider wants to be asked again.
    pub(super) fn into_error(self, status: u16, retry_after: Option<Duration>) -> ApiError {
        let mut details = Map::from_iter([("status".to_owned(), json!(status))]);
        if let Some(after) = retry_after {
            details.insert("retry_after_ms".into(), json!(milliseconds(after)));
        }
        let (category, message) = match status {
            401 | 403 => (Category::Unauthorized, REFUSED_KEY.into()),
            404 => (
                Category::ModelNotFound,
                format!("the provider does not know the model, or its `base_url` is wrong: {}", self.or("not found")),
            ),
            // Google answers so to a key that it does not know.
            400 if self.has_words(&["api_key_invalid", "api key not valid", "api key expired"]) => {
                (Category::Unauthorized, REFUSED_KEY.into())
            }
            // Bedrock answers so to a model that it does not know.
            400 if self.has_words(&["model identifier is invalid"]) => {
                (Category::ModelNotFound, format!("the provider does not know the model: {}", self.message))
            }
            413 => {
                (Category::RequestTooLarge, format!("the request is too large for the provider: {}", self.or("no reason given")))
            }
            // Google speaks of billing also where the quota of a minute is used up, and says then when that is over.
            429 if self.has_words(&["insufficient_quota", "perday"])
                || (self.has_words(&["billing"]) && self.retry_after.is_none()) =>
            {
                (Category::QuotaExceeded, format!("the quota at the provider is used up: {}", self.or("no reason given")))
            }
            429 => (Category::RateLimited, format!("the provider limits requests: {}", self.or("no reason given"))),
            400 | 422
                if self.has_words(&[
                    "context_length",
                    "context length",
                    "maximum context",
                    "too many tokens",
                    "prompt is too long",
                    "exceeds the maximum number of tokens",
                    "input is too long",
                ]) =>
            {
                (Category::ContextLength, format!("the conversation is longer than the model can read: {}", self.message))
            }
            408 | 424 | 500..=599 => {
                (Category::Unavailable, format!("the provider failed ({status}): {}", self.or("no reason given")))
            }
            300..=399 => (
                Category::ProviderError,
                format!(
                    "the provider answers with a redirect ({status}), which is not followed: the operator must check `base_url`"
                ),
            ),
            400..=499 => {
                (Category::Refused, format!("the provider refuses the request ({status}): {}", self.or("no reason given")))
            }
            _ => (Category::InvalidResponse, format!("the provider answers with status {status}")),
        };
        category.error_with(message, details)
    }

    /// The error for a message that came where an answer was expected: inside a stream, or with status 200.
    pub(super) fn into_late_error(self) -> ApiError {
        let status = self.status.filter(|status| (400..=599).contains(status));
        if let Some(status) = status {
            let retry_after = self.retry_after;
            return self.into_error(status, retry_after);
        }
        if self.has_words(&["context_length", "maximum context"]) {
            return self.into_error(400, None);
        }
        if self.has_words(&["insufficient_quota", "rate_limit", "rate limit"]) {
            return self.into_error(429, None);
        }
        let transient = self.has_words(&["overloaded", "server_error", "internal", "unavailable", "timeout"]);
        let error =
            Category::ProviderError.error(format!("the provider broke off with an error: {}", self.or("no reason given")));
        ApiError { retryable: transient, ..error }
    }
}

/// The reasons in the details of an error of Google (`google.rpc.ErrorInfo`, `google.rpc.QuotaFailure`).
fn reasons(details: &[Value]) -> impl Iterator<Item = String> {
    let quotas = |detail: &Value| detail.get("violations").and_then(Value::as_array).cloned().unwrap_or_default();
    details.iter().flat_map(move |detail| {
        let reason = detail.get("reason").cloned();
        let limit = detail.pointer("/metadata/quota_limit").cloned();
        let quotas = quotas(detail).into_iter().take(MAX_DETAILS).filter_map(|quota| quota.get("quotaId").cloned());
        reason.into_iter().chain(limit).chain(quotas).filter_map(|word| word.as_str().map(str::to_owned))
    })
}

/// The pause that a detail of an error of Google asks for (`google.rpc.RetryInfo`): seconds such as `26s` or `34.07s`.
fn retry_delay(detail: &Value) -> Option<Duration> {
    let seconds = detail.get("retryDelay")?.as_str()?.strip_suffix('s')?.parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok().map(|delay| delay.min(MAX_RETRY_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: &ApiError) -> &str {
        error.details.as_ref().unwrap()["code"].as_str().unwrap()
    }

    #[test]
    fn a_status_and_what_is_said_with_it_make_the_category() {
        for (status, body, expect, retryable) in [
            (401, "{}", "provider_unauthorized", false),
            (403, "{}", "provider_unauthorized", false),
            (404, r#"{"error":{"message":"no such model"}}"#, "model_not_found", false),
            (400, r#"{"error":{"message":"bad temperature"}}"#, "provider_refused", false),
            (400, r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, "context_length_exceeded", false),
            (400, r#"{"object":"error","message":"This model's maximum context length is 8"}"#, "context_length_exceeded", false),
            (413, "too big", "request_too_large", false),
            (418, "", "provider_refused", false),
            (422, r#"{"detail":[{"loc":["body"]}]}"#, "provider_refused", false),
            (429, "", "provider_rate_limited", true),
            (429, r#"{"error":{"message":"x","code":"insufficient_quota"}}"#, "quota_exceeded", false),
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#,
                "provider_unauthorized",
                false,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"The input token count (2) exceeds the maximum number of tokens allowed (1).","status":"INVALID_ARGUMENT"}}"#,
                "context_length_exceeded",
                false,
            ),
            (
                429,
                r#"{"error":{"code":429,"message":"check your plan and billing","status":"RESOURCE_EXHAUSTED"}}"#,
                "quota_exceeded",
                false,
            ),
            (
                429,
                r#"{"error":{"code":429,"message":"check your plan and billing","details":[{"violations":[{"quotaId":"RequestsPerModelPerMinute"}]},{"retryDelay":"26s"}]}}"#,
                "provider_rate_limited",
                true,
            ),
            (
                429,
                r#"[{"error":{"code":429,"message":"x","details":[{"violations":[{"quotaId":"RequestsPerDayPerModel"}]},{"retryDelay":"26s"}]}}]"#,
                "quota_exceeded",
                false,
            ),
            (400, r#"{"message":"The provided model identifier is invalid."}"#, "model_not_found", false),
            (400, r#"{"message":"Input is too long for requested model."}"#, "context_length_exceeded", false),
            (424, r#"{"message":"The model failed."}"#, "provider_unavailable", true),
            (408, "", "provider_unavailable", true),
            (500, "<html>", "provider_unavailable", true),
            (503, "", "provider_unavailable", true),
            (307, "", "provider_error", false),
            (204, "", "invalid_response", false),
        ] {
            let error = ProviderMessage::of_body(body, &Redactor::default()).into_error(status, None);
            assert_eq!((code(&error), error.retryable), (expect, retryable), "{status} {body}");
            assert_eq!(error.details.unwrap()["status"], status);
        }
    }

    #[test]
    fn another_model_is_asked_for_failures_of_the_provider_alone() {
        use Category::*;
        let of_provider =
            [NotReady, Unauthorized, ModelNotFound, RateLimited, QuotaExceeded, Unavailable, Stalled, Interrupted, ProviderError];
        for category in of_provider {
            assert!(lets_another_answer(&category.error("x")), "{category:?}");
        }
        let of_request = [ExtraArgument, Refused, ContextLength, RequestTooLarge, InvalidToolCall, ResponseTooLarge, Scripted];
        for category in of_request {
            assert!(!lets_another_answer(&category.error("x")), "{category:?}");
        }
        assert!(!lets_another_answer(&deadline_exceeded()));
        assert!(lets_another_answer(&ApiError { retryable: true, ..Scripted.error("x") }), "a script may play an outage");
    }

    #[test]
    fn an_error_within_a_stream_has_its_own_words() {
        for (error, expect, retryable) in [
            (json!({ "message": "x", "type": "server_error" }), "provider_error", true),
            (json!({ "message": "x", "type": "invalid_request_error" }), "provider_error", false),
            (json!({ "message": "x", "code": 429 }), "provider_rate_limited", true),
            (json!({ "message": "x", "code": "rate_limit_exceeded" }), "provider_rate_limited", true),
            (json!("it broke"), "provider_error", false),
            (json!(null), "provider_error", false),
        ] {
            let made = ProviderMessage::of_value(&error, &Redactor::default()).into_late_error();
            assert_eq!((code(&made), made.retryable), (expect, retryable), "{error}");
        }
    }

    #[test]
    fn the_pause_in_an_error_is_bounded_and_read_only_where_it_is_one() {
        for (delay, expect) in [
            (json!("26s"), Some(26_000)),
            (json!("34.5s"), Some(34_500)),
            (json!("1e18s"), Some(86_400_000)),
            (json!("-1s"), None),
            (json!("NaNs"), None),
            (json!("soon"), None),
            (json!(26), None),
        ] {
            let error = json!({ "code": 429, "details": [{ "reason": 1 }, { "violations": "x" }, { "retryDelay": delay }] });
            let made = ProviderMessage::of_value(&error, &Redactor::default());
            assert_eq!(made.retry_after.map(milliseconds), expect, "{delay}");
            let late = made.into_late_error().details.unwrap();
            assert_eq!(late.get("retry_after_ms"), expect.map(|delay| json!(delay)).as_ref(), "{delay}");
        }
    }

    #[test]
    fn the_documentation_has_every_category() {
        use Category::*;
        let all = [
            NotReady,
            NotSupported,
            ExtraArgument,
            Unauthorized,
            ModelNotFound,
            Refused,
            ContextLength,
            RequestTooLarge,
            RateLimited,
            QuotaExceeded,
            Unavailable,
            Stalled,
            Interrupted,
            ProviderError,
            InvalidResponse,
            InvalidToolCall,
            ResponseTooLarge,
            ScriptUnmatched,
            Scripted,
        ];
        let table = include_str!("mod.rs").lines().skip_while(|line| !line.starts_with("//! | `details.code`")).skip(2);
        let rows: Vec<&str> = table.take_while(|line| line.starts_with("//! |")).collect();
        assert_eq!(rows.len(), all.len());
        for (category, row) in all.into_iter().zip(rows) {
            let (code, retryable) = category.kind();
            let retryable = if retryable { "yes" } else { "no" };
            let as_it_says = row.contains("as it says");
            assert!(row.starts_with(&format!("//! | `{}` |", category.as_str())), "{row}");
            assert!(as_it_says || row.contains(&format!("| `{code}` | {retryable} |")), "{row}");
        }
    }

    #[test]
    fn a_long_message_is_cut_and_has_no_control_characters() {
        let quoted = quote(&format!("a\u{1b}[31m\n{}", "語".repeat(1000)));
        assert_eq!(quoted.chars().count(), MAX_MESSAGE_CHARS + 3);
        assert!(!quoted.chars().any(char::is_control));
    }
}
