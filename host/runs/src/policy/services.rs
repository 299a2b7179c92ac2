//! The configured services besides the ledger: models, tools, knowledge bases, and the transcript index.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use agent_host_config::{ApprovalRule, Config, ConfigError, Names, ResourcePolicy};
use agent_host_protocol::{
    ApiError, ErrorCode, Grant,
    context::{KnowledgeBaseResource, ModelResource, StaticRef, ToolResource},
    grant::ConversationKey,
    hex,
    manifest::Permissions,
    model::RerankHit,
};
use agent_host_providers::{
    egress::Egress,
    knowledge::{Embedder, Knowledge, KnowledgeBaseConfig, Reranker, Services as KnowledgeServices},
    models::{Model, Models, not_ready},
    search::TranscriptIndex,
    tools::Tools,
    webhook::ActionHooks,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::policy::{StartError, library::Library};

/// Longest wait of the host's start for tool servers: earlier events are not granted their tools.
const TOOLS_READY: Duration = Duration::from_secs(15);

/// The services of a host.
pub(crate) struct Services {
    pub(crate) models: Models,
    pub(crate) tools: Tools,
    pub(crate) knowledge: Knowledge,
    /// The way to the outside.
    pub(crate) egress: Egress,
    /// The services that execute platform actions.
    pub(crate) actions: Actions,
    pub(crate) library: Library,
    /// Id and name of each knowledge base. Asking the bases themselves reads files.
    bases: Vec<(String, String)>,
    transcripts: Arc<Transcripts>,
}

/// The transcript index. The index has one writer, so all services of a host share it across reloads.
struct Transcripts {
    dir: PathBuf,
    /// Opened when somebody searches.
    index: OnceLock<TranscriptIndex>,
    opening: Mutex<()>,
}

impl Services {
    /// Opens the services of a configuration. `before` are the present services: tool servers with an unchanged
    /// configuration keep their connections; secrets and files are read again.
    pub(crate) async fn open(config: &Config, library: Library, before: Option<&Self>) -> Result<Self, StartError> {
        let models = models(config)?;
        let knowledge = knowledge_with(config, &models)?;
        let tools = match before {
            Some(before) => before.tools.restart(&config.mcp_servers),
            None => Tools::start(&config.mcp_servers),
        };
        if !config.mcp_servers.is_empty() {
            tools.ready(TOOLS_READY).await;
        }
        let invalid = |problem| StartError::Config(ConfigError::Invalid(problem));
        let egress = Egress::open(&config.egress, &config.http_secrets).map_err(invalid)?;
        let egress = egress.handing_on_traces(config.telemetry.propagate_egress);
        let actions = Actions(ActionHooks::open(&config.action_hooks).map_err(invalid)?);
        let transcripts = || {
            let (dir, opening) = (config.data_dir.join("search"), Mutex::default());
            Arc::new(Transcripts { dir, index: OnceLock::new(), opening })
        };
        let transcripts = before.map_or_else(transcripts, |before| Arc::clone(&before.transcripts));
        let named = |base: &KnowledgeBaseConfig| (base.id.clone(), base.name.clone().unwrap_or_else(|| base.id.clone()));
        let bases = config.knowledge_bases.iter().map(named).collect();
        Ok(Self { models, tools, knowledge, egress, actions, library, bases, transcripts })
    }

    /// The index of transcripts. The first call opens it, and may block for that.
    pub(crate) fn transcripts(&self) -> Result<&TranscriptIndex, ApiError> {
        let Transcripts { dir, index, opening } = &*self.transcripts;
        let _opening = opening.lock();
        if let Some(index) = index.get() {
            return Ok(index);
        }
        let opened = TranscriptIndex::open(dir).map_err(|error| {
            tracing::error!(%error, "the index of transcripts cannot be opened");
            ApiError::retryable(ErrorCode::RuntimeError, "the host cannot search; its log has the reason")
        })?;
        Ok(index.get_or_init(|| opened))
    }

    /// Removes a conversation from the transcript index, if there is one. May block.
    pub(crate) fn forget_transcript(&self, key: &ConversationKey) -> Result<(), ApiError> {
        if self.transcripts.index.get().is_none() && !self.transcripts.dir.exists() {
            return Ok(());
        }
        self.transcripts()?.forget(key.index()).map_err(|error| {
            tracing::error!(%error, "a conversation cannot be removed from the index of transcripts");
            ApiError::retryable(
                ErrorCode::RuntimeError,
                "the index of transcripts cannot be written; the host's log has the reason",
            )
        })
    }

    /// The names of secrets that the policy of a binding names.
    pub(crate) fn secrets(&self, names: &Names) -> Vec<String> {
        names.of(self.egress.secret_names().into_iter())
    }

    /// The ids that the policy of a binding names of what is there now: all models and knowledge bases, and no tools, where
    /// it names none. Each list is empty where the run may not use its kind at all.
    pub(crate) fn named(&self, policy: &ResourcePolicy, permissions: &Permissions) -> NamedIds {
        let mut named = NamedIds::default();
        if !permissions.models.is_empty() {
            named.models = Names::of_or_all(policy.model_ids.as_ref(), self.models.iter().map(|model| model.id().to_owned()));
        }
        if let Some(names) = policy.tool_names.as_ref().filter(|_| !permissions.tools.is_empty()) {
            named.tools = names.of(self.tools.list().iter().map(|tool| tool.name.clone()));
        }
        if !permissions.knowledge_bases.is_empty() {
            named.knowledge_bases = Names::of_or_all(policy.kb_ids.as_ref(), self.bases.iter().map(|(id, _)| id.clone()));
        }
        named
    }

    /// Static references to what the host grants by configuration: the schemas of the granted tools, the granted resources, and what
    /// needs a person. A runner that builds a prompt from one of them builds it again where its hash has changed. The references
    /// have no content: `tools.get-detail` and the context have it.
    pub(crate) fn static_refs(
        &self,
        named: &NamedIds,
        permissions: &Permissions,
        approvals: &[ApprovalRule],
    ) -> impl Iterator<Item = (String, StaticRef)> {
        let tools = || {
            let detail = |name: &String| self.tools.get(name).map(|tool| json!({ "name": name, "detail": tool.detail }));
            Value::Array(named.tools.iter().filter_map(detail).collect())
        };
        let has_tools = !named.tools.is_empty();
        let has_resources = has_tools || !named.models.is_empty() || !named.knowledge_bases.is_empty();
        let resources = || json!({ "models": named.models, "tools": named.tools, "knowledge_bases": named.knowledge_bases });
        let has_policy = !approvals.is_empty() || !permissions.platform_api.is_empty();
        let policy = || json!({ "platform_api": permissions.platform_api, "approvals": approvals });
        [
            has_tools.then(|| ("host.tool_schemas", tools())),
            has_resources.then(|| ("host.resource_manifest", resources())),
            has_policy.then(|| ("host.platform_policy", policy())),
        ]
        .into_iter()
        .flatten()
        .map(|(name, content)| {
            let digest: [u8; 32] = Sha256::digest(content.to_string()).into();
            let sha256 = hex::encode(&digest);
            let version = sha256.chars().take(12).collect();
            (name.to_owned(), StaticRef { version, sha256, content: None })
        })
    }

    /// The models of a grant, as the context of a run shows them.
    pub(crate) fn model_resources(&self, grant: &Grant) -> Vec<ModelResource> {
        let granted = |model: Arc<Model>| {
            let mut resource = model.resource();
            resource.operations.retain(|operation| grant.permissions.models.contains(operation));
            (!resource.operations.is_empty()).then_some(resource)
        };
        grant.models.iter().filter_map(|id| self.models.get(id)).filter_map(granted).collect()
    }

    /// The tools of a grant: those of the host, then those of the client.
    pub(crate) fn tool_resources(&self, grant: &Grant) -> Vec<ToolResource> {
        let operations = &grant.permissions.tools;
        if operations.is_empty() {
            return Vec::new();
        }
        let resource = |name: &str, description: Option<&String>| ToolResource {
            tool_name: name.to_owned(),
            description: description.cloned(),
            operations: operations.clone(),
        };
        let tools = grant.tools.iter().filter_map(|name| self.tools.get(name));
        let tools = tools.map(|tool| resource(&tool.name, tool.detail.description.as_ref()));
        tools.chain(grant.client_tools.iter().map(|tool| resource(&tool.name, tool.description.as_ref()))).collect()
    }

    /// The knowledge bases of a grant.
    pub(crate) fn knowledge_resources(&self, grant: &Grant) -> Vec<KnowledgeBaseResource> {
        let operations = &grant.permissions.knowledge_bases;
        if operations.is_empty() || grant.knowledge_bases.is_empty() {
            return Vec::new();
        }
        let bases = self.bases.iter().filter(|(id, _)| grant.knowledge_bases.contains(id));
        bases
            .map(|(id, name)| KnowledgeBaseResource {
                kb_id: id.clone(),
                kb_name: Some(name.clone()),
                operations: operations.clone(),
            })
            .collect()
    }

    /// True if a knowledge base has this id.
    pub(crate) fn has_knowledge_base(&self, id: &str) -> bool {
        self.bases.iter().any(|(known, _)| known == id)
    }

    /// Problems for an operator; of models, those of `of_models` alone.
    pub(crate) fn problems(&self, of_models: impl Fn(&str) -> bool) -> Vec<String> {
        let tools = self
            .tools
            .reports()
            .into_iter()
            .filter_map(|report| report.problem.map(|problem| format!("MCP server `{}`: {problem}", report.id)));
        let others = self.egress.problems().into_iter().chain(self.actions.0.problems());
        let models = self.models.iter().filter(|model| of_models(model.id())).filter_map(|model| model.problem());
        models.map(ToOwned::to_owned).chain(tools).chain(others).collect()
    }
}

/// The webhooks that carry out platform actions.
pub(crate) struct Actions(ActionHooks);

impl Actions {
    /// Fails if no service executes this action: no person needs to be asked then.
    pub(crate) fn available(&self, action: &str) -> Result<(), ApiError> {
        if self.0.has(action) {
            return Ok(());
        }
        Err(ApiError {
            details: Some(json!({ "code": "no_action_hook" })),
            ..ApiError::new(
                ErrorCode::RuntimeError,
                format!("no service executes `{action}` here: add an `[[action_hooks]]` entry with it to agent-host.toml"),
            )
        })
    }

    /// Carries it out, once for each id however often it is called.
    pub(crate) async fn call(&self, action: &str, id: &str, order: &Value, deadline: Instant) -> Result<Value, ApiError> {
        self.0.call(action, id, order, deadline).await
    }
}

/// Ids of what a run is granted by name.
#[derive(Default)]
pub(crate) struct NamedIds {
    pub(crate) models: Vec<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) knowledge_bases: Vec<String>,
}

