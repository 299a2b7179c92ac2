//! `agent-host.toml`: the whole of it.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use agent_host_protocol::{Limits, RunnerManifest, model::ModelType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agui::AguiConfig,
    approval::ApproverConfig,
    bindings::BindingConfig,
    cluster::{ClusterConfig, check_cluster},
    egress::{EgressConfig, HttpSecretConfig},
    executor_runners::ExecutorRunnersConfig,
    external_runners::ExternalRunnerConfig,
    harnesses::HarnessConfig,
    identity_providers::IdentityProviderConfig,
    knowledge_bases::KnowledgeBaseConfig,
    library::{SkillConfig, StaticRefConfig},
    mcp_servers::McpServerConfig,
    models::ModelConfig,
    quotas::Quotas,
    retention::Retention,
    runner_aliases::RunnerAliases,
    schedules::ScheduleConfig,
    server::{ServerConfig, check_admission},
    telemetry::TelemetryConfig,
    webhook_sources::WebhookSourceConfig,
    webhooks::{ActionHookConfig, ResultHookConfig},
};

/// The reason why a configuration cannot be used. The message names the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The text is not TOML, or has a key or value that it cannot have.
    #[error("the configuration is not valid:\n{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value cannot be.
    #[error("the configuration is not valid: {0}")]
    Invalid(String),
}

/// The configuration of the host, checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// Requests from this machine have all rights without a key. Allowed at a loopback address only.
    pub loopback_without_key: bool,
    /// Origins whose pages may use the API from a browser, such as `https://app.example.com`; `*` is all of them.
    pub cors_origins: Vec<String>,
    /// Services whose tokens name end users.
    pub identity_providers: Vec<IdentityProviderConfig>,
    /// Directory of the ledger, artifacts, knowledge and compiled code.
    pub data_dir: PathBuf,
    /// Directory of plugins.
    pub plugins_dir: PathBuf,
    /// Directory of backups, if the file has one: see [`Config::backups`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_dir: Option<PathBuf>,
    /// Database of the ledger of a cluster, a URL without the password. `None`: the ledger is in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<String>,
    /// Membership in a cluster. Present if and only if `ledger` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterConfig>,
    /// Limits.
    pub limits: Limits,
    /// Bytes that workspaces may keep.
    pub quotas: Quotas,
    /// Retention of data of ended runs.
    pub retention: Retention,
    /// Models that runs may be granted.
    pub models: Vec<ModelConfig>,
    /// Servers whose tools runs may be granted.
    pub mcp_servers: Vec<McpServerConfig>,
    /// Knowledge bases that runs may be granted.
    pub knowledge_bases: Vec<KnowledgeBaseConfig>,
    /// Allowed targets of HTTP requests, besides the limits of bindings.
    pub egress: EgressConfig,
    /// Secrets that the host puts into requests of runs.
    pub http_secrets: Vec<HttpSecretConfig>,
    /// Webhooks that carry out platform actions.
    pub action_hooks: Vec<ActionHookConfig>,
    /// People who may answer actions of runs. Without any: every caller of the API.
    pub approvers: Vec<ApproverConfig>,
    /// Skills that runs may be granted.
    pub skills: Vec<SkillConfig>,
    /// Content that does not change from run to run.
    pub static_refs: Vec<StaticRefConfig>,
    /// Runners whose runs executors execute.
    pub external_runners: Vec<ExternalRunnerConfig>,
    /// Coding agents of this machine as runners.
    pub harnesses: Vec<HarnessConfig>,
    /// Runners whose manifests executors may bring.
    pub executor_runners: Vec<ExecutorRunnersConfig>,
    /// Runners by other names, for queries of pipelines.
    pub runner_aliases: RunnerAliases,
    /// Export of traces and logs.
    pub telemetry: TelemetryConfig,
    /// Answers to clients of AG-UI.
    pub agui: AguiConfig,
    /// Events at certain times.
    pub schedules: Vec<ScheduleConfig>,
    /// Systems whose signed requests become events.
    pub webhook_sources: Vec<WebhookSourceConfig>,
    /// Webhooks that get the results of runs.
    pub webhooks: Vec<ResultHookConfig>,
    /// The bindings: rules from events to runners.
    pub bindings: Vec<BindingConfig>,
}

/// The schema of the file, with the documentation of each key: what the reference of the configuration is made of.
pub(crate) fn schema() -> Value {
    schemars::schema_for!(File).to_value()
}

