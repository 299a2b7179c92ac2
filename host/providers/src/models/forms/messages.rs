//! Messages of Anthropic.
//!
//! A conversation has two roles there: results of tools are content of the user, and what the system says stands beside the
//! conversation. Thoughts that the model signs are not kept: a request that continues with results of tools is sent without `thinking`,
//! which the provider would refuse without them.

use agent_host_config::ModelConfig;
use agent_host_protocol::{
    ApiError,
    message::{Message, Role, TokenUsage},
    model::ModelRequest,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    super::{
        chat::{Images, Part, encoded, named_tool, plain_text, tool_names},
        names::ToolNames,
    },
    Piece,
    request::{Turns, arguments_of, call_id, take_most_tokens, take_stop},
    text,
};
use crate::ArtifactSource;

/// Tokens of an answer where nobody says how many: the provider wants a number.
const MAX_TOKENS: u64 = 8_192;

/// The body of a request, and how its tools are named in it.
pub(super) async fn body(
    config: &ModelConfig,
    request: &ModelRequest,
    artifacts: &dyn ArtifactSource,
) -> Result<(Bytes, ToolNames), ApiError> {
    let names = tool_names(request);
    let caches = config.sends_prompt_cache_key();
    let mut body = arguments(config, request, &names);
    let mut images = Images::new(artifacts, config.max_image_bytes);
    let (mut system, mut turns) = (Vec::new(), Turns::default());
    for message in &request.messages {
        if matches!(message.role, Role::System | Role::Developer) {
            system.extend(Some(plain_text(message)).filter(|text| !text.is_empty()).map(text_block));
            continue;
        }
        let role = if message.role == Role::Assistant { "assistant" } else { "user" };
        turns.add(role, blocks(message, &names, &mut images).await?);
    }
    if caches {
        // The provider keeps what stands before each mark: tools and system, and the conversation up to here.
        if let Some(last) = system.last_mut() {
            mark(last);
        }
        if let Some(last) = turns.last_mut().and_then(|content| content.last_mut()) {
            mark(last);
        }
    }
    if !system.is_empty() {
        body.insert("system".into(), system.into());
    }
    body.insert("model".into(), config.model_name().into());
    body.insert("messages".into(), turns.in_member("content"));
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(|tool| named_tool(tool, &names, "input_schema")).collect());
    }
    if request.messages.last().is_some_and(|message| message.role == Role::Tool) {
        body.remove("thinking");
    }
    body.insert("stream".into(), true.into());
    Ok((encoded(&body)?, names))
}

fn text_block(text: String) -> Value {
    json!({ "type": "text", "text": text })
}

fn mark(block: &mut Value) {
    if let Some(block) = block.as_object_mut() {
        block.insert("cache_control".into(), json!({ "type": "ephemeral" }));
    }
}

/// The arguments of a request, in the names of the provider.
fn arguments(config: &ModelConfig, request: &ModelRequest, names: &ToolNames) -> Map<String, Value> {
    let mut given = arguments_of(config, request);
    let most = take_most_tokens(&mut given);
    let mut body = Map::new();
    let mut choice = given.remove("tool_choice").and_then(|choice| tool_choice(choice, names));
    if let Some(parallel) = given.remove("parallel_tool_calls").and_then(|parallel| parallel.as_bool()) {
        let choice = choice.get_or_insert_with(|| json!({ "type": "auto" }));
        if let Some(choice) = choice.as_object_mut() {
            choice.insert("disable_parallel_tool_use".into(), (!parallel).into());
        }
    }
    if let Some(choice) = choice.filter(|_| !request.tools.is_empty()) {
        body.insert("tool_choice".into(), choice);
    }
    if let Some(stop) = take_stop(&mut given) {
        body.insert("stop_sequences".into(), stop);
    }
    if let Some(effort) = given.remove("reasoning_effort") {
        body.insert("output_config".into(), json!({ "effort": effort }));
    }
    // The provider has marks in its place.
    given.remove("prompt_cache_key");
    body.extend(given);
    body.insert("max_tokens".into(), most.unwrap_or_else(|| MAX_TOKENS.into()));
    body
}

