//! The manifest of a runner (protocol v1, section 3).

use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use crate::{id::RunnerId, message::LocalizedText};

macro_rules! names {
    ($(#[doc = $doc:literal])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
        #[allow(missing_docs, reason = "the names are the meaning")]
        pub enum $name { $(#[serde(rename = $text)] $variant),* }

        impl $name {
            /// Every one, in the order of the contract.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name as JSON shows it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let names = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([$($text),*]));
                names.description(Some(concat!($($doc),*).trim())).into()
            }
        }

        impl ToSchema for $name {}
    };
}

names! { /// What may be asked of a model.
ModelOperation { Invoke = "invoke", Stream = "stream", Rerank = "rerank", Embed = "embed", CountTokens = "count_tokens" } }
names! { /// What may be asked of a tool.
ToolOperation { Detail = "detail", Call = "call" } }
names! { /// What may be asked of a knowledge base.
KnowledgeOperation { List = "list", Retrieve = "retrieve" } }
names! { /// What may be asked of the transcript.
HistoryOperation { Page = "page", Search = "search" } }
names! { /// What may be asked of the event log.
EventOperation { Get = "get", Page = "page" } }
names! { /// The conversations that a run reads beside its own.
ConversationReach { Threads = "threads", Workspace = "workspace" } }
names! { /// What may be done with artifacts.
ArtifactOperation { Metadata = "metadata", Read = "read", Create = "create" } }
names! { /// Where bytes may be kept.
StorageArea { Plugin = "plugin", Workspace = "workspace", Binding = "binding" } }
names! { /// Whose state a value is.
StateScope { Conversation = "conversation", Actor = "actor", Subject = "subject", Runner = "runner", Binding = "binding" } }
names! { /// What may be done with other runs.
RunOperation { Start = "start", Get = "get", List = "list", Events = "events", Cancel = "cancel" } }
names! { /// Who assembles the working context.
ContextOwnership { SelfManaged = "self_managed", HostBootstrap = "host_bootstrap", Hybrid = "hybrid" } }
names! { /// What the host puts into the context by itself.
BootstrapMode { None = "none", CurrentEvent = "current_event", RecentTail = "recent_tail", SummaryTail = "summary_tail" } }

/// The abilities of a runner, for clients and operators. Abilities grant no rights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// May emit `message.delta`.
    pub streaming: bool,
    /// May call tools.
    pub tool_calling: bool,
    /// May retrieve from knowledge bases.
    pub knowledge_retrieval: bool,
    /// Understands input beyond text.
    pub multimodal_input: bool,
    /// Understands events that are not messages.
    pub event_context: bool,
    /// May ask for platform actions.
    pub platform_api: bool,
    /// Ends soon after it was cancelled.
    pub interrupt: bool,
    /// Takes input while it is active.
    pub steering: bool,
    /// Keeps state from run to run.
    pub stateful_session: bool,
    /// Assembles its own working context.
    pub self_managed_context: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            streaming: false,
            tool_calling: false,
            knowledge_retrieval: false,
            multimodal_input: false,
            event_context: true,
            platform_api: false,
            interrupt: false,
            steering: false,
            stateful_session: false,
            self_managed_context: true,
        }
    }
}

/// The resources that a runner may use: in a manifest the most that it can ever use, in a grant those of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    /// Of models.
    pub models: Vec<ModelOperation>,
    /// Of tools.
    pub tools: Vec<ToolOperation>,
    /// Of knowledge bases.
    pub knowledge_bases: Vec<KnowledgeOperation>,
    /// Of the transcript.
    pub history: Vec<HistoryOperation>,
    /// Of the event log.
    pub events: Vec<EventOperation>,
    /// The conversations that `history`, `events` and reads of `runs` reach beside that of the run: other threads of it
    /// (`threads`), or all of its workspace (`workspace`).
    pub conversations: Vec<ConversationReach>,
    /// Of artifacts.
    pub artifacts: Vec<ArtifactOperation>,
    /// Scopes of state.
    pub state: Vec<StateScope>,
    /// Areas of storage.
    pub storage: Vec<StorageArea>,
    /// Of other runs.
    pub runs: Vec<RunOperation>,
    /// Names of platform actions, such as `message.edit`.
    pub platform_api: Vec<String>,
    /// Questions to people.
    pub interactions: bool,
    /// Hosts that may be reached, such as `api.example.com:443` ([`hosts`](crate::hosts)).
    pub http_hosts: Vec<String>,
}

/// The context that a runner asks for (protocol v1, section 3.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextPolicy {
    /// The side that assembles the working context.
    pub ownership: ContextOwnership,
    /// The items that the host puts into the context unasked.
    pub bootstrap: BootstrapMode,
    /// At most so many inlined events.
    pub max_inline_events: u32,
    /// At most so many inlined bytes.
    pub max_inline_bytes: u32,
    /// Reads history by pages.
    pub supports_history_pull: bool,
    /// Searches history.
    pub supports_history_search: bool,
    /// Reads artifacts.
    pub supports_artifact_pull: bool,
    /// Compacts its own context.
    pub owns_compaction: bool,
    /// Wants names for content that does not change.
    pub wants_static_context_refs: bool,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            ownership: ContextOwnership::SelfManaged,
            bootstrap: BootstrapMode::CurrentEvent,
            max_inline_events: 0,
            max_inline_bytes: 0,
            supports_history_pull: true,
            supports_history_search: false,
            supports_artifact_pull: true,
            owns_compaction: true,
            wants_static_context_refs: true,
        }
    }
}

