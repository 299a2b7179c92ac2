//! The running host.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::{Health, Ledger, LedgerError, Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{Limits, PluginReport, PluginStatus, Run, RunId, RunnerId, RunnerManifest, time};
use agent_host_providers::webhook::ResultHooks;
use agent_host_sandbox::{Plugins, Sandbox, SandboxError};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    approval::Approvers,
    binding::{self, Binding, BindingReport},
    config::{Config, ConfigError},
    delivery::Deliveries,
    error::{HostError, StartError},
    executors::Executors,
    held::Held,
    keys::Keys,
    library::Library,
    life::Handle,
    line::Lines,
    mail::AskedNow,
    metrics::Metrics,
    queue::{admission::Admission, waiting::Waiting},
    recovery::WAKING,
    reload::Upkeep,
    services::Services,
    sources::{HookSource, Schedule, Scheduler, open_hooks},
    token::LeaseKey,
};

/// The running kernel. Cheap to clone; [`Host::shutdown`] ends it for all.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

pub(crate) struct Inner {
    /// What the host was told, and is replaced when it is told something else.
    pub(crate) setup: ArcSwap<Setup>,
    /// Counts the changes of `setup`, and tells of them.
    pub(crate) reloaded: watch::Sender<u64>,
    pub(crate) upkeep: Upkeep,
    pub(crate) ledger: Ledger,
    /// Who may come in.
    pub(crate) keys: Keys,
    pub(crate) sandbox: Sandbox,
    plugins: Plugins,
    pub(crate) lines: Arc<Lines>,
    /// Every run that has not ended and is not parked.
    pub(crate) live: Mutex<HashMap<RunId, Handle>>,
    /// Runs and executors that wait for each other.
    pub(crate) waiting: Waiting,
    /// How many runs of each binding are executed.
    pub(crate) admission: Arc<Admission>,
    /// Who executes runs outside.
    pub(crate) executors: Executors,
    /// Runs that executors hold.
    pub(crate) held: Mutex<HashMap<RunId, Arc<Held>>>,
    pub(crate) lease_key: LeaseKey,
    /// Held while a run is made under an idempotency key of its own.
    pub(crate) creating: tokio::sync::Mutex<()>,
    /// What runs that are in memory wait for an answer to.
    pub(crate) asked: Arc<AskedNow>,
    /// Called when a parked run may have to be woken earlier than the clock that wakes them thinks.
    pub(crate) alarm: Notify,
    pub(crate) scheduler: Scheduler,
    /// What webhooks are still to be told.
    pub(crate) deliveries: Arc<Deliveries>,
    /// One permit for each parked run that is coming back.
    pub(crate) waking: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    pub(crate) metrics: Metrics,
    /// No new events, and no run starts any more.
    pub(crate) stopping: CancellationToken,
    /// Whoever still runs, ends.
    pub(crate) ending: CancellationToken,
}

/// What follows from a configuration. Who begins something with one setup goes on with it.
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) services: Arc<Services>,
    pub(crate) bindings: Vec<Arc<Binding>>,
    /// Who may answer what runs ask.
    pub(crate) approvers: Approvers,
    /// Runners whose runs executors outside take.
    external: HashMap<RunnerId, Arc<RunnerManifest>>,
    pub(crate) schedules: Vec<Arc<Schedule>>,
    /// Systems that send signed requests.
    pub(crate) hooks: Vec<Arc<HookSource>>,
    /// Who is told what runs have done.
    pub(crate) webhooks: ResultHooks,
}

impl Setup {
    /// What the configuration says of a runner whose runs executors outside take.
    pub(crate) fn external(&self, id: &RunnerId) -> Option<Arc<RunnerManifest>> {
        self.external.get(id).cloned()
    }

    /// `before` is what the host works with until now, where it works.
    pub(crate) async fn new(config: Config, ledger: &Ledger, before: Option<&Self>) -> Result<Self, StartError> {
        config.check()?;
        let bindings = binding::in_order(&config.bindings).map_err(ConfigError::Invalid)?;
        let library = Library::open(&config, ledger).await?;
        let services = Arc::new(Services::open(&config, library, before.map(|before| &*before.services)).await?);
        let approvers = Approvers::new(&config.approvers);
        let schedules = config.schedules.iter().map(|schedule| Schedule::new(schedule).map(Arc::new));
        let schedules = schedules.collect::<Result<_, _>>().map_err(ConfigError::Invalid)?;
        let hooks = open_hooks(&config.webhook_sources)?;
        let webhooks = ResultHooks::open(&config.webhooks).map_err(ConfigError::Invalid)?;
        let limits = Arc::new(config.limits.clone());
        let external = config.external_runners.iter().map(|runner| (runner.id.clone(), Arc::new(runner.manifest()))).collect();
        Ok(Self { limits, config: Arc::new(config), services, bindings, approvers, external, schedules, hooks, webhooks })
    }

