//! Requests in the form of OpenAI's chat completions.

use agent_host_config::ModelConfig;
use agent_host_protocol::{
    ApiError,
    limits::is_shallow,
    message::{ArtifactRef, ContentPart, Message, Role},
    model::{ModelRequest, ToolDefinition},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    failure::{Category, quote},
    names::ToolNames,
    signatures,
};
use crate::ArtifactSource;

/// Tools of one request. Providers take 128.
const MAX_TOOLS: usize = 512;

/// Checks a request, independently of the provider.
pub(super) fn check(config: &ModelConfig, request: &ModelRequest) -> Result<(), ApiError> {
    if request.messages.is_empty() {
        return Err(ApiError::invalid_argument("a request to a model needs at least one message"));
    }
    if let Some(key) = request.extra_args.keys().find(|key| !config.extra_args.contains(key)) {
        let message = format!("the extra argument `{}` is not allowed for this model", quote(key));
        let details = Map::from_iter([("allowed".to_owned(), json!(config.extra_args))]);
        return Err(Category::ExtraArgument.error_with(message, details));
    }
    check_tools(&request.tools)?;
    if !request.extra_args.values().all(is_shallow) {
        return Err(ApiError::invalid_argument("an extra argument nests too deep"));
    }
    if request.messages.iter().any(|message| message.role == Role::Tool && message.tool_call_id.is_none()) {
        return Err(ApiError::invalid_argument("a message with role `tool` needs `tool_call_id`: the call that it answers"));
    }
    Ok(())
}

/// Checks the tools of a request.
pub(super) fn check_tools(tools: &[ToolDefinition]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid_argument(format!("a request may have at most {MAX_TOOLS} tools")));
    }
    for tool in tools {
        let name = quote(&tool.name);
        if tool.name.is_empty() || !tool.parameters.is_object() {
            let message = format!("the tool `{name}` needs a name, and a JSON Schema object as parameters");
            return Err(ApiError::invalid_argument(message));
        }
        if !is_shallow(&tool.parameters) {
            return Err(ApiError::invalid_argument(format!("the schema of the tool `{name}` nests too deep")));
        }
    }
    Ok(())
}

/// The body of a request, and how its tools are named in it.
pub(super) async fn body(
    config: &ModelConfig,
    request: &ModelRequest,
    artifacts: &dyn ArtifactSource,
) -> Result<(Bytes, ToolNames), ApiError> {
    let names = tool_names(request);
    let mut body = config.defaults.clone();
    if let Some(key) = request.session_key.as_ref().filter(|_| config.sends_prompt_cache_key()) {
        body.insert("prompt_cache_key".into(), key.as_str().into());
    }
    body.extend(request.extra_args.clone());
    let mut images = Images::new(artifacts, config.max_image_bytes);
    let mut messages = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        messages.push(wire_message(config, message, &names, &mut images).await?);
    }
    body.insert("model".into(), config.model_name().into());
    body.insert("messages".into(), messages.into());
    if request.tools.is_empty() {
        // Without tools, providers refuse what is said about them.
        body.remove("tool_choice");
        body.remove("parallel_tool_calls");
    } else {
        body.insert("tools".into(), request.tools.iter().map(|tool| wire_tool(tool, &names)).collect());
        if let Some(Value::String(name)) = body.get_mut("tool_choice").and_then(|choice| choice.pointer_mut("/function/name")) {
            *name = names.to_wire(name).to_owned();
        }
    }
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({ "include_usage": true }));
    Ok((encoded(&body)?, names))
}

/// The names of the tools of a request, and of the calls in its conversation.
pub(super) fn tool_names(request: &ModelRequest) -> ToolNames {
    let calls = request.messages.iter().flat_map(|message| &message.tool_calls);
    ToolNames::new(request.tools.iter().map(|tool| &*tool.name).chain(calls.map(|call| &*call.tool_name)))
}

/// A body as JSON.
pub(super) fn encoded(body: &Map<String, Value>) -> Result<Bytes, ApiError> {
    let unwritable = |error| ApiError::invalid_argument(format!("the request cannot be written as JSON: {error}"));
    serde_json::to_vec(body).map(Bytes::from).map_err(unwritable)
}

fn wire_tool(tool: &ToolDefinition, names: &ToolNames) -> Value {
    json!({ "type": "function", "function": named_tool(tool, names, "parameters") })
}

/// A tool with its name and description, and its schema in this member.
pub(super) fn named_tool(tool: &ToolDefinition, names: &ToolNames, schema: &str) -> Value {
    let mut wire = json!({ "name": names.to_wire(&tool.name), (schema): tool.parameters });
    // Some providers refuse an empty description.
    let description = tool.description.as_ref().filter(|description| !description.is_empty());
    if let (Some(description), Some(wire)) = (description, wire.as_object_mut()) {
        wire.insert("description".into(), description.as_str().into());
    }
    wire
}

async fn wire_message(
    config: &ModelConfig,
    message: &Message,
    names: &ToolNames,
    images: &mut Images<'_>,
) -> Result<Value, ApiError> {
    let mut wire = Map::new();
    wire.insert("role".into(), wire_role(config, message.role).into());
    let content = if message.role == Role::User {
        wire_parts(message, images).await?
    } else {
        // Other roles take text only.
        Value::String(plain_text(message))
    };
    let content = match content {
        // A message that only asks for tools has no content.
        Value::String(text) if text.is_empty() && !message.tool_calls.is_empty() => Value::Null,
        content => content,
    };
    wire.insert("content".into(), content);
    if let Some(name) = message.name.as_deref().filter(|_| message.role != Role::Tool) {
        wire.insert("name".into(), name.into());
    }
    if let Some(id) = message.tool_call_id.as_deref().filter(|_| message.role == Role::Tool) {
        wire.insert("tool_call_id".into(), id.into());
    }
    if message.role == Role::Assistant && !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let arguments = call.parameters.to_string();
            json!({
                "id": call.call_id,
                "type": "function",
                "function": { "name": names.to_wire(&call.tool_name), "arguments": arguments },
            })
        });
        wire.insert("tool_calls".into(), calls.collect());
    }
    Ok(Value::Object(wire))
}

