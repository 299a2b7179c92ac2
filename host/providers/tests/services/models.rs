//! Models against a server that misbehaves: every way in which it does ends in its documented error, in time, and
//! without the key.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod bedrock;
mod embeddings;
mod failures;
mod fallback;
mod forms;
mod gemini;

use std::{
    convert::Infallible,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ApiError, ErrorCode,
    message::{ArtifactRef, ContentPart, Message, Role, TokenUsage, ToolCall},
    model::{ModelChunk, ModelRequest, ModelResponse, ModelType, ToolDefinition},
};
use agent_host_providers::{
    ArtifactContent, ArtifactSource,
    models::{AccessKey, Model, ModelConfig, ModelStream, Models, ProviderKind},
    secret::SecretRef,
};
use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, Uri},
    response::Response,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The key of every model here. The key must not appear in any output.
const CANARY: &str = "sk-canary-7f3a9b2e51";

/// Generous: a test fails by it only where something hangs.
const LONG: Duration = Duration::from_secs(30);

/// A request as the server saw it.
#[derive(Debug, Clone)]
struct SeenRequest {
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    bytes: Bytes,
    body: Value,
}

/// A server that answers as the test says.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl Server {
    /// `answer` gets the number of the request, from 0, and the request.
    async fn start(answer: impl Fn(usize, SeenRequest) -> BoxFuture<'static, Response> + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<SeenRequest>>> = Arc::default();
        let (answer, requests) = (Arc::new(answer), Arc::clone(&seen));
        let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let (path, query) = (uri.path().into(), uri.query().map(str::to_owned));
            let request = SeenRequest { path, query, headers, body: serde_json::from_slice(&body).unwrap(), bytes: body };
            let number = {
                let mut seen = requests.lock();
                seen.push(request.clone());
                seen.len() - 1
            };
            answer(number, request)
        });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, seen }
    }

    /// A server that always answers the same.
    async fn always(answer: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        Self::start(move |_, _| std::future::ready(answer()).boxed()).await
    }

    fn requests(&self) -> usize {
        self.seen.lock().len()
    }

    fn last(&self) -> SeenRequest {
        self.seen.lock().last().unwrap().clone()
    }
}

fn respond(status: u16, media_type: &str, body: impl Into<Body>) -> Response {
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", media_type)
        .body(body.into())
        .unwrap()
}

fn json_response(status: u16, body: &Value) -> Response {
    respond(status, "application/json", body.to_string())
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn text(text: &str) -> String {
    event(&json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }] }))
}

fn end(reason: &str) -> String {
    let finish = event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }));
    let usage = event(&json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 3 } }));
    format!("{finish}{usage}data: [DONE]\n\n")
}

/// A stream of these pieces.
fn events(pieces: impl IntoIterator<Item = String>) -> Response {
    let pieces: Vec<Result<String, Infallible>> = pieces.into_iter().map(Ok).collect();
    respond(200, "text/event-stream; charset=utf-8", Body::from_stream(stream::iter(pieces)))
}

fn hello() -> Response {
    events([text("Hello, "), text("world"), end("stop")])
}

/// A response of these pieces that never ends.
fn stalls_after(pieces: impl IntoIterator<Item = String>) -> Response {
    let pieces: Vec<Result<String, Infallible>> = pieces.into_iter().map(Ok).collect();
    respond(200, "text/event-stream", Body::from_stream(stream::iter(pieces).chain(stream::pending())))
}

/// The configuration of a model at a server, with the canary as its key.
fn config(url: &str, kind: ModelType) -> ModelConfig {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{CANARY}").unwrap();
    let (_, path) = file.keep().unwrap();
    let mut config = ModelConfig::new("chat", kind, ProviderKind::Openai);
    config.model = Some("inner-name".into());
    config.base_url = Some(url.into());
    config.api_key = Some(SecretRef::File(path));
    config
}

