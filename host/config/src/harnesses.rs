//! `[[harnesses]]`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use agent_host_protocol::{
    RunnerId, hosts,
    manifest::{
        ArtifactOperation, Capabilities, ContextPolicy, EventOperation, HistoryOperation, KnowledgeOperation, Permissions,
        RunnerManifest, StateScope, ToolOperation,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use crate::{
    external_runners::{ExternalRunnerConfig, check_permissions, first_version},
    mcp_servers::EnvValue,
};

/// Processes of one harness at one time, whatever the configuration says.
const MAX_PROCESSES: u32 = 1_000;
/// The longest time that a configuration may set, in ms: a week.
const MAX_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Variables that the host sets for each process.
const RESERVED_VARIABLES: [&str; 3] = ["HOME", "TMPDIR", "PWD"];
/// Placeholders of `workspace`.
const PLACEHOLDERS: [&str; 7] = ["conversation_id", "thread_id", "actor_id", "bot_id", "workspace_id", "session_key", "run_id"];

/// Types of results by which a harness reports of an agent what no other type has: its session, a permission that a rule answered, its
/// mode, the tokens in its context, lines that are no messages, and a connection that its proxy refused. They have no effect.
pub const HARNESS_RESULTS: [&str; 6] =
    ["harness.session", "harness.permission", "harness.mode", "harness.context", "harness.garbage", "harness.network"];

/// The kind of a coding agent: its command, its protocol, and the places where it looks for skills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HarnessPreset {
    /// Claude Code, by `claude-agent-acp`.
    ClaudeCode,
    /// Codex, by `codex-acp`.
    Codex,
    /// Gemini CLI, by `gemini --acp`.
    Gemini,
    /// OpenCode, by `opencode acp`.
    #[serde(rename = "opencode")]
    OpenCode,
    /// Kimi Code, by `kimi acp`.
    Kimi,
    /// Pi, by `pi-acp`.
    Pi,
    /// Any agent that speaks the Agent Client Protocol.
    Acp,
    /// Any program: one JSON request on its standard input, results as JSON lines on its standard output.
    Command,
}

impl HarnessPreset {
    /// The preset, as the configuration names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::OpenCode => "opencode",
            Self::Kimi => "kimi",
            Self::Pi => "pi",
            Self::Acp => "acp",
            Self::Command => "command",
        }
    }

    /// Program and arguments where the configuration has no `command`; empty if it must have one.
    #[must_use]
    pub const fn command(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["claude-agent-acp"],
            Self::Codex => &["codex-acp"],
            Self::Gemini => &["gemini", "--acp"],
            Self::OpenCode => &["opencode", "acp"],
            Self::Kimi => &["kimi", "acp"],
            Self::Pi => &["pi-acp"],
            Self::Acp | Self::Command => &[],
        }
    }

    /// Program and arguments of the agent's own protocol; empty if there is none that a harness speaks.
    #[must_use]
    pub const fn native_command(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["claude"],
            Self::Codex => &["codex", "app-server"],
            Self::Gemini | Self::OpenCode | Self::Kimi | Self::Pi | Self::Acp | Self::Command => &[],
        }
    }

    /// Variables that keep the agent from updating itself and from reporting to its vendor, and that have Gemini CLI trust the
    /// workspace: it connects to no MCP server where it does not.
    #[must_use]
    pub const fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::ClaudeCode => &[("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"), ("DISABLE_AUTOUPDATER", "1")],
            Self::OpenCode => &[("OPENCODE_DISABLE_AUTOUPDATE", "1")],
            Self::Gemini => &[("GEMINI_CLI_TRUST_WORKSPACE", "true")],
            Self::Kimi => &[("KIMI_CODE_NO_AUTO_UPDATE", "1"), ("KIMI_DISABLE_TELEMETRY", "1")],
            Self::Pi => &[("PI_SKIP_VERSION_CHECK", "1"), ("PI_TELEMETRY", "0")],
            Self::Codex | Self::Acp | Self::Command => &[],
        }
    }

    /// Patterns of the hosts of the agent's model service, where it has one of its own.
    #[must_use]
    pub const fn model_hosts(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["api.anthropic.com"],
            Self::Codex => &["api.openai.com", "auth.openai.com", "chatgpt.com"],
            Self::Gemini => &["cloudcode-pa.googleapis.com", "generativelanguage.googleapis.com", "oauth2.googleapis.com"],
            Self::Kimi => &["api.kimi.com", "api.moonshot.ai", "api.moonshot.cn"],
            Self::OpenCode | Self::Pi | Self::Acp | Self::Command => &[],
        }
    }

    /// The folder under the agent's home where it looks for skills. `None`: skills are in the directory of the run.
    #[must_use]
    pub const fn skills_dir(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(".claude/skills"),
            Self::Codex => Some(".codex/skills"),
            Self::Gemini => Some(".gemini/skills"),
            Self::OpenCode => Some(".config/opencode/skills"),
            Self::Kimi => Some(".kimi-code/skills"),
            Self::Pi => Some(".pi/agent/skills"),
            Self::Acp | Self::Command => None,
        }
    }
}

