//! `models`.

use std::sync::Arc;

use agent_host_protocol::{
    ApiError, ErrorCode,
    manifest::ModelOperation,
    message::{Message, TokenUsage},
    model::{ModelChunk, ModelRequest, ModelResponse, RerankHit, ToolDefinition},
};
use agent_host_providers::models::{Model, ModelStream, not_ready};
use agent_host_sandbox::{ChatMessages, ChatRequest, ModelCalls, ResponseStream};
use futures_util::future::BoxFuture;
use serde_json::json;

use super::{RunCalls, granted, not_found, not_granted, within};
use crate::{
    execution::{call::Call, gate::NEXT, open_calls::OpenCall, spans},
    policy::context::session_key,
    record::facts::CallOutcome,
};

/// The configuration key that lists the models of a binding.
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
        // Counting tokens computes on this host.
        if operation != ModelOperation::CountTokens {
            self.run.budget.check()?;
        }
        Ok(model)
    }

    /// A request of the run, parsed, with the session that providers may cache prompts of.
    fn chat_request(&self, request: ChatRequest) -> Result<ModelRequest, ApiError> {
        let session_key = session_key(&self.run.terms.grant, self.event.envelope.conversation.as_ref());
        Ok(ModelRequest { session_key, ..request.parse()? })
    }
}

fn of_response(outcome: &Result<ModelResponse, ApiError>) -> Result<(&str, Option<&TokenUsage>), &ApiError> {
    outcome.as_ref().map(|response| (response.finish_reason.as_str(), response.usage.as_ref()))
}

