//! Every request that cannot be answered gets a problem document that says what is wrong.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use crate::support::{TestServer, started_with};
use agent_host_protocol::{EventId, RunId};
use reqwest::{Method, StatusCode};
use serde_json::json;

async fn started() -> TestServer {
    started_with(|_| ()).await
}

const EVENT: &str = r#"{"event_type":"message.received","input":{"text":"hi"}}"#;

async fn post(server: &TestServer, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> reqwest::Response {
    let mut request = server.request(Method::POST, path).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// The problem of an answer, in one line, with ids blanked out. Fails when it is not a whole problem document.
async fn problem(response: reqwest::Response) -> String {
    let status = response.status();
    assert_eq!(response.headers()["content-type"], "application/problem+json", "{status}");
    let document: serde_json::Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert_eq!(document["type"], "about:blank");
    assert_eq!(document["status"], status.as_u16());
    assert_eq!(document["title"], status.canonical_reason().unwrap());
    let field = document["field"].as_str().map(|field| format!(" [{field}]")).unwrap_or_default();
    let detail = document["detail"].as_str().unwrap();
    let detail: Vec<_> =
        detail.split(' ').map(|word| if word.trim_end_matches([':', ';', ',']).len() == 36 { "ID" } else { word }).collect();
    format!("{} {}{field}: {}", status.as_u16(), document["code"].as_str().unwrap(), detail.join(" "))
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn an_event_that_cannot_be_taken_is_refused() {
    let server = started().await;
    let refused = async |headers: &[(&str, &str)], body: &str| {
        problem(post(&server, "/api/v1/events", headers, body.to_owned()).await).await
    };

    insta::assert_snapshot!(refused(&[], EVENT).await, @"415 unsupported_media_type: send JSON, with the header `Content-Type: application/json`");
    insta::assert_snapshot!(refused(&[("content-type", "text/plain")], EVENT).await, @"415 unsupported_media_type: send JSON, with the header `Content-Type: application/json`");
    insta::assert_snapshot!(refused(&[JSON], "").await, @"400 invalid_json: the body is not JSON: EOF while parsing a value at line 1 column 0");
    insta::assert_snapshot!(refused(&[JSON], "{\"event_type\"").await, @"400 invalid_json: the body is not JSON: EOF while parsing an object at line 1 column 13");
    insta::assert_snapshot!(refused(&[JSON], r#"{"event_type":"a","input":{"txt":1}}"#).await, @"400 invalid_argument [input.txt]: unknown field `txt`, expected one of `text`, `contents`, `attachments`, `message_chain` at line 1 column 32");
    insta::assert_snapshot!(refused(&[JSON], r#"{"event_type":7}"#).await, @"400 invalid_argument [event_type]: invalid type: integer `7`, expected a string at line 1 column 15");
    insta::assert_snapshot!(refused(&[JSON], r#"{"event_type":"a b"}"#).await, @"400 invalid_argument [event_type]: `event_type` must be names joined by dots, such as `message.received`, at most 128 characters");
    insta::assert_snapshot!(refused(&[JSON], r#"{"event_type":"a","source":"moon"}"#).await, @"400 invalid_argument [source]: `source` must be one of: platform, webui, api, scheduler, system, run, pipeline_adapter");
    insta::assert_snapshot!(refused(&[JSON], "[]").await, @"400 invalid_argument [body]: the body must be a JSON object");
    insta::assert_snapshot!(refused(&[JSON, ("idempotency-key", "a b")], EVENT).await, @"400 invalid_argument [Idempotency-Key]: the header `Idempotency-Key` must be one key of 1 to 255 visible ASCII characters");
    let deep = format!(r#"{{"event_type":"a","data":{{"x":{}"#, "[".repeat(60_000));
    insta::assert_snapshot!(refused(&[JSON], &deep).await, @"400 invalid_json: the body is not JSON: recursion limit exceeded at line 1 column 156");
    insta::assert_snapshot!(refused(&[JSON], &"x".repeat(1024 * 1024)).await, @"413 payload_too_large: the body is larger than 262144 bytes, the limit of this request");
}

#[tokio::test]
async fn an_event_that_no_binding_wants_is_kept_without_runs() {
    let server = started().await;
    let body = r#"{"event_type":"nobody.listens"}"#;
    let answer = post(&server, "/api/v1/events", &[JSON], body).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let answer: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(answer["runs"], json!([]));

    let event = server.get(&format!("/api/v1/events/{}", answer["event_id"].as_str().unwrap())).await;
    assert_eq!(
        (&event["event_id"], &event["event_type"], &event["runs"]),
        (&answer["event_id"], &json!("nobody.listens"), &json!([]))
    );
}

#[tokio::test]
async fn an_idempotency_key_does_a_thing_once() {
    let server = started().await;
    let body = r#"{"event_type":"nobody.listens"}"#;
    let key = [JSON, ("idempotency-key", "k")];
    let first = post(&server, "/api/v1/events", &key, body).await;
    assert!(!first.headers().contains_key("idempotency-replayed"));
    let again = post(&server, "/api/v1/events", &key, body).await;
    assert_eq!((again.status(), &again.headers()["idempotency-replayed"]), (first.status(), &"true".parse().unwrap()));
    assert_eq!(again.text().await.unwrap(), first.text().await.unwrap());

    let other = post(&server, "/api/v1/events", &key, r#"{"event_type":"somebody.listens"}"#).await;
    let refusal = problem(other).await;
    assert!(refusal.starts_with("422 idempotency_conflict"), "{refusal}");
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let server = started().await;
    let refused = async |path: String| problem(server.request(Method::GET, &path).send().await.unwrap()).await;
    let (run, event) = (RunId::new(), EventId::new());

    insta::assert_snapshot!(refused("/api".to_owned()).await, @"404 not_found: there is nothing at /api; the API is under /api/v1, such as /api/v1/runs");
    insta::assert_snapshot!(refused("/api/v1/runs/".to_owned()).await, @"404 not_found: there is nothing at /api/v1/runs/; the API is under /api/v1, such as /api/v1/runs");
    insta::assert_snapshot!(refused(format!("/api/v1/events/{event}")).await, @"404 not_found: there is no event ID");
    insta::assert_snapshot!(refused("/api/v1/runs/7".to_owned()).await, @"404 not_found: no run: `7` is not an id: ids are UUIDs as the host gave them, such as ID");
    insta::assert_snapshot!(refused("/api/v1/runs/%ff".to_owned()).await, @"404 not_found: the id of a run is not UTF-8");
    for below in ["", "/context", "/grant", "/audit", "/events"] {
        assert_eq!(refused(format!("/api/v1/runs/{run}{below}")).await, "404 not_found: there is no run ID", "{below}");
    }
    let cancel = problem(post(&server, &format!("/api/v1/runs/{run}/cancel"), &[], "").await).await;
    assert!(cancel.starts_with("404 not_found"), "{cancel}");
}

#[tokio::test]
async fn a_query_that_means_nothing_is_refused() {
    let server = started().await;
    let refused =
        async |query: &str| problem(server.request(Method::GET, &format!("/api/v1/runs?{query}")).send().await.unwrap()).await;

    insta::assert_snapshot!(refused("limit=0").await, @"400 invalid_argument [limit]: `limit` must be a number from 1 to 100");
    insta::assert_snapshot!(refused("limit=many").await, @"400 invalid_argument [limit]: `limit` must be a number from 1 to 100");
    insta::assert_snapshot!(refused("stauts=failed").await, @"400 invalid_argument [stauts]: `stauts` is not a query parameter here; there are: status, runner_id, binding_id, conversation_id, workspace_id, event_id, parent_run_id, excerpts, cursor, limit");
    insta::assert_snapshot!(refused("status=done").await, @"400 invalid_argument [status]: `status` must be one of: created, queued, dispatching, claimed, running, waiting, completed, failed, cancelled, timeout");
    insta::assert_snapshot!(refused("runner_id=echo").await, @"400 invalid_argument [runner_id]: `runner_id`: `echo` is not a runner id: write plugin:AUTHOR/PLUGIN/NAME, each of the three starting with a letter or digit and continuing with letters, digits, `.`, `_` or `-`, at most 64 characters");
    insta::assert_snapshot!(refused("event_id=1").await, @"400 invalid_argument [event_id]: `event_id`: `1` is not an id: ids are UUIDs as the host gave them, such as ID");
    insta::assert_snapshot!(refused("limit=1&limit=2").await, @"400 invalid_argument [limit]: `limit` is there twice");
    insta::assert_snapshot!(refused("binding_id=%ff").await, @"400 invalid_argument [query]: the query has bytes that are not UTF-8, or a `%` without two hexadecimal digits");
    let cursor = refused("cursor=nonsense").await;
    assert!(cursor.starts_with("400 invalid_cursor"), "{cursor}");
}

#[tokio::test]
async fn a_method_that_a_path_does_not_take_is_refused_with_those_that_it_takes() {
    let server = started().await;
    for (method, path, allow) in [
        (Method::PUT, "/api/v1/events", "GET,HEAD,POST"),
        (Method::DELETE, "/api/v1/runs", "GET,HEAD,POST"),
        (Method::PUT, "/healthz", "GET,HEAD"),
    ] {
        let response = server.request(method, path).send().await.unwrap();
        assert_eq!(response.headers()["allow"], allow);
        let refusal = problem(response).await;
        assert!(refusal.starts_with("405 method_not_allowed"), "{refusal}");
    }
}

#[tokio::test]
async fn a_cancel_has_a_short_reason() {
    let server = started().await;
    let path = format!("/api/v1/runs/{}/cancel", RunId::new());
    let refused = async |headers: &[(&str, &str)], body: String| problem(post(&server, &path, headers, body).await).await;

    insta::assert_snapshot!(refused(&[JSON], json!({ "reason": "x".repeat(1025) }).to_string()).await, @"400 invalid_argument [reason]: `reason` has 1025 bytes; the limit is 1024");
    insta::assert_snapshot!(refused(&[JSON], "x".repeat(100_000)).await, @"413 payload_too_large: the body is larger than 6400 bytes, the limit of this request");
    insta::assert_snapshot!(refused(&[JSON], r#"{"why":"x"}"#.to_owned()).await, @"400 invalid_argument [why]: unknown field `why`, expected `reason` at line 1 column 6");
    insta::assert_snapshot!(refused(&[], r#"{"reason":"x"}"#.to_owned()).await, @"415 unsupported_media_type: send JSON, with the header `Content-Type: application/json`");
}

#[tokio::test]
async fn a_host_that_lives_and_is_ready_says_so() {
    let server = started().await;
    let health = server.request(Method::GET, "/healthz").send().await.unwrap();
    assert_eq!((health.status(), health.text().await.unwrap().as_str()), (StatusCode::OK, "ok"));
    assert_eq!(server.get("/readyz").await["ready"], true);
    assert_eq!(server.get("/api/v1/runners").await, json!({ "plugins": [], "runners": [], "external": [], "bindings": [] }));
}

#[tokio::test]
async fn a_host_that_goes_down_takes_no_more_events() {
    let server = started().await;
    server.host.shutdown(std::time::Duration::ZERO).await;
    let refusal = post(&server, "/api/v1/events", &[JSON], EVENT).await;
    assert_eq!(refusal.headers()["retry-after"], "1");
    let refusal = problem(refusal).await;
    assert!(refusal.starts_with("503 shutting_down"), "{refusal}");
    let ready = server.request(Method::GET, "/readyz").send().await.unwrap();
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
}
