//! Converse of Amazon Bedrock, always streamed: one form for the models of all makers there.
//!
//! The path names the model. A conversation has two roles; results of tools are content of the user. Arguments that Converse does not
//! have are those of the model: they go into `additionalModelRequestFields`. Thoughts that the model signs are not kept: a request that
//! continues with results of tools is sent without `thinking`, which models of Anthropic would refuse without them.

use std::collections::BTreeSet;

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::{
    ApiError,
    message::{Message, Role, TokenUsage},
    model::{ModelRequest, ToolDefinition},
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    super::{
        chat::{Images, Part, encoded, named_tool, plain_text, tool_names},
        failure::Category,
        frames::Frame,
        http::Target,
        names::ToolNames,
    },
    Piece,
    request::{Turns, arguments_of, call_id, take_most_tokens, take_parallel_calls, take_stop, within},
    text,
};
use crate::ArtifactSource;

/// The media type of the answer: messages in the event stream encoding of AWS.
pub(in super::super) const FRAMES: &str = "application/vnd.amazon.eventstream";
/// Members of a request that an operator can set.
const MEMBERS: [&str; 8] = [
    "additionalModelRequestFields",
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "inferenceConfig",
    "outputConfig",
    "performanceConfig",
    "requestMetadata",
    "serviceTier",
];
/// The member for the arguments of the model.
const OF_MODEL: &str = "additionalModelRequestFields";
/// Members of it that turn on thoughts which the model signs.
const SIGNED_THOUGHTS: [&str; 2] = ["thinking", "reasoning_config"];

/// The place of a request. A model may be named by an ARN, which is one segment of the path.
pub(super) fn target(config: &ModelConfig) -> Target {
    Target::new(["model", config.model_name(), "converse-stream"], FRAMES)
}

/// The body of a request, and how its tools are named in it.
pub(super) async fn body(
    config: &ModelConfig,
    request: &ModelRequest,
    artifacts: &dyn ArtifactSource,
) -> Result<(Bytes, ToolNames), ApiError> {
    let names = tool_names(request);
    let (mut body, choice) = arguments(config, request, &names)?;
    let mut images = Images::new(artifacts, config.max_image_bytes);
    let (mut system, mut turns) = (Vec::new(), Turns::default());
    for message in &request.messages {
        if matches!(message.role, Role::System | Role::Developer) {
            system.extend(text_block(plain_text(message)));
            continue;
        }
        let role = if message.role == Role::Assistant { "assistant" } else { "user" };
        turns.add(role, blocks(message, &names, &mut images).await?);
    }
    if config.sends_prompt_cache_key() {
        // The provider keeps what stands before each point: tools and system, and the conversation up to here.
        let point = || json!({ "cachePoint": { "type": "default" } });
        system.extend((!system.is_empty()).then(point));
        if let Some(last) = turns.last_mut() {
            last.push(point());
        }
    }
    if !system.is_empty() {
        body.insert("system".into(), system.into());
    }
    body.insert("messages".into(), turns.in_member("content"));
    let tools = tools(request, &names);
    if !tools.is_empty() {
        body.insert("toolConfig".into(), json!({ "tools": tools }));
        if let Some(choice) = choice {
            within(&mut body, "toolConfig", "toolChoice", choice);
        }
    }
    if request.messages.last().is_some_and(|message| message.role == Role::Tool)
        && let Some(Value::Object(of_model)) = body.get_mut(OF_MODEL)
    {
        of_model.retain(|name, _| !SIGNED_THOUGHTS.contains(&name.as_str()));
    }
    Ok((encoded(&body)?, names))
}

/// The block of a text; `None` for an empty one and for white space, which the provider refuses.
fn text_block(text: String) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({ "text": text }))
}

/// The tools of a request. A conversation with calls must declare tools: where a request has none, those that were called, by name.
fn tools(request: &ModelRequest, names: &ToolNames) -> Vec<Value> {
    let spec = |tool: &ToolDefinition| {
        let mut spec = named_tool(tool, names, "inputSchema");
        if let Some(schema) = spec.get_mut("inputSchema") {
            *schema = json!({ "json": schema.take() });
        }
        json!({ "toolSpec": spec })
    };
    if !request.tools.is_empty() {
        return request.tools.iter().map(spec).collect();
    }
    let called = request.messages.iter().flat_map(|message| &message.tool_calls).map(|call| call.tool_name.as_str());
    let called: BTreeSet<&str> = called.collect();
    let bare = |name: &str| ToolDefinition { name: name.to_owned(), description: None, parameters: json!({ "type": "object" }) };
    called.into_iter().map(|name| spec(&bare(name))).collect()
}

