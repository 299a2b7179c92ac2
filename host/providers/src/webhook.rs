//! Webhooks of the operator: what a run may not do by itself is done by a service that the operator names, and that can be
//! sure who asks.
//!
//! Requests follow [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id`, `webhook-timestamp`, and
//! `webhook-signature` with the HMAC-SHA256 of `ID.TIMESTAMP.BODY`. The body is
//! `{"type": "action.execute", "timestamp": "...", "data": ...}`. A request that was perhaps not heard is sent again, with
//! the same `webhook-id` (and the same `Idempotency-Key`) and the same body, so a service that remembers ids does nothing
//! twice.
//!
//! What the operator configures is trusted: its address is not checked, and neither redirects nor proxies are followed.
//!
//! | `details.code` | `code` | retryable | |
//! |---|---|---|---|
//! | `no_action_hook` | `runtime_error` | no | No webhook is configured for the action. |
//! | `webhook_secret_missing` | `runtime_error` | no | The secret to sign with cannot be read. |
//! | `webhook_refused` | `runtime_error` | no | The service answers with a 4xx. |
//! | `webhook_redirected` | `runtime_error` | no | The service answers with a redirect. |
//! | `webhook_invalid_answer` | `runtime_error` | no | The service has done it, and says so in no JSON, or in too much. |
//! | `webhook_unreachable` | `runtime_error` | yes | There is no connection, or it ended before the answer. |
//! | `webhook_timeout` | `runtime_error` | yes | The service was silent for `timeout_ms`. |
//! | `webhook_failed` | `runtime_error` | yes | The service answers with a 5xx, or that it is busy. |
//! | `webhook_deadline` | `deadline_exceeded` | yes | The deadline of the call passed during an attempt. |
//!
//! Whether a call that failed with one of the last four was carried out, nobody knows here: the service may have done it
//! and its answer was lost.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use agent_host_protocol::{ApiError, ErrorCode, limits, time};
use backon::{BackoffBuilder, ExponentialBuilder};
use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use bytes::Bytes;
use hmac::{Hmac, Mac, digest::KeyInit};
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
    redirect, retry,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout_at;
use url::Url;

use crate::{
    redact::{Redactor, cut},
    retry_after::retry_after,
    secret::{Secret, SecretRef},
};

/// How a secret in base64 begins.
const SECRET_PREFIX: &str = "whsec_";
/// The longest time that a configuration may set, in ms.
const MAX_TIMEOUT_MS: u64 = 10 * 60 * 1000;
/// Attempts of one call, whatever the configuration says.
const MAX_ATTEMPTS: u32 = 20;
/// First pause before a request is sent again; it doubles each time, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause that the host chooses by itself.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long a connection may take. It is part of the time of an attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer: it becomes a part of the run.
const MAX_ANSWER: usize = 256 << 10;
/// Of the words of a refusal, this much is read, and this much is passed on, in bytes.
const MAX_REFUSAL: usize = 4 << 10;
const MAX_REFUSAL_SHOWN: usize = 300;
/// The longest id of a delivery.
const MAX_ID: usize = 256;

/// A webhook that carries out actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionHookConfig {
    /// The actions that it carries out: names, such as `message.edit`, or all that begin alike: `message.*`, `*`.
    pub actions: Vec<String>,
    /// Where it is.
    pub url: String,
    /// What requests are signed with: `whsec_` and base64, as Standard Webhooks has it, or any other text.
    pub secret: SecretRef,
    /// How long one attempt may take, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// How often a request is sent at most.
    #[serde(default = "max_attempts")]
    pub max_attempts: u32,
}

const fn timeout_ms() -> u64 {
    10_000
}

const fn max_attempts() -> u32 {
    5
}

impl ActionHookConfig {
    /// Whether it can be used at all. It reads no secret.
    ///
    /// # Errors
    /// What is wrong, and with which webhook, for the person who wrote the file.
    pub fn check(&self) -> Result<(), String> {
        self.parse().map(|_| ())
    }

