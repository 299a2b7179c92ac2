//! Tools of the host, tools of the runner, and both together for a model.
//!
//! [`Tools`] calls the tools of the host. A [`Toolbox`] offers a model the granted tools and [local
//! tools](Toolbox::local), calls the tools of the host concurrently, and reports every failure as text that the model can
//! act on.
//!
//! ```
//! # #[cfg(feature = "schemars")]
//! # mod example {
//! use agent_host_sdk::{Completion, Context, Failure, ModelRequest, Toolbox};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Dice {
//!     /// How many sides the dice has.
//!     sides: u32,
//! }
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let mut tools = Toolbox::new(&ctx).local("roll", "Rolls a dice.", |dice: Dice| match dice.sides {
//!         0 => Err("a dice has at least one side".into()),
//!         sides => Ok((4 % sides + 1).to_string()),
//!     });
//!     let model = ctx.default_model()?;
//!     let mut request = ModelRequest::new().user(ctx.text()).tools(tools.definitions()?);
//!     for _ in 0..8 {
//!         let response = model.invoke(&request)?;
//!         if response.tool_calls().is_empty() {
//!             ctx.reply(&response.text())?;
//!             return Ok(Completion::stop());
//!         }
//!         let results = tools.call_many(response.tool_calls())?;
//!         request = request.answered(response, results);
//!     }
//!     Err(Failure::new("acme.no_end", "8 steps were not enough"))
//! }
//! # }
//! ```

#[cfg(feature = "schemars")]
pub use crate::schema::schema_of;

use std::cell::Cell;
use std::fmt;

use crate::context::Context;
use crate::contract::{ArtifactRef, ContentPart, Message, ToolCall, ToolOperation, ToolResource};
use crate::error::ApiError;
use crate::host::tools as host;
use crate::json::{IntoJson, is_object};
use crate::limits::{MESSAGE_BYTES, split_at_json_len};
use crate::models::{ModelRequest, ModelResponse, repair_calls};
use crate::{log, results};

pub use crate::contract::{ToolDefinition, ToolDetail, ToolOutput};

/// Maximum number of calls that a [`Toolbox`] executes for one answer of a model. Further calls are answered with an
/// error.
pub const CALLS_AT_ONCE: usize = 32;

/// Returns tools as a block of a system prompt, for models without tool calling: a name, a description and the JSON Schema of the
/// arguments for each, between `<!-- TOOLS_START -->` and `<!-- TOOLS_END -->`. Empty if there are no tools. A description takes one
/// line and cannot end the block.
///
/// ```
/// use agent_host_sdk::tools::{ToolDefinition, prompt_block};
///
/// let weather = ToolDefinition {
///     name: "get_weather".to_owned(),
///     description: Some("Get current weather for a location".to_owned()),
///     parameters: r#"{"type":"object"}"#.to_owned(),
/// };
/// let block = "<!-- TOOLS_START -->\n\
///     - get_weather: Get current weather for a location\n\
///     - args_schema: {\"type\":\"object\"}\n\
///     Note: tool arguments must strictly match args_schema.\n\
///     <!-- TOOLS_END -->";
/// assert_eq!(prompt_block(&[weather]), block);
/// assert_eq!(prompt_block(&[]), "");
/// ```
#[must_use]
pub fn prompt_block(tools: &[ToolDefinition]) -> String {
    if tools.is_empty() {
        return String::new();
    }
    // Definitions may come from a client.
    let line = |text: &str| {
        let text = text.replace("<!--", "<! --").replace("-->", "-- >");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut block = "<!-- TOOLS_START -->\n".to_owned();
    for tool in tools {
        block.push_str(&format!("- {}: {}\n", line(&tool.name), line(tool.description.as_deref().unwrap_or_default())));
        block.push_str(&format!("- args_schema: {}\n", tool.parameters.replace("-->", "--\\u003e").replace(['\n', '\r'], " ")));
    }
    block.push_str("Note: tool arguments must strictly match args_schema.\n<!-- TOOLS_END -->");
    block
}

/// Tools that are granted to this run: tools of the host, with names of the form `SERVER__TOOL`, and tools of the client.
/// The manifest must declare [`ToolOperation`]s.
///
/// The host checks the parameters of a call against the schema of the tool, and records the start and the end of the
/// call. A call of a client tool is recorded as a request and an answer. The runner does not record these calls.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    granted: &'a [ToolResource],
    /// Number of call ids that this run has generated.
    ids: &'a Cell<u32>,
}

impl<'a> Tools<'a> {
    pub(crate) fn new(granted: &'a [ToolResource], ids: &'a Cell<u32>) -> Self {
        Self { granted, ids }
    }

    /// Returns the granted tools, without a host call.
    #[must_use]
    pub fn list(&self) -> &'a [ToolResource] {
        self.granted
    }

    /// Returns the description, the schema of the parameters, and hints such as `read_only`.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn detail(&self, name: &str) -> Result<ToolDetail, ApiError> {
        Ok(host::get_detail(name)?)
    }

    /// Calls one tool. If the tool ran and failed, the output has `is_error` set.
    ///
    /// ```
    /// # use agent_host_sdk::{ApiError, Context, serde_json::json};
    /// fn sum(ctx: &Context) -> Result<String, ApiError> {
    ///     Ok(ctx.tools().call("calculator__add", json!({"a": 2, "b": 3}))?.text())
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails with the error of the host if the call could not be made.
    pub fn call(&self, name: &str, parameters: impl IntoJson) -> Result<ToolOutput, ApiError> {
        Ok(host::call(&self.new_call(name, parameters))?)
    }

    /// Creates a call with a new id, for [`call_many`](Self::call_many): `t1`, `t2` and so on. Calls of a model already
    /// have ids.
    #[must_use]
    pub fn new_call(&self, name: &str, parameters: impl IntoJson) -> ToolCall {
        let number = self.ids.get() + 1;
        self.ids.set(number);
        ToolCall { call_id: format!("t{number}"), tool_name: name.to_owned(), parameters: parameters.into_json() }
    }

    /// Calls tools concurrently. The outcomes are in the order of the calls.
    #[must_use]
    pub fn call_many(&self, calls: &[ToolCall]) -> Vec<Result<ToolOutput, ApiError>> {
        if calls.is_empty() {
            return Vec::new();
        }
        host::call_many(calls).into_iter().map(|outcome| outcome.map_err(ApiError::from)).collect()
    }

    /// Returns the definitions of the granted tools for a model, sorted by name, so that the prompts of two runs begin
    /// with the same bytes.
    ///
    /// Makes one host call per tool. A tool that is not available, such as a tool of a server that restarts, is left out
    /// and logged. If the run may not read details, the definition has the description of the grant and parameters of any
    /// shape.
    ///
    /// # Errors
    /// Fails if the run was cancelled.
    pub fn definitions(&self) -> Result<Vec<ToolDefinition>, ApiError> {
        let mut definitions = Vec::new();
        for tool in self.granted.iter().filter(|tool| tool.operations.contains(&ToolOperation::Call)) {
            let name = tool.tool_name.clone();
            if !tool.operations.contains(&ToolOperation::Detail) {
                let parameters = r#"{"type":"object"}"#.to_owned();
                definitions.push(ToolDefinition { name, description: tool.description.clone(), parameters });
                continue;
            }
            match self.detail(&name) {
                Ok(detail) => {
                    let ToolDetail { description, parameters, .. } = detail;
                    definitions.push(ToolDefinition { name, description, parameters });
                }
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => log::warn!("the tool `{name}` is left out: {error}"),
            }
        }
        definitions.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(definitions)
    }
}

