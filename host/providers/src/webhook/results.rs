//! Webhooks that receive the results of runs.

use std::{sync::Arc, time::Duration};

use agent_host_config::{MAX_PAUSE_MS, ResultHookConfig};
use bytes::Bytes;

use super::send::{self, Failure, Message, Sender};

/// Bytes of an answer that are read, so that the connection can be reused. The content is ignored.
const MAX_ANSWER: usize = 16 << 10;

/// The webhooks that receive the results of runs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ResultHooks(Arc<[Arc<ResultHook>]>);

/// A webhook.
#[derive(Debug)]
pub struct ResultHook {
    /// As it was configured.
    pub config: ResultHookConfig,
    sender: Sender,
    problem: Option<String>,
}

/// The reason why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotDelivered {
    /// In words, without secrets.
    pub reason: String,
    /// The service is gone for good (410), and says so.
    pub is_gone: bool,
    /// Retry time, if the service names one.
    pub retry_after: Option<Duration>,
}

impl ResultHooks {
    /// The webhooks of the configuration. A secret that cannot be read is a [problem](Self::problems) and no error.
    ///
    /// # Errors
    /// Fails with the problem of the configuration.
    pub fn open(hooks: &[ResultHookConfig]) -> Result<Self, String> {
        let http = send::client()?;
        let opened = hooks.iter().map(|config| {
            let url = config.address().map_err(|problem| format!("webhook `{}`: {problem}", config.name))?;
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

    /// Problems for the operator: secrets that cannot be read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let problem = |hook: &Arc<ResultHook>| {
            let problem = hook.problem.as_ref()?;
            Some(format!("webhook `{}` cannot sign its deliveries, which wait until it can: {problem}", hook.config.name))
        };
        self.0.iter().filter_map(problem).collect()
    }
}

impl ResultHook {
    /// True if the secret of signatures is available. Without it, no request is sent.
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
            is_gone: failure.status.is_some_and(|status| status.as_u16() == 410),
            retry_after: failure.retry_after,
        })
    }

    /// The pause after this many failed attempts.
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
