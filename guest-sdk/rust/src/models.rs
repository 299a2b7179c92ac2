//! Models: chat (whole or streamed), embeddings, reranking, and token counts.
//!
//! ```
//! use agent_host_sdk::{Completion, Context, Failure, ModelRequest};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let model = ctx.default_model()?;
//!     let request = ModelRequest::new().system("Answer in one sentence.").user(ctx.text()).temperature(0.2);
//!
//!     let mut out = ctx.message();
//!     let response = model.stream(&request)?.write_to(&mut out)?;
//!     out.finish()?;
//!     Ok(Completion::new(response.finish_reason))
//! }
//! ```

use crate::contract::{
    Chunk, ErrorCode, Message, ModelOperation, ModelResource, Request, Response, Role, TokenUsage, ToolCall, ToolDefinition,
};
use crate::error::ApiError;
use crate::host::models as host;
use crate::json::IntoJson;
use crate::message::MessageWriter;
use crate::results::Sink;

pub use crate::contract::{RerankHit, Response as ModelResponse};

/// Model that is granted to this run, from [`Context::model`](crate::Context::model).
///
/// The manifest must declare the operations. A binding may still deny an operation; a call then fails with
/// `unauthorized`. [`Model::can`] checks this without a call.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    resource: &'a ModelResource,
}

impl<'a> Model<'a> {
    pub(crate) fn new(resource: &'a ModelResource) -> Self {
        Self { resource }
    }

    /// Returns the id of the model, as named in bindings.
    #[must_use]
    pub fn id(&self) -> &'a str {
        &self.resource.model_id
    }

    /// Returns true if this run may use the operation.
    #[must_use]
    pub fn can(&self, operation: ModelOperation) -> bool {
        self.resource.operations.contains(&operation)
    }

    /// Returns the record of the grant.
    #[must_use]
    pub fn resource(&self) -> &'a ModelResource {
        self.resource
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    /// Fails with the error of the host or of the model's service.
    pub fn invoke(&self, request: &ModelRequest) -> Result<ModelResponse, ApiError> {
        Ok(host::invoke(self.id(), &request.contract)?)
    }

    /// Sends a request and returns the answer as a stream.
    ///
    /// # Errors
    /// Fails with the error of the host or of the model's service before the first chunk.
    pub fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ApiError> {
        let stream = host::stream(self.id(), &request.contract)?;
        Ok(ModelStream { stream: Some(stream), ready: Vec::new().into_iter(), response: None })
    }

    /// Sends a request and writes the answer into a message: streamed if the run may stream, otherwise whole. The message
    /// is not finished, so that more text can follow.
    ///
    /// # Errors
    /// Fails with the error of the host or of the model's service. The message keeps the text that arrived before the
    /// error.
    pub fn answer<S: Sink>(&self, request: &ModelRequest, out: &mut MessageWriter<S>) -> Result<ModelResponse, ApiError> {
        if self.can(ModelOperation::Stream) || !self.can(ModelOperation::Invoke) {
            return self.stream(request)?.write_to(out);
        }
        let response = self.invoke(request)?;
        out.write(&response.text())?;
        Ok(response)
    }

    /// Returns one vector per text, in order.
    ///
    /// ```
    /// # use agent_host_sdk::{ApiError, Model};
    /// fn near(model: Model<'_>, a: &str, b: &str) -> Result<f32, ApiError> {
    ///     let vectors = model.embed(&[a.to_owned(), b.to_owned()])?;
    ///     let [a, b] = vectors.as_slice() else { return Ok(0.0) };
    ///     Ok(a.iter().zip(b).map(|(a, b)| a * b).sum())
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails with the error of the host or of the model's service.
    pub fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, ApiError> {
        Ok(host::embed(self.id(), texts)?)
    }

    /// Returns the documents that fit the query, best first: all documents, or the best `top_k`.
    ///
    /// # Errors
    /// Fails with the error of the host or of the model's service.
    pub fn rerank(&self, query: &str, documents: &[String], top_k: Option<u32>) -> Result<Vec<RerankHit>, ApiError> {
        Ok(host::rerank(self.id(), query, documents, top_k)?)
    }

    /// Returns the number of tokens of the messages for this model.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn count_tokens(&self, messages: &[Message]) -> Result<u64, ApiError> {
        Ok(host::count_tokens(self.id(), messages)?)
    }
}

