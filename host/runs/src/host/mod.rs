//! The host: the assembly of the rooms, and a facade that only delegates.

pub(crate) mod api;
mod backup;
mod cell;
mod entries;
pub(crate) mod evidence;
pub(crate) mod excerpts;
mod executors;
pub(crate) mod follow;
mod follow_thread;
mod forget;
mod principals;
mod process;
mod readiness;
pub(crate) mod recording;
pub(crate) mod recording_text;
pub(crate) mod records;
pub(crate) mod reload;
pub(crate) mod replay;
pub(crate) mod threads;
mod upkeep;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_ledger::{
    Bystander, ClusterError, ClusterMember, ClusterOptions, Ledger, OpenError, Partition, PostgresServer, Standby, StorageAddress,
};
use agent_host_protocol::{ApiError, Limits, PluginReport, Principal, RunnerId, RunnerManifest};
use agent_host_providers::{egress::Response, secret::Secret};
use agent_host_sandbox::{Sandbox, SandboxError};
use tokio::sync::{Mutex, watch};

pub use self::{
    backup::{BackupReport, backup_to},
    entries::place_of_entry,
    process::HostProcess,
    readiness::Readiness,
};
use self::{
    cell::Cell,
    records::{RecordWriter, Records},
    reload::{ReloadError, ReloadReport},
    threads::Threads,
};
use crate::{
    execution::{Shared, metrics::Metrics},
    lifecycle::lease::is_signature,
    policy::{
        StartError,
        binding::BindingReport,
        keys::{Key, Keys, NewKey, Validity},
    },
    record::HostError,
};

/// Least length of the secret of a cluster, in bytes: whoever reaches the listener for hosts may guess as often as wanted, without the
/// host.
const MIN_CLUSTER_SECRET: usize = 32;
/// Memory for pages of the copy of one of several partitions, at least.
const LEAST_CACHE_BYTES: usize = 16 << 20;
/// Bytes of log, at least, after which the rows of one of several partitions are merged. They are in memory until then.
const LEAST_MERGE_BYTES: u64 = 1 << 20;

/// The running kernel. Cheap to clone; [`Host::shutdown`] stops it for all clones.
#[derive(Clone)]
pub struct Host(Arc<Assembly>);

/// A process with one of its cells.
struct Assembly {
    process: HostProcess,
    shared: Arc<Shared>,
    cell: Cell,
    threads: Threads,
    /// Held while a backup is made.
    backing_up: Arc<Mutex<()>>,
}

