//! Webhooks of the operator: what a run may not do by itself is done by a service that the operator names, and that can be
//! sure who asks.
//!
//! Requests follow [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id`, `webhook-timestamp`, and
//! `webhook-signature` with the HMAC-SHA256 of `ID.TIMESTAMP.BODY`. The body is
//! `{"type": "action.execute", "timestamp": "...", "data": ...}`. A request that was perhaps not heard is sent again, with
//! the same `webhook-id` (and the same `Idempotency-Key`) and the same body, so a service that remembers ids does nothing
//! twice.
//!
//! The configuration of the operator is trusted: its address is not checked, and neither redirects nor proxies are
//! followed.
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
//! The outcome of a call that failed with one of the last four is unknown: the service may have executed it, and its answer
//! was lost.

mod results;
mod send;
mod sign;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use agent_host_config::{ActionHookConfig, ResultHookConfig};
use agent_host_protocol::{ApiError, limits, time};
use serde_json::{Value, json};

use self::send::{Answer, Failure, MAX_ID, Message, Sender, error};
pub use self::{
    results::{NotDelivered, ResultHook, ResultHooks},
    sign::{key, sign, verify, verify_bytes},
};
use crate::redact::cut;

/// First pause before a request is sent again; it doubles each time, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause that the host chooses by itself.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest answer: it becomes a part of the run.
const MAX_ANSWER: usize = 256 << 10;

/// The webhooks that carry out actions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ActionHooks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hooks: Vec<Hook>,
    problems: Vec<String>,
}

#[derive(Debug)]
struct Hook {
    actions: Vec<String>,
    sender: Sender,
    attempts: u32,
}

impl ActionHooks {
    /// The webhooks of the configuration. A secret that cannot be read is a [problem](Self::problems) and no error: only
    /// the calls that need it fail.
    ///
    /// # Errors
    /// Fails with the problem of the configuration.
    pub fn open(hooks: &[ActionHookConfig]) -> Result<Self, String> {
        let http = send::client()?;
        let (mut opened, mut problems) = (Vec::new(), Vec::new());
        for config in hooks {
            let timeout = Duration::from_millis(config.timeout_ms);
            let (sender, problem) = Sender::new(http.clone(), config.address()?, &config.secret, timeout);
            problems.extend(problem.map(|problem| format!("the action hook for {} cannot sign: {problem}", config.label())));
            opened.push(Hook { actions: config.actions.clone(), sender, attempts: config.max_attempts });
        }
        Ok(Self(Arc::new(Inner { hooks: opened, problems })))
    }

    /// Problems for the operator: secrets that cannot be read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.0.problems.clone()
    }

    /// True if an action has a webhook.
    #[must_use]
    pub fn has(&self, action: &str) -> bool {
        self.0.hook(action).is_some()
    }

    /// Has an action carried out by the first webhook that names it. `id` names this delivery: a service that has seen it
    /// does nothing again, so the same `id` is safe after a crash too. The answer is what the service says, or null.
    ///
    /// # Errors
    /// Fails as the table of the [module](self) says.
    pub async fn call(&self, action: &str, id: &str, body: &Value, deadline: Instant) -> Result<Value, ApiError> {
        let Some(hook) = self.0.hook(action) else {
            let action = cut(action, MAX_ID);
            return Err(error(
                "no_action_hook",
                format!("no webhook carries out `{action}`: name it in the `actions` of an [[action_hooks]] of agent-host.toml"),
            ));
        };
        let body = json!({ "type": "action.execute", "timestamp": time::display(time::now()), "data": body });
        let message = Message::new(id, body.to_string().into())?;
        hook.deliver(&message, deadline).await.map_err(|error| hook.sender.redactor.error(error))
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

impl Hook {
    async fn deliver(&self, message: &Message, deadline: Instant) -> Result<Value, ApiError> {
        let mut pauses =
            send::pauses(FIRST_PAUSE, LONGEST_PAUSE).take(usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(usize::MAX));
        let redactor = &self.sender.redactor;
        loop {
            let sent = self.sender.send(message, Some(deadline), MAX_ANSWER).await;
            let failure = match sent.and_then(|answer| read_answer(&answer)) {
                Ok(answer) => return Ok(redactor.value(answer)),
                Err(failure) => failure,
            };
            let Some(pause) = pauses.next().filter(|_| failure.retry) else { return Err(failure.error) };
            let pause = send::pause_after(pause, failure.retry_after);
            if deadline.saturating_duration_since(Instant::now()) <= pause {
                return Err(failure.error);
            }
            let reason = failure.error.category();
            tracing::debug!(id = message.id, reason, pause_ms = pause.as_millis(), "calling the webhook again");
            tokio::time::sleep(pause).await;
        }
    }
}

/// The answer of the service about an executed action.
fn read_answer(answer: &Answer) -> Result<Value, Failure> {
    let invalid = |why: &str| Failure::last(error("webhook_invalid_answer", format!("the webhook's answer {why}")));
    if !answer.whole {
        return Err(invalid(&format!("has more than {MAX_ANSWER} bytes")));
    }
    if answer.bytes.trim_ascii().is_empty() {
        return Ok(Value::Null);
    }
    match serde_json::from_slice(&answer.bytes) {
        Ok(value) if limits::is_shallow(&value) => Ok(value),
        Ok(_) => Err(invalid("nests too deep")),
        Err(_) => Err(invalid("is no JSON")),
    }
}