impl ToolOutput {
    /// Returns the text of the output for a model: all texts, a note for each artifact, and the structured value if there
    /// is no text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.content {
            match part {
                ContentPart::Text(part) => line(&mut text, part),
                ContentPart::Artifact(artifact) => line(&mut text, &artifact.note()),
                ContentPart::Other(json) => line(&mut text, json),
            }
        }
        match &self.structured {
            Some(json) if text.is_empty() => json.clone(),
            _ => text,
        }
    }
}

fn line(text: &mut String, part: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(part);
}

impl ArtifactRef {
    /// Returns a line that describes the artifact to a model, with the id for a tool that reads artifacts.
    #[must_use]
    pub fn note(&self) -> String {
        let mut note = format!("[artifact {}", self.artifact_id);
        if let Some(name) = &self.name {
            note.push_str(", ");
            note.push_str(name);
        }
        note.push_str(", ");
        note.push_str(&self.media_type);
        if let Some(size) = self.size {
            note.push_str(&format!(", {size} bytes"));
        }
        note.push(']');
        note
    }
}

/// Error of a local tool.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolError {
    /// Error text for the model. The run continues.
    Tell(String),
    /// The run was cancelled and ends.
    End(ApiError),
}

impl From<ApiError> for ToolError {
    fn from(error: ApiError) -> Self {
        if error.is_cancelled() { Self::End(error) } else { Self::Tell(error.to_string()) }
    }
}

