//! Messages of Anthropic and Responses of OpenAI: streams as the providers document them (`wire`), and the requests.

use agent_host_protocol::message::ToolCall;
use futures_util::future::BoxFuture;

use super::*;

const ANTHROPIC: &str = include_str!("wire/anthropic.sse");
const RESPONSES: &str = include_str!("wire/responses.sse");

pub(super) fn model(server: &Server, provider: ProviderKind, edit: impl FnOnce(&mut ModelConfig)) -> Arc<Model> {
    chat_with(server, |config| {
        config.provider = provider;
        config.max_retries = 0;
        edit(config);
    })
}

/// A server that answers with a recorded stream.
pub(super) async fn recorded(wire: &'static str) -> Server {
    Server::always(move || events([wire.to_owned()])).await
}

/// A picture of the run.
pub(super) struct OnePicture;

impl ArtifactSource for OnePicture {
    fn content<'a>(&'a self, _: &'a ArtifactRef, _: usize) -> BoxFuture<'a, Result<ArtifactContent, ApiError>> {
        Box::pin(async move { Ok(ArtifactContent { media_type: "image/png".into(), bytes: b"png".to_vec().into() }) })
    }
}

/// A conversation with all that a request can have.
pub(super) fn conversation() -> ModelRequest {
    let mut asking = message(Role::Assistant, "");
    asking.content.clear();
    asking.tool_calls =
        vec![ToolCall { call_id: "call.1".into(), tool_name: "weather/now".into(), parameters: json!({ "city": "Bergen" }) }];
    let mut result = message(Role::Tool, "rain");
    result.tool_call_id = Some("call.1".into());
    let mut shown = message(Role::User, "and here?");
    let picture = json!({ "artifact_id": "a1", "media_type": "image/png" });
    shown.content.push(ContentPart::Artifact(serde_json::from_value(picture).unwrap()));
    ModelRequest {
        messages: vec![message(Role::System, "Be brief."), message(Role::User, "Weather?"), asking, result, shown],
        tools: vec![ToolDefinition {
            name: "weather/now".into(),
            description: Some("The weather".into()),
            parameters: json!({ "type": "object" }),
        }],
        extra_args: json!({ "max_tokens": 500, "stop": "END", "tool_choice": "required", "parallel_tool_calls": false })
            .as_object()
            .unwrap()
            .clone(),
        session_key: Some("session".into()),
    }
}

/// The same, in which the model may make several calls at once.
pub(super) fn parallel_conversation() -> ModelRequest {
    let mut request = conversation();
    request.extra_args.remove("parallel_tool_calls");
    request
}

/// All recorded streams say the same.
pub(super) async fn says_it(model: &Model, request: &ModelRequest, usage: TokenUsage) {
    let mut stream = model.stream(request, &OnePicture, soon()).await.unwrap();
    let chunks = all(&mut stream).await.unwrap();
    let (last, pieces) = chunks.split_last().unwrap();
    let text_chunk = |text: &str| ModelChunk::Text(text.into());
    assert_eq!(pieces, [ModelChunk::Reasoning("They ask for the weather.".into()), text_chunk("Let me "), text_chunk("look.")]);
    let ModelChunk::Done(response) = last else { panic!("{last:?}") };
    assert_eq!((response.message.text().as_str(), response.finish_reason.as_str()), ("Let me look.", "tool-calls"));
    let call = &response.message.tool_calls[0];
    assert_eq!((call.tool_name.as_str(), &call.parameters), ("weather/now", &json!({ "city": "Oslo" })));
    assert_eq!((response.message.tool_calls.len(), response.usage), (1, Some(usage)));
}

#[tokio::test]
async fn anthropic_is_spoken_to_in_its_words() {
    let server = recorded(ANTHROPIC).await;
    let model = model(&server, ProviderKind::Anthropic, |config| config.prompt_cache_key = Some(true));
    says_it(&model, &conversation(), TokenUsage { input: 2_125, output: 89, cached_input: Some(2_000), reasoning: None }).await;
    let seen = server.last();
    assert_eq!((seen.path.as_str(), &seen.headers["x-api-key"]), ("/v1/messages", &CANARY.parse().unwrap()));
    assert!(seen.headers.contains_key("anthropic-version") && !seen.headers.contains_key("authorization"));
    let mark = json!({ "type": "ephemeral" });
    assert_eq!(
        seen.body,
        json!({
            "model": "inner-name",
            "system": [{ "type": "text", "text": "Be brief.", "cache_control": mark }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "Weather?" }] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "call_1", "name": "weather_now", "input": { "city": "Bergen" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "call_1", "content": "rain" },
                    { "type": "text", "text": "and here?" },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "cG5n" },
                      "cache_control": mark },
                ] },
            ],
            "tools": [{ "name": "weather_now", "description": "The weather", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "stop_sequences": ["END"],
            "max_tokens": 500,
            "stream": true,
        })
    );
}

#[tokio::test]
async fn thoughts_that_were_not_kept_are_not_promised_to_anthropic() {
    let server = recorded(ANTHROPIC).await;
    let model = model(&server, ProviderKind::Anthropic, |config| {
        config.defaults = json!({ "thinking": { "type": "adaptive" } }).as_object().unwrap().clone();
    });
    let mut request = conversation();
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    let body = server.last().body;
    assert_eq!(body["thinking"]["type"], "adaptive");
    assert!(!body.to_string().contains("cache_control"), "the server is not known to take marks: {body}");
    // The request continues with the result of a tool.
    request.messages.pop();
    request.extra_args.clear();
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    let body = server.last().body;
    assert_eq!((&body["thinking"], &body["max_tokens"]), (&Value::Null, &json!(8_192)));
}