impl ModelCalls for RunCalls {
    fn model_invoke(&mut self, model_id: String, request: ChatRequest) -> BoxFuture<'_, Result<ModelResponse, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let bytes = request.bytes();
            let found = self.model(&model_id, ModelOperation::Invoke);
            let allowed = || found.clone().and_then(|_| within("a model request", bytes, run.limits.model_request_bytes));
            let digest = run.journal.digest(&(&model_id, &request));
            let effect = async |ticket| {
                let (model, request) = (found.clone()?, self.chat_request(request)?);
                let open_call = OpenCall::model(run, &ticket, &model, ModelOperation::Invoke).await?;
                spans::note_request(open_call.span(), &request);
                let outcome = open_call.span().within(model.invoke(&request, &self.artifacts(), open_call.bounds())).await;
                if let Ok(response) = &outcome {
                    spans::record_answer(open_call.span(), &response.message);
                }
                run.settle(ticket, &outcome).await?;
                open_call.end(CallOutcome::Chat(of_response(&outcome))).await;
                outcome
            };
            let call = Call::effect("models.invoke", digest).resource(model_id.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn model_stream(
        &mut self,
        model_id: String,
        request: ChatRequest,
    ) -> BoxFuture<'_, Result<Box<dyn ResponseStream>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let bytes = request.bytes();
            let found = self.model(&model_id, ModelOperation::Stream);
            let allowed = || found.clone().and_then(|_| within("a model request", bytes, run.limits.model_request_bytes));
            let digest = run.journal.digest(&(&model_id, &request));
            let responses = |request, stream, open_call| -> Box<dyn ResponseStream> {
                let calls = self.clone();
                Box::new(Responses {
                    calls,
                    model_id: model_id.clone(),
                    request,
                    stream,
                    open_call: Some(open_call),
                    received: ReceivedAnswer::default(),
                })
            };
            let (mut opened, mut request) = (None, Some(request));
            let effect = async |ticket| {
                let request = request.take().ok_or_else(interrupted)?;
                let (model, request) = (found.clone()?, self.chat_request(request)?);
                let open_call = OpenCall::model(run, &ticket, &model, ModelOperation::Stream).await?;
                spans::note_request(open_call.span(), &request);
                match open_call.span().within(model.stream(&request, &self.artifacts(), open_call.bounds())).await {
                    Ok(stream) => {
                        opened = Some((stream, open_call));
                        Ok(())
                    }
                    Err(error) => {
                        run.settle(ticket, &Err::<(), _>(error.clone())).await?;
                        open_call.end(CallOutcome::Chat(Err(&error))).await;
                        Err(error)
                    }
                }
            };
            let call = Call::effect("models.stream", digest).resource(model_id.as_str()).bytes(bytes);
            let passed = run.pass(call, allowed, effect).await;
            passed.outcome?;
            if let Some(past) = passed.past {
                let price = self.services.models.get(&model_id).and_then(|model| model.price());
                let open_call = OpenCall::model_before(run, past.number, &model_id, ModelOperation::Stream, price);
                return Ok(responses(request, None, open_call));
            }
            let (stream, open_call) = opened.ok_or_else(interrupted)?;
            Ok(responses(None, Some(stream), open_call))
        })
    }

    fn model_rerank(
        &mut self,
        model_id: String,
        query: String,
        documents: Vec<String>,
        top_k: Option<u32>,
    ) -> BoxFuture<'_, Result<Vec<RerankHit>, ApiError>> {
        Box::pin(async move {
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
            let digest = run.journal.digest(&(&model_id, &query, &documents, top_k));
            let effect = async |ticket| {
                let model = found.clone()?;
                let open_call = OpenCall::model(run, &ticket, &model, ModelOperation::Rerank).await?;
                let outcome = open_call.span().within(model.rerank(&query, &documents, top_k, open_call.bounds())).await;
                run.settle(ticket, &outcome).await?;
                open_call.end(CallOutcome::Model(outcome.as_ref().map(|_| None))).await;
                outcome
            };
            let call = Call::effect("models.rerank", digest).resource(model_id.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn model_embed(&mut self, model_id: String, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let bytes = texts.iter().map(String::len).sum();
            let found = self.model(&model_id, ModelOperation::Embed);
            let allowed = || {
                found.clone()?;
                many("texts", texts.len(), run.limits.embed_texts)?;
                within("an embedding request", bytes, run.limits.model_request_bytes)
            };
            let digest = run.journal.digest(&(&model_id, &texts));
            let effect = async |ticket| {
                let model = found.clone()?;
                let open_call = OpenCall::model(run, &ticket, &model, ModelOperation::Embed).await?;
                let (vectors, usage) = match open_call.span().within(model.embed(&texts, open_call.bounds())).await {
                    Ok(answer) => (Ok(answer.vectors), Ok(answer.usage)),
                    Err(error) => (Err(error.clone()), Err(error)),
                };
                run.settle(ticket, &vectors).await?;
                open_call.end(CallOutcome::Model(usage.as_ref().map(Option::as_ref))).await;
                vectors
            };
            let call = Call::effect("models.embed", digest).resource(model_id.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn model_count_tokens(&mut self, model_id: String, messages: ChatMessages) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(self.count_tokens(model_id, CountedInput::Messages(messages)))
    }
}

/// The tokens to count: those of messages, as a guest asks, or of a request with tools, as an executor can.
#[derive(Debug, serde::Serialize)]
#[serde(untagged)]
pub(super) enum CountedInput {
    Messages(ChatMessages),
    Request(ChatRequest),
}

impl CountedInput {
    fn bytes(&self) -> usize {
        match self {
            Self::Messages(messages) => messages.bytes(),
            Self::Request(request) => request.bytes(),
        }
    }

    fn parse(self) -> Result<(Vec<Message>, Vec<ToolDefinition>), ApiError> {
        match self {
            Self::Messages(messages) => Ok((messages.parse()?, Vec::new())),
            Self::Request(request) => request.parse().map(|request| (request.messages, request.tools)),
        }
    }
}

impl RunCalls {
    /// `models.count-tokens`.
    pub(super) async fn count_tokens(&mut self, model_id: String, counted: CountedInput) -> Result<u64, ApiError> {
        let run = &self.run;
        let bytes = counted.bytes();
        let found = self.model(&model_id, ModelOperation::CountTokens);
        let allowed = || found.clone().and_then(|_| within("the messages", bytes, run.limits.model_request_bytes));
        let digest = run.journal.digest(&(&model_id, &counted));
        // Counting computes: some milliseconds for a long conversation, so not on a thread that serves.
        let effect = async |()| {
            let (model, (messages, tools)) = (found.clone()?, counted.parse()?);
            let counted = tokio::task::spawn_blocking(move || model.count_tokens(&messages, &tools)).await;
            counted.unwrap_or_else(|error| {
                tracing::error!(%error, "counting tokens failed");
                Err(ApiError::new(ErrorCode::RuntimeError, "the host could not count tokens; its log has the reason"))
            })
        };
        let call = Call::read("models.count-tokens", digest).resource(model_id.as_str()).bytes(bytes);
        run.pass(call, allowed, effect).await.outcome
    }
}

fn many(what: &str, count: usize, limit: usize) -> Result<(), ApiError> {
    if count == 0 {
        return Err(ApiError::invalid_argument(format!("there are no {what}")));
    }
    if count > limit {
        let message = format!("{count} {what} in one call; the limit is {limit}: ask in several");
        return Err(ApiError::new(ErrorCode::PayloadTooLarge, message));
    }
    Ok(())
}

/// A response that streams.
struct Responses {
    calls: RunCalls,
    model_id: String,
    /// The request of an earlier execution, sent again if the guest did not receive the whole answer.
    request: Option<ChatRequest>,
    /// `None` until the request is sent again.
    stream: Option<ModelStream>,
    /// Until its end is recorded.
    open_call: Option<OpenCall>,
    received: ReceivedAnswer,
}

/// The part of an answer from an earlier execution that the guest has received.
#[derive(Default)]
struct ReceivedAnswer {
    text: String,
    reasoning: String,
}

impl ReceivedAnswer {
    fn note(&mut self, chunks: &[ModelChunk]) {
        for chunk in chunks {
            match chunk {
                ModelChunk::Text(text) => self.text.push_str(text),
                ModelChunk::Reasoning(text) => self.reasoning.push_str(text),
                ModelChunk::Done(_) => {}
            }
        }
    }

    /// Leaves out of an answer that is given again what the guest has already.
    fn skip(&mut self, chunks: Vec<ModelChunk>) -> Result<Vec<ModelChunk>, ApiError> {
        let mut left = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            match chunk {
                ModelChunk::Text(text) => left.extend(skipped(&mut self.text, text)?.map(ModelChunk::Text)),
                ModelChunk::Reasoning(text) => left.extend(skipped(&mut self.reasoning, text)?.map(ModelChunk::Reasoning)),
                ModelChunk::Done(response) if self.text.is_empty() && self.reasoning.is_empty() => {
                    left.push(ModelChunk::Done(response));
                }
                ModelChunk::Done(_) => return Err(interrupted()),
            }
        }
        Ok(left)
    }
}

/// The rest of `text` after `given`. Fails if the new answer begins differently, because the guest cannot continue such an
/// answer.
fn skipped(received: &mut String, text: String) -> Result<Option<String>, ApiError> {
    if let Some(rest) = received.strip_prefix(text.as_str()) {
        *received = rest.to_owned();
        return Ok(None);
    }
    let rest = text.strip_prefix(received.as_str()).ok_or_else(interrupted)?.to_owned();
    received.clear();
    Ok(Some(rest))
}

/// The host has stopped in the middle of an answer, and it could not be had again.
fn interrupted() -> ApiError {
    ApiError {
        details: Some(json!({ "code": "response_interrupted" })),
        ..ApiError::retryable(
            ErrorCode::RuntimeError,
            "the host stopped while the model answered, and the repeated request had another answer: make a new request",
        )
    }
}

/// The outcome of the next piece, for the record; `None` while the answer continues.
fn ending(outcome: &Result<Vec<ModelChunk>, ApiError>) -> Option<Result<(&str, Option<&TokenUsage>), &ApiError>> {
    match outcome {
        Err(error) => Some(Err(error)),
        Ok(chunks) => match chunks.last() {
            Some(ModelChunk::Done(response)) => Some(Ok((response.finish_reason.as_str(), response.usage.as_ref()))),
            _ => None,
        },
    }
}

impl Responses {
    /// The next chunks of the answer. Sends the request again if an earlier execution began the answer.
    async fn chunks(&mut self) -> Result<Vec<ModelChunk>, ApiError> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => {
                    let Some(request) = self.request.take() else { return Ok(Vec::new()) };
                    let run = &self.calls.run;
                    let model = self.calls.model(&self.model_id, ModelOperation::Stream)?;
                    let request = self.calls.chat_request(request)?;
                    let deadline = run.deadline.at();
                    let bounds = self.open_call.as_ref().map_or_else(|| deadline.into(), OpenCall::bounds);
                    let stream = model.stream(&request, &self.calls.artifacts(), bounds).await?;
                    self.stream.insert(stream)
                }
            };
            let chunks = stream.chunks().await?;
            let came = !chunks.is_empty();
            let left = self.received.skip(chunks)?;
            if !left.is_empty() || !came {
                return Ok(left);
            }
        }
    }
}

