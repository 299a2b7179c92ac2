//! `generateContent` of Google's Gemini API, always streamed, and its embeddings.
//!
//! The path names the model. Results of tools are content of the user, found by the name of the tool. Models since Gemini 3 sign their
//! thoughts and refuse their own calls without the signature: the module `signatures` says where it is kept. The provider caches the
//! beginnings of prompts by itself, so requests have no hint for it.

use std::collections::HashMap;

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::{
    ApiError,
    message::{Message, Role, TokenUsage, ToolCall},
    model::ModelRequest,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    super::{
        chat::{Images, Part, encoded, named_tool, plain_text, tool_names},
        failure::{Category, quote},
        http::{EVENTS, JSON, Target},
        names::ToolNames,
        signatures,
    },
    Piece,
    request::{Turns, arguments_of, take_most_tokens, take_parallel_calls, take_stop, within},
    text,
};
use crate::ArtifactSource;

/// Texts in one request for embeddings: the most that the provider takes.
pub(in super::super) const BATCH_TEXTS: usize = 100;
/// The signature of a call that has none: another model made it, or the runner did not keep it. The documentation of the provider names
/// this text for such calls.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";
/// Names in `generationConfig` of arguments that chat completions have too.
const SAMPLING: [(&str, &str); 6] = [
    ("frequency_penalty", "frequencyPenalty"),
    ("presence_penalty", "presencePenalty"),
    ("seed", "seed"),
    ("temperature", "temperature"),
    ("top_k", "topK"),
    ("top_p", "topP"),
];

/// The place of a request for an answer.
pub(super) fn target(config: &ModelConfig) -> Target {
    method(config, "streamGenerateContent", EVENTS).with_query("alt=sse")
}

/// The place of a request for embeddings.
pub(in super::super) fn embeddings_target(config: &ModelConfig) -> Target {
    method(config, "batchEmbedContents", JSON)
}

fn method(config: &ModelConfig, method: &str, accept: &'static str) -> Target {
    let resource = format!("{}:{method}", resource(config.model_name()));
    Target::new(resource.split('/'), accept)
}

/// The model as a path: `models/NAME` unless the name has another collection, such as `tunedModels/NAME`.
fn resource(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("models/{name}") }
}

/// True for models before Gemini 3, by name: they have a budget of tokens for thoughts in place of levels, and no signatures that must
/// come back. A name without a version (`gemini-flash-latest`) is a newer model.
fn is_older(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    ["gemini-1", "gemini-2", "gemma"].iter().any(|older| name.starts_with(older))
}

/// The body of a request, and how its tools are named in it.
pub(super) async fn body(
    config: &ModelConfig,
    request: &ModelRequest,
    artifacts: &dyn ArtifactSource,
) -> Result<(Bytes, ToolNames), ApiError> {
    let names = tool_names(request);
    let mut body = arguments(config, request, &names)?;
    let mut images = Images::new(artifacts, config.max_image_bytes);
    // Signatures are checked from the last message of the user on.
    let asked = request.messages.iter().rposition(|message| message.role == Role::User);
    let (mut system, mut turns) = (Vec::new(), Turns::default());
    let mut called: HashMap<&str, &str> = HashMap::new();
    for (at, message) in request.messages.iter().enumerate() {
        let (role, parts) = match message.role {
            Role::System | Role::Developer => {
                system.extend(Some(plain_text(message)).filter(|text| !text.is_empty()).map(text_part));
                continue;
            }
            Role::User => ("user", user_parts(message, &mut images).await?),
            Role::Tool => ("user", vec![function_response(message, &called, &names)?]),
            Role::Assistant => {
                called.extend(message.tool_calls.iter().map(|call| (&*call.call_id, &*call.tool_name)));
                let must_sign = asked.is_none_or(|asked| asked < at) && !is_older(config.model_name());
                ("model", model_parts(message, must_sign, &names))
            }
        };
        turns.add(role, parts);
    }
    if !system.is_empty() {
        body.insert("systemInstruction".into(), json!({ "parts": system }));
    }
    body.insert("contents".into(), turns.in_member("parts"));
    if !request.tools.is_empty() {
        let tools: Vec<_> = request.tools.iter().map(|tool| named_tool(tool, &names, "parametersJsonSchema")).collect();
        body.insert("tools".into(), json!([{ "functionDeclarations": tools }]));
    }
    Ok((encoded(&body)?, names))
}

fn text_part(text: String) -> Value {
    json!({ "text": text })
}

