//! `agent-host.toml`.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use agent_host_protocol::{
    Limits, RunnerId,
    manifest::{
        ArtifactOperation, BootstrapMode, Capabilities, ContextPolicy, EventOperation, FormItem, HistoryOperation,
        KnowledgeOperation, ModelOperation, Permissions, RunOperation, RunnerManifest, StateScope, StorageArea, ToolOperation,
    },
    message::LocalizedText,
    model::ModelType,
};
use agent_host_providers::{
    egress::{EgressConfig, HttpSecretConfig},
    knowledge::KnowledgeBaseConfig,
    models::ModelConfig,
    tools::McpServerConfig,
    webhook::{ActionHookConfig, ResultHookConfig},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    agui_config::AguiConfig,
    approval::{ApprovalRule, ApproverConfig},
    library::{SkillConfig, StaticRefConfig},
    queue::QueuePolicy,
    sources::{Schedule, ScheduleConfig, WebhookSourceConfig},
    telemetry::TelemetryConfig,
};

/// Why a configuration cannot be used. The message names the place and the mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML, or has a key or value that it cannot have.
    #[error("the configuration is not valid:\n{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value cannot be.
    #[error("the configuration is not valid: {0}")]
    Invalid(String),
}

/// What the host was told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// Whoever reaches the API from this machine may do everything, without a key. Only at a loopback address.
    pub loopback_without_key: bool,
    /// Origins whose pages may use the API from a browser, such as `https://app.example.com`; `*` is all of them.
    pub cors_origins: Vec<String>,
    /// Where the ledger, artifacts, knowledge and compiled code are kept.
    pub data_dir: PathBuf,
    /// Where components are dropped.
    pub plugins_dir: PathBuf,
    /// Where backups of the running host are made, where the file says so: see [`Config::backups`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_dir: Option<PathBuf>,
    /// Limits.
    pub limits: Limits,
    /// How long what runs have left is kept.
    pub retention: Retention,
    /// Models that runs may be granted.
    pub models: Vec<ModelConfig>,
    /// Servers whose tools runs may be granted.
    pub mcp_servers: Vec<McpServerConfig>,
    /// Knowledge bases that runs may be granted.
    pub knowledge_bases: Vec<KnowledgeBaseConfig>,
    /// Where runs may go, beside what their bindings allow.
    pub egress: EgressConfig,
    /// Secrets that the host puts into requests of runs.
    pub http_secrets: Vec<HttpSecretConfig>,
    /// Who carries out platform actions.
    pub action_hooks: Vec<ActionHookConfig>,
    /// Who may answer what runs ask. Without any: whoever reaches the API.
    pub approvers: Vec<ApproverConfig>,
    /// Skills that runs may be granted.
    pub skills: Vec<SkillConfig>,
    /// Content that does not change from run to run.
    pub static_refs: Vec<StaticRefConfig>,
    /// Runners whose runs executors outside take.
    pub external_runners: Vec<ExternalRunnerConfig>,
    /// Where the host says what it does.
    pub telemetry: TelemetryConfig,
    /// How bindings answer clients of AG-UI.
    pub agui: AguiConfig,
    /// Events at certain times.
    pub schedules: Vec<ScheduleConfig>,
    /// Systems whose signed requests become events.
    pub webhook_sources: Vec<WebhookSourceConfig>,
    /// Who is told what runs have done.
    pub webhooks: Vec<ResultHookConfig>,
    /// Which runner answers which event.
    pub bindings: Vec<BindingConfig>,
}

/// The schema of the file, with the documentation of each key: what the reference of the configuration is made of.
pub(crate) fn schema() -> Value {
    schemars::schema_for!(File).to_value()
}