/// The protocol between a harness and its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HarnessProtocol {
    /// The Agent Client Protocol.
    #[default]
    Acp,
    /// The agent's own protocol, by its own program: `claude` with streams of JSON, `codex app-server`.
    Native,
}

/// The confinement of the processes of a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HarnessIsolation {
    /// By the kernel: the workspace, the home and the directory of the run are writable, system paths readable, and nothing else;
    /// TCP connections to `connect_ports` only.
    Landlock,
    /// By namespaces of the kernel, with the program `bwrap` (bubblewrap): the same files, processes of its own, and no network but a
    /// proxy, which judges each destination by `connect_hosts` and the binding, and `connect_ports` of this machine.
    Bwrap,
    /// None: a process reaches what the user of the host reaches.
    None,
}

/// Form of the files that a run gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HarnessDialect {
    /// `AGENT_CONTEXT.md`, and the schema `agent-host.external_harness_context.v1`.
    #[default]
    AgentHost,
    /// `LANGBOT_CONTEXT.md`, and the schema `langbot.agent_runner.external_harness_context.v1`.
    Langbot,
}

/// The answer of a rule to a permission request of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HarnessPolicy {
    /// Granted once.
    Allow,
    /// A person answers.
    Ask,
    /// Refused.
    Deny,
}

/// A rule for permission requests of an agent. The first rule that fits answers; without one, a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HarnessRule {
    /// The answer.
    pub policy: HarnessPolicy,
    /// Kinds of tools (`read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode`, `other`). None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Folders and files, relative to the workspace or absolute: each location of the tool call is in one of them (`deny`: any
    /// location). None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBuf>,
    /// Beginnings of commands, such as `git status`. None: all. A command with characters that a shell treats in a special way
    /// does not fit a rule that allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Bounds of the processes of a harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HarnessLimits {
    /// Memory that one process may write to, in bytes.
    pub max_memory_bytes: u64,
    /// Files that one process may have open.
    pub max_open_files: u64,
    /// CPU time of one process, in seconds.
    pub cpu_seconds: u64,
    /// Longest line on the standard output of an agent, in bytes.
    pub line_bytes: usize,
    /// Output of an agent in one run, in bytes. The content of its open tool calls is in memory.
    pub output_bytes: u64,
    /// Messages of an agent in one second; more wait.
    pub messages_per_second: u32,
    /// Largest attachment that is put into the directory of the run, in bytes; larger ones are named by their artifact.
    pub attachment_bytes: u64,
    /// Time for an agent to start and to open its session, in ms.
    pub start_timeout_ms: u64,
    /// Time for a person to answer a permission request, in ms. No answer is a refusal.
    pub ask_timeout_ms: u64,
}

impl Default for HarnessLimits {
    fn default() -> Self {
        Self {
            max_memory_bytes: 8 << 30,
            max_open_files: 8_192,
            cpu_seconds: 3_600,
            line_bytes: 16 << 20,
            output_bytes: 1 << 30,
            messages_per_second: 20_000,
            attachment_bytes: 20 << 20,
            start_timeout_ms: 60_000,
            ask_timeout_ms: 600_000,
        }
    }
}

