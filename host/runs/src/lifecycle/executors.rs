//! Executors: who takes runs outside, whether it is still there, and what it holds.
//!
//! Every request of an executor renews its presence. A silent executor is `stale`, then `gone`. The runs of a gone executor
//! go back to the queue or fail, as the policy of each run says.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::{EntryWrite, Ledger, Partition};
use agent_host_protocol::{
    HashSlot, Principal, PrincipalKind, RunId, RunnerId, RunnerManifest, Scope, Timestamp,
    auth::{EXECUTOR_PREFIX, executor_of},
    hex, time,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{Stream, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{
    Runs,
    lease::random,
    queue::waiting::ClaimFilter,
    registration::{ExecutorChange, Registration, StoredRegistration},
};
use crate::{
    policy::registered::{RegisteredRunners, SentManifest, judge},
    record::HostError,
};

/// Key prefix of executors in the ledger.
pub(crate) const ENTRIES: &str = "executor/";
/// News that an executor may be behind with.
const NEWS: usize = 256;
/// Time after which a gone executor is forgotten, in ms.
const FORGOTTEN_MS: u64 = 24 * 60 * 60 * 1000;
/// Executors that are registered at one time.
const MAX_EXECUTORS: usize = 10_000;
/// Manifests that one executor brings.
const MAX_MANIFESTS: usize = 20;

/// An executor as the ledger keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    executor_id: String,
    #[serde(flatten)]
    registration: StoredRegistration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace: Option<String>,
    registered_at: Timestamp,
    /// SHA-256 of its credential.
    credential: String,
    /// Manifests that it has brought.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    manifests: Vec<RunnerManifest>,
}

/// The presence of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorState {
    /// The executor made a request lately.
    Online,
    /// The executor has been silent for `limits.executor_stale_ms`.
    Stale,
    /// The executor has been silent for `limits.executor_gone_ms`: its claims were taken away.
    Gone,
}

/// An executor, as the host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Executor {
    /// Id of the executor.
    pub executor_id: String,
    /// Name for people.
    pub name: String,
    /// Version of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Runners whose runs it takes. None: all.
    pub runner_ids: Vec<RunnerId>,
    /// Queues that it takes runs from. None: all.
    pub queues: Vec<String>,
    /// Labels of the executor.
    pub labels: BTreeMap<String, String>,
    /// Runs that it holds at one time, at most.
    pub slots: u32,
    /// More of it.
    pub capabilities: Map<String, Value>,
    /// The workspace whose runs the executor takes; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Time of the registration.
    pub registered_at: Timestamp,
    /// Time of the last request.
    pub last_seen_at: Timestamp,
    /// Presence of the executor.
    pub state: ExecutorState,
    /// Runs that the executor holds.
    pub held: Vec<RunId>,
}

/// News for an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum ExecutorNews {
    /// A cancel was requested for a run that the executor holds.
    #[serde(rename = "run.cancel_requested")]
    CancelRequested {
        /// The run.
        run_id: RunId,
        /// Reason of the request.
        reason: String,
    },
    /// The claim is lost: further writes of the executor to the run are refused.
    #[serde(rename = "run.claim_lost")]
    ClaimLost {
        /// The run.
        run_id: RunId,
        /// Reason of the loss.
        reason: String,
    },
}

/// All registered executors.
pub(crate) struct Executors(Arc<Mutex<HashMap<String, ExecutorEntry>>>);

struct ExecutorEntry {
    record: Record,
    seen: Timestamp,
    /// The runs that the executor holds, each with the token that ends its claim.
    held: HashMap<RunId, CancellationToken>,
    /// Claims that wait for a run, beside those that have one.
    news: broadcast::Sender<ExecutorNews>,
}

/// As long as this lives, an executor holds a run.
pub(crate) struct ExecutorSlot {
    executors: Executors,
    executor_id: String,
    run_id: RunId,
    /// Fires when the executor is gone, or has said that it goes.
    pub(crate) claim_ended: CancellationToken,
}

impl Drop for ExecutorSlot {
    fn drop(&mut self) {
        if let Some(known) = self.executors.0.lock().get_mut(&self.executor_id) {
            known.held.remove(&self.run_id);
        }
    }
}

