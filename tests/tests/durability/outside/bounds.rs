//! Limits of size, time and number.

use std::time::{Duration, Instant};

use agent_host_tests::{OutsideServer, outside::HALF, world::PATIENCE};
use serde_json::json;

use crate::outside::{is_refused, take, world};

#[tokio::test]
async fn a_body_that_is_too_large_is_not_sent() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "[limits]\nhttp_request_bytes = 100\n").await;
    let (fits, more) = ("x".repeat(100), "x".repeat(101));
    let step_outcomes = take(&world, &format!("post {url} {more}; post {url} {fits}", url = outside.url("echo"))).await;
    assert_eq!(step_outcomes[0]["code"], "payload_too_large", "{step_outcomes:?}");
    assert_eq!(step_outcomes[1], 200);
    assert_eq!(outside.seen().len(), 1);
    assert_eq!(outside.seen()[0].body, fits);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_body_without_end_ends() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "[limits]\nhttp_response_bytes = 100000\n").await;
    let steps = format!("get {}; rest; rest; get {}; rest", outside.url("endless"), outside.url("bytes/100001"));
    let step_outcomes = take(&world, &steps).await;
    is_refused(&step_outcomes[1], "payload_too_large", "response_too_large");
    assert!(step_outcomes[1]["after"].as_u64().unwrap() <= 100_000, "{step_outcomes:?}");
    is_refused(&step_outcomes[2], "payload_too_large", "response_too_large");
    is_refused(&step_outcomes[4], "payload_too_large", "response_too_large");
    let step_outcomes = take(&world, &format!("get {}; rest", outside.url("bytes/100000"))).await;
    assert_eq!(step_outcomes[1], json!([100_000, 100_000 * u64::from(b'x')]), "to the last byte that it may have");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn slow_readers_are_disconnected() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let limited = world(&outside, "[limits]\nhttp_timeout_ms = 400\n").await;
    let began = Instant::now();
    let steps = format!(
        "get {}; get {}; rest; get {}; rest",
        outside.url("held/head"),
        outside.url("halves/body"),
        outside.url("pieces/1000/20")
    );
    let step_outcomes = take(&limited, &steps).await;
    is_refused(&step_outcomes[0], "deadline_exceeded", "http_timeout");
    is_refused(&step_outcomes[2], "deadline_exceeded", "http_timeout");
    assert_eq!(step_outcomes[2]["after"], HALF, "{step_outcomes:?}");
    // Each piece comes in time, and all of them do not.
    is_refused(&step_outcomes[4], "deadline_exceeded", "http_timeout");
    assert!(step_outcomes[4]["after"].as_u64().unwrap() > 0, "{step_outcomes:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    limited.host.shutdown(PATIENCE).await;

    // The runner may want less time, and cannot have more.
    let limited = world(&outside, "[limits]\nhttp_timeout_ms = 1500\n").await;
    let url = outside.url("held/mine");
    let (began, mut took) = (Instant::now(), Vec::new());
    for ms in [100, 60_000] {
        let step_outcomes = take(&limited, &format!("within {ms} {url}")).await;
        is_refused(&step_outcomes[0], "deadline_exceeded", "http_timeout");
        took.push(began.elapsed());
    }
    assert!(took[0] < Duration::from_millis(1_500) && took[1] < Duration::from_secs(15), "{took:?}");
    limited.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_connection_that_breaks_is_an_error_and_no_end() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "").await;
    let steps =
        format!("get {}; rest; rest; get {}; get {}; rest", outside.url("broken"), outside.url("silent"), outside.url("ok/then"));
    let step_outcomes = take(&world, &steps).await;
    is_refused(&step_outcomes[1], "runtime_error", "connection_closed");
    assert_eq!((&step_outcomes[1]["after"], &step_outcomes[1]["retryable"]), (&json!(100), &json!(true)), "{step_outcomes:?}");
    is_refused(&step_outcomes[2], "runtime_error", "connection_closed");
    is_refused(&step_outcomes[3], "runtime_error", "connection_closed");
    assert_eq!(step_outcomes[4..], [json!(200), json!("ok/then")]);
    assert_eq!(outside.seen().len(), 3, "the host repeats nothing by itself");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_run_has_few_requests_open_at_once() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let world = world(&outside, "[limits]\nhttp_requests_at_once = 2\n").await;
    let (halves, ok) = (outside.url("halves"), outside.url("ok/more"));
    // Dropped, or read to its end, or broken: then there is room again.
    let steps = format!(
        "get {halves}; get {halves}; get {ok}; drop; get {ok}; get {ok}; rest; get {ok}; rest; get {}; rest; get {ok}",
        outside.url("broken")
    );
    let step_outcomes = take(&world, &steps).await;
    is_refused(&step_outcomes[2], "rate_limited", "http_requests_at_once");
    assert_eq!(step_outcomes[2]["retryable"], true);
    assert_eq!(step_outcomes[4], 200);
    is_refused(&step_outcomes[5], "rate_limited", "http_requests_at_once");
    assert_eq!(step_outcomes[6..9], [json!("ok/more"), json!(200), json!("ok/more")]);
    assert_eq!(step_outcomes[9], 200);
    is_refused(&step_outcomes[10], "runtime_error", "connection_closed");
    assert_eq!(step_outcomes[11], 200);
    // The connections of one run do not count for another.
    assert_eq!(take(&world, &format!("get {halves}; get {halves}")).await, [200, 200]);
    world.host.shutdown(PATIENCE).await;
}