/// A coding agent that is installed on the machine, as a runner: the host starts a process of it for each run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HarnessConfig {
    /// `plugin:AUTHOR/PLUGIN/NAME`: the runner that bindings name.
    #[schemars(with = "String")]
    pub id: RunnerId,
    /// Kind of the agent.
    pub preset: HarnessPreset,
    /// Program and arguments: a path, or a name that is looked up in `PATH` at the start. Default: that of the preset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Protocol of the agent. `native` is for the presets `claude-code` and `codex`.
    #[serde(default)]
    pub protocol: HarnessProtocol,
    /// Name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Working directory of the agent, under the data directory or absolute. `{conversation_id}`, `{thread_id}`, `{actor_id}`,
    /// `{bot_id}`, `{workspace_id}`, `{session_key}` and `{run_id}` stand for those of the run; a run without one has its own.
    #[serde(default = "default_workspace")]
    pub workspace: String,
    /// Environment of the agent, besides `PATH`, `HOME`, `TMPDIR`, `LANG` and `TERM`. The agent sees no other variable of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// Confinement. Default: `landlock` where the kernel has it, else `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<HarnessIsolation>,
    /// More paths that a confined agent may read and execute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<PathBuf>,
    /// More paths that a confined agent may write to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<PathBuf>,
    /// Ports that a confined agent may connect to, besides that of the host. `landlock`: at every address. `bwrap`: those from 1024 on,
    /// at this machine, by the same port of the sandbox's `127.0.0.1`.
    #[serde(default = "default_ports")]
    pub connect_ports: Vec<u16>,
    /// Hosts (`HOST[:PORT]`, `*.HOST`) that an agent confined by `bwrap` may connect to, besides `resources.http_hosts` of the binding.
    /// Default: the model service of the preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_hosts: Option<Vec<String>>,
    /// Runs at one time.
    #[serde(default = "default_processes")]
    pub max_processes: u32,
    /// Queues that runs are taken from. None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// The most that a run of the agent can use of the host.
    #[serde(default = "default_permissions")]
    pub permissions: Permissions,
    /// Rules for permission requests of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<HarnessRule>,
    /// Form of the files that a run gets.
    #[serde(default)]
    pub dialect: HarnessDialect,
    /// Time for which the directory of an ended run is kept, in ms.
    #[serde(default = "default_retention")]
    pub retention_ms: u64,
    /// Bounds of the processes.
    #[serde(default)]
    pub limits: HarnessLimits,
}

fn default_workspace() -> String {
    "workspaces/{conversation_id}".to_owned()
}

fn default_ports() -> Vec<u16> {
    vec![80, 443]
}

const fn default_processes() -> u32 {
    4
}

const fn default_retention() -> u64 {
    24 * 60 * 60 * 1000
}

/// Permissions that a coding agent has a use for. A binding narrows them.
fn default_permissions() -> Permissions {
    Permissions {
        tools: ToolOperation::ALL.to_vec(),
        knowledge_bases: KnowledgeOperation::ALL.to_vec(),
        history: HistoryOperation::ALL.to_vec(),
        events: EventOperation::ALL.to_vec(),
        artifacts: ArtifactOperation::ALL.to_vec(),
        state: vec![StateScope::Conversation],
        interactions: true,
        ..Permissions::default()
    }
}