/// The arguments of a request in the names of the provider, and the choice of tools.
fn arguments(
    config: &ModelConfig,
    request: &ModelRequest,
    names: &ToolNames,
) -> Result<(Map<String, Value>, Option<Value>), ApiError> {
    let mut given = arguments_of(config, request);
    take_parallel_calls(&mut given, ProviderKind::Bedrock)?;
    // The provider has points in its place.
    given.remove("prompt_cache_key");
    let choice = given.remove("tool_choice").filter(|_| !request.tools.is_empty());
    let choice = choice.map(|choice| tool_choice(choice, names)).transpose()?;
    let mut body = Map::new();
    for name in MEMBERS {
        body.extend(given.remove_entry(name));
    }
    for (name, wire) in [("temperature", "temperature"), ("top_p", "topP")] {
        if let Some(value) = given.remove(name) {
            within(&mut body, "inferenceConfig", wire, value);
        }
    }
    if let Some(most) = take_most_tokens(&mut given) {
        within(&mut body, "inferenceConfig", "maxTokens", most);
    }
    if let Some(stop) = take_stop(&mut given) {
        within(&mut body, "inferenceConfig", "stopSequences", stop);
    }
    let format = given.get("response_format");
    if let Some(schema) = format.and_then(|format| format.pointer("/json_schema")).filter(|schema| schema.is_object()) {
        within(&mut body, "outputConfig", "textFormat", text_format(schema));
        given.remove("response_format");
    } else if format.is_some_and(|format| format.get("type").is_some_and(|kind| kind == "text")) {
        given.remove("response_format");
    }
    for (name, value) in given {
        within(&mut body, OF_MODEL, &name, value);
    }
    Ok((body, choice))
}

/// The form of the answer. The provider takes the schema as a text.
fn text_format(schema: &Value) -> Value {
    let mut definition = Map::new();
    for name in ["name", "description"] {
        if let Some(value) = schema.get(name) {
            definition.insert(name.to_owned(), value.clone());
        }
    }
    definition.insert("schema".into(), schema.get("schema").unwrap_or(&json!({})).to_string().into());
    json!({ "type": "json_schema", "structure": { "jsonSchema": definition } })
}

/// A choice of tools in the form of chat completions, or already in that of the provider.
fn tool_choice(choice: Value, names: &ToolNames) -> Result<Value, ApiError> {
    let named = choice.pointer("/function/name").and_then(Value::as_str);
    Ok(match (choice.as_str(), named) {
        (Some("none"), _) => {
            let message =
                "`tool_choice` cannot be `none` for this model: provider `bedrock` has no such choice; leave `tools` out";
            return Err(Category::ExtraArgument.error(message));
        }
        (Some("required"), _) => json!({ "any": {} }),
        (Some(kind), _) => json!({ kind: {} }),
        (None, Some(name)) => json!({ "tool": { "name": names.to_wire(name) } }),
        (None, None) => choice,
    })
}

/// The blocks of a message.
async fn blocks(message: &Message, names: &ToolNames, images: &mut Images<'_>) -> Result<Vec<Value>, ApiError> {
    if message.role == Role::Tool {
        let id = call_id(message.tool_call_id.as_deref().unwrap_or_default());
        return Ok(vec![json!({ "toolResult": { "toolUseId": id, "content": [{ "text": plain_text(message) }] } })]);
    }
    let parts = images.parts(message, |media_type| image_format(media_type).is_some()).await?;
    let wire = |part| match part {
        Part::Text(text) => text_block(text),
        Part::Image(image) => image_format(&image.media_type)
            .map(|format| json!({ "image": { "format": format, "source": { "bytes": image.base64 } } })),
    };
    let mut blocks: Vec<Value> = parts.into_iter().filter_map(wire).collect();
    if message.role == Role::Assistant {
        blocks.extend(message.tool_calls.iter().map(|call| {
            let name = names.to_wire(&call.tool_name);
            json!({ "toolUse": { "toolUseId": call_id(&call.call_id), "name": name, "input": call.parameters } })
        }));
    }
    Ok(blocks)
}