impl Host {
    /// Opens the ledger, starts the engine, admits the plugins, brings what a crash left to its end, and lets runs
    /// that waited go on.
    ///
    /// # Errors
    /// Fails if a step of the start fails. A plugin or binding that does not work is no error: `readiness` reports it.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, None).await
    }

    /// As [`Host::start`], with a program whose processes compile components ([`agent_host_sandbox::COMPILER`]): what a
    /// component asks of a compiler is bounded then.
    ///
    /// # Errors
    /// Fails as [`Host::start`] does.
    pub async fn start_with(config: Config, compiler: Option<PathBuf>) -> Result<Self, StartError> {
        config.check()?;
        if config.cluster.is_some() {
            return Err(StartError::InCluster);
        }
        make_directories(&config)?;
        let options = ledger_options(&config);
        let ledger = tokio::task::spawn_blocking(move || options.open())
            .await
            .map_err(|error| HostError::Internal(error.to_string()))??;
        HostProcess::start(config, compiler).await?.open(ledger, Partition::ONLY).await
    }

    fn new(process: HostProcess, cell: Cell) -> Self {
        let (shared, threads) = (Arc::clone(process.shared()), Threads::new(cell.ledger.clone()));
        Self(Arc::new(Assembly { process, shared, cell, threads, backing_up: Arc::default() }))
    }

    /// Joins the cluster of the configuration. `None` where the configuration has a ledger of its own.
    ///
    /// # Errors
    /// Fails where the cluster cannot be joined.
    pub async fn join(config: &Config, version: &str) -> Result<Option<ClusterMember>, StartError> {
        config.check()?;
        let Some(cluster) = cluster_options(config, version)? else { return Ok(None) };
        make_directories(config)?;
        let options = ledger_options(config);
        let joined = tokio::task::spawn_blocking(move || ClusterMember::join(&options, &cluster)).await;
        Ok(Some(joined.map_err(|error| HostError::Internal(error.to_string()))??))
    }

    /// Follows a partition of a cluster; see [`Standby::activate`].
    ///
    /// # Errors
    /// Fails where the copy of this host does not go on; [`OpenError::AlreadyOpen`] while something of the process has it still open.
    pub async fn follow_ledger(config: &Config, member: &ClusterMember, partition: Partition) -> Result<Standby, StartError> {
        let (mut options, member) = (ledger_options(config), member.clone());
        options.cache_bytes = (options.cache_bytes / member.partitions() as usize).max(LEAST_CACHE_BYTES);
        options.checkpoint_wal_bytes = (options.checkpoint_wal_bytes / u64::from(member.partitions())).max(LEAST_MERGE_BYTES);
        options.dir = ledger_dir(config, partition.number());
        let followed = tokio::task::spawn_blocking(move || member.follow(partition.number(), options)).await;
        Ok(followed.map_err(|error| HostError::Internal(error.to_string()))??)
    }

    /// Looks on at a partition of a cluster, without a copy; see [`Bystander::wait`]. `None` where this host has a copy already.
    ///
    /// # Errors
    /// Fails where the rest of a copy that was left cannot be removed.
    pub async fn look_on(config: &Config, member: &ClusterMember, partition: Partition) -> Result<Option<Bystander>, StartError> {
        let (dir, member) = (ledger_dir(config, partition.number()), member.clone());
        if partition.is_first() || dir.exists() {
            return Ok(None);
        }
        let looking = tokio::task::spawn_blocking(move || member.look_on(partition.number(), &dir)).await;
        Ok(Some(looking.map_err(|error| HostError::Internal(error.to_string()))??))
    }

    /// Ends the host and its process: takes no new events, gives runs that have started `grace` to end, and closes the ledger. Runs that
    /// are active still go on at the next start where their binding lets them, and end as `host_restarted` where it does
    /// not; runs that wait stay where they are.
    pub async fn shutdown(&self, grace: Duration) {
        self.0.shared.stopping.cancel();
        self.close(grace).await;
        self.0.process.shutdown().await;
    }

    /// Ends the host as [`Host::shutdown`] does, while the process goes on and may open a ledger again: another host takes over this one.
    pub async fn close(&self, grace: Duration) {
        self.0.cell.close(grace).await;
        self.0.process.forget(&self.0.cell);
    }

    /// True if what a principal sees is in the partition of this host. A principal of no workspace may ask for anything.
    #[must_use]
    pub fn serves(&self, principal: &Principal) -> bool {
        principal.workspace.is_none() || self.0.cell.runs.partition.has(principal.workspace.as_deref())
    }

    /// The process of this host.
    #[must_use]
    pub fn process(&self) -> &HostProcess {
        &self.0.process
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.0.process.config()
    }

    /// True where this host was asked to give the ledger of its cluster to another one.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.0.cell.ledger.gives_way()
    }

    /// The ledger, for reading. All writes go through the kernel.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.0.cell.ledger
    }

    /// The read port of the kernel.
    #[must_use]
    pub fn records(&self) -> Records {
        Records::new(self.0.cell.ledger.clone())
    }

    /// The threads of the host, as streams of facts.
    #[must_use]
    pub fn threads(&self) -> Threads {
        self.0.threads.clone()
    }

    /// The writes of a face that belong to no run.
    #[must_use]
    pub fn record_writer(&self) -> RecordWriter {
        RecordWriter::new(self.0.cell.ledger.clone())
    }

    /// A report of each file of the plugins directory, by name.
    #[must_use]
    pub fn plugins(&self) -> Vec<PluginReport> {
        self.0.process.plugins()
    }

    /// The manifest of the runner with this id, if it serves now.
    #[must_use]
    pub fn runner(&self, id: &RunnerId) -> Option<RunnerManifest> {
        self.0.shared.plugins.runner(id).map(|runner| (*runner.manifest).clone())
    }

    /// The manifests of the runners that executors serve, by id, each with the workspace whose executors have brought it. Those of
    /// `[[external_runners]]` belong to no workspace.
    #[must_use]
    pub fn external_runners(&self) -> Vec<(RunnerManifest, Option<String>)> {
        self.0.shared.external_runners()
    }

    /// A report of each binding, in the order of the configuration.
    #[must_use]
    pub fn bindings(&self) -> Vec<BindingReport> {
        readiness::bindings(&self.0.shared)
    }

    /// The readiness of the host.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.0.cell.readiness(&self.0.shared)
    }

    /// Largest file that is fetched, in bytes (`agui.fetch_bytes`, `limits.artifact_bytes`).
    #[must_use]
    pub fn fetch_limit(&self) -> u64 {
        let config = self.config();
        config.agui.fetch_bytes.min(config.limits.artifact_bytes)
    }

    /// Fetches a file that a client names, from a host of `agui.fetch_hosts`, at an address that is public or that the
    /// operator allows; its redirects are judged alike. The response has the status of the last of them, and no more than
    /// [`Host::fetch_limit`] bytes until `deadline`.
    ///
    /// # Errors
    /// The errors of [`agent_host_providers::egress`].
    pub async fn fetch(&self, url: &str, deadline: Instant) -> Result<Response, ApiError> {
        let setup = self.0.shared.setup();
        setup.services.egress.fetch(url, &setup.config.agui.fetch_hosts, self.fetch_limit(), deadline).await
    }

    /// Reads the configuration again: [`HostProcess::reload_again`].
    ///
    /// # Errors
    /// As [`HostProcess::reload_again`].
    pub async fn reload_again(&self) -> Result<ReloadReport, ReloadError> {
        self.0.process.reload_again().await
    }

    /// Takes another configuration: [`HostProcess::reload`].
    ///
    /// # Errors
    /// As [`HostProcess::reload`].
    pub async fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        self.0.process.reload(config).await
    }

    /// Counts the reloads.
    #[must_use]
    pub fn reloaded(&self) -> watch::Receiver<u64> {
        self.0.shared.reloads.subscribe()
    }

    /// The setup was replaced: what follows from it is looked at anew.
    pub fn setup_changed(&self) {
        self.0.cell.intake.setup_changed();
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.0.shared.keys
    }

    /// Makes a key: [`Keys::create`].
    ///
    /// # Errors
    /// As [`Keys::create`].
    pub async fn create_key(&self, by: &Principal, wanted: NewKey) -> Result<(Key, String), HostError> {
        self.keys().create(&self.0.cell.ledger, by, wanted).await
    }

    /// Takes a key back: [`Keys::revoke`].
    ///
    /// # Errors
    /// As [`Keys::revoke`].
    pub async fn revoke_key(&self, by: &Principal, id: &str) -> Result<Key, HostError> {
        self.keys().revoke(&self.0.cell.ledger, by, id).await
    }

    /// The principal of this token: a key, the credential of an executor, the token of a lease or that of an approver.
    ///
    /// # Errors
    /// Fails with [`HostError::Unauthenticated`] if the token is unknown, revoked or expired.
    pub fn principal_of(&self, token: &str) -> Result<Principal, HostError> {
        principals::principal_of(&self.0.shared, &self.0.cell, token)
    }

    /// The principal of the key with this id, for tokens that this host made for the holder of the key; `None` if the key was
    /// revoked or has expired.
    #[must_use]
    pub fn key_holder(&self, id: &str) -> Option<Principal> {
        self.keys().holder(id)
    }

    /// The key whose budget pays for a run that this principal begins; `None` for principals without a budget.
    ///
    /// # Errors
    /// [`HostError::TokenBudget`] if its budget of today is used up.
    pub fn charged_key(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        self.keys().charged(principal)
    }

    /// The remaining validity of a principal; `None` without an end.
    #[must_use]
    pub fn welcome(&self, principal: &Principal) -> Option<Validity> {
        self.keys().welcome(principal)
    }

    /// The numbers of this host, to count with.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.shared.metrics
    }

    /// Writes all metrics in the text format of OpenMetrics, without the last line (`# EOF`). May read from the disk.
    ///
    /// # Errors
    /// Fails if the output cannot be written.
    pub fn write_metrics(&self, page: &mut String) -> fmt::Result {
        self.0.process.write_metrics(page)
    }

    /// Makes a backup of the committed state in a folder of this name below the backup directory ([`Config::backups`]).
    /// Writes continue meanwhile. The backup is completed even if the caller goes away.
    ///
    /// # Errors
    /// [`HostError::Invalid`] for a name that cannot be, [`HostError::Conflict`] where there is one of this name or
    /// another backup is being made, [`HostError::InsufficientStorage`], [`HostError::Unavailable`].
    pub async fn backup(&self, name: &str) -> Result<BackupReport, HostError> {
        self.0.cell.backup(self.config(), &self.0.backing_up, name).await
    }

    /// Until when what one request names is to be fetched (`agui.fetch_ms`).
    #[must_use]
    pub fn fetch_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config().agui.fetch_ms)
    }

    /// The signature of a message. Only this host can make it, and it is valid as long as the ledger is kept. The signature
    /// may be part of a URL. `purpose` is a constant of the caller: a signature for one purpose is invalid for another.
    #[must_use]
    pub fn sign(&self, purpose: &'static str, message: &[u8]) -> String {
        self.0.cell.runs.lease_key.sign(purpose, message)
    }

    /// True if a signature is that of the message for this purpose. The comparison takes constant time.
    #[must_use]
    pub fn is_signed(&self, purpose: &'static str, message: &[u8], signature: &str) -> bool {
        is_signature(&self.0.cell.runs.lease_key, purpose, message, signature)
    }
}

