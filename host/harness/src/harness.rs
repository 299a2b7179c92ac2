//! The executor of one harness: it registers, claims runs, and executes as many at one time as it may.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use agent_host_config::{HarnessConfig, HarnessIsolation};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    confinement,
    doctor::{self, Diagnosis},
    host_api::{self, HostError},
    link::{Link, Registered},
    process::{ReadBounds, find_program},
    projection::remove_old,
    run,
    secrets::Secrets,
    workspace::{make_private, safe_name},
};

/// Longest wait of one claim at the host.
const CLAIM: Duration = Duration::from_secs(20);
/// Pause after a request that the host refused or did not answer.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between two looks for directories of ended runs.
const SWEEP: Duration = Duration::from_secs(60);

/// A variable of an agent's environment.
#[derive(Clone)]
pub struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// True if the value is taken out of what the agent says.
    pub is_secret: bool,
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A harness, as it is started.
#[derive(Debug, Clone)]
pub struct HarnessSetup {
    /// The entry of the configuration.
    pub config: HarnessConfig,
    /// The environment of the entry, with its secrets read.
    pub env: Vec<Variable>,
    /// The data directory: workspaces, and `harness` for the crate's own files.
    pub data_dir: PathBuf,
    /// Program and arguments that call [`launch`](crate::launch).
    pub launcher: Vec<OsString>,
}

/// Facts of a harness that its runs share.
pub(crate) struct Shared {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) config: Arc<HarnessConfig>,
    pub(crate) env: Vec<Variable>,
    pub(crate) data_dir: PathBuf,
    pub(crate) launcher: Arc<[OsString]>,
    pub(crate) isolation: HarnessIsolation,
    /// Cancelled when the harness ends.
    pub(crate) closing: CancellationToken,
    program: OnceLock<Result<PathBuf, String>>,
}

impl Shared {
    pub(crate) fn new(setup: HarnessSetup, link: Arc<dyn Link>, closing: CancellationToken) -> Self {
        let HarnessSetup { config, env, data_dir, launcher } = setup;
        let isolation = isolation(&config);
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let (config, launcher, program) = (Arc::new(config), launcher.into(), OnceLock::new());
        Self { link, config, env, data_dir, launcher, isolation, closing, program }
    }

    /// The directory of the crate's own files for this harness.
    pub(crate) fn root(&self) -> PathBuf {
        self.data_dir.join("harness").join(safe_name(self.config.id.as_str()))
    }

    /// The program, looked up once.
    ///
    /// # Errors
    /// Says what is missing and how to install it.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        self.program.get_or_init(|| program(&self.config)).clone()
    }

    pub(crate) fn secrets(&self, token: Option<&str>) -> Secrets {
        let secrets = self.env.iter().filter(|variable| variable.is_secret).map(|variable| variable.value.as_str());
        Secrets::new(secrets.chain(token))
    }

    pub(crate) fn read_bounds(&self) -> ReadBounds {
        let limits = &self.config.limits;
        ReadBounds {
            line_bytes: limits.line_bytes,
            output_bytes: limits.output_bytes,
            lines_per_second: limits.messages_per_second,
        }
    }
}

/// The confinement of a harness: as configured, else what the kernel has.
pub(crate) fn isolation(config: &HarnessConfig) -> HarnessIsolation {
    config.isolation.unwrap_or_else(
        || {
            if confinement::is_available() { HarnessIsolation::Landlock } else { HarnessIsolation::None }
        },
    )
}

fn program(config: &HarnessConfig) -> Result<PathBuf, String> {
    let command = config.command();
    let name = command.first().map(String::as_str).unwrap_or_default();
    find_program(name).ok_or_else(|| {
        let install = doctor::install_hint(config.preset);
        format!("there is no program `{name}` for the harness `{}`: {install}or name it in `command`", config.id)
    })
}

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
    pub fn start(setup: HarnessSetup, link: Arc<dyn Link>) -> io::Result<Self> {
        let closing = CancellationToken::new();
        let shared = Arc::new(Shared::new(setup, link, closing.clone()));
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
        && let Err(error) = host_api::deregister(&*shared.link, &earlier).await
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
            registered = shared.link.register(registration.clone()) => registered,
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
            claimed = host_api::claim(&*shared.link, executor, CLAIM) => claimed,
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
    match host_api::deregister(&*shared.link, executor).await {
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

/// Capabilities of an executor, as the host shows them.
pub(crate) fn capabilities(config: &HarnessConfig, isolation: HarnessIsolation, more: Value) -> Value {
    let mut all = json!({
        "harness": config.id,
        "provider": config.preset,
        "command": config.command(),
        "workspace": config.workspace,
        "isolation": isolation,
        "slots": config.max_processes,
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}
