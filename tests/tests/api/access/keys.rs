//! The life of a key.

use std::time::{Duration, Instant};

use agent_host_tests::{Process, world::PATIENCE};
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::support::{ASKS, Guarded, cli, is_anywhere, message, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_lives_from_its_making_to_its_end() {
    let host = Guarded::small(&["asks"], "", ASKS);
    // Without a key, with a guessed key, and with the right id but a wrong secret.
    let id = host.root.split('_').nth(1).unwrap().to_owned();
    let guessed = format!("ahk_{id}_{}", "A".repeat(43));
    for token in
        [None, Some("nonsense"), Some("ahk_"), Some("ahx_1"), Some(guessed.as_str()), Some(&host.root[..host.root.len() - 1])]
    {
        host.ask(token, Method::GET, "/api/v1/runs", None).await.is(401, "unauthenticated");
    }
    host.get(&host.root, "/api/v1/runs").await.good();
    let basic = host.http.get(host.url("/api/v1/runs")).basic_auth(&host.root, None::<&str>).send().await.unwrap();
    assert_eq!(basic.status(), 401);
    let twice = host.http.get(host.url("/api/v1/runs")).header("authorization", format!("Bearer {}", host.root));
    assert_eq!(twice.header("authorization", "Bearer other").send().await.unwrap().status(), 401);

    let (reader, token) = host.key_like(json!({ "name": "reader", "scopes": ["runs:read"] })).await;
    host.get(&token, "/api/v1/runs").await.good();
    host.post(&token, "/api/v1/events", &message("x")).await.is(403, "forbidden");
    host.get(&token, "/api/v1/keys").await.is(403, "forbidden");

    for (wanted, status, code) in [
        (json!({ "name": "", "scopes": ["admin"] }), 400, "invalid_argument"),
        (json!({ "name": "a b", "scopes": ["admin"] }), 400, "invalid_argument"),
        (json!({ "name": "a", "scopes": [] }), 400, "invalid_argument"),
        (json!({ "name": "a", "scopes": ["everything"] }), 400, "invalid_argument"),
        (json!({ "name": "a", "scopes": ["admin"], "expires_in_ms": 0 }), 400, "invalid_argument"),
        (json!({ "name": "a", "scopes": ["admin"], "workspace": "" }), 400, "invalid_argument"),
        (json!({ "name": "a", "scopes": ["admin"], "secret": "mine" }), 400, "invalid_argument"),
    ] {
        host.post(&host.root, "/api/v1/keys", &wanted).await.is(status, code);
    }

    // A list has every key and no secret.
    let page = host.get(&host.root, "/api/v1/keys?limit=1").await.good();
    assert_eq!((page["items"][0]["key_id"].as_str(), &page["has_more"]), (Some(&*id), &json!(true)));
    let next = host.get(&host.root, &format!("/api/v1/keys?cursor={}", page["next_cursor"].as_str().unwrap())).await;
    assert_eq!(next.json["items"][0]["key_id"], *reader);
    assert!(!next.text.contains("token") && !next.text.contains("sha256") && !next.text.contains(&token[21..]), "{}", next.text);

    let revoke = async || host.ask(Some(&host.root), Method::DELETE, &format!("/api/v1/keys/{reader}"), None).await;
    let revoked = revoke().await.good();
    assert!(revoked["revoked_at"].is_u64());
    host.get(&token, "/api/v1/runs").await.is(401, "unauthenticated");
    assert_eq!(revoke().await.good(), revoked, "revoked once");
    host.ask(Some(&host.root), Method::DELETE, "/api/v1/keys/nonsense", None).await.is(404, "not_found");

    // A power failure changes nothing.
    let (root, http) = (host.root.clone(), host.http.clone());
    let process = Process::start_as(host.process.kill(), "", ASKS);
    let host = Guarded { process, http, root };
    host.get(&token, "/api/v1/runs").await.is(401, "unauthenticated");
    host.get(&host.root, "/api/v1/runs").await.good();
    let dir = host.process.terminate();
    for secret in [&host.root, &token] {
        assert!(!is_anywhere(&dir, &secret[21..]), "a secret is on disk");
    }
    assert!(is_anywhere(&dir, &id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_that_expires_is_good_until_then() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let wanted = json!({ "name": "short", "scopes": ["admin"], "expires_in_ms": 6_000 });
    let began = Instant::now();
    let (_, token) = host.key_like(wanted).await;
    let (_, run) = host.send(&token, "ask form - name").await;
    // A key creates no key that is valid for longer than itself.
    let child = host.post(&token, "/api/v1/keys", &json!({ "name": "child", "scopes": ["runs:read"] })).await.good();
    assert!(child["expires_at"].is_u64());
    let longer = json!({ "name": "child", "scopes": ["runs:read"], "expires_in_ms": 60_000 });
    host.post(&token, "/api/v1/keys", &longer).await.is(403, "forbidden");

    // The stream ends with the key, although the run continues.
    let stream = host.http.get(host.url(&format!("/api/v1/runs/{run}/events"))).header("accept", "text/event-stream");
    let stream = stream.bearer_auth(&token).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let text = tokio::time::timeout(PATIENCE, stream.text()).await.expect("the stream ends").unwrap();
    assert!(text.contains("action.requested") && !text.contains("run.completed"), "{text}");
    assert!(
        began.elapsed() >= Duration::from_millis(5_900) && began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    host.get(&token, "/api/v1/runs").await.is(401, "unauthenticated");
    host.get(child["token"].as_str().unwrap(), "/api/v1/runs").await.is(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_streams_end_with_their_key() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let (id, token) = host.key_like(json!({ "name": "app", "scopes": ["events:write", "runs:read"] })).await;
    let (_, run) = host.send(&host.root, "ask form - name").await;
    host.until(&run, "waiting").await;
    let stream = host.http.get(host.url(&format!("/api/v1/runs/{run}/events"))).header("accept", "text/event-stream");
    let stream = stream.bearer_auth(&token).send().await.unwrap();
    let reading = tokio::spawn(async move { stream.text().await.unwrap() });
    let waiting = host.http.post(host.url("/api/v1/events")).header("prefer", "wait=60").bearer_auth(&token);
    let waiting = tokio::spawn(waiting.json(&message("ask form - name")).send());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!reading.is_finished() && !waiting.is_finished());

    let began = Instant::now();
    host.ask(Some(&host.root), Method::DELETE, &format!("/api/v1/keys/{id}"), None).await.good();
    let text = reading.await.unwrap();
    assert!(text.contains("action.requested"), "{text}");
    assert_eq!(waiting.await.unwrap().unwrap().status(), 401);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // The runs are not those of the key.
    host.until(&run, "waiting").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_command_line_makes_lists_and_revokes() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let dir = host.process.dir.path();
    let server = host.process.url.clone();
    let with = |key: &str, line: &[&str]| {
        let output = run(dir, line, &[("AGENT_HOST_KEY", key), ("AGENT_HOST_SERVER", &server)]);
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let create = [
        "keys",
        "create",
        "--name",
        "chat",
        "--scope",
        "runs:read",
        "--scope",
        "events:write",
        "--workspace",
        "acme",
        "--expires-in",
        "1h",
    ];
    // Without a key, and then with one.
    let (done, _, error) = with("", &create);
    assert!(!done && error.contains("key"), "{error}");
    let (done, token, error) = with(&host.root, &create);
    assert!(done && error.contains("only time"), "{error}");
    let token = token.trim().to_owned();
    assert!(token.starts_with("ahk_"), "{token}");

    let (done, list, _) = with(&host.root, &["keys", "list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let made = list["items"].as_array().unwrap().iter().find(|key| key["name"] == "chat").unwrap();
    assert!(done && made["workspace"] == "acme" && made["scopes"] == json!(["events:write", "runs:read"]), "{list:#}");
    let (done, list, _) = with(&host.root, &["keys", "list"]);
    assert!(done && list.contains("chat") && list.contains("acme") && list.contains("good until"), "{list}");

    // Every command sends it; the command line comes before the environment.
    assert!(with(&token, &["runs", "list"]).0);
    assert!(!with("ahk_nobody", &["runs", "list"]).0);
    assert!(with("ahk_nobody", &["runs", "list", "--key", &token]).0);
    let (done, _, error) = with(&token, &["keys", "list"]);
    assert!(!done && error.contains("admin"), "{error}");

    let id = made["key_id"].as_str().unwrap();
    let (done, text, _) = with(&host.root, &["keys", "revoke", id]);
    assert!(done && text.contains("revoked"), "{text}");
    assert!(!with(&token, &["runs", "list"]).0);

    // Without a host, the command reads the ledger itself, and no key is needed.
    let dir = host.process.terminate();
    let list = cli(dir.path(), &["keys", "list", "--json"]);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let root = host.root.split('_').nth(1).unwrap();
    cli(dir.path(), &["keys", "revoke", root, "--json"]);
    assert!(!run(dir.path(), &["keys", "revoke", "nonsense"], &[]).status.success());
    let again = Process::start_as(dir, "", ASKS);
    let answer = host.http.get(again.url("/api/v1/runs")).bearer_auth(&host.root).send().await.unwrap();
    assert_eq!(answer.status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_without_keys_says_how_to_make_one() {
    let host = Process::start_as(Process::lay_out(&[]), "", "");
    let answer: Value = reqwest::get(host.url("/api/v1/runs")).await.unwrap().json().await.unwrap();
    assert!(answer["detail"].as_str().unwrap().contains("agent-host keys create --scope admin"), "{answer}");
}
