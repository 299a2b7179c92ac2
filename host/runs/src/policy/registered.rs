//! Runners whose manifests executors have brought at their registration, and the judgement of `[[executor_runners]]` on them.
//!
//! A manifest is here as long as an executor that has brought it is registered. It is judged at the registration, and again each
//! time it is asked for: what a reloaded configuration no longer allows is not served.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use agent_host_config::Config;
use agent_host_ledger::Partition;
use agent_host_protocol::{
    RunnerId, RunnerManifest,
    encoded::json_len,
    hosts,
    limits::is_shallow,
    manifest::{Capabilities, ContextPolicy, FormItem, Permissions},
    message::LocalizedText,
};
use parking_lot::RwLock;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest manifest, in bytes of JSON: forms of people's runners have a few kilobytes.
const MAX_MANIFEST_BYTES: usize = 32 * 1024;

/// A manifest as an executor sends it: in the form of `GET /api/v1/runners`, where all but the id may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentManifest {
    /// `plugin:AUTHOR/PLUGIN/NAME`.
    pub id: RunnerId,
    /// The last part of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The first part of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The middle part of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// Version, as records show it.
    #[serde(default = "first_version")]
    #[schema(value_type = String)]
    pub version: Version,
    /// Name for people.
    #[serde(default)]
    pub label: LocalizedText,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<LocalizedText>,
    /// Abilities of the runner.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The most that it can ever use. More than `[[executor_runners]]` allows is refused.
    #[serde(default)]
    pub permissions: Permissions,
    /// The context that it asks for.
    #[serde(default)]
    pub context: ContextPolicy,
    /// The form of a binding's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_schema: Vec<FormItem>,
    /// Facts for display and diagnosis.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub metadata: Value,
}

fn first_version() -> Version {
    Version::new(1, 0, 0)
}

impl SentManifest {
    /// The manifest, in the form of a component's manifest.
    ///
    /// # Errors
    /// Fails with the problem and the correct form.
    pub(crate) fn checked(self) -> Result<RunnerManifest, String> {
        let id = &self.id;
        for (part, sent, own) in
            [("name", &self.name, id.name()), ("author", &self.author, id.author()), ("plugin", &self.plugin, id.plugin())]
        {
            if sent.as_deref().is_some_and(|sent| sent != own) {
                return Err(format!(
                    "the manifest of `{id}`: `{part}` is not that part of the id: leave it out, or send `{own}`"
                ));
            }
        }
        if json_len(&self) > MAX_MANIFEST_BYTES {
            return Err(format!("the manifest of `{id}` has more than {MAX_MANIFEST_BYTES} bytes"));
        }
        let defaults = self.config_schema.iter().filter_map(|item| item.default.as_ref());
        if !defaults.chain([&self.metadata]).all(is_shallow) {
            return Err(format!("the manifest of `{id}` nests deeper than 64 levels"));
        }
        for host in &self.permissions.http_hosts {
            hosts::check(host).map_err(|problem| format!("the manifest of `{id}`: `permissions.http_hosts`: {problem}"))?;
        }
        let (name, author, plugin) = (id.name().to_owned(), id.author().to_owned(), id.plugin().to_owned());
        let own_label = || LocalizedText::from_pairs([("en".to_owned(), name.clone())]);
        let label = if self.label.pairs().next().is_some() { self.label } else { own_label() };
        Ok(RunnerManifest {
            id: self.id,
            name,
            author,
            plugin,
            version: self.version,
            label,
            description: self.description,
            capabilities: self.capabilities,
            permissions: self.permissions,
            context: self.context,
            config_schema: self.config_schema,
            metadata: self.metadata,
        })
    }
}

/// Judges a manifest that an executor of a workspace brings.
///
/// # Errors
/// Fails with the reason and the remedy.
pub(crate) fn judge(config: &Config, manifest: &RunnerManifest, workspace: Option<&str>) -> Result<(), String> {
    let id = &manifest.id;
    let mut exceeded = None;
    for entry in config.executor_runners.iter().filter(|entry| entry.names(id, workspace)) {
        match entry.exceeded(&manifest.permissions) {
            None => return Ok(()),
            Some(more) => exceeded = Some(more),
        }
    }
    Err(match exceeded {
        Some(more) => format!(
            "the manifest of `{id}` asks for `{more}`, which its entry in `[[executor_runners]]` does not allow: ask for less, or let \
             the operator add it to `permissions` there"
        ),
        None => format!(
            "executors may not bring the manifest of `{id}`: the operator names the runner in `[[executor_runners]]`, or writes its \
             manifest in `[[external_runners]]`"
        ),
    })
}

/// A manifest and its executors.
struct RegisteredManifest {
    manifest: Arc<RunnerManifest>,
    workspace: Option<String>,
    /// Each with the partition in which it is registered: one of no workspace is in all of them.
    executors: BTreeSet<(u32, String)>,
}

/// The manifests that registered executors have brought.
#[derive(Default)]
pub(crate) struct RegisteredRunners(RwLock<BTreeMap<RunnerId, RegisteredManifest>>);

impl RegisteredRunners {
    /// Adds the manifests of an executor, all or none.
    ///
    /// # Errors
    /// Fails if another executor has brought a different manifest of the same runner.
    pub(crate) fn add(
        &self,
        partition: Partition,
        executor: &str,
        workspace: Option<&str>,
        manifests: &[RunnerManifest],
    ) -> Result<(), String> {
        let mut all = self.0.write();
        for manifest in manifests {
            let other = all.get(&manifest.id);
            if other.is_some_and(|other| *other.manifest != *manifest || other.workspace.as_deref() != workspace) {
                return Err(format!(
                    "another executor has brought a different manifest of `{}`: register with the same one, or deregister that executor",
                    manifest.id
                ));
            }
        }
        for manifest in manifests {
            let registered = all.entry(manifest.id.clone()).or_insert_with(|| RegisteredManifest {
                manifest: Arc::new(manifest.clone()),
                workspace: workspace.map(str::to_owned),
                executors: BTreeSet::new(),
            });
            registered.executors.insert((partition.number(), executor.to_owned()));
        }
        Ok(())
    }

    /// An executor is registered in a partition no more: takes away the manifests that nobody else has brought.
    pub(crate) fn remove(&self, partition: Partition, executor: &str) {
        let executor = (partition.number(), executor.to_owned());
        self.0.write().retain(|_, registered| {
            registered.executors.remove(&executor);
            !registered.executors.is_empty()
        });
    }

    /// The manifest of a runner, if the configuration allows it.
    pub(crate) fn get(&self, id: &RunnerId, config: &Config) -> Option<Arc<RunnerManifest>> {
        let all = self.0.read();
        let RegisteredManifest { manifest, workspace, .. } = all.get(id)?;
        judge(config, manifest, workspace.as_deref()).is_ok().then(|| Arc::clone(manifest))
    }

    /// The manifests that the configuration allows, each with the workspace of its executors, by id.
    pub(crate) fn all(&self, config: &Config) -> Vec<(Arc<RunnerManifest>, Option<String>)> {
        let all = self.0.read();
        let allowed = all.values().filter(|it| judge(config, &it.manifest, it.workspace.as_deref()).is_ok());
        allowed.map(|it| (Arc::clone(&it.manifest), it.workspace.clone())).collect()
    }
}
