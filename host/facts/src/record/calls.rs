//! Calls of models and tools.

use agent_host_protocol::{
    ApiError,
    manifest::ModelOperation,
    message::TokenUsage,
    model::{Fallback, Retry},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// The start of a call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCallStart {
    /// The call.
    pub model_call_id: String,
    /// The model.
    #[serde(default)]
    pub model_id: String,
    /// The operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<ModelOperation>,
}

/// The end of a call of a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelCallEnd {
    /// Cost in millionths of the currency of the price, where the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// The duration, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The failure, of a call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
    /// The models that were asked before and failed, in order. The call began with the first of them; `model_id` here is the model
    /// that answered, or that was asked last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<Fallback>,
    /// The reason why a chat model stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The call.
    #[serde(flatten)]
    pub call: ModelCallStart,
    /// The first requests to the provider that failed and were sent again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retries: Vec<Retry>,
    /// The tokens; `None` for a call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The tokens of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Usage {
    /// As the provider reports them.
    Known(TokenUsage),
    /// `"unknown"`: the provider does not say.
    Unknown(Value),
}

impl Usage {
    /// The usage as a provider reports it.
    #[must_use]
    pub fn of(reported: Option<&TokenUsage>) -> Self {
        reported.map_or_else(|| Self::Unknown("unknown".into()), |usage| Self::Known(*usage))
    }
}

/// The failure of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallFailure {
    /// The provider's code of the error, where it has one.
    #[serde(default)]
    pub category: Value,
    /// The code.
    #[serde(default)]
    pub code: String,
    /// A line for people.
    #[serde(default)]
    pub message: String,
}

impl CallFailure {
    /// The provider's code of the error, or the code.
    #[must_use]
    pub fn name(&self) -> &str {
        self.category.as_str().unwrap_or(&self.code)
    }
}

impl From<&ApiError> for CallFailure {
    fn from(error: &ApiError) -> Self {
        let category = error.details.as_ref().and_then(|details| details.get("code")).cloned();
        Self {
            category: category.unwrap_or_else(|| error.code.as_str().into()),
            code: error.code.as_str().to_owned(),
            message: error.message.clone(),
        }
    }
}

/// The start of a call of a tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolCallStart {
    /// The message that the call belongs to, as the runner names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// `None` if the parameters are unknown, or follow in pieces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Box<RawValue>>,
    /// Size of parameters that do not fit an event: pieces of them follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_bytes: Option<u64>,
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
}

/// A piece of the parameters of a call, as JSON text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolCallArguments {
    /// The piece.
    pub delta: String,
    /// True for the last piece.
    #[serde(default)]
    pub last: bool,
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
}

/// A report of a tool that works.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolCallProgress {
    /// A message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The part that is done.
    #[serde(default)]
    pub progress: Value,
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
    /// The whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Value>,
}

/// The end of a call of a tool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ToolCallEnd {
    /// The category of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Value>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The duration, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The error of a call that failed: a text, of the host and its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// Bytes of the whole output, wherever it is; `None` if nobody counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// The result: a text or a list of parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The call, as the runner names it.
    pub tool_call_id: String,
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
    /// True if the result or the error is not the whole output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}
