//! `[[external_runners]]`.

use agent_host_protocol::{
    RunnerId,
    manifest::{Capabilities, ContextOwnership, ContextPolicy, FormItem, Permissions, RunnerManifest},
    message::LocalizedText,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A runner whose runs are executed outside of the host. The operator writes its manifest here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalRunnerConfig {
    /// `plugin:AUTHOR/PLUGIN/NAME`.
    #[schemars(with = "String")]
    pub id: RunnerId,
    /// Version, as records show it.
    #[serde(default = "first_version")]
    #[schemars(with = "String")]
    pub version: semver::Version,
    /// Name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Description to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Abilities of the runner.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The most that it can ever use.
    #[serde(default)]
    pub permissions: Permissions,
    /// The context that it asks for. Default: `ownership` `hybrid`, so that the binding decides on its messages.
    #[serde(default = "hybrid")]
    #[schemars(with = "Map<String, Value>")]
    pub context: ContextPolicy,
    /// The form of a binding's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub config_schema: Vec<FormItem>,
    /// Facts for display and diagnosis.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

fn hybrid() -> ContextPolicy {
    ContextPolicy { ownership: ContextOwnership::Hybrid, ..ContextPolicy::default() }
}

pub(crate) const fn first_version() -> semver::Version {
    semver::Version::new(1, 0, 0)
}

/// Checks what the shape of permissions alone does not say.
pub(crate) fn check_permissions(permissions: &Permissions) -> Result<(), String> {
    permissions.http_hosts.iter().try_for_each(|host| {
        agent_host_protocol::hosts::check(host).map_err(|problem| format!("`permissions.http_hosts`: {problem}"))
    })
}

impl ExternalRunnerConfig {
    /// The manifest, in the form of a component's manifest.
    #[must_use]
    pub fn manifest(&self) -> RunnerManifest {
        let label = self.label.clone().unwrap_or_else(|| self.id.name().to_owned());
        RunnerManifest {
            id: self.id.clone(),
            name: self.id.name().to_owned(),
            author: self.id.author().to_owned(),
            plugin: self.id.plugin().to_owned(),
            version: self.version.clone(),
            label: LocalizedText::from_pairs([("en".to_owned(), label)]),
            description: self.description.clone().map(|text| LocalizedText::from_pairs([("en".to_owned(), text)])),
            capabilities: self.capabilities.clone(),
            permissions: self.permissions.clone(),
            context: self.context.clone(),
            config_schema: self.config_schema.clone(),
            metadata: Value::Object(self.metadata.clone()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        check_permissions(&self.permissions)
    }
}
