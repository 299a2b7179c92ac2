//! Webhooks that are told what runs have done.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::ResultKind;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use url::Url;

use super::send::{self, Failure, MAX_TIMEOUT_MS, Message, Sender};
use crate::secret::SecretRef;

/// The most attempts that a configuration may allow.
const MAX_ATTEMPTS: u32 = 100;
/// The longest pause that a configuration may set: a day.
const MAX_PAUSE_MS: u64 = 24 * 60 * 60 * 1000;
/// The most events in one request.
const MAX_BATCH: usize = 1_000;
/// The most requests at one time.
const MAX_CONCURRENCY: usize = 256;
/// Of an answer, this much is read, so that the connection can be used again. Nobody looks into it.
const MAX_ANSWER: usize = 16 << 10;

/// A webhook that is told what runs have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultHookConfig {
    /// What `deliver` of a binding names: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// What requests are signed with: `whsec_` and base64, as Standard Webhooks has it, or any other text.
    pub secret: SecretRef,
    /// Types of the results that it is told of.
    #[serde(default = "events")]
    pub events: Vec<String>,
    /// How often one request is sent at most, before it is a dead letter.
    #[serde(default = "max_attempts")]
    pub max_attempts: u32,
    /// How long one attempt may take, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Pause before a request is sent again, in milliseconds. It doubles each time, with jitter.
    #[serde(default = "first_pause_ms")]
    pub first_pause_ms: u64,
    /// The longest pause that the host chooses by itself, in milliseconds.
    #[serde(default = "longest_pause_ms")]
    pub longest_pause_ms: u64,
    /// The most events in one request.
    #[serde(default = "batch")]
    pub batch: usize,
    /// The most requests at one time. Those of one run come one after the other.
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

const fn max_attempts() -> u32 {
    12
}

const fn timeout_ms() -> u64 {
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
    /// Whether it can be used at all. It reads no secret.
    ///
    /// # Errors
    /// What is wrong, for the person who wrote the file.
    pub fn check(&self) -> Result<(), String> {
        self.parse().map(|_| ())
    }

    fn parse(&self) -> Result<Url, String> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(named) {
            return Err("`name` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        if self.events.is_empty() {
            return Err("its `events` are empty: name the types of results that it is told of".to_owned());
        }
        if let Some(event) = self.events.iter().find(|event| event.is_empty() || !event.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(format!("`events` has \"{}\": name a type, such as `message.completed`", event.escape_debug()));
        }
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{name}` is from {least} to {most}")) }
        };
        within("max_attempts", self.max_attempts.into(), 1, MAX_ATTEMPTS.into())?;
        within("timeout_ms", self.timeout_ms, 1, MAX_TIMEOUT_MS)?;
        within("first_pause_ms", self.first_pause_ms, 1, MAX_PAUSE_MS)?;
        within("longest_pause_ms", self.longest_pause_ms, self.first_pause_ms, MAX_PAUSE_MS)?;
        within("batch", self.batch as u64, 1, MAX_BATCH as u64)?;
        within("concurrency", self.concurrency as u64, 1, MAX_CONCURRENCY as u64)?;
        send::url(&self.url)
    }
}

/// The webhooks that are told what runs have done. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ResultHooks(Arc<[Arc<ResultHook>]>);

/// One of them.
#[derive(Debug)]
pub struct ResultHook {
    /// As it was configured.
    pub config: ResultHookConfig,
    sender: Sender,
    problem: Option<String>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotDelivered {
    /// In words, without secrets.
    pub reason: String,
    /// The service is gone for good (410), and says so.
    pub gone: bool,
    /// When the service wants to be asked again, where it says so.
    pub retry_after: Option<Duration>,
}

impl ResultHooks {
    /// The webhooks of the configuration. A secret that cannot be read is a [problem](Self::problems) and no error.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn open(hooks: &[ResultHookConfig]) -> Result<Self, String> {
        let http = send::client()?;
        let opened = hooks.iter().map(|config| {
            let url = config.parse().map_err(|problem| format!("webhook `{}`: {problem}", config.name))?;
            let (sender, problem) = Sender::new(http.clone(), url, &config.secret, Duration::from_millis(config.timeout_ms));
            Ok(Arc::new(ResultHook { config: config.clone(), sender, problem }))
        });
        Ok(Self(opened.collect::<Result<_, String>>()?))
    }

    /// The one with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<ResultHook>> {
        self.0.iter().find(|hook| hook.config.name == name)
    }

    /// What the operator should know: secrets that cannot be read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let problem = |hook: &Arc<ResultHook>| {
            let problem = hook.problem.as_ref()?;
            Some(format!("webhook `{}` cannot sign, and what is for it waits: {problem}", hook.config.name))
        };
        self.0.iter().filter_map(problem).collect()
    }
}

impl ResultHook {
    /// Whether there is something to sign with. Without it, nothing is sent.
    #[must_use]
    pub const fn can_sign(&self) -> bool {
        self.sender.can_sign()
    }

    /// Sends one request, once. `id` names it: a service that has seen it does nothing again.
    ///
    /// # Errors
    /// The service does not say that it has taken it (2xx).
    pub async fn send(&self, id: &str, body: Bytes) -> Result<(), NotDelivered> {
        let sent = match Message::new(id, body) {
            Ok(message) => self.sender.send(&message, None, MAX_ANSWER).await,
            Err(error) => Err(Failure::last(error)),
        };
        sent.map(drop).map_err(|failure| NotDelivered {
            reason: self.sender.redactor.error(failure.error).message,
            gone: failure.status.is_some_and(|status| status.as_u16() == 410),
            retry_after: failure.retry_after,
        })
    }

    /// How long to wait after so many attempts that failed.
    #[must_use]
    pub fn pause(&self, attempts: u32, retry_after: Option<Duration>) -> Duration {
        let config = &self.config;
        let (first, longest) = (Duration::from_millis(config.first_pause_ms), Duration::from_millis(config.longest_pause_ms));
        let nth = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
        let pause = send::pauses(first, longest).nth(nth).unwrap_or(longest);
        // A service may ask for more than the operator would wait, but not for ever.
        send::pause_after(pause, retry_after).min(Duration::from_millis(MAX_PAUSE_MS))
    }
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
    fn what_cannot_be_is_named() {
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

    #[test]
    fn pauses_grow_up_to_the_longest_and_a_service_may_ask_for_more() {
        let config = config("first_pause_ms = 100\nlongest_pause_ms = 1000").unwrap();
        let hook = &ResultHooks::open(&[config]).unwrap();
        let hook = hook.get("crm").unwrap();
        let ms = |attempts, after| hook.pause(attempts, after).as_millis();
        for (attempts, least) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (100, 1000)] {
            let pause = ms(attempts, None);
            assert!((least..=2 * least).contains(&pause), "{attempts}: {pause}");
        }
        let asked = ms(1, Some(Duration::from_secs(30)));
        assert!((30_000..=33_000).contains(&asked), "{asked}");
        assert_eq!(ms(1, Some(Duration::MAX)), u128::from(MAX_PAUSE_MS));
    }
}