/// Request to a chat model. Messages are sent in the order of their addition.
///
/// ```
/// use agent_host_sdk::{Message, ModelRequest, serde_json::json};
///
/// let mut request = ModelRequest::new()
///     .system("You are brief.")
///     .messages([Message::user("What is 2 + 2?"), Message::assistant("4.")])
///     .user("And times ten?")
///     .temperature(0.2)
///     .extra("response_format", json!({"type": "json_object"}));
/// request.push(Message::user("As JSON."));
/// assert_eq!(request.contract().messages.len(), 5);
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    contract: Request,
    /// Names and JSON values of the extra arguments; source of `contract.extra_args`.
    extra: Vec<(String, String)>,
}

impl Default for ModelRequest {
    fn default() -> Self {
        Self { contract: Request { messages: Vec::new(), tools: Vec::new(), extra_args: None }, extra: Vec::new() }
    }
}

impl ModelRequest {
    /// Creates a request without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a system message.
    pub fn system(self, text: impl Into<String>) -> Self {
        self.message(Message::system(text))
    }

    /// Adds a message of the user.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(Message::user(text))
    }

    /// Adds a message of the assistant.
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.message(Message::assistant(text))
    }

    /// Adds a message.
    pub fn message(mut self, message: Message) -> Self {
        self.push(message);
        self
    }

    /// Adds messages.
    pub fn messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.contract.messages.extend(messages);
        self
    }

    /// Adds tools that the model may call, such as [`Toolbox::definitions`](crate::tools::Toolbox::definitions).
    pub fn tools(mut self, tools: impl IntoIterator<Item = ToolDefinition>) -> Self {
        self.contract.tools.extend(tools);
        self
    }

    /// Removes all tools, so that the model must answer with text.
    pub fn without_tools(mut self) -> Self {
        self.contract.tools.clear();
        self
    }

    /// Sets the sampling temperature, usually 0 to 2.
    pub fn temperature(self, temperature: f64) -> Self {
        self.extra("temperature", temperature)
    }

    /// Sets the maximum number of tokens of the answer.
    pub fn max_tokens(self, tokens: u32) -> Self {
        self.extra("max_tokens", tokens)
    }

    /// Sets another argument of the model's service. The host passes on the arguments of its allow list and refuses
    /// others. A second value for the same name replaces the first.
    pub fn extra(mut self, name: impl Into<String>, value: impl IntoJson) -> Self {
        let name = name.into();
        self.extra.retain(|(old, _)| *old != name);
        self.extra.push((name, value.into_json()));
        let mut json = String::from("{");
        for (name, value) in &self.extra {
            if json.len() > 1 {
                json.push(',');
            }
            json.push_str(&name.as_str().into_json());
            json.push(':');
            json.push_str(value);
        }
        json.push('}');
        self.contract.extra_args = Some(json);
        self
    }

    /// Adds a message to a request that is sent repeatedly, such as in a loop of tool calls.
    pub fn push(&mut self, message: Message) {
        self.contract.messages.push(message);
    }

    /// Returns the record that the host receives.
    #[must_use]
    pub fn contract(&self) -> &Request {
        &self.contract
    }

    /// Returns the record, for fields without a builder method.
    pub fn contract_mut(&mut self) -> &mut Request {
        &mut self.contract
    }
}

impl Response {
    /// Returns the text of the answer; empty if the model only calls tools.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// Returns the tool calls of the answer.
    #[must_use]
    pub fn tool_calls(&self) -> &[ToolCall] {
        &self.message.tool_calls
    }
}

/// Sum of the tokens of several answers, for [`Completion::usage`](crate::Completion::usage).
#[derive(Clone, Copy, Debug, Default)]
pub struct TotalUsage {
    total: Option<TokenUsage>,
    unknown: bool,
}

impl TotalUsage {
    /// Adds the tokens of an answer.
    pub fn add(&mut self, response: &ModelResponse) {
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
        self.unknown |= response.usage.is_none();
        self.total = match (self.total, response.usage) {
            (Some(a), Some(b)) => Some(TokenUsage {
                input: a.input.saturating_add(b.input),
                output: a.output.saturating_add(b.output),
                cached_input: both(a.cached_input, b.cached_input),
                reasoning: both(a.reasoning, b.reasoning),
            }),
            (a, b) => a.or(b),
        };
    }