fn open(config: ModelConfig) -> Arc<Model> {
    let key = config.api_key.clone();
    let models = Models::open(std::slice::from_ref(&config)).unwrap();
    assert!(models.iter().all(|model| model.problem().is_none()));
    if let Some(SecretRef::File(path)) = key {
        std::fs::remove_file(path).unwrap();
    }
    assert!(!format!("{models:?}").contains("canary"));
    models.get(&config.id).unwrap()
}

fn chat(server: &Server) -> Arc<Model> {
    open(config(&server.url, ModelType::Llm))
}

fn chat_with(server: &Server, edit: impl FnOnce(&mut ModelConfig)) -> Arc<Model> {
    let mut config = config(&server.url, ModelType::Llm);
    edit(&mut config);
    open(config)
}

fn message(role: Role, text: &str) -> Message {
    Message { role, content: vec![ContentPart::Text(text.into())], name: None, tool_calls: vec![], tool_call_id: None }
}

fn request() -> ModelRequest {
    ModelRequest { messages: vec![message(Role::User, "hi")], ..ModelRequest::default() }
}

struct NoArtifacts;

impl ArtifactSource for NoArtifacts {
    fn content<'a>(&'a self, _: &'a ArtifactRef, _: usize) -> BoxFuture<'a, Result<ArtifactContent, ApiError>> {
        Box::pin(async move { Err(ApiError::new(ErrorCode::NotFound, "no such artifact")) })
    }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

async fn invoke(model: &Model) -> Result<ModelResponse, ApiError> {
    tokio::time::timeout(LONG * 2, model.invoke(&request(), &NoArtifacts, soon())).await.expect("a call hangs")
}

/// The error of a call, which must have neither the key nor an address in it; and its category.
#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, ApiError>) -> (ApiError, String) {
    let error = result.unwrap_err();
    let shown = format!("{error} {error:?} {} {:?}", serde_json::to_string(&error).unwrap(), error.details);
    assert!(!shown.contains("canary"), "{shown}");
    assert!(!shown.contains("127.0.0.1"), "{shown}");
    let category = error.details.as_ref().and_then(|details| details["code"].as_str()).unwrap_or_default().to_owned();
    (error, category)
}

async fn all(stream: &mut ModelStream) -> Result<Vec<ModelChunk>, (Vec<ModelChunk>, ApiError)> {
    let mut all = vec![];
    loop {
        match stream.chunks().await {
            Ok(chunks) if chunks.is_empty() => return Ok(all),
            Ok(chunks) => all.extend(chunks),
            Err(error) => return Err((all, error)),
        }
    }
}

#[tokio::test]
async fn an_answer_is_streamed_and_put_together() {
    let server = Server::always(|| {
        let reasoning = event(&json!({ "choices": [{ "index": 0, "delta": { "reasoning": "hm" } }] }));
        events([": ping\n\n".into(), reasoning, text("Hello, "), text("world"), end("stop")])
    })
    .await;
    let model = chat(&server);
    let mut stream = model.stream(&request(), &NoArtifacts, soon()).await.unwrap();
    let chunks = all(&mut stream).await.unwrap();
    let whole = ModelResponse {
        message: message(Role::Assistant, "Hello, world"),
        finish_reason: "stop".into(),
        usage: Some(TokenUsage { input: 9, output: 3, cached_input: None, reasoning: None }),
    };
    let text_chunk = |text: &str| ModelChunk::Text(text.into());
    let reasoned = ModelChunk::Reasoning("hm".into());
    assert_eq!(chunks, [reasoned, text_chunk("Hello, "), text_chunk("world"), ModelChunk::Done(whole.clone())]);
    assert_eq!(stream.chunks().await.unwrap(), []);
    assert_eq!(invoke(&model).await.unwrap(), whole);

    let seen = server.last();
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.headers["authorization"], format!("Bearer {CANARY}"));
    assert_eq!(seen.body["model"], "inner-name");
    assert_eq!(seen.body["stream_options"], json!({ "include_usage": true }));
}