/// The sections of the file.
pub(crate) fn section_names() -> BTreeSet<String> {
    let schema = schema();
    let sections = schema.get("properties").and_then(Value::as_object);
    sections.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// The file, as it is written.
#[derive(Deserialize, Default, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct File {
    server: Server,
    limits: Limits,
    retention: Retention,
    models: Vec<ModelConfig>,
    mcp_servers: Vec<McpServerConfig>,
    knowledge_bases: Vec<KnowledgeBaseConfig>,
    egress: EgressConfig,
    http_secrets: Vec<HttpSecretConfig>,
    action_hooks: Vec<ActionHookConfig>,
    approvers: Vec<ApproverConfig>,
    skills: Vec<SkillConfig>,
    static_refs: Vec<StaticRefConfig>,
    external_runners: Vec<ExternalRunnerConfig>,
    telemetry: TelemetryConfig,
    agui: AguiConfig,
    schedules: Vec<ScheduleConfig>,
    webhook_sources: Vec<WebhookSourceConfig>,
    webhooks: Vec<ResultHookConfig>,
    bindings: Vec<BindingConfig>,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Server {
    /// Where HTTP is served.
    listen: SocketAddr,
    /// Whether requests of this machine alone need no key. Refused at other addresses.
    loopback_without_key: bool,
    /// Origins of pages that may use the API from a browser, such as `https://app.example.com`.
    cors_origins: Vec<String>,
    /// Where the ledger, artifacts, knowledge and compiled code are kept. Relative to the file, as all paths.
    data_dir: PathBuf,
    /// Where components are dropped.
    plugins_dir: PathBuf,
    /// Where backups of the running host are made. Default: `backups` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    backup_dir: Option<PathBuf>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            loopback_without_key: false,
            cors_origins: Vec::new(),
            data_dir: "data".into(),
            plugins_dir: "plugins".into(),
            backup_dir: None,
        }
    }
}

/// Which runner answers which event, and on what terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// Names the binding; state of scope `binding` belongs to it.
    pub id: String,
    /// The runner.
    #[schemars(with = "String")]
    pub runner: RunnerId,
    /// Bindings with a higher one come first where several match.
    #[serde(default)]
    pub priority: i32,
    /// Which events it answers. Without it: all.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// Configuration of the runner, held against its form.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// What the runner may use of what it asks for.
    #[serde(default)]
    pub resources: ResourcePolicy,
    /// Scopes of state that the runner may use. Without it: all that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StatePolicy>,
    /// What the place that shows the answer can do, where the event does not say.
    #[serde(default)]
    pub delivery: DeliveryPolicy,
    /// Deadline of a run. Without it: `limits.run_deadline_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// What of the transcript a simple runner finds in its context. Without it: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// What becomes of a run when the host stops while it is active.
    #[serde(default)]
    pub durability: Durability,
    /// How often a run may be tried (`retry`), or brought back without getting any further (`resume`), 1 to 100.
    #[serde(default = "default_max_attempts")]
    pub max_attempts: u32,
    /// What becomes of an effect whose outcome nobody knows, since the host stopped in the middle of it, and that could
    /// do harm if it were repeated.
    #[serde(default)]
    pub in_doubt: InDoubt,
    /// What of that which runs want is done at once, asked of people, or refused. The first rule that fits counts; where
    /// none does, people are asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalRule>,
    /// How its runs wait for their turn, and for executors outside. Without it nothing is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePolicy>,
    /// The webhooks that are told what its runs do, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deliver: Vec<String>,
}

/// A runner whose runs executors outside take. What a component says of itself, the operator says of it here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalRunnerConfig {
    /// `plugin:AUTHOR/PLUGIN/NAME`.
    #[schemars(with = "String")]
    pub id: RunnerId,
    /// Its version, as records show it.
    #[serde(default = "first_version")]
    #[schemars(with = "String")]
    pub version: semver::Version,
    /// What people read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The most that it can ever use.
    #[serde(default)]
    pub permissions: Permissions,
    /// The form of a binding's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub config_schema: Vec<FormItem>,
}

fn first_version() -> semver::Version {
    semver::Version::new(1, 0, 0)
}

impl ExternalRunnerConfig {
    /// What a component would say of itself.
    pub(crate) fn manifest(&self) -> RunnerManifest {
        let label = self.label.clone().unwrap_or_else(|| self.id.name().to_owned());
        RunnerManifest {
            id: self.id.clone(),
            name: self.id.name().to_owned(),
            author: self.id.author().to_owned(),
            plugin: self.id.plugin().to_owned(),
            version: self.version.clone(),
            label: LocalizedText::from_pairs([("en".to_owned(), label)]),
            description: None,
            capabilities: self.capabilities.clone(),
            permissions: self.permissions.clone(),
            context: ContextPolicy::default(),
            config_schema: self.config_schema.clone(),
            metadata: Value::Null,
        }
    }

