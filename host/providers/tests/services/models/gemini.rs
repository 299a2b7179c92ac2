//! `generateContent` of Gemini: a stream as the provider documents it (`wire`), the requests, signatures of thoughts, and embeddings.

use super::{
    forms::{OnePicture, conversation, model, parallel_conversation, recorded, says_it},
    *,
};

const GEMINI: &str = include_str!("wire/gemini.sse");
const USAGE: TokenUsage = TokenUsage { input: 2_125, output: 89, cached_input: Some(2_000), reasoning: Some(40) };

fn gemini(server: &Server, name: &'static str) -> Arc<Model> {
    model(server, ProviderKind::Gemini, |config| config.model = Some(name.into()))
}

/// A server that answers with these events.
async fn says(pieces: Vec<Value>) -> Server {
    Server::always(move || events(pieces.iter().map(event))).await
}

fn candidate(part: Value) -> Value {
    json!({ "candidates": [{ "content": { "parts": [part], "role": "model" }, "index": 0 }] })
}

fn finished(reason: &str) -> Value {
    json!({ "candidates": [{ "finishReason": reason, "index": 0 }], "usageMetadata": { "promptTokenCount": 5, "candidatesTokenCount": 1 } })
}

#[tokio::test]
async fn gemini_is_spoken_to_in_its_words() {
    let server = recorded(GEMINI).await;
    let mut request = parallel_conversation();
    let more = json!({ "temperature": 0.5, "top_k": 3, "reasoning_effort": "low", "prompt_cache_key": "k",
        "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": "object" } } } });
    request.extra_args.extend(more.as_object().unwrap().clone());
    let model = gemini(&server, "gemini-3-pro");
    says_it(&model, &request, USAGE).await;
    let seen = server.last();
    assert_eq!((seen.path.as_str(), seen.query.as_deref()), ("/v1/models/gemini-3-pro:streamGenerateContent", Some("alt=sse")));
    assert_eq!(seen.headers["x-goog-api-key"], CANARY);
    assert!(!seen.headers.contains_key("authorization"));
    assert_eq!(
        seen.body,
        json!({
            "systemInstruction": { "parts": [{ "text": "Be brief." }] },
            "contents": [
                { "role": "user", "parts": [{ "text": "Weather?" }] },
                { "role": "model", "parts": [
                    { "functionCall": { "id": "call.1", "name": "weather_now", "args": { "city": "Bergen" } } },
                ] },
                { "role": "user", "parts": [
                    { "functionResponse": { "id": "call.1", "name": "weather_now", "response": { "output": "rain" } } },
                    { "text": "and here?" },
                    { "inlineData": { "mimeType": "image/png", "data": "cG5n" } },
                ] },
            ],
            "tools": [{ "functionDeclarations": [
                { "name": "weather_now", "description": "The weather", "parametersJsonSchema": { "type": "object" } },
            ] }],
            "toolConfig": { "functionCallingConfig": { "mode": "ANY" } },
            "generationConfig": {
                "temperature": 0.5,
                "topK": 3,
                "maxOutputTokens": 500,
                "stopSequences": ["END"],
                "thinkingConfig": { "thinkingLevel": "low", "includeThoughts": true },
                "responseMimeType": "application/json",
                "responseJsonSchema": { "type": "object" },
            },
        })
    );
}

#[tokio::test]
async fn defaults_of_the_operator_stay_where_a_runner_says_nothing_else() {
    let server = recorded(GEMINI).await;
    let model = model(&server, ProviderKind::Gemini, |config| {
        config.model = Some("tunedModels/gemini-2.5-flash".into());
        let defaults = json!({
            "generationConfig": { "temperature": 1.0, "thinkingConfig": { "thinkingBudget": 0 } },
            "safetySettings": [{ "category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE" }],
        });
        config.defaults = defaults.as_object().unwrap().clone();
    });
    let mut request = request();
    let args = json!({ "temperature": 0, "reasoning_effort": "high",
        "tool_choice": { "type": "function", "function": { "name": "weather/now" } } });
    request.extra_args = args.as_object().unwrap().clone();
    model.invoke(&request, &NoArtifacts, soon()).await.unwrap();
    let seen = server.last();
    assert_eq!(seen.path, "/v1/tunedModels/gemini-2.5-flash:streamGenerateContent");
    let thinking = json!({ "thinkingBudget": 24_576, "includeThoughts": true });
    assert_eq!(seen.body["generationConfig"], json!({ "temperature": 0, "thinkingConfig": thinking }));
    assert_eq!(seen.body["safetySettings"][0]["threshold"], "BLOCK_NONE");
    assert!(seen.body.get("toolConfig").is_none(), "without tools there is no choice: {}", seen.body);

    request.tools = conversation().tools;
    model.invoke(&request, &NoArtifacts, soon()).await.unwrap();
    let choice = json!({ "mode": "ANY", "allowedFunctionNames": ["weather_now"] });
    assert_eq!(server.last().body["toolConfig"]["functionCallingConfig"], choice);
}

