//! `[runner_aliases]`.

use std::collections::BTreeMap;

use agent_host_protocol::RunnerId;
use serde::{Deserialize, Serialize};

/// The runners of names that configurations of pipelines have for them: runners that LangBot once had built in, and the official
/// plugin that replaced the first of them.
const DEFAULTS: [(&str, &str); 8] = [
    ("local-agent", "plugin:agent-host/local-agent/default"),
    ("plugin:langbot/local-agent/default", "plugin:agent-host/local-agent/default"),
    ("dify-service-api", "plugin:langbot/dify-agent/default"),
    ("n8n-service-api", "plugin:langbot/n8n-agent/default"),
    ("coze-api", "plugin:langbot/coze-agent/default"),
    ("dashscope-app-api", "plugin:langbot/dashscope-agent/default"),
    ("langflow-api", "plugin:langbot/langflow-agent/default"),
    ("tbox-app-api", "plugin:langbot/tbox-agent/default"),
];

/// Runners by other names, for queries of pipelines: a name of a configuration, or the id of a runner that is not installed here.
/// An entry replaces the default of its name; other defaults stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "BTreeMap<String, RunnerId>", into = "BTreeMap<String, RunnerId>")]
#[schemars(with = "BTreeMap<String, String>")]
pub struct RunnerAliases(BTreeMap<String, RunnerId>);

impl Default for RunnerAliases {
    fn default() -> Self {
        Self(DEFAULTS.iter().filter_map(|(name, id)| Some(((*name).to_owned(), id.parse().ok()?))).collect())
    }
}

impl From<BTreeMap<String, RunnerId>> for RunnerAliases {
    fn from(entries: BTreeMap<String, RunnerId>) -> Self {
        let mut aliases = Self::default();
        aliases.0.extend(entries);
        aliases
    }
}

impl From<RunnerAliases> for BTreeMap<String, RunnerId> {
    fn from(aliases: RunnerAliases) -> Self {
        aliases.0
    }
}

impl RunnerAliases {
    /// The runner of a name.
    #[must_use]
    pub fn runner(&self, name: &str) -> Option<&RunnerId> {
        self.0.get(name)
    }

    /// The names of a runner.
    pub fn names<'a>(&'a self, id: &'a RunnerId) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(_, named)| *named == id).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_replace_defaults_by_name() {
        let aliases = RunnerAliases::default();
        assert_eq!(aliases.0.len(), DEFAULTS.len(), "each default is the id of a runner");
        let own: RunnerAliases =
            toml::from_str("local-agent = \"plugin:acme/agent/default\"\nours = \"plugin:acme/x/y\"").unwrap();
        assert_eq!(own.runner("local-agent").unwrap().to_string(), "plugin:acme/agent/default");
        assert_eq!(own.runner("ours").unwrap().to_string(), "plugin:acme/x/y");
        assert_eq!(own.runner("coze-api"), aliases.runner("coze-api"));
        assert!(own.runner("nothing").is_none());
        let id = "plugin:langbot/coze-agent/default".parse().unwrap();
        assert_eq!(own.names(&id).collect::<Vec<_>>(), ["coze-api"]);
        assert!(toml::from_str::<RunnerAliases>("x = \"echo\"").is_err());
    }
}