    fn check(&self) -> Result<(), String> {
        self.permissions.http_hosts.iter().try_for_each(|host| {
            agent_host_protocol::hosts::check(host).map_err(|problem| format!("`permissions.http_hosts`: {problem}"))
        })
    }
}

/// What becomes of an effect whose outcome nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// The runner is told so, by an error with `details.code` `effect_in_doubt`.
    #[default]
    Error,
    /// The run waits until a person says whether to repeat it.
    Ask,
}

/// What becomes of a run when the host stops while it is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It goes on where it was: nothing that it did is done again.
    #[default]
    Resume,
    /// It begins anew, as another attempt; what it did is done again.
    Retry,
    /// It fails with code `host_restarted`.
    Fail,
}

pub(crate) fn default_max_attempts() -> u32 {
    3
}

/// How long the host keeps what runs have left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Journals, and the components that they need, for so long after the end of a run, in milliseconds. With them a
    /// run can be replayed and forked. Journals of runs that have not ended are always kept.
    pub journals_ms: u64,
    /// Deliveries that are dead letters, or whose webhook is configured no more, for so long, in milliseconds.
    pub dead_letters_ms: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { journals_ms: 7 * 24 * 60 * 60 * 1000, dead_letters_ms: 30 * 24 * 60 * 60 * 1000 }
    }
}

/// Which events a binding answers: each field a regular expression that must match the whole of the event's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Such as `message\..*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Such as `api|webui`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of the conversation id. An event without one matches only where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Of the workspace id. An event without one matches only where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
}

/// What a runner may use of what its manifest asks for. A field that is absent has the default that stands beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResourcePolicy {
    /// Which models, by id; `*` at the end stands for anything. Default: all that are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ids: Option<Names>,
    /// Which tools, by name. Default: none. Tools act on the world, so they are given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_names: Option<Names>,
    /// Which knowledge bases, by id. Default: all that are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kb_ids: Option<Names>,
    /// Which runners may be started, by id. Default: all that are installed when the run is created, and none of
    /// them without `runs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_ids: Option<Names>,
    /// Which secrets requests to the outside may carry, by name. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_secrets: Option<Names>,
    /// Which skills, by name. Default: all that are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill_names: Option<Names>,
    /// Which static references, by name. Default: all that are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_refs: Option<Names>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelOperation>>,
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolOperation>>,
    /// Whether a client that asks for a run may bring tools along which it carries out itself. Default: yes, where the manifest
    /// and `tools` allow to call tools.
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
    /// Default: what the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<ArtifactOperation>>,
    /// Default: `plugin` and `binding`. What a workspace shares is given by name.
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
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self(vec!["*".to_owned()])
    }

    /// Those of `there` that are named.
    pub(crate) fn of(&self, there: impl Iterator<Item = String>) -> Vec<String> {
        there.filter(|name| self.names(name)).collect()
    }

    pub(crate) fn names(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        })
    }
}

impl ResourcePolicy {
    /// What this leaves out is as the other says.
    pub(crate) fn or(self, other: &Self) -> Self {
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
    pub(crate) fn permissions(&self, state: Option<&StatePolicy>) -> Permissions {
        fn or_all<T: Copy>(given: Option<&Vec<T>>, all: &[T]) -> Vec<T> {
            given.map_or_else(|| all.to_vec(), Clone::clone)
        }
        Permissions {
            models: or_all(self.models.as_ref(), ModelOperation::ALL),
            tools: or_all(self.tools.as_ref(), ToolOperation::ALL),
            knowledge_bases: or_all(self.knowledge_bases.as_ref(), KnowledgeOperation::ALL),
            history: or_all(self.history.as_ref(), HistoryOperation::ALL),
            events: or_all(self.events.as_ref(), EventOperation::ALL),
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
    /// These and no others; none switches state off.
    pub scopes: Vec<StateScope>,
}

/// What the place that shows the answer can do, where the event does not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryPolicy {
    /// What it is, such as `chat` or `api`.
    pub surface: String,
    /// Whether it shows an answer as it comes.
    pub supports_streaming: bool,
    /// Whether it can change what it has shown.
    pub supports_edit: bool,
    /// Whether it can show reactions.
    pub supports_reaction: bool,
    /// How long a message may be that it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<u32>,
}

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            surface: "api".to_owned(),
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
        }
    }
}