#[tokio::test]
async fn a_piece_is_given_when_it_arrives_and_a_dropped_wait_loses_nothing() {
    let (send, receive) = tokio::sync::mpsc::unbounded_channel::<String>();
    let receive = Arc::new(Mutex::new(Some(receive)));
    let server = Server::always(move || {
        let receive = receive.lock().take().unwrap();
        let body = stream::unfold(receive, |mut receive| async { Some((Ok::<_, Infallible>(receive.recv().await?), receive)) });
        respond(200, "text/event-stream", Body::from_stream(body))
    })
    .await;
    let model = chat(&server);
    let mut stream = model.stream(&request(), &NoArtifacts, soon()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.chunks()).await.is_err());
    send.send(text("one")).unwrap();
    assert_eq!(stream.chunks().await.unwrap(), [ModelChunk::Text("one".into())]);
    let piece = text("two");
    send.send(piece[..20].into()).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.chunks()).await.is_err());
    send.send(piece[20..].into()).unwrap();
    assert_eq!(stream.chunks().await.unwrap(), [ModelChunk::Text("two".into())]);
    // Dropping the stream closes the connection.
    drop(stream);
    tokio::time::timeout(LONG, send.closed()).await.expect("the connection is still open");
}

#[tokio::test]
async fn a_request_says_everything_in_the_words_of_the_provider() {
    let server = Server::always(|| {
        let call = json!({ "index": 0, "id": "c2", "function": { "name": "files_read", "arguments": "{\"path\":\"a\"}" } });
        events([event(&json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] })), end("tool_calls")])
    })
    .await;
    let model = chat_with(&server, |config| {
        config.defaults = json!({ "temperature": 0.5, "store": false }).as_object().unwrap().clone();
    });
    let mut asking = message(Role::Assistant, "");
    asking.content.clear();
    asking.tool_calls =
        vec![ToolCall { call_id: "c1".into(), tool_name: "files/read".into(), parameters: json!({ "path": "b" }) }];
    let mut result = message(Role::Tool, "content of b");
    result.tool_call_id = Some("c1".into());
    let mut named = message(Role::User, "and a?");
    named.name = Some("ann".into());
    let request = ModelRequest {
        messages: vec![
            message(Role::System, "s"),
            message(Role::Developer, "d"),
            message(Role::User, "hi"),
            asking,
            result,
            named,
        ],
        tools: vec![ToolDefinition {
            name: "files/read".into(),
            description: Some("Reads".into()),
            parameters: json!({ "type": "object" }),
        }],
        extra_args: json!({ "temperature": 0, "tool_choice": { "type": "function", "function": { "name": "files/read" } } })
            .as_object()
            .unwrap()
            .clone(),
        session_key: None,
    };
    let response = model.invoke(&request, &NoArtifacts, soon()).await.unwrap();
    assert_eq!(response.finish_reason, "tool-calls");
    let call = &response.message.tool_calls[0];
    assert_eq!((call.tool_name.as_str(), &call.parameters), ("files/read", &json!({ "path": "a" })));
    let called = json!({ "name": "files_read", "arguments": "{\"path\":\"b\"}" });
    assert_eq!(
        server.last().body,
        json!({
            "model": "inner-name",
            "messages": [
                { "role": "system", "content": "s" },
                { "role": "system", "content": "d" },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function", "function": called }] },
                { "role": "tool", "content": "content of b", "tool_call_id": "c1" },
                { "role": "user", "content": "and a?", "name": "ann" },
            ],
            "tools": [{ "type": "function", "function": {
                "name": "files_read", "description": "Reads", "parameters": { "type": "object" },
            } }],
            "tool_choice": { "type": "function", "function": { "name": "files_read" } },
            "temperature": 0,
            "store": false,
            "stream": true,
            "stream_options": { "include_usage": true },
        })
    );
}

struct Pictures;

