//! Builder for the manifest of a runner, with the defaults of the protocol.

use crate::contract::{
    ArtifactOperation, BootstrapMode, Capabilities, ContextOwnership, ContextPolicy, EventOperation, HistoryOperation,
    KnowledgeOperation, ModelOperation, Permissions, RunOperation, RunnerManifest, StateScope, StorageArea, ToolOperation,
};
use crate::form::FormItem;
use crate::json::IntoJson;

/// Manifest of one runner.
///
/// Author and plugin are required. Defaults: no permission, the version of the runner's crate, no form. The name comes
/// from [`Runner::NAME`](crate::Runner::NAME).
///
/// ```
/// use agent_host_sdk::{FormItem, Manifest, ModelOperation, StateScope};
///
/// fn manifest() -> Manifest {
///     Manifest::new("acme", "support")
///         .label("en", "Support")
///         .models([ModelOperation::Stream])
///         .state([StateScope::Conversation])
///         .form(FormItem::model("model").required())
/// }
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    contract: RunnerManifest,
    /// Set by [`Manifest::steering`]. A field of its own, so that `steering` may precede `capabilities`.
    steering: bool,
    /// Set by [`Manifest::conversations`]. Part of the metadata in the contract.
    conversations: Vec<ConversationReach>,
}

/// The conversations that a runner reads beside that of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversationReach {
    /// Other threads of the conversation of the run.
    Threads,
    /// All conversations of the workspace of the run.
    Workspace,
}

impl Manifest {
    /// Creates a manifest. The id of the runner is `plugin:AUTHOR/PLUGIN/NAME`. Bindings contain this id, so it should
    /// not change.
    pub fn new(author: impl Into<String>, plugin: impl Into<String>) -> Self {
        Self {
            contract: RunnerManifest {
                name: String::new(),
                author: author.into(),
                plugin: plugin.into(),
                version: String::new(),
                label: Vec::new(),
                description: None,
                capabilities: Capabilities::default(),
                permissions: Permissions::default(),
                context: ContextPolicy::default(),
                config_schema: Vec::new(),
                metadata: "{}".to_owned(),
            },
            steering: false,
            conversations: Vec::new(),
        }
    }

    /// Sets a version other than that of the runner's crate. Semantic versioning.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.contract.version = version.into();
        self
    }

    /// Adds the displayed name in one language (a BCP 47 tag such as `en` or `zh-Hans`). Call once per language; the
    /// first is the fallback. Default: the name of the runner.
    pub fn label(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        self.contract.label.push((language.into(), text.into()));
        self
    }

    /// Adds a description in one language. Languages as for [`Manifest::label`].
    pub fn description(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        let description = self.contract.description.get_or_insert_default();
        description.push((language.into(), text.into()));
        self
    }

    /// Sets the capabilities: `Capabilities { streaming: true, ..Capabilities::default() }`.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.contract.capabilities = capabilities;
        self
    }

    /// Sets the context policy. Default: the runner pulls the history that it needs.
    pub fn context(mut self, policy: ContextPolicy) -> Self {
        self.contract.context = policy;
        self
    }

    /// Adds a field to the form of the binding's configuration.
    pub fn form(mut self, item: FormItem) -> Self {
        self.contract.config_schema.push(item.into());
        self
    }

    /// Sets metadata for display and diagnosis, a JSON object.
    pub fn metadata(mut self, metadata: impl IntoJson) -> Self {
        self.contract.metadata = metadata.into_json();
        self
    }

    /// Sets all permissions.
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.contract.permissions = permissions;
        self
    }

    /// Returns the generated record, for fields without a builder method.
    pub fn contract_mut(&mut self) -> &mut RunnerManifest {
        &mut self.contract
    }

    /// Returns the record that the host reads, with this name, and with this version if none was set.
    #[must_use]
    pub fn into_contract(self, name: &str, crate_version: &str) -> RunnerManifest {
        let mut contract = self.contract;
        contract.capabilities.steering |= self.steering;
        if !self.conversations.is_empty() && crate::json::is_object(&contract.metadata) {
            add_reach(&mut contract.metadata, &self.conversations);
        }
        // The name is always replaced, since a run is dispatched by it.
        name.clone_into(&mut contract.name);
        if contract.version.is_empty() {
            crate_version.clone_into(&mut contract.version);
        }
        if contract.label.is_empty() {
            contract.label.push(("en".to_owned(), contract.name.clone()));
        }
        contract
    }
}