/// What of the transcript a simple runner finds in its context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// `recent_tail` brings the newest messages before this event; `none` and `current_event` bring none.
    pub mode: BootstrapMode,
    /// At most so many messages, 1 to 100.
    #[serde(default = "default_bootstrap_events")]
    pub max_events: u32,
    /// At most so many bytes of them.
    #[serde(default = "default_bootstrap_bytes")]
    pub max_bytes: u32,
}

fn default_bootstrap_events() -> u32 {
    20
}

fn default_bootstrap_bytes() -> u32 {
    32 * 1024
}

impl BindingConfig {
    /// A binding of every event to this runner, with nothing configured.
    #[must_use]
    pub fn for_runner(runner: RunnerId) -> Self {
        Self {
            id: "default".to_owned(),
            runner,
            priority: 0,
            matches: Match::default(),
            config: Map::new(),
            resources: ResourcePolicy::default(),
            state: None,
            delivery: DeliveryPolicy::default(),
            deadline_ms: None,
            bootstrap: None,
            durability: Durability::default(),
            max_attempts: default_max_attempts(),
            in_doubt: InDoubt::default(),
            approvals: Vec::new(),
            queue: None,
            deliver: Vec::new(),
        }
    }
}

/// A run may be given a day, for runs that wait for people.
const MAX_DEADLINE_MS: u64 = 24 * 60 * 60 * 1000;

impl Config {
    /// Reads a file. Its relative paths are relative to it.
    ///
    /// # Errors
    /// When it cannot be read or is not valid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads a text. Relative paths in it are relative to `base`.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigError> {
        let mut file: File = toml::from_str(text)?;
        file.models.iter_mut().for_each(|model| model.relative_to(base));
        file.mcp_servers.iter_mut().for_each(|server| server.relative_to(base));
        let secrets = file.http_secrets.iter_mut().map(|secret| &mut secret.value);
        let secrets = secrets.chain(file.action_hooks.iter_mut().map(|hook| &mut hook.secret));
        let secrets = secrets.chain(file.approvers.iter_mut().map(|approver| &mut approver.token));
        let secrets = secrets.chain(file.webhook_sources.iter_mut().map(|source| &mut source.secret));
        let secrets = secrets.chain(file.webhooks.iter_mut().map(|hook| &mut hook.secret));
        secrets.for_each(|secret| secret.relative_to(base));
        file.skills.iter_mut().for_each(|skill| skill.relative_to(base));
        file.static_refs.iter_mut().for_each(|content| content.relative_to(base));
        file.telemetry.relative_to(base);
        let config = Self {
            listen: file.server.listen,
            loopback_without_key: file.server.loopback_without_key,
            cors_origins: file.server.cors_origins,
            data_dir: base.join(file.server.data_dir),
            plugins_dir: base.join(file.server.plugins_dir),
            backup_dir: file.server.backup_dir.map(|dir| base.join(dir)),
            limits: file.limits,
            models: file.models,
            mcp_servers: file.mcp_servers,
            knowledge_bases: file.knowledge_bases,
            retention: file.retention,
            egress: file.egress,
            http_secrets: file.http_secrets,
            action_hooks: file.action_hooks,
            approvers: file.approvers,
            skills: file.skills,
            static_refs: file.static_refs,
            external_runners: file.external_runners,
            telemetry: file.telemetry,
            agui: file.agui,
            schedules: file.schedules,
            webhook_sources: file.webhook_sources,
            webhooks: file.webhooks,
            bindings: file.bindings,
        };
        config.check()?;
        Ok(config)
    }

    /// The configuration of a host that was told nothing: defaults, no bindings, directories in `dir`.
    #[must_use]
    pub fn default_in(dir: &Path) -> Self {
        let Server { listen, loopback_without_key, cors_origins, data_dir, plugins_dir, backup_dir } = Server::default();
        Self {
            listen,
            loopback_without_key,
            cors_origins,
            data_dir: dir.join(data_dir),
            plugins_dir: dir.join(plugins_dir),
            backup_dir,
            limits: Limits::default(),
            models: Vec::new(),
            mcp_servers: Vec::new(),
            knowledge_bases: Vec::new(),
            retention: Retention::default(),
            egress: EgressConfig::default(),
            http_secrets: Vec::new(),
            action_hooks: Vec::new(),
            approvers: Vec::new(),
            skills: Vec::new(),
            static_refs: Vec::new(),
            external_runners: Vec::new(),
            telemetry: TelemetryConfig::default(),
            agui: AguiConfig::default(),
            schedules: Vec::new(),
            webhook_sources: Vec::new(),
            webhooks: Vec::new(),
            bindings: Vec::new(),
        }
    }

    /// Checks what the shape alone does not say.
    ///
    /// # Errors
    /// The first value that cannot be, and what could.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        let limits = &self.limits;
        let not_zero = [
            ("run_deadline_ms", limits.run_deadline_ms),
            ("max_live_runs", u64::from(limits.max_live_runs)),
            ("host_calls_per_second", u64::from(limits.host_calls_per_second)),
            ("host_calls_burst", u64::from(limits.host_calls_burst)),
            ("results_per_second", u64::from(limits.results_per_second)),
            ("results_burst", u64::from(limits.results_burst)),
            ("log_bytes_per_second", u64::from(limits.log_bytes_per_second)),
            ("emit_results", limits.emit_results as u64),
            ("component_bytes", limits.component_bytes),
            ("http_connections", limits.http_connections as u64),
            ("http_header_ms", limits.http_header_ms),
            ("http_subscribers", limits.http_subscribers as u64),
            ("http_slow_reader_ms", limits.http_slow_reader_ms),
        ];
        for (name, value) in not_zero {
            if value == 0 {
                return invalid(format!("`limits.{name}` must be at least 1"));
            }
        }
        if limits.results_burst < u32::try_from(limits.emit_results).unwrap_or(u32::MAX) {
            return invalid(
                "`limits.results_burst` must be at least `limits.emit_results`, or a full batch could never pass".to_owned(),
            );
        }
        if limits.guest_memory_bytes < 1024 * 1024 || limits.guest_memory_bytes as u64 > 4 << 30 {
            return invalid("`limits.guest_memory_bytes` must be between 1 MiB and 4 GiB".to_owned());
        }
        self.check_door().map_err(ConfigError::Invalid)?;
        self.check_services().map_err(ConfigError::Invalid)?;
        for (place, binding) in self.bindings.iter().enumerate() {
            binding
                .check()
                .and_then(|()| binding.check_approvers(&self.approvers))
                .and_then(|()| binding.check_deliver(&self.webhooks))
                .map_err(|problem| ConfigError::Invalid(format!("binding {} (`{}`): {problem}", place + 1, binding.id)))?;
            if self.bindings.iter().take(place).any(|other| other.id == binding.id) {
                return invalid(format!(
                    "two bindings have the id `{}`; state of scope `binding` belongs to one: rename the second",
                    binding.id
                ));
            }
        }
        Ok(())
    }
}

