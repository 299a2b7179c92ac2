//! The secrets that the host puts into headers.

use agent_host_config::HttpSecretConfig;
use std::{collections::BTreeSet, sync::Arc};

use agent_host_protocol::{ApiError, hosts::HostPattern};
use http::HeaderValue;
use parking_lot::Mutex;

use super::{AllowedTargets, failure::Category};
use crate::{
    redact::stream::{Cleaner, Forms, MIN_SECRET},
    secret::Secret,
};

/// Beginning of a placeholder.
const OPEN: &[u8] = b"{{secret:";
const CLOSE: &[u8] = b"}}";
/// The longest secret: what servers take in one header.
const MAX_SECRET: usize = 8 << 10;
/// Number of cached searches. There is one for each set of secrets that were sent together, which are few.
const MAX_CLEANERS: usize = 64;

/// Secrets by name. A number in [`SentSecrets`] is a place in here.
#[derive(Debug)]
pub(super) struct Secrets {
    secrets: Vec<HttpSecret>,
    cleaners: Mutex<Vec<(SentSecrets, Arc<Cleaner>)>>,
    pub(super) problems: Vec<String>,
}

/// The secrets in a request.
pub(super) type SentSecrets = BTreeSet<usize>;

#[derive(Debug)]
struct HttpSecret {
    name: String,
    hosts: Vec<HostPattern>,
    value: Option<Value>,
}

struct Value {
    secret: Secret,
    forms: Forms,
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Value(..)")
    }
}

impl Secrets {
    pub(super) fn open(configs: &[HttpSecretConfig]) -> Result<Self, String> {
        let (mut secrets, mut problems) = (Vec::<HttpSecret>::new(), Vec::new());
        for config in configs {
            let (name, hosts) = (config.name.clone(), config.patterns()?);
            if secrets.iter().any(|secret| secret.name == name) {
                return Err(format!("there are two HTTP secrets `{name}`"));
            }
            let value = match Secret::read(&config.value) {
                Err(error) => Err(error.to_string()),
                Ok(secret) => problem(&secret).map_or(Ok(secret), Err),
            };
            let value = match value {
                Ok(secret) => Some(Value { forms: Forms::new(&name, secret.expose()), secret }),
                Err(problem) => {
                    problems.push(format!("the HTTP secret `{name}` cannot be used: {problem}"));
                    None
                }
            };
            secrets.push(HttpSecret { name, hosts, value });
        }
        Ok(Self { secrets, cleaners: Mutex::default(), problems })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.secrets.iter().map(|secret| secret.name.clone()).collect()
    }

    /// The value of a header with secrets in the place of their placeholders; which they are is added to `sent`.
    ///
    /// # Errors
    /// Fails if a secret is not granted, may not go to this host, or does not exist.
    pub(super) fn fill(
        &self,
        value: &[u8],
        host: &str,
        port: u16,
        allowed: AllowedTargets<'_>,
        sent: &mut SentSecrets,
    ) -> Result<HeaderValue, ApiError> {
        let (mut filled, mut rest, mut sensitive) = (Vec::with_capacity(value.len()), value, false);
        while let Some((before, after)) = split(rest, OPEN) {
            let Some((name, after)) = split(after, CLOSE) else {
                return Err(Category::InvalidRequest.error("a `{{secret:` in a header has no `}}`"));
            };
            let (number, secret) = self.judge(name, host, port, allowed)?;
            filled.extend_from_slice(before);
            filled.extend_from_slice(secret.expose().as_bytes());
            sent.insert(number);
            (rest, sensitive) = (after, true);
        }
        filled.extend_from_slice(rest);
        let mut value = HeaderValue::from_bytes(&filled)
            .map_err(|_| Category::InvalidRequest.error("the value of a header has control characters, such as line breaks"))?;
        value.set_sensitive(sensitive);
        Ok(value)
    }

    fn judge(&self, name: &[u8], host: &str, port: u16, allowed: AllowedTargets<'_>) -> Result<(usize, &Secret), ApiError> {
        let Some(name) = allowed.secrets.iter().find(|granted| granted.as_bytes() == name) else {
            let name = String::from_utf8_lossy(name);
            let name: String = name.chars().take(64).filter(|c| !c.is_control()).collect();
            return Err(Category::SecretNotGranted
                .error(format!("the secret `{name}` is not granted to this run: the binding must name it in `http_secrets`")));
        };
        let missing = || {
            Category::SecretMissing.error(format!(
                "the secret `{name}` is not available: the operator must check `[[http_secrets]]` (GET /readyz has the problem)"
            ))
        };
        let found = self.secrets.iter().enumerate().find(|(_, secret)| secret.name == *name);
        let (number, secret) = found.ok_or_else(missing)?;
        if !secret.hosts.iter().any(|pattern| pattern.matches(host, port)) {
            return Err(Category::SecretNotForHost.error(format!("the secret `{name}` may not go to {host}:{port}")));
        }
        let value = secret.value.as_ref().ok_or_else(missing)?;
        Ok((number, &value.secret))
    }

    /// The secrets that a server may know because requests to it may have them.
    pub(super) fn known_to(&self, host: &str, port: u16) -> SentSecrets {
        let known =
            |secret: &HttpSecret| secret.value.is_some() && secret.hosts.iter().any(|pattern| pattern.matches(host, port));
        self.secrets.iter().enumerate().filter(|(_, secret)| known(secret)).map(|(number, _)| number).collect()
    }

    /// The filter that removes these secrets from a response; `None` without secrets.
    pub(super) fn cleaner(&self, sent: SentSecrets) -> Result<Option<Arc<Cleaner>>, ApiError> {
        if sent.is_empty() {
            return Ok(None);
        }
        if let Some((_, cleaner)) = self.cleaners.lock().iter().find(|(of, _)| *of == sent) {
            return Ok(Some(Arc::clone(cleaner)));
        }
        let forms = sent.iter().filter_map(|number| self.secrets.get(*number)?.value.as_ref()).map(|value| &value.forms);
        let cleaner = Cleaner::new(forms).map_err(|problem| Category::SecretMissing.error(problem))?;
        let cleaner = Arc::new(cleaner);
        let mut cleaners = self.cleaners.lock();
        if cleaners.len() < MAX_CLEANERS {
            cleaners.push((sent, Arc::clone(&cleaner)));
        }
        Ok(Some(cleaner))
    }
}

/// The reason why a secret cannot be sent, or not be found in a response.
fn problem(secret: &Secret) -> Option<String> {
    let text = secret.expose();
    if text.len() < MIN_SECRET {
        Some(format!("it has fewer than {MIN_SECRET} bytes, so it could not be distinguished from other text in a response"))
    } else if text.len() > MAX_SECRET {
        Some(format!("it has more than {MAX_SECRET} bytes"))
    } else if HeaderValue::from_str(text).is_err() {
        Some("it has characters that no HTTP header may have".into())
    } else {
        None
    }
}

/// True if a value names a secret.
pub(super) fn has_placeholder(value: &[u8]) -> bool {
    split(value, OPEN).is_some()
}

/// The parts before and after the first `separator`.
fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(separator.len()).position(|window| window == separator)?;
    Some((bytes.get(..at)?, bytes.get(at + separator.len()..)?))
}