impl ArtifactSource for Pictures {
    fn content<'a>(&'a self, artifact: &'a ArtifactRef, max_bytes: usize) -> BoxFuture<'a, Result<ArtifactContent, ApiError>> {
        Box::pin(async move {
            let (media_type, bytes) = match artifact.artifact_id.as_str() {
                "png" => ("image/png", Bytes::from_static(b"\x89PNG")),
                "lie" => ("text/html", Bytes::from_static(b"<html>")),
                _ => return Err(ApiError::new(ErrorCode::NotFound, "no such artifact")),
            };
            if bytes.len() > max_bytes {
                return Err(ApiError::too_large("the artifact", bytes.len(), max_bytes));
            }
            Ok(ArtifactContent { media_type: media_type.into(), bytes })
        })
    }
}

fn artifact(id: &str, media_type: &str) -> ContentPart {
    let name = Some(format!("{id}.bin"));
    ContentPart::Artifact(ArtifactRef {
        artifact_id: id.into(),
        media_type: media_type.into(),
        name,
        size: Some(4),
        sha256: None,
    })
}

#[tokio::test]
async fn images_are_shown_and_other_content_is_named() {
    let server = Server::always(hello).await;
    let model = chat_with(&server, |config| config.max_image_bytes = 11);
    let with = |parts: Vec<ContentPart>| {
        let mut message = message(Role::User, "look: ");
        message.content.extend(parts);
        ModelRequest { messages: vec![message], ..ModelRequest::default() }
    };
    let other = ContentPart::Other(json!({ "type": "image_url", "image_url": { "url": "http://169.254.169.254/" } }));
    let parts = vec![artifact("png", "image/png"), other, artifact("pdf", "application/pdf"), artifact("lie", "image/png")];
    model.invoke(&with(parts), &Pictures, soon()).await.unwrap();
    let content = server.last().body["messages"][0]["content"].clone();
    assert_eq!(content[0], json!({ "type": "text", "text": "look: " }));
    assert_eq!(content[1], json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw==" } }));
    let text = content[2]["text"].as_str().unwrap();
    assert_eq!(
        text,
        "[content of type image_url was left out][artifact pdf: pdf.bin, application/pdf, 4 bytes]\
         [artifact lie: lie.bin, image/png, 4 bytes]"
    );

    let before = server.requests();
    let images = vec![artifact("png", "image/png"), artifact("png", "image/png"), artifact("png", "image/png")];
    let (error, category) = failed(model.invoke(&with(images), &Pictures, soon()).await);
    assert_eq!((error.code, category.as_str()), (ErrorCode::PayloadTooLarge, "request_too_large"));
    let (error, _) = failed(model.invoke(&with(vec![artifact("gone", "image/png")]), &Pictures, soon()).await);
    assert_eq!(error.code, ErrorCode::NotFound);
    assert_eq!(server.requests(), before, "nothing was sent");
}

#[tokio::test]
async fn forbidden_arguments_are_refused_before_the_request() {
    let server = Server::always(hello).await;
    let model = chat(&server);
    let with = |key: &str, value: Value| {
        let mut request = request();
        request.extra_args.insert(key.into(), value);
        request
    };
    for key in ["stream", "model", "messages", "n", "store", "service_tier", "api_key"] {
        let (error, category) = failed(model.invoke(&with(key, json!(1)), &NoArtifacts, soon()).await);
        assert_eq!((error.code, category.as_str()), (ErrorCode::InvalidArgument, "extra_argument_refused"), "{key}");
        assert!(error.message.contains(key), "{}", error.message);
    }
    let mut orphan = request();
    orphan.messages.push(message(Role::Tool, "12"));
    let mut tool = request();
    tool.tools.push(ToolDefinition { name: "t".into(), description: None, parameters: json!("none") });
    for request in [ModelRequest::default(), orphan, tool] {
        assert_eq!(failed(model.stream(&request, &NoArtifacts, soon()).await).0.code, ErrorCode::InvalidArgument);
    }
    let (_, category) = failed(model.embed(&["a".into()], soon()).await);
    assert_eq!(category, "operation_not_supported");
    assert_eq!(failed(model.rerank("q", &["a".into()], None, soon()).await).1, "operation_not_supported");
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn the_key_is_nowhere_even_if_the_provider_repeats_it() {
    let echo = |seen: &SeenRequest| seen.headers["authorization"].to_str().unwrap().to_owned();
    // In an error, however it is wrapped, and where the message is cut.
    for status in [400, 401, 403, 404, 413, 418, 422, 429, 500] {
        for form in 0..4 {
            let server = Server::start(move |_, seen| {
                let key = echo(&seen);
                let body = match form {
                    0 => key,
                    1 => json!({ "error": { "message": format!("bad key {key}"), "code": key, "type": key } }).to_string(),
                    2 => format!("{}{key}", "x".repeat(485)),
                    _ => json!({ "detail": [{ key.clone(): key }] }).to_string(),
                };
                std::future::ready(respond(status, "application/json", body)).boxed()
            })
            .await;
            failed(invoke(&chat_with(&server, |config| config.max_retries = 0)).await);
        }
    }
    // In the middle of a stream, in a finish reason, in a tool call.
    let server = Server::start(move |_, seen| {
        std::future::ready(events([text("a"), event(&json!({ "error": { "message": echo(&seen) } }))])).boxed()
    })
    .await;
    failed(invoke(&chat(&server)).await);
    let server = Server::start(move |_, seen| {
        let call = json!({ "index": 0, "id": echo(&seen), "function": { "name": echo(&seen), "arguments": "{" } });
        std::future::ready(events([event(
            &json!({ "choices": [{ "delta": { "tool_calls": [call] }, "finish_reason": "stop" }] }),
        )]))
        .boxed()
    })
    .await;
    failed(invoke(&chat(&server)).await);
    // In an answer, in pieces.
    let server = Server::start(move |_, seen| {
        let mut pieces: Vec<String> = echo(&seen).chars().map(|c| text(&c.to_string())).collect();
        let arguments = json!({ echo(&seen): [echo(&seen)] }).to_string();
        let call = json!({ "index": 0, "id": echo(&seen), "function": { "name": echo(&seen), "arguments": arguments } });
        pieces.push(event(&json!({ "choices": [{ "delta": { "reasoning": echo(&seen), "tool_calls": [call] } }] })));
        pieces.push(end(&echo(&seen)));
        std::future::ready(events(pieces)).boxed()
    })
    .await;
    let mut stream = chat(&server).stream(&request(), &NoArtifacts, soon()).await.unwrap();
    let chunks = all(&mut stream).await.unwrap();
    assert!(!format!("{chunks:?}").contains("canary"), "{chunks:?}");
    let text_chunk: String =
        chunks.iter().filter_map(|chunk| if let ModelChunk::Text(text) = chunk { Some(text.as_str()) } else { None }).collect();
    assert_eq!(text_chunk, "Bearer [secret]");
}

#[tokio::test]
async fn a_model_that_stalls_holds_up_no_other_and_its_own_calls_wait_for_a_place() {
    let stalled = Server::always(|| stalls_after([text("a")])).await;
    let fine = Server::always(hello).await;
    let slow = chat_with(&stalled, |config| config.max_concurrent = 2);
    let mut streams = vec![];
    for _ in 0..2 {
        let mut stream = slow.stream(&request(), &NoArtifacts, soon()).await.unwrap();
        assert_eq!(stream.chunks().await.unwrap().len(), 1);
        streams.push(stream);
    }
    let near = Instant::now() + Duration::from_millis(100);
    let (error, _) = failed(slow.stream(&request(), &NoArtifacts, near).await);
    assert_eq!((error.code, stalled.requests()), (ErrorCode::DeadlineExceeded, 2));
    assert_eq!(invoke(&chat(&fine)).await.unwrap().finish_reason, "stop");
    // A stream that is dropped gives its place back.
    streams.pop();
    slow.stream(&request(), &NoArtifacts, soon()).await.unwrap();
    assert_eq!(stalled.requests(), 3);
}

#[tokio::test]
async fn a_model_without_its_key_is_not_ready_and_the_others_are() {
    let server = Server::always(hello).await;
    let mut broken = config(&server.url, ModelType::Llm);
    broken.id = "broken".into();
    broken.api_key = Some(SecretRef::File("/nowhere/key".into()));
    let mut script = ModelConfig::new("script", ModelType::Llm, ProviderKind::Scripted);
    script.script = Some("/nowhere/script.toml".into());
    let models = Models::open(&[broken, script, config(&server.url, ModelType::Llm)]).unwrap();
    let problems: Vec<_> = models.iter().filter_map(|model| model.problem()).collect();
    assert!(problems.len() == 2 && problems[0].contains("/nowhere/key") && problems[1].contains("script.toml"), "{problems:?}");
    for id in ["broken", "script"] {
        let (error, category) = failed(invoke(&models.get(id).unwrap()).await);
        assert_eq!((error.code, category.as_str()), (ErrorCode::RuntimeError, "provider_not_ready"));
        assert!(!error.message.contains("nowhere"), "{}", error.message);
    }
    assert_eq!(invoke(&models.get("chat").unwrap()).await.unwrap().finish_reason, "stop");
    assert_eq!(models.iter().map(|model| model.id()).collect::<Vec<_>>(), ["broken", "script", "chat"]);

    let twice = [config(&server.url, ModelType::Llm), config(&server.url, ModelType::Llm)];
    assert!(Models::open(&twice).unwrap_err().contains("two with the id `chat`"));
    assert!(Models::open(&[]).unwrap().is_empty());
}

#[tokio::test]
async fn a_scripted_model_streams_fails_and_counts_like_any_other() {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let script = "[[reply]]\nwhen = 'slow'\ntext = 'abcdef'\nchunk_chars = 2\ndelay_ms = 150\n\
                  [[reply]]\nwhen = 'break'\ntext = 'ab'\nerror = { message = 'gone' }\n\
                  [[reply]]\nwhen = 'hi'\ntext = 'You said {{last_user}}.'\nchunk_chars = 100\n";
    file.write_all(script.as_bytes()).unwrap();
    let mut config = ModelConfig::new("demo", ModelType::Llm, ProviderKind::Scripted);
    config.script = Some(file.path().into());
    let model = open(config);
    assert_eq!(invoke(&model).await.unwrap().message.text(), "You said hi.");
    let say = |text: &str| ModelRequest { messages: vec![message(Role::User, text)], ..ModelRequest::default() };

    let began = Instant::now();
    let mut stream = model.stream(&say("slow"), &NoArtifacts, soon()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(1), stream.chunks()).await.is_err());
    let chunks = all(&mut stream).await.unwrap();
    assert_eq!(chunks.len(), 4);
    assert!(began.elapsed() >= Duration::from_millis(450));

    let mut stream = model.stream(&say("break"), &NoArtifacts, soon()).await.unwrap();
    let (chunks, error) = all(&mut stream).await.unwrap_err();
    assert_eq!((chunks, error.message.as_str()), (vec![ModelChunk::Text("ab".into())], "gone"));
    let (_, category) = failed(model.invoke(&say("?"), &NoArtifacts, soon()).await);
    assert_eq!(category, "script_unmatched");
    let near = Instant::now() + Duration::from_millis(20);
    assert_eq!(failed(model.invoke(&say("slow"), &NoArtifacts, near).await).0.code, ErrorCode::DeadlineExceeded);
    assert_eq!(model.count_tokens(&[message(Role::User, "hello world")], &[]).unwrap(), 8);

    let words = |kind| open(ModelConfig::new("words", kind, ProviderKind::Scripted));
    let vectors = words(ModelType::Embedding).embed(&["a b".into(), "a b".into()], soon()).await.unwrap().vectors;
    assert_eq!(vectors[0], vectors[1]);
    let hits = words(ModelType::Rerank).rerank("b", &["a".into(), "b".into()], Some(1), soon()).await.unwrap();
    assert_eq!(hits[0].index, 1);
}