    /// What an operator should look at.
    pub(crate) fn problems(&self) -> Vec<String> {
        let hooks = self.hooks.iter().filter_map(|hook| hook.problem());
        let services = self.services.problems().into_iter().chain(self.approvers.problems());
        services.chain(hooks).chain(self.webhooks.problems()).collect()
    }
}

impl Inner {
    /// What the host was told last.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }
}

/// Runs whose journals are removed in one go.
const PRUNED_AT_ONCE: usize = 256;

/// The component that a run was created for, read from its terms without the rest of them.
fn component_of(terms: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Terms {
        grant: Grant,
    }
    #[derive(Deserialize)]
    struct Grant {
        component: String,
    }
    serde_json::from_str::<Terms>(terms).ok().map(|terms| terms.grant.component)
}

/// How the host is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// Whether it takes events.
    pub ready: bool,
    /// `ok`, or what is wrong with the ledger.
    pub ledger: String,
    /// Files of the plugins directory that serve.
    pub plugins_ready: usize,
    /// Files that were refused.
    pub plugins_refused: usize,
    /// Runs whose guest is in memory.
    pub live_runs: usize,
    /// Runs that wait behind another of their conversation.
    pub waiting_runs: usize,
    /// Runs that wait on disk for a time or an answer, and take no memory.
    pub parked_runs: u64,
    /// What an operator should look at. None of it keeps the host from taking events for other bindings.
    pub problems: Vec<String>,
}

