//! Converse of Amazon Bedrock: a stream as the provider documents it (`wire`), the requests, and streams that are wrong.

use super::{
    forms::{OnePicture, conversation, model, parallel_conversation, says_it},
    *,
};

/// Messages in the event stream encoding of AWS, with the padding (`p`) that the provider adds.
const BEDROCK: &[u8] = include_bytes!("wire/bedrock.bin");
const MEDIA_TYPE: &str = "application/vnd.amazon.eventstream";
const USAGE: TokenUsage = TokenUsage { input: 2_125, output: 89, cached_input: Some(2_000), reasoning: None };

fn bedrock(server: &Server) -> Arc<Model> {
    model(server, ProviderKind::Bedrock, |_| {})
}

/// A message of a stream with these headers.
fn framed(headers: &[(&str, &str)], payload: &str) -> Vec<u8> {
    let text = |(name, value): &(&str, &str)| {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), &[7], &length, value.as_bytes()].concat()
    };
    let headers: Vec<u8> = headers.iter().flat_map(text).collect();
    let length = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
    let mut message = [length(16 + headers.len() + payload.len()), length(headers.len())].concat();
    message.extend(crc32fast::hash(&message).to_be_bytes());
    message.extend(headers);
    message.extend(payload.as_bytes());
    message.extend(crc32fast::hash(&message).to_be_bytes());
    message
}

fn happens(kind: &str, body: Value) -> Vec<u8> {
    framed(&[(":event-type", kind), (":content-type", "application/json"), (":message-type", "event")], &body.to_string())
}

fn exception(kind: &str) -> Vec<u8> {
    framed(&[(":exception-type", kind), (":message-type", "exception")], r#"{"message":"x"}"#)
}

fn said(text: &str) -> Vec<u8> {
    happens("contentBlockDelta", json!({ "contentBlockIndex": 0, "delta": { "text": text } }))
}

fn stopped(reason: &str) -> Vec<u8> {
    happens("messageStop", json!({ "stopReason": reason }))
}

/// A server that answers with these pieces.
async fn says(pieces: Vec<Vec<u8>>) -> Server {
    Server::always(move || {
        let pieces: Vec<Result<Vec<u8>, Infallible>> = pieces.iter().cloned().map(Ok).collect();
        respond(200, MEDIA_TYPE, Body::from_stream(stream::iter(pieces)))
    })
    .await
}

#[tokio::test]
async fn bedrock_is_spoken_to_in_its_words() {
    let server = says(BEDROCK.chunks(7).map(<[u8]>::to_vec).collect()).await;
    let model = model(&server, ProviderKind::Bedrock, |config| {
        config.model = Some("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.claude-v1:0".into());
        config.prompt_cache_key = Some(true);
    });
    let mut request = parallel_conversation();
    let more = json!({ "temperature": 0.5, "top_k": 3, "prompt_cache_key": "k",
        "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": "object" } } } });
    request.extra_args.extend(more.as_object().unwrap().clone());
    says_it(&model, &request, USAGE).await;
    let seen = server.last();
    assert_eq!(seen.path, "/v1/model/arn:aws:bedrock:eu-west-1:1:inference-profile%2Feu.claude-v1:0/converse-stream");
    assert_eq!(seen.headers["authorization"], format!("Bearer {CANARY}"));
    assert_eq!(seen.headers["accept"], MEDIA_TYPE);
    let point = json!({ "cachePoint": { "type": "default" } });
    assert_eq!(
        seen.body,
        json!({
            "system": [{ "text": "Be brief." }, point],
            "messages": [
                { "role": "user", "content": [{ "text": "Weather?" }] },
                { "role": "assistant", "content": [
                    { "toolUse": { "toolUseId": "call_1", "name": "weather_now", "input": { "city": "Bergen" } } },
                ] },
                { "role": "user", "content": [
                    { "toolResult": { "toolUseId": "call_1", "content": [{ "text": "rain" }] } },
                    { "text": "and here?" },
                    { "image": { "format": "png", "source": { "bytes": "cG5n" } } },
                    point,
                ] },
            ],
            "toolConfig": {
                "tools": [{ "toolSpec": { "name": "weather_now", "description": "The weather",
                    "inputSchema": { "json": { "type": "object" } } } }],
                "toolChoice": { "any": {} },
            },
            "inferenceConfig": { "temperature": 0.5, "maxTokens": 500, "stopSequences": ["END"] },
            "outputConfig": { "textFormat": { "type": "json_schema", "structure": {
                "jsonSchema": { "name": "a", "schema": "{\"type\":\"object\"}" } } } },
            "additionalModelRequestFields": { "top_k": 3 },
        })
    );
}

