//! Tokens that open one stream, for programs that send no headers.

use agent_host_tests::support::now;
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::support::{AGENT, ASKS, Answer, Guarded, is_anywhere};

/// Asks as the `EventSource` of a browser does: no header but `Accept`.
async fn opened(host: &Guarded, path: &str) -> reqwest::Response {
    host.http.get(host.url(path)).header("accept", "text/event-stream").send().await.unwrap()
}

/// Checks that a stream is refused: by `code`, with the header of RFC 6750 where that is a 401.
#[track_caller]
fn is_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.json["code"].as_str()), (status, Some(code)), "{answer:#?}");
    let header = answer.headers.get("www-authenticate").map(|value| value.to_str().unwrap());
    assert_eq!(header, (status == 401).then_some("Bearer error=\"invalid_token\""));
}

async fn refused(host: &Guarded, path: &str, status: u16, code: &str) {
    is_refused(&Answer::of(opened(host, path).await).await, status, code);
}

/// The head of an open stream, up to a text.
async fn until(stream: &mut reqwest::Response, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let piece = stream.chunk().await.unwrap().unwrap_or_else(|| panic!("the stream has ended: {read}"));
        read.push_str(&String::from_utf8_lossy(&piece));
    }
}

async fn made(host: &Guarded, key: &str, wanted: Value) -> Value {
    let answer = host.post(key, "/api/v1/stream-tokens", &wanted).await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    let made = answer.good();
    assert!(made["url"].as_str().unwrap().ends_with(&format!("access_token={}", made["token"].as_str().unwrap())), "{made}");
    made
}

