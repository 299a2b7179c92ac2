//! Requests to a provider: retried while nothing has been answered, bounded in time and bytes, and silent about keys.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::ApiError;
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use futures_util::FutureExt;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::{
    bounds::CallBounds,
    failure::{Category, ProviderMessage, deadline_exceeded, quote, remaining},
    milliseconds,
    signer::Signer,
};
use crate::{http_client, redact::Redactor, retry_after::retry_after, secret::Secret, trace};

/// The version of the interface of Anthropic.
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// First pause before a request is sent again; it doubles each time, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause that the host chooses by itself.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Of an error's body, this much is read; more than any provider says.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Time limit for the body of an error, which is only text.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections that are kept open for the next request.
const IDLE_CONNECTIONS: usize = 8;

/// The media type of server-sent events.
pub(super) const EVENTS: &str = "text/event-stream";
/// The media type of JSON.
pub(super) const JSON: &str = "application/json";

/// The place of a request below the address of the provider, and the answer that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    path: Vec<String>,
    query: Option<&'static str>,
    /// Media type of the answer.
    accept: &'static str,
}

impl Target {
    pub(super) fn new<S: Into<String>>(path: impl IntoIterator<Item = S>, accept: &'static str) -> Self {
        Self { path: path.into_iter().map(Into::into).collect(), query: None, accept }
    }

    pub(super) fn with_query(self, query: &'static str) -> Self {
        Self { query: Some(query), ..self }
    }
}

/// The client of one provider, with its own connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    model: String,
    http: Client,
    base: Url,
    /// The key, and what the provider wants beside it.
    headers: HeaderMap,
    /// For requests that are signed.
    signer: Option<Signer>,
    pub(super) redactor: Redactor,
    retries: usize,
    idle: Duration,
    pub(super) max_bytes: usize,
}

