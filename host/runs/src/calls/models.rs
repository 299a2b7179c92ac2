//! `models`.

use std::sync::Arc;

use agent_host_protocol::{
    ApiError,
    manifest::ModelOperation,
    message::TokenUsage,
    model::{ModelChunk, ModelResponse, RerankHit},
};
use agent_host_providers::models::{Model, ModelStream, not_ready};
use agent_host_sandbox::{ChatMessages, ChatRequest, ModelCalls, ResponseStream};
use async_trait::async_trait;

use super::{RunCalls, granted, not_found, not_granted, within};
use crate::{
    facts::Begun,
    gate::{Call, NEXT, RunState},
};

/// Where an operator says which models a binding may use.
const POLICY: &str = "resources.model_ids";

impl RunCalls {
    /// Steps 3 and 4 of the gate, for a model.
    fn model(&self, id: &str, operation: ModelOperation) -> Result<Arc<Model>, ApiError> {
        let grant = &self.run.terms.grant;
        granted(&grant.permissions.models, &operation, &format!("models.{}", operation.as_str().replace('_', "-")))?;
        let Some(model) = self.services.models.get(id) else {
            if self.services.models.is_empty() {
                return Err(not_ready(
                    "no model is configured on this host: add a `[[models]]` entry to agent-host.toml (docs/MODELS.md)",
                ));
            }
            return Err(not_found("model", id));
        };
        if !grant.models.iter().any(|granted| granted == id) {
            return Err(not_granted("model", id, POLICY));
        }
        if !model.resource().operations.contains(&operation) {
            let message = format!("the model `{id}` is of type `{}`: it has no {}", model.kind().as_str(), operation.as_str());
            return Err(ApiError::invalid_argument(message));
        }
        Ok(model)
    }
}

fn call<'a>(action: &'a str, model_id: &'a str, bytes: usize) -> Call<'a> {
    Call { action, resource: Some(model_id), scope: None, bytes }
}

fn of_response(outcome: &Result<ModelResponse, ApiError>) -> Result<(&str, Option<&TokenUsage>), &ApiError> {
    outcome.as_ref().map(|response| (response.finish_reason.as_str(), response.usage.as_ref()))
}

#[async_trait]
impl ModelCalls for RunCalls {
    async fn model_invoke(&mut self, model_id: String, request: ChatRequest) -> Result<ModelResponse, ApiError> {
        let run = &self.run;
        let bytes = request.bytes();
        let found = self.model(&model_id, ModelOperation::Invoke);
        let allowed = || found.clone().and_then(|_| within("a model request", bytes, run.limits.model_request_bytes));
        let effect = async {
            let (model, request) = (found.clone()?, request.parse()?);
            let begun = Begun::model(run, &model_id, ModelOperation::Invoke).await?;
            let outcome = model.invoke(&request, &self.artifacts(), run.deadline).await;
            begun.answered(of_response(&outcome)).await;
            outcome
        };
        run.pass(call("models.invoke", &model_id, bytes), allowed, effect).await
    }

    async fn model_stream(&mut self, model_id: String, request: ChatRequest) -> Result<Box<dyn ResponseStream>, ApiError> {
        let run = &self.run;
        let bytes = request.bytes();
        let found = self.model(&model_id, ModelOperation::Stream);
        let allowed = || found.clone().and_then(|_| within("a model request", bytes, run.limits.model_request_bytes));
        let effect = async {
            let (model, request) = (found.clone()?, request.parse()?);
            let begun = Begun::model(run, &model_id, ModelOperation::Stream).await?;
            match model.stream(&request, &self.artifacts(), run.deadline).await {
                Ok(stream) => {
                    let run = Arc::clone(run);
                    Ok(Box::new(Responses { run, model_id: model_id.clone(), stream, begun: Some(begun) }) as _)
                }
                Err(error) => {
                    begun.answered(Err(&error)).await;
                    Err(error)
                }
            }
        };
        run.pass(call("models.stream", &model_id, bytes), allowed, effect).await
    }

