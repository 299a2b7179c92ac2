//! The site of a host of the benchmarks: configuration, plugins and data in one directory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::Value;

use super::session::Session;
use crate::{
    host::{Group, HostProcess, Start},
    http::Client,
};

/// Compiling a hundred plugins takes this long on a slow machine.
const START: Duration = Duration::from_secs(180);

/// A site.
#[derive(Debug)]
pub(crate) struct Site {
    dir: PathBuf,
    plugins: usize,
}

/// A host that is ready, and how long that took.
#[derive(Debug)]
pub(crate) struct ReadyHost {
    pub(crate) host: HostProcess,
    pub(crate) took: Duration,
}

impl Site {
    /// Lays out a site with one plugin, whose host answers every event with `runner`.
    pub(crate) fn new(session: &Session, name: &str, runner: &str, component: &Path) -> anyhow::Result<Self> {
        Self::with_plugins(session, name, runner, |plugins| one(component, plugins))
    }

    /// A site with a configuration: `config` has everything but the address of the host.
    pub(crate) fn configured(session: &Session, name: &str, component: &Path, config: &str) -> anyhow::Result<Self> {
        Self::holding(session, name, &[component], config)
    }

    /// The same with more than one plugin.
    pub(crate) fn holding(session: &Session, name: &str, components: &[&Path], config: &str) -> anyhow::Result<Self> {
        let all = |plugins: &Path| components.iter().map(|component| one(component, plugins)).sum();
        Self::lay_out(session, name, config, all)
    }

    /// The same with plugins from `write`, which gets the plugins directory and gives how many it wrote.
    pub(crate) fn with_plugins(
        session: &Session,
        name: &str,
        runner: &str,
        write: impl FnOnce(&Path) -> anyhow::Result<usize>,
    ) -> anyhow::Result<Self> {
        Self::lay_out(session, name, &format!("[[bindings]]\nid = \"bench\"\nrunner = \"{runner}\"\n"), write)
    }

    fn lay_out(
        session: &Session,
        name: &str,
        config: &str,
        write: impl FnOnce(&Path) -> anyhow::Result<usize>,
    ) -> anyhow::Result<Self> {
        let dir = session.dir(name)?;
        fs::write(
            dir.join("agent-host.toml"),
            format!("[server]\nlisten = \"127.0.0.1:0\"\nloopback_without_key = true\n\n{config}"),
        )?;
        let plugins = dir.join("plugins");
        fs::create_dir(&plugins)?;
        Ok(Self { plugins: write(&plugins)?, dir })
    }

    /// The configuration, as an argument.
    pub(crate) fn config(&self) -> String {
        self.dir.join("agent-host.toml").display().to_string()
    }

    /// A file or folder beside the configuration.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts the host as a process; returns when it is ready with all plugins.
    pub(crate) fn start(&self, session: &Session) -> anyhow::Result<ReadyHost> {
        self.start_in(session, &[])
    }

    /// The same with variables of its environment.
    pub(crate) fn start_in(&self, session: &Session, environment: &[(&str, &str)]) -> anyhow::Result<ReadyHost> {
        let started = Instant::now();
        let config = self.dir.join("agent-host.toml");
        let log = self.dir.join("agent-host.log");
        let binary = session.host_binary();
        let host = HostProcess::start(&Start { binary, config: &config, environment, log, within: START, group: Group::Ours })?;
        let ready = Client::new(host.url()).get("/readyz")?;
        let took = started.elapsed();
        let serving = ready.get("plugins_ready").and_then(Value::as_u64);
        anyhow::ensure!(serving == Some(self.plugins as u64), "{} plugins should serve, the host says: {ready}", self.plugins);
        Ok(ReadyHost { host, took })
    }
}

/// Copies one component into a plugins directory.
fn one(component: &Path, plugins: &Path) -> anyhow::Result<usize> {
    let name = component.file_name().context("a component has no file name")?;
    fs::copy(component, plugins.join(name)).with_context(|| format!("{} cannot be copied", component.display()))?;
    Ok(1)
}

/// The address of a host, as arguments of the load generator.
pub(crate) fn target(host: &HostProcess) -> [String; 4] {
    let address = host.url().trim_start_matches("http://").to_owned();
    ["--address".to_owned(), address, "--pid".to_owned(), host.id().to_string()]
}