/// OpenAI distinguishes `developer` from `system`. Many compatible servers know only `system`, which has the same meaning
/// for them.
fn wire_role(config: &ModelConfig, role: Role) -> &'static str {
    let speaks_to_openai = || {
        let host = config.url().ok().flatten();
        host.is_some_and(|url| url.host_str().is_some_and(|host| host == "api.openai.com" || host.ends_with(".openai.azure.com")))
    };
    match role {
        Role::Developer if !speaks_to_openai() => Role::System.as_str(),
        role => role.as_str(),
    }
}

/// The texts of a message; what is not text is named in its place.
pub(super) fn plain_text(message: &Message) -> String {
    let texts: Vec<String> = message.content.iter().map(text_of).collect();
    texts.concat()
}

fn text_of(part: &ContentPart) -> String {
    match part {
        ContentPart::Text(text) => text.clone(),
        ContentPart::Artifact(artifact) => note(artifact),
        // For the provider that made it.
        ContentPart::Other(value) if signatures::is_signature(value) => String::new(),
        // Passed on as it is, it could make the provider fetch what the runner must not.
        ContentPart::Other(value) => {
            let kind = value.get("type").and_then(Value::as_str).unwrap_or("unknown");
            format!("[content of type {} was left out]", quote(kind))
        }
    }
}

/// The text for a model about an artifact that it cannot be shown.
fn note(artifact: &ArtifactRef) -> String {
    let name = artifact.name.as_deref().map(|name| format!("{}, ", quote(name))).unwrap_or_default();
    let size = artifact.size.map(|size| format!(", {size} bytes")).unwrap_or_default();
    format!("[artifact {}: {name}{}{size}]", quote(&artifact.artifact_id), quote(&artifact.media_type))
}

/// The content of a user's message: one text, or parts where there are images.
async fn wire_parts(message: &Message, images: &mut Images<'_>) -> Result<Value, ApiError> {
    let mut parts = images.parts(message, |_| true).await?;
    if let [Part::Text(text)] = parts.as_mut_slice() {
        return Ok(Value::String(std::mem::take(text)));
    }
    if parts.is_empty() {
        return Ok(Value::String(String::new()));
    }
    let wire = |part| match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(image) => json!({ "type": "image_url", "image_url": { "url": image.data_url() } }),
    };
    Ok(parts.into_iter().map(wire).collect())
}

/// True if models accept the type as an image. SVG is a text that may contain instructions.
fn is_image(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    media_type.starts_with("image/") && !media_type.starts_with("image/svg")
}

/// Reads images within the limit of one request.
pub(super) struct Images<'a> {
    artifacts: &'a dyn ArtifactSource,
    limit: usize,
    used: usize,
}

/// A part of a message, for a request.
pub(super) enum Part {
    /// Not empty.
    Text(String),
    Image(Image),
}

impl Part {
    fn text(text: String) -> Option<Self> {
        (!text.is_empty()).then_some(Self::Text(text))
    }
}

/// An image, for a request.
pub(super) struct Image {
    pub(super) media_type: String,
    pub(super) base64: String,
}

impl Image {
    /// A URL that holds the image.
    pub(super) fn data_url(&self) -> String {
        format!("data:{};base64,{}", self.media_type, self.base64)
    }
}

impl<'a> Images<'a> {
    pub(super) const fn new(artifacts: &'a dyn ArtifactSource, limit: usize) -> Self {
        Self { artifacts, limit, used: 0 }
    }

    /// The parts of a message: the texts up to the next image are one. Images are those of a user that are read and that `takes` takes;
    /// others are named in the text.
    pub(super) async fn parts(&mut self, message: &Message, takes: fn(&str) -> bool) -> Result<Vec<Part>, ApiError> {
        let (mut parts, mut text) = (Vec::new(), String::new());
        for part in &message.content {
            let image = match part {
                ContentPart::Artifact(artifact) if message.role == Role::User && is_image(&artifact.media_type) => {
                    self.read(artifact).await?
                }
                _ => None,
            };
            match image.filter(|image| takes(&image.media_type)) {
                Some(image) => {
                    parts.extend(Part::text(std::mem::take(&mut text)));
                    parts.push(Part::Image(image));
                }
                None => text.push_str(&text_of(part)),
            }
        }
        parts.extend(Part::text(text));
        Ok(parts)
    }

    /// The image; none where the content is no image, whatever the message says.
    async fn read(&mut self, artifact: &ArtifactRef) -> Result<Option<Image>, ApiError> {
        let left = self.limit.saturating_sub(self.used);
        let says = artifact.size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        if left == 0 || says > left {
            let details = Map::from_iter([
                ("limit".to_owned(), json!(self.limit)),
                ("artifact_id".to_owned(), json!(artifact.artifact_id)),
            ]);
            let message = format!("the images of one request may have {} bytes together: leave some out", self.limit);
            return Err(Category::RequestTooLarge.error_with(message, details));
        }
        let content = self.artifacts.content(artifact, left).await?;
        self.used = self.used.saturating_add(content.bytes.len());
        let media_type = content.media_type.split(';').next().unwrap_or_default().trim().to_owned();
        let plain = media_type.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/+.-".contains(&byte));
        if !is_image(&media_type) || !plain {
            return Ok(None);
        }
        Ok(Some(Image { media_type, base64: STANDARD.encode(&content.bytes) }))
    }
}