/// Permissions: the maximum that the runner can use. Each call replaces the earlier value of the same permission. The
/// host refuses a component that calls an interface without a declared permission.
impl Manifest {
    /// Declares that the runner reads other conversations with its permissions of history, events and runs. The binding must allow
    /// them as well (`conversations` in its `resources`).
    pub fn conversations(mut self, reach: impl Into<Vec<ConversationReach>>) -> Self {
        self.conversations = reach.into();
        self
    }

    /// Declares operations on models.
    pub fn models(mut self, operations: impl Into<Vec<ModelOperation>>) -> Self {
        self.contract.permissions.models = operations.into();
        self
    }

    /// Declares operations on tools.
    pub fn tools(mut self, operations: impl Into<Vec<ToolOperation>>) -> Self {
        self.contract.permissions.tools = operations.into();
        self
    }

    /// Declares operations on knowledge bases.
    pub fn knowledge_bases(mut self, operations: impl Into<Vec<KnowledgeOperation>>) -> Self {
        self.contract.permissions.knowledge_bases = operations.into();
        self
    }

    /// Declares operations on the transcript of the conversation.
    pub fn history(mut self, operations: impl Into<Vec<HistoryOperation>>) -> Self {
        self.contract.permissions.history = operations.into();
        self
    }

    /// Declares operations on earlier events.
    pub fn events(mut self, operations: impl Into<Vec<EventOperation>>) -> Self {
        self.contract.permissions.events = operations.into();
        self
    }

    /// Declares operations on artifacts.
    pub fn artifacts(mut self, operations: impl Into<Vec<ArtifactOperation>>) -> Self {
        self.contract.permissions.artifacts = operations.into();
        self
    }

    /// Declares the scopes of the state to read and write.
    pub fn state(mut self, scopes: impl Into<Vec<StateScope>>) -> Self {
        self.contract.permissions.state = scopes.into();
        self
    }

    /// Declares the areas of the storage.
    pub fn storage(mut self, areas: impl Into<Vec<StorageArea>>) -> Self {
        self.contract.permissions.storage = areas.into();
        self
    }

    /// Declares operations on child runs.
    pub fn runs(mut self, operations: impl Into<Vec<RunOperation>>) -> Self {
        self.contract.permissions.runs = operations.into();
        self
    }

    /// Declares platform actions, such as `message.edit`.
    pub fn platform_actions<A: Into<String>>(mut self, actions: impl IntoIterator<Item = A>) -> Self {
        self.contract.permissions.platform_actions = actions.into_iter().map(Into::into).collect();
        self
    }

    /// Declares questions to people.
    pub fn interactions(mut self) -> Self {
        self.contract.permissions.interactions = true;
        self
    }

    /// Declares steering: the run may take input that arrives for its conversation. In the contract, steering is a
    /// capability that opens the interface `steering` like a permission. Input that a run has not taken at its end
    /// becomes a run of its own.
    pub fn steering(mut self) -> Self {
        self.steering = true;
        self
    }

    /// Declares hosts for HTTP requests: `HOST[:PORT]`, where HOST may be `*.example.com` or `*`, and PORT a number
    /// (default: 443) or `*`. A run may use the hosts that both the manifest and the binding name.
    pub fn http_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.contract.permissions.http_hosts = hosts.into_iter().map(Into::into).collect();
        self
    }
}

/// Defaults of the protocol: the runner understands events and manages its own context.
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

