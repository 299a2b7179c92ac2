//! Models: chat, whole or streamed, embeddings, reranking and counting of tokens.
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

/// A model that this run was granted, as [`Context::model`](crate::Context::model) gives it.
///
/// The manifest must declare the operations that are called; a binding may still take one away, and
/// the call answers `unauthorized` then. [`Model::can`] says so without a call.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    resource: &'a ModelResource,
}

impl<'a> Model<'a> {
    pub(crate) fn new(resource: &'a ModelResource) -> Self {
        Self { resource }
    }

    /// The id by which bindings name it.
    #[must_use]
    pub fn id(&self) -> &'a str {
        &self.resource.model_id
    }

    /// Whether this run may use it in this way.
    #[must_use]
    pub fn can(&self, operation: ModelOperation) -> bool {
        self.resource.operations.contains(&operation)
    }

    /// The record of the grant.
    #[must_use]
    pub fn resource(&self) -> &'a ModelResource {
        self.resource
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// As the host or the model's service answers.
    pub fn invoke(&self, request: &ModelRequest) -> Result<ModelResponse, ApiError> {
        Ok(host::invoke(self.id(), &request.contract)?)
    }

    /// Asks, and gives the answer while it comes.
    ///
    /// # Errors
    /// As the host or the model's service answers before the first chunk.
    pub fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ApiError> {
        let stream = host::stream(self.id(), &request.contract)?;
        Ok(ModelStream { stream: Some(stream), ready: Vec::new().into_iter(), response: None })
    }

    /// Asks, and writes the answer into a message: streamed where the run may stream, else whole.
    /// The message is not finished: more may follow.
    ///
    /// # Errors
    /// As the host or the model's service answers. The message has what came before.
    pub fn answer<S: Sink>(&self, request: &ModelRequest, out: &mut MessageWriter<S>) -> Result<ModelResponse, ApiError> {
        if self.can(ModelOperation::Stream) || !self.can(ModelOperation::Invoke) {
            return self.stream(request)?.write_to(out);
        }
        let response = self.invoke(request)?;
        out.write(&response.text())?;
        Ok(response)
    }

    /// A vector for each text, in order.
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
    /// As the host or the model's service answers.
    pub fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, ApiError> {
        Ok(host::embed(self.id(), texts)?)
    }

    /// Which documents fit the query, best first: all of them, or the best `top_k`.
    ///
    /// # Errors
    /// As the host or the model's service answers.
    pub fn rerank(&self, query: &str, documents: &[String], top_k: Option<u32>) -> Result<Vec<RerankHit>, ApiError> {
        Ok(host::rerank(self.id(), query, documents, top_k)?)
    }

    /// How many tokens the model would read.
    ///
    /// # Errors
    /// As the host answers.
    pub fn count_tokens(&self, messages: &[Message]) -> Result<u64, ApiError> {
        Ok(host::count_tokens(self.id(), messages)?)
    }
}

/// What a chat model is asked. Messages are sent in the order in which they were added.
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
    /// Names and JSON of the extra arguments; `contract.extra_args` is made of them.
    extra: Vec<(String, String)>,
}

impl Default for ModelRequest {
    fn default() -> Self {
        Self { contract: Request { messages: Vec::new(), tools: Vec::new(), extra_args: None }, extra: Vec::new() }
    }
}

impl ModelRequest {
    /// A request without messages.
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

    /// Adds tools that the model may ask for. [`Toolbox::definitions`](crate::tools::Toolbox::definitions)
    /// has those of the run.
    pub fn tools(mut self, tools: impl IntoIterator<Item = ToolDefinition>) -> Self {
        self.contract.tools.extend(tools);
        self
    }

    /// Takes all tools away, so that the model must answer in words.
    pub fn without_tools(mut self) -> Self {
        self.contract.tools.clear();
        self
    }

    /// How free the model is, usually 0 to 2.
    pub fn temperature(self, temperature: f64) -> Self {
        self.extra("temperature", temperature)
    }

    /// The most tokens that the answer may have.
    pub fn max_tokens(self, tokens: u32) -> Self {
        self.extra("max_tokens", tokens)
    }

    /// Another argument of the model's service. The host passes on those of its allow list and
    /// refuses others. A second value for the same name replaces the first.
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

    /// Adds a message to a request that is asked again, such as in a loop of tool calls.
    pub fn push(&mut self, message: Message) {
        self.contract.messages.push(message);
    }

    /// The record that the host gets.
    #[must_use]
    pub fn contract(&self) -> &Request {
        &self.contract
    }

    /// The record, to change what this builder has no method for.
    pub fn contract_mut(&mut self) -> &mut Request {
        &mut self.contract
    }
}

impl Response {
    /// The text of the answer; empty where the model only asks for tools.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// What the model asks tools to do.
    #[must_use]
    pub fn tool_calls(&self) -> &[ToolCall] {
        &self.message.tool_calls
    }
}

/// The tokens of several answers together, for [`Completion::usage`](crate::Completion::usage).
#[derive(Clone, Copy, Debug, Default)]
pub struct TotalUsage {
    total: Option<TokenUsage>,
    unknown: bool,
}

impl TotalUsage {
    /// Adds those of an answer.
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

    /// The sum; none where one answer came without, since a part of the truth would pass for the
    /// whole.
    #[must_use]
    pub fn total(&self) -> Option<TokenUsage> {
        self.total.filter(|_| !self.unknown)
    }
}

/// A streamed answer: an iterator over its chunks, whose last is [`Chunk::Done`].
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
/// Dropping it ends the request. An error is the last item.
#[derive(Debug)]
#[must_use = "an iterator does nothing until it is asked"]
pub struct ModelStream {
    /// None after the end, so that the handle goes back at once.
    stream: Option<host::ResponseStream>,
    ready: std::vec::IntoIter<Chunk>,
    response: Option<ModelResponse>,
}

impl ModelStream {
    /// The whole answer. Reads what is left of the stream first.
    ///
    /// # Errors
    /// As the stream, if it broke; `runtime_error` where it ended without an answer or an error was
    /// passed over.
    pub fn response(mut self) -> Result<ModelResponse, ApiError> {
        for chunk in &mut self {
            chunk?;
        }
        self.into_response()
    }

    /// Writes the text into a message, and its reasoning beside it, as they come, and gives the
    /// whole answer. The message is not finished: more may follow.
    ///
    /// The first text is emitted at once, later text as soon as there are some words of it.
    ///
    /// # Errors
    /// As the stream, if it breaks, or as the host answers to the results. The message has what
    /// came before.
    pub fn write_to<S: Sink>(mut self, out: &mut MessageWriter<S>) -> Result<ModelResponse, ApiError> {
        loop {
            for chunk in std::mem::take(&mut self.ready) {
                match chunk {
                    Chunk::Text(text) => out.write(&text)?,
                    Chunk::Reasoning(text) => out.reasoning(&text)?,
                    Chunk::Done(response) => self.done(response),
                }
            }
            // The next call waits for the model: what is there goes out before.
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

    fn done(&mut self, response: ModelResponse) {
        self.response = Some(response);
        self.stream = None;
    }

    /// Waits for chunks. False at the end.
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
                    self.done(response.clone());
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

/// The answer of a model as the next message of the request: without the tool calls that no service
/// would take back, because their parameters are no JSON object.
pub(crate) fn repaired(mut message: Message) -> Message {
    for call in &mut message.tool_calls {
        if !crate::json::is_object(&call.parameters) {
            call.parameters = "{}".to_owned();
        }
    }
    message.role = Role::Assistant;
    message
}
