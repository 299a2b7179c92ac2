//! The accepted events and the audit of a host, as pages and as streams.

use agent_host_tests::{Process, world::PATIENCE};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::access::support::{ASKS, Guarded, message};

/// An event of a type in a conversation of a workspace.
fn event(event_type: &str, workspace: &str, conversation: &str) -> Value {
    let conversation = json!({ "workspace_id": workspace, "conversation_id": conversation });
    json!({ "event_type": event_type, "conversation": conversation, "input": { "text": "x" } })
}

/// The first `count` items of a stream, each with its cursor. `meanwhile` happens after the stream is open.
async fn streamed(
    host: &Guarded,
    token: &str,
    path: &str,
    last: Option<&str>,
    count: usize,
    meanwhile: impl AsyncFnOnce(),
) -> Vec<(String, Value)> {
    let mut request = host.http.get(host.url(path)).header("accept", "text/event-stream").bearer_auth(token);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    let mut stream = answer.bytes_stream().eventsource();
    meanwhile().await;
    let mut seen = Vec::new();
    while seen.len() < count {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await.expect("the stream has more").unwrap().unwrap();
        if !event.id.is_empty() && !event.data.is_empty() {
            seen.push((event.id, serde_json::from_str(&event.data).unwrap()));
        }
    }
    seen
}

