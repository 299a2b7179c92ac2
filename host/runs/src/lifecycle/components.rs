//! Components in the ledger of a cluster: a run that has begun goes on with its component on any host, whatever is in the plugins directory there.
//!
//! A component is in the ledger before the first run of it starts, under its digest, and as long as a run that has not ended needs it. A ledger
//! without a cluster gets none, since the files of its one host are enough; restored from a backup of a cluster's, it has those of then.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    future::Future,
    io::Read,
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::{EntryWrite, Ledger, LedgerError, StorageContent, StorageValue, StorageWrite};
use agent_host_protocol::{Timestamp, time};
use agent_host_sandbox::{Component, Sandbox};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::RunsOfCell;

/// The storage with the components, by digest. The storage of guests has keys that begin with a number.
const AREA: &str = "components";
/// Kind of the entries that say when a component was last needed, by digest.
pub(crate) const ENTRIES: &str = "component/";
/// Digests begin with it, those of blobs excepted.
const SHA256: &str = "sha256:";
/// Entries that are read at one time.
const PIECE: usize = 256;
/// Bytes that are copied at one time.
const COPIED_BYTES: usize = 256 * 1024;
/// The ledger notes again that a component is needed, when a run of it starts, after so long.
const NOTED: Duration = Duration::from_secs(60 * 60);
/// Between two tries to read a component from the ledger: an object store that is away comes back.
const PAUSE: Duration = Duration::from_secs(5);
/// A run waits so long for its component.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// A component that could not be kept is tried again after so long. Its runs start nevertheless.
const AGAIN: Duration = Duration::from_secs(60);

/// The components in a ledger.
pub(crate) struct LedgerComponents {
    ledger: Ledger,
    /// Other hosts go on with the ledger.
    is_of_cluster: bool,
    states: Mutex<HashMap<String, State>>,
    /// Held while a component is put or removed.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy)]
enum State {
    /// Noted as needed then.
    Kept(Instant),
    /// Tried then.
    Failed(Instant),
}

impl LedgerComponents {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let (ledger, is_of_cluster) = (ledger.clone(), ledger.is_of_cluster());
        Self { ledger, is_of_cluster, states: Mutex::default(), changing: tokio::sync::Mutex::default() }
    }

    /// True if a run may start: the ledger needs no component, has this one, or was asked in vain a moment ago.
    pub(crate) fn is_settled(&self, digest: &str) -> bool {
        if !self.is_of_cluster {
            return true;
        }
        match self.states.lock().get(digest) {
            Some(State::Kept(at)) => at.elapsed() < NOTED,
            Some(State::Failed(at)) => at.elapsed() < AGAIN,
            None => false,
        }
    }

    /// True if the ledger has the component.
    pub(crate) fn has(&self, digest: &str) -> bool {
        self.ledger.storage_get(AREA, digest).is_ok_and(|found| found.is_some())
    }

    /// Puts the component of a run that is about to start into the ledger, where it is not there yet. A run starts without, where that fails: it ends
    /// as `runner_not_found` if it goes on at a host that does not have the component.
    pub(crate) async fn keep(&self, sandbox: &Sandbox, digest: &str) {
        let _changing = self.changing.lock().await;
        if self.is_settled(digest) {
            return;
        }
        let state = match self.put(sandbox, digest).await {
            Ok(()) => State::Kept(Instant::now()),
            Err(error) => {
                tracing::warn!(%error, component = digest, "a component could not be put into the ledger of the cluster: other hosts may lack it");
                State::Failed(Instant::now())
            }
        };
        self.states.lock().insert(digest.to_owned(), state);
    }

    async fn put(&self, sandbox: &Sandbox, digest: &str) -> Result<(), LedgerError> {
        let (ledger, key, file) = (self.ledger.clone(), digest.to_owned(), sandbox.kept_file(digest));
        let writing = move || {
            if ledger.storage_get(AREA, &key)?.is_some() {
                return Ok(None);
            }
            let unreadable = |error: std::io::Error| failed(&format!("component {key} cannot be read: {error}"));
            let path = file.ok_or_else(|| failed(&format!("component {key} is not kept on this host")))?;
            let mut file = File::open(path).map_err(unreadable)?;
            let size = file.metadata().map_err(unreadable)?.len();
            let (mut blob, mut piece) = (ledger.blob_writer(size)?, vec![0; COPIED_BYTES]);
            loop {
                let count = file.read(&mut piece).map_err(unreadable)?;
                let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
                blob.write(bytes)?;
            }
            let blob = blob.finish()?;
            if key.strip_prefix(SHA256) != Some(&*blob.sha256) {
                return Err(failed(&format!("the file of component {key} has another content")));
            }
            Ok(Some(StorageWrite { area_key: AREA.to_owned(), key, value: Some(StorageValue::Blob(blob)), quota: None }))
        };
        if let Some(write) = blocking(writing).await? {
            self.ledger.put_storage(vec![write]).await?;
        }
        self.ledger.put_entries(&[needed_at(digest, time::now())?]).await
    }

