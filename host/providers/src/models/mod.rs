//! Language models: chat, embeddings, rerank and token counting.
//!
//! The module carries out a granted call to a model that the operator configured, and converts the answer into the types of
//! the protocol. The module makes no decision about grants, and stores no content.
//!
//! # Providers
//!
//! | `provider` | serves | how |
//! |---|---|---|
//! | `openai` | `llm`, `embedding`, `rerank` | chat completions (always streamed), `/embeddings`, `/rerank` in the form of Jina; any compatible server |
//! | `openai_responses` | `llm` | `/responses` of OpenAI, streamed; nothing is stored there |
//! | `anthropic` | `llm` | `/messages` of Anthropic, streamed |
//! | `gemini` | `llm`, `embedding` | `models/*:streamGenerateContent` and `models/*:batchEmbedContents` of Google |
//! | `bedrock` | `llm` | `/model/*/converse-stream` of Amazon Bedrock, with an API key of Bedrock or signed with an access key; the module `frames` reads the stream |
//! | `cohere` | `rerank` | `/rerank` of Cohere v2 |
//! | `jina` | `rerank` | `/rerank` of Jina |
//! | `scripted` | all | a file of replies (format: module `scripted`), hashed words, shared words; no network |
//!
//! HTTP is `reqwest`, used directly. Not `async-openai`, `genai` or `rig`: their enums refuse or lose the additions of
//! compatible servers (`reasoning_content`, odd tool-call pieces, other finish reasons), their retries know neither the
//! deadline of a run nor `Retry-After`, none bounds the answer of a server, and errors quote URLs. The used part of the
//! interface is small. `sse` reads server-sent events; its documentation has the reasons.
//!
//! # Guarantees
//!
//! - No request outlasts the deadline of its call. Dropping a future or a [`ModelStream`] closes its connection.
//! - A request is retried only before an answer has begun: on 408, 424, 429, 5xx and failed connections, with growing pauses and
//!   jitter, or after `Retry-After`. If the retry would be after the deadline, the call fails at once.
//! - Another model of `fallback` is asked only before an answer has begun, and only for failures of the provider: not for those of
//!   the request. The chain has one deadline.
//! - Memory is bounded by `max_response_bytes` for each call, and calls by `max_concurrent` for each model. Each model
//!   has connections of its own: one that stalls holds up no other.
//! - The key is in the `Authorization` header only (`x-api-key` for Anthropic, `x-goog-api-key` for Gemini). It is removed from all text of the provider, answers included. Errors
//!   contain neither URLs nor paths nor addresses.
//! - Usage is the provider's report if it is plausible, and otherwise unknown. The host never estimates usage.
//! - A tool call has an object as parameters, or the response is an error.
//!
//! # Errors
//!
//! `details.code` is the category:
//!
//! | `details.code` | code | retryable | when |
//! |---|---|---|---|
//! | `provider_not_ready` | `runtime_error` | no | the model lacks its key or its script; or none is configured |
//! | `operation_not_supported` | `invalid_argument` | no | such as `embed` of a chat model |
//! | `extra_argument_refused` | `invalid_argument` | no | an extra argument that the configuration does not list |
//! | `provider_unauthorized` | `runtime_error` | no | 401, 403 |
//! | `model_not_found` | `runtime_error` | no | 404 |
//! | `provider_refused` | `invalid_argument` | no | 400, 422 and other 4xx; with the provider's words |
//! | `context_length_exceeded` | `payload_too_large` | no | the provider says so |
//! | `request_too_large` | `payload_too_large` | no | 413, or too many images |
//! | `provider_rate_limited` | `rate_limited` | yes | 429; `status`, `retry_after_ms` |
//! | `quota_exceeded` | `rate_limited` | no | 429 that says so |
//! | `provider_unavailable` | `runtime_error` | yes | 408, 424, 5xx, no connection; `status` |
//! | `provider_stalled` | `runtime_error` | yes | silent for `idle_timeout_ms` |
//! | `stream_interrupted` | `runtime_error` | yes | the connection ended within an answer |
//! | `provider_error` | `runtime_error` | as it says | an error in place of, or within, an answer; a redirect |
//! | `invalid_response` | `runtime_error` | no | not JSON, another form, wrong counts or places |
//! | `invalid_tool_call` | `runtime_error` | yes | parameters that are not a JSON object; no name |
//! | `response_too_large` | `payload_too_large` | no | more than `max_response_bytes` |
//! | `script_unmatched` | `runtime_error` | no | no reply of the script fits |
//! | `scripted_error` | as it says | as it says | the script says so |
//!
//! Beside these, `invalid_argument` for a malformed request, `deadline_exceeded`, and what the source of artifacts says.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Once},
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ApiError,
    context::ModelResource,
    manifest::ModelOperation,
    message::{Message, TokenUsage},
    model::{Fallback, ModelChunk, ModelRequest, ModelResponse, ModelType, RerankHit, ToolDefinition},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

