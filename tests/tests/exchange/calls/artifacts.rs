//! Content comes and goes as it is.

use agent_host_tests::grants::EVERYTHING;
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::calls::outside::ExecutorHost;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn content_larger_than_one_call_is_written_and_read_whole_and_in_parts() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let bytes: Vec<u8> = (0..2_500_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let upload = outside.request(Method::POST, &held.path("/calls/artifacts?name=a.bin"), &held.token);
    let answer = upload.header(header::CONTENT_TYPE, "application/octet-stream").body(bytes.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let artifact: Value = answer.json().await.unwrap();
    assert_eq!((&artifact["size"], &artifact["name"]), (&json!(2_500_000), &json!("a.bin")), "{artifact:#}");
    let created = outside.host.until(&held.run, |event| event["type"] == "artifact.created").await;
    assert_eq!(created["data"]["artifact"], artifact);

    let path = held.path(&format!("/calls/artifacts/{}", artifact["artifact_id"].as_str().unwrap()));
    let whole = outside.request(Method::GET, &path, &held.token).send().await.unwrap();
    assert_eq!(whole.status(), 200);
    assert_eq!(whole.headers()[header::CONTENT_LENGTH], "2500000");
    assert!(whole.bytes().await.unwrap() == bytes, "it is as it was");
    let range = outside.request(Method::GET, &path, &held.token).header(header::RANGE, "bytes=1000000-2200000");
    let part = range.send().await.unwrap();
    assert_eq!(
        (part.status(), part.headers()[header::CONTENT_RANGE].to_str().unwrap()),
        (reqwest::StatusCode::PARTIAL_CONTENT, "bytes 1000000-2200000/2500000")
    );
    assert!(part.bytes().await.unwrap() == bytes[1_000_000..=2_200_000]);
    let behind = outside.request(Method::GET, &path, &held.token).header(header::RANGE, "bytes=2500000-");
    assert_eq!(behind.send().await.unwrap().status(), 416);
    let head = outside.request(Method::HEAD, &path, &held.token).send().await.unwrap();
    assert_eq!((head.status().as_u16(), head.headers()[header::CONTENT_LENGTH].to_str().unwrap()), (200, "2500000"));

    // Content that is not what it is declared as is refused, and leaves nothing.
    let liar = outside.request(Method::POST, &held.path("/calls/artifacts"), &held.token);
    let answer = liar.header(header::CONTENT_TYPE, "image/png").body("no picture").send().await.unwrap();
    assert_eq!(answer.status(), 400);
    let missing = outside.request(Method::GET, &held.path("/calls/artifacts/nobody"), &held.token).send().await.unwrap();
    assert_eq!(missing.status(), 404);
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn content_that_is_too_large_is_refused_and_leaves_nothing() {
    let outside = ExecutorHost::limited(EVERYTHING, "", "artifact_bytes = 100000\nartifact_read_bytes = 40000\n").await;
    let held = outside.claimed_run().await;
    let upload = |bytes: usize| {
        let upload = outside.request(Method::POST, &held.path("/calls/artifacts"), &held.token);
        upload.header(header::CONTENT_TYPE, "application/octet-stream").body(vec![7; bytes]).send()
    };
    assert_eq!(upload(100_001).await.unwrap().status(), 413);
    assert_eq!(upload(100_000).await.unwrap().status(), 201);
    let created = outside.host.events(&held.run).await.iter().filter(|event| event["type"] == "artifact.created").count();
    assert_eq!(created, 1);
    outside.complete(&held).await;
    outside.host.check();
}