impl From<String> for ToolError {
    fn from(text: String) -> Self {
        Self::Tell(text)
    }
}

impl From<&str> for ToolError {
    fn from(text: &str) -> Self {
        Self::Tell(text.to_owned())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tell(text) => f.write_str(text),
            Self::End(error) => error.fmt(f),
        }
    }
}

/// Function of a local tool. Takes the parameters as JSON.
type Handler<'a> = Box<dyn FnMut(&str) -> Result<String, ToolError> + 'a>;

/// Tool that the runner executes itself.
struct LocalTool<'a> {
    definition: ToolDefinition,
    handler: Handler<'a>,
}

/// Tools for a model: the granted tools of the host, and local tools of the runner.
///
/// Every failure of a call becomes a text for the model, which can correct the parameters or continue without the tool:
/// an unknown name, parameters that are not a JSON object or do not fit, a refusal, a failed tool. The only exception is
/// a cancelled run.
pub struct Toolbox<'a> {
    granted: Option<Tools<'a>>,
    local: Vec<LocalTool<'a>>,
}

impl fmt::Debug for Toolbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local: Vec<_> = self.local.iter().map(|tool| tool.definition.name.as_str()).collect();
        f.debug_struct("Toolbox").field("granted", &self.granted).field("local", &local).finish()
    }
}

impl<'a> Toolbox<'a> {
    /// Creates a toolbox with the granted tools of the run.
    #[must_use]
    pub fn new(ctx: &'a Context) -> Self {
        Self { granted: Some(ctx.tools()), local: Vec::new() }
    }

    /// Creates a toolbox without granted tools; [`local`](Self::local) adds tools.
    #[must_use]
    pub fn empty() -> Self {
        Self { granted: None, local: Vec::new() }
    }

    /// Adds a local tool with parameters of a Rust type. The model reads the JSON Schema of the type, with the doc
    /// comments of the fields. A call with parameters that do not fit is answered with the name of the wrong field.
    ///
    /// A local tool hides a granted tool of the same name.
    #[cfg(feature = "schemars")]
    #[must_use]
    pub fn local<P: serde::de::DeserializeOwned + schemars::JsonSchema>(
        self,
        name: &str,
        description: &str,
        mut tool: impl FnMut(P) -> Result<String, ToolError> + 'a,
    ) -> Self {
        let schema = schema_of::<P>();
        let schema_text = schema.clone();
        self.local_json(name, description, schema, move |parameters| match crate::json::from_str(parameters) {
            Ok(parameters) => tool(parameters),
            Err(error) => Err(ToolError::Tell(format!("the parameters do not fit: {error}. Their JSON Schema is {schema_text}"))),
        })
    }

    /// Adds a local tool with the JSON Schema of its parameters. The tool parses the parameters itself.
    #[must_use]
    pub fn local_json(
        mut self,
        name: &str,
        description: &str,
        schema: impl Into<String>,
        tool: impl FnMut(&str) -> Result<String, ToolError> + 'a,
    ) -> Self {
        let definition =
            ToolDefinition { name: name.to_owned(), description: Some(description.to_owned()), parameters: schema.into() };
        self.local.push(LocalTool { definition, handler: Box::new(tool) });
        self
    }

    /// Returns the definitions of all tools for a model: local tools in the order of their addition, then the [granted
    /// tools](Tools::definitions).
    ///
    /// # Errors
    /// Fails if the run was cancelled.
    pub fn definitions(&self) -> Result<Vec<ToolDefinition>, ApiError> {
        let mut definitions: Vec<_> = self.local.iter().map(|tool| tool.definition.clone()).collect();
        let granted = self.granted.map_or(Ok(Vec::new()), |granted| granted.definitions())?;
        definitions.extend(granted.into_iter().filter(|tool| !self.is_local(&tool.name)));
        Ok(definitions)
    }

