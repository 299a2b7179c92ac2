//! The process of a host: the engine, the plugins, the services and the keys, which it has once, whatever ledger it serves with.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use agent_host_config::{Config, ConfigError};
use agent_host_ledger::{CopyReader, Ledger, Partition};
use agent_host_protocol::{PluginReport, time};
use agent_host_sandbox::Plugins;
use parking_lot::Mutex;

use super::{
    Host,
    cell::Cell,
    make_directories, readiness,
    reload::{ReloadError, ReloadReport, Reloads},
    upkeep,
};
use crate::{
    execution::Shared,
    policy::{StartError, key_limits::PartitionUsage, keys::Keys, library::LibraryError, setup::Setup},
};

/// Interval between looks at the keys in a copy.
const KEYS_LOOK: Duration = Duration::from_millis(200);

/// A process that hosts runs, with the ledgers that it has at the moment: a host of a cluster has those of the partitions that it owns. Cheap
/// to clone.
#[derive(Clone)]
pub struct HostProcess(Arc<ProcessState>);

struct ProcessState {
    shared: Arc<Shared>,
    reloading: Reloads,
    /// The cells that are open.
    cells: Arc<Mutex<Vec<Cell>>>,
}

impl HostProcess {
    /// Starts the engine, admits the plugins and opens the services. `compiler` is a program whose processes compile components
    /// ([`agent_host_sandbox::COMPILER`]): what a component asks of a compiler is bounded then.
    ///
    /// # Errors
    /// Fails if a step of the start fails. A plugin or binding that does not work is no error: [`Host::readiness`] reports it.
    pub async fn start(config: Config, compiler: Option<PathBuf>) -> Result<Self, StartError> {
        config.check()?;
        make_directories(&config)?;
        let sandbox = agent_host_sandbox::Options {
            limits: config.limits.clone(),
            code_cache: Some(config.data_dir.join("code")),
            compiler,
            components: Some(config.data_dir.join("components")),
        }
        .build()?;
        let plugins = Plugins::open(&config.plugins_dir, sandbox.clone()).await?;
        let setup = Setup::new(config, None).await?;
        let shared = Arc::new(Shared::new(setup, sandbox, plugins));
        readiness::log_problems(&shared);
        Ok(Self(Arc::new(ProcessState { shared, reloading: Reloads::default(), cells: Arc::default() })))
    }

    /// Serves with the ledger of a partition: brings what a crash left to its end, and lets runs that waited go on.
    ///
    /// # Errors
    /// Fails if the ledger cannot be recovered, or lacks a file of the library that cannot be read any more.
    pub async fn open(&self, ledger: Ledger, partition: Partition) -> Result<Host, StartError> {
        upkeep::set_clock(&ledger)?;
        let _unchanged = self.0.reloading.lock().await;
        self.keep_library(&ledger).await?;
        let shared = &self.0.shared;
        ledger.set_quotas(shared.setup().quotas());
        shared.keys.usage().load(&ledger.copy_reader(), partition)?;
        if partition.is_first() {
            shared.keys.load(&ledger.copy_reader())?;
        }
        let cell = Cell::open(shared, ledger, partition).await?;
        cell.keep_clean(shared);
        cell.keep_key_usage(shared);
        cell.watch_clock();
        self.0.cells.lock().push(cell.clone());
        Ok(Host::new(self.clone(), cell))
    }

    /// Ends what the process has besides its ledgers.
    pub async fn shutdown(&self) {
        self.0.shared.stopping.cancel();
        self.0.shared.setup().services.tools.shutdown().await;
    }

    /// Puts the files of the library into a ledger. Files that were changed since the configuration was read are read again with all of it.
    async fn keep_library(&self, ledger: &Ledger) -> Result<(), StartError> {
        let shared = &self.0.shared;
        let before = shared.setup();
        match before.services.library.keep_in(ledger).await {
            Err(LibraryError::Changed { path }) => {
                tracing::info!(path = %path.display(), "a file of the library was changed: skills and static references are read again");
            }
            kept => return Ok(kept?),
        }
        let after = Setup::new((*before.config).clone(), Some(&before)).await?;
        after.services.library.keep_in(ledger).await?;
        let cells = self.serving_cells();
        for cell in &cells {
            after.services.library.keep_in(&cell.ledger).await?;
        }
        shared.replace_setup(after);
        cells.iter().for_each(|cell| cell.intake.setup_changed());
        Ok(())
    }