fn models(config: &Config) -> Result<Models, StartError> {
    Models::open(&config.models).map_err(|problem| StartError::Config(ConfigError::Invalid(problem)))
}

fn knowledge_with(config: &Config, models: &Models) -> Result<Knowledge, StartError> {
    let services = |base: &KnowledgeBaseConfig| KnowledgeServices {
        embedder: base.embedding_model.as_ref().map(|id| Arc::new(ModelByName::new(config, models, id)) as Arc<dyn Embedder>),
        reranker: base.rerank_model.as_ref().map(|id| Arc::new(ModelByName::new(config, models, id)) as Arc<dyn Reranker>),
    };
    Knowledge::open(&config.data_dir.join("knowledge"), &config.knowledge_bases, services).map_err(StartError::Knowledge)
}

/// The knowledge bases of a configuration, without a host: for the command line.
///
/// # Errors
/// Fails if a model is configured incorrectly or the files cannot be opened.
pub fn knowledge(config: &Config) -> Result<Knowledge, StartError> {
    knowledge_with(config, &models(config)?)
}

/// A model as a knowledge base uses it.
struct ModelByName {
    models: Models,
    id: String,
    name: String,
}

impl ModelByName {
    fn new(config: &Config, models: &Models, id: &str) -> Self {
        let behind = config.models.iter().find(|model| model.id == id).and_then(|model| model.model.as_deref());
        Self {
            models: models.clone(),
            id: id.to_owned(),
            name: behind.map_or_else(|| id.to_owned(), |name| format!("{id}={name}")),
        }
    }

    fn model(&self) -> Result<Arc<Model>, ApiError> {
        self.models.get(&self.id).ok_or_else(|| not_ready(format!("there is no model `{}`", self.id)))
    }
}

impl Embedder for ModelByName {
    /// With the provider's name for it: another model behind the same id has other vectors.
    fn name(&self) -> String {
        self.name.clone()
    }

    fn embed<'a>(&'a self, texts: &'a [String], deadline: Instant) -> BoxFuture<'a, Result<Vec<Vec<f32>>, ApiError>> {
        Box::pin(async move { Ok(self.model()?.embed(texts, deadline).await?.vectors) })
    }
}

impl Reranker for ModelByName {
    fn rerank<'a>(
        &'a self,
        query: &'a str,
        documents: &'a [String],
        top_k: Option<u32>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<RerankHit>, ApiError>> {
        Box::pin(async move { self.model()?.rerank(query, documents, top_k, deadline).await })
    }
}