impl HarnessConfig {
    /// Program and arguments.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        if !self.command.is_empty() {
            return self.command.clone();
        }
        let command = match self.protocol {
            HarnessProtocol::Acp => self.preset.command(),
            HarnessProtocol::Native => self.preset.native_command(),
        };
        command.iter().map(|part| (*part).to_owned()).collect()
    }

    /// Patterns of hosts that a process of the agent may connect to in every run.
    #[must_use]
    pub fn connect_hosts(&self) -> Vec<String> {
        let of_preset = || self.preset.model_hosts().iter().map(|host| (*host).to_owned()).collect();
        self.connect_hosts.clone().unwrap_or_else(of_preset)
    }

    /// The manifest of the runner.
    #[must_use]
    pub fn manifest(&self) -> RunnerManifest {
        let capabilities = Capabilities {
            streaming: true,
            tool_calling: true,
            multimodal_input: true,
            interrupt: true,
            steering: self.preset != HarnessPreset::Command,
            stateful_session: true,
            ..Capabilities::default()
        };
        let runner = ExternalRunnerConfig {
            id: self.id.clone(),
            version: first_version(),
            label: self.label.clone(),
            description: None,
            capabilities,
            permissions: self.permissions.clone(),
            context: ContextPolicy::default(),
            config_schema: Vec::new(),
            metadata: Map::from_iter([("harness".to_owned(), json!({ "preset": self.preset }))]),
        };
        runner.manifest()
    }

    /// Takes relative paths of files relative to `base`.
    pub(crate) fn relative_to(&mut self, base: &Path) {
        for value in self.env.values_mut() {
            if let EnvValue::Secret(secret) = value {
                secret.relative_to(base);
            }
        }
        if let Some(program) = self.command.first_mut().filter(|program| program.contains('/')) {
            *program = base.join(&*program).to_string_lossy().into_owned();
        }
        self.readable.iter_mut().chain(&mut self.writable).for_each(|path| *path = base.join(&*path));
    }

    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.protocol == HarnessProtocol::Native && self.preset.native_command().is_empty() {
            return Err(format!(
                "`protocol = \"native\"` is for the presets `claude-code` and `codex`; the preset `{}` has `acp`",
                self.preset.as_str()
            ));
        }
        if self.command().first().is_none_or(|program| program.trim().is_empty()) {
            return Err(format!("the preset `{}` has no command of its own: set `command`", self.preset.as_str()));
        }
        self.check_workspace()?;
        for name in self.env.keys() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("`env`: {name:?} is no name of a variable"));
            }
            if RESERVED_VARIABLES.contains(&name.as_str()) {
                return Err(format!("`env`: `{name}` is set by the host for each run"));
            }
        }
        if !(1..=MAX_PROCESSES).contains(&self.max_processes) {
            return Err(format!("`max_processes` is between 1 and {MAX_PROCESSES}"));
        }
        if let Some(queue) = self.queues.iter().find(|queue| !crate::queue::is_queue_name(queue)) {
            return Err(format!("`queues`: {queue:?} has not 1 to 64 letters, digits, `.`, `_`, `-` or `/`"));
        }
        for host in self.connect_hosts.iter().flatten() {
            hosts::check(host).map_err(|problem| format!("`connect_hosts`: {problem}"))?;
        }
        self.check_rules()?;
        let limits = &self.limits;
        let numbers = [
            ("max_memory_bytes", limits.max_memory_bytes, 16 << 20, u64::MAX),
            ("max_open_files", limits.max_open_files, 16, 1 << 20),
            ("cpu_seconds", limits.cpu_seconds, 1, u64::MAX),
            ("line_bytes", limits.line_bytes as u64, 1024, 256 << 20),
            ("output_bytes", limits.output_bytes, 1024, u64::MAX),
            ("messages_per_second", u64::from(limits.messages_per_second), 1, u64::from(u32::MAX)),
            ("attachment_bytes", limits.attachment_bytes, 0, 1 << 30),
            ("start_timeout_ms", limits.start_timeout_ms, 100, MAX_MS),
            ("ask_timeout_ms", limits.ask_timeout_ms, 100, MAX_MS),
        ];
        for (name, value, least, most) in numbers {
            if !(least..=most).contains(&value) {
                return Err(format!("`limits.{name}` is between {least} and {most}"));
            }
        }
        check_permissions(&self.permissions)
    }

    fn check_workspace(&self) -> Result<(), String> {
        let parts = Path::new(&self.workspace).components();
        if self.workspace.trim().is_empty() || parts.into_iter().any(|part| part.as_os_str() == "..") {
            return Err("`workspace` is a path without `..`, such as workspaces/{conversation_id}".to_owned());
        }
        let mut rest = self.workspace.as_str();
        while let Some((_, after)) = rest.split_once('{') {
            let name = after.split_once('}').map(|(name, _)| name);
            if name.is_none_or(|name| !PLACEHOLDERS.contains(&name)) {
                return Err(format!(
                    "`workspace`: a placeholder is one of {}",
                    PLACEHOLDERS.map(|name| format!("{{{name}}}")).join(", ")
                ));
            }
            rest = after;
        }
        Ok(())
    }

    fn check_rules(&self) -> Result<(), String> {
        const KINDS: [&str; 10] =
            ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];
        for (place, rule) in self.rules.iter().enumerate() {
            let place = place + 1;
            if let Some(kind) = rule.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
                return Err(format!("rule {place}: there is no kind of tools {kind:?}; there are {}", KINDS.join(", ")));
            }
            if rule.commands.iter().any(|command| command.trim().is_empty()) {
                return Err(format!("rule {place}: an empty command begins every command: leave `commands` out"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness(more: &str) -> HarnessConfig {
        toml::from_str(&format!("id = \"plugin:acme/coder/default\"\n{more}")).unwrap()
    }

    #[test]
    fn a_preset_brings_its_command_and_the_manifest_its_rights() {
        let claude = harness("preset = \"claude-code\"\nenv = { KEY = { env = \"KEY\" } }");
        assert_eq!(claude.check(), Ok(()));
        assert_eq!(claude.command(), ["claude-agent-acp"]);
        assert_eq!(harness("preset = \"claude-code\"\nprotocol = \"native\"").command(), ["claude"]);
        let codex = harness("preset = \"codex\"\nprotocol = \"native\"");
        assert_eq!((codex.check(), codex.command()), (Ok(()), vec!["codex".to_owned(), "app-server".to_owned()]));
        let manifest = claude.manifest();
        assert!(manifest.capabilities.steering && manifest.permissions.interactions);
        assert_eq!(manifest.permissions.state, [StateScope::Conversation]);
        assert!(manifest.permissions.models.is_empty() && manifest.permissions.http_hosts.is_empty());
    }

    #[test]
    fn a_confined_agent_reaches_the_model_service_of_its_preset_unless_the_operator_says_otherwise() {
        assert_eq!(harness("preset = \"claude-code\"").connect_hosts(), ["api.anthropic.com"]);
        let own = harness("preset = \"claude-code\"\nisolation = \"bwrap\"\nconnect_hosts = [\"models.example:8443\"]");
        assert_eq!((own.check(), own.connect_hosts()), (Ok(()), vec!["models.example:8443".to_owned()]));
        assert_eq!(own.isolation, Some(HarnessIsolation::Bwrap));
        assert!(harness("preset = \"codex\"\nconnect_hosts = []").connect_hosts().is_empty());
        let presets = [HarnessPreset::ClaudeCode, HarnessPreset::Codex, HarnessPreset::Gemini, HarnessPreset::Kimi];
        for host in presets.iter().flat_map(|preset| preset.model_hosts()) {
            assert_eq!(hosts::check(host), Ok(()));
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (more, says) in [
            ("preset = \"acp\"", "set `command`"),
            ("preset = \"gemini\"\nprotocol = \"native\"", "`claude-code` and `codex`"),
            ("preset = \"command\"\ncommand = [\"x\"]\nprotocol = \"native\"", "`claude-code` and `codex`"),
            ("preset = \"codex\"\nworkspace = \"../out\"", "without `..`"),
            ("preset = \"codex\"\nworkspace = \"{home}\"", "placeholder"),
            ("preset = \"codex\"\nenv = { HOME = \"/root\" }", "set by the host"),
            ("preset = \"codex\"\nmax_processes = 0", "max_processes"),
            ("preset = \"codex\"\nrules = [{ policy = \"deny\", kinds = [\"shell\"] }]", "there is no kind"),
            ("preset = \"codex\"\nrules = [{ policy = \"allow\", commands = [\"\"] }]", "empty command"),
            ("preset = \"codex\"\nconnect_hosts = [\"https://api.openai.com\"]", "`connect_hosts`"),
            ("preset = \"codex\"\nlimits = { line_bytes = 1 }", "limits.line_bytes"),
        ] {
            let problem = harness(more).check().unwrap_err();
            assert!(problem.contains(says), "{more}: {problem}");
        }
    }
}