fn url(made: &Value) -> &str {
    made["url"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_token_opens_its_stream_and_nothing_else() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let (id, key) = host.key_like(json!({ "name": "app", "scopes": ["events:write", "runs:read"], "workspace": "acme" })).await;
    let (_, run) = host.send(&key, "ask form - name").await;
    let (_, other) = host.send(&key, "ask form - name").await;
    host.until(&run, "waiting").await;

    let before = now();
    let token = made(&host, &key, json!({ "run_id": run })).await;
    let lifetime = token["expires_at"].as_u64().unwrap() - before;
    assert!((300_000..320_000).contains(&lifetime), "{lifetime}");
    let mut stream = opened(&host, url(&token)).await;
    assert_eq!((stream.status().as_u16(), &stream.headers()["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    until(&mut stream, "action.requested").await;
    // The other parameters are those of the route.
    refused_as(&host, &format!("{}&nonsense=1", url(&token)), 400, "invalid_argument").await;

    // Other runs, other routes of the run, other methods, and another place.
    let text = token["token"].as_str().unwrap();
    refused(&host, &format!("/api/v1/runs/{other}/events?access_token={text}"), 403, "forbidden").await;
    for path in [format!("/api/v1/runs/{run}"), format!("/api/v1/runs/{run}/recording"), "/api/v1/runs".to_owned()] {
        refused(&host, &format!("{path}?access_token={text}"), 403, "forbidden").await;
    }
    let cancel = host.ask(None, Method::POST, &format!("/api/v1/runs/{run}/cancel?access_token={text}"), None).await;
    is_refused(&cancel, 403, "forbidden");
    host.ask(Some(text), Method::GET, &format!("/api/v1/runs/{run}/events"), None).await.is(401, "unauthenticated");
    // One credential is enough.
    host.ask(Some(&key), Method::GET, url(&token), None).await.is(400, "invalid_argument");

    // Tokens that are none.
    let changed = if text.ends_with('A') { 'B' } else { 'A' };
    for bad in ["", "aht_", "aht_e30.x", &key, &text[..text.len() - 1], &format!("{}{changed}", &text[..text.len() - 1])] {
        refused(&host, &format!("/api/v1/runs/{run}/events?access_token={bad}"), 401, "unauthenticated").await;
    }
    refused_as(&host, &format!("{}&access_token={text}", url(&token)), 400, "invalid_argument").await;

    // A token ends, and its stream goes on.
    let short = made(&host, &key, json!({ "run_id": run, "expires_in_ms": 1_000 })).await;
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    refused(&host, url(&short), 401, "unauthenticated").await;

    // The key ends, and with it the tokens and the streams.
    host.ask(Some(&host.root), Method::DELETE, &format!("/api/v1/keys/{id}"), None).await.good();
    refused(&host, url(&token), 401, "unauthenticated").await;
    while stream.chunk().await.unwrap().is_some() {}
    let dir = host.process.terminate();
    assert!(!is_anywhere(&dir, text), "a token is on disk");
}

async fn refused_as(host: &Guarded, path: &str, status: u16, code: &str) {
    Answer::of(opened(host, path).await).await.is(status, code);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_token_has_no_more_rights_than_its_maker() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let acme = host.key(&["events:write", "runs:read"], Some("acme")).await;
    let foreign = host.key(&["runs:read"], Some("other")).await;
    let writer = host.key(&["events:write"], Some("acme")).await;
    let (_, run) = host.send(&acme, "ask form - name").await;
    let ask = async |key: &str, wanted: Value| host.post(key, "/api/v1/stream-tokens", &wanted).await;
    ask(&foreign, json!({ "run_id": run })).await.is(404, "not_found");
    ask(&writer, json!({ "run_id": run })).await.is(403, "forbidden");
    ask(&acme, json!({ "run_id": "nonsense" })).await.is(404, "not_found");
    ask(&acme, json!({ "thread_id": "nobody-spoke-here" })).await.is(404, "not_found");
    for wanted in [
        json!({}),
        json!({ "run_id": run, "thread_id": "t" }),
        json!({ "session_id": "s" }),
        json!({ "agent_id": "asks", "thread_id": "t" }),
        json!({ "run_id": run, "expires_in_ms": 999 }),
        json!({ "run_id": run, "expires_in_ms": 3_600_001 }),
        json!({ "run_id": run, "scope": "admin" }),
    ] {
        ask(&acme, wanted).await.is(400, "invalid_argument");
    }
    let executor = host.post(&host.root, "/api/v1/executors", &json!({ "name": "e" })).await.good();
    ask(executor["credential"].as_str().unwrap(), json!({ "run_id": run })).await.is(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stream_tokens_open_threads_and_runs_of_agents() {
    let host = Guarded::small(&["asks"], "", AGENT);
    let key = host.key(&["events:write", "runs:read", "on_behalf_of"], Some("acme")).await;
    let says = async |user: Option<&str>, thread: &str| {
        let message = json!({ "id": "m-1", "role": "user", "content": "say x" });
        let input = json!({ "threadId": thread, "runId": "r-1", "messages": [message] });
        let request = host.http.post(host.url("/agents/asks/run")).bearer_auth(&key).json(&input);
        let request = if let Some(user) = user { request.header("x-end-user", user) } else { request };
        let text = request.send().await.unwrap().text().await.unwrap();
        assert!(text.contains("RUN_FINISHED"), "{text}");
    };
    says(None, "a thread").await;
    says(Some("ada"), "a thread").await;
    let of_thread = made(&host, &key, json!({ "thread_id": "a thread" })).await;
    let mut stream = opened(&host, url(&of_thread)).await;
    assert_eq!(stream.status(), 200);
    until(&mut stream, "turn.").await;

    let agent_run = json!({ "agent_id": "asks", "thread_id": "a thread", "run_id": "r-1" });
    let of_run = made(&host, &key, agent_run.clone()).await;
    let text = opened(&host, url(&of_run)).await.text().await.unwrap();
    assert!(text.contains("RUN_FINISHED"), "{text}");
    // The same run by the other profile of the agents.
    let token = of_run["token"].as_str().unwrap();
    let elsewhere = format!("/api/v1/agent/runs/a%20thread/events?runId=r-1&access_token={token}");
    let text = opened(&host, &elsewhere).await.text().await.unwrap();
    assert!(text.contains("RUN_FINISHED"), "{text}");
    refused(&host, &format!("/api/v1/threads/a%20thread/events?access_token={token}"), 403, "forbidden").await;

    // A thread of the same name is another one for an end user, whose token says whose it is.
    let for_ada = async |wanted: &Value| {
        let request = host.http.post(host.url("/api/v1/stream-tokens")).bearer_auth(&key).header("x-end-user", "ada");
        Answer::of(request.json(wanted).send().await.unwrap()).await
    };
    for_ada(&json!({ "thread_id": "a thread" })).await.is(403, "forbidden");
    let of_ada = for_ada(&agent_run).await.good();
    assert_ne!(of_ada["token"], of_run["token"]);
    let own = opened(&host, url(&of_ada)).await.text().await.unwrap();
    assert!(own.contains("RUN_FINISHED"), "{own}");
    let nobody = json!({ "agent_id": "asks", "thread_id": "only of the operator", "run_id": "r-1" });
    says(None, "only of the operator").await;
    for_ada(&nobody).await.is(404, "not_found");
}
