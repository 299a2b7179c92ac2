//! The messages of `codex app-server`, as far as a client reads them. Members and kinds that are not named here are passed over.

use serde::Deserialize;
use serde_json::Value;

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialized {
    /// Such as `agent-host/0.169.0 (Debian …)`.
    #[serde(default)]
    pub(super) user_agent: String,
}

/// The answer to `account/read`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountState {
    #[serde(default)]
    pub(super) account: Option<Value>,
    #[serde(default)]
    pub(super) requires_openai_auth: bool,
}

/// The answer to `thread/start` and `thread/resume`.
#[derive(Debug, Deserialize)]
pub(super) struct OpenThread {
    pub(super) thread: Thread,
}

#[derive(Debug, Deserialize)]
pub(super) struct Thread {
    pub(super) id: String,
}

/// The answer to `turn/start`, and `turn/completed`.
#[derive(Debug, Deserialize)]
pub(super) struct TurnState {
    pub(super) turn: Turn,
}

#[derive(Debug, Deserialize)]
pub(super) struct Turn {
    pub(super) id: String,
    #[serde(default)]
    pub(super) status: String,
    #[serde(default)]
    pub(super) error: Option<TurnProblem>,
}

/// The reason why a turn failed.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnProblem {
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) codex_error_info: Option<Value>,
    #[serde(default)]
    pub(super) additional_details: Option<String>,
}

/// `item/started` and `item/completed`.
#[derive(Debug, Deserialize)]
pub(super) struct ItemState {
    pub(super) item: Item,
}

/// A piece of an item that grows.
#[derive(Debug, Deserialize)]
pub(super) struct Delta {
    #[serde(default)]
    pub(super) delta: String,
}

/// `turn/plan/updated`.
#[derive(Debug, Deserialize)]
pub(super) struct Plan {
    #[serde(default)]
    pub(super) plan: Vec<PlanStep>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PlanStep {
    #[serde(default)]
    pub(super) step: String,
    #[serde(default)]
    pub(super) status: String,
}

/// `thread/tokenUsage/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokenUsage {
    pub(super) token_usage: ThreadUsage,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadUsage {
    pub(super) total: Tokens,
    pub(super) last: Tokens,
    #[serde(default)]
    pub(super) model_context_window: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Tokens {
    pub(super) total_tokens: u64,
    pub(super) input_tokens: u64,
    pub(super) cached_input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) reasoning_output_tokens: u64,
}

/// An item of a turn.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Item {
    AgentMessage {
        #[serde(default)]
        text: String,
    },
    CommandExecution {
        id: String,
        #[serde(default)]
        command: String,
        #[serde(default)]
        cwd: String,
        #[serde(default)]
        status: String,
        #[serde(default)]
        aggregated_output: Option<String>,
        #[serde(default)]
        exit_code: Option<i64>,
    },
    FileChange {
        id: String,
        #[serde(default)]
        changes: Vec<Change>,
        #[serde(default)]
        status: String,
    },
    McpToolCall {
        id: String,
        #[serde(default)]
        server: String,
        #[serde(default)]
        tool: String,
        #[serde(default)]
        status: String,
        #[serde(default)]
        arguments: Value,
        #[serde(default)]
        result: Option<McpResult>,
        #[serde(default)]
        error: Option<McpProblem>,
    },
    DynamicToolCall {
        id: String,
        #[serde(default)]
        tool: String,
        #[serde(default)]
        arguments: Value,
        #[serde(default)]
        status: String,
    },
    CollabAgentToolCall {
        id: String,
        #[serde(default)]
        tool: String,
        #[serde(default)]
        status: String,
        #[serde(default)]
        prompt: Option<String>,
    },
    WebSearch {
        id: String,
        #[serde(default)]
        query: String,
    },
    ImageView {
        id: String,
        #[serde(default)]
        path: String,
    },
    #[serde(other)]
    Other,
}

/// A change of a file.
#[derive(Debug, Deserialize)]
pub(super) struct Change {
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    pub(super) kind: ChangeKind,
    /// A unified diff of an update; else the content of the file.
    #[serde(default)]
    pub(super) diff: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum ChangeKind {
    Add,
    Delete,
    #[default]
    #[serde(other)]
    Update,
}

#[derive(Debug, Deserialize)]
pub(super) struct McpResult {
    #[serde(default)]
    pub(super) content: Vec<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct McpProblem {
    #[serde(default)]
    pub(super) message: String,
}

/// `item/commandExecution/requestApproval`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandApproval {
    pub(super) item_id: String,
    /// `command`, or another kind such as input for a command that is executed.
    #[serde(default)]
    pub(super) kind: Option<String>,
    /// Set where one item has several requests.
    #[serde(default)]
    pub(super) approval_id: Option<String>,
    #[serde(default)]
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) command: Option<String>,
    #[serde(default)]
    pub(super) network_approval_context: Option<NetworkTarget>,
    #[serde(default)]
    pub(super) available_decisions: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NetworkTarget {
    #[serde(default)]
    pub(super) host: String,
}

/// `item/fileChange/requestApproval`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileApproval {
    pub(super) item_id: String,
    #[serde(default)]
    pub(super) reason: Option<String>,
    /// Writes below this folder are asked for too.
    #[serde(default)]
    pub(super) grant_root: Option<String>,
}

/// `item/permissions/requestApproval`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MorePermissions {
    pub(super) item_id: String,
    #[serde(default)]
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) permissions: Value,
}

/// `mcpServer/elicitation/request`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Elicitation {
    #[serde(default)]
    pub(super) server_name: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) requested_schema: Value,
}
