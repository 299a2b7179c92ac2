//! `[[executor_runners]]`.

use agent_host_protocol::{RunnerId, manifest::Permissions};
use serde::{Deserialize, Serialize};

use crate::{external_runners::check_permissions, resources::Names};

/// Runners whose manifests executors may bring when they register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutorRunnersConfig {
    /// Ids of the runners. An id that ends in `*` stands for all ids that begin so.
    #[schemars(with = "Vec<String>")]
    pub runner_ids: Names,
    /// The workspace whose executors may bring them; without it, executors of every workspace and of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The most that such a manifest may ask for. A manifest that asks for more is refused.
    #[serde(default)]
    pub permissions: Permissions,
}

impl ExecutorRunnersConfig {
    /// True if the entry is about this runner and executors of this workspace.
    #[must_use]
    pub fn names(&self, id: &RunnerId, workspace: Option<&str>) -> bool {
        let is_for = self.workspace.is_none() || self.workspace.as_deref() == workspace;
        is_for && self.runner_ids.names(id.as_str())
    }

    /// The first permission that is more than the entry allows, as `list: value`.
    #[must_use]
    pub fn exceeded(&self, asked: &Permissions) -> Option<String> {
        let may = &self.permissions;
        fn more<T: PartialEq + Serialize>(name: &str, asked: &[T], may: &[T]) -> Option<String> {
            let over = asked.iter().find(|one| !may.contains(one))?;
            let shown = serde_json::to_string(over).unwrap_or_default();
            Some(format!("{name}: {}", shown.trim_matches('"')))
        }
        more("models", &asked.models, &may.models)
            .or_else(|| more("tools", &asked.tools, &may.tools))
            .or_else(|| more("knowledge_bases", &asked.knowledge_bases, &may.knowledge_bases))
            .or_else(|| more("history", &asked.history, &may.history))
            .or_else(|| more("events", &asked.events, &may.events))
            .or_else(|| more("conversations", &asked.conversations, &may.conversations))
            .or_else(|| more("artifacts", &asked.artifacts, &may.artifacts))
            .or_else(|| more("state", &asked.state, &may.state))
            .or_else(|| more("storage", &asked.storage, &may.storage))
            .or_else(|| more("runs", &asked.runs, &may.runs))
            .or_else(|| more("platform_api", &asked.platform_api, &may.platform_api))
            .or_else(|| more("http_hosts", &asked.http_hosts, &may.http_hosts))
            .or_else(|| (asked.interactions && !may.interactions).then(|| "interactions".to_owned()))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.runner_ids.0.is_empty() {
            return Err("`runner_ids` names no runner".to_owned());
        }
        check_permissions(&self.permissions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_allowed_is_named() {
        let entry: ExecutorRunnersConfig = toml::from_str(
            "runner_ids = [\"plugin:acme/*\"]\nworkspace = \"w\"\n[permissions]\nmodels = [\"invoke\"]\nhttp_hosts = [\"a.example:443\"]",
        )
        .unwrap();
        let [ours, theirs]: [RunnerId; 2] = ["plugin:acme/a/b", "plugin:other/a/b"].map(|id| id.parse().unwrap());
        assert!(entry.names(&ours, Some("w")) && !entry.names(&theirs, Some("w")) && !entry.names(&ours, None));
        let asked = |text: &str| toml::from_str::<Permissions>(text).unwrap();
        assert_eq!(entry.exceeded(&asked("models = [\"invoke\"]\nhttp_hosts = [\"a.example:443\"]")), None);
        for (text, over) in [
            ("models = [\"invoke\", \"stream\"]", "models: stream"),
            ("http_hosts = [\"b.example:443\"]", "http_hosts: b.example:443"),
            ("state = [\"runner\"]", "state: runner"),
            ("interactions = true", "interactions"),
        ] {
            assert_eq!(entry.exceeded(&asked(text)).as_deref(), Some(over));
        }
    }
}