/// The JSON Schema of the file (draft 7, which editors understand), with the documentation of each key.
#[must_use]
pub fn config_schema() -> Value {
    let generator = schemars::generate::SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    schema.insert("title".to_owned(), "agent-host.toml".into());
    schema.to_value()
}

/// The sections of the file.
#[must_use]
pub fn section_names() -> BTreeSet<String> {
    let schema = schema();
    let sections = schema.get("properties").and_then(Value::as_object);
    sections.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// The file, as it is written.
#[derive(Deserialize, Default, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct File {
    server: ServerConfig,
    cluster: Option<ClusterConfig>,
    identity_providers: Vec<IdentityProviderConfig>,
    limits: Limits,
    quotas: Quotas,
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
    harnesses: Vec<HarnessConfig>,
    executor_runners: Vec<ExecutorRunnersConfig>,
    /// Runners by other names, for queries of pipelines: a name of a configuration, or the id of a runner that is not installed
    /// here. An entry replaces the default of its name (docs/PIPELINE.md); other defaults stay.
    runner_aliases: RunnerAliases,
    telemetry: TelemetryConfig,
    agui: AguiConfig,
    schedules: Vec<ScheduleConfig>,
    webhook_sources: Vec<WebhookSourceConfig>,
    webhooks: Vec<ResultHookConfig>,
    bindings: Vec<BindingConfig>,
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not valid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads a text. Relative paths in it are relative to `base`.
    ///
    /// # Errors
    /// Fails if the text is not valid.
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigError> {
        let mut file: File = toml::from_str(text)?;
        file.models.iter_mut().for_each(|model| model.relative_to(base));
        file.mcp_servers.iter_mut().for_each(|server| server.relative_to(base));
        file.harnesses.iter_mut().for_each(|harness| harness.relative_to(base));
        let secrets = file.http_secrets.iter_mut().map(|secret| &mut secret.value);
        let secrets = secrets.chain(file.action_hooks.iter_mut().map(|hook| &mut hook.secret));
        let secrets = secrets.chain(file.approvers.iter_mut().map(|approver| &mut approver.token));
        let secrets = secrets.chain(file.webhook_sources.iter_mut().map(|source| &mut source.secret));
        let secrets = secrets.chain(file.webhooks.iter_mut().map(|hook| &mut hook.secret));
        secrets.for_each(|secret| secret.relative_to(base));
        file.skills.iter_mut().for_each(|skill| skill.relative_to(base));
        file.static_refs.iter_mut().for_each(|content| content.relative_to(base));
        file.telemetry.relative_to(base);
        file.cluster.iter_mut().for_each(|cluster| cluster.relative_to(base));
        file.identity_providers.iter_mut().for_each(|provider| provider.relative_to(base));
        let config = Self {
            listen: file.server.listen,
            loopback_without_key: file.server.loopback_without_key,
            cors_origins: file.server.cors_origins,
            identity_providers: file.identity_providers,
            data_dir: base.join(file.server.data_dir),
            plugins_dir: base.join(file.server.plugins_dir),
            backup_dir: file.server.backup_dir.map(|dir| base.join(dir)),
            ledger: file.server.ledger,
            cluster: file.cluster,
            limits: file.limits,
            models: file.models,
            mcp_servers: file.mcp_servers,
            knowledge_bases: file.knowledge_bases,
            quotas: file.quotas,
            retention: file.retention,
            egress: file.egress,
            http_secrets: file.http_secrets,
            action_hooks: file.action_hooks,
            approvers: file.approvers,
            skills: file.skills,
            static_refs: file.static_refs,
            external_runners: file.external_runners,
            harnesses: file.harnesses,
            executor_runners: file.executor_runners,
            runner_aliases: file.runner_aliases,
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

    /// The configuration without a file: defaults, no bindings, directories in `dir`.
    #[must_use]
    pub fn default_in(dir: &Path) -> Self {
        let ServerConfig { listen, loopback_without_key, cors_origins, data_dir, plugins_dir, backup_dir, ledger } =
            ServerConfig::default();
        Self {
            listen,
            loopback_without_key,
            cors_origins,
            identity_providers: Vec::new(),
            data_dir: dir.join(data_dir),
            plugins_dir: dir.join(plugins_dir),
            backup_dir,
            ledger,
            cluster: None,
            limits: Limits::default(),
            models: Vec::new(),
            mcp_servers: Vec::new(),
            knowledge_bases: Vec::new(),
            quotas: Quotas::default(),
            retention: Retention::default(),
            egress: EgressConfig::default(),
            http_secrets: Vec::new(),
            action_hooks: Vec::new(),
            approvers: Vec::new(),
            skills: Vec::new(),
            static_refs: Vec::new(),
            external_runners: Vec::new(),
            harnesses: Vec::new(),
            executor_runners: Vec::new(),
            runner_aliases: RunnerAliases::default(),
            telemetry: TelemetryConfig::default(),
            agui: AguiConfig::default(),
            schedules: Vec::new(),
            webhook_sources: Vec::new(),
            webhooks: Vec::new(),
            bindings: Vec::new(),
        }
    }

    /// Directory of backups: `[server] backup_dir`, else `backups` in the data directory.
    #[must_use]
    pub fn backups(&self) -> PathBuf {
        self.backup_dir.clone().unwrap_or_else(|| self.data_dir.join("backups"))
    }

    /// The manifests of the runners whose runs executors execute: `[[external_runners]]` and `[[harnesses]]`.
    #[must_use]
    pub fn external_manifests(&self) -> Vec<RunnerManifest> {
        let external = self.external_runners.iter().map(ExternalRunnerConfig::manifest);
        external.chain(self.harnesses.iter().map(HarnessConfig::manifest)).collect()
    }
}

impl Config {
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
        check_cluster(self.listen, self.ledger.as_deref(), self.cluster.as_ref()).map_err(ConfigError::Invalid)?;
        check_admission(self.listen, self.loopback_without_key, &self.cors_origins).map_err(ConfigError::Invalid)?;
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
        for provider in &self.identity_providers {
            provider.check().map_err(|problem| format!("identity provider `{}`: {problem}", provider.name))?;
        }
        unique("identity providers", self.identity_providers.iter().map(|provider| provider.name.as_str()))?;
        for (place, provider) in self.identity_providers.iter().enumerate() {
            let mut earlier = self.identity_providers.iter().take(place);
            if let Some(other) = earlier.rfind(|other| other.issuer == provider.issuer) {
                return Err(format!(
                    "the identity providers `{}` and `{}` have one issuer, so nobody could say whose a token is: make one entry \
                     of them, with the `audiences` of both",
                    other.name, provider.name
                ));
            }
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
        for (place, entry) in self.executor_runners.iter().enumerate() {
            entry.check().map_err(|problem| format!("executor runners {}: {problem}", place + 1))?;
        }
        for harness in &self.harnesses {
            harness.check().map_err(|problem| format!("harness `{}`: {problem}", harness.id))?;
        }
        let ids = self.external_runners.iter().map(|runner| runner.id.as_str());
        unique("external runners", ids.chain(self.harnesses.iter().map(|harness| harness.id.as_str())))?;
        for approver in &self.approvers {
            approver.check().map_err(|problem| format!("approver `{}`: {problem}", approver.id))?;
        }
        for schedule in &self.schedules {
            schedule.check().map_err(|problem| format!("schedule `{}`: {problem}", schedule.id))?;
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

#[cfg(test)]
mod tests {
    use agent_host_protocol::manifest::{HistoryOperation, StateScope};

    use super::*;

    /// The settings that the example has as comments.
    fn setting(line: &str) -> Option<&str> {
        let text = line.strip_prefix("# ")?;
        let is_key = |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        (text.starts_with("[[") || text.split_once(" = ").is_some_and(|(key, _)| is_key(key))).then_some(text)
    }

    #[test]
    fn the_example_of_an_installation_is_valid_with_and_without_its_comments() {
        let example = include_str!("../../cli/dist/agent-host.toml");
        let config = parse(example).unwrap();
        assert!(!config.loopback_without_key && config.bindings.is_empty());
        let all: Vec<_> = example.lines().map(|line| setting(line).unwrap_or(line)).collect();
        let config = parse(&all.join("\n")).unwrap();
        assert_eq!((config.models.len(), config.mcp_servers.len(), config.bindings.len()), (1, 1, 1));
    }

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
    fn problems_are_named() {
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
            (&format!("{0}\n{0}", binding("")), "two bindings"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}\n→ {error}");
        }
    }
}
