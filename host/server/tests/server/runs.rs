//! Runs over HTTP: waited for, followed, resumed. The runner is not installed, so each run fails at once, with
//! events like any other; runs of real components are in the end-to-end tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use agent_host_config::BindingConfig;

use crate::support::{TestServer, started_with};
use agent_host_protocol::RunId;
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

const EVENT: &str = r#"{"event_type":"message.received","input":{"text":"hi"}}"#;

async fn bound() -> TestServer {
    started_with(|config| config.bindings.push(BindingConfig::for_runner("plugin:nobody/nothing/default".parse().unwrap()))).await
}

async fn send(server: &TestServer, prefer: Option<&str>) -> Response {
    let request = server.request(Method::POST, "/api/v1/events").header("content-type", "application/json").body(EVENT);
    let request = prefer.into_iter().fold(request, |request, prefer| request.header("prefer", prefer));
    request.send().await.unwrap()
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// A run that has ended.
async fn ended(server: &TestServer) -> Value {
    let mut answer = json(send(server, Some("wait=10")).await).await;
    answer["runs"][0].take()
}

async fn stream(server: &TestServer, path: &str, last_event_id: Option<&str>) -> Response {
    let request = server.request(Method::GET, path).header("accept", "text/event-stream");
    last_event_id.into_iter().fold(request, |request, id| request.header("last-event-id", id)).send().await.unwrap()
}

#[tokio::test]
async fn a_client_that_waits_gets_runs_that_have_ended() {
    let server = bound().await;
    let answer = send(&server, Some("respond-async, wait=10")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["preference-applied"], "wait=10");
    assert!(!answer.headers().contains_key("location"));
    let answer = json(answer).await;
    let run = &answer["runs"][0];
    assert_eq!(answer["run_ids"], serde_json::json!([run["run_id"]]));
    assert_eq!(
        (&run["status"], &run["failure"]["code"], &run["output"]),
        (&"failed".into(), &"runner_not_found".into(), &Value::Null)
    );
    assert!(run.as_object().unwrap().contains_key("output"));
    assert_eq!(run["event_id"], answer["event_id"]);
}

#[tokio::test]
async fn a_client_that_does_not_wait_is_told_where_to_look() {
    let server = bound().await;
    let answer = send(&server, None).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    assert!(!answer.headers().contains_key("preference-applied"));
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let answer = json(answer).await;
    let run = &answer["runs"][0];
    assert_eq!(location, format!("/api/v1/runs/{}", run["run_id"].as_str().unwrap()));
    assert!(!run.as_object().unwrap().contains_key("output"));
    assert_eq!(server.get(&location).await["run_id"], run["run_id"]);

    let event = server.get(&format!("/api/v1/events/{}", answer["event_id"].as_str().unwrap())).await;
    assert_eq!((&event["input"]["text"], &event["runs"][0]), (&"hi".into(), &run["run_id"]));
}

#[tokio::test]
async fn a_stream_has_every_event_and_ends_with_the_run() {
    let server = bound().await;
    let run = ended(&server).await;
    let path = format!("/api/v1/runs/{}/events", run["run_id"].as_str().unwrap());
    let page = server.get(&path).await;

    let response = stream(&server, &path, None).await;
    let headers = response.headers();
    assert_eq!(
        (&headers["content-type"], &headers["cache-control"]),
        (&"text/event-stream".parse().unwrap(), &"no-cache".parse().unwrap())
    );
    assert_eq!(headers["x-accel-buffering"], "no");
    let text = response.text().await.unwrap();
    // Once, with an event: an empty block is an event without data to some parsers.
    let blocks: Vec<&str> = text.split_terminator("\n\n").collect();
    assert!(blocks[0].contains("retry: 1000") && blocks.iter().all(|block| block.contains("\ndata: ")), "{text}");
    assert_eq!(text.matches("retry:").count(), 1, "{text}");

    let events: Vec<_> = stream(&server, &path, None).await.bytes_stream().eventsource().map(Result::unwrap).collect().await;
    assert_eq!(events.len() as u64, run["last_sequence"].as_u64().unwrap());
    for (event, item) in events.iter().zip(page["items"].as_array().unwrap()) {
        assert_eq!(
            (&serde_json::from_str::<Value>(&event.data).unwrap(), event.event.as_str()),
            (item, item["type"].as_str().unwrap())
        );
    }
    assert_eq!(events.last().unwrap().event, "run.failed");

    // From every place, what is left; from the end, nothing. The header wins over the query.
    for (at, event) in events.iter().enumerate() {
        let rest = stream(&server, &format!("{path}?after=nonsense"), Some(&event.id)).await;
        let rest: Vec<_> = rest.bytes_stream().eventsource().map(|event| event.unwrap().id).collect().await;
        let expected: Vec<_> = events[at + 1..].iter().map(|event| event.id.clone()).collect();
        assert_eq!(rest, expected);
    }
}

#[tokio::test]
async fn a_place_in_another_run_is_no_place_in_this_one() {
    let server = bound().await;
    let (one, other) = (ended(&server).await, ended(&server).await);
    let path = |run: &Value| format!("/api/v1/runs/{}/events", run["run_id"].as_str().unwrap());
    let foreign = server.get(&path(&other)).await["next_cursor"].as_str().unwrap().to_owned();
    for id in [foreign.as_str(), "0", "\u{e9}", &"x".repeat(5_000)] {
        let refused = stream(&server, &path(&one), Some(id)).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{id}");
        assert_eq!(json(refused).await["code"], "invalid_cursor");
    }
    let refused = server.request(Method::GET, &format!("{}?after={foreign}", path(&one))).send().await.unwrap();
    assert_eq!(json(refused).await["code"], "invalid_cursor");
    let refused = server.request(Method::GET, &path(&one)).header("accept", "text/html").send().await.unwrap();
    assert_eq!((refused.status(), &json(refused).await["code"]), (StatusCode::NOT_ACCEPTABLE, &"not_acceptable".into()));
}

#[tokio::test]
async fn events_are_read_page_by_page() {
    let server = bound().await;
    let run = ended(&server).await;
    let path = format!("/api/v1/runs/{}/events?limit=1", run["run_id"].as_str().unwrap());
    let mut page = server.get(&path).await;
    let mut sequences = Vec::new();
    loop {
        sequences.extend(page["items"].as_array().unwrap().iter().map(|event| event["sequence"].as_u64().unwrap()));
        if page["has_more"] == false {
            break;
        }
        page = server.get(&format!("{path}&after={}", page["next_cursor"].as_str().unwrap())).await;
    }
    assert_eq!(sequences, (1..=run["last_sequence"].as_u64().unwrap()).collect::<Vec<_>>());
}

#[tokio::test]
async fn runs_are_found_by_what_they_are() {
    let server = bound().await;
    let run = ended(&server).await;
    let count = async |query: &str| server.get(&format!("/api/v1/runs?{query}")).await["items"].as_array().unwrap().len();
    assert_eq!(count("").await, 1);
    assert_eq!(count("status=failed&binding_id=default&runner_id=plugin:nobody/nothing/default").await, 1);
    assert_eq!(count(&format!("event_id={}", run["event_id"].as_str().unwrap())).await, 1);
    for other in ["status=completed", "conversation_id=c", "workspace_id=w", &format!("event_id={}", RunId::new())] {
        assert_eq!(count(other).await, 0, "{other}");
    }
}

#[tokio::test]
async fn a_run_that_has_ended_has_a_grant_and_cannot_be_cancelled() {
    let server = bound().await;
    let run = ended(&server).await;
    let path = format!("/api/v1/runs/{}", run["run_id"].as_str().unwrap());
    assert_eq!(server.get(&format!("{path}/grant")).await["runner_id"], run["runner_id"]);
    assert!(server.get(&format!("{path}/audit")).await["items"].is_array());

    let context = server.request(Method::GET, &format!("{path}/context")).send().await.unwrap();
    assert_eq!(context.status(), StatusCode::NOT_FOUND);
    assert!(json(context).await["detail"].as_str().unwrap().contains("has no context"));

    let cancel = server.request(Method::POST, &format!("{path}/cancel")).send().await.unwrap();
    assert_eq!((cancel.status(), &json(cancel).await["code"]), (StatusCode::CONFLICT, &"conflict".into()));
}

#[tokio::test]
async fn bindings_say_that_their_runner_is_missing() {
    let server = bound().await;
    let runners = server.get("/api/v1/runners").await;
    assert_eq!(runners["bindings"][0]["ready"], false);
    assert!(runners["bindings"][0]["problem"].as_str().unwrap().contains("plugin:nobody/nothing/default"));
}