/// No permission.
impl Default for Permissions {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            tools: Vec::new(),
            knowledge_bases: Vec::new(),
            history: Vec::new(),
            events: Vec::new(),
            artifacts: Vec::new(),
            state: Vec::new(),
            storage: Vec::new(),
            runs: Vec::new(),
            platform_actions: Vec::new(),
            interactions: false,
            http_hosts: Vec::new(),
        }
    }
}

/// Defaults of the protocol: the context has the current event and no history; the runner pulls the rest.
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

/// Adds the member `permissions` to a JSON object, as text: a reader and a writer of arbitrary JSON would be a third of a small
/// component.
fn add_reach(metadata: &mut String, reach: &[ConversationReach]) {
    let Some(members) = metadata.trim_end().strip_suffix('}').map(str::trim_end) else { return };
    let is_empty = members.trim_start() == "{";
    metadata.truncate(members.len());
    metadata.push_str(if is_empty { "" } else { "," });
    metadata.push_str("\"permissions\":{\"conversations\":[");
    for (place, reach) in reach.iter().enumerate() {
        metadata.push_str(if place == 0 { "" } else { "," });
        metadata.push_str(match reach {
            ConversationReach::Threads => "\"threads\"",
            ConversationReach::Workspace => "\"workspace\"",
        });
    }
    metadata.push_str("]}}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_only_what_it_must_and_the_rest_has_defaults() {
        let manifest = Manifest::new("acme", "greeter").into_contract("default", "1.2.3");
        assert_eq!(manifest.name, "default");
        assert_eq!(manifest.author, "acme");
        assert_eq!(manifest.plugin, "greeter");
        assert_eq!(manifest.version, "1.2.3");
        assert_eq!(manifest.label, [("en".to_owned(), "default".to_owned())]);
        assert_eq!(manifest.description, None);
        assert_eq!(manifest.permissions, Permissions::default());
        assert!(manifest.capabilities.event_context && manifest.capabilities.self_managed_context);
        assert!(manifest.config_schema.is_empty());
        assert_eq!(manifest.metadata, "{}");
        let reach = [ConversationReach::Threads, ConversationReach::Workspace];
        for (metadata, wanted) in [
            (serde_json::json!({}), r#"{"permissions":{"conversations":["threads","workspace"]}}"#),
            (serde_json::json!({"a": {}}), r#"{"a":{},"permissions":{"conversations":["threads","workspace"]}}"#),
        ] {
            let manifest =
                Manifest::new("acme", "echo").metadata(metadata).conversations(reach).into_contract("default", "1.0.0");
            assert_eq!(manifest.metadata, wanted);
        }
    }

    #[test]
    fn a_stated_author_is_kept() {
        let manifest = Manifest::new("acme", "greeter")
            .version("2.0.0-rc.1")
            .label("en", "Greeter")
            .label("de", "Grüßer")
            .description("en", "Greets.")
            .models([ModelOperation::Invoke, ModelOperation::Stream])
            .state([StateScope::Actor])
            .platform_actions(["message.edit"])
            .http_hosts(["api.example.com:443"])
            .interactions()
            .steering()
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            .form(FormItem::string("name").required())
            .metadata(serde_json::json!({"home": "https://example.com"}))
            .into_contract("loud", "1.2.3");
        assert_eq!(manifest.name, "loud");
        assert_eq!(manifest.version, "2.0.0-rc.1");
        assert_eq!(manifest.label[1], ("de".to_owned(), "Grüßer".to_owned()));
        assert_eq!(manifest.description.unwrap()[0].1, "Greets.");
        assert_eq!(
            manifest.permissions,
            Permissions {
                models: vec![ModelOperation::Invoke, ModelOperation::Stream],
                state: vec![StateScope::Actor],
                platform_actions: vec!["message.edit".to_owned()],
                http_hosts: vec!["api.example.com:443".to_owned()],
                interactions: true,
                ..Permissions::default()
            }
        );
        assert!(manifest.capabilities.streaming && manifest.capabilities.steering);
        assert_eq!(manifest.config_schema.len(), 1);
        assert_eq!(manifest.metadata, r#"{"home":"https://example.com"}"#);
    }
}
