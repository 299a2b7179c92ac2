//! The configuration file `agent-host.toml`: types, validation, and the reference of its keys.
//!
//! The crate turns text into values, one file for each section. The crate has no behaviour: no function opens files, connects,
//! reads a secret or knows a run.

mod access_key;
mod addresses;
mod agui;
mod approval;
mod bindings;
mod cluster;
mod egress;
mod executor_runners;
mod external_runners;
mod file;
mod harnesses;
mod identity_providers;
mod knowledge_bases;
mod library;
mod mcp_servers;
mod models;
mod name;
mod pattern;
mod queue;
mod quotas;
mod reference;
mod resources;
mod retention;
mod runner_aliases;
mod schedules;
mod secret;
mod secret_refs;
mod server;
mod signature;
mod telemetry;
mod template;
mod webhook_sources;
mod webhooks;

pub use self::{
    access_key::AccessKey,
    addresses::AddressRules,
    agui::{AgentApiConfig, AgentProfile, AguiConfig, BusyThread, ForeignHistory, OnDisconnect},
    approval::{ApprovalPolicy, ApprovalRule, ApproverConfig, QUESTION},
    bindings::{BindingConfig, Bootstrap, Budget, ClientInstructions, DeliveryPolicy, Durability, InDoubt, default_max_attempts},
    cluster::ClusterConfig,
    egress::{EgressConfig, HttpSecretConfig, network},
    executor_runners::ExecutorRunnersConfig,
    external_runners::ExternalRunnerConfig,
    file::{Config, ConfigError, config_schema, section_names},
    harnesses::{
        HARNESS_RESULTS, HarnessConfig, HarnessDialect, HarnessIsolation, HarnessLimits, HarnessPolicy, HarnessPreset,
        HarnessProtocol, HarnessRule,
    },
    identity_providers::{IdentityProviderConfig, TokenAlgorithm},
    knowledge_bases::KnowledgeBaseConfig,
    library::{SkillConfig, StaticRefConfig},
    mcp_servers::{EnvValue, McpServerConfig},
    models::{DEFAULT_EXTRA_ARGS, ModelConfig, ModelPrice, ProviderKind, TOKENIZERS},
    name::is_name,
    pattern::{Match, Pattern, whole},
    queue::{MIN_LEASE_MS, OnLost, QueuePolicy, check_labels, is_queue_name},
    quotas::Quotas,
    reference::config_reference,
    resources::{Names, ResourcePolicy, StatePolicy},
    retention::Retention,
    runner_aliases::RunnerAliases,
    schedules::{MissedTicks, ScheduleConfig, TickRule},
    secret::SecretRef,
    signature::{Algorithm, CustomSignature, Encoding, NamedSignature, Part, SignatureConfig, SignatureScheme},
    telemetry::{LogFormat, TelemetryConfig},
    template::{Piece, Template},
    webhook_sources::{Condition, EventMapping, WebhookSourceConfig},
    webhooks::{ActionHookConfig, MAX_PAUSE_MS, ResultHookConfig},
};
