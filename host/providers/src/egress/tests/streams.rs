//! Bodies that stream.

use super::*;

fn streamed(url: &str, headers: &[(&str, &str)], body: Body) -> http::Request<Body> {
    let request = headers.iter().fold(http::Request::post(url), |request, (name, value)| request.header(*name, *value));
    request.body(body).unwrap()
}

fn pieces(pieces: impl IntoIterator<Item = &'static str, IntoIter: Send + 'static>) -> Body {
    let frames = stream::iter(pieces).map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from(piece))));
    StreamBody::new(frames).map_err(|never| match never {}).boxed_unsync()
}

fn full(text: &'static str) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

#[tokio::test]
async fn bodies_stream_in_both_directions() {
    let server = serve(|_| {
        vec![
            say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: one\n\n"),
            Act::Pause(500),
            say(format!("data: {CANARY}\n\n")),
        ]
    })
    .await;
    let kept = with_secrets(&[("api", CANARY, "127.0.0.1:*")], Arc::new(System));
    let url = server.url("/stream");
    let authority = format!("127.0.0.1:{}", server.port);
    let headers = [("Host", authority.as_str()), ("X-Key", "{{secret:api}}")];
    let started = Instant::now();
    // As in a task of its own: the future owns all that it needs.
    let (egress, request) = (kept.egress.clone(), streamed(&url, &headers, pieces(["ab", "cd"])));
    let task = tokio::spawn(async move { egress.send_streaming(request, &any().as_ref(), &bounds()).await });
    let mut response = task.await.unwrap().unwrap();
    let first = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "data: one\n\n");
    assert!(started.elapsed() < Duration::from_millis(400), "it did not wait for what follows");
    let rest = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(rest, "data: [secret api]\n\n");
    let seen = server.last();
    assert!(seen.contains("transfer-encoding: chunked") && seen.ends_with("2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"), "{seen}");
    assert!(seen.contains(&format!("x-key: {CANARY}")) && seen.matches(&authority).count() == 1, "{seen}");
}

#[tokio::test]
async fn a_streamed_request_follows_the_same_rules() {
    let server = serve(|request| if request.contains("/there") { redirect_to(302, "/here") } else { ok("in") }).await;
    let egress = open(&local());
    let url = server.url("/");
    let send = |request: http::Request<Body>| {
        let egress = egress.clone();
        async move { egress.send_streaming(request, &any().as_ref(), &bounds()).await }
    };
    let redirect = send(streamed(&server.url("/there"), &[], full(""))).await.unwrap();
    assert_eq!((redirect.status().as_u16(), redirect.headers()["location"].to_str().unwrap()), (302, "/here"));

    for (headers, body) in [(vec![], full("abcd")), (vec![("content-length", "4")], pieces(["ab", "cd"]))] {
        assert_eq!(send(streamed(&url, &headers, body)).await.unwrap().status(), 200);
        let seen = server.last();
        assert!(seen.contains("content-length: 4\r\n") && seen.ends_with("\r\n\r\nabcd"), "{seen}");
    }
    for (headers, code) in [
        (vec![("host", "evil.example")], "invalid_request"),
        (vec![("content-length", "5")], "invalid_request"),
        (vec![("content-length", "-1")], "invalid_request"),
        (vec![("content-length", "4"), ("content-length", "5")], "invalid_request"),
        (vec![("transfer-encoding", "chunked")], "invalid_request"),
        (vec![("expect", "100-continue")], "invalid_request"),
        (vec![("x", "{{secret:nobodys}}")], "secret_not_granted"),
    ] {
        refused(send(streamed(&url, &headers, full("abcd"))).await, code);
    }
    refused(send(streamed("http://169.254.169.254/", &[], full(""))).await, "address_not_allowed");
    refused(send(streamed("http://user:canary@127.0.0.1/", &[], full(""))).await, "invalid_request");
    let nobody = egress.send_streaming(streamed(&url, &[], full("")), &hosts(&[]).as_ref(), &bounds()).await;
    refused(nobody, "host_not_allowed");
}

#[tokio::test]
async fn a_streamed_body_is_bounded_and_must_come_to_its_end() {
    let server = serve(|request| match request.split(' ').nth(1).unwrap() {
        "/endless" => vec![say("HTTP/1.1 200 OK\r\n\r\n"), Act::Repeat(vec![b'x'; 10_000])],
        _ => ok("in"),
    })
    .await;
    let egress = open(&local());
    let small = Bounds { request_bytes: 5, response_bytes: 20_000, ..bounds() };
    let send = |headers: &[(&str, &str)], body: Body| {
        let request = streamed(&server.url("/"), headers, body);
        let egress = egress.clone();
        async move { egress.send_streaming(request, &any().as_ref(), &small).await }
    };
    send(&[], pieces(["abc", "de"])).await.unwrap();
    refused(send(&[], pieces(["abc", "def"])).await, "request_too_large");
    refused(send(&[], full("abcdef")).await, "request_too_large");
    refused(send(&[("content-length", "6")], pieces(["abc", "def"])).await, "request_too_large");
    refused(send(&[("content-length", "4")], pieces(["abc"])).await, "request_body_failed");
    let broken =
        StreamBody::new(stream::iter([Ok(Frame::data(Bytes::from("a"))), Err("the guest has gone".into())])).boxed_unsync();
    refused(send(&[], broken).await, "request_body_failed");

    let response =
        egress.send_streaming(streamed(&server.url("/endless"), &[], full("")), &any().as_ref(), &small).await.unwrap();
    let error = response.into_body().collect().await.map(drop).unwrap_err();
    refused::<()>(Err(*error.downcast::<ApiError>().unwrap()), "response_too_large");
}
