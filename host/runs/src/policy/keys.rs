//! API keys: who may come in, and what they may do.
//!
//! A key is `ahk_ID_SECRET`. The secret has 256 random bits and is shown once; the ledger keeps its SHA-256, which needs no
//! salt and no slow function: nobody can guess what it is of. All keys are in memory, so a request costs no read, and what
//! is revoked is out at once, its open streams included.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_ledger::{CopyReader, EntryWrite, Ledger, Partition};
use agent_host_protocol::{
    Principal, PrincipalKind, Scope,
    auth::KEY_PREFIX,
    hex,
    time::{self, Timestamp},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::key_limits::{KeyUsage, RequestRate, until_tomorrow};
use crate::record::HostError;

/// Begins the key of every entry of the ledger that is an API key.
pub(crate) const ENTRIES: &str = "key/";
/// Of an id: 12 hexadecimal digits of the time, so that later keys sort later, and 4 random ones.
const ID_LEN: usize = 16;
const SECRET_BYTES: usize = 32;
/// All keys stay in memory, also revoked ones, because the record names them. This many take a few megabytes.
const MAX_KEYS: usize = 10_000;
/// As long as ids of events may be.
const MAX_WORKSPACE_BYTES: usize = 256;
const MAX_NAME_BYTES: usize = 64;
/// Keys that are read at one time.
const PIECE: usize = 1_000;

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApiKey)]
pub struct Key {
    /// Names it; it is part of the key itself, and no secret.
    pub key_id: String,
    /// Name of the key, for the record and for people.
    pub name: String,
    /// Scopes of the key.
    pub scopes: BTreeSet<Scope>,
    /// Workspace of the key; absent for all workspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// End of validity; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Time of the revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Most requests in a minute; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Most tokens of models that runs for the key use on a day (UTC); absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
    /// Tokens that runs for the key have used today. Shown in lists for keys with `tokens_per_day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_today: Option<u64>,
}

impl Key {
    fn has_limits(&self) -> bool {
        self.requests_per_minute.is_some() || self.tokens_per_day.is_some()
    }

    fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }

    /// The sender of a request with the key; `None` if the key was revoked or has expired.
    fn principal(&self) -> Option<Principal> {
        let Self { key_id, name, scopes, workspace, .. } = self.clone();
        let kind = PrincipalKind::Key(key_id);
        self.is_good(time::now()).then_some(Principal { kind, name, scopes, workspace, end_user: None })
    }
}

/// A key that is wanted.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// 1 to 64 letters, digits, `.`, `_`, `-` or `@`.
    #[schema(min_length = 1, max_length = 64, pattern = r"^[A-Za-z0-9._@-]+$")]
    pub name: String,
    /// At least one.
    #[schema(min_items = 1)]
    pub scopes: BTreeSet<Scope>,
    /// Workspace of the key; absent for that of the creator.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub workspace: Option<String>,
    /// Validity in ms; absent for that of the creating key.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub expires_in_ms: Option<u64>,
    /// Most requests in a minute; absent for that of the creating key.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub requests_per_minute: Option<u32>,
    /// Most tokens of models that runs for the key use on a day (UTC); absent for that of the creating key.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub tokens_per_day: Option<u64>,
}

impl NewKey {
    fn check(&self) -> Result<(), HostError> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
        let invalid = |message: String| Err(HostError::Invalid(message));
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !self.name.chars().all(named) {
            return invalid(format!("`name` must have 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_`, `-` or `@`"));
        }
        if self.scopes.is_empty() {
            return invalid(format!("`scopes` must name at least one of: {}", Scope::ALL.map(Scope::as_str).join(", ")));
        }
        let is_id = |id: &str| (1..=MAX_WORKSPACE_BYTES).contains(&id.len()) && !id.chars().any(char::is_control);
        if self.workspace.as_deref().is_some_and(|id| !is_id(id)) {
            return invalid(format!("`workspace` must have 1 to {MAX_WORKSPACE_BYTES} bytes without control characters"));
        }
        if self.expires_in_ms == Some(0) {
            return invalid("`expires_in_ms` must be at least 1".to_owned());
        }
        if self.requests_per_minute == Some(0) {
            return invalid("`requests_per_minute` must be at least 1: a key that may do nothing is revoked".to_owned());
        }
        if self.tokens_per_day == Some(0) {
            return invalid("`tokens_per_day` must be at least 1: a key that makes no runs has no scope for them".to_owned());
        }
        Ok(())
    }
}