impl Executors {
    /// Reads the executors of a ledger. Their manifests go to `registered`.
    pub(crate) fn load(ledger: &Ledger, partition: Partition, registered: &RegisteredRunners) -> Result<Self, HostError> {
        let mut all = HashMap::new();
        for (key, entry) in ledger.entries(ENTRIES, None, usize::MAX)? {
            match serde_json::from_str::<Record>(entry.get()) {
                // Heard of now: it did not know that the host was away.
                Ok(record) => {
                    let Record { executor_id, workspace, manifests, .. } = &record;
                    if let Err(problem) = registered.add(partition, executor_id, workspace.as_deref(), manifests) {
                        tracing::warn!(executor_id, problem, "the manifests of an executor are not served");
                    }
                    drop(all.insert(record.executor_id.clone(), ExecutorEntry::new(record, time::now())));
                }
                Err(error) => tracing::error!(key, %error, "an executor cannot be read"),
            }
        }
        Ok(Self(Arc::new(Mutex::new(all))))
    }

    /// Ids of all executors.
    fn ids(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }

    /// Renews the presence of an executor.
    pub(crate) fn seen(&self, executor_id: &str) {
        if let Some(known) = self.0.lock().get_mut(executor_id) {
            known.seen = time::now();
        }
    }

    pub(crate) fn notify(&self, executor_id: &str, news: ExecutorNews) {
        if let Some(known) = self.0.lock().get(executor_id) {
            // Without a listener, the executor learns the news from its next request.
            drop(known.news.send(news));
        }
    }

    /// Adds a run to an executor. The claim of an executor that is no longer registered ends at once.
    pub(crate) fn hold(&self, executor_id: &str, run_id: RunId) -> ExecutorSlot {
        let gone = CancellationToken::new();
        match self.0.lock().get_mut(executor_id) {
            Some(known) => drop(known.held.insert(run_id, gone.clone())),
            None => gone.cancel(),
        }
        ExecutorSlot { executors: Self(Arc::clone(&self.0)), executor_id: executor_id.to_owned(), run_id, claim_ended: gone }
    }
}

impl ExecutorEntry {
    fn new(record: Record, seen: Timestamp) -> Self {
        Self { record, seen, held: HashMap::new(), news: broadcast::channel(NEWS).0 }
    }

    fn report(&self, now: Timestamp, stale_ms: u64, gone_ms: u64) -> Executor {
        let Record { executor_id, registration, workspace, registered_at, .. } = self.record.clone();
        let silent = now.saturating_sub(self.seen);
        let state = match silent {
            silent if silent >= gone_ms => ExecutorState::Gone,
            silent if silent >= stale_ms => ExecutorState::Stale,
            _ => ExecutorState::Online,
        };
        let mut held: Vec<_> = self.held.keys().copied().collect();
        held.sort_unstable();
        Executor {
            executor_id,
            name: registration.name,
            version: registration.version,
            runner_ids: registration.runner_ids,
            queues: registration.queues,
            labels: registration.labels,
            slots: registration.slots,
            capabilities: registration.capabilities,
            workspace,
            registered_at,
            last_seen_at: self.seen,
            state,
            held,
        }
    }
}

fn digest(credential: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(credential))
}

fn unknown_credential() -> HostError {
    HostError::Unauthenticated(
        "this credential is of no executor that is registered: register with POST /api/v1/executors".to_owned(),
    )
}