#[tokio::test]
async fn thoughts_that_were_not_kept_are_not_promised_to_bedrock_and_tools_that_were_called_are_declared() {
    let server = says(vec![BEDROCK.to_vec()]).await;
    let model = model(&server, ProviderKind::Bedrock, |config| {
        let defaults = json!({ "thinking": { "type": "adaptive" }, "guardrailConfig": { "guardrailIdentifier": "g" } });
        config.defaults = defaults.as_object().unwrap().clone();
    });
    let mut request = parallel_conversation();
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    let body = server.last().body;
    assert_eq!(body["additionalModelRequestFields"], json!({ "thinking": { "type": "adaptive" } }));
    assert_eq!(body["guardrailConfig"], json!({ "guardrailIdentifier": "g" }));
    assert!(!body.to_string().contains("cachePoint"), "the model is not known to take points: {body}");
    // The request continues with the result of a tool, and has no tools any more.
    request.messages.pop();
    request.tools.clear();
    request.messages.insert(0, message(Role::User, " \n"));
    model.invoke(&request, &OnePicture, soon()).await.unwrap();
    let body = server.last().body;
    assert_eq!(body["additionalModelRequestFields"], json!({}));
    let declared =
        json!({ "tools": [{ "toolSpec": { "name": "weather_now", "inputSchema": { "json": { "type": "object" } } } }] });
    assert_eq!(body["toolConfig"], declared);
    assert_eq!(body["messages"][0], json!({ "role": "user", "content": [{ "text": "Weather?" }] }), "blank texts are refused");
}