/// A field of the form of a binding's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
pub struct FormItem {
    /// `string`, `text`, `integer`, `float`, `boolean`, `select`, `model`, `tools`, `knowledge-bases`, `secret`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// The key in the configuration.
    pub name: String,
    /// Text for people.
    pub label: LocalizedText,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<LocalizedText>,
    /// True if a configuration without the field is refused.
    #[serde(default)]
    pub required: bool,
    /// Value for a configuration without the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Choices of a `select`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<FormOption>,
}

/// A choice of a `select`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
pub struct FormOption {
    /// Value in the configuration.
    pub name: String,
    /// Text for people.
    pub label: LocalizedText,
}

/// The manifest of a runner. The host reads it once, when it admits the component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunnerManifest {
    /// `plugin:AUTHOR/PLUGIN/NAME`.
    pub id: RunnerId,
    /// The name within the component, such as `default`.
    pub name: String,
    /// Author of the plugin.
    pub author: String,
    /// The plugin.
    pub plugin: String,
    /// The version of the plugin.
    #[schema(value_type = String)]
    pub version: Version,
    /// Name for people.
    pub label: LocalizedText,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<LocalizedText>,
    /// Abilities of the runner.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The most that it can ever use.
    #[serde(default)]
    pub permissions: Permissions,
    /// Context policy of the runner.
    #[serde(default)]
    pub context: ContextPolicy,
    /// The form of a binding's configuration.
    #[serde(default)]
    pub config_schema: Vec<FormItem>,
    /// Display and diagnosis only.
    #[serde(default)]
    pub metadata: Value,
}

impl RunnerManifest {
    /// Holds a configuration against the form and fills in defaults.
    ///
    /// Keys that the form does not name are refused where there is a form: a misspelt key would otherwise
    /// be a setting that silently does nothing.
    ///
    /// # Errors
    /// Every problem that was found, each naming its key and what is wanted.
    pub fn check_config(
        &self,
        mut config: serde_json::Map<String, Value>,
    ) -> Result<serde_json::Map<String, Value>, Vec<String>> {
        let mut problems = Vec::new();
        if !self.config_schema.is_empty() {
            for key in config.keys() {
                if !self.config_schema.iter().any(|item| item.name == *key) {
                    let known: Vec<_> = self.config_schema.iter().map(|item| item.name.as_str()).collect();
                    problems.push(format!("`{key}` is not in the form of {}; it has: {}", self.id, known.join(", ")));
                }
            }
        }
        for item in &self.config_schema {
            match config.get(&item.name) {
                Some(Value::Null) | None => {
                    if let Some(default) = &item.default {
                        config.insert(item.name.clone(), default.clone());
                    } else if item.required {
                        problems.push(format!("`{}` ({}) is required", item.name, item.kind));
                    }
                }
                Some(value) => problems.extend(item.problem_with(value)),
            }
        }
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }
}

impl FormItem {
    /// The problem of `value` for this field; `None` if there is none. Fields of unknown kinds accept every value.
    fn problem_with(&self, value: &Value) -> Option<String> {
        let expected = match self.kind.as_str() {
            "string" | "text" | "secret" | "model" if !value.is_string() => "a string",
            "integer" if !(value.is_i64() || value.is_u64()) => "an integer",
            "float" if !value.is_number() => "a number",
            "boolean" if !value.is_boolean() => "true or false",
            "tools" | "knowledge-bases" if !value.as_array().is_some_and(|all| all.iter().all(Value::is_string)) => {
                "a list of strings"
            }
            "select" if !self.options.iter().any(|option| value.as_str() == Some(&option.name)) => {
                let choices: Vec<_> = self.options.iter().map(|option| option.name.as_str()).collect();
                return Some(format!("`{}` must be one of: {}", self.name, choices.join(", ")));
            }
            _ => return None,
        };
        Some(format!("`{}` must be {expected}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(form: Value) -> RunnerManifest {
        serde_json::from_value(json!({
            "id": "plugin:a/b/c", "name": "c", "author": "a", "plugin": "b", "version": "1.0.0", "label": { "en": "C" },
            "config_schema": form,
        }))
        .unwrap()
    }

    fn form() -> Value {
        json!([
            { "type": "string", "name": "name", "label": {}, "required": true },
            { "type": "integer", "name": "count", "label": {}, "default": 3 },
            { "type": "select", "name": "mode", "label": {}, "options": [{ "name": "fast", "label": {} }, { "name": "slow", "label": {} }] },
        ])
    }

    #[test]
    fn defaults_are_filled_in() {
        let config = json!({ "name": "x" }).as_object().unwrap().clone();
        assert_eq!(Value::Object(manifest(form()).check_config(config).unwrap()), json!({ "name": "x", "count": 3 }));
    }

    #[test]
    fn every_problem_is_named() {
        let config = json!({ "count": "3", "mode": "medium", "nmae": "x" }).as_object().unwrap().clone();
        let problems = manifest(form()).check_config(config).unwrap_err();
        assert_eq!(
            problems,
            [
                "`nmae` is not in the form of plugin:a/b/c; it has: name, count, mode",
                "`name` (string) is required",
                "`count` must be an integer",
                "`mode` must be one of: fast, slow",
            ]
        );
    }

    #[test]
    fn a_runner_without_a_form_takes_any_configuration() {
        let config = json!({ "anything": [1] }).as_object().unwrap().clone();
        assert_eq!(manifest(json!([])).check_config(config.clone()), Ok(config));
    }
}