/// As the ledger keeps it.
#[derive(Serialize, Deserialize)]
struct StoredKey {
    #[serde(flatten)]
    key: Key,
    /// Of the secret, in hexadecimal.
    sha256: String,
}

/// As it is in memory.
struct LoadedKey {
    key: Key,
    digest: [u8; 32],
    revoked: CancellationToken,
    rate: Option<RequestRate>,
}

impl LoadedKey {
    fn new(stored: StoredKey) -> Option<Self> {
        let digest = hex::decode(&stored.sha256)?.try_into().ok()?;
        let loaded = Self::of(stored.key, digest, CancellationToken::new());
        if loaded.key.revoked_at.is_some() {
            loaded.revoked.cancel();
        }
        Some(loaded)
    }

    fn of(key: Key, digest: [u8; 32], revoked: CancellationToken) -> Self {
        Self { rate: key.requests_per_minute.map(RequestRate::new), key, digest, revoked }
    }

    fn stored(&self) -> StoredKey {
        StoredKey { key: self.key.clone(), sha256: hex::encode(&self.digest) }
    }

    fn entry(&self) -> Result<EntryWrite, HostError> {
        Ok(EntryWrite::put(format!("{ENTRIES}{}", self.key.key_id), &self.stored())?)
    }
}

/// The keys of a process, which it reads from its ledger.
#[derive(Default)]
pub struct Keys {
    all: RwLock<BTreeMap<String, Arc<LoadedKey>>>,
    /// Held during a change, so that changes are serialized.
    changing: tokio::sync::Mutex<()>,
    /// True once a key has limits: other hosts look at no key a second time.
    limited: AtomicBool,
    usage: KeyUsage,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("count", &self.all.read().len()).finish_non_exhaustive()
    }
}

impl Keys {
    /// The keys of a ledger.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read. A single unreadable key is skipped and admits no caller.
    pub fn open(ledger: &Ledger) -> Result<Self, HostError> {
        let keys = Self::default();
        keys.load(&ledger.copy_reader())?;
        keys.usage.load(&ledger.copy_reader(), Partition::ONLY)?;
        Ok(keys)
    }

    /// The use of all keys that have a budget.
    pub(crate) const fn usage(&self) -> &KeyUsage {
        &self.usage
    }

    /// True once a key has limits.
    pub(crate) fn are_limited(&self) -> bool {
        self.limited.load(Ordering::Acquire)
    }

    /// Reads the keys of a ledger, in place of those that were there. A key that is revoked or gone admits no caller from then on, and its
    /// streams end.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read. A single unreadable key is skipped and admits no caller.
    pub(crate) fn load(&self, copy: &CopyReader) -> Result<(), HostError> {
        let mut all = BTreeMap::new();
        let mut after: Option<String> = None;
        loop {
            let piece = copy.entries(ENTRIES, after.as_deref(), PIECE)?;
            let is_last = piece.len() < PIECE;
            for (entry, value) in piece {
                let loaded = serde_json::from_str::<StoredKey>(value.get()).ok().and_then(LoadedKey::new);
                match loaded.filter(|loaded| entry.strip_prefix(ENTRIES) == Some(&loaded.key.key_id)) {
                    Some(loaded) => drop(all.insert(loaded.key.key_id.clone(), Arc::new(loaded))),
                    None => tracing::warn!(entry, "an API key cannot be read, so requests with it are refused"),
                }
                after = Some(entry);
            }
            if is_last {
                break;
            }
        }
        self.limited.store(all.values().any(|loaded| loaded.key.has_limits()), Ordering::Release);
        let mut known = self.all.write();
        for (id, before) in known.iter() {
            match all.get_mut(id) {
                // Its streams, and the requests of this minute, go on.
                Some(now) if now.key == before.key && now.digest == before.digest => *now = Arc::clone(before),
                _ => before.revoked.cancel(),
            }
        }
        *known = all;
        Ok(())
    }

