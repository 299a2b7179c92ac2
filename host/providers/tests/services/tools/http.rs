//! Over streamable HTTP.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use agent_host_providers::{
    secret::SecretRef,
    tools::{CallOptions, EnvValue, McpServerConfig, McpServerStatus},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::tools::{LONG, call, call_with_progress, codes, start, text, until, until_status};

#[derive(Default)]
struct Service {
    seen: Mutex<Vec<String>>,
    authorization: Mutex<Option<String>>,
}

async fn serve(listener: TcpListener) -> (Arc<Service>, JoinHandle<()>) {
    let service = Arc::new(Service::default());
    let app = Router::new().route("/mcp", any(answer)).with_state(service.clone());
    (service, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

async fn service() -> (Arc<Service>, McpServerConfig, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let (service, task) = serve(listener).await;
    let config = McpServerConfig { id: "web".into(), url: Some(url), start_timeout_ms: 5_000, ..McpServerConfig::default() };
    (service, config, task)
}

fn sse(messages: Vec<Value>, every: Duration) -> Response {
    let events = stream::iter(messages).then(move |message| async move {
        tokio::time::sleep(every).await;
        Ok::<_, Infallible>(Bytes::from(format!("event: message\ndata: {message}\n\n")))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

fn text_result(text: impl ToString) -> Value {
    json!({ "content": [{ "type": "text", "text": text.to_string() }] })
}

async fn answer(State(service): State<Arc<Service>>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    service.authorization.lock().unwrap().clone_from(&authorization);
    if method != Method::POST {
        service.seen.lock().unwrap().push(method.to_string());
        return if method == Method::DELETE { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED }.into_response();
    }
    let message: Value = serde_json::from_slice(&body).unwrap();
    let called = message["method"].as_str().unwrap_or_default().to_owned();
    service.seen.lock().unwrap().push(called.clone());
    let Some(id) = message.get("id").cloned() else { return StatusCode::ACCEPTED.into_response() };
    let params = &message["params"];
    let result = match called.as_str() {
        "initialize" => {
            let result = json!({ "protocolVersion": params["protocolVersion"], "capabilities": { "tools": {} },
                "serverInfo": { "name": "web", "version": "1" } });
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
            return (
                [(header::CONTENT_TYPE, "application/json"), (header::HeaderName::from_static("mcp-session-id"), "s1")],
                body.to_string(),
            )
                .into_response();
        }
        "tools/list" => {
            let names = ["add", "break", "garbage", "hang", "html", "huge", "huge-sse", "error", "slow", "status", "trickle"];
            let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
            json!({ "tools": names.map(tool) })
        }
        "tools/call" => match params["name"].as_str().unwrap() {
            "add" => text_result(params["arguments"]["a"].as_i64().unwrap() + params["arguments"]["b"].as_i64().unwrap()),
            "break" => {
                let events = stream::iter([Ok(Bytes::from("event: message\ndata: {\"jsonrpc\":")), Err("gone")]);
                return ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response();
            }
            "garbage" => {
                return ([(header::CONTENT_TYPE, "application/json")], format!("no JSON for {authorization:?}")).into_response();
            }
            "hang" => std::future::pending().await,
            "html" => return ([(header::CONTENT_TYPE, "text/html")], "<h1>hello</h1>").into_response(),
            "huge" => text_result("x".repeat(usize::try_from(params["arguments"]["bytes"].as_u64().unwrap()).unwrap())),
            "huge-sse" => {
                let bytes = usize::try_from(params["arguments"]["bytes"].as_u64().unwrap()).unwrap();
                return sse(
                    vec![json!({ "jsonrpc": "2.0", "id": id, "result": text_result("x".repeat(bytes)) })],
                    Duration::ZERO,
                );
            }
            "error" => {
                let error = json!({ "code": -32000, "message": format!("not with {authorization:?}") });
                return (
                    [(header::CONTENT_TYPE, "application/json")],
                    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string(),
                )
                    .into_response();
            }
            "slow" => {
                let token = &params["_meta"]["progressToken"];
                let step = |n: i32| json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": token, "progress": n, "total": 3 } });
                let mut messages: Vec<Value> = (1..=3).map(step).collect();
                messages.push(json!({ "jsonrpc": "2.0", "id": id, "result": text_result("done") }));
                return sse(messages, Duration::from_millis(80));
            }
            "status" => return (StatusCode::INTERNAL_SERVER_ERROR, format!("failed with {authorization:?}")).into_response(),
            // Bytes without end, and never an event.
            "trickle" => {
                let bytes = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from(vec![b'x'; 64 << 10])));
                return ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(bytes)).into_response();
            }
            _ => Value::Null,
        },
        _ => Value::Null,
    };
    let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[tokio::test]
async fn a_service_answers_with_json_and_with_a_stream() {
    let (service, config, _task) = service().await;
    let tools = start(&[config]).await;
    assert_eq!(tools.list().len(), 11, "{:?}", tools.reports());
    assert_eq!(text(&call(&tools, "web__add", json!({ "a": 1, "b": 2 })).await.unwrap()), "3");
    let (result, seen) = call_with_progress(&tools, "web__slow", json!({})).await;
    assert_eq!(text(&result.unwrap()), "done");
    assert_eq!(seen.last().map(|progress| (progress.progress, progress.total)), Some((3.0, Some(3.0))), "{seen:?}");
    tools.shutdown().await;
    assert!(service.seen.lock().unwrap().contains(&"DELETE".into()), "the session is ended: {:?}", service.seen.lock().unwrap());
}

#[tokio::test]
async fn failures_of_a_service_have_a_category() {
    let (_service, mut config, _task) = service().await;
    config.call_timeout_ms = 3_000;
    let tools = start(&[config]).await;
    for (name, parameters, expected) in [
        ("web__garbage", json!({}), ("runtime_error", "tool_protocol_error")),
        ("web__html", json!({}), ("runtime_error", "tool_protocol_error")),
        ("web__error", json!({}), ("runtime_error", "tool_failed")),
        ("web__status", json!({}), ("runtime_error", "tool_server_unavailable")),
        ("web__huge", json!({ "bytes": (1 << 20) + 1 }), ("payload_too_large", "tool_output_too_large")),
        ("web__huge", json!({ "bytes": 100 << 20 }), ("payload_too_large", "tool_output_too_large")),
        ("web__huge-sse", json!({ "bytes": 2 << 20 }), ("payload_too_large", "tool_output_too_large")),
        ("web__hang", json!({}), ("deadline_exceeded", "tool_timeout")),
    ] {
        let error = call(&tools, name, parameters).await.unwrap_err();
        assert_eq!(codes(&error), expected, "{name}: {error}");
    }
    let error = call(&tools, "web__break", json!({})).await.unwrap_err();
    assert!(codes(&error).1.starts_with("tool_"), "{error}");
    let began = Instant::now();
    for name in ["web__trickle", "web__huge-sse"] {
        let error = call(&tools, name, json!({ "bytes": 50 << 20 })).await.unwrap_err();
        assert_eq!(codes(&error), ("payload_too_large", "tool_output_too_large"), "{name}: {error}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(text(&call(&tools, "web__add", json!({ "a": 1, "b": 2 })).await.unwrap()), "3");
    assert_eq!(tools.reports()[0].restarts, 0, "none of it costs the connection");
    tools.shutdown().await;
}

#[tokio::test]
async fn a_secret_header_is_sent_and_never_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("key"), "Bearer canary-9a3e").unwrap();
    let (service, mut config, _task) = service().await;
    config.headers = BTreeMap::from([("Authorization".into(), EnvValue::Secret(SecretRef::File(folder.path().join("key"))))]);
    let tools = start(&[config]).await;
    for name in ["web__error", "web__garbage", "web__status"] {
        let error = format!("{:?}", call(&tools, name, json!({})).await.unwrap_err());
        assert!(!error.contains("canary"), "{error}");
    }
    assert_eq!(service.authorization.lock().unwrap().as_deref(), Some("Bearer canary-9a3e"));
    let printed = format!("{:?} {tools:?}", tools.reports());
    assert!(!printed.contains("canary"), "{printed}");
    tools.shutdown().await;
}

#[tokio::test]
async fn a_call_that_ends_early_is_cancelled_at_the_service() {
    let (service, config, _task) = service().await;
    let tools = start(&[config]).await;
    let options = CallOptions { deadline: Instant::now() + Duration::from_millis(200), progress: None };
    let error = tools.call("web__hang", json!({}), options).await.unwrap_err();
    assert_eq!(codes(&error), ("deadline_exceeded", "tool_timeout"));
    until("the notice", async || service.seen.lock().unwrap().contains(&"notifications/cancelled".into())).await;
    tools.shutdown().await;
}

#[tokio::test]
async fn a_service_that_goes_away_and_comes_back_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = Some(format!("http://{address}/mcp?key=canary-77"));
    let config =
        McpServerConfig { id: "web".into(), url, start_timeout_ms: 2_000, call_timeout_ms: 2_000, ..McpServerConfig::default() };
    let tools = start(&[config]).await;
    let report = &tools.reports()[0];
    assert_eq!(report.status, McpServerStatus::Failed);
    assert!(!report.problem.as_ref().unwrap().contains("canary"), "{report:?}");

    let (_service, task) = serve(TcpListener::bind(address).await.unwrap()).await;
    until_status(&tools, McpServerStatus::Ready).await;
    assert_eq!(text(&call(&tools, "web__add", json!({ "a": 1, "b": 2 })).await.unwrap()), "3");
    task.abort();
    let _ = task.await;
    let began = Instant::now();
    until("noticing", async || {
        let error = call(&tools, "web__add", json!({ "a": 1, "b": 2 })).await;
        error.is_err_and(|error| codes(&error) == ("runtime_error", "tool_server_unavailable") && error.retryable)
    })
    .await;
    assert!(began.elapsed() < LONG);
    let (_service, _task) = serve(TcpListener::bind(address).await.unwrap()).await;
    until("coming back", async || call(&tools, "web__add", json!({ "a": 1, "b": 2 })).await.is_ok()).await;
    tools.shutdown().await;
}
