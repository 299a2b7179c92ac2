//! `[[action_hooks]]` and `[[webhooks]]`: webhooks of the operator.

use agent_host_protocol::ResultKind;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{name::is_name, secret::SecretRef};

/// Attempts of one call, whatever the configuration says.
const MAX_ACTION_ATTEMPTS: u32 = 20;
/// The most attempts that a configuration may allow.
const MAX_RESULT_ATTEMPTS: u32 = 100;
/// The longest time that a configuration may set, in ms.
pub(super) const MAX_TIMEOUT_MS: u64 = 10 * 60 * 1000;
/// The longest pause that a configuration may set: a day.
pub const MAX_PAUSE_MS: u64 = 24 * 60 * 60 * 1000;
/// The most events in one request.
const MAX_BATCH: usize = 1_000;
/// The most requests at one time.
const MAX_CONCURRENCY: usize = 256;

/// A webhook that carries out actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionHookConfig {
    /// The actions that it carries out: names, such as `message.edit`, or all that begin alike: `message.*`, `*`.
    pub actions: Vec<String>,
    /// Address of the webhook.
    pub url: String,
    /// Key of the signatures: `whsec_` and base64, as in Standard Webhooks, or any other text.
    pub secret: SecretRef,
    /// Time limit of one attempt, in ms.
    #[serde(default = "action_timeout_ms")]
    pub timeout_ms: u64,
    /// Largest number of attempts.
    #[serde(default = "action_max_attempts")]
    pub max_attempts: u32,
}

const fn action_timeout_ms() -> u64 {
    10_000
}

const fn action_max_attempts() -> u32 {
    5
}

impl ActionHookConfig {
    /// Checks the values. Reads no secret.
    ///
    /// # Errors
    /// A text for the operator that names the webhook and its fault.
    pub fn check(&self) -> Result<(), String> {
        self.address().map(drop)
    }

    /// The address of a valid webhook.
    ///
    /// # Errors
    /// As [`check`](Self::check) has them.
    pub fn address(&self) -> Result<Url, String> {
        let problem = |problem: String| format!("the action hook for {}: {problem}", self.label());
        if self.actions.is_empty() {
            return Err(problem("its `actions` are empty: name what it carries out".into()));
        }
        if let Some(action) = self.actions.iter().find(|action| {
            let name = action.strip_suffix('*').unwrap_or(action);
            action.is_empty() || name.contains('*') || name.chars().any(|c| c.is_whitespace() || c.is_control())
        }) {
            let action = action.escape_debug();
            return Err(problem(format!("`actions` has \"{action}\": name an action; `*` is allowed at the end")));
        }
        let url = address(&self.url).map_err(problem)?;
        if !(1..=MAX_TIMEOUT_MS).contains(&self.timeout_ms) {
            return Err(problem(format!("`timeout_ms` is from 1 to {MAX_TIMEOUT_MS}")));
        }
        if !(1..=MAX_ACTION_ATTEMPTS).contains(&self.max_attempts) {
            return Err(problem(format!("`max_attempts` is from 1 to {MAX_ACTION_ATTEMPTS}")));
        }
        Ok(url)
    }

    /// The actions, for messages.
    #[must_use]
    pub fn label(&self) -> String {
        self.actions.iter().map(|action| format!("`{}`", action.escape_debug())).collect::<Vec<_>>().join(", ")
    }
}

/// A webhook that receives results of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultHookConfig {
    /// Name for `deliver` of bindings: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// Address of the webhook.
    pub url: String,
    /// Key of the signatures: `whsec_` and base64, as in Standard Webhooks, or any other text.
    pub secret: SecretRef,
    /// Types of the results that it receives.
    #[serde(default = "events")]
    pub events: Vec<String>,
    /// Largest number of tries of one request, before the delivery is a dead letter.
    #[serde(default = "result_max_attempts")]
    pub max_attempts: u32,
    /// Time limit of one try, in ms.
    #[serde(default = "result_timeout_ms")]
    pub timeout_ms: u64,
    /// Pause before the second try, in ms. It doubles each time, with jitter.
    #[serde(default = "first_pause_ms")]
    pub first_pause_ms: u64,
    /// The longest pause that the host chooses by itself, in milliseconds.
    #[serde(default = "longest_pause_ms")]
    pub longest_pause_ms: u64,
    /// The most events in one request.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Largest number of concurrent requests. Requests of one run are sent one after the other.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
}

fn events() -> Vec<String> {
    let kinds = [
        ResultKind::MessageCompleted,
        ResultKind::RunCompleted,
        ResultKind::RunFailed,
        ResultKind::ActionRequested,
        ResultKind::ArtifactCreated,
    ];
    kinds.iter().map(|kind| kind.as_str().to_owned()).collect()
}

const fn result_max_attempts() -> u32 {
    12
}

const fn result_timeout_ms() -> u64 {
    10_000
}

const fn first_pause_ms() -> u64 {
    1_000
}

const fn longest_pause_ms() -> u64 {
    60 * 60 * 1000
}

const fn batch() -> usize {
    100
}

const fn concurrency() -> usize {
    32
}

impl ResultHookConfig {
    /// Checks the values. Reads no secret.
    ///
    /// # Errors
    /// A text for the operator that says the fault.
    pub fn check(&self) -> Result<(), String> {
        self.address().map(drop)
    }

    /// The address of a valid webhook.
    ///
    /// # Errors
    /// As [`check`](Self::check) has them.
    pub fn address(&self) -> Result<Url, String> {
        if !is_name(&self.name) {
            return Err("`name` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        if self.events.is_empty() {
            return Err("its `events` are empty: name the types of results that it receives".to_owned());
        }
        if let Some(event) = self.events.iter().find(|event| event.is_empty() || !event.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(format!("`events` has \"{}\": name a type, such as `message.completed`", event.escape_debug()));
        }
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{name}` is from {least} to {most}")) }
        };
        within("max_attempts", self.max_attempts.into(), 1, MAX_RESULT_ATTEMPTS.into())?;
        within("timeout_ms", self.timeout_ms, 1, MAX_TIMEOUT_MS)?;
        within("first_pause_ms", self.first_pause_ms, 1, MAX_PAUSE_MS)?;
        within("longest_pause_ms", self.longest_pause_ms, self.first_pause_ms, MAX_PAUSE_MS)?;
        within("batch", self.batch as u64, 1, MAX_BATCH as u64)?;
        within("concurrency", self.concurrency as u64, 1, MAX_CONCURRENCY as u64)?;
        address(&self.url)
    }
}

/// The address of a webhook, as the operator wrote it.
fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("its `url` cannot be read: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("its `url` must begin with http:// or https://".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("its `url` has a password: requests are signed with `secret` instead".into());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Result<ResultHookConfig, String> {
        let text = format!("name = \"crm\"\nurl = \"https://crm.example/hook\"\nsecret = {{ env = \"CRM\" }}\n{more}");
        let config: ResultHookConfig = toml::from_str(&text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn invalid_values_are_named() {
        assert_eq!(config("").unwrap().max_attempts, 12);
        for (more, says) in [
            ("events = []", "events"),
            ("events = [\"\"]", "events"),
            ("max_attempts = 0", "max_attempts"),
            ("timeout_ms = 0", "timeout_ms"),
            ("first_pause_ms = 0", "first_pause_ms"),
            ("longest_pause_ms = 999", "longest_pause_ms"),
            ("batch = 0", "batch"),
            ("concurrency = 1000", "concurrency"),
            ("colour = 1", "colour"),
        ] {
            let error = config(more).expect_err(more);
            assert!(error.contains(says), "{more}: {error}");
        }
    }
}