#[tokio::test]
async fn what_bedrock_cannot_be_asked_is_refused_before_a_request() {
    let server = says(vec![BEDROCK.to_vec()]).await;
    let model = bedrock(&server);
    let mut none = parallel_conversation();
    none.extra_args.insert("tool_choice".into(), json!("none"));
    for (request, argument) in [(conversation(), "parallel_tool_calls"), (none, "tool_choice")] {
        let (error, category) = failed(model.invoke(&request, &OnePicture, soon()).await);
        assert_eq!((error.code, category.as_str()), (ErrorCode::InvalidArgument, "extra_argument_refused"));
        assert!(error.message.contains(argument), "{}", error.message);
    }
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn ends_and_failures_of_bedrock_have_the_names_of_all_providers() {
    let damaged = |mut message: Vec<u8>| {
        let last = message.len() - 6;
        message[last] ^= 1;
        message
    };
    let usage = || happens("metadata", json!({ "usage": { "inputTokens": 5, "outputTokens": 1 } }));
    let error = framed(&[(":message-type", "error"), (":error-code", "InternalError"), (":error-message", "x")], "");
    for (pieces, expect) in [
        (vec![said("a"), stopped("end_turn"), usage()], Ok("stop")),
        (vec![said("a"), stopped("stop_sequence")], Ok("stop")),
        (vec![said("a"), stopped("max_tokens"), usage(), said("b")], Ok("length")),
        (vec![said("a"), stopped("guardrail_intervened")], Ok("content-filter")),
        (vec![happens("later", json!([1])), happens("contentBlockDelta", json!(3)), stopped("other")], Ok("other")),
        (vec![said("a")], Err(("stream_interrupted", true))),
        (vec![said("a"), stopped("end_turn")[..40].to_vec()], Err(("stream_interrupted", true))),
        (vec![said("a"), stopped("malformed_tool_use")], Err(("invalid_tool_call", true))),
        (vec![said("a"), stopped("malformed_model_output")], Err(("provider_error", false))),
        (vec![said("a"), exception("throttlingException")], Err(("provider_rate_limited", true))),
        (vec![said("a"), exception("modelStreamErrorException")], Err(("provider_unavailable", true))),
        (vec![said("a"), exception("validationException")], Err(("provider_refused", false))),
        (vec![exception("newException")], Err(("provider_error", false))),
        (vec![error], Err(("provider_error", true))),
        (vec![said("a"), damaged(stopped("end_turn"))], Err(("invalid_response", false))),
        (vec![b"HTTP is no stream of messages".to_vec()], Err(("invalid_response", false))),
        (vec![framed(&[(":event-type", "messageStop")], "no JSON")], Err(("invalid_response", false))),
    ] {
        let shown = format!("{:?}", pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect::<Vec<_>>());
        let server = says(pieces).await;
        match (invoke(&bedrock(&server)).await, expect) {
            (Ok(response), Ok(reason)) => assert_eq!(response.finish_reason, reason, "{shown}"),
            (Err(error), Err(expect)) => assert_eq!((error.category(), error.retryable), expect, "{shown}"),
            (outcome, _) => panic!("{shown}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn an_answer_of_bedrock_is_bounded_and_has_no_key_in_it() {
    let small = |server: &Server| model(server, ProviderKind::Bedrock, |config| config.max_response_bytes = 10_000);
    let server = says(vec![said(&"x".repeat(1_000)); 40]).await;
    assert_eq!(failed(invoke(&small(&server)).await).1, "response_too_large");
    let server = says(vec![said(&"x".repeat(20_000))]).await;
    assert_eq!(failed(invoke(&small(&server)).await).1, "response_too_large");
    // Messages without content, without end.
    let nothing = happens("messageStart", json!({ "p": "x".repeat(9_000) }));
    let server = says(vec![nothing; 200]).await;
    assert_eq!(failed(invoke(&small(&server)).await).1, "response_too_large");

    let server = says(CANARY.chars().map(|c| said(&c.to_string())).chain([stopped("end_turn")]).collect()).await;
    assert_eq!(invoke(&bedrock(&server)).await.unwrap().message.text(), "[secret]");
    let error = framed(&[(":message-type", "error"), (":error-code", CANARY), (":error-message", CANARY)], "");
    let server = says(vec![error]).await;
    failed(invoke(&bedrock(&server)).await);

    // Errors in place of an answer, and a server that does not stream.
    for (status, message, expect) in [
        (403, format!("The key {CANARY} is not valid"), "provider_unauthorized"),
        (400, "The provided model identifier is invalid.".into(), "model_not_found"),
        (400, "Input is too long for requested model.".into(), "context_length_exceeded"),
        (424, "x".into(), "provider_unavailable"),
        (200, "x".into(), "invalid_response"),
    ] {
        let server = Server::always(move || json_response(status, &json!({ "message": message }))).await;
        assert_eq!(failed(invoke(&bedrock(&server)).await).1, expect, "{status}");
    }
}

#[tokio::test]
async fn an_access_key_is_no_key_of_bedrock() {
    let mut config = config("http://127.0.0.1:1", ModelType::Llm);
    config.provider = ProviderKind::Bedrock;
    let Some(SecretRef::File(path)) = &config.api_key else { panic!("{:?}", config.api_key) };
    std::fs::write(path, "AKIAIOSFODNN7EXAMPLE").unwrap();
    let models = Models::open(std::slice::from_ref(&config)).unwrap();
    std::fs::remove_file(path).unwrap();
    let problem = models.get("chat").unwrap().problem().unwrap().to_owned();
    assert!(problem.contains("API key of Amazon Bedrock") && !problem.contains("AKIA"), "{problem}");
}

/// The signature of a request, by the rules of AWS (Signature Version 4): an own calculation, from what the server has seen.
fn signature_of(seen: &SeenRequest, secret: &str, scope: [&str; 4], signed: &str) -> String {
    use hmac::{Hmac, Mac};
    use sha2::{Digest, Sha256};
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mac = |key: &[u8], text: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    };
    let header = |name: &str| seen.headers[name].to_str().unwrap().to_owned();
    let headers: String = signed.split(';').map(|name| format!("{name}:{}\n", header(name))).collect();
    // What is escaped in the path is escaped again.
    let path = seen.path.replace('%', "%25").replace(':', "%3A");
    let canonical = format!("POST\n{path}\n\n{headers}\n{signed}\n{}", hex(&Sha256::digest(&seen.bytes)));
    let scope_text = scope.join("/");
    let text = format!("AWS4-HMAC-SHA256\n{}\n{scope_text}\n{}", header("x-amz-date"), hex(&Sha256::digest(canonical)));
    let key = scope.iter().fold(format!("AWS4{secret}").into_bytes(), |key, part| mac(&key, part));
    hex(&mac(&key, &text))
}

#[tokio::test]
async fn requests_are_signed_with_an_access_key_and_nothing_of_it_comes_back() {
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const SESSION: &str = "session-token-canary";
    let dir = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        SecretRef::File(dir.path().join(name))
    };
    let server = Server::always(|| json_response(403, &json!({ "message": format!("not {SECRET} nor {SESSION}") }))).await;
    let mut config = config(&server.url, ModelType::Llm);
    config.provider = ProviderKind::Bedrock;
    config.model = Some("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.claude-v1:0".into());
    config.api_key = None;
    config.access_key = Some(AccessKey {
        id: secret("id", "AKIAIOSFODNN7EXAMPLE"),
        secret: secret("secret", SECRET),
        session_token: Some(secret("session", SESSION)),
        region: Some("eu-west-1".into()),
    });
    assert_eq!(config.check(), Ok(()));
    let model = open(config);
    let (error, _) = failed(invoke(&model).await);
    assert!(!format!("{error:?}").contains(SECRET) && !format!("{error:?}").contains(SESSION), "{error:?}");
    let seen = server.last();
    let authorization = seen.headers["authorization"].to_str().unwrap().to_owned();
    let date = seen.headers["x-amz-date"].to_str().unwrap()[..8].to_owned();
    let scope = [date.as_str(), "eu-west-1", "bedrock", "aws4_request"];
    let (credential, rest) = authorization.split_once(", SignedHeaders=").unwrap();
    let (signed, signature) = rest.split_once(", Signature=").unwrap();
    assert_eq!(credential, format!("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/{}", scope.join("/")));
    assert!(["content-type", "host", "x-amz-date", "x-amz-security-token"].iter().all(|name| signed.contains(name)), "{signed}");
    assert_eq!(seen.headers["x-amz-security-token"], SESSION);
    assert_eq!(signature, signature_of(&seen, SECRET, scope, signed));
}