/// Looks at a component file as admission does, without serving it.
///
/// # Errors
/// Fails if the engine cannot be started. A file that would be refused is no error: the report has the reason.
pub async fn inspect(path: &Path, limits: &Limits) -> Result<PluginReport, SandboxError> {
    // One instance is enough to read manifests, and starts faster than a pool for thousands.
    let limits = Limits { max_live_runs: 1, ..limits.clone() };
    let sandbox: Sandbox = agent_host_sandbox::Options { limits, code_cache: None, compiler: None, components: None }.build()?;
    Ok(sandbox.inspect(path).await)
}

fn make_directories(config: &Config) -> Result<(), StartError> {
    for dir in [&config.data_dir, &config.plugins_dir] {
        std::fs::create_dir_all(dir).map_err(|source| StartError::Directory { path: dir.clone(), source })?;
    }
    Ok(())
}

/// The directory of the ledger, or of the copy of this partition.
#[must_use]
pub fn ledger_dir(config: &Config, partition: u32) -> PathBuf {
    let name = if partition == 0 { "ledger".to_owned() } else { format!("ledger-{partition}") };
    config.data_dir.join(name)
}

fn ledger_options(config: &Config) -> agent_host_ledger::Options {
    let defaults = agent_host_ledger::Options::new(ledger_dir(config, 0));
    let snapshot_log_bytes = config.cluster.as_ref().map_or(defaults.snapshot_log_bytes, |cluster| cluster.snapshot_log_bytes);
    agent_host_ledger::Options {
        snapshot_log_bytes,
        min_free_disk_bytes: config.limits.min_free_disk_bytes,
        artifact_unreferenced: Duration::from_millis(config.limits.artifact_unreferenced_ms),
        ..defaults
    }
}

