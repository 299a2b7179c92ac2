//! The messages of the Agent Client Protocol, version 1, as far as a client reads them. Members and kinds that are not named here
//! are passed over: agents are newer than hosts.

use serde::Deserialize;
use serde_json::Value;

/// The version that is spoken.
pub(crate) const VERSION: u64 = 1;
/// The agent wants its user to log in first.
pub(crate) const AUTH_REQUIRED: i64 = -32_000;
/// There is no such method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32_601;
/// The parameters of a request cannot be.
pub(crate) const INVALID_PARAMS: i64 = -32_602;
/// The client could not do what was asked.
pub(crate) const INTERNAL_ERROR: i64 = -32_603;

/// Name and version of a program.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Implementation {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) version: String,
}

/// The answer to `initialize`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Initialized {
    #[serde(default)]
    pub(crate) protocol_version: u64,
    #[serde(default)]
    pub(crate) agent_capabilities: AgentCapabilities,
    #[serde(default)]
    pub(crate) agent_info: Option<Implementation>,
    /// Ways to log in.
    #[serde(default)]
    pub(crate) auth_methods: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AgentCapabilities {
    pub(crate) load_session: bool,
    pub(crate) mcp_capabilities: McpCapabilities,
    pub(crate) session_capabilities: SessionCapabilities,
    pub(crate) prompt_capabilities: PromptCapabilities,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PromptCapabilities {
    pub(crate) embedded_context: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct McpCapabilities {
    pub(crate) http: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SessionCapabilities {
    pub(crate) resume: Option<Value>,
}

/// The answer to `session/new`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewSession {
    pub(crate) session_id: String,
}

/// The answer to `session/prompt`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PromptEnd {
    #[serde(default)]
    pub(crate) stop_reason: String,
    #[serde(default)]
    pub(crate) usage: Option<Usage>,
}

/// Tokens, as the agent counts them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Usage {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) thought_tokens: Option<u64>,
    pub(crate) cached_read_tokens: Option<u64>,
}

/// `session/update`.
#[derive(Debug, Deserialize)]
pub(crate) struct SessionNotification {
    pub(crate) update: Update,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "sessionUpdate", rename_all = "snake_case")]
pub(crate) enum Update {
    AgentMessageChunk {
        content: Content,
    },
    AgentThoughtChunk {
        content: Content,
    },
    ToolCall(ToolCall),
    #[serde(rename = "tool_call_update")]
    ToolCallChange(ToolCall),
    Plan {
        #[serde(default)]
        entries: Vec<PlanEntry>,
    },
    #[serde(rename = "current_mode_update")]
    CurrentMode {
        #[serde(default, rename = "currentModeId")]
        mode: String,
    },
    #[serde(rename = "usage_update")]
    Usage {
        #[serde(default)]
        used: u64,
        #[serde(default)]
        size: u64,
        #[serde(default)]
        cost: Option<Value>,
    },
    #[serde(other)]
    Other,
}

/// A block of content.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Content {
    Text {
        #[serde(default)]
        text: String,
    },
    ResourceLink {
        #[serde(default)]
        uri: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PlanEntry {
    #[serde(default)]
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) status: String,
}

/// A tool call, or what has changed of one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ToolCall {
    pub(crate) tool_call_id: String,
    pub(crate) title: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) content: Option<Vec<ToolContent>>,
    pub(crate) locations: Option<Vec<Location>>,
    pub(crate) raw_input: Option<Value>,
    pub(crate) raw_output: Option<Value>,
    #[serde(rename = "_meta")]
    pub(crate) meta: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Location {
    #[serde(default)]
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) line: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToolContent {
    Content {
        content: Content,
    },
    #[serde(rename_all = "camelCase")]
    Diff {
        #[serde(default)]
        path: String,
        #[serde(default)]
        old_text: Option<String>,
        #[serde(default)]
        new_text: String,
    },
    #[serde(rename_all = "camelCase")]
    Terminal {
        #[serde(default)]
        terminal_id: String,
    },
    #[serde(other)]
    Other,
}

/// `session/request_permission`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionRequest {
    pub(crate) tool_call: ToolCall,
    #[serde(default)]
    pub(crate) options: Vec<PermissionOption>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionOption {
    pub(crate) option_id: String,
    #[serde(default)]
    pub(crate) name: String,
    /// `allow_once`, `allow_always`, `reject_once` or `reject_always`.
    #[serde(default)]
    pub(crate) kind: String,
}

/// `fs/read_text_file`.
#[derive(Debug, Deserialize)]
pub(crate) struct ReadFile {
    pub(crate) path: std::path::PathBuf,
    #[serde(default)]
    pub(crate) line: Option<usize>,
    #[serde(default)]
    pub(crate) limit: Option<usize>,
}

/// `fs/write_text_file`.
#[derive(Debug, Deserialize)]
pub(crate) struct WriteFile {
    pub(crate) path: std::path::PathBuf,
    pub(crate) content: String,
}

/// `terminal/create`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateTerminal {
    pub(crate) command: String,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<Variable>,
    #[serde(default)]
    pub(crate) cwd: Option<std::path::PathBuf>,
    #[serde(default)]
    pub(crate) output_byte_limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The other requests about a terminal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TerminalName {
    pub(crate) terminal_id: String,
}
