//! Tokens of identity providers: each names an end user (`[[identity_providers]]`).
//!
//! A token is good if a provider of the configuration has signed it for this host and its time has not passed. Its request is
//! one of the user that it names, with the scopes of the configuration. The keys of a provider are fetched by [`cache`]; a request
//! waits for them only where none in memory answers it.

mod cache;
mod keys;
mod token;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use agent_host_config::Config;
use agent_host_protocol::{
    Principal, PrincipalKind, Timestamp,
    auth::{EXECUTOR_PREFIX, KEY_PREFIX, LEASE_PREFIX, MCP_PREFIX, provider_user},
    time,
};
use agent_host_runs::{Host, IdentityProviderConfig};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use self::{
    cache::{KeyCache, Lookup, NoKeys},
    keys::{KeyName, KeySet},
    token::{Claims, Token},
};
use crate::{
    app::App,
    http::{Problem, ProblemCode},
};

/// The identity providers of the configuration, with their keys. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Identities(Arc<Mutex<Configured>>);

/// The providers of one configuration.
#[derive(Default)]
struct Configured {
    config: Option<Arc<Config>>,
    providers: Vec<Arc<Provider>>,
}

struct Provider {
    config: Arc<IdentityProviderConfig>,
    cache: Arc<KeyCache>,
}

/// The judgement of a token.
pub(crate) enum Verdict {
    /// No wait was needed.
    Ready(Judgement),
    /// The keys of the provider are being fetched.
    Waiting(BoxFuture<'static, Judgement>),
}

/// The user of a good token, or the refusal.
pub(crate) type Judgement = Result<TokenUser, Problem>;

/// The user that a token names.
pub(crate) struct TokenUser {
    pub(crate) principal: Principal,
    pub(crate) validity: TokenValidity,
}

/// The time that a token is good for: until it expires, or until a reload changes or removes its provider.
#[derive(Clone)]
pub(crate) struct TokenValidity {
    host: Host,
    provider: Arc<IdentityProviderConfig>,
    ends_at: Timestamp,
}

/// The issuer that a token names. The token counts for nothing before it is judged.
pub(crate) fn issuer_of(token: &str) -> Option<String> {
    if !Token::has_form(token) {
        return None;
    }
    Token::parse(token).ok()?.issuer().map(ToOwned::to_owned)
}

impl Identities {
    /// Judges a text that has the form of a token of an identity provider, and is no token of another kind.
    pub(crate) fn judge(&self, app: &App, text: &str) -> Option<Verdict> {
        let is_ours = [KEY_PREFIX, EXECUTOR_PREFIX, LEASE_PREFIX, MCP_PREFIX].iter().any(|prefix| text.starts_with(prefix));
        if is_ours || !Token::has_form(text) || app.host.principal_of(text).is_ok() {
            return None;
        }
        Some(self.judged(app, text).unwrap_or_else(|problem| Verdict::Ready(Err(problem))))
    }

    fn judged(&self, app: &App, text: &str) -> Result<Verdict, Problem> {
        let providers = self.providers(&app.host);
        let longest = providers.iter().map(|provider| provider.config.token_bytes).max().unwrap_or_default();
        let too_long = |limit: usize| {
            let length = text.len();
            let detail =
                format!("the token has {length} bytes, and {limit} are taken (`token_bytes`): get one with fewer claims");
            Problem::invalid_token(detail)
        };
        // Nothing of a longer text is read.
        if text.len() > longest && !providers.is_empty() {
            return Err(too_long(longest));
        }
        let provider = if providers.is_empty() { None } else { Some(Token::parse(text).map_err(Problem::invalid_token)?) };
        let provider = provider.and_then(|token| {
            let issuer = token.issuer()?.to_owned();
            providers.into_iter().find(|provider| provider.config.issuer == issuer).map(|provider| (provider, token))
        });
        let Some((provider, token)) = provider else {
            return Err(Problem::invalid_token(
                "no identity provider of this host has issued the token (`iss`): sign in at one that `[[identity_providers]]` names, \
                 or send a key",
            ));
        };
        if text.len() > provider.config.token_bytes {
            return Err(too_long(provider.config.token_bytes));
        }
        let name = token.key_name(&provider.config).map_err(Problem::invalid_token)?;
        let claims = token.claims(&provider.config, time::wall()).map_err(Problem::invalid_token)?;
        match provider.cache.look_up(&name) {
            Lookup::Keys(keys) => Ok(Verdict::Ready(provider.verified(&app.host, &token, &name, claims, &keys))),
            Lookup::Unknown => Err(provider.without_keys(NoKeys::Unknown)),
            Lookup::Away(pause) => Err(provider.without_keys(NoKeys::Away(pause))),
            Lookup::Wait(_) => {
                let (app, text) = (app.clone(), text.to_owned());
                Ok(Verdict::Waiting(Box::pin(async move {
                    let keys = Arc::clone(&provider.cache).wait(&name, &app.closing).await;
                    let keys = keys.map_err(|reason| provider.without_keys(reason))?;
                    let token = Token::parse(&text).map_err(Problem::invalid_token)?;
                    let claims = token.claims(&provider.config, time::wall()).map_err(Problem::invalid_token)?;
                    provider.verified(&app.host, &token, &name, claims, &keys)
                })))
            }
        }
    }