/// The provider's name for a kind of image; `None` for one that it does not take, which is named in its place.
fn image_format(media_type: &str) -> Option<&'static str> {
    match media_type.to_ascii_lowercase().as_str() {
        "image/png" => Some("png"),
        "image/jpeg" | "image/jpg" => Some("jpeg"),
        "image/gif" => Some("gif"),
        "image/webp" => Some("webp"),
        _ => None,
    }
}

/// The event of a message of the stream: an object with the kind of the event as its one member. An exception has the member
/// `exception`, with the status that the provider gives it elsewhere as `code`.
pub(in super::super) fn event(frame: &Frame<'_>) -> Result<Value, ApiError> {
    let exception = |kind: &str, message: String| {
        let status = match kind {
            "validationException" => Some(400),
            "modelTimeoutException" => Some(408),
            "modelStreamErrorException" => Some(424),
            "throttlingException" => Some(429),
            "internalServerException" => Some(500),
            "serviceUnavailableException" => Some(503),
            _ => None,
        };
        json!({ "exception": { "code": status, "type": kind, "message": message } })
    };
    match frame.header(":message-type") {
        Some("exception") => {
            let message = serde_json::from_slice::<Value>(frame.payload).unwrap_or_default();
            Ok(exception(frame.header(":exception-type").unwrap_or_default(), text(&message, "/message")))
        }
        Some("error") => {
            let message = frame.header(":error-message").unwrap_or_default();
            Ok(exception(frame.header(":error-code").unwrap_or_default(), message.to_owned()))
        }
        _ => {
            let body: Value = serde_json::from_slice(frame.payload)
                .map_err(|_| Category::InvalidResponse.error("the provider sends something in its stream that is not JSON"))?;
            Ok(json!({ frame.header(":event-type").unwrap_or_default(): body }))
        }
    }
}

/// The pieces of an event of a stream.
pub(super) fn pieces(event: &Value) -> Vec<Piece> {
    let Some((kind, body)) = event.as_object().and_then(|event| event.iter().next()) else { return Vec::new() };
    let index = body.get("contentBlockIndex").and_then(Value::as_u64).unwrap_or(0);
    match kind.as_str() {
        "contentBlockStart" if body.pointer("/start/toolUse").is_some() => {
            let (id, name) = (text(body, "/start/toolUse/toolUseId"), text(body, "/start/toolUse/name"));
            vec![Piece::Call { index, id, name, arguments: String::new() }]
        }
        "contentBlockDelta" if body.pointer("/delta/toolUse").is_some() => {
            let arguments = text(body, "/delta/toolUse/input");
            vec![Piece::Call { index, id: String::new(), name: String::new(), arguments }]
        }
        // Signatures of thoughts, and thoughts that the provider hides, have no text.
        "contentBlockDelta" => {
            vec![Piece::Reasoning(text(body, "/delta/reasoningContent/text")), Piece::Text(text(body, "/delta/text"))]
        }
        "messageStop" => vec![finish(&text(body, "/stopReason"))],
        // The last event.
        "metadata" => usage(body).map(Piece::Usage).into_iter().chain([Piece::End]).collect(),
        "exception" => vec![Piece::Failed(body.clone())],
        // What begins and ends, and what later versions have.
        _ => Vec::new(),
    }
}

fn finish(reason: &str) -> Piece {
    Piece::Finish(match reason {
        "end_turn" | "stop_sequence" => "stop".into(),
        "max_tokens" | "model_context_window_exceeded" => "length".into(),
        "tool_use" => "tool_calls".into(),
        "content_filtered" | "guardrail_intervened" => "content_filter".into(),
        "malformed_tool_use" => {
            let message = "the model asks for a tool in a form that its provider cannot read".into();
            return Piece::Broken { category: Category::InvalidToolCall, message };
        }
        "malformed_model_output" => {
            let message = "the provider broke off the answer: it cannot read what the model has written".into();
            return Piece::Broken { category: Category::ProviderError, message };
        }
        other => other.to_owned(),
    })
}

/// Tokens of caches stand beside `inputTokens`.
fn usage(metadata: &Value) -> Option<TokenUsage> {
    let number = |name: &str| metadata.pointer("/usage").and_then(|usage| usage.get(name)).and_then(Value::as_u64);
    let (read, written) = (number("cacheReadInputTokens"), number("cacheWriteInputTokens"));
    Some(TokenUsage {
        input: number("inputTokens")?.saturating_add(read.unwrap_or(0)).saturating_add(written.unwrap_or(0)),
        output: number("outputTokens")?,
        cached_input: read,
        reasoning: None,
    })
}
