//! `resources` and `state` of a binding: what a runner may use of what its manifest asks for.

use agent_host_protocol::manifest::{
    ArtifactOperation, ConversationReach, EventOperation, HistoryOperation, KnowledgeOperation, ModelOperation, Permissions,
    RunOperation, StateScope, StorageArea, ToolOperation,
};
use serde::{Deserialize, Serialize};

/// The part of its manifest's requests that a runner may use. An absent field has the default beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResourcePolicy {
    /// Models, by id; `*` at the end matches any rest. Default: all configured ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ids: Option<Names>,
    /// Tools, by name. Default: none. Tools have effects, so each has to be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_names: Option<Names>,
    /// Knowledge bases, by id. Default: all configured ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kb_ids: Option<Names>,
    /// Runners that may be started, by id. Default: all that are installed when the run is created; none without `runs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_ids: Option<Names>,
    /// Secrets that HTTP requests may carry, by name. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_secrets: Option<Names>,
    /// Skills, by name. Default: all configured ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill_names: Option<Names>,
    /// Static references, by name. Default: all configured ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_refs: Option<Names>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelOperation>>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolOperation>>,
    /// If true, a client may bring tools that it executes itself. Default: true if the manifest and `tools` allow tool
    /// calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<bool>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knowledge_bases: Option<Vec<KnowledgeOperation>>,
    /// Default: what the manifest asks for, in the run's own conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryOperation>>,
    /// Default: what the manifest asks for, in the run's own conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventOperation>>,
    /// Conversations that the run reads beside its own: other threads of it (`threads`), or all of its workspace (`workspace`).
    /// Default: none. The manifest must ask for them as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversations: Option<Vec<ConversationReach>>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<ArtifactOperation>>,
    /// Default: `plugin` and `binding`. The area `workspace`, which runners share, must be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Vec<StorageArea>>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactions: Option<bool>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steering: Option<bool>,
    /// Default: none. Starting other runs is given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<Vec<RunOperation>>,
    /// Default: none. Acting on a platform is given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform_api: Option<Vec<String>>,
    /// Default: none. Reaching out is given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_hosts: Option<Vec<String>>,
}

/// Names of things, each whole or with `*` at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(transparent)]
pub struct Names(pub Vec<String>);

impl Names {
    /// The names of `there` that match.
    #[must_use]
    pub fn of(&self, there: impl Iterator<Item = String>) -> Vec<String> {
        there.filter(|name| self.names(name)).collect()
    }

    /// The names of `there` that match; all of them without a list.
    #[must_use]
    pub fn of_or_all(names: Option<&Self>, there: impl Iterator<Item = String>) -> Vec<String> {
        there.filter(|name| names.is_none_or(|names| names.names(name))).collect()
    }

    /// True if a name matches.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        })
    }
}

impl ResourcePolicy {
    /// Takes fields that this policy leaves out from the other.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        fn or<T: Clone>(mine: Option<T>, theirs: &Option<T>) -> Option<T> {
            mine.or_else(|| theirs.clone())
        }
        Self {
            model_ids: or(self.model_ids, &other.model_ids),
            tool_names: or(self.tool_names, &other.tool_names),
            kb_ids: or(self.kb_ids, &other.kb_ids),
            runner_ids: or(self.runner_ids, &other.runner_ids),
            http_secrets: or(self.http_secrets, &other.http_secrets),
            skill_names: or(self.skill_names, &other.skill_names),
            static_refs: or(self.static_refs, &other.static_refs),
            models: or(self.models, &other.models),
            tools: or(self.tools, &other.tools),
            knowledge_bases: or(self.knowledge_bases, &other.knowledge_bases),
            history: or(self.history, &other.history),
            events: or(self.events, &other.events),
            conversations: or(self.conversations, &other.conversations),
            artifacts: or(self.artifacts, &other.artifacts),
            storage: or(self.storage, &other.storage),
            interactions: or(self.interactions, &other.interactions),
            steering: or(self.steering, &other.steering),
            client_tools: or(self.client_tools, &other.client_tools),
            runs: or(self.runs, &other.runs),
            platform_api: or(self.platform_api, &other.platform_api),
            http_hosts: or(self.http_hosts, &other.http_hosts),
        }
    }

    /// The policy in the form of permissions: what a manifest is intersected with.
    #[must_use]
    pub fn permissions(&self, state: Option<&StatePolicy>) -> Permissions {
        fn or_all<T: Copy>(given: Option<&Vec<T>>, all: &[T]) -> Vec<T> {
            given.map_or_else(|| all.to_vec(), Clone::clone)
        }
        Permissions {
            models: or_all(self.models.as_ref(), ModelOperation::ALL),
            tools: or_all(self.tools.as_ref(), ToolOperation::ALL),
            knowledge_bases: or_all(self.knowledge_bases.as_ref(), KnowledgeOperation::ALL),
            history: or_all(self.history.as_ref(), HistoryOperation::ALL),
            events: or_all(self.events.as_ref(), EventOperation::ALL),
            conversations: self.conversations.clone().unwrap_or_default(),
            artifacts: or_all(self.artifacts.as_ref(), ArtifactOperation::ALL),
            state: or_all(state.map(|policy| &policy.scopes), StateScope::ALL),
            storage: or_all(self.storage.as_ref(), &[StorageArea::Plugin, StorageArea::Binding]),
            runs: self.runs.clone().unwrap_or_default(),
            platform_api: self.platform_api.clone().unwrap_or_default(),
            interactions: self.interactions.unwrap_or(true),
            http_hosts: self.http_hosts.clone().unwrap_or_default(),
        }
    }
}

/// Scopes of state that a runner may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StatePolicy {
    /// These scopes and no others; an empty list switches state off.
    pub scopes: Vec<StateScope>,
}