    /// The providers of the present configuration. A provider that a reload has not changed keeps its keys.
    fn providers(&self, host: &Host) -> Vec<Arc<Provider>> {
        let mut configured = self.0.lock();
        let config = host.config();
        if !configured.config.as_ref().is_some_and(|known| Arc::ptr_eq(known, &config)) {
            let providers = config.identity_providers.iter().map(|provider| {
                let same = configured.providers.iter().find(|known| *known.config == *provider);
                same.map_or_else(|| Arc::new(Provider::new(provider)), Arc::clone)
            });
            configured.providers = providers.collect();
            configured.config = Some(config);
        }
        configured.providers.clone()
    }
}

/// The sender of a request with a token of this provider.
fn principal(config: &IdentityProviderConfig, user: String) -> Principal {
    Principal {
        kind: PrincipalKind::IdentityProvider(config.name.clone()),
        end_user: Some(provider_user(&config.name, &user)),
        name: user,
        scopes: config.scopes.iter().copied().collect::<BTreeSet<_>>(),
        workspace: Some(config.workspace.clone()),
    }
}

impl TokenUser {
    /// The user whom a token of a provider of this name and issuer has named, until the end of that token; `None` once it has
    /// ended, or where the configuration has no such provider.
    pub(crate) fn known(host: &Host, name: &str, issuer: &str, user: &str, ends_at: Timestamp) -> Option<Self> {
        let config = host.config();
        let provider = config.identity_providers.iter().find(|provider| provider.name == name && provider.issuer == issuer)?;
        let validity = TokenValidity { host: host.clone(), provider: Arc::new(provider.clone()), ends_at };
        (time::wall() < ends_at).then(|| Self { principal: principal(provider, user.to_owned()), validity })
    }
}

impl Provider {
    fn new(config: &IdentityProviderConfig) -> Self {
        Self { cache: KeyCache::new(config), config: Arc::new(config.clone()) }
    }

    /// The user of a token whose claims are judged, once its signature is verified.
    fn verified(&self, host: &Host, token: &Token<'_>, name: &KeyName, claims: Claims, keys: &KeySet) -> Judgement {
        token.verify(name, keys).map_err(Problem::invalid_token)?;
        let Claims { user, ends_at } = claims;
        let config = &self.config;
        let principal = principal(config, user);
        let validity = TokenValidity { host: host.clone(), provider: Arc::clone(config), ends_at };
        // A reload while the keys were fetched.
        if !validity.is_configured() {
            return Err(validity.over());
        }
        Ok(TokenUser { principal, validity })
    }

    fn without_keys(&self, reason: NoKeys) -> Problem {
        let name = &self.config.name;
        match reason {
            NoKeys::Unknown => Problem::invalid_token(format!(
                "`{name}` has published no key of the name (`kid`) and the algorithm that the token has: get another token"
            )),
            NoKeys::Away(pause) => Problem::new(
                ProblemCode::Unavailable,
                format!(
                    "the keys of the identity provider `{name}` cannot be had now: come back in a moment; the log has the reason"
                ),
            )
            .retry_after(pause),
            NoKeys::Crowd => Problem::new(
                ProblemCode::Unavailable,
                format!("too many requests wait for the keys of the identity provider `{name}`: come back in a moment"),
            ),
            NoKeys::Closing => Problem::new(ProblemCode::ShuttingDown, "the host is shutting down"),
        }
    }
}

impl TokenValidity {
    /// The issuer of the token.
    pub(crate) fn issuer(&self) -> &str {
        &self.provider.issuer
    }

    /// The end of the token, leeway included.
    pub(crate) const fn ends_at(&self) -> Timestamp {
        self.ends_at
    }

    fn is_configured(&self) -> bool {
        self.host.config().identity_providers.iter().any(|provider| *provider == *self.provider)
    }

    /// Waits for its end.
    pub(crate) async fn ended(self) {
        let mut reloads = self.host.reloaded();
        loop {
            reloads.mark_unchanged();
            let left = self.ends_at.saturating_sub(time::wall());
            if left == 0 || !self.is_configured() {
                return;
            }
            tokio::select! {
                // An error is the end of the host.
                changed = reloads.changed() => if changed.is_err() { return },
                // The clock may be set while this waits.
                () = tokio::time::sleep(Duration::from_millis(left.min(60_000))) => {}
            }
        }
    }

    /// The refusal of a request after its token.
    pub(crate) fn over(&self) -> Problem {
        let detail = if self.is_configured() {
            format!("the token has expired (`exp`): get another from `{}`", self.provider.name)
        } else {
            format!("a reload has changed or removed the identity provider `{}`: get another token", self.provider.name)
        };
        Problem::invalid_token(detail)
    }
}
