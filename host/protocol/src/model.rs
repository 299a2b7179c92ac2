//! Requests to models and their answers (wit/capabilities.wit, `models`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{Message, TokenUsage};

/// The kind of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelType {
    /// Chat: `invoke`, `stream`, `count_tokens`.
    Llm,
    /// `embed`.
    Embedding,
    /// `rerank`.
    Rerank,
}

impl ModelType {
    /// The type as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Llm => "llm",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
        }
    }
}

/// A tool that a model may ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The name that comes back in a tool call.
    pub name: String,
    /// Description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the parameters.
    pub parameters: Value,
}

/// A request to a chat model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
    /// Such as `temperature` or `response_format`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra_args: Map<String, Value>,
    /// The session of the run, for providers that keep prompts of a session in a cache. The host sets it.
    #[serde(skip)]
    pub session_key: Option<String>,
}

/// A request to a provider that failed and was sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Category of the failure.
    #[serde(default)]
    pub category: String,
    /// Time until the request was sent again, in ms.
    #[serde(default)]
    pub pause_ms: u64,
}

/// A model that failed before it answered, after which the host asked the next one of `fallback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The model that failed.
    #[serde(default)]
    pub model_id: String,
    /// Category of the failure.
    #[serde(default)]
    pub category: String,
    /// Time from the request to the failure, in ms.
    #[serde(default)]
    pub duration_ms: u64,
}

/// The answer of a chat model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelResponse {
    /// The message of the model.
    pub message: Message,
    /// `stop`, `length`, `tool-calls`, `content-filter`, ...
    pub finish_reason: String,
    /// Usage, if the service reports a plausible one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// A piece of a streamed answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelChunk {
    /// Text of the answer.
    Text(String),
    /// Text of its reasoning.
    Reasoning(String),
    /// The last piece: the whole answer, put together by the host.
    Done(ModelResponse),
}

/// A document of a rerank, best first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RerankHit {
    /// Index in the request.
    pub index: u32,
    /// Relevance; larger is better. The scale depends on the model.
    pub score: f64,
}