mod assemble;
mod bounds;
mod chat;
mod failure;
mod forms;
mod frames;
mod http;
mod names;
mod pieces;
mod scripted;
mod signatures;
mod signer;
mod stream;
mod template;
mod tokens;
mod vectors;

pub use agent_host_config::{AccessKey, DEFAULT_EXTRA_ARGS, ModelConfig, ModelPrice, ProviderKind};
pub use bounds::{AskedModel, CallBounds, Retries};
pub use failure::not_ready;
pub use stream::ModelStream;
pub(crate) use stream::chunks_in;

use self::{
    failure::{Category, deadline_exceeded, remaining},
    forms::Form,
    http::Endpoint,
    scripted::Script,
    signer::Signer,
};
use crate::ArtifactSource;

/// Every configured model. A handle: clones are the same models.
#[derive(Debug, Clone, Default)]
pub struct Models(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// In the order of the configuration.
    models: Vec<Arc<Model>>,
    by_id: HashMap<String, Arc<Model>>,
}

impl Models {
    /// Makes every model ready. A key or a script that cannot be read is not fatal for the others: that model answers
    /// each call with [`not_ready`], and [`Model::problem`] says why.
    ///
    /// # Errors
    /// A configuration that cannot be meant, see [`ModelConfig::check`]; two models with one id.
    pub fn open(configs: &[ModelConfig]) -> Result<Self, String> {
        let mut opened: Vec<Arc<Model>> = Vec::with_capacity(configs.len());
        for config in configs {
            config.check()?;
            let backend = Backend::open(config).unwrap_or_else(|problem| {
                let problem = format!("model `{}` is not ready: {problem}", config.id);
                Backend::NotReady { problem, logged: Once::new() }
            });
            let model = Arc::new(Model {
                encoding: config
                    .tokenizer
                    .as_deref()
                    .and_then(tokens::Encoding::named)
                    .unwrap_or_else(|| tokens::Encoding::of_model(config.model_name())),
                places: Arc::new(Semaphore::new(config.max_concurrent.min(Semaphore::MAX_PERMITS))),
                config: config.clone(),
                backend: Arc::new(backend),
                fallback: Vec::new(),
            });
            if opened.iter().any(|other| other.config.id == config.id) {
                return Err(format!("models: there are two with the id `{}`", config.id));
            }
            opened.push(model);
        }
        let mut inner = Inner::default();
        for model in &opened {
            let model = if model.config.fallback.is_empty() { Arc::clone(model) } else { model.with_fallback(&opened)? };
            inner.by_id.insert(model.config.id.clone(), Arc::clone(&model));
            inner.models.push(model);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The model with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Model>> {
        self.0.by_id.get(id).cloned()
    }

    /// Every model, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.0.models.iter()
    }

    /// True if no model is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.models.is_empty()
    }
}

/// The backend of a model.
enum Backend {
    Http(Arc<Endpoint>),
    Script(Arc<Script>),
    /// Hashed words, or shared words.
    Words,
    NotReady {
        /// The reason, for the operator.
        problem: String,
        /// Completed when a call has logged the reason.
        logged: Once,
    },
}

impl Backend {
    fn open(config: &ModelConfig) -> Result<Self, String> {
        match (config.url()?, &config.script) {
            (Some(base), _) => {
                let key = config
                    .api_key
                    .as_ref()
                    .map(|key| crate::secret::Secret::read(key).map_err(|error| error.to_string()))
                    .transpose()?;
                let signer = config.access_key.as_ref().map(|key| Signer::open(key, &base)).transpose()?;
                Endpoint::new(config, base, key, signer).map(|endpoint| Self::Http(Arc::new(endpoint)))
            }
            (None, Some(path)) => Script::read(path).map(|script| Self::Script(Arc::new(script))),
            (None, None) => Ok(Self::Words),
        }
    }
}

/// Vectors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// One vector for each text, in order. All have the same length; every number is finite.
    pub vectors: Vec<Vec<f32>>,
    /// Usage, if the provider reports a plausible one.
    pub usage: Option<TokenUsage>,
}

