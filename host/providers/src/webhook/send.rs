//! One signed request to a webhook, and the meaning of its answer.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime},
};

use agent_host_protocol::{ApiError, ErrorCode};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};
use serde_json::{Map, Value, json};
use tokio::time::timeout_at;
use url::Url;

use super::sign::{SECRET_PREFIX, key, sign};
use crate::{
    http_client,
    redact::Redactor,
    retry_after::retry_after,
    secret::{Secret, SecretRef},
};

/// Time limit for connecting, part of the time of an attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Of the words of a refusal, this much is read, and this much is passed on, in bytes.
const MAX_REFUSAL: usize = 4 << 10;
const MAX_REFUSAL_SHOWN: usize = 300;
/// The longest id of a delivery.
pub(super) const MAX_ID: usize = 256;

/// The client of all webhooks of one kind: connections are kept, nothing is followed, nothing is sent twice by itself.
pub(super) fn client() -> Result<Client, String> {
    http_client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .build()
        .map_err(|error| format!("the HTTP client cannot be set up: {error}"))
}

/// Pauses between attempts: each twice as long as the one before, up to a longest one, with jitter.
pub(super) fn pauses(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest).without_max_times().with_jitter().build()
}

/// A little later than the service asks, so that clients with the same answer do not retry at the same time.
pub(super) fn pause_after(pause: Duration, retry_after: Option<Duration>) -> Duration {
    retry_after.map_or(pause, |after| after.saturating_add(pause.min(after / 10)))
}

/// The message, equal in each attempt except for the time and the signature.
pub(super) struct Message {
    pub(super) id: String,
    header: HeaderValue,
    body: Bytes,
}

impl Message {
    pub(super) fn new(id: &str, body: Bytes) -> Result<Self, ApiError> {
        let plain = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::from_str(id).ok().filter(|_| plain);
        let Some(header) = header else {
            return Err(ApiError::invalid_argument(format!("the id of a delivery is 1 to {MAX_ID} visible ASCII characters")));
        };
        Ok(Self { id: id.to_owned(), header, body })
    }
}

/// The reason why an attempt failed.
pub(super) struct Failure {
    pub(super) error: ApiError,
    /// True if another attempt makes sense.
    pub(super) retry: bool,
    pub(super) retry_after: Option<Duration>,
    /// Status of the service's answer, if any.
    pub(super) status: Option<StatusCode>,
}

impl Failure {
    pub(super) const fn last(error: ApiError) -> Self {
        Self { error, retry: false, retry_after: None, status: None }
    }

    fn passing(error: ApiError) -> Self {
        Self { error: ApiError { retryable: true, ..error }, retry: true, retry_after: None, status: None }
    }
}

