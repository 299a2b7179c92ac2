//! What tools are and what they answer (wit/capabilities.wit, `tools`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::ContentPart;

/// A tool, as a runner or a model needs to know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDetail {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the parameters.
    pub parameters: Value,
    /// It changes nothing. A hint of the tool's server, as are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Calling it again with the same parameters changes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// It may destroy something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// For people and models.
    pub content: Vec<ContentPart>,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// The tool ran and reports a failure. A call that could not be made is an error instead.
    pub is_error: bool,
}