    /// True if no key was ever made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.read().is_empty()
    }

    /// Creates a key. The key is on disk when this function returns. The returned text is the secret, which cannot be shown
    /// again.
    ///
    /// # Errors
    /// Fails if the request is malformed or asks for more than the rights of `by`.
    pub async fn create(&self, ledger: &Ledger, by: &Principal, new_key: NewKey) -> Result<(Key, String), HostError> {
        new_key.check()?;
        let NewKey { name, scopes, workspace, expires_in_ms, requests_per_minute, tokens_per_day } = new_key;
        if let Some(scope) = scopes.iter().find(|scope| !by.may(**scope)) {
            return Err(HostError::Forbidden(format!("`{}` cannot give the scope `{scope}`, which it does not have", by.name)));
        }
        if let (Some(own), Some(other)) = (&by.workspace, &workspace)
            && own != other
        {
            return Err(HostError::Forbidden(format!("`{}` makes keys of its own workspace, `{own}`, and of no other", by.name)));
        }
        let _one_at_a_time = self.changing.lock().await;
        if self.all.read().len() >= MAX_KEYS {
            return Err(HostError::Conflict(format!("there are {MAX_KEYS} keys, which is the most that a host has")));
        }
        let now = time::now();
        let own_end = self.of(by).and_then(|loaded| loaded.key.expires_at);
        let expires_at = expires_in_ms.map(|ms| now.saturating_add(ms)).or(own_end);
        if own_end.is_some_and(|own| expires_at.is_none_or(|at| at > own)) {
            return Err(HostError::Forbidden(format!("`{}` cannot make a key that is good for longer than itself", by.name)));
        }
        let own = self.of(by);
        let requests_per_minute =
            within("requests_per_minute", by, own.as_ref().and_then(|own| own.key.requests_per_minute), requests_per_minute)?;
        let tokens_per_day = within("tokens_per_day", by, own.as_ref().and_then(|own| own.key.tokens_per_day), tokens_per_day)?;
        let mut secret = [0; SECRET_BYTES];
        random(&mut secret)?;
        let secret = URL_SAFE_NO_PAD.encode(secret);
        let key = Key {
            key_id: self.new_id(now)?,
            name,
            scopes,
            workspace: workspace.or_else(|| by.workspace.clone()),
            created_at: now,
            expires_at,
            revoked_at: None,
            requests_per_minute,
            tokens_per_day,
            tokens_today: None,
        };
        let digest = Sha256::digest(secret.as_bytes()).into();
        let loaded = LoadedKey::of(key.clone(), digest, CancellationToken::new());
        ledger.put_entries(&[loaded.entry()?]).await?;
        self.limited.fetch_or(key.has_limits(), Ordering::Release);
        self.all.write().insert(key.key_id.clone(), Arc::new(loaded));
        let token = format!("{KEY_PREFIX}{}_{secret}", key.key_id);
        Ok((key, token))
    }

    /// The keys that `by` may see, the oldest first: at most `limit`, after the one with the id `after`.
    #[must_use]
    pub fn list(&self, by: &Principal, after: Option<&str>, limit: usize) -> Vec<Key> {
        let all = self.all.read();
        let later = all.iter().filter(|(id, _)| after.is_none_or(|after| id.as_str() > after));
        let seen = later.map(|(_, loaded)| &loaded.key).filter(|key| by.sees(key.workspace.as_deref())).take(limit);
        seen.cloned().map(|key| self.with_usage(key)).collect()
    }

    /// Revokes a key. When this function returns, the revocation is on disk, the key admits no caller, and its streams end.
    ///
    /// # Errors
    /// Fails if `by` may see no key with this id.
    pub async fn revoke(&self, ledger: &Ledger, by: &Principal, id: &str) -> Result<Key, HostError> {
        let _one_at_a_time = self.changing.lock().await;
        let loaded = self.all.read().get(id).cloned().filter(|loaded| by.sees(loaded.key.workspace.as_deref()));
        let loaded = loaded.ok_or_else(|| HostError::NotFound(format!("there is no key {}", printable(id))))?;
        if loaded.key.revoked_at.is_some() {
            return Ok(loaded.key.clone());
        }
        let key = Key { revoked_at: Some(time::now()), ..loaded.key.clone() };
        let revoked = LoadedKey::of(key.clone(), loaded.digest, loaded.revoked.clone());
        ledger.put_entries(&[revoked.entry()?]).await?;
        self.all.write().insert(key.key_id.clone(), Arc::new(revoked));
        loaded.revoked.cancel();
        Ok(key)
    }

    /// The principal of a key; `None` if the key is unknown, revoked or expired.
    #[must_use]
    pub fn principal(&self, token: &str) -> Option<Principal> {
        let (id, rest) = token.strip_prefix(KEY_PREFIX)?.split_at_checked(ID_LEN)?;
        let secret = rest.strip_prefix('_')?;
        let loaded = self.all.read().get(id).cloned()?;
        let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        if same(&loaded.digest, &digest) { loaded.key.principal() } else { None }
    }

    /// The principal of the key with this id, as long as the key is good. Asks for no secret: for tokens that this host has made for
    /// the holder of the key.
    #[must_use]
    pub fn holder(&self, id: &str) -> Option<Principal> {
        self.all.read().get(id)?.key.principal()
    }

    /// The key with the tokens that it has used today, where it has a budget.
    fn with_usage(&self, key: Key) -> Key {
        let tokens_today = key.tokens_per_day.map(|_| self.usage.of(&key.key_id).today(time::now()));
        Key { tokens_today, ..key }
    }

    /// Counts a request of a principal; fails with the time to wait if its key may send no more requests now.
    ///
    /// # Errors
    /// The time until the next request, and the limit.
    pub fn take_request(&self, principal: &Principal) -> Result<(), (Duration, u32)> {
        if !self.are_limited() {
            return Ok(());
        }
        let Some(loaded) = self.of(principal) else { return Ok(()) };
        let limit = loaded.key.requests_per_minute.unwrap_or_default();
        loaded.rate.as_ref().map_or(Ok(()), |rate| rate.take(Instant::now()).map_err(|wait| (wait, limit)))
    }

    /// The key whose budget pays for a run that this principal begins; `None` for principals without a budget.
    pub(crate) fn charged(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        if !self.are_limited() {
            return Ok(None);
        }
        let Some(loaded) = self.of(principal) else { return Ok(None) };
        let Some(limit) = loaded.key.tokens_per_day else { return Ok(None) };
        let now = time::now();
        if self.usage.of(&loaded.key.key_id).today(now) >= limit {
            return Err(HostError::TokenBudget { key: loaded.key.name.clone(), limit, again_in: until_tomorrow(now) });
        }
        Ok(Some(loaded.key.key_id.clone()))
    }

    fn of(&self, principal: &Principal) -> Option<Arc<LoadedKey>> {
        let PrincipalKind::Key(id) = &principal.kind else { return None };
        self.all.read().get(id).cloned()
    }

    fn new_id(&self, now: Timestamp) -> Result<String, HostError> {
        loop {
            let mut more = [0; 2];
            random(&mut more)?;
            let id = format!("{:012x}{:04x}", now & 0xffff_ffff_ffff, u16::from_be_bytes(more));
            if !self.all.read().contains_key(&id) {
                return Ok(id);
            }
        }
    }
}