    /// Returns the sum; `None` if one answer had no usage, since a partial sum would be mistaken for the total.
    #[must_use]
    pub fn total(&self) -> Option<TokenUsage> {
        self.total.filter(|_| !self.unknown)
    }
}

/// Streamed answer: an iterator over chunks. The last chunk is [`Chunk::Done`].
///
/// ```
/// # use agent_host_sdk::{ApiError, Chunk, Model, ModelRequest};
/// fn shout(model: Model<'_>, request: &ModelRequest) -> Result<String, ApiError> {
///     let mut shouted = String::new();
///     let mut stream = model.stream(request)?;
///     for chunk in &mut stream {
///         match chunk? {
///             Chunk::Text(text) => shouted.push_str(&text.to_uppercase()),
///             Chunk::Reasoning(_) | Chunk::Done(_) => {}
///         }
///     }
///     let response = stream.response()?;
///     Ok(format!("{shouted} ({})", response.finish_reason))
/// }
/// ```
///
/// Dropping the stream ends the request. An error is the last item.
#[derive(Debug)]
#[must_use = "an iterator does nothing until `next` is called"]
pub struct ModelStream {
    /// `None` after the end, so that the handle is released immediately.
    stream: Option<host::ResponseStream>,
    ready: std::vec::IntoIter<Chunk>,
    response: Option<ModelResponse>,
}

impl ModelStream {
    /// Returns the whole answer. First reads the rest of the stream.
    ///
    /// # Errors
    /// Fails with the error of the stream; with `runtime_error` if the stream ended without an answer, or if an earlier
    /// error was ignored.
    pub fn response(mut self) -> Result<ModelResponse, ApiError> {
        for chunk in &mut self {
            chunk?;
        }
        self.into_response()
    }

    /// Writes text and reasoning into a message as the chunks arrive, and returns the whole answer. The message is not
    /// finished, so that more text can follow.
    ///
    /// The first text is emitted immediately, later text once it has a few words.
    ///
    /// # Errors
    /// Fails with the error of the stream, or of the host if it refuses the results. The message keeps the text that
    /// arrived before the error.
    pub fn write_to<S: Sink>(mut self, out: &mut MessageWriter<S>) -> Result<ModelResponse, ApiError> {
        loop {
            for chunk in std::mem::take(&mut self.ready) {
                match chunk {
                    Chunk::Text(text) => out.write(&text)?,
                    Chunk::Reasoning(text) => out.reasoning(&text)?,
                    Chunk::Done(response) => self.finish(response),
                }
            }
            // The next call waits for the model, so the collected text is sent first.
            out.flush_words()?;
            if !self.fetch()? {
                return self.into_response();
            }
        }
    }

    fn into_response(self) -> Result<ModelResponse, ApiError> {
        self.response.ok_or_else(|| ApiError {
            code: ErrorCode::RuntimeError,
            message: "the model's stream ended without an answer".to_owned(),
            retryable: true,
            details: None,
        })
    }

    fn finish(&mut self, response: ModelResponse) {
        self.response = Some(response);
        self.stream = None;
    }

    /// Waits for chunks. Returns false at the end.
    fn fetch(&mut self) -> Result<bool, ApiError> {
        let Some(stream) = &self.stream else { return Ok(false) };
        match stream.next() {
            Ok(chunks) if !chunks.is_empty() => {
                self.ready = chunks.into_iter();
                Ok(true)
            }
            Ok(_) => {
                self.stream = None;
                Ok(false)
            }
            Err(error) => {
                self.stream = None;
                Err(error.into())
            }
        }
    }
}

impl Iterator for ModelStream {
    type Item = Result<Chunk, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = self.ready.next() {
                if let Chunk::Done(response) = &chunk {
                    self.finish(response.clone());
                }
                return Some(Ok(chunk));
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Converts the answer of a model into the next message of the request. Parameters of a tool call that are not a JSON
/// object become `{}`, since no service accepts them.
pub(crate) fn repair_calls(mut message: Message) -> Message {
    for call in &mut message.tool_calls {
        if !crate::json::is_object(&call.parameters) {
            call.parameters = "{}".to_owned();
        }
    }
    message.role = Role::Assistant;
    message
}
