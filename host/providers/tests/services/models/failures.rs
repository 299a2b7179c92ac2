//! Providers that are busy, gone, silent or wrong.

use super::*;

#[tokio::test]
async fn a_busy_provider_is_asked_again_when_it_says() {
    let server = Server::start(|number, _| {
        let response = match number {
            0 => Response::builder().status(429).header("retry-after", "1").body(Body::from("slow down")).unwrap(),
            _ => hello(),
        };
        std::future::ready(response).boxed()
    })
    .await;
    let began = Instant::now();
    assert_eq!(invoke(&chat(&server)).await.unwrap().message.text(), "Hello, world");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn a_failing_provider_is_asked_again_as_often_as_configured() {
    let server = Server::start(|number, _| {
        std::future::ready(if number % 3 < 2 {
            json_response(500 + u16::try_from(number % 3).unwrap() * 3, &json!({}))
        } else {
            hello()
        })
        .boxed()
    })
    .await;
    assert_eq!(invoke(&chat(&server)).await.unwrap().finish_reason, "stop");
    assert_eq!(server.requests(), 3);

    let never = Server::always(|| json_response(503, &json!({ "error": { "message": "overloaded" } }))).await;
    let (error, category) = failed(invoke(&chat_with(&never, |config| config.max_retries = 1)).await);
    assert_eq!((category.as_str(), error.retryable, never.requests()), ("provider_unavailable", true, 2));
    assert_eq!(error.details.unwrap()["status"], 503);
}

#[tokio::test]
async fn a_provider_that_wants_to_be_asked_after_the_deadline_fails_the_call_at_once() {
    for (status, code, category) in
        [(429, ErrorCode::RateLimited, "provider_rate_limited"), (503, ErrorCode::RuntimeError, "provider_unavailable")]
    {
        let server = Server::always(move || {
            Response::builder().status(status).header("retry-after", "3600").body(Body::from("later")).unwrap()
        })
        .await;
        let began = Instant::now();
        let (error, found) = failed(invoke(&chat(&server)).await);
        assert!(began.elapsed() < LONG / 2, "it waited");
        assert_eq!((error.code, found.as_str(), error.retryable), (code, category, true));
        let details = error.details.unwrap();
        assert_eq!((&details["status"], &details["retry_after_ms"]), (&json!(status), &json!(3_600_000)));
        assert_eq!(server.requests(), 1);
    }
}

#[tokio::test]
async fn permanent_failures_are_not_retried() {
    for (status, body, code, category) in [
        (400, json!({ "error": { "message": "bad" } }), ErrorCode::InvalidArgument, "provider_refused"),
        (401, json!({}), ErrorCode::RuntimeError, "provider_unauthorized"),
        (404, json!({}), ErrorCode::RuntimeError, "model_not_found"),
        (413, json!({}), ErrorCode::PayloadTooLarge, "request_too_large"),
        (429, json!({ "error": { "code": "insufficient_quota", "message": "pay" } }), ErrorCode::RateLimited, "quota_exceeded"),
    ] {
        let server = Server::always(move || json_response(status, &body)).await;
        let (error, found) = failed(invoke(&chat(&server)).await);
        assert_eq!((error.code, found.as_str(), error.retryable, server.requests()), (code, category, false, 1));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::always(hello).await;
    let location = format!("{}/chat/completions", elsewhere.url);
    let server = Server::always(move || {
        Response::builder().status(307).header("location", location.as_str()).body(Body::empty()).unwrap()
    })
    .await;
    assert_eq!(failed(invoke(&chat(&server)).await).1, "provider_error");
    assert_eq!(elsewhere.requests(), 0, "the conversation went elsewhere");
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let mut config = config(&url, ModelType::Llm);
    config.max_retries = 1;
    let (error, category) = failed(invoke(&open(config)).await);
    assert_eq!((category.as_str(), error.retryable), ("provider_unavailable", true));
}

#[tokio::test]
async fn a_provider_that_falls_silent_is_an_error() {
    let before = Server::start(|_, _| std::future::pending().boxed()).await;
    let within = Server::always(|| stalls_after([text("a")])).await;
    for server in [&before, &within] {
        let model = chat_with(server, |config| config.idle_timeout_ms = 1_500);
        let (error, category) = failed(invoke(&model).await);
        assert_eq!((category.as_str(), error.retryable), ("provider_stalled", true));
        assert_eq!(error.details.unwrap()["idle_timeout_ms"], 1_500);
        assert_eq!(server.requests(), 1, "it may be at work: the request is not sent again");
        // The deadline comes first where it is nearer.
        let near = Instant::now() + Duration::from_millis(100);
        let (error, _) = failed(chat(server).invoke(&request(), &NoArtifacts, near).await);
        assert_eq!(error.code, ErrorCode::DeadlineExceeded);
        server.seen.lock().clear();
    }
    // Text before the failure is not lost.
    let model = chat_with(&within, |config| config.idle_timeout_ms = 1_500);
    let mut stream = model.stream(&request(), &NoArtifacts, soon()).await.unwrap();
    let (chunks, _) = all(&mut stream).await.unwrap_err();
    assert_eq!(chunks, [ModelChunk::Text("a".into())]);
    assert_eq!(stream.chunks().await.unwrap(), [], "after an error, it is at its end");
}

#[tokio::test]
async fn an_answer_that_is_complete_does_not_need_its_last_line() {
    let finish = || event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    let silent = Server::always(move || stalls_after([text("a"), finish()])).await;
    let model = chat_with(&silent, |config| config.idle_timeout_ms = 1_500);
    let closed = Server::always(move || events([text("a"), finish().trim_end().to_owned() + "\n"])).await;
    for model in [model, chat(&closed)] {
        let response = invoke(&model).await.unwrap();
        assert_eq!((response.message.text().as_str(), response.usage), ("a", None));
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error() {
    let ended = Server::always(|| events([text("a")])).await;
    let closed = Server::always(|| {
        let gone = async {
            // The piece before has been sent by then.
            tokio::time::sleep(Duration::from_millis(100)).await;
            Err(std::io::Error::other("gone"))
        };
        let pieces = stream::iter([Ok(text("a"))]).chain(stream::once(gone));
        respond(200, "text/event-stream", Body::from_stream(pieces))
    })
    .await;
    let halfway = Server::always(|| events([text("a"), "data: {\"choices\":[{".into()])).await;
    for server in [ended, closed, halfway] {
        let (error, category) = failed(invoke(&chat(&server)).await);
        assert_eq!((category.as_str(), error.retryable, server.requests()), ("stream_interrupted", true, 1));
    }
}

#[tokio::test]
async fn garbage_is_an_error() {
    for (body, category) in [
        ("data: {\"choices\":\n\n", "invalid_response"),
        ("data: \u{0}\u{1}\n\n", "invalid_response"),
        ("data: 7\n\n", "invalid_response"),
        ("data: {\"error\":{\"message\":\"Overloaded\",\"type\":\"overloaded_error\"}}\n\n", "provider_error"),
        ("data: {\"error\":{\"message\":\"slow\",\"code\":429}}\n\n", "provider_rate_limited"),
        ("<html>", "stream_interrupted"),
        ("", "stream_interrupted"),
    ] {
        let server = Server::always(move || respond(200, "text/event-stream", body)).await;
        assert_eq!(failed(invoke(&chat(&server)).await).1, category, "{body:?}");
        let server = Server::always(move || events([text("before"), body.to_owned()])).await;
        let mut stream = chat(&server).stream(&request(), &NoArtifacts, soon()).await.unwrap();
        let (chunks, error) = all(&mut stream).await.unwrap_err();
        assert_eq!(chunks, [ModelChunk::Text("before".into())]);
        assert_eq!(failed::<()>(Err(error)).1, category, "{body:?}");
    }
    for (body, category) in [
        ("", "invalid_response"),
        ("<html>", "invalid_response"),
        ("[]", "invalid_response"),
        ("{}", "invalid_response"),
        ("{\"choices\":[]}", "invalid_response"),
        ("{\"error\":{\"message\":\"no\"}}", "provider_error"),
    ] {
        let server = Server::always(move || respond(200, "application/json", body)).await;
        assert_eq!(failed(invoke(&chat(&server)).await).1, category, "{body:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_understood() {
    let server = Server::always(|| {
        let call = json!({ "id": "c", "type": "function", "function": { "name": "t", "arguments": "{}" } });
        json_response(
            200,
            &json!({
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": "ok", "tool_calls": [call] }, "finish_reason": "tool_calls" }],
                "usage": { "prompt_tokens": 9, "completion_tokens": 3 },
            }),
        )
    })
    .await;
    let response = invoke(&chat(&server)).await.unwrap();
    assert_eq!((response.message.text().as_str(), response.message.tool_calls.len()), ("ok", 1));
    assert_eq!(response.usage.unwrap().output, 3);
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let sent = Arc::new(AtomicUsize::new(0));
    let endless = |media_type: &'static str, piece: String, sent: &Arc<AtomicUsize>| {
        let sent = Arc::clone(sent);
        Server::always(move || {
            let (sent, piece) = (Arc::clone(&sent), piece.clone());
            let body = stream::repeat_with(move || {
                sent.fetch_add(piece.len(), Ordering::Relaxed);
                Ok::<_, Infallible>(piece.clone())
            });
            respond(200, media_type, Body::from_stream(body))
        })
    };
    for (media_type, piece) in [
        ("text/event-stream", "x".repeat(64 << 10)),
        ("text/event-stream", format!("data: {}\n", "x".repeat(64 << 10))),
        ("text/event-stream", text(&"x".repeat(64 << 10))),
        ("application/json", " ".repeat(64 << 10)),
    ] {
        let server = endless(media_type, piece, &sent).await;
        let model = chat_with(&server, |config| config.max_response_bytes = 1 << 20);
        let (error, category) = failed(invoke(&model).await);
        assert_eq!((error.code, category.as_str()), (ErrorCode::PayloadTooLarge, "response_too_large"), "{media_type}");
    }
    // Sockets hold some megabytes; what matters is that reading stopped.
    assert!(sent.load(Ordering::Relaxed) < 200 << 20);

    // Comments without end take no memory, and end with the deadline or the limit of the whole stream.
    let server = endless("text/event-stream", ": ping\n\n".repeat(1000), &sent).await;
    let model = chat_with(&server, |config| config.max_response_bytes = 10_000);
    assert_eq!(failed(invoke(&model).await).1, "response_too_large");
    let server = endless("text/html", "x".repeat(1000), &sent).await;
    let model = chat_with(&server, |config| config.max_response_bytes = 10_000);
    assert_eq!(failed(invoke(&model).await).1, "response_too_large");
}

#[tokio::test]
async fn a_lie_about_usage_is_unknown_usage() {
    for usage in
        [json!({ "prompt_tokens": -9, "completion_tokens": 3 }), json!({ "prompt_tokens": 9, "completion_tokens": 1e12 })]
    {
        let finish = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }], "usage": usage });
        let server = Server::always(move || events([text("a"), event(&finish)])).await;
        assert_eq!(invoke(&chat(&server)).await.unwrap().usage, None);
    }
}

#[tokio::test]
async fn parameters_that_are_not_json_are_an_error_that_names_the_tool() {
    let server = Server::always(|| {
        let call = json!({ "index": 0, "id": "c", "function": { "name": "search", "arguments": "{\"q\": oops" } });
        events([event(&json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] })), end("tool_calls")])
    })
    .await;
    let (error, category) = failed(invoke(&chat(&server)).await);
    assert_eq!((error.code, category.as_str(), error.retryable), (ErrorCode::RuntimeError, "invalid_tool_call", true));
    assert_eq!(error.details.unwrap()["tool_name"], "search");
}