    /// Keeps the component of the ledger on this host too. Waits so long for an object store that is away.
    ///
    /// # Errors
    /// The reason why it cannot be had.
    pub(crate) async fn fetch(&self, sandbox: &Sandbox, digest: &str, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        let bytes = loop {
            let (ledger, key) = (self.ledger.clone(), digest.to_owned());
            match blocking(move || content_of(&ledger, &key)).await {
                Ok(bytes) => break bytes,
                Err(error) if matches!(error, LedgerError::Unavailable(_)) || began.elapsed() >= patience => {
                    return Err(format!("component {digest} cannot be read from the ledger: {error}"));
                }
                Err(error) => {
                    tracing::warn!(%error, component = digest, "the component of a run cannot be read from the ledger: the run waits for it");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        let bytes = bytes.ok_or_else(|| format!("component {digest} is no longer kept on this host, and not in the ledger"))?;
        tracing::info!(component = digest, "a run goes on with a component of the ledger, which this host did not have");
        sandbox
            .restore_component(digest, bytes)
            .await
            .map_err(|error| format!("component {digest} could not be kept on this host: {error}"))
    }

    /// True if a component was not needed for so long, as far as the ledger says.
    pub(crate) fn has_unused(&self, unused_for: Duration) -> Result<bool, LedgerError> {
        Ok(!self.unused(unused_for)?.is_empty())
    }

    /// Removes what was not needed for so long. `needed` reads what runs that have not ended need, when no other run can start with one of them.
    pub(crate) async fn prune(
        &self,
        unused_for: Duration,
        needed: impl Future<Output = Result<HashSet<String>, LedgerError>>,
    ) -> Result<usize, LedgerError> {
        let _changing = self.changing.lock().await;
        let unused = self.unused(unused_for)?;
        // A run that starts from now on waits until this is done. One that has started before is among those that are read.
        self.states.lock().retain(|digest, _| !unused.contains(digest));
        let (needed, now) = (needed.await?, time::now());
        let (again, gone): (Vec<_>, Vec<_>) = unused.into_iter().partition(|digest| needed.contains(digest));
        let mut entries = again.iter().map(|digest| needed_at(digest, now)).collect::<Result<Vec<_>, _>>()?;
        let remove = |key: &String| StorageWrite { area_key: AREA.to_owned(), key: key.clone(), value: None, quota: None };
        if !gone.is_empty() {
            self.ledger.put_storage(gone.iter().map(remove).collect()).await?;
        }
        entries.extend(gone.iter().map(|digest| EntryWrite::delete(format!("{ENTRIES}{digest}"))));
        self.ledger.put_entries(&entries).await?;
        Ok(gone.len())
    }

    fn unused(&self, unused_for: Duration) -> Result<Vec<String>, LedgerError> {
        let unused_for = Timestamp::try_from(unused_for.as_millis()).unwrap_or(Timestamp::MAX);
        let (now, mut after, mut unused) = (time::now(), None, Vec::new());
        loop {
            let piece = self.ledger.entries(ENTRIES, after.as_deref(), PIECE)?;
            let Some((last, _)) = piece.last() else { return Ok(unused) };
            after = Some(last.clone());
            for (key, at) in piece {
                let at = serde_json::from_str::<Timestamp>(at.get()).unwrap_or(0);
                if now.saturating_sub(at) >= unused_for
                    && let Some(digest) = key.strip_prefix(ENTRIES)
                {
                    unused.push(digest.to_owned());
                }
            }
        }
    }
}

impl RunsOfCell {
    /// A component, by its digest: one that this host keeps, or that of the ledger.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn component(&self, digest: &str) -> Result<Arc<Component>, String> {
        let sandbox = &self.shared.sandbox;
        if sandbox.keeps(digest) {
            return sandbox.component(digest).await;
        }
        self.components.fetch(sandbox, digest, Duration::ZERO).await?;
        sandbox.component(digest).await
    }
}

/// The bytes of a component, where the ledger has them.
fn content_of(ledger: &Ledger, digest: &str) -> Result<Option<Vec<u8>>, LedgerError> {
    let Some(StorageContent::Blob { sha256, .. }) = ledger.storage_get(AREA, digest)? else { return Ok(None) };
    let Some(blob) = ledger.blob(&sha256)? else { return Ok(None) };
    blob.read_at(0, usize::try_from(blob.len()).unwrap_or(usize::MAX)).map(Some)
}

/// The entry that says when a component was needed.
fn needed_at(digest: &str, at: Timestamp) -> Result<EntryWrite, LedgerError> {
    EntryWrite::put(format!("{ENTRIES}{digest}"), &at)
}

fn failed(problem: &str) -> LedgerError {
    LedgerError::Storage(problem.into())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, LedgerError> + Send + 'static) -> Result<T, LedgerError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error.to_string()))?
}