/// A configured model.
pub struct Model {
    config: ModelConfig,
    backend: Arc<Backend>,
    encoding: tokens::Encoding,
    /// Calls that may go on at the same time.
    places: Arc<Semaphore>,
    /// The models that are asked where this one fails before it has begun to answer. They have none themselves.
    fallback: Vec<Arc<Model>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("id", &self.config.id)
            .field("type", &self.config.r#type)
            .field("provider", &self.config.provider)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Name for bindings and runners.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// The price of its tokens, where the operator set one.
    #[must_use]
    pub const fn price(&self) -> Option<ModelPrice> {
        self.config.price
    }

    /// The kind of the model.
    #[must_use]
    pub const fn kind(&self) -> ModelType {
        self.config.r#type
    }

    /// The provider of the model.
    #[must_use]
    pub const fn provider(&self) -> ProviderKind {
        self.config.provider
    }

    /// The provider's name of the model.
    #[must_use]
    pub fn remote_name(&self) -> &str {
        self.config.model.as_deref().unwrap_or(&self.config.id)
    }

    /// Host and port of the provider.
    #[must_use]
    pub fn address(&self) -> Option<(String, u16)> {
        let url = self.config.url().ok().flatten()?;
        Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
    }

    /// The model as a runner sees it: with the kind of its provider, without URL or the provider's name for it.
    #[must_use]
    pub fn resource(&self) -> ModelResource {
        ModelResource {
            model_id: self.config.id.clone(),
            model_type: self.kind().as_str().to_owned(),
            provider: Some(self.config.provider.as_str().to_owned()),
            operations: operations(self.kind()).to_vec(),
        }
    }

    /// The whole answer to a conversation.
    ///
    /// The provider is asked for a stream here too, so that a stalled answer can be distinguished from a slow one.
    ///
    /// # Errors
    /// See the table of the module.
    pub async fn invoke(
        &self,
        request: &ModelRequest,
        artifacts: &dyn ArtifactSource,
        bounds: impl Into<CallBounds<'_>>,
    ) -> Result<ModelResponse, ApiError> {
        self.expect(ModelOperation::Invoke)?;
        let mut stream = self.begin(request, artifacts, bounds.into()).await?;
        loop {
            let chunks = stream.chunks().await?;
            if chunks.is_empty() {
                return Err(Category::Interrupted.error("the answer of the model has no end"));
            }
            if let Some(ModelChunk::Done(response)) = chunks.into_iter().next_back() {
                return Ok(response);
            }
        }
    }

    /// The answer to a conversation, as it comes.
    ///
    /// # Errors
    /// Fails as the table of the module says. Later failures are errors of [`ModelStream::chunks`].
    pub async fn stream(
        &self,
        request: &ModelRequest,
        artifacts: &dyn ArtifactSource,
        bounds: impl Into<CallBounds<'_>>,
    ) -> Result<ModelStream, ApiError> {
        self.expect(ModelOperation::Stream)?;
        self.begin(request, artifacts, bounds.into()).await
    }

    /// The same model with its fallback chain.
    fn with_fallback(&self, opened: &[Arc<Self>]) -> Result<Arc<Self>, String> {
        let find = |id: &String| {
            let found = opened.iter().find(|model| model.config.id == *id && model.kind() == ModelType::Llm);
            let problem = || format!("model `{}`: `fallback` names `{id}`, which is no model of type `llm`", self.config.id);
            found.cloned().ok_or_else(problem)
        };
        let fallback = self.config.fallback.iter().map(find).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            config: self.config.clone(),
            backend: Arc::clone(&self.backend),
            encoding: self.encoding,
            places: Arc::clone(&self.places),
            fallback,
        }))
    }

    /// Begins an answer: of this model, or of the first of its fallback chain that begins one.
    async fn begin(
        &self,
        request: &ModelRequest,
        artifacts: &dyn ArtifactSource,
        bounds: CallBounds<'_>,
    ) -> Result<ModelStream, ApiError> {
        let mut asked = self;
        let mut rest = self.fallback.iter();
        loop {
            let began = Instant::now();
            let answer = asked.begin_alone(request, artifacts, bounds).await;
            let answer = match answer {
                // An error may also be the first event of a stream.
                Ok(mut stream) if rest.len() > 0 => stream.begun().await.map(|()| stream),
                answer => answer,
            };
            let error = match answer {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if !failure::lets_another_answer(&error) || remaining(bounds.deadline).is_err() {
                return Err(error);
            }
            let Some(next) = rest.next() else { return Err(error) };
            tracing::debug!(
                model = asked.id(),
                next = next.id(),
                reason = error.category(),
                "asking the next model of the chain"
            );
            let (category, duration_ms) = (error.category().to_owned(), milliseconds(began.elapsed()));
            let failed = Fallback { model_id: asked.id().to_owned(), category, duration_ms };
            bounds.fell_back(failed, AskedModel { model_id: next.id().to_owned(), price: next.price() });
            asked = next;
        }
    }

    async fn begin_alone(
        &self,
        request: &ModelRequest,
        artifacts: &dyn ArtifactSource,
        bounds: CallBounds<'_>,
    ) -> Result<ModelStream, ApiError> {
        let deadline = bounds.deadline;
        chat::check(&self.config, request)?;
        match &*self.backend {
            Backend::Http(endpoint) => {
                let place = self.place(deadline).await?;
                let left = remaining(deadline)?;
                let form = Form::of(self.config.provider);
                let body = form.body(&self.config, request, artifacts);
                let (body, names) = timeout(left, body).await.map_err(|_| deadline_exceeded())??;
                let answer = endpoint.post(&form.target(&self.config), body, bounds).await?;
                ModelStream::from_answer(answer, form, names, request.messages.len(), place).await
            }
            Backend::Script(script) => {
                let place = self.place(deadline).await?;
                let reply = script.reply(request, self.config.max_response_bytes)?;
                Ok(ModelStream::from_reply(reply, deadline, place))
            }
            Backend::Words | Backend::NotReady { .. } => Err(self.not_ready()),
        }
    }

    /// A vector for each text.
    ///
    /// # Errors
    /// See the table of the module.
    pub async fn embed(&self, texts: &[String], bounds: impl Into<CallBounds<'_>>) -> Result<Embeddings, ApiError> {
        let bounds = bounds.into();
        self.expect(ModelOperation::Embed)?;
        vectors::check_texts("texts", texts)?;
        match &*self.backend {
            Backend::Http(endpoint) => {
                let _place = self.place(bounds.deadline).await?;
                vectors::embed(&self.config, endpoint, texts, bounds).await
            }
            Backend::Words => {
                Ok(Embeddings { vectors: texts.iter().map(|text| vectors::hashed_words(text)).collect(), usage: None })
            }
            Backend::Script(_) | Backend::NotReady { .. } => Err(self.not_ready()),
        }
    }

    /// Documents by how well they fit a query, best first; at most `top_k` of them.
    ///
    /// # Errors
    /// See the table of the module.
    pub async fn rerank(
        &self,
        query: &str,
        documents: &[String],
        top_k: Option<u32>,
        bounds: impl Into<CallBounds<'_>>,
    ) -> Result<Vec<RerankHit>, ApiError> {
        let bounds = bounds.into();
        self.expect(ModelOperation::Rerank)?;
        vectors::check_texts("documents", documents)?;
        if top_k == Some(0) {
            return Err(ApiError::invalid_argument("top_k must be at least 1; leave it out for all documents"));
        }
        let hits = match &*self.backend {
            Backend::Http(endpoint) => {
                let _place = self.place(bounds.deadline).await?;
                vectors::rerank(&self.config, endpoint, query, documents, top_k, bounds).await?
            }
            Backend::Words => vectors::shared_words(query, documents),
            Backend::Script(_) | Backend::NotReady { .. } => return Err(self.not_ready()),
        };
        Ok(vectors::best_first(hits, top_k))
    }

    /// Tokens of messages and tools as a request, with the frame of each. An estimate where the model is not one of OpenAI.
    ///
    /// Computes for a second per some megabytes, and when an encoding is first needed: call it from a thread that may
    /// block.
    ///
    /// # Errors
    /// `payload_too_large` for more text than any model reads; `invalid_argument` for a malformed tool; `operation_not_supported`.
    pub fn count_tokens(&self, messages: &[Message], tools: &[ToolDefinition]) -> Result<u64, ApiError> {
        self.expect(ModelOperation::CountTokens)?;
        chat::check_tools(tools)?;
        self.encoding.count(messages, tools)
    }

    /// Refuses what a model of this type does not do.
    fn expect(&self, operation: ModelOperation) -> Result<(), ApiError> {
        if operations(self.kind()).contains(&operation) {
            return Ok(());
        }
        let (id, kind, operation) = (self.id(), self.kind().as_str(), operation.as_str());
        Err(Category::NotSupported.error(format!("model `{id}` has type `{kind}`, which does not do `{operation}`")))
    }

    /// Waits for one of the model's places.
    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = Arc::clone(&self.places).acquire_owned();
        match timeout(remaining(deadline)?, place).await {
            Ok(Ok(place)) => Ok(place),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(deadline_exceeded()),
        }
    }

    /// The reason why the model is not ready, for the operator; `None` if it is. The text names a variable or a file, never its
    /// content.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        match &*self.backend {
            Backend::NotReady { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// The answer to a call of a model that is not ready. The first call logs the reason: a host logs it at its start only for models
    /// that a binding uses.
    fn not_ready(&self) -> ApiError {
        if let Backend::NotReady { problem, logged } = &*self.backend {
            logged.call_once(|| tracing::warn!("{problem}"));
        }
        not_ready(format!("model `{}` is not ready: the host's log has the reason, for its operator", self.id()))
    }
}

/// The operations of a type of model.
const fn operations(kind: ModelType) -> &'static [ModelOperation] {
    match kind {
        ModelType::Llm => &[ModelOperation::Invoke, ModelOperation::Stream, ModelOperation::CountTokens],
        ModelType::Embedding => &[ModelOperation::Embed],
        ModelType::Rerank => &[ModelOperation::Rerank],
    }
}

/// A duration as whole milliseconds.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
