//! Responses of OpenAI.
//!
//! The host has the history, so nothing is stored at the provider (`store = false`) and each request has the whole conversation.

use std::collections::HashSet;

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
        chat::{Images, Part, encoded, plain_text, tool_names},
        names::ToolNames,
    },
    Piece,
    request::{take_most_tokens, within},
    text,
};
use crate::ArtifactSource;

/// The body of a request, and how its tools are named in it.
pub(super) async fn body(
    config: &ModelConfig,
    request: &ModelRequest,
    artifacts: &dyn ArtifactSource,
) -> Result<(Bytes, ToolNames), ApiError> {
    let names = tool_names(request);
    let mut body = arguments(config, request, &names);
    let mut images = Images::new(artifacts, config.max_image_bytes);
    let mut input: Vec<Value> = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        items(message, &names, &mut images, &mut input).await?;
    }
    body.insert("model".into(), config.model_name().into());
    body.insert("input".into(), input.into());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": names.to_wire(&tool.name),
                "description": tool.description,
                "parameters": tool.parameters,
                // The strict form takes few schemas.
                "strict": false,
            })
        });
        body.insert("tools".into(), tools.collect());
    }
    body.insert("stream".into(), true.into());
    Ok((encoded(&body)?, names))
}

/// The arguments of a request, in the names of the provider.
fn arguments(config: &ModelConfig, request: &ModelRequest, names: &ToolNames) -> Map<String, Value> {
    let mut given = Map::from_iter([("store".to_owned(), Value::Bool(false))]);
    given.extend(config.defaults.clone());
    if let Some(key) = request.session_key.as_ref().filter(|_| config.sends_prompt_cache_key()) {
        given.insert("prompt_cache_key".into(), key.as_str().into());
    }
    given.extend(request.extra_args.clone());
    if let Some(most) = take_most_tokens(&mut given) {
        given.insert("max_output_tokens".into(), most);
    }
    if let Some(effort) = given.remove("reasoning_effort") {
        within(&mut given, "reasoning", "effort", effort);
    }
    if let Some(verbosity) = given.remove("verbosity") {
        within(&mut given, "text", "verbosity", verbosity);
    }
    if let Some(format) = given.remove("response_format") {
        within(&mut given, "text", "format", flat(format, "json_schema"));
    }
    if request.tools.is_empty() {
        given.remove("tool_choice");
        given.remove("parallel_tool_calls");
    } else if let Some(choice) = given.remove("tool_choice") {
        let mut choice = flat(choice, "function");
        if let Some(Value::String(name)) = choice.get_mut("name") {
            *name = names.to_wire(name).to_owned();
        }
        given.insert("tool_choice".into(), choice);
    }
    given
}

/// `{"type": "function", "function": {"name": …}}` of chat completions is `{"type": "function", "name": …}` here.
fn flat(mut value: Value, member: &str) -> Value {
    if let Some(object) = value.as_object_mut()
        && let Some(Value::Object(inner)) = object.remove(member)
    {
        object.extend(inner);
    }
    value
}

/// Adds the items of a message.
async fn items(message: &Message, names: &ToolNames, images: &mut Images<'_>, input: &mut Vec<Value>) -> Result<(), ApiError> {
    match message.role {
        Role::Tool => {
            let id = message.tool_call_id.as_deref().unwrap_or_default();
            input.push(json!({ "type": "function_call_output", "call_id": id, "output": plain_text(message) }));
        }
        Role::Assistant => {
            let text = plain_text(message);
            if !text.is_empty() {
                input.push(json!({ "role": "assistant", "content": [{ "type": "output_text", "text": text }] }));
            }
            input.extend(message.tool_calls.iter().map(|call| {
                let (name, arguments) = (names.to_wire(&call.tool_name), call.parameters.to_string());
                json!({ "type": "function_call", "call_id": call.call_id, "name": name, "arguments": arguments })
            }));
        }
        Role::User => input.push(json!({ "role": "user", "content": parts(message, images).await? })),
        Role::System | Role::Developer => {
            let content = [json!({ "type": "input_text", "text": plain_text(message) })];
            input.push(json!({ "role": message.role.as_str(), "content": content }));
        }
    }
    Ok(())
}

async fn parts(message: &Message, images: &mut Images<'_>) -> Result<Vec<Value>, ApiError> {
    let wire = |part| match part {
        Part::Text(text) => json!({ "type": "input_text", "text": text }),
        Part::Image(image) => json!({ "type": "input_image", "image_url": image.data_url() }),
    };
    let parts: Vec<Value> = images.parts(message, |_| true).await?.into_iter().map(wire).collect();
    // The provider wants content.
    Ok(if parts.is_empty() { vec![json!({ "type": "input_text", "text": "" })] } else { parts })
}

/// Makes pieces of the events of a stream.
#[derive(Debug, Default)]
pub(in super::super) struct Reader {
    /// Indexes of calls whose arguments came in pieces.
    pieces: HashSet<u64>,
}

impl Reader {
    pub(super) fn event(&mut self, event: &Value) -> Vec<Piece> {
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let call = |name: String, id: String, arguments: String| vec![Piece::Call { index, id, name, arguments }];
        let is_call = event.pointer("/item/type").is_some_and(|kind| kind == "function_call");
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "response.output_text.delta" => vec![Piece::Text(text(event, "/delta"))],
            "response.refusal.delta" => vec![Piece::Refusal(text(event, "/delta"))],
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                vec![Piece::Reasoning(text(event, "/delta"))]
            }
            "response.output_item.added" if is_call => {
                call(text(event, "/item/name"), text(event, "/item/call_id"), String::new())
            }
            "response.function_call_arguments.delta" => {
                self.pieces.insert(index);
                call(String::new(), String::new(), text(event, "/delta"))
            }
            // A server that does not send pieces has the arguments here.
            "response.output_item.done" if is_call && self.pieces.insert(index) => {
                call(text(event, "/item/name"), text(event, "/item/call_id"), text(event, "/item/arguments"))
            }
            "response.completed" | "response.incomplete" => {
                let response = event.get("response").unwrap_or(&Value::Null);
                let reason = match text(response, "/incomplete_details/reason").as_str() {
                    "" => "stop".to_owned(),
                    "max_output_tokens" => "length".to_owned(),
                    other => other.to_owned(),
                };
                usage(response).map(Piece::Usage).into_iter().chain([Piece::Finish(reason), Piece::End]).collect()
            }
            "response.failed" => vec![Piece::Failed(event.pointer("/response/error").cloned().unwrap_or_default())],
            "error" => vec![Piece::Failed(event.get("error").unwrap_or(event).clone())],
            // Parts that begin and end, tools of the provider, and what later versions have.
            _ => Vec::new(),
        }
    }
}

fn usage(response: &Value) -> Option<TokenUsage> {
    let number = |pointer: &str| response.pointer(pointer).and_then(Value::as_u64);
    Some(TokenUsage {
        input: number("/usage/input_tokens")?,
        output: number("/usage/output_tokens")?,
        cached_input: number("/usage/input_tokens_details/cached_tokens"),
        reasoning: number("/usage/output_tokens_details/reasoning_tokens"),
    })
}