    /// Executes the calls of a model, host calls concurrently, and returns a tool message for each call, in order. Local
    /// calls are recorded as results of the run; the host records the others.
    ///
    /// # Errors
    /// Fails if the run was cancelled, or if the host refuses the results of local calls.
    pub fn call_many(&mut self, calls: &[ToolCall]) -> Result<Vec<Message>, ApiError> {
        // Answers of the calls that need no tool of the host; the other answers follow.
        let mut answers = Vec::with_capacity(calls.len());
        let mut remote = Vec::new();
        for (place, call) in calls.iter().enumerate() {
            answers.push(if place >= CALLS_AT_ONCE {
                Some(format!("Error: not called, since at most {CALLS_AT_ONCE} calls are made at once."))
            } else if !is_object(&call.parameters) {
                Some(format!("Error: not called, since the parameters are no JSON object: {}", head(&call.parameters)))
            } else if self.is_local(&call.tool_name) {
                Some(self.call_local(call)?)
            } else if self.granted().iter().any(|tool| tool.tool_name == call.tool_name) {
                remote.push(call.clone());
                None
            } else {
                Some(self.unknown(&call.tool_name))
            });
        }
        let mut outcomes = self.granted.map_or(Vec::new(), |granted| granted.call_many(&remote)).into_iter();
        let mut messages = Vec::with_capacity(calls.len());
        for (call, answer) in calls.iter().zip(answers) {
            let text = match answer {
                Some(text) => text,
                None => match outcomes.next() {
                    Some(Ok(output)) if output.is_error => format!("Error: {}", output.text()),
                    Some(Ok(output)) => output.text(),
                    Some(Err(error)) if error.is_cancelled() => return Err(error),
                    Some(Err(error)) => format!("Error: {error}"),
                    None => "Error: the host gave no outcome.".to_owned(),
                },
            };
            messages.push(Message::tool(&call.call_id, text));
        }
        Ok(messages)
    }

    fn granted(&self) -> &'a [ToolResource] {
        self.granted.map_or(&[], |granted| granted.list())
    }

    fn is_local(&self, name: &str) -> bool {
        self.local.iter().any(|tool| tool.definition.name == name)
    }

    fn call_local(&mut self, call: &ToolCall) -> Result<String, ApiError> {
        let Some(tool) = self.local.iter_mut().find(|tool| tool.definition.name == call.tool_name) else {
            return Ok(self.unknown(&call.tool_name));
        };
        // Like the output below: the tool receives all parameters, the record only what fits into a result.
        let parameters = if call.parameters.len() <= MESSAGE_BYTES { call.parameters.as_str() } else { "{}" };
        let started = results::tool_call_started(&call.call_id, &call.tool_name, RawJson(parameters));
        results::emit(&[started])?;
        let outcome = match (tool.handler)(&call.parameters) {
            Ok(text) => Ok(text),
            Err(ToolError::Tell(text)) => Err(text),
            Err(ToolError::End(error)) => return Err(error),
        };
        // The model receives the whole text; the record of the run only what fits into a result.
        let recorded = match &outcome {
            Ok(text) => Ok(split_at_json_len(text, MESSAGE_BYTES).0),
            Err(text) => Err(split_at_json_len(text, MESSAGE_BYTES).0),
        };
        results::emit(&[results::tool_call_completed(&call.call_id, &call.tool_name, recorded)])?;
        Ok(outcome.unwrap_or_else(|text| format!("Error: {text}")))
    }

    fn unknown(&self, name: &str) -> String {
        let local = self.local.iter().map(|tool| tool.definition.name.as_str());
        let granted = self.granted().iter().map(|tool| tool.tool_name.as_str());
        let names: Vec<_> = local.chain(granted).collect();
        format!("Error: there is no tool `{}`. There are: {}.", head(name), names.join(", "))
    }
}

/// Text that is already JSON.
struct RawJson<'t>(&'t str);

impl IntoJson for RawJson<'_> {
    fn into_json(self) -> String {
        self.0.to_owned()
    }
}

/// Returns the beginning of a text, for an error message.
fn head(text: &str) -> &str {
    split_at_json_len(text, 200).0
}

impl ModelRequest {
    /// Adds the answer of the model and the results of its tool calls to the request.
    pub fn answered(mut self, response: ModelResponse, results: impl IntoIterator<Item = Message>) -> Self {
        self.push(repair_calls(response.message));
        self.messages(results)
    }
}