/// A choice of tools in the form of chat completions, or already in that of the provider.
fn tool_choice(choice: Value, names: &ToolNames) -> Option<Value> {
    let named = choice.pointer("/function/name").and_then(Value::as_str);
    Some(match (choice.as_str(), named) {
        (Some("required"), _) => json!({ "type": "any" }),
        (Some(kind), _) => json!({ "type": kind }),
        (None, Some(name)) => json!({ "type": "tool", "name": names.to_wire(name) }),
        (None, None) => choice,
    })
    .filter(Value::is_object)
}

/// The blocks of a message.
async fn blocks(message: &Message, names: &ToolNames, images: &mut Images<'_>) -> Result<Vec<Value>, ApiError> {
    if message.role == Role::Tool {
        let id = call_id(message.tool_call_id.as_deref().unwrap_or_default());
        return Ok(vec![json!({ "type": "tool_result", "tool_use_id": id, "content": plain_text(message) })]);
    }
    let parts = images.parts(message, |_| true).await?;
    let wire = |part| match part {
        Part::Text(text) => text_block(text),
        Part::Image(image) => {
            let source = json!({ "type": "base64", "media_type": image.media_type, "data": image.base64 });
            json!({ "type": "image", "source": source })
        }
    };
    let mut blocks: Vec<Value> = parts.into_iter().map(wire).collect();
    if message.role == Role::Assistant {
        blocks.extend(message.tool_calls.iter().map(|call| {
            let name = names.to_wire(&call.tool_name);
            json!({ "type": "tool_use", "id": call_id(&call.call_id), "name": name, "input": call.parameters })
        }));
    }
    Ok(blocks)
}

/// Makes pieces of the events of a stream.
#[derive(Debug, Default)]
pub(in super::super) struct Reader {
    input: u64,
    cached: Option<u64>,
    output: u64,
}

impl Reader {
    pub(super) fn event(&mut self, event: &Value) -> Vec<Piece> {
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                self.count(event.pointer("/message/usage"));
                Vec::new()
            }
            "content_block_start" => match event.pointer("/content_block/type").and_then(Value::as_str) {
                Some("tool_use") => {
                    let (id, name) = (text(event, "/content_block/id"), text(event, "/content_block/name"));
                    vec![Piece::Call { index, id, name, arguments: String::new() }]
                }
                Some("text") => vec![Piece::Text(text(event, "/content_block/text"))],
                Some("thinking") => vec![Piece::Reasoning(text(event, "/content_block/thinking"))],
                _ => Vec::new(),
            },
            "content_block_delta" => match event.pointer("/delta/type").and_then(Value::as_str) {
                Some("text_delta") => vec![Piece::Text(text(event, "/delta/text"))],
                Some("thinking_delta") => vec![Piece::Reasoning(text(event, "/delta/thinking"))],
                Some("input_json_delta") => {
                    let arguments = text(event, "/delta/partial_json");
                    vec![Piece::Call { index, id: String::new(), name: String::new(), arguments }]
                }
                _ => Vec::new(),
            },
            "message_delta" => {
                self.count(event.get("usage"));
                let usage = TokenUsage { input: self.input, output: self.output, cached_input: self.cached, reasoning: None };
                let reason = text(event, "/delta/stop_reason");
                let reason = match reason.as_str() {
                    "end_turn" | "stop_sequence" => "stop",
                    "max_tokens" | "model_context_window_exceeded" => "length",
                    "tool_use" => "tool_calls",
                    other => other,
                };
                [Piece::Usage(usage)].into_iter().chain((!reason.is_empty()).then(|| Piece::Finish(reason.to_owned()))).collect()
            }
            "message_stop" => vec![Piece::End],
            "error" => vec![Piece::Failed(event.get("error").cloned().unwrap_or_default())],
            // `ping`, signatures of thoughts, and what later versions have.
            _ => Vec::new(),
        }
    }

    /// Counts are sums so far; tokens of caches stand beside `input_tokens`.
    fn count(&mut self, usage: Option<&Value>) {
        let number = |name: &str| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
        if let Some(input) = number("input_tokens") {
            let (read, written) = (number("cache_read_input_tokens"), number("cache_creation_input_tokens"));
            self.input = input.saturating_add(read.unwrap_or(0)).saturating_add(written.unwrap_or(0));
            self.cached = read;
        }
        self.output = number("output_tokens").unwrap_or(self.output);
    }
}