#[tokio::test]
async fn responses_are_asked_for_in_the_words_of_openai() {
    let server = recorded(RESPONSES).await;
    let model = model(&server, ProviderKind::OpenaiResponses, |config| {
        config.prompt_cache_key = Some(true);
        config.defaults = json!({ "reasoning_effort": "low", "verbosity": "low" }).as_object().unwrap().clone();
    });
    let usage = TokenUsage { input: 2_125, output: 89, cached_input: Some(2_000), reasoning: Some(40) };
    says_it(&model, &conversation(), usage).await;
    let seen = server.last();
    assert_eq!(
        (seen.path.as_str(), &seen.headers["authorization"]),
        ("/v1/responses", &format!("Bearer {CANARY}").parse().unwrap())
    );
    assert_eq!(
        seen.body,
        json!({
            "model": "inner-name",
            "store": false,
            "input": [
                { "role": "system", "content": [{ "type": "input_text", "text": "Be brief." }] },
                { "role": "user", "content": [{ "type": "input_text", "text": "Weather?" }] },
                { "type": "function_call", "call_id": "call.1", "name": "weather_now", "arguments": "{\"city\":\"Bergen\"}" },
                { "type": "function_call_output", "call_id": "call.1", "output": "rain" },
                { "role": "user", "content": [
                    { "type": "input_text", "text": "and here?" },
                    { "type": "input_image", "image_url": "data:image/png;base64,cG5n" },
                ] },
            ],
            "tools": [{ "type": "function", "name": "weather_now", "description": "The weather",
                "parameters": { "type": "object" }, "strict": false }],
            "tool_choice": "required",
            "parallel_tool_calls": false,
            "prompt_cache_key": "session",
            "reasoning": { "effort": "low" },
            "text": { "verbosity": "low" },
            "stop": "END",
            "max_output_tokens": 500,
            "stream": true,
        })
    );
}

#[tokio::test]
async fn ends_and_failures_have_the_same_names_with_every_provider() {
    let sse = |pieces: &[Value]| pieces.iter().map(|piece| format!("data: {piece}\n\n")).collect::<String>();
    let delta = json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "a" } });
    let stop =
        |reason: &str| json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 2 } });
    let text_delta = json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "a" });
    let incomplete =
        |reason: &str| json!({ "type": "response.incomplete", "response": { "incomplete_details": { "reason": reason } } });
    for (provider, wire, expect) in [
        (ProviderKind::Anthropic, sse(&[delta.clone(), stop("max_tokens"), json!({ "type": "message_stop" })]), Ok("length")),
        (ProviderKind::Anthropic, sse(&[delta.clone(), stop("end_turn")]), Ok("stop")),
        (ProviderKind::Anthropic, sse(&[delta.clone(), stop("refusal"), json!({ "type": "message_stop" })]), Ok("refusal")),
        (ProviderKind::Anthropic, sse(std::slice::from_ref(&delta)), Err(("stream_interrupted", true))),
        (
            ProviderKind::Anthropic,
            sse(&[delta, json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } })]),
            Err(("provider_error", true)),
        ),
        (ProviderKind::OpenaiResponses, sse(&[text_delta.clone(), incomplete("max_output_tokens")]), Ok("length")),
        (ProviderKind::OpenaiResponses, sse(&[text_delta.clone(), incomplete("content_filter")]), Ok("content-filter")),
        (ProviderKind::OpenaiResponses, sse(std::slice::from_ref(&text_delta)), Err(("stream_interrupted", true))),
        (
            ProviderKind::OpenaiResponses,
            sse(&[
                json!({ "type": "response.refusal.delta", "delta": "No." }),
                json!({ "type": "response.completed", "response": {} }),
            ]),
            Ok("refusal"),
        ),
        (
            ProviderKind::OpenaiResponses,
            sse(&[
                text_delta,
                json!({ "type": "response.failed", "response": { "error": { "code": "server_error", "message": "x" } } }),
            ]),
            Err(("provider_error", true)),
        ),
    ] {
        let shown = format!("{provider:?} {wire}");
        let server = Server::always(move || events([wire.clone()])).await;
        let outcome = invoke(&model(&server, provider, |_| {})).await;
        match (outcome, expect) {
            (Ok(response), Ok(reason)) => assert_eq!(response.finish_reason, reason, "{shown}"),
            (Err(error), Err((category, retryable))) => {
                assert_eq!((error.category(), error.retryable), (category, retryable), "{shown}")
            }
            (outcome, _) => panic!("{shown}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_key_in_an_answer_and_an_answer_without_end_are_kept_back_in_every_form() {
    let leaks = format!(
        "data: {}\n\ndata: {}\n\n",
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": format!("it is {CANARY}.") } }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": {} }),
    );
    let server = Server::always(move || events([leaks.clone()])).await;
    let response = invoke(&model(&server, ProviderKind::Anthropic, |_| {})).await.unwrap();
    let said = response.message.text();
    assert!(!said.contains("canary") && said.starts_with("it is "), "{said}");

    let more = event(&json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "x".repeat(1_000) }));
    let server = Server::always(move || events((0..100).map(|_| more.clone()))).await;
    let (_, category) =
        failed(invoke(&model(&server, ProviderKind::OpenaiResponses, |config| config.max_response_bytes = 10_000)).await);
    assert_eq!(category, "response_too_large");

    // A server that answers with something else than a stream.
    let whole = Server::always(|| json_response(200, &json!({ "type": "message", "content": [] }))).await;
    let (_, category) = failed(invoke(&model(&whole, ProviderKind::Anthropic, |_| {})).await);
    assert_eq!(category, "invalid_response");
}