impl Endpoint {
    /// The way to the provider of `config`, with its key or the signer of its requests.
    pub(super) fn new(config: &ModelConfig, base: Url, key: Option<Secret>, signer: Option<Signer>) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        if config.provider == ProviderKind::Anthropic {
            headers.insert("anthropic-version", HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        if config.provider == ProviderKind::Bedrock && key.as_ref().is_some_and(|key| is_access_key(key.expose())) {
            return Err("the key is the id of an access key of AWS: write `access_key` with it and its secret in place of `api_key`, or make \
                        an API key of Amazon Bedrock"
                .into());
        }
        if let Some(key) = &key {
            let (name, text) = match config.provider {
                ProviderKind::Anthropic => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
                ProviderKind::Gemini => (HeaderName::from_static("x-goog-api-key"), key.expose().to_owned()),
                _ => (AUTHORIZATION, format!("Bearer {}", key.expose())),
            };
            let mut value =
                HeaderValue::from_str(&text).map_err(|_| "the API key has characters that no HTTP header may have".to_owned())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        // No proxy of the environment: a request goes where the configuration says, or nowhere. No redirects: they would
        // carry the conversation to another place. No retries of the library: they are counted here.
        let http = http_client::builder()
            .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build()
            .map_err(|error| format!("the HTTP client cannot be set up: {error}"))?;
        Ok(Self {
            model: config.id.clone(),
            http,
            base,
            headers,
            redactor: Redactor::new(key.into_iter().chain(signer.iter().flat_map(Signer::secrets)).collect()),
            signer,
            retries: usize::try_from(config.max_retries).unwrap_or(usize::MAX),
            idle: Duration::from_millis(config.idle_timeout_ms),
            max_bytes: config.max_response_bytes,
        })
    }

    /// Sends a request, again where the provider is busy or failing, until an answer with a good status begins.
    pub(super) async fn post(self: &Arc<Self>, target: &Target, body: Bytes, bounds: CallBounds<'_>) -> Result<Answer, ApiError> {
        let deadline = bounds.deadline;
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(&target.path);
        }
        url.set_query(target.query);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_max_times(self.retries)
            .with_jitter()
            .build();
        loop {
            let failure = match self.attempt(url.clone(), body.clone(), target.accept, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let error = self.redactor.error(failure.error);
            let Some(pause) = pauses.next().filter(|_| failure.retry) else { return Err(error) };
            // A little later than the provider asks, so that clients with the same answer do not retry at the same time.
            let pause = failure.retry_after.map_or(pause, |after| after.saturating_add(pause.min(after / 10)));
            if remaining(deadline)? <= pause {
                return Err(error);
            }
            tracing::debug!(
                model = self.model,
                reason = error.category(),
                pause_ms = pause.as_millis(),
                "asking the provider again"
            );
            bounds.note(&error, pause);
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        url: Url,
        body: Bytes,
        accept: &'static str,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(JSON)), (ACCEPT, HeaderValue::from_static(accept))]);
        if let Some(signer) = &self.signer {
            signer.sign(&url, &mut headers, &body).map_err(|reason| Failure::last(self.unsigned(reason)))?;
        }
        // Traces are not part of a signature: what is between may change them.
        let request = self.http.post(url).headers(headers).headers(trace::headers()).headers(self.headers.clone()).body(body);
        let response = match self.wait(request.send(), deadline).await.map_err(Failure::last)? {
            Ok(response) => response,
            Err(error) => return Err(self.unreachable(error)),
        };
        let (status, retry_after) = (response.status(), retry_after(response.headers(), SystemTime::now()));
        let answer = Answer { endpoint: Arc::clone(self), response, deadline };
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let body = answer.error_body().await;
        let message = ProviderMessage::of_body(&body, &self.redactor);
        let retry_after = retry_after.or(message.retry_after);
        let error = message.into_error(status.as_u16(), retry_after);
        Err(Failure { retry: error.retryable, error, retry_after })
    }

    /// The request cannot be signed. The reason may name the key, so only the operator's log has it.
    fn unsigned(&self, reason: String) -> ApiError {
        let reason = self.redactor.owned(reason);
        tracing::warn!(model = self.model, reason, "a request to the provider of a model cannot be signed");
        Category::Unavailable.error("the request to the provider of the model cannot be signed")
    }

    /// The provider could not be reached, or closed the connection without an answer. The reason names addresses, so only
    /// the operator's log has it.
    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let message = if error.is_connect() {
            "the provider of the model cannot be reached"
        } else {
            "the provider of the model closed the connection instead of answering"
        };
        let reason = self.redactor.owned(http_client::reason(error));
        tracing::warn!(model = self.model, reason, "{message}");
        Failure { error: Category::Unavailable.error(message), retry: true, retry_after: None }
    }

    /// Waits for the provider no longer than it may be silent, and than the deadline.
    async fn wait<T>(&self, what: impl Future<Output = T>, deadline: Instant) -> Result<T, ApiError> {
        let left = remaining(deadline)?;
        timeout(left.min(self.idle), what).await.map_err(|_| if left <= self.idle { deadline_exceeded() } else { self.stalled() })
    }

    fn stalled(&self) -> ApiError {
        let idle = milliseconds(self.idle);
        let details = Map::from_iter([("idle_timeout_ms".to_owned(), json!(idle))]);
        Category::Stalled.error_with(format!("the provider was silent for {idle} ms"), details)
    }

    /// The error for a response with more than it may have.
    pub(super) fn too_large(&self) -> ApiError {
        let details = Map::from_iter([("limit".to_owned(), json!(self.max_bytes))]);
        let message = format!("the response of the model has more than {} bytes", self.max_bytes);
        Category::ResponseTooLarge.error_with(message, details)
    }
}

/// True for the id of an access key of AWS, such as `AKIAIOSFODNN7EXAMPLE`.
fn is_access_key(key: &str) -> bool {
    let is_of_id = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    key.len() == 20 && (key.starts_with("AKIA") || key.starts_with("ASIA")) && key.bytes().all(is_of_id)
}

/// The reason why an attempt failed.
struct Failure {
    error: ApiError,
    /// True if another attempt makes sense now.
    retry: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    /// A failure after which there is no time for another attempt, or after which the provider may be at work.
    const fn last(error: ApiError) -> Self {
        Self { error, retry: false, retry_after: None }
    }
}

/// An answer that has begun, with a good status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) endpoint: Arc<Endpoint>,
    response: Response,
    deadline: Instant,
}

impl Answer {
    /// True if the answer has this media type.
    pub(super) fn is(&self, expected: &str) -> bool {
        self.media_type().is_some_and(|media_type| media_type.eq_ignore_ascii_case(expected))
    }