fn types(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["event_type"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn accepted_events_are_listed_and_followed_over_a_crash_of_the_host() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let send = async |host: &Guarded, event: Value| {
        host.post(&host.root, "/api/v1/events", &event).await.good()["event_id"].as_str().unwrap().to_owned()
    };
    let mut ids = Vec::new();
    for (event_type, workspace, conversation) in
        [("ticket.opened", "w", "a"), ("ticket.closed", "w", "b"), ("build.failed", "v", "a"), ("ticket.opened", "v", "a")]
    {
        ids.push(send(&host, event(event_type, workspace, conversation)).await);
    }
    let list = async |host: &Guarded, query: &str| host.get(&host.root, &format!("/api/v1/events?{query}")).await.good();
    for (query, wanted) in [
        ("", vec!["ticket.opened", "build.failed", "ticket.closed", "ticket.opened"]),
        ("event_type=ticket.opened", vec!["ticket.opened", "ticket.opened"]),
        ("event_type=ticket.*", vec!["ticket.opened", "ticket.closed", "ticket.opened"]),
        ("workspace_id=w", vec!["ticket.closed", "ticket.opened"]),
        ("conversation_id=a&workspace_id=v", vec!["ticket.opened", "build.failed"]),
        ("thread_id=none", vec![]),
        ("source=api&limit=1", vec!["ticket.opened"]),
        ("since=1&until=2", vec![]),
    ] {
        let page = list(&host, query).await;
        assert_eq!(types(page["items"].as_array().unwrap()), wanted, "{query}");
        assert_eq!(page["has_more"], query.contains("limit"), "{query}: {page:#}");
    }
    let first = list(&host, "limit=3").await;
    let next = list(&host, &format!("limit=3&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!(next["items"][0]["event_id"], *ids[0]);
    let one = host.get(&host.root, &format!("/api/v1/events/{}", ids[0])).await.good();
    assert_eq!(next["items"][0], one, "an item is what the event itself shows");

    // A page, and from there on everything, once.
    let cursor = first["prev_cursor"].as_str().unwrap().to_owned();
    let path = "/api/v1/events?event_type=ticket.*";
    let root = host.root.clone();
    let seen = streamed(&host, &root, path, Some(&cursor), 2, async || {
        for event_type in ["ticket.one", "build.failed", "ticket.two"] {
            send(&host, event(event_type, "w", "a")).await;
        }
    })
    .await;
    assert_eq!(
        seen.iter().map(|(_, event)| event["event_type"].as_str().unwrap()).collect::<Vec<_>>(),
        ["ticket.one", "ticket.two"]
    );
    // Without a cursor: what comes from now on.
    let new = streamed(&host, &root, path, None, 1, async || drop(send(&host, event("ticket.three", "w", "a")).await)).await;
    assert_eq!(new[0].1["event_type"], "ticket.three");

    let (root, http) = (host.root.clone(), host.http.clone());
    let host = Guarded { process: Process::start_as(host.process.kill(), "", ASKS), http, root };
    let (last, before) = seen.last().unwrap();
    assert_eq!(before["event_type"], "ticket.two");
    let again =
        streamed(&host, &host.root, path, Some(last), 2, async || drop(send(&host, event("ticket.four", "w", "a")).await)).await;
    assert_eq!(
        again.iter().map(|(_, event)| event["event_type"].as_str().unwrap()).collect::<Vec<_>>(),
        ["ticket.three", "ticket.four"]
    );

    for query in ["cursor=x", "limit=0", "since=yesterday", "kind=x"] {
        assert_eq!(host.get(&host.root, &format!("/api/v1/events?{query}")).await.status, 400, "{query}");
    }
    host.get(&host.root, &format!("/api/v1/events?after={last}")).await.is(400, "invalid_argument");
    host.get(&host.root, &format!("/api/v1/audit?cursor={last}")).await.is(400, "invalid_cursor");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_of_a_workspace_sees_its_events_and_no_audit() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let token = host.key(&["runs:read"], Some("mine")).await;
    for workspace in ["mine", "other", "mine"] {
        host.post(&host.root, "/api/v1/events", &event("x.y", workspace, "c")).await.good();
    }
    host.post(&host.root, "/api/v1/events", &message("of no workspace")).await.good();
    for (query, wanted) in [("", 2), ("?workspace_id=mine", 2), ("?workspace_id=other", 0)] {
        let page = host.get(&token, &format!("/api/v1/events{query}")).await.good();
        assert_eq!(page["items"].as_array().unwrap().len(), wanted, "{query}: {page:#}");
    }
    let seen = streamed(&host, &token, "/api/v1/events", None, 1, async || {
        for workspace in ["other", "mine"] {
            host.post(&host.root, "/api/v1/events", &event("x.y", workspace, "c")).await.good();
        }
    })
    .await;
    assert_eq!(seen[0].1["conversation"]["workspace_id"], "mine");
    host.get(&token, "/api/v1/audit").await.is(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_audit_is_followed() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let seen = streamed(&host, &host.root, "/api/v1/audit?action=keys.", None, 2, async || {
        let (id, _) = host.key_like(json!({ "name": "app", "scopes": ["runs:read"] })).await;
        host.post(&host.root, "/api/v1/events", &message("not of this selection")).await.good();
        host.ask(Some(&host.root), reqwest::Method::DELETE, &format!("/api/v1/keys/{id}"), None).await.good();
    })
    .await;
    let actions: Vec<_> = seen.iter().map(|(_, record)| record["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["keys.create", "keys.revoke"]);
    // The cursor of the first record: the second follows. The list has both, newest first.
    let rest = streamed(&host, &host.root, "/api/v1/audit?action=keys.", Some(&seen[0].0), 1, async || {}).await;
    assert_eq!(rest[0], seen[1]);
    let page = host.get(&host.root, "/api/v1/audit?action=keys.*&limit=2").await.good();
    assert_eq!((&page["items"][0], &page["items"][1]), (&seen[1].1, &seen[0].1));
    assert_eq!(page["prev_cursor"], *seen[1].0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn old_audit_records_go_and_their_numbers_do_not_come_again() {
    let host = Guarded::small(&["asks"], "gc_interval_ms = 1000\n", &format!("{ASKS}\n[retention]\naudit_ms = 1\n"));
    let keys = async || host.get(&host.root, "/api/v1/audit?action=keys.&limit=50").await.good();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4 {
        host.key(&["runs:read"], None).await;
        seen.insert(keys().await["items"][0].to_string());
    }
    let began = std::time::Instant::now();
    while keys().await["items"].as_array().unwrap().len() > 1 {
        assert!(began.elapsed() < PATIENCE, "{:#}", keys().await);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let page = host.get(&host.root, "/api/v1/audit").await.good();
    let cursor = page["prev_cursor"].as_str().unwrap().to_owned();
    host.key(&["runs:read"], None).await;
    let new = streamed(&host, &host.root, "/api/v1/audit?action=keys.", Some(&cursor), 1, async || {}).await;
    assert!(new[0].0 != cursor && !seen.contains(&new[0].1.to_string()), "{new:?}");
}