    /// The cells that are not being closed.
    fn serving_cells(&self) -> Vec<Cell> {
        self.0.cells.lock().iter().filter(|cell| !cell.runs.stopping.is_cancelled()).cloned().collect()
    }

    /// Follows the keys in the copy of the first partition, until the copy is closed: another host makes and revokes them.
    pub fn follow_keys(&self, copy: CopyReader) {
        let (shared, cells) = (Arc::clone(&self.0.shared), Arc::clone(&self.0.cells));
        tokio::spawn(async move {
            let mut read = None;
            while let Some(last) = copy.last_batch() {
                let is_owner = cells.lock().iter().any(|cell| cell.runs.partition.is_first());
                if read != Some(last) && !is_owner {
                    let (reading, reader) = (Arc::clone(&shared), copy.clone());
                    match tokio::task::spawn_blocking(move || reading.keys.load(&reader)).await {
                        Ok(Ok(())) => read = Some(last),
                        Ok(Err(error)) => tracing::debug!(%error, "the keys in the copy of this host cannot be read"),
                        Err(_) => return,
                    }
                }
                tokio::time::sleep(KEYS_LOOK).await;
            }
        });
    }

    /// The use of keys with a budget by the runs of a partition that this host owns, for [`Self::note_key_usage`] of another host.
    #[must_use]
    pub fn key_usage(&self, partition: Partition) -> PartitionUsage {
        self.0.shared.keys.usage().of_partition(partition, time::now())
    }

    /// The owner of a partition says what its runs have used for keys: those of no workspace are used in several partitions.
    pub fn note_key_usage(&self, partition: Partition, usage: PartitionUsage) {
        self.0.shared.keys.usage().note(partition, usage);
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.0.shared.keys
    }

    /// The cell is closed.
    pub(super) fn forget(&self, closed: &Cell) {
        self.0.cells.lock().retain(|cell| !cell.runs.is_same(&closed.runs));
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// A report of each file of the plugins directory, by name.
    #[must_use]
    pub fn plugins(&self) -> Vec<PluginReport> {
        self.0.shared.plugins.reports()
    }

    /// Problems of the configuration and of what it names, for an operator. The log has had them at the start.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        readiness::problems(&self.0.shared, &self.0.cells.lock().clone())
    }

    /// Writes all metrics in the text format of OpenMetrics, without the last line (`# EOF`). May read from the disk.
    ///
    /// # Errors
    /// Fails if the output cannot be written.
    pub fn write_metrics(&self, page: &mut String) -> fmt::Result {
        let shared = &self.0.shared;
        shared.metrics.write(readiness::numbers(shared, &self.0.cells.lock().clone()), page)
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.0.shared.setup().config)
    }

    /// Says where the configuration is read from again ([`HostProcess::reload_again`]). To be called once.
    pub fn set_reload_source(&self, source: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static) {
        self.0.reloading.set_source(source);
    }

    /// Reads the configuration again, from where the host was started with, and takes it as [`HostProcess::reload`] does.
    ///
    /// # Errors
    /// As [`HostProcess::reload`]; also when there is nothing to read it from, or it cannot be read.
    pub async fn reload_again(&self) -> Result<ReloadReport, ReloadError> {
        self.0.reloading.reload_again(&self.0.shared, || self.serving_cells()).await
    }

    /// Takes another configuration. Runs that have begun go on with the setup that they began with.
    ///
    /// # Errors
    /// Fails if a part of the configuration is invalid or cannot change while the host runs. The old configuration stays in
    /// force then.
    pub async fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        self.0.reloading.reload(&self.0.shared, || self.serving_cells(), config).await
    }
}