    fn media_type(&self) -> Option<&str> {
        let text = self.response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
        text.split(';').next().map(str::trim)
    }

    /// Waits for bytes; `None` is the end. Dropping the future loses no bytes.
    ///
    /// `patience` bounds the wait where that is shorter than the idle timeout.
    pub(super) async fn bytes(&mut self, patience: Option<Duration>) -> Result<Option<Bytes>, ApiError> {
        let endpoint = Arc::clone(&self.endpoint);
        let chunk = async {
            match patience {
                Some(patience) => timeout(patience, self.response.chunk()).await.map_err(|_| endpoint.stalled()),
                None => Ok(self.response.chunk().await),
            }
        };
        endpoint.wait(chunk, self.deadline).await??.map_err(|error| interrupted(&endpoint, error))
    }

    /// Bytes that have arrived already; none where there are none now.
    pub(super) fn bytes_now(&mut self) -> Option<Result<Option<Bytes>, ApiError>> {
        let chunk = self.response.chunk().now_or_never()?;
        Some(chunk.map_err(|error| interrupted(&self.endpoint, error)))
    }

    /// The whole body, bounded.
    pub(super) async fn body(mut self) -> Result<Vec<u8>, ApiError> {
        let mut body = Vec::new();
        while let Some(bytes) = self.bytes(None).await? {
            if body.len() + bytes.len() > self.endpoint.max_bytes {
                return Err(self.endpoint.too_large());
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    /// The body as JSON of the expected form. An error object with a good status is that error.
    pub(super) async fn json<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let endpoint = Arc::clone(&self.endpoint);
        let body = self.body().await?;
        serde_json::from_slice(&body).map_err(|error| match serde_json::from_slice::<Value>(&body) {
            Ok(value) => match value.get("error").filter(|error| !error.is_null()) {
                Some(error) => endpoint.redactor.error(ProviderMessage::of_value(error, &endpoint.redactor).into_late_error()),
                // The message of serde quotes the body.
                None => Category::InvalidResponse
                    .error(endpoint.redactor.text(&quote(&format!("the response of the provider has another form: {error}")))),
            },
            Err(_) => Category::InvalidResponse.error("the response of the provider is not JSON"),
        })
    }

    /// The words of an error, as far as they come.
    async fn error_body(mut self) -> String {
        let mut body = Vec::new();
        let read = async {
            while let Ok(Some(bytes)) = self.bytes(None).await {
                let left = MAX_ERROR_BYTES.saturating_sub(body.len());
                body.extend(bytes.iter().take(left));
                if bytes.len() >= left {
                    break;
                }
            }
        };
        let _late = timeout(ERROR_BODY_TIMEOUT, read).await;
        String::from_utf8_lossy(&body).into_owned()
    }
}

/// The error for a connection that ended within an answer.
fn interrupted(endpoint: &Endpoint, error: reqwest::Error) -> ApiError {
    let reason = endpoint.redactor.owned(http_client::reason(error));
    tracing::debug!(model = endpoint.model, reason, "the answer of a model broke off");
    Category::Interrupted.error("the provider closed the connection in the middle of its answer")
}
