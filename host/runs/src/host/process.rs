//! The process of a host: the engine, the plugins, the services and the keys, which it has once, whatever ledger it serves with.

use std::{path::PathBuf, sync::Arc};

use agent_host_config::{Config, ConfigError};
use agent_host_ledger::Ledger;
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
    policy::{StartError, library::LibraryError, setup::Setup},
};

/// A process that hosts runs, with or without a ledger at the moment: a host of a cluster has one only while it is the active host. Cheap to
/// clone.
#[derive(Clone)]
pub struct HostProcess(Arc<ProcessState>);

struct ProcessState {
    shared: Arc<Shared>,
    reloading: Reloads,
    /// The cells that are open.
    cells: Mutex<Vec<Cell>>,
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
        Ok(Self(Arc::new(ProcessState { shared, reloading: Reloads::default(), cells: Mutex::default() })))
    }

    /// Serves with a ledger: brings what a crash left to its end, and lets runs that waited go on.
    ///
    /// # Errors
    /// Fails if the ledger cannot be recovered, or lacks a file of the library that cannot be read any more.
    pub async fn open(&self, ledger: Ledger) -> Result<Host, StartError> {
        upkeep::set_clock(&ledger)?;
        let _unchanged = self.0.reloading.lock().await;
        self.keep_library(&ledger).await?;
        let shared = &self.0.shared;
        ledger.set_quotas(shared.setup().quotas());
        shared.keys.load(&ledger)?;
        let cell = Cell::open(shared, ledger).await?;
        cell.keep_clean(shared);
        cell.keep_key_usage(shared);
        cell.watch_clock();
        self.0.cells.lock().push(cell.clone());
        Ok(Host::new(self.clone(), cell))
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
        shared.replace_setup(after);
        Ok(())
    }

    /// The cell is closed.
    pub(super) fn forget(&self, closed: &Cell) {
        self.0.cells.lock().retain(|cell| !cell.runs.is_same(&closed.runs));
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
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
        self.0.reloading.reload_again(&self.0.shared, || self.0.cells.lock().clone()).await
    }

    /// Takes another configuration. Runs that have begun go on with the setup that they began with.
    ///
    /// # Errors
    /// Fails if a part of the configuration is invalid or cannot change while the host runs. The old configuration stays in
    /// force then.
    pub async fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        self.0.reloading.reload(&self.0.shared, || self.0.cells.lock().clone(), config).await
    }
}