    fn parse(&self) -> Result<Url, String> {
        let problem = |problem: String| format!("the action hook for {}: {problem}", self.name());
        if self.actions.is_empty() {
            return Err(problem("its `actions` are empty: name what it carries out".into()));
        }
        if let Some(action) = self.actions.iter().find(|action| {
            let name = action.strip_suffix('*').unwrap_or(action);
            action.is_empty() || name.contains('*') || name.chars().any(|c| c.is_whitespace() || c.is_control())
        }) {
            let action = action.escape_debug();
            return Err(problem(format!("`actions` has \"{action}\": name an action; `*` may stand at the end")));
        }
        let url = Url::parse(&self.url).map_err(|error| problem(format!("its `url` cannot be read: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(problem("its `url` must begin with http:// or https://".into()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(problem("its `url` has a password: requests are signed with `secret` instead".into()));
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.timeout_ms) {
            return Err(problem(format!("`timeout_ms` is from 1 to {MAX_TIMEOUT_MS}")));
        }
        if !(1..=MAX_ATTEMPTS).contains(&self.max_attempts) {
            return Err(problem(format!("`max_attempts` is from 1 to {MAX_ATTEMPTS}")));
        }
        Ok(url)
    }

    fn name(&self) -> String {
        self.actions.iter().map(|action| format!("`{}`", action.escape_debug())).collect::<Vec<_>>().join(", ")
    }
}

/// The webhooks that carry out actions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ActionHooks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: Client,
    hooks: Vec<Hook>,
    problems: Vec<String>,
}

#[derive(Debug)]
struct Hook {
    actions: Vec<String>,
    url: Url,
    /// Nothing where it cannot be read.
    key: Option<Key>,
    redactor: Redactor,
    timeout: Duration,
    attempts: u32,
}

/// What is signed with. It is shown to nobody.
struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl ActionHooks {
    /// The webhooks of the configuration. A secret that cannot be read is a [problem](Self::problems) and no error: only
    /// the calls that need it fail.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn open(hooks: &[ActionHookConfig]) -> Result<Self, String> {
        let http = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("agent-host/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the HTTP client cannot be set up: {error}"))?;
        let (mut opened, mut problems) = (Vec::new(), Vec::new());
        for config in hooks {
            let url = config.parse()?;
            let secret = config.secret.resolve().map_err(|error| error.to_string());
            let key = secret.as_ref().map_err(Clone::clone).and_then(key);
            if let Err(problem) = &key {
                problems.push(format!("the action hook for {} cannot sign: {problem}", config.name()));
            }
            let secrets = secret.iter().flat_map(|secret| {
                let bare = secret.expose().strip_prefix(SECRET_PREFIX).map(Secret::new);
                [Some(secret.clone()), bare].into_iter().flatten()
            });
            opened.push(Hook {
                actions: config.actions.clone(),
                url,
                key: key.ok().map(Key),
                redactor: Redactor::new(secrets.collect()),
                timeout: Duration::from_millis(config.timeout_ms),
                attempts: config.max_attempts,
            });
        }
        Ok(Self(Arc::new(Inner { http, hooks: opened, problems })))
    }

    /// What the operator should know: secrets that cannot be read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.0.problems.clone()
    }

    /// Whether there is a webhook for an action.
    #[must_use]
    pub fn has(&self, action: &str) -> bool {
        self.0.hook(action).is_some()
    }

    /// Has an action carried out by the first webhook that names it. `id` names this delivery: a service that has seen it
    /// does nothing again, so the same `id` is safe after a crash too. The answer is what the service says, or null.
    ///
    /// # Errors
    /// Those in the table of the [module](self).
    pub async fn call(&self, action: &str, id: &str, body: &Value, deadline: Instant) -> Result<Value, ApiError> {
        let Some(hook) = self.0.hook(action) else {
            let action = cut(action, MAX_ID);
            return Err(error(
                "no_action_hook",
                format!("no webhook carries out `{action}`: name it in the `actions` of an [[action_hooks]] of agent-host.toml"),
            ));
        };
        let delivery = Delivery::new(id, body)?;
        hook.deliver(&self.0.http, &delivery, deadline).await.map_err(|error| hook.redactor.error(error))
    }
}

