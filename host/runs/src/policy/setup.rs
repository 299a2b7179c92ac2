//! The setup that follows from a configuration.

use std::{collections::HashMap, sync::Arc};

use agent_host_config::{Config, ConfigError, Quotas};
use agent_host_ledger::WorkspaceQuotas;
use agent_host_protocol::{Limits, RunnerId, RunnerManifest};
use agent_host_providers::webhook::ResultHooks;

use super::{
    StartError,
    approval::Approvers,
    binding::{self, Binding},
    library::Library,
    services::Services,
    sources::{HookSource, Schedule, open_hooks},
};

/// The setup that follows from a configuration. An operation keeps the `Setup` it started with; a reload does not affect it.
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) services: Arc<Services>,
    pub(crate) bindings: Vec<Arc<Binding>>,
    /// People who may answer what runs ask.
    pub(crate) approvers: Approvers,
    /// Runners whose runs executors execute.
    external: HashMap<RunnerId, Arc<RunnerManifest>>,
    pub(crate) schedules: Vec<Arc<Schedule>>,
    /// Systems that send signed requests.
    pub(crate) hooks: Vec<Arc<HookSource>>,
    /// Webhooks that receive run results.
    pub(crate) webhooks: ResultHooks,
}

impl Setup {
    /// Opens what the configuration names. `before` is the present setup of a running host: what did not change is kept.
    pub(crate) async fn new(config: Config, before: Option<&Self>) -> Result<Self, StartError> {
        config.check()?;
        let bindings = binding::in_order(&config.bindings).map_err(ConfigError::Invalid)?;
        let library = Library::open(&config).await?;
        let services = Arc::new(Services::open(&config, library, before.map(|before| &*before.services)).await?);
        let approvers = Approvers::new(&config.approvers);
        let schedules = config.schedules.iter().map(|schedule| Schedule::new(schedule).map(Arc::new));
        let schedules = schedules.collect::<Result<_, _>>().map_err(ConfigError::Invalid)?;
        let hooks = open_hooks(&config.webhook_sources)?;
        let webhooks = ResultHooks::open(&config.webhooks).map_err(ConfigError::Invalid)?;
        let limits = Arc::new(config.limits.clone());
        let external =
            config.external_manifests().into_iter().map(|manifest| (manifest.id.clone(), Arc::new(manifest))).collect();
        Ok(Self { limits, config: Arc::new(config), services, bindings, approvers, external, schedules, hooks, webhooks })
    }

    /// The bytes that workspaces may keep.
    pub(crate) fn quotas(&self) -> WorkspaceQuotas {
        let Quotas { workspace_bytes, workspaces } = self.config.quotas.clone();
        WorkspaceQuotas { default_bytes: workspace_bytes, workspaces }
    }

    /// The manifest of a runner whose runs executors execute.
    pub(crate) fn external(&self, id: &RunnerId) -> Option<Arc<RunnerManifest>> {
        self.external.get(id).cloned()
    }

    /// The manifests of all such runners, in no order.
    pub(crate) fn externals(&self) -> Vec<RunnerManifest> {
        self.external.values().map(|manifest| (**manifest).clone()).collect()
    }

    /// The binding with this id.
    pub(crate) fn binding(&self, id: &str) -> Option<&Arc<Binding>> {
        self.bindings.iter().find(|binding| binding.config.id == id)
    }

    /// Problems that an operator should look at; of models, those of `of_models` alone.
    pub(crate) fn problems(&self, of_models: impl Fn(&str) -> bool) -> Vec<String> {
        let hooks = self.hooks.iter().filter_map(|hook| hook.problem());
        let services = self.services.problems(of_models).into_iter().chain(self.approvers.problems());
        services.chain(hooks).chain(self.webhooks.problems()).collect()
    }
}
