//! Results that are larger than an event may be: their content becomes an artifact, with a preview in its place.

use agent_host_protocol::{
    RunResult,
    encoded::json_len,
    message::{ArtifactRef, ContentPart, Message, ToolCall},
};
use serde_json::Value;

use crate::safe::{beginning, is_longer};

/// Calls that a message announces at most: each is an event of its own as well.
const MAX_ANNOUNCED: usize = 64;

/// The largest results, from the limits of the host.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Data of a result, in bytes.
    pub result_bytes: usize,
    /// Text of the result of a tool, in characters.
    pub tool_output_chars: usize,
    /// Preview of content that is elsewhere, in characters.
    pub preview_chars: usize,
}

/// A result whose content is to be kept elsewhere.
#[derive(Debug, Clone)]
pub struct LargeResult {
    result: RunResult,
    text: String,
    is_text: bool,
    preview_chars: usize,
}

/// The result as it fits an event, or its content that does not.
///
/// # Errors
/// [`LargeResult`]: keep its content as an artifact, then take the result with a reference to it.
pub fn fit(mut result: RunResult, bounds: Bounds) -> Result<RunResult, Box<LargeResult>> {
    match &mut result {
        // Parameters that are too large are unknown in the record; the raw event has them.
        RunResult::ToolCallStarted { parameters, .. } => shrink(parameters, bounds.result_bytes / 2),
        RunResult::MessageCompleted { message, .. } => {
            message.tool_calls.truncate(MAX_ANNOUNCED);
            if json_len(&message.tool_calls) > bounds.result_bytes / 2 {
                message.tool_calls.iter_mut().for_each(|ToolCall { parameters, .. }| *parameters = Value::Null);
            }
        }
        _ => {}
    }
    let chars = match &result {
        RunResult::ToolCallCompleted { .. } => bounds.tool_output_chars,
        _ => usize::MAX,
    };
    let Some(content) = content_of(&mut result) else { return Ok(result) };
    let is_long = content.iter().any(|part| matches!(part, ContentPart::Text(text) if is_longer(text, chars)));
    // Names and ids stand beside the content.
    if !is_long && json_len(content) <= bounds.result_bytes / 2 {
        return Ok(result);
    }
    let is_text = content.iter().all(|part| matches!(part, ContentPart::Text(_)));
    let text = match is_text {
        true => content.iter().map(|part| if let ContentPart::Text(text) = part { text.as_str() } else { "" }).collect(),
        false => serde_json::to_string(content).unwrap_or_default(),
    };
    content.clear();
    Err(Box::new(LargeResult { result, text, is_text, preview_chars: bounds.preview_chars }))
}

fn shrink(value: &mut Value, bytes: usize) {
    if json_len(value) > bytes {
        *value = Value::Null;
    }
}

fn content_of(result: &mut RunResult) -> Option<&mut Vec<ContentPart>> {
    match result {
        RunResult::MessageCompleted { message: Message { content, .. }, .. }
        | RunResult::ToolCallCompleted { outcome: Ok(content), .. } => Some(content),
        _ => None,
    }
}

impl LargeResult {
    /// The content.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.text.clone().into_bytes()
    }

    /// Media type of the content.
    #[must_use]
    pub const fn media_type(&self) -> &'static str {
        if self.is_text { "text/plain" } else { "application/json" }
    }

    /// A name for the content.
    #[must_use]
    pub fn name(&self) -> String {
        let of = match &self.result {
            RunResult::ToolCallCompleted { tool_name, .. } if !tool_name.is_empty() => tool_name.as_str(),
            RunResult::ToolCallCompleted { .. } => "tool",
            _ => "message",
        };
        format!("{of}.{}", if self.is_text { "txt" } else { "json" })
    }

    /// The result with a preview of its content and a reference to the whole.
    #[must_use]
    pub fn with(mut self, artifact: ArtifactRef) -> RunResult {
        if let Some(content) = content_of(&mut self.result) {
            if self.is_text {
                let (preview, chars) = (beginning(&self.text, self.preview_chars), self.text.chars().count());
                let id = &artifact.artifact_id;
                content.push(ContentPart::Text(format!(
                    "{preview}\n… [the beginning of {chars} characters; all of them are in artifact {id}]"
                )));
            }
            content.push(ContentPart::Artifact(artifact));
        }
        self.result
    }
}