impl Config {
    /// Who may come in.
    fn check_door(&self) -> Result<(), String> {
        let listen = self.listen;
        if self.loopback_without_key && !listen.ip().is_loopback() {
            return Err(format!(
                "`server.loopback_without_key` is for this machine alone, and `server.listen` is {listen}: listen at \
                 127.0.0.1, or take `loopback_without_key` out and make a key with `agent-host keys create --scope admin`"
            ));
        }
        if self.loopback_without_key && self.cors_origins.iter().any(|origin| origin == "*") {
            return Err(
                "`server.cors_origins` has `*` and `server.loopback_without_key` is on, so every page that a browser on this \
                 machine opens could do everything: name the origins, or use keys"
                    .to_owned(),
            );
        }
        let is_origin = |origin: &str| {
            let visible = origin.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase());
            let host = origin.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, host)| host);
            origin == "*" || visible && host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', '*']))
        };
        match self.cors_origins.iter().find(|origin| !is_origin(origin)) {
            Some(origin) => Err(format!(
                "`server.cors_origins` has `{origin}`: write an origin as browsers send it, scheme, host in lower case and port \
                 without a path, such as https://app.example.com"
            )),
            None => Ok(()),
        }
    }

    fn check_services(&self) -> Result<(), String> {
        fn unique<'a>(what: &str, ids: impl Iterator<Item = &'a str>) -> Result<(), String> {
            let mut seen = Vec::new();
            for id in ids {
                if seen.contains(&id) {
                    return Err(format!("two {what} have the id `{id}`: rename one"));
                }
                seen.push(id);
            }
            Ok(())
        }
        for model in &self.models {
            model.check().map_err(|problem| format!("model `{}`: {problem}", model.id))?;
        }
        for server in &self.mcp_servers {
            server.check().map_err(|problem| format!("MCP server `{}`: {problem}", server.id))?;
        }
        for base in &self.knowledge_bases {
            base.check().map_err(|problem| format!("knowledge base `{}`: {problem}", base.id))?;
            for (what, id, kind) in [
                ("embedding_model", &base.embedding_model, ModelType::Embedding),
                ("rerank_model", &base.rerank_model, ModelType::Rerank),
            ] {
                let Some(id) = id else { continue };
                if !self.models.iter().any(|model| model.id == *id && model.r#type == kind) {
                    return Err(format!(
                        "knowledge base `{}`: `{what}` names `{id}`, and no model of type `{}` has that id",
                        base.id,
                        kind.as_str()
                    ));
                }
            }
        }
        self.telemetry.check().map_err(|problem| format!("`telemetry`: {problem}"))?;
        self.agui.check(&self.bindings).map_err(|problem| format!("`agui`: {problem}"))?;
        self.egress.check().map_err(|problem| format!("`egress`: {problem}"))?;
        for secret in &self.http_secrets {
            secret.check().map_err(|problem| format!("HTTP secret `{}`: {problem}", secret.name))?;
        }
        for hook in &self.action_hooks {
            hook.check().map_err(|problem| format!("action hook {}: {problem}", hook.url))?;
        }
        for runner in &self.external_runners {
            runner.check().map_err(|problem| format!("external runner `{}`: {problem}", runner.id))?;
        }
        unique("external runners", self.external_runners.iter().map(|runner| runner.id.as_str()))?;
        for approver in &self.approvers {
            approver.check().map_err(|problem| format!("approver `{}`: {problem}", approver.id))?;
        }
        for schedule in &self.schedules {
            Schedule::new(schedule).map_err(|problem| format!("schedule `{}`: {problem}", schedule.id))?;
        }
        for source in &self.webhook_sources {
            source.check().map_err(|problem| format!("webhook source `{}`: {problem}", source.name))?;
        }
        for hook in &self.webhooks {
            hook.check().map_err(|problem| format!("webhook `{}`: {problem}", hook.name))?;
        }
        unique("models", self.models.iter().map(|model| model.id.as_str()))?;
        unique("MCP servers", self.mcp_servers.iter().map(|server| server.id.as_str()))?;
        unique("knowledge bases", self.knowledge_bases.iter().map(|base| base.id.as_str()))?;
        unique("HTTP secrets", self.http_secrets.iter().map(|secret| secret.name.as_str()))?;
        unique("schedules", self.schedules.iter().map(|schedule| schedule.id.as_str()))?;
        unique("webhook sources", self.webhook_sources.iter().map(|source| source.name.as_str()))?;
        unique("webhooks", self.webhooks.iter().map(|hook| hook.name.as_str()))?;
        unique("approvers", self.approvers.iter().map(|approver| approver.id.as_str()))?;
        unique("static references", self.static_refs.iter().map(|content| content.name.as_str()))
    }
}

