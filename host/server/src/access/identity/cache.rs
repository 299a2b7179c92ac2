//! The key set of one provider in memory, and its fetches.
//!
//! - One fetch runs at a time, in a task of its own: requests that wait share it, and none that goes away stops it.
//! - Between two fetches `refetch_ms` pass, whatever tokens name.
//! - A set is fetched again in the second half of `refresh_ms` while it is used, without a request that waits. Once `refresh_ms`
//!   is over, requests wait for the next set, unless the last fetch has failed: the old one is used for `stale_ms` more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_runs::{IdentityProviderConfig, key_set::KeySetSource};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::keys::{KeyName, KeySet};

/// Requests that wait for one fetch. Each is an open connection.
const MAX_WAITERS: usize = 256;
/// A provider counts as away for so long after a failed fetch. A host without requests fetches nothing, and the first request
/// after that waits for what holds now.
const AWAY: Duration = Duration::from_secs(120);
/// Fetches that one request waits for: the one under way may have begun before its key was published.
const MAX_FETCHES: usize = 2;

/// The key set of a provider.
pub(super) struct KeyCache {
    provider: String,
    source: KeySetSource,
    refetch: Duration,
    refresh: Duration,
    stale: Duration,
    state: Mutex<State>,
    waiters: Semaphore,
}

#[derive(Default)]
struct State {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// The beginning or the end of the last fetch.
    attempted: Option<Instant>,
    /// True if the last fetch failed.
    is_failing: bool,
    /// The fetch that runs; fires when it has ended.
    fetch: Option<CancellationToken>,
}

/// The answer to the question for a key.
pub(super) enum Lookup {
    /// The set has it.
    Keys(Arc<KeySet>),
    /// A fetch may bring it.
    Wait(CancellationToken),
    /// The set that the provider has published does not have it.
    Unknown,
    /// The provider is away, so its keys are not known. Another fetch is possible after this time.
    Away(Duration),
}

/// The reason why no key was looked up.
pub(super) enum NoKeys {
    /// The set does not have the key.
    Unknown,
    /// The provider is away.
    Away(Duration),
    /// As many requests wait as may.
    Crowd,
    /// The host is going down.
    Closing,
}

impl KeyCache {
    pub(super) fn new(config: &IdentityProviderConfig) -> Arc<Self> {
        Arc::new(Self {
            provider: config.name.clone(),
            source: KeySetSource::new(config),
            refetch: Duration::from_millis(config.refetch_ms),
            refresh: Duration::from_millis(config.refresh_ms),
            stale: Duration::from_millis(config.stale_ms),
            state: Mutex::default(),
            waiters: Semaphore::new(MAX_WAITERS),
        })
    }

    /// Looks a key up, and begins a fetch where one is due.
    pub(super) fn look_up(self: &Arc<Self>, name: &KeyName) -> Lookup {
        let mut state = self.state.lock();
        let now = Instant::now();
        let since = |at: Instant| now.saturating_duration_since(at);
        let usable = state.keys.clone().map(|(keys, at)| (keys, since(at)));
        let usable = usable.filter(|(_, age)| *age < self.refresh.saturating_add(self.stale));
        let pause = state.attempted.map_or(Duration::ZERO, |at| self.refetch.saturating_sub(since(at)));
        let is_away = state.is_failing && state.attempted.is_some_and(|at| since(at) < AWAY);
        let fetch = state.fetch.clone().filter(|fetch| !fetch.is_cancelled());
        let known = usable.as_ref().filter(|(keys, _)| !keys.find(name).is_empty());
        if let Some((keys, age)) = known
            && (*age < self.refresh || is_away)
        {
            if *age >= self.refresh / 2 && fetch.is_none() && pause.is_zero() {
                self.fetch(&mut state, now);
            }
            return Lookup::Keys(Arc::clone(keys));
        }
        match (fetch, known) {
            (Some(fetch), _) => Lookup::Wait(fetch),
            (None, _) if pause.is_zero() => Lookup::Wait(self.fetch(&mut state, now)),
            (None, Some((keys, _))) => Lookup::Keys(Arc::clone(keys)),
            (None, None) if usable.is_none() || is_away => Lookup::Away(pause),
            (None, None) => Lookup::Unknown,
        }
    }

    /// The set with a key, after the fetches that may bring it.
    pub(super) async fn wait(self: Arc<Self>, name: &KeyName, closing: &CancellationToken) -> Result<Arc<KeySet>, NoKeys> {
        let Ok(_waiter) = self.waiters.try_acquire() else { return Err(NoKeys::Crowd) };
        for _ in 0..=MAX_FETCHES {
            match self.look_up(name) {
                Lookup::Keys(keys) => return Ok(keys),
                Lookup::Unknown => return Err(NoKeys::Unknown),
                Lookup::Away(pause) => return Err(NoKeys::Away(pause)),
                Lookup::Wait(fetch) => tokio::select! {
                    () = fetch.cancelled() => {}
                    () = closing.cancelled() => return Err(NoKeys::Closing),
                },
            }
        }
        Err(NoKeys::Away(self.refetch))
    }

    /// Begins a fetch, which goes on if all requests that wait for it leave.
    fn fetch(self: &Arc<Self>, state: &mut State, now: Instant) -> CancellationToken {
        let fetch = CancellationToken::new();
        state.fetch = Some(fetch.clone());
        state.attempted = Some(now);
        let (cache, ended) = (Arc::clone(self), fetch.clone().drop_guard());
        tokio::spawn(async move {
            let fetched = match cache.source.fetch().await {
                Ok(bytes) => KeySet::parse(&bytes),
                Err(error) => Err(error.to_string()),
            };
            cache.fetched(fetched);
            drop(ended);
        });
        fetch
    }

    fn fetched(&self, fetched: Result<KeySet, String>) {
        let provider = self.provider.as_str();
        let mut state = self.state.lock();
        let now = Instant::now();
        state.attempted = Some(now);
        let was_failing = std::mem::replace(&mut state.is_failing, fetched.is_err());
        match fetched {
            Ok(keys) => {
                state.keys = Some((Arc::new(keys), now));
                if was_failing {
                    tracing::info!(provider, "the key set of the identity provider can be had again");
                }
            }
            Err(error) if was_failing => tracing::debug!(provider, error, "the key set cannot be had"),
            Err(error) => tracing::warn!(provider, error, "the key set of the identity provider cannot be had"),
        }
    }
}