/// The target of requests, and the secret of their signatures.
pub(super) struct Sender {
    http: Client,
    url: Url,
    /// Secret of the signatures; `None` if it cannot be read. Never shown.
    key: Option<Vec<u8>>,
    pub(super) redactor: Redactor,
    timeout: Duration,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl Sender {
    /// A sender, and why it cannot sign, where it cannot.
    pub(super) fn new(http: Client, url: Url, secret: &SecretRef, timeout: Duration) -> (Self, Option<String>) {
        let secret = Secret::read(secret).map_err(|error| error.to_string());
        let key = secret.as_ref().map_err(Clone::clone).and_then(key);
        let secrets = secret.iter().flat_map(|secret| {
            let bare = secret.expose().strip_prefix(SECRET_PREFIX).map(Secret::new);
            [Some(secret.clone()), bare].into_iter().flatten()
        });
        let redactor = Redactor::new(secrets.collect());
        let (key, problem) = match key {
            Ok(key) => (Some(key), None),
            Err(problem) => (None, Some(problem)),
        };
        (Self { http, url, key, redactor, timeout }, problem)
    }

    /// True if the secret of signatures is available.
    pub(super) const fn can_sign(&self) -> bool {
        self.key.is_some()
    }

    /// Sends it once, and gives the first `max` bytes of the answer where that is a success.
    pub(super) async fn send(&self, message: &Message, deadline: Option<Instant>, max: usize) -> Result<Answer, Failure> {
        let Some(key) = &self.key else {
            return Err(Failure::last(error(
                "webhook_secret_missing",
                "the secret of the webhook cannot be read: the operator must check its `secret` (GET /readyz says what is wrong)",
            )));
        };
        let until = Instant::now().checked_add(self.timeout);
        let until = [until, deadline].into_iter().flatten().min().unwrap_or_else(Instant::now);
        let asked = async {
            let response = self.request(key, message).send().await.map_err(|error| self.unreachable(error))?;
            self.answer(response, max).await
        };
        match timeout_at(until.into(), asked).await {
            Ok(answer) => answer,
            Err(_) if Some(until) == deadline => Err(Failure::last(deadline_exceeded())),
            Err(_) => {
                let ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
                Err(Failure::passing(error("webhook_timeout", format!("the webhook did not answer within {ms} ms"))))
            }
        }
    }

    fn request(&self, key: &[u8], message: &Message) -> reqwest::RequestBuilder {
        let timestamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header("webhook-id", message.header.clone())
            .header("webhook-timestamp", timestamp.to_string())
            .header("webhook-signature", sign(key, &message.id, timestamp, &message.body))
            .header("idempotency-key", message.header.clone())
            .headers(crate::trace::headers())
            .body(message.body.clone())
    }

    /// The reason names addresses, so only the operator's log has it.
    fn unreachable(&self, cause: reqwest::Error) -> Failure {
        let message = if cause.is_connect() {
            "the webhook cannot be reached"
        } else {
            "the webhook closed the connection instead of answering"
        };
        let reason = self.redactor.owned(http_client::reason(cause));
        tracing::warn!(host = self.url.host_str(), reason, "{message}");
        Failure::passing(error("webhook_unreachable", message))
    }

    async fn answer(&self, response: Response, max: usize) -> Result<Answer, Failure> {
        let status = response.status();
        if status.is_success() {
            return read(response, max).await.map_err(|error| self.unreachable(error));
        }
        if status.is_redirection() {
            let message =
                format!("the webhook redirects ({}), which is not followed: its `url` must be where it is", status.as_u16());
            let error = with_status(error("webhook_redirected", message), status);
            return Err(Failure { status: Some(status), ..Failure::last(error) });
        }
        let retry_after = retry_after(response.headers(), SystemTime::now());
        // The text is optional; the status is sufficient.
        let words = read(response, MAX_REFUSAL).await.map(|answer| answer.bytes).unwrap_or_default();
        let words: String = String::from_utf8_lossy(&words).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let words = self.redactor.cut(words.trim(), MAX_REFUSAL_SHOWN);
        let body_text = if words.is_empty() { String::new() } else { format!(": {words}") };
        let busy = matches!(status.as_u16(), 408 | 425 | 429 | 500..=599);
        let (code, verb) = if busy { ("webhook_failed", "fails") } else { ("webhook_refused", "refuses") };
        let error = with_status(error(code, format!("the webhook {verb} ({}){body_text}", status.as_u16())), status);
        let failure = if busy { Failure::passing(error) } else { Failure::last(error) };
        Err(Failure { status: Some(status), retry_after, ..failure })
    }
}

/// The beginning of a body.
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// True if the answer is complete.
    pub(super) whole: bool,
}

/// At most the first `max` bytes of a body.
async fn read(mut response: Response, max: usize) -> Result<Answer, reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > max {
            bytes.truncate(max);
            return Ok(Answer { bytes, whole: false });
        }
    }
    Ok(Answer { bytes, whole: true })
}

pub(super) fn error(code: &str, message: impl Into<String>) -> ApiError {
    ApiError { details: Some(json!({ "code": code })), ..ApiError::new(ErrorCode::RuntimeError, message) }
}

fn with_status(mut error: ApiError, status: StatusCode) -> ApiError {
    if let Some(details) = error.details.as_mut().and_then(Value::as_object_mut) {
        details.insert("status".into(), status.as_u16().into());
    }
    error
}

fn deadline_exceeded() -> ApiError {
    let details = Map::from_iter([("code".to_owned(), json!("webhook_deadline"))]);
    ApiError {
        details: Some(Value::Object(details)),
        ..ApiError::retryable(ErrorCode::DeadlineExceeded, "the webhook did not answer before the deadline of the call")
    }
}