impl ResponseStream for Responses {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<ModelChunk>, ApiError>> {
        Box::pin(async move {
            let run = Arc::clone(&self.calls.run);
            let model_id = self.model_id.clone();
            let effect = async |ticket| {
                let outcome = self.chunks().await;
                run.settle(ticket, &outcome).await?;
                if let (Some(open_call), Ok(chunks)) = (&self.open_call, &outcome)
                    && let Some(ModelChunk::Done(response)) = chunks.last()
                {
                    spans::record_answer(open_call.span(), &response.message);
                }
                if let Some((ended, open_call)) = ending(&outcome).and_then(|ended| Some((ended, self.open_call.take()?))) {
                    open_call.end(CallOutcome::Chat(ended)).await;
                }
                outcome
            };
            let call = Call::piece(NEXT, run.journal.digest(&())).resource(model_id.as_str());
            let passed = run.pass(call, || Ok(()), effect).await;
            if passed.past.is_none() {
                return passed.outcome;
            }
            if let Ok(chunks) = &passed.outcome {
                self.received.note(chunks);
            }
            if ending(&passed.outcome).is_some() {
                self.request = None;
                if let Some(open_call) = self.open_call.take() {
                    open_call.ended_before();
                }
            }
            passed.outcome
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ModelChunk {
        ModelChunk::Text(text.to_owned())
    }

    #[test]
    fn skipped_text_is_exact_for_every_split() {
        let mut received = ReceivedAnswer::default();
        received.note(&[text("ab"), ModelChunk::Reasoning("x".into()), text("cd")]);
        assert_eq!(
            received.skip(vec![ModelChunk::Reasoning("xy".into()), text("abc")]).unwrap(),
            [ModelChunk::Reasoning("y".into())]
        );
        assert_eq!(received.skip(vec![text("def"), text("g")]).unwrap(), [text("ef"), text("g")]);
    }

    #[test]
    fn another_answer_is_not_gone_on_with() {
        let mut received = ReceivedAnswer::default();
        received.note(&[text("abcd")]);
        assert_eq!(received.skip(vec![text("abX")]).unwrap_err().details.unwrap()["code"], "response_interrupted");
        let response = ModelResponse {
            message: serde_json::from_value(json!({ "role": "assistant", "content": "ab" })).unwrap(),
            finish_reason: "stop".into(),
            usage: None,
        };
        assert!(received.skip(vec![ModelChunk::Done(response)]).is_err(), "an answer that ends before what was given");
    }
}