/// Resolves when who came in is not welcome any more: its key is revoked or has expired.
#[derive(Debug, Clone)]
pub struct Validity {
    revoked: CancellationToken,
    expires_at: Option<Timestamp>,
}

impl Keys {
    /// The remaining validity of a principal; `None` without an end.
    pub(crate) fn welcome(&self, principal: &Principal) -> Option<Validity> {
        let loaded = self.of(principal)?;
        Some(Validity { revoked: loaded.revoked.clone(), expires_at: loaded.key.expires_at })
    }
}

impl Validity {
    /// Waits for its end.
    pub async fn ended(self) {
        let Some(expires_at) = self.expires_at else { return self.revoked.cancelled().await };
        let left = || expires_at.saturating_sub(time::now());
        // The clock may be set while this waits.
        while left() > 0 {
            tokio::select! {
                () = self.revoked.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(left().min(60_000))) => {}
            }
        }
    }
}

/// The limit of a new key: no more than that of the key which makes it, and that where none is wanted.
fn within<T: Ord + Copy + std::fmt::Display>(
    name: &str,
    by: &Principal,
    own: Option<T>,
    wanted: Option<T>,
) -> Result<Option<T>, HostError> {
    match (own, wanted) {
        (Some(own), Some(wanted)) if wanted > own => {
            Err(HostError::Forbidden(format!("`{}` has a `{name}` of {own}, and makes no key with more", by.name)))
        }
        (own, wanted) => Ok(wanted.or(own)),
    }
}