#[tokio::test]
async fn a_signature_comes_back_with_its_call_and_a_call_without_one_says_so() {
    let server = recorded(GEMINI).await;
    let model = gemini(&server, "gemini-3-pro");
    let mut request = parallel_conversation();
    let answer = model.invoke(&request, &OnePicture, soon()).await.unwrap().message;
    let call = answer.tool_calls[0].clone();
    assert_eq!((call.call_id.as_str(), answer.text().as_str()), ("gp737npz", "Let me look."));
    // A runner continues with the message as it got it.
    let mut result = message(Role::Tool, "sun");
    result.tool_call_id = Some(call.call_id.clone());
    request.messages.extend([answer.clone(), result]);
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    let wire_call = json!({ "id": "gp737npz", "name": "weather_now", "args": { "city": "Oslo" } });
    let signed = |signature: &str| {
        json!({ "role": "model", "parts": [
            { "text": "Let me look." },
            { "functionCall": wire_call, "thoughtSignature": signature },
        ] })
    };
    let contents = server.last().body["contents"].clone();
    assert_eq!(contents[3], signed("Es8CCswCAb4example"));
    assert_eq!(contents[4]["parts"][0]["functionResponse"]["response"], json!({ "output": "sun" }));
    assert_eq!(contents[1]["parts"][0].get("thoughtSignature"), None, "this call is from before the last question");

    // Another provider is not told of it.
    let other = Server::always(hello).await;
    chat(&other).invoke(&request, &OnePicture, soon()).await.unwrap();
    let body = other.last().body;
    assert!(!body.to_string().contains("Es8CCswCAb4example") && !body.to_string().contains("left out"), "{body}");

    // A runner that kept the text and the calls alone, and an older model that signs nothing.
    let kept = request.messages.len() - 2;
    request.messages[kept] = Message { content: vec![ContentPart::Text(answer.text())], ..answer };
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    assert_eq!(server.last().body["contents"][3], signed("skip_thought_signature_validator"));
    gemini(&server, "gemini-2.5-flash").invoke(&request, &OnePicture, soon()).await.unwrap();
    assert!(!server.last().body.to_string().contains("thoughtSignature"));
}

#[tokio::test]
async fn calls_at_once_are_calls_of_their_own() {
    let call = |city: &str| json!({ "functionCall": { "name": "weather_now", "args": { "city": city } } });
    let mut both = candidate(call("Oslo"));
    both["candidates"][0]["content"]["parts"].as_array_mut().unwrap().push(call("Bergen"));
    let third = candidate(json!({ "functionCall": { "name": "now" } }));
    let server = says(vec![both, third, finished("STOP")]).await;
    let response = invoke(&gemini(&server, "gemini-2.5-flash")).await.unwrap();
    let calls = response.message.tool_calls;
    let parameters: Vec<Value> = calls.iter().map(|call| call.parameters.clone()).collect();
    assert_eq!(parameters, [json!({ "city": "Oslo" }), json!({ "city": "Bergen" }), json!({})]);
    let ids: std::collections::HashSet<&str> = calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!((ids.len(), response.finish_reason.as_str()), (3, "tool-calls"));
}