/// What names something in the configuration, in paths and in keys of the ledger.
pub(crate) fn is_name(text: &str) -> bool {
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.len() <= 64 && text.chars().all(named)
}

impl BindingConfig {
    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_name(&self.id) {
            return Err("`id` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        if self.deadline_ms.is_some_and(|deadline| deadline == 0 || deadline > MAX_DEADLINE_MS) {
            return Err(format!("`deadline_ms` must be between 1 and {MAX_DEADLINE_MS} (a day)"));
        }
        if !(1..=100).contains(&self.max_attempts) {
            return Err("`max_attempts` must be between 1 and 100".to_owned());
        }
        if let Some(queue) = &self.queue {
            queue.check()?;
        }
        if let Some(bootstrap) = &self.bootstrap {
            if bootstrap.mode == BootstrapMode::SummaryTail {
                return Err("`bootstrap.mode` cannot be `summary_tail`: the host makes no summaries, runners do".to_owned());
            }
            if !(1..=100).contains(&bootstrap.max_events) {
                return Err("`bootstrap.max_events` must be between 1 and 100".to_owned());
            }
        }
        for (place, rule) in self.approvals.iter().enumerate() {
            rule.check().map_err(|problem| format!("`approvals`, rule {}: {problem}", place + 1))?;
        }
        for host in self.resources.http_hosts.iter().flatten() {
            agent_host_protocol::hosts::check(host).map_err(|problem| format!("`resources.http_hosts`: {problem}"))?;
        }
        crate::pattern::Pattern::new(&self.matches).map(drop)
    }