impl Host {
    /// Opens the ledger, starts the engine, admits the plugins, brings what a crash left to its end, and lets runs
    /// that waited go on.
    ///
    /// # Errors
    /// When any of it cannot be done. A plugin or binding that does not work is no error: it is reported.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        for dir in [&config.data_dir, &config.plugins_dir] {
            std::fs::create_dir_all(dir).map_err(|source| StartError::Directory { path: dir.clone(), source })?;
        }
        let options = agent_host_ledger::Options {
            min_free_disk_bytes: config.limits.min_free_disk_bytes,
            artifact_unreferenced: Duration::from_millis(config.limits.artifact_unreferenced_ms),
            ..agent_host_ledger::Options::new(config.data_dir.join("ledger"))
        };
        let ledger = tokio::task::spawn_blocking(move || options.open())
            .await
            .map_err(|error| HostError::Internal(error.to_string()))??;
        let sandbox = agent_host_sandbox::Options {
            limits: config.limits.clone(),
            code_cache: Some(config.data_dir.join("code")),
            components: Some(config.data_dir.join("components")),
        }
        .build()?;
        let plugins = Plugins::open(&config.plugins_dir, sandbox.clone()).await?;
        let setup = Setup::new(config, &ledger, None).await?;
        let (executors, lease_key) = (Executors::load(&ledger)?, LeaseKey::of(&ledger).await?);
        let host = Self(Arc::new(Inner {
            setup: ArcSwap::from_pointee(setup),
            keys: Keys::open(&ledger)?,
            reloaded: watch::Sender::new(0),
            upkeep: Upkeep::default(),
            ledger,
            sandbox,
            plugins,
            lines: Arc::default(),
            live: Mutex::default(),
            waiting: Waiting::default(),
            admission: Arc::default(),
            executors,
            held: Mutex::default(),
            lease_key,
            creating: tokio::sync::Mutex::default(),
            asked: Arc::default(),
            alarm: Notify::new(),
            scheduler: Scheduler::default(),
            deliveries: Arc::default(),
            waking: Arc::new(Semaphore::new(WAKING)),
            tasks: TaskTracker::new(),
            metrics: Metrics::default(),
            stopping: CancellationToken::new(),
            ending: CancellationToken::new(),
        }));
        for report in host.bindings() {
            if let Some(problem) = report.problem {
                tracing::warn!(binding = report.id, "{problem}");
            }
        }
        let setup = host.0.setup();
        for problem in setup.problems() {
            tracing::warn!("{problem}");
        }
        host.recover().await?;
        host.watch_executors();
        host.keep_time();
        host.keep_schedules();
        host.keep_delivering();
        host.keep_clean();
        Ok(host)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    pub(crate) fn plugins_handle(&self) -> &Plugins {
        &self.0.plugins
    }

    /// What the host was told.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.0.setup.load().config)
    }

    /// The ledger, for reading. Everything that writes goes through the kernel.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// What is said of each file of the plugins directory, by name.
    #[must_use]
    pub fn plugins(&self) -> Vec<PluginReport> {
        self.0.plugins.reports()
    }

    /// What the runner with this id says of itself, if it serves now.
    #[must_use]
    pub fn runner(&self, id: &RunnerId) -> Option<RunnerManifest> {
        self.0.plugins.runner(id).map(|runner| (*runner.manifest).clone())
    }

    /// What is said of each binding, in the order in which they are asked.
    #[must_use]
    pub fn bindings(&self) -> Vec<BindingReport> {
        self.0.setup().bindings.iter().map(|binding| binding.report(self.serving(&binding.config.runner).as_ref())).collect()
    }

    /// The record of a run.
    pub(crate) fn record(&self, id: RunId) -> Result<RunRecord, HostError> {
        self.0.ledger.run(id)?.ok_or_else(|| HostError::NotFound(format!("there is no run {id}")))
    }

    /// Waits until a run has ended, at most `timeout`; gives its record as it is then.
    ///
    /// # Errors
    /// When there is no such run, or its end could not be written.
    pub async fn wait(&self, id: RunId, timeout: Duration) -> Result<Run, HostError> {
        let waited = async {
            loop {
                let handle = self.0.live.lock().get(&id).cloned();
                let Some(mut handle) = handle else {
                    // It has ended, or it is parked, or it is about to be one or the other.
                    let record = self.record(id)?;
                    let mut watch = self.0.ledger.watch(record.run_no);
                    let run = self.record(id)?.run;
                    if run.status.is_terminal() || self.0.stopping.is_cancelled() {
                        return Ok(run);
                    }
                    tokio::select! {
                        () = watch.changed() => {}
                        () = self.0.stopping.cancelled() => {}
                    }
                    continue;
                };
                // It is let go of without an end where the run leaves memory.
                if let Ok(end) = handle.ended.wait_for(Option::is_some).await {
                    match end.as_ref() {
                        Some(Ok(run)) => return Ok((**run).clone()),
                        Some(Err(error)) => return Err(HostError::Unavailable(error.clone())),
                        None => {}
                    }
                }
            }
        };
        match tokio::time::timeout(timeout, waited).await {
            Ok(end) => end,
            Err(_) => Ok(self.record(id)?.run),
        }
    }

    /// Asks for the end of a run. When it returns, that is on disk, and the guest has been told.
    ///
    /// # Errors
    /// When there is no such run, or it has ended.
    pub async fn cancel(&self, id: RunId, reason: String) -> Result<Run, HostError> {
        let record = self.record(id)?;
        let has_ended =
            |run: &Run| HostError::Conflict(format!("run {id} has ended ({}): there is nothing to cancel", run.status));
        if record.run.status.is_terminal() {
            return Err(has_ended(&record.run));
        }
        let at = time::now();
        let asked =
            RunWrite { run_no: record.run_no, changes: vec![RunChange::CancelRequested { at, reason }], ..RunWrite::default() };
        let parked = self.0.ledger.parked(record.run_no)?;
        let written = match parked {
            // From now on its time has come: a host that dies before it wakes the run does so at its next start.
            Some(park) => {
                let reason = record.run.status_reason.clone().unwrap_or_default();
                let again = [RunChange::Resume { at }, RunChange::Wait { at, reason }];
                let changes = asked.changes.iter().cloned().chain(again).collect();
                let due = RunWrite { changes, park: Some(Park { wake_at: at, ..park }), ..asked.clone() };
                match self.0.ledger.submit(due).await?.await {
                    // Somebody else has woken it meanwhile.
                    Err(LedgerError::Transition(_)) => self.0.ledger.submit(asked).await?.await,
                    written => written,
                }
            }
            None => self.0.ledger.submit(asked).await?.await,
        };
        let run = written?;
        let told = || self.0.live.lock().get(&id).inspect(|handle| handle.cancelled.cancel()).is_some();
        if !told() {
            self.wake(record.run_no).await?;
            // Somebody else may have brought it back meanwhile, who did not know of this.
            told();
        }
        Ok(run)
    }

    /// Why the end of a run was asked for, as it is on disk.
    pub(crate) fn cancel_reason(&self, record: &RunRecord) -> Result<String, HostError> {
        let reason = self.record(record.run.run_id)?.run.cancel_reason;
        Ok(reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "the run was cancelled".to_owned()))
    }

    /// How the host is.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let ledger = match self.0.ledger.health() {
            Health::Ok => "ok".to_owned(),
            Health::DiskLow { free, needed } => format!("the disk has {free} bytes left and needs {needed}: free some space"),
            Health::Failed(reason) => format!("{reason}: restart the host"),
            other => format!("{other:?}"),
        };
        let stopping = self.0.stopping.is_cancelled();
        let plugins = self.plugins();
        let count = |status| plugins.iter().filter(|plugin| plugin.status == status).count();
        let mut problems: Vec<_> = self.bindings().into_iter().filter_map(|binding| binding.problem).collect();
        let setup = self.0.setup();
        problems.extend(setup.problems());
        if stopping {
            problems.push("the host is shutting down".to_owned());
        }
        Readiness {
            ready: ledger == "ok" && !stopping,
            ledger,
            plugins_ready: count(PluginStatus::Ready),
            plugins_refused: count(PluginStatus::Refused),
            live_runs: self.0.sandbox.live(),
            waiting_runs: self.0.lines.waiting_in_all(),
            parked_runs: self.0.ledger.parked_count(),
            problems,
        }
    }

    /// Removes from time to time what nothing refers to any more, and what has expired.
    fn keep_clean(&self) {
        let host = self.clone();
        let mut ticks = tokio::time::interval(Duration::from_millis(self.0.setup().limits.gc_interval_ms.max(1_000)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = host.0.stopping.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                host.prune_journals().await;
                if let Err(error) = host.forget_created().await {
                    tracing::warn!(%error, "old idempotency keys could not be removed");
                }
                match host.0.ledger.collect_garbage(time::now()).await {
                    Ok(collected) => tracing::debug!(?collected, "artifacts that nothing refers to were removed"),
                    Err(error) => tracing::warn!(%error, "artifacts that nothing refers to could not be removed"),
                }
            }
        });
    }

    /// Removes journals of runs that ended long ago, and components that no run needs any more.
    async fn prune_journals(&self) {
        let inner = &self.0;
        let kept_ms = inner.setup().config.retention.journals_ms;
        loop {
            match inner.ledger.prune_journals(time::now().saturating_sub(kept_ms), PRUNED_AT_ONCE).await {
                Ok(pruned) if pruned.more && !inner.stopping.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "old journals could not be removed");
                    return;
                }
            }
        }
        // Runs that have not ended need theirs; those that ended lately may be replayed.
        let mut needed = HashSet::new();
        let unended = inner.ledger.active_runs().map(|runs| runs.into_iter().map(|record| record.run.run_id).collect::<Vec<_>>());
        let digests = unended.and_then(|runs| {
            runs.into_iter().try_for_each(|run_id| {
                needed.extend(inner.ledger.terms(run_id)?.and_then(|terms| component_of(terms.get())));
                Ok(())
            })
        });
        match digests {
            Ok(()) if inner.ledger.parked_count() == 0 => {
                inner.sandbox.forget_components(needed, Duration::from_millis(kept_ms)).await;
            }
            // Parked runs are not read one by one: as long as there are any, components stay.
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "components that no run needs could not be looked for"),
        }
    }

    /// Ends the host: takes no new events, gives runs that have started `grace` to end, and closes the ledger. Runs that
    /// are active still go on at the next start where their binding lets them, and end as `host_restarted` where it does
    /// not; runs that wait stay where they are.
    pub async fn shutdown(&self, grace: Duration) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(grace, self.0.tasks.wait()).await.is_err() {
            self.0.ending.cancel();
            // What is left to do is one commit each. A disk that hangs must not keep the process.
            if tokio::time::timeout(Duration::from_secs(10), self.0.tasks.wait()).await.is_err() {
                tracing::error!("some runs could not be brought to their end; they will be when the host starts again");
            }
        }
        self.0.setup().services.tools.shutdown().await;
        if let Err(error) = self.0.ledger.clone().close().await {
            tracing::error!(%error, "the ledger could not be closed cleanly; nothing that was acknowledged is lost");
        }
    }
}

/// Looks at a component file as admission does, without serving it.
///
/// # Errors
/// When the engine cannot be started. A file that would be refused is no error: the report says why.
pub async fn inspect(path: &Path, limits: &Limits) -> Result<PluginReport, SandboxError> {
    // One guest is enough to ask for manifests, and starts faster than a pool for thousands.
    let limits = Limits { max_live_runs: 1, ..limits.clone() };
    let sandbox: Sandbox = agent_host_sandbox::Options { limits, code_cache: None, components: None }.build()?;
    Ok(sandbox.inspect(path).await)
}
