//! Artifacts go in as bytes and come out as the same bytes, whole or in parts, and never as a page that runs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use crate::support::{TestServer, started_with};
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and more";

async fn upload(server: &TestServer, query: &str, media_type: &str, content: &[u8]) -> Response {
    let request = server.request(Method::POST, &format!("/api/v1/artifacts{query}")).body(content.to_vec());
    request.header("content-type", media_type).send().await.unwrap()
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

async fn get(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = server.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn an_upload_comes_back_whole_and_in_parts() {
    let server = started_with(|_| ()).await;
    let content: Vec<u8> = (0..1_500_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    let response = upload(&server, "?name=gr%C3%BC%C3%9Fe.txt&conversation_id=c", "text/plain; charset=utf-8", &content).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let path = header(&response, "location").to_owned();
    let metadata = json(response).await;
    assert_eq!((metadata["size"].as_u64(), metadata["name"].as_str()), (Some(1_500_000), Some("grüße.txt")));
    assert_eq!(path, format!("/api/v1/artifacts/{}", metadata["artifact_id"].as_str().unwrap()));
    assert_eq!(server.get(&format!("{path}/metadata")).await, metadata);

    let whole = get(&server, &path, &[]).await;
    assert_eq!(whole.status(), StatusCode::OK);
    let etag = format!("\"{}\"", metadata["sha256"].as_str().unwrap());
    for (name, value) in [
        ("etag", etag.as_str()),
        ("content-length", "1500000"),
        ("content-type", "text/plain; charset=utf-8"),
        ("accept-ranges", "bytes"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
        ("content-disposition", "attachment; filename=\"gr__e.txt\"; filename*=UTF-8''gr%C3%BC%C3%9Fe.txt"),
    ] {
        assert_eq!(header(&whole, name), value, "{name}");
    }
    assert_eq!(whole.bytes().await.unwrap(), content);

    let part = get(&server, &path, &[("range", "bytes=300000-900001"), ("if-range", etag.as_str())]).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(header(&part, "content-range"), "bytes 300000-900001/1500000");
    assert_eq!(part.bytes().await.unwrap(), &content[300_000..=900_001]);
    let tail = get(&server, &path, &[("range", "bytes=-5")]).await;
    assert_eq!(tail.bytes().await.unwrap(), &content[1_499_995..]);
    let changed = get(&server, &path, &[("range", "bytes=0-1"), ("if-range", "\"other\"")]).await;
    assert_eq!(changed.status(), StatusCode::OK);
    let behind = get(&server, &path, &[("range", "bytes=1500000-")]).await;
    assert_eq!((behind.status(), header(&behind, "content-range")), (StatusCode::RANGE_NOT_SATISFIABLE, "bytes */1500000"));
    assert_eq!(json(behind).await["code"], "range_not_satisfiable");
    let known = get(&server, &path, &[("if-none-match", etag.as_str())]).await;
    assert_eq!((known.status(), header(&known, "etag")), (StatusCode::NOT_MODIFIED, etag.as_str()));

    let head = server.request(Method::HEAD, &path).send().await.unwrap();
    assert_eq!((head.status(), header(&head, "content-length")), (StatusCode::OK, "1500000"));
    assert!(head.bytes().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_upload_may_have_an_end() {
    let server = started_with(|_| ()).await;
    let long = json(upload(&server, "?expires_in_ms=3600000", "text/plain", b"soon gone").await).await;
    let lasts = long["expires_at"].as_u64().unwrap() - long["created_at"].as_u64().unwrap();
    assert_eq!(lasts, 3_600_000);
    let path = |it: &Value| format!("/api/v1/artifacts/{}", it["artifact_id"].as_str().unwrap());
    assert_eq!(get(&server, &path(&long), &[]).await.status(), StatusCode::OK);

    let short = json(upload(&server, "?expires_in_ms=1", "text/plain", b"gone").await).await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while get(&server, &path(&short), &[]).await.status() != StatusCode::NOT_FOUND {
        assert!(std::time::Instant::now() < deadline, "it does not expire");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for wrong in ["0", "-1", "soon"] {
        let refused = upload(&server, &format!("?expires_in_ms={wrong}"), "text/plain", b"x").await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{wrong}");
    }
}

#[tokio::test]
async fn content_that_is_not_what_it_is_called_is_refused() {
    let server = started_with(|config| config.limits.upload_bytes = 1_000).await;
    let refused = async |media_type: &str, content: &[u8]| {
        let response = upload(&server, "", media_type, content).await;
        (response.status().as_u16(), json(response).await["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(refused("image/png", b"<script>alert(1)</script>").await, (415, "unsupported_media_type".to_owned()));
    assert_eq!(refused("text/plain", PNG).await, (415, "unsupported_media_type".to_owned()));
    assert_eq!(refused("multipart/form-data; boundary=x", b"--x--").await, (415, "unsupported_media_type".to_owned()));
    assert_eq!(refused("nonsense", b"x").await, (415, "unsupported_media_type".to_owned()));
    assert_eq!(refused("text/plain", &[b'x'; 1_001]).await, (413, "payload_too_large".to_owned()));
    assert_eq!(upload(&server, "", "text/plain", &[b'x'; 1_000]).await.status(), StatusCode::CREATED);
    assert_eq!(upload(&server, "?thread_id=t", "text/plain", b"x").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(upload(&server, "?nam=t", "text/plain", b"x").await.status(), StatusCode::BAD_REQUEST);
    for path in ["/api/v1/artifacts/none", "/api/v1/artifacts/%2e%2e%2fledger.redb", "/api/v1/artifacts/none/metadata"] {
        let response = get(&server, path, &[]).await;
        assert_eq!(json(response).await["code"], "not_found", "{path}");
    }
}

#[tokio::test]
async fn only_what_runs_nothing_is_shown() {
    let server = started_with(|_| ()).await;
    for (media_type, content, expect) in [
        ("image/png", PNG, "inline"),
        ("text/plain", &b"hello"[..], "inline"),
        ("text/html", &b"<html><script>alert(1)</script>"[..], "attachment"),
        ("image/svg+xml", &b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"[..], "attachment"),
        ("application/pdf", &b"%PDF-1.7\n"[..], "attachment"),
    ] {
        let uploaded = upload(&server, "", media_type, content).await;
        assert_eq!(uploaded.status(), StatusCode::CREATED, "{media_type}");
        let path = header(&uploaded, "location").to_owned();
        let response = get(&server, &format!("{path}?disposition=inline"), &[]).await;
        assert_eq!(header(&response, "content-disposition"), expect, "{media_type}");
        let response = get(&server, &path, &[]).await;
        assert_eq!(header(&response, "content-disposition"), "attachment", "{media_type}");
    }
}
