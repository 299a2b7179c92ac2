//! Shared state of a process, whatever ledgers it owns.

use std::sync::Arc;

use agent_host_protocol::{Limits, RunnerId, RunnerManifest};
use agent_host_sandbox::{Plugins, Sandbox};
use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use crate::policy::{binding::BoundRunner, imports, keys::Keys, registered::RegisteredRunners, setup::Setup};

/// The state that a process has once. Every cell and every run of it holds this.
pub(crate) struct Shared {
    /// The present setup; a reload replaces it.
    setup: ArcSwap<Setup>,
    /// Counts the reloads.
    pub(crate) reloads: watch::Sender<u64>,
    pub(crate) sandbox: Sandbox,
    pub(crate) plugins: Plugins,
    /// Runners whose manifests executors have brought.
    pub(crate) registered: RegisteredRunners,
    /// API keys, those of the ledger that is open.
    pub(crate) keys: Keys,
    pub(crate) metrics: Metrics,
    /// Cancelled when the process stops: no new events, and no run starts.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the grace of a stop is over: what still runs is suspended or ended.
    pub(crate) ending: CancellationToken,
}

impl Shared {
    pub(crate) fn new(setup: Setup, sandbox: Sandbox, plugins: Plugins) -> Self {
        Self {
            setup: ArcSwap::from_pointee(setup),
            reloads: watch::Sender::new(0),
            sandbox,
            plugins,
            registered: RegisteredRunners::default(),
            keys: Keys::default(),
            metrics: Metrics::default(),
            stopping: CancellationToken::new(),
            ending: CancellationToken::new(),
        }
    }

    /// The present setup.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }

    pub(crate) fn replace_setup(&self, setup: Setup) {
        self.setup.store(Arc::new(setup));
    }

    /// The limits of the present setup.
    pub(crate) fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.setup.load().limits)
    }

    /// The guest or the executors that serve a runner now. External runners of the
    /// configuration come before the plugins directory, that before manifests that executors have brought, and importers come last.
    pub(crate) fn serving(&self, id: &RunnerId) -> Option<BoundRunner> {
        let setup = self.setup.load();
        let external = |manifest| BoundRunner::External { manifest, component: String::new() };
        let guest = || self.plugins.runner(id).map(BoundRunner::Guest);
        let registered = || self.registered.get(id, &setup.config).map(external);
        let import = || imports::manifest(id).map(|manifest| BoundRunner::Import(Arc::new(manifest)));
        setup.external(id).map(external).or_else(guest).or_else(registered).or_else(import)
    }

    /// The manifests of the runners that executors serve, by id, each with the workspace whose executors brought it. Those of the
    /// configuration belong to no workspace.
    pub(crate) fn external_runners(&self) -> Vec<(RunnerManifest, Option<String>)> {
        let setup = self.setup();
        let mut all: Vec<_> = setup.externals().into_iter().map(|manifest| (manifest, None)).collect();
        for (manifest, workspace) in self.registered.all(&setup.config) {
            if setup.external(&manifest.id).is_none() && self.plugins.runner(&manifest.id).is_none() {
                all.push(((*manifest).clone(), workspace));
            }
        }
        all.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        all
    }

    /// Ids of the runners that plugins hold, for messages.
    pub(crate) fn runner_ids(&self) -> Vec<String> {
        self.plugins.runners().iter().map(|runner| runner.manifest.id.to_string()).collect()
    }
}