/// The arguments of a request, in the names of the provider. Others are passed on as they are.
fn arguments(config: &ModelConfig, request: &ModelRequest, names: &ToolNames) -> Result<Map<String, Value>, ApiError> {
    let mut given = arguments_of(config, request);
    take_parallel_calls(&mut given, ProviderKind::Gemini)?;
    // The provider caches by itself.
    given.remove("prompt_cache_key");
    for (name, wire) in SAMPLING {
        if let Some(value) = given.remove(name) {
            within(&mut given, "generationConfig", wire, value);
        }
    }
    if let Some(most) = take_most_tokens(&mut given) {
        within(&mut given, "generationConfig", "maxOutputTokens", most);
    }
    if let Some(stop) = take_stop(&mut given) {
        within(&mut given, "generationConfig", "stopSequences", stop);
    }
    if let Some(effort) = given.remove("reasoning_effort") {
        let thinking = thinking(config.model_name(), effort);
        within(&mut given, "generationConfig", "thinkingConfig", thinking);
    }
    if let Some(format) = given.remove("response_format") {
        response_format(&mut given, format);
    }
    if let Some(choice) = given.remove("tool_choice").filter(|_| !request.tools.is_empty()) {
        within(&mut given, "toolConfig", "functionCallingConfig", tool_choice(choice, names));
    }
    Ok(given)
}

/// The budget of a model for thoughts; summaries of them are asked for where there are any. The numbers are those of the provider's own
/// translation for clients of chat completions.
fn thinking(model: &str, effort: Value) -> Value {
    let budget = match effort.as_str() {
        Some("none") => Some(0),
        Some("minimal" | "low") => Some(1_024),
        Some("medium") => Some(8_192),
        Some("high") => Some(24_576),
        _ => None,
    };
    match budget {
        Some(0) => json!({ "thinkingBudget": 0 }),
        Some(budget) if is_older(model) => json!({ "thinkingBudget": budget, "includeThoughts": true }),
        _ => json!({ "thinkingLevel": effort, "includeThoughts": true }),
    }
}

fn response_format(given: &mut Map<String, Value>, format: Value) {
    let kind = format.get("type").and_then(Value::as_str);
    match kind {
        Some("text") => {}
        Some("json_object" | "json_schema") => {
            within(given, "generationConfig", "responseMimeType", JSON.into());
            if let Some(schema) = format.pointer("/json_schema/schema") {
                within(given, "generationConfig", "responseJsonSchema", schema.clone());
            }
        }
        _ => {
            given.insert("response_format".into(), format);
        }
    }
}

/// A choice of tools in the form of chat completions, or already in that of the provider.
fn tool_choice(choice: Value, names: &ToolNames) -> Value {
    let named = choice.pointer("/function/name").and_then(Value::as_str);
    match (choice.as_str(), named) {
        (Some("required"), _) => json!({ "mode": "ANY" }),
        (Some(mode), _) => json!({ "mode": mode.to_uppercase() }),
        (None, Some(name)) => json!({ "mode": "ANY", "allowedFunctionNames": [names.to_wire(name)] }),
        (None, None) => choice,
    }
}

/// The parts of a message of the user.
async fn user_parts(message: &Message, images: &mut Images<'_>) -> Result<Vec<Value>, ApiError> {
    let wire = |part| match part {
        Part::Text(text) => text_part(text),
        Part::Image(image) => json!({ "inlineData": { "mimeType": image.media_type, "data": image.base64 } }),
    };
    Ok(images.parts(message, |_| true).await?.into_iter().map(wire).collect())
}

/// The parts of a message of the model. With `must_sign`, its first call has a signature, or says that there is none.
fn model_parts(message: &Message, must_sign: bool, names: &ToolNames) -> Vec<Value> {
    let text = Some(plain_text(message)).filter(|text| !text.is_empty());
    let call = |(at, call): (usize, &ToolCall)| {
        let name = names.to_wire(&call.tool_name);
        let mut part = json!({ "functionCall": { "id": call.call_id, "name": name, "args": call.parameters } });
        let signature = signatures::of_call(message, &call.call_id).or((must_sign && at == 0).then_some(NO_SIGNATURE));
        if let (Some(signature), Some(part)) = (signature, part.as_object_mut()) {
            part.insert("thoughtSignature".into(), signature.into());
        }
        part
    };
    text.map(text_part).into_iter().chain(message.tool_calls.iter().enumerate().map(call)).collect()
}

/// The result of a tool. The provider wants the name of the tool, which the call has.
fn function_response(message: &Message, called: &HashMap<&str, &str>, names: &ToolNames) -> Result<Value, ApiError> {
    let id = message.tool_call_id.as_deref().unwrap_or_default();
    let Some(tool) = called.get(id) else {
        let id = quote(id);
        return Err(ApiError::invalid_argument(format!(
            "no message before has the call `{id}`, which a message with role `tool` answers"
        )));
    };
    let response = json!({ "output": plain_text(message) });
    Ok(json!({ "functionResponse": { "id": id, "name": names.to_wire(tool), "response": response } }))
}