    /// Whether every webhook is known that is told what its runs do.
    fn check_deliver(&self, known: &[ResultHookConfig]) -> Result<(), String> {
        for (place, name) in self.deliver.iter().enumerate() {
            if !known.iter().any(|hook| hook.name == *name) {
                return Err(format!("`deliver` names the webhook `{name}`, and no `[[webhooks]]` entry has that name"));
            }
            if self.deliver.iter().take(place).any(|other| other == name) {
                return Err(format!("`deliver` names the webhook `{name}` twice"));
            }
        }
        Ok(())
    }

    /// Whether everyone is known who may answer.
    fn check_approvers(&self, known: &[ApproverConfig]) -> Result<(), String> {
        let named = self.approvals.iter().flat_map(|rule| &rule.approvers);
        match named.into_iter().find(|id| !known.iter().any(|approver| approver.id == **id)) {
            Some(id) => Err(format!("`approvals` names the approver `{id}`, and no `[[approvers]]` entry has that id")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/agent-host")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_full_file_is_read() {
        let config = parse(
            r#"
            [server]
            listen = "127.0.0.1:0"
            data_dir = "state"

            [limits]
            run_deadline_ms = 1000

            [[bindings]]
            id = "support"
            runner = "plugin:acme/support/default"
            priority = 10
            match = { event_type = "message\\..*", workspace = "acme" }
            config = { prefix = "> " }
            resources = { history = ["page"], http_hosts = ["api.example.com:443"] }
            state = { scopes = ["conversation"] }
            delivery = { surface = "chat", supports_edit = true }
            deadline_ms = 5000
            bootstrap = { mode = "recent_tail", max_events = 5 }
            "#,
        )
        .unwrap();
        assert_eq!(config.data_dir, Path::new("/etc/agent-host/state"));
        assert_eq!(config.plugins_dir, Path::new("/etc/agent-host/plugins"));
        assert_eq!(config.limits.run_deadline_ms, 1000);
        let permissions = config.bindings[0].resources.permissions(config.bindings[0].state.as_ref());
        assert_eq!(permissions.history, [HistoryOperation::Page]);
        assert_eq!(permissions.state, [StateScope::Conversation]);
        assert_eq!(permissions.http_hosts, ["api.example.com:443"]);
        assert!(permissions.platform_api.is_empty() && permissions.runs.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let binding = |more: &str| format!("[[bindings]]\nid = \"a\"\nrunner = \"plugin:a/b/c\"\n{more}");
        for (text, says) in [
            ("[server]\nlisten_on = \"x\"", "listen_on"),
            ("[limits]\nrun_deadline = 5", "run_deadline"),
            ("[limits]\nmax_live_runs = 0", "max_live_runs"),
            ("listen = 5", "listen"),
            ("[server]\nlisten = \"0.0.0.0:80\"\nloopback_without_key = true", "keys create"),
            ("[server]\nlisten = \"[::]:80\"\nloopback_without_key = true", "127.0.0.1"),
            ("[server]\nloopback_without_key = true\ncors_origins = [\"*\"]", "name the origins"),
            ("[server]\ncors_origins = [\"https://a.example/\"]", "without a path"),
            ("[server]\ncors_origins = [\"https://*.a.example\"]", "cors_origins"),
            ("[server]\ncors_origins = [\"a.example\"]", "cors_origins"),
            ("[server]\ncors_origins = [\"https://A.example\"]", "lower case"),
            ("[limits]\nhttp_connections = 0", "http_connections"),
            ("[[bindings]]\nid = \"a\"\nrunner = \"echo\"", "plugin:AUTHOR/PLUGIN/NAME"),
            ("[[bindings]]\nid = \"a\"", "runner"),
            (&binding("match = { event_type = \"(\" }"), "match.event_type"),
            (&binding("match = { kind = \"x\" }"), "kind"),
            (&binding("state = { scopes = [\"galaxy\"] }"), "galaxy"),
            (&binding("deadline_ms = 0"), "deadline_ms"),
            (&binding("bootstrap = { mode = \"summary_tail\" }"), "summary_tail"),
            (&format!("{0}\n{0}", binding("")), "two bindings"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}\n→ {error}");
        }
    }
}