    async fn model_rerank(
        &mut self,
        model_id: String,
        query: String,
        documents: Vec<String>,
        top_k: Option<u32>,
    ) -> Result<Vec<RerankHit>, ApiError> {
        let run = &self.run;
        let bytes = query.len() + documents.iter().map(String::len).sum::<usize>();
        let found = self.model(&model_id, ModelOperation::Rerank);
        let allowed = || {
            found.clone()?;
            many("documents", documents.len(), run.limits.rerank_documents)?;
            if top_k == Some(0) {
                return Err(ApiError::invalid_argument("`top-k` is at least 1"));
            }
            within("a rerank request", bytes, run.limits.model_request_bytes)
        };
        let effect = async {
            let model = found.clone()?;
            let begun = Begun::model(run, &model_id, ModelOperation::Rerank).await?;
            let outcome = model.rerank(&query, &documents, top_k, run.deadline).await;
            begun.used(outcome.as_ref().map(|_| None)).await;
            outcome
        };
        run.pass(call("models.rerank", &model_id, bytes), allowed, effect).await
    }

    async fn model_embed(&mut self, model_id: String, texts: Vec<String>) -> Result<Vec<Vec<f32>>, ApiError> {
        let run = &self.run;
        let bytes = texts.iter().map(String::len).sum();
        let found = self.model(&model_id, ModelOperation::Embed);
        let allowed = || {
            found.clone()?;
            many("texts", texts.len(), run.limits.embed_texts)?;
            within("an embedding request", bytes, run.limits.model_request_bytes)
        };
        let effect = async {
            let model = found.clone()?;
            let begun = Begun::model(run, &model_id, ModelOperation::Embed).await?;
            let outcome = model.embed(&texts, run.deadline).await;
            begun.used(outcome.as_ref().map(|answer| answer.usage.as_ref())).await;
            outcome.map(|answer| answer.vectors)
        };
        run.pass(call("models.embed", &model_id, bytes), allowed, effect).await
    }

    async fn model_count_tokens(&mut self, model_id: String, messages: ChatMessages) -> Result<u64, ApiError> {
        let run = &self.run;
        let bytes = messages.bytes();
        let found = self.model(&model_id, ModelOperation::CountTokens);
        let allowed = || found.clone().and_then(|_| within("the messages", bytes, run.limits.model_request_bytes));
        // Counting computes: some milliseconds for a long conversation, so not on a thread that serves.
        let effect = async {
            let (model, messages) = (found.clone()?, messages.parse()?);
            let counted = tokio::task::spawn_blocking(move || model.count_tokens(&messages)).await;
            counted.unwrap_or_else(|error| {
                tracing::error!(%error, "counting tokens failed");
                Err(ApiError::new(agent_host_protocol::ErrorCode::RuntimeError, "the host could not count; its log says why"))
            })
        };
        run.pass(call("models.count-tokens", &model_id, bytes), allowed, effect).await
    }
}

fn many(what: &str, count: usize, limit: usize) -> Result<(), ApiError> {
    if count == 0 {
        return Err(ApiError::invalid_argument(format!("there are no {what}")));
    }
    if count > limit {
        let message = format!("{count} {what} in one call; the limit is {limit}: ask in several");
        return Err(ApiError::new(agent_host_protocol::ErrorCode::PayloadTooLarge, message));
    }
    Ok(())
}

/// A response that streams.
struct Responses {
    run: Arc<RunState>,
    model_id: String,
    stream: ModelStream,
    /// Until its end is recorded.
    begun: Option<Begun>,
}

#[async_trait]
impl ResponseStream for Responses {
    async fn next(&mut self) -> Result<Vec<ModelChunk>, ApiError> {
        let Self { run, model_id, stream, begun } = self;
        let effect = async {
            let outcome = stream.chunks().await;
            let ended = match &outcome {
                Err(error) => Some(Err(error)),
                Ok(chunks) => chunks.last().and_then(|chunk| match chunk {
                    ModelChunk::Done(response) => Some(Ok((response.finish_reason.as_str(), response.usage.as_ref()))),
                    _ => None,
                }),
            };
            if let Some((ended, begun)) = ended.and_then(|ended| Some((ended, begun.take()?))) {
                begun.answered(ended).await;
            }
            outcome
        };
        run.pass_piece(call(NEXT, model_id, 0), effect).await
    }
}
