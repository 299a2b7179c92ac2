//! The messages of `claude --output-format stream-json`, as far as a client reads them. Members and kinds that are not named here are
//! passed over.

use serde::Deserialize;
use serde_json::Value;

/// A line of Claude Code.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Message {
    System(System),
    StreamEvent {
        event: Event,
        #[serde(default)]
        parent_tool_use_id: Option<String>,
    },
    Assistant {
        message: Said,
        #[serde(default)]
        parent_tool_use_id: Option<String>,
        /// Set where the message is the program's own, about a failure.
        #[serde(default)]
        error: Option<String>,
    },
    User {
        message: Told,
    },
    Result(TurnResult),
    ControlRequest {
        request_id: String,
        request: Value,
    },
    ControlResponse {
        response: ControlAnswer,
    },
    #[serde(other)]
    Other,
}

impl Message {
    /// A line as a message; a message of a kind or a form that is not known is [`Message::Other`].
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        value.get("type")?.as_str()?;
        Some(serde_json::from_value(value).unwrap_or_else(|error| {
            tracing::debug!(%error, "a message of an agent cannot be read");
            Self::Other
        }))
    }
}

/// A report of the program about itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct System {
    pub(super) subtype: String,
    pub(super) session_id: String,
    pub(super) claude_code_version: String,
    #[serde(rename = "permissionMode")]
    pub(super) permission_mode: Option<String>,
}

/// A piece of a message of the model.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    MessageStart {
        message: Started,
    },
    ContentBlockDelta {
        delta: Piece,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct Started {
    pub(super) id: String,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Piece {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(other)]
    Other,
}

/// A message of the model.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    #[serde(default)]
    pub(super) id: String,
    #[serde(default)]
    pub(super) content: Vec<Block>,
    #[serde(default)]
    pub(super) usage: Option<Tokens>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Other,
}

/// A message to the model: results of tools, where the content is a list.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) content: Value,
}

/// The result of a tool.
#[derive(Debug, Deserialize)]
pub(super) struct ToolResult {
    pub(super) tool_use_id: String,
    #[serde(default)]
    pub(super) content: Value,
    #[serde(default)]
    pub(super) is_error: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cache_read_input_tokens: Option<u64>,
    pub(super) cache_creation_input_tokens: Option<u64>,
}

/// The end of a turn.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TurnResult {
    pub(super) subtype: String,
    pub(super) is_error: bool,
    pub(super) session_id: String,
    pub(super) result: Option<String>,
    pub(super) errors: Vec<String>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<Tokens>,
    pub(super) total_cost_usd: Option<f64>,
    #[serde(rename = "modelUsage")]
    pub(super) model_usage: std::collections::BTreeMap<String, ModelUsage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ModelUsage {
    pub(super) context_window: u64,
}

/// The answer to a control request of the client.
#[derive(Debug, Deserialize)]
pub(super) struct ControlAnswer {
    #[serde(default)]
    pub(super) subtype: String,
    pub(super) request_id: String,
    #[serde(default)]
    pub(super) response: Value,
    #[serde(default)]
    pub(super) error: Option<String>,
}

/// The answer to `initialize`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Initialized {
    pub(super) claude_code_version: String,
    pub(super) account: Option<Account>,
}

/// The account in use. A source that is `none` is none.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Account {
    pub(super) token_source: Option<String>,
    pub(super) api_key_source: Option<String>,
    pub(super) api_provider: Option<String>,
    pub(super) email: Option<String>,
}

/// `can_use_tool`.
#[derive(Debug, Deserialize)]
pub(super) struct CanUseTool {
    pub(super) tool_name: String,
    #[serde(default)]
    pub(super) input: Value,
    #[serde(default)]
    pub(super) tool_use_id: String,
    #[serde(default)]
    pub(super) permission_suggestions: Vec<Value>,
    #[serde(default)]
    pub(super) blocked_path: Option<String>,
}