impl Runs {
    /// Registers an executor, which sees the runs of this workspace, or of all; gives its credential, once.
    pub(crate) async fn register_executor(
        &self,
        registration: Registration,
        workspace: Option<String>,
    ) -> Result<(Executor, String), HostError> {
        let id = format!("{}{}", hex::encode(&random::<7>()?), HashSlot::of_workspace(workspace.as_deref()));
        let credential = format!("{EXECUTOR_PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(random::<32>()?));
        let executor = self.add_executor(id, registration, workspace, &credential).await?;
        Ok((executor, credential))
    }

    /// Registers an executor of no workspace under the credential that another partition has given. Repeating it is harmless.
    pub(crate) async fn register_executor_as(&self, registration: Registration, credential: &str) -> Result<Executor, HostError> {
        let id = executor_of(credential).ok_or_else(unknown_credential)?;
        if self.executors.0.lock().contains_key(id) {
            self.executor_principal(credential)?;
            return self.executor(id);
        }
        self.add_executor(id.to_owned(), registration, None, credential).await
    }

    async fn add_executor(
        &self,
        id: String,
        registration: Registration,
        workspace: Option<String>,
        credential: &str,
    ) -> Result<Executor, HostError> {
        registration.check()?;
        if self.executors.0.lock().len() >= MAX_EXECUTORS {
            return Err(HostError::Conflict(format!("{MAX_EXECUTORS} executors are registered: deregister some")));
        }
        let Registration { name, version, runner_ids, queues, labels, slots, capabilities, manifests } = registration;
        let manifests = self.judged(manifests, workspace.as_deref())?;
        let record = Record {
            manifests,
            executor_id: id.clone(),
            registration: StoredRegistration { name, version, runner_ids, queues, labels, slots, capabilities },
            workspace,
            registered_at: time::now(),
            credential: digest(credential),
        };
        let write = EntryWrite::put(format!("{ENTRIES}{id}"), &record)?;
        let registered = &self.shared.registered;
        registered.add(self.partition, &id, record.workspace.as_deref(), &record.manifests).map_err(HostError::Conflict)?;
        if let Err(error) = self.ledger.put_entries(&[write]).await {
            registered.remove(self.partition, &id);
            return Err(error.into());
        }
        self.executors.0.lock().insert(id.clone(), ExecutorEntry::new(record, time::now()));
        self.executor(&id)
    }

    /// The manifests that an executor of a workspace brings, if the operator allows all of them.
    fn judged(&self, sent: Vec<SentManifest>, workspace: Option<&str>) -> Result<Vec<RunnerManifest>, HostError> {
        if sent.len() > MAX_MANIFESTS {
            return Err(HostError::Invalid(format!("`manifests` has at most {MAX_MANIFESTS}")));
        }
        let setup = self.shared.setup();
        let mut manifests: Vec<RunnerManifest> = Vec::with_capacity(sent.len());
        for manifest in sent {
            let manifest = manifest.checked().map_err(HostError::Invalid)?;
            let id = &manifest.id;
            if setup.external(id).is_some() || self.shared.plugins.runner(id).is_some() {
                let why = format!("`{id}` has a manifest of the operator's already: register without one");
                return Err(HostError::Conflict(why));
            }
            judge(&setup.config, &manifest, workspace).map_err(HostError::Forbidden)?;
            if manifests.iter().any(|other| other.id == *id) {
                return Err(HostError::Invalid(format!("`manifests` has two of `{id}`")));
            }
            manifests.push(manifest);
        }
        Ok(manifests)
    }

    /// The principal of this credential.
    pub(crate) fn executor_principal(&self, credential: &str) -> Result<Principal, HostError> {
        let id = executor_of(credential);
        let expected = digest(credential);
        let mut all = self.executors.0.lock();
        let known = id.and_then(|id| all.get_mut(id)).ok_or_else(unknown_credential)?;
        let differs = known.record.credential.bytes().zip(expected.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 || known.record.credential.len() != expected.len() {
            return Err(unknown_credential());
        }
        known.seen = time::now();
        Ok(Principal {
            kind: PrincipalKind::Executor(known.record.executor_id.clone()),
            name: known.record.registration.name.clone(),
            scopes: [Scope::RunsExecute].into(),
            workspace: known.record.workspace.clone(),
            end_user: None,
        })
    }

    /// An executor that is registered.
    pub(crate) fn executor(&self, id: &str) -> Result<Executor, HostError> {
        let limits = self.shared.limits();
        let all = self.executors.0.lock();
        let known = all.get(id).ok_or_else(|| no_executor(id))?;
        Ok(known.report(time::now(), limits.executor_stale_ms, limits.executor_gone_ms))
    }

    /// The cell is closed: the manifests that its executors have brought are not served any more.
    pub(crate) fn forget_manifests(&self) {
        self.executors.ids().iter().for_each(|id| self.shared.registered.remove(self.partition, id));
    }

    /// All registered executors, in the order of their registration.
    #[must_use]
    pub(crate) fn executors(&self) -> Vec<Executor> {
        let limits = self.shared.limits();
        let now = time::now();
        let report = |known: &ExecutorEntry| known.report(now, limits.executor_stale_ms, limits.executor_gone_ms);
        let mut all: Vec<_> = self.executors.0.lock().values().map(report).collect();
        all.sort_by(|a, b| (a.registered_at, &a.executor_id).cmp(&(b.registered_at, &b.executor_id)));
        all
    }

    /// Renews the presence of an executor and changes it, durably. Returns true with the executor if something changed.
    pub(crate) async fn heartbeat(&self, id: &str, change: ExecutorChange) -> Result<(Executor, bool), HostError> {
        self.executors.seen(id);
        let before = self.executors.0.lock().get(id).map(|known| known.record.clone()).ok_or_else(|| no_executor(id))?;
        let kept = change.applied(&before.registration);
        if kept == before.registration {
            return Ok((self.executor(id)?, false));
        }
        let StoredRegistration { name, version, runner_ids, queues, labels, slots, capabilities } = kept.clone();
        let manifests = Vec::new();
        Registration { name, version, runner_ids, queues, labels, slots, capabilities, manifests }.check()?;
        let record = Record { registration: kept, ..before };
        self.ledger.put_entries(&[EntryWrite::put(format!("{ENTRIES}{id}"), &record)?]).await?;
        self.executors.0.lock().get_mut(id).ok_or_else(|| no_executor(id))?.record = record;
        Ok((self.executor(id)?, true))
    }

    /// An executor goes: what it holds is taken from it, and its credential is no longer good.
    pub(crate) async fn deregister_executor(&self, id: &str) -> Result<(), HostError> {
        self.executor(id)?;
        self.ledger.put_entries(&[EntryWrite::delete(format!("{ENTRIES}{id}"))]).await?;
        self.shared.registered.remove(self.partition, id);
        if let Some(known) = self.executors.0.lock().remove(id) {
            known.held.into_values().for_each(|gone| gone.cancel());
        }
        Ok(())
    }

    /// The news for an executor. Earlier news reach the executor with its next request.
    pub(crate) fn executor_news(&self, id: &str) -> Result<impl Stream<Item = ExecutorNews> + Send + 'static + use<>, HostError> {
        let news = self.executors.0.lock().get(id).map(|known| known.news.subscribe()).ok_or_else(|| no_executor(id))?;
        let stopping = self.stopping.clone();
        Ok(stream::unfold((news, stopping), |(mut news, stopping)| async move {
            loop {
                let next = tokio::select! {
                    () = stopping.cancelled() => return None,
                    next = news.recv() => next,
                };
                match next {
                    Ok(next) => return Some((next, (news, stopping))),
                    // Missed news reach the executor with its next request for that run.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }))
    }

    /// The runs that an executor may claim now, restricted to its request.
    pub(crate) fn wanted_by(&self, id: &str, queues: Vec<String>, runner_ids: Vec<RunnerId>) -> Result<ClaimFilter, HostError> {
        let mut all = self.executors.0.lock();
        let known = all.get_mut(id).ok_or_else(unknown_credential)?;
        known.seen = time::now();
        let registration = &known.record.registration;
        if known.held.len() >= registration.slots as usize {
            return Err(HostError::no_free_slot(known.held.len(), registration.slots));
        }
        fn of<T: Clone + PartialEq>(asked: Vec<T>, registered: &[T], what: &str) -> Result<Vec<T>, HostError> {
            if asked.is_empty() {
                return Ok(registered.to_vec());
            }
            if !registered.is_empty() && asked.iter().any(|one| !registered.contains(one)) {
                return Err(HostError::Invalid(format!("`{what}` names one that the executor did not register for")));
            }
            Ok(asked)
        }
        Ok(ClaimFilter {
            queues: of(queues, &registration.queues, "queues")?,
            runner_ids: of(runner_ids, &registration.runner_ids, "runner_ids")?,
            labels: registration.labels.clone(),
            workspace: known.record.workspace.clone(),
        })
    }

    /// Takes from executors that are gone what they hold, as long as the host lives.
    pub(crate) fn watch_executors(&self) {
        let runs = self.clone();
        tokio::spawn(async move {
            loop {
                let limits = runs.shared.limits();
                let pause = Duration::from_millis((limits.executor_gone_ms / 8).clamp(50, 5_000));
                tokio::select! {
                    () = runs.stopping.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                let now = time::now();
                let mut forgotten = Vec::new();
                for (id, known) in runs.executors.0.lock().iter() {
                    let silent = now.saturating_sub(known.seen);
                    if silent >= limits.executor_gone_ms {
                        known.held.values().for_each(CancellationToken::cancel);
                    }
                    if silent >= FORGOTTEN_MS.max(limits.executor_gone_ms) {
                        forgotten.push(id.clone());
                    }
                }
                for id in forgotten {
                    if let Err(error) = runs.deregister_executor(&id).await {
                        tracing::warn!(%error, "an executor that is gone could not be forgotten");
                    }
                }
            }
        });
    }
}

fn no_executor(id: &str) -> HostError {
    HostError::NotFound(format!("there is no executor `{}`", id.chars().take(64).collect::<String>().escape_debug()))
}