#[tokio::test]
async fn what_gemini_cannot_be_asked_is_refused_before_a_request() {
    let server = recorded(GEMINI).await;
    let model = gemini(&server, "gemini-3-pro");
    let (error, category) = failed(model.invoke(&conversation(), &OnePicture, soon()).await);
    assert_eq!((error.code, category.as_str()), (ErrorCode::InvalidArgument, "extra_argument_refused"));
    assert!(error.message.contains("parallel_tool_calls"), "{}", error.message);
    let mut orphan = request();
    let mut result = message(Role::Tool, "12");
    result.tool_call_id = Some("gone".into());
    orphan.messages.push(result);
    let (error, _) = failed(model.invoke(&orphan, &NoArtifacts, soon()).await);
    assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("`gone`"), "{error}");
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn ends_and_failures_of_gemini_have_the_names_of_all_providers() {
    let said = || candidate(json!({ "text": "a" }));
    let error = |code: u16, status: &str| json!({ "error": { "code": code, "message": "x", "status": status } });
    for (pieces, expect) in [
        (vec![said(), finished("STOP")], Ok("stop")),
        // Older models repeat the reason with each piece.
        (vec![said(), finished("STOP"), finished("STOP")], Ok("stop")),
        (vec![said(), finished("MAX_TOKENS")], Ok("length")),
        (vec![said(), finished("SAFETY")], Ok("content-filter")),
        (vec![finished("RECITATION")], Ok("content-filter")),
        (vec![said(), finished("OTHER")], Ok("other")),
        (
            vec![json!({ "promptFeedback": { "blockReason": "SAFETY" }, "usageMetadata": { "promptTokenCount": 4 } })],
            Ok("content-filter"),
        ),
        (vec![said()], Err(("stream_interrupted", true))),
        (vec![json!([]), json!({ "candidates": 3 })], Err(("stream_interrupted", true))),
        (vec![said(), finished("MALFORMED_FUNCTION_CALL")], Err(("invalid_tool_call", true))),
        (vec![said(), finished("MISSING_THOUGHT_SIGNATURE")], Err(("provider_error", false))),
        (vec![said(), error(503, "UNAVAILABLE")], Err(("provider_unavailable", true))),
        (vec![said(), error(429, "RESOURCE_EXHAUSTED")], Err(("provider_rate_limited", true))),
        (vec![candidate(json!({ "functionCall": { "args": {} } })), finished("STOP")], Err(("invalid_tool_call", true))),
        (
            vec![candidate(json!({ "functionCall": { "name": "a", "args": [] } })), finished("STOP")],
            Err(("invalid_tool_call", true)),
        ),
    ] {
        let shown = format!("{pieces:?}");
        let server = says(pieces).await;
        match (invoke(&gemini(&server, "gemini-3-pro")).await, expect) {
            (Ok(response), Ok(reason)) => assert_eq!(response.finish_reason, reason, "{shown}"),
            (Err(error), Err(expect)) => assert_eq!((error.category(), error.retryable), expect, "{shown}"),
            (outcome, _) => panic!("{shown}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn an_answer_of_gemini_is_bounded_and_has_no_key_in_it() {
    let endless = candidate(json!({ "functionCall": { "name": "a", "args": {} }, "thoughtSignature": "x".repeat(1_000) }));
    let server = says(vec![endless; 40]).await;
    let model = model(&server, ProviderKind::Gemini, |config| config.max_response_bytes = 10_000);
    assert_eq!(failed(invoke(&model).await).1, "response_too_large");

    let call = json!({ "functionCall": { "name": CANARY, "args": { "key": CANARY } }, "thoughtSignature": CANARY });
    let server = says(vec![candidate(json!({ "text": CANARY })), candidate(call), finished("STOP")]).await;
    let response = invoke(&gemini(&server, "gemini-3-pro")).await.unwrap();
    assert!(!format!("{response:?}").contains("canary"), "{response:?}");

    let broken = json!({ "candidates": [{ "finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": CANARY }] });
    let server = says(vec![broken]).await;
    failed(invoke(&gemini(&server, "gemini-3-pro")).await);

    // A key that is not known is a key of the operator, with status 400.
    let refused =
        json!({ "error": { "code": 400, "message": format!("API key not valid: {CANARY}"), "status": "INVALID_ARGUMENT" } });
    let server = Server::always(move || json_response(400, &refused)).await;
    assert_eq!(failed(invoke(&gemini(&server, "gemini-3-pro")).await).1, "provider_unauthorized");
}

#[tokio::test]
async fn gemini_says_in_the_body_when_it_wants_to_be_asked_again() {
    let error =
        json!({ "error": { "code": 429, "message": "check your plan and billing", "details": [{ "retryDelay": "0.2s" }] } });
    let server = Server::start(move |number, _| {
        let response = if number == 0 { json_response(429, &error) } else { events([GEMINI.to_owned()]) };
        std::future::ready(response).boxed()
    })
    .await;
    let model = model(&server, ProviderKind::Gemini, |config| config.max_retries = 1);
    assert_eq!(invoke(&model).await.unwrap().message.text(), "Let me look.");
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn embeddings_of_gemini_come_in_batches_and_in_order() {
    let server = Server::start(|_, seen| {
        let requests = seen.body["requests"].as_array().unwrap().clone();
        let number = |request: &Value| request["content"]["parts"][0]["text"].as_str().unwrap().parse::<f32>().unwrap();
        let vectors: Vec<Value> = requests.iter().map(|request| json!({ "values": [number(request), 0.5] })).collect();
        std::future::ready(json_response(200, &json!({ "embeddings": vectors }))).boxed()
    })
    .await;
    let mut config = config(&server.url, ModelType::Embedding);
    config.provider = ProviderKind::Gemini;
    config.defaults = json!({ "outputDimensionality": 2 }).as_object().unwrap().clone();
    let model = open(config);
    let texts: Vec<String> = (0..150).map(|number: u32| number.to_string()).collect();
    let embeddings = model.embed(&texts, soon()).await.unwrap();
    let expect: Vec<Vec<f32>> = (0..150_u16).map(|number| vec![f32::from(number), 0.5]).collect();
    assert_eq!((embeddings.vectors, embeddings.usage, server.requests()), (expect, None, 2));
    let seen = server.last();
    assert_eq!((seen.path.as_str(), seen.query), ("/v1/models/inner-name:batchEmbedContents", None));
    let first = json!({ "model": "models/inner-name", "content": { "parts": [{ "text": "100" }] }, "outputDimensionality": 2 });
    assert_eq!((seen.body["requests"].as_array().unwrap().len(), &seen.body["requests"][0]), (50, &first));

    for data in [json!([]), json!([{ "values": [1.0] }]), json!([{ "values": ["a"] }, { "values": [1.0] }]), json!("none")] {
        let body = json!({ "embeddings": data });
        let server = Server::always(move || json_response(200, &body)).await;
        let mut config = self::config(&server.url, ModelType::Embedding);
        config.provider = ProviderKind::Gemini;
        let (_, category) = failed(open(config).embed(&["a".into(), "b".into()], soon()).await);
        assert_eq!(category, "invalid_response", "{data}");
    }
}