/// The membership that a configuration asks for. `None` where it has a ledger of its own.
///
/// # Errors
/// [`StartError::Ledger`] where the URL is wrong, [`StartError::Password`] where the password cannot be read.
pub fn cluster_options(config: &Config, version: &str) -> Result<Option<ClusterOptions>, StartError> {
    let (Some(ledger), Some(cluster)) = (&config.ledger, &config.cluster) else { return Ok(None) };
    let password = cluster.password.as_ref().map(Secret::read).transpose()?;
    let server = PostgresServer::parse(ledger, password.map(|password| password.expose().to_owned()));
    Ok(Some(ClusterOptions {
        server: server.map_err(|error| OpenError::from(ClusterError::from(error)))?,
        advertise: cluster.advertise.clone(),
        version: version.to_owned(),
        lease: Duration::from_millis(cluster.lease_ms),
        followers: cluster.followers,
        blobs: cluster.blobs.as_deref().map(StorageAddress::parse).transpose().map_err(OpenError::from)?,
    }))
}

/// The secret by which the hosts of a cluster know each other. `None` where requests are not forwarded.
///
/// # Errors
/// [`StartError::ClusterSecret`] where it cannot be read, [`StartError::ShortClusterSecret`] where it could be guessed.
pub fn cluster_secret(config: &Config) -> Result<Option<Secret>, StartError> {
    let Some(reference) = config.cluster.as_ref().and_then(|cluster| cluster.secret.as_ref()) else { return Ok(None) };
    let secret = Secret::read(reference).map_err(StartError::ClusterSecret)?;
    let bytes = secret.expose().len();
    if bytes < MIN_CLUSTER_SECRET {
        return Err(StartError::ShortClusterSecret { bytes, least: MIN_CLUSTER_SECRET });
    }
    Ok(Some(secret))
}