impl Inner {
    fn hook(&self, action: &str) -> Option<&Hook> {
        self.hooks.iter().find(|hook| {
            hook.actions.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => action.starts_with(beginning),
                None => action == pattern,
            })
        })
    }
}

/// What is sent, the same in each attempt but for the time and the signature.
struct Delivery {
    id: String,
    header: HeaderValue,
    body: Bytes,
}

impl Delivery {
    fn new(id: &str, data: &Value) -> Result<Self, ApiError> {
        let plain = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::from_str(id).ok().filter(|_| plain);
        let Some(header) = header else {
            return Err(ApiError::invalid_argument(format!("the id of a delivery is 1 to {MAX_ID} visible ASCII characters")));
        };
        let body = json!({ "type": "action.execute", "timestamp": time::display(time::now()), "data": data });
        Ok(Self { id: id.to_owned(), header, body: body.to_string().into() })
    }
}

/// Why an attempt failed.
struct Failure {
    error: ApiError,
    /// Whether another attempt makes sense.
    retry: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    const fn last(error: ApiError) -> Self {
        Self { error, retry: false, retry_after: None }
    }

    fn passing(error: ApiError, retry_after: Option<Duration>) -> Self {
        Self { error: ApiError { retryable: true, ..error }, retry: true, retry_after }
    }
}