/// Makes pieces of the events of a stream. Each event is a whole response with the next parts.
#[derive(Debug, Default)]
pub(in super::super) struct Reader {
    /// Calls so far: the provider sends each of them whole, without an index.
    calls: u64,
}

impl Reader {
    pub(super) fn event(&mut self, event: &Value) -> Vec<Piece> {
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return vec![Piece::Failed(error.clone())];
        }
        let mut pieces = Vec::new();
        let candidates = event.get("candidates").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let first = candidates.iter().find(|candidate| candidate.get("index").and_then(Value::as_u64).unwrap_or(0) == 0);
        let parts = first.and_then(|candidate| candidate.pointer("/content/parts")).and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            self.part(part, &mut pieces);
        }
        if let Some(usage) = usage(event) {
            pieces.push(Piece::Usage(usage));
        }
        // A prompt that was blocked has no candidates.
        if event.pointer("/promptFeedback/blockReason").is_some_and(Value::is_string) {
            pieces.push(Piece::Finish("content_filter".into()));
        }
        if let Some(candidate) = first {
            pieces.extend(finish(&text(candidate, "/finishReason"), &text(candidate, "/finishMessage")));
        }
        pieces
    }

    fn part(&mut self, part: &Value, pieces: &mut Vec<Piece>) {
        if let Some(call) = part.get("functionCall") {
            let index = self.calls;
            self.calls += 1;
            let arguments = call.get("args").filter(|args| !args.is_null()).map(Value::to_string).unwrap_or_default();
            pieces.push(Piece::Call { index, id: text(call, "/id"), name: text(call, "/name"), arguments });
            let signature = text(part, "/thoughtSignature");
            if !signature.is_empty() {
                pieces.push(Piece::Signature { index, signature });
            }
            return;
        }
        // Signatures of texts need not come back. Images and code that the provider runs are passed over.
        let said = text(part, "/text");
        let is_thought = part.get("thought").and_then(Value::as_bool).unwrap_or(false);
        pieces.push(if is_thought { Piece::Reasoning(said) } else { Piece::Text(said) });
    }
}

/// The end that a finish reason means; `None` while there is none. The stream has no other mark of its end.
fn finish(reason: &str, message: &str) -> Option<Piece> {
    let broken = |category: Category, what: &str| {
        let message = if message.is_empty() { reason } else { message };
        Some(Piece::Broken { category, message: format!("{what}: {message}") })
    };
    Some(Piece::Finish(match reason {
        "" | "FINISH_REASON_UNSPECIFIED" => return None,
        "STOP" => "stop".into(),
        "MAX_TOKENS" => "length".into(),
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => "content_filter".into(),
        "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => {
            return broken(Category::InvalidToolCall, "the model asks for a tool in a form that its provider cannot read");
        }
        "MALFORMED_RESPONSE" | "MISSING_THOUGHT_SIGNATURE" | "TOO_MANY_TOOL_CALLS" => {
            return broken(Category::ProviderError, "the provider broke off the answer");
        }
        other => other.to_lowercase(),
    }))
}

/// The counts of an event, which are sums so far. Thoughts are counted beside the answer, results of the provider's tools beside the
/// prompt.
fn usage(event: &Value) -> Option<TokenUsage> {
    let usage = event.get("usageMetadata")?;
    let number = |name: &str| usage.get(name).and_then(Value::as_u64);
    let thoughts = number("thoughtsTokenCount");
    Some(TokenUsage {
        input: number("promptTokenCount")?.saturating_add(number("toolUsePromptTokenCount").unwrap_or(0)),
        output: number("candidatesTokenCount").unwrap_or(0).saturating_add(thoughts.unwrap_or(0)),
        cached_input: number("cachedContentTokenCount"),
        reasoning: thoughts,
    })
}

/// The body of a request for embeddings. `defaults` of the model (`outputDimensionality`, `taskType`) hold for each text.
pub(in super::super) fn embeddings_body(config: &ModelConfig, texts: &[String]) -> Result<Bytes, ApiError> {
    let model = resource(config.model_name());
    let requests = texts.iter().map(|text| {
        let mut request = config.defaults.clone();
        request.insert("model".into(), model.as_str().into());
        request.insert("content".into(), json!({ "parts": [{ "text": text }] }));
        Value::Object(request)
    });
    encoded(&Map::from_iter([("requests".to_owned(), requests.collect())]))
}

/// The answer to a request for embeddings.
#[derive(Deserialize)]
pub(in super::super) struct Embeddings {
    /// One for each text, in order.
    pub(in super::super) embeddings: Vec<Values>,
    /// Sent for newer models only.
    #[serde(default, rename = "usageMetadata")]
    pub(in super::super) usage: Value,
}

/// One vector.
#[derive(Deserialize)]
pub(in super::super) struct Values {
    pub(in super::super) values: Vec<f32>,
}
