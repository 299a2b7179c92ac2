//! The executor of one harness: it registers, claims runs, and executes as many at one time as it may.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{sync::Semaphore, task::JoinHandle, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    doctor::{self, Diagnosis},
    host_client::{self, HostError},
    projection::remove_old,
    run,
    shared::{HarnessSetup, Shared},
    transport::{Registered, Transport},
    workspace::make_private,
};

/// Longest wait of one claim at the host.
const CLAIM: Duration = Duration::from_secs(20);
/// Pause after a request that the host refused or did not answer.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between two looks for directories of ended runs.
const SWEEP: Duration = Duration::from_secs(60);

/// A harness that runs. Dropping it does not end it; see [`Harness::end`].
#[derive(Debug)]
pub struct Harness {
    closing: CancellationToken,
    serving: JoinHandle<()>,
}

impl Harness {
    /// Starts to register and to claim runs.
    ///
    /// # Errors
    /// Fails if the directory of the harness cannot be made.
    pub fn start(setup: HarnessSetup, transport: Arc<dyn Transport>) -> io::Result<Self> {
        let closing = CancellationToken::new();
        let shared = Arc::new(Shared::new(setup, transport, closing.clone()));
        let root = shared.root();
        make_private(&root).map_err(|error| {
            io::Error::new(error.kind(), format!("the directory {} of a harness cannot be made: {error}", root.display()))
        })?;
        Ok(Self { closing, serving: tokio::spawn(serve(shared)) })
    }

    /// Ends the harness: no more claims; runs that it has go back to the queue; returns after the last process is gone.
    pub async fn end(self) {
        self.closing.cancel();
        // A panic of the task has been reported by its hook.
        let _ = self.serving.await;
    }
}

async fn serve(shared: Arc<Shared>) {
    let runs = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(usize::try_from(shared.config.max_processes).unwrap_or(Semaphore::MAX_PERMITS)));
    let sweeping = tokio::spawn(sweep(Arc::clone(&shared)));
    let diagnosis = doctor::examine(&shared).await;
    if let Some(problem) = &diagnosis.problem {
        tracing::warn!(harness = %shared.config.id, "the agent of a harness does not start, and its runs fail: {problem}");
    }
    while !shared.closing.is_cancelled() {
        let Some(executor) = register(&shared, &diagnosis).await else { break };
        claim_runs(&shared, &executor, &runs, &slots).await;
        // A host that refuses every claim is not registered with at full speed.
        wait(&shared, PAUSE).await;
        if shared.closing.is_cancelled() {
            runs.close();
            runs.wait().await;
            leave(&shared, &executor).await;
        }
    }
    sweeping.abort();
}

/// Registers, until the host takes it. `None`: the harness ends.
async fn register(shared: &Shared, diagnosis: &Diagnosis) -> Option<Registered> {
    let config = &shared.config;
    let file = shared.root().join("executor.json");
    // What an earlier process of this harness left behind has no process any more: its runs go back to the queue.
    if let Some(earlier) = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Registered>(&text).ok())
        && let Err(error) = host_client::deregister(&*shared.transport, &earlier).await
    {
        tracing::debug!(%error, "an earlier executor of a harness is not there any more");
    }
    let registration = json!({
        "name": format!("harness {}", config.id.name()),
        "version": env!("CARGO_PKG_VERSION"),
        "runner_ids": [config.id],
        "queues": config.queues,
        "slots": config.max_processes,
        "capabilities": diagnosis.capabilities(config),
        "manifests": [config.manifest()],
    });
    let mut has_warned = false;
    loop {
        let registered = tokio::select! {
            registered = shared.transport.register(registration.clone()) => registered,
            () = shared.closing.cancelled() => return None,
        };
        match registered {
            Ok(executor) => {
                if let Err(error) = keep(&file, &executor) {
                    tracing::debug!(%error, "the registration of a harness is not kept");
                }
                return Some(executor);
            }
            Err(error) if !std::mem::replace(&mut has_warned, true) => {
                tracing::warn!(harness = %config.id, "a harness cannot register, and tries again: {error}");
            }
            Err(_) => {}
        }
        wait(shared, PAUSE).await;
    }
}

/// Claims runs until the harness ends, or the host does not know the executor any more.
async fn claim_runs(shared: &Arc<Shared>, executor: &Registered, runs: &TaskTracker, slots: &Arc<Semaphore>) {
    loop {
        let slot = tokio::select! {
            slot = Arc::clone(slots).acquire_owned() => slot,
            () = shared.closing.cancelled() => return,
        };
        let Ok(slot) = slot else { return };
        let claimed = tokio::select! {
            claimed = host_client::claim(&*shared.transport, executor, CLAIM) => claimed,
            () = shared.closing.cancelled() => return,
        };
        match claimed {
            Ok(Some(claimed)) => {
                let shared = Arc::clone(shared);
                runs.spawn(async move {
                    run::execute(shared, claimed).await;
                    drop(slot);
                });
            }
            Ok(None) => {}
            Err(HostError::Refused { code, .. }) if matches!(code.as_str(), "unauthenticated" | "forbidden" | "not_found") => {
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "a harness cannot claim, and tries again");
                wait(shared, PAUSE).await;
            }
        }
    }
}

async fn leave(shared: &Shared, executor: &Registered) {
    match host_client::deregister(&*shared.transport, executor).await {
        // Nothing is left to deregister at the next start.
        Ok(()) => drop(fs::remove_file(shared.root().join("executor.json"))),
        Err(error) => tracing::debug!(%error, "a harness is not deregistered"),
    }
}

/// Keeps the credential, for this user alone.
fn keep(file: &Path, executor: &Registered) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::File::options();
    let mut open = options.create(true).truncate(true).write(true).mode(0o600).open(file)?;
    io::Write::write_all(&mut open, &serde_json::to_vec(executor)?)
}

async fn wait(shared: &Shared, pause: Duration) {
    tokio::select! {
        () = sleep(pause) => {}
        () = shared.closing.cancelled() => {}
    }
}

/// Removes directories of ended runs, from time to time.
async fn sweep(shared: Arc<Shared>) {
    let runs = shared.root().join("runs");
    let retention = Duration::from_millis(shared.config.retention_ms);
    loop {
        let runs = runs.clone();
        // A sweep that panics is tried again with the next.
        let _ = tokio::task::spawn_blocking(move || remove_old(&runs, retention)).await;
        sleep(SWEEP).await;
    }
}