impl Hook {
    async fn deliver(&self, http: &Client, delivery: &Delivery, deadline: Instant) -> Result<Value, ApiError> {
        let Some(Key(key)) = &self.key else {
            return Err(error(
                "webhook_secret_missing",
                "the secret of the webhook cannot be read: the operator must check `[[action_hooks]]` (GET /readyz says what is wrong)",
            ));
        };
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_max_times(usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(usize::MAX))
            .with_jitter()
            .build();
        loop {
            let failure = match self.attempt(http, key, delivery, deadline).await {
                Ok(answer) => return Ok(self.redactor.value(answer)),
                Err(failure) => failure,
            };
            let Some(pause) = pauses.next().filter(|_| failure.retry) else { return Err(failure.error) };
            // A little later than the service says, so that not all who were told the same come at the same time.
            let pause = failure.retry_after.map_or(pause, |after| after.saturating_add(pause.min(after / 10)));
            if deadline.saturating_duration_since(Instant::now()) <= pause {
                return Err(failure.error);
            }
            let reason = self.redactor.error(failure.error);
            tracing::debug!(id = delivery.id, %reason, pause_ms = pause.as_millis(), "calling the webhook again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, http: &Client, key: &[u8], delivery: &Delivery, deadline: Instant) -> Result<Value, Failure> {
        let now = Instant::now();
        let until = now.checked_add(self.timeout).map_or(deadline, |until| until.min(deadline));
        let asked = async {
            let response = self.request(http, key, delivery).send().await.map_err(|error| self.unreachable(error))?;
            self.answer(response).await
        };
        match timeout_at(until.into(), asked).await {
            Ok(answer) => answer,
            Err(_) if until == deadline => Err(Failure::last(deadline_exceeded())),
            Err(_) => {
                let ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
                Err(Failure::passing(error("webhook_timeout", format!("the webhook did not answer within {ms} ms")), None))
            }
        }
    }

    fn request(&self, http: &Client, key: &[u8], delivery: &Delivery) -> reqwest::RequestBuilder {
        let timestamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        http.post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header("webhook-id", delivery.header.clone())
            .header("webhook-timestamp", timestamp.to_string())
            .header("webhook-signature", sign(key, &delivery.id, timestamp, &delivery.body))
            .header("idempotency-key", delivery.header.clone())
            .body(delivery.body.clone())
    }

    /// Why is for the operator: it names addresses.
    fn unreachable(&self, cause: reqwest::Error) -> Failure {
        let message = if cause.is_connect() {
            "the webhook cannot be reached"
        } else {
            "the webhook closed the connection instead of answering"
        };
        let cause = cause.without_url();
        let causes = std::iter::successors(Some(&cause as &dyn std::error::Error), |cause| cause.source());
        let reason = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        tracing::warn!(host = self.url.host_str(), reason = self.redactor.owned(reason), "{message}");
        Failure::passing(error("webhook_unreachable", message), None)
    }

    async fn answer(&self, response: Response) -> Result<Value, Failure> {
        let status = response.status();
        if status.is_success() {
            let invalid = |why: &str| Failure::last(error("webhook_invalid_answer", format!("the webhook's answer {why}")));
            return match read(response, MAX_ANSWER).await.map_err(|error| self.unreachable(error))? {
                (_, Rest::More) => Err(invalid(&format!("has more than {MAX_ANSWER} bytes"))),
                (bytes, Rest::Nothing) if bytes.trim_ascii().is_empty() => Ok(Value::Null),
                (bytes, Rest::Nothing) => match serde_json::from_slice(&bytes) {
                    Ok(value) if limits::is_shallow(&value) => Ok(value),
                    Ok(_) => Err(invalid("nests too deep")),
                    Err(_) => Err(invalid("is no JSON")),
                },
            };
        }
        if status.is_redirection() {
            let message =
                format!("the webhook redirects ({}), which is not followed: its `url` must be where it is", status.as_u16());
            return Err(Failure::last(with_status(error("webhook_redirected", message), status)));
        }
        let retry_after = retry_after(response.headers(), SystemTime::now());
        // They are only words; without them, the status says enough.
        let words = read(response, MAX_REFUSAL).await.map(|(bytes, _)| bytes).unwrap_or_default();
        let words: String = String::from_utf8_lossy(&words).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let words = self.redactor.cut(words.trim(), MAX_REFUSAL_SHOWN);
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        let busy = matches!(status.as_u16(), 408 | 425 | 429 | 500..=599);
        let (code, verb) = if busy { ("webhook_failed", "fails") } else { ("webhook_refused", "refuses") };
        let error = with_status(error(code, format!("the webhook {verb} ({}){said}", status.as_u16())), status);
        Err(if busy { Failure::passing(error, retry_after) } else { Failure::last(error) })
    }
}

/// Whether a body has more than was read of it.
enum Rest {
    Nothing,
    More,
}

/// At most the first `max` bytes of a body.
async fn read(mut response: Response, max: usize) -> Result<(Vec<u8>, Rest), reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > max {
            bytes.truncate(max);
            return Ok((bytes, Rest::More));
        }
    }
    Ok((bytes, Rest::Nothing))
}

fn error(code: &str, message: impl Into<String>) -> ApiError {
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

/// The bytes to sign with: those of the base64 after `whsec_`, or those of the text.
///
/// # Errors
/// What follows `whsec_` is no base64.
pub fn key(secret: &Secret) -> Result<Vec<u8>, String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    match secret.expose().strip_prefix(SECRET_PREFIX) {
        None => Ok(secret.expose().as_bytes().to_vec()),
        Some(encoded) => match LENIENT.decode(encoded) {
            Ok(key) if !key.is_empty() => Ok(key),
            _ => Err(format!("its secret begins with `{SECRET_PREFIX}`, and what follows is no base64")),
        },
    }
}

/// The signature of a webhook: `v1,` and the base64 of the HMAC-SHA256 of `ID.TIMESTAMP.BODY`.
#[must_use]
pub fn sign(secret: &[u8], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    // HMAC pads a key with zeros to the size of a block, and takes the hash of one that is longer.
    let hash = Sha256::digest(secret);
    let mut block = [0_u8; 64];
    let key = if secret.len() > block.len() { hash.as_slice() } else { secret };
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    for part in [id.as_bytes(), b".", timestamp_s.to_string().as_bytes(), b".", body] {
        Mac::update(&mut mac, part);
    }
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}