/// Compares without telling by its time where the difference is.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b))) == 0
}

fn random(bytes: &mut [u8]) -> Result<(), HostError> {
    getrandom::fill(bytes).map_err(|error| HostError::Internal(format!("there is no randomness: {error}")))
}

/// An id of a client, fit for a message.
fn printable(id: &str) -> String {
    id.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_key(scopes: &[Scope], workspace: Option<&str>) -> NewKey {
        let scopes = scopes.iter().copied().collect();
        NewKey {
            name: "test".to_owned(),
            scopes,
            workspace: workspace.map(str::to_owned),
            expires_in_ms: None,
            requests_per_minute: None,
            tokens_per_day: None,
        }
    }

    #[tokio::test]
    async fn a_key_is_good_until_it_is_revoked_and_its_secret_is_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = agent_host_ledger::Options::new(dir.path()).open().unwrap();
        let keys = Keys::open(&ledger).unwrap();
        let root = Principal::loopback();
        let (key, token) = keys.create(&ledger, &root, new_key(&[Scope::RunsRead], Some("acme"))).await.unwrap();
        let who = keys.principal(&token).unwrap();
        assert_eq!((who.kind, who.workspace.as_deref()), (PrincipalKind::Key(key.key_id.clone()), Some("acme")));
        let stored = ledger.entry(&format!("key/{}", key.key_id)).unwrap().unwrap();
        let secret = token.strip_prefix(&format!("{KEY_PREFIX}{}_", key.key_id)).unwrap();
        assert!(!stored.get().contains(secret));

        let other = if token.ends_with('A') { 'B' } else { 'A' };
        let cut = &token[..token.len() - 1];
        for bad in ["", "ahk_", cut, &format!("{cut}{other}"), &format!("{token}A"), &token[..20], &token.replacen('_', "-", 2)] {
            assert!(keys.principal(bad).is_none(), "{bad}");
        }
        // Another host on the same ledger knows it, and knows when it is revoked.
        let again = Keys::open(&ledger).unwrap();
        assert!(again.principal(&token).is_some());
        assert_eq!(again.holder(&key.key_id), again.principal(&token));
        assert!(again.holder("").is_none() && again.holder(&token).is_none());
        again.revoke(&ledger, &root, &key.key_id).await.unwrap();
        assert!(again.holder(&key.key_id).is_none());
        assert!(again.principal(&token).is_none() && Keys::open(&ledger).unwrap().principal(&token).is_none());
        assert!(again.revoke(&ledger, &root, "nonsense").await.is_err());
    }

    #[tokio::test]
    async fn a_key_with_a_budget_pays_for_runs_until_it_is_used_up() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = agent_host_ledger::Options::new(dir.path()).open().unwrap();
        let keys = Keys::open(&ledger).unwrap();
        let root = Principal::loopback();
        let (_, plain) = keys.create(&ledger, &root, new_key(&[Scope::EventsWrite], None)).await.unwrap();
        let plain = keys.principal(&plain).unwrap();
        let wanted = NewKey { requests_per_minute: Some(2), tokens_per_day: Some(100), ..new_key(&[Scope::EventsWrite], None) };
        let (key, token) = keys.create(&ledger, &root, wanted).await.unwrap();
        let who = keys.principal(&token).unwrap();
        assert_eq!(keys.charged(&who).unwrap().as_deref(), Some(key.key_id.as_str()));
        assert!(keys.charged(&plain).unwrap().is_none() && keys.charged(&root).unwrap().is_none());
        assert!(keys.take_request(&who).is_ok() && keys.take_request(&who).is_ok() && keys.take_request(&who).is_err());
        assert!((0..100).all(|_| keys.take_request(&plain).is_ok()));
        keys.usage.charged(&key.key_id, Partition::ONLY).add(99);
        assert!(keys.charged(&who).is_ok());
        keys.usage.charged(&key.key_id, Partition::ONLY).add(2);
        let refused = keys.charged(&who).unwrap_err();
        assert_eq!(refused.code(), "token_budget_exhausted", "{refused}");
        keys.usage.write(&ledger, Partition::ONLY).await.unwrap();

        let again = Keys::open(&ledger).unwrap();
        assert!(again.charged(&again.principal(&token).unwrap()).is_err(), "after a restart too");
        let listed = again.list(&root, None, 10);
        let of = |id: &str| listed.iter().find(|listed| listed.key_id == id).unwrap();
        assert_eq!(of(&key.key_id).tokens_today, Some(101));
        assert!(listed.iter().filter(|listed| listed.key_id != key.key_id).all(|listed| listed.tokens_today.is_none()));
        let stored = ledger.entry(&format!("key/{}", key.key_id)).unwrap().unwrap();
        assert!(!stored.get().contains("tokens_today"), "{stored}");
    }

    #[tokio::test]
    async fn a_key_gives_no_more_than_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = agent_host_ledger::Options::new(dir.path()).open().unwrap();
        let keys = Keys::open(&ledger).unwrap();
        let root = Principal::loopback();
        let admin = NewKey { expires_in_ms: Some(60_000), ..new_key(&[Scope::Admin], Some("acme")) };
        let admin = keys.principal(&keys.create(&ledger, &root, admin).await.unwrap().1).unwrap();
        let (made, _) = keys.create(&ledger, &admin, new_key(&[Scope::RunsRead], None)).await.unwrap();
        assert_eq!(made.workspace.as_deref(), Some("acme"));
        assert!(made.expires_at.is_some(), "it ends with the one that made it");
        let refused = async |new_key| keys.create(&ledger, &admin, new_key).await.unwrap_err().code();
        assert_eq!(refused(new_key(&[Scope::RunsRead], Some("other"))).await, "forbidden");
        assert_eq!(refused(NewKey { expires_in_ms: Some(120_000), ..new_key(&[Scope::RunsRead], None) }).await, "forbidden");
        assert_eq!(refused(new_key(&[], None)).await, "invalid_argument");
        let reader = Principal { scopes: BTreeSet::from([Scope::RunsRead]), ..root.clone() };
        assert!(keys.create(&ledger, &reader, new_key(&[Scope::RunsControl], None)).await.is_err());

        let limited = NewKey { requests_per_minute: Some(10), tokens_per_day: Some(100), ..new_key(&[Scope::Admin], None) };
        let limited = keys.principal(&keys.create(&ledger, &root, limited).await.unwrap().1).unwrap();
        let more = NewKey { requests_per_minute: Some(11), ..new_key(&[Scope::RunsRead], None) };
        assert_eq!(keys.create(&ledger, &limited, more).await.unwrap_err().code(), "forbidden");
        let (made, _) = keys.create(&ledger, &limited, new_key(&[Scope::RunsRead], None)).await.unwrap();
        assert_eq!((made.requests_per_minute, made.tokens_per_day), (Some(10), Some(100)), "as its maker has");
        keys.revoke(&ledger, &root, &made.key_id).await.unwrap();

        let (foreign, _) = keys.create(&ledger, &root, new_key(&[Scope::RunsRead], Some("other"))).await.unwrap();
        assert!(keys.list(&admin, None, 10).iter().all(|key| key.workspace.as_deref() == Some("acme")));
        assert_eq!(keys.list(&root, None, 10).len(), 5);
        assert_eq!(keys.revoke(&ledger, &admin, &foreign.key_id).await.unwrap_err().code(), "not_found");
    }
}
