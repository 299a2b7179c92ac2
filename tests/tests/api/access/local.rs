//! This machine without a key: only where the configuration says so, and no client that only seems to be on it.

use agent_host_tests::{Process, process};
use reqwest::{Client, Method};

use crate::access::support::{Answer, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forwarded_and_foreign_requests_need_a_key() {
    let host = Process::start(&[], "");
    let http = Client::new();
    let send = async |headers: &[(&str, &str)]| {
        let mut request = http.get(host.url("/api/v1/runs"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::of(request.send().await.unwrap()).await
    };
    send(&[]).await.good();
    for good in [("host", "localhost:1234"), ("host", "[::1]"), ("origin", host.url.as_str()), ("sec-fetch-site", "same-origin")]
    {
        send(&[good]).await.good();
    }
    for bad in [
        ("host", "rebound.example"),
        ("host", "127.0.0.1.rebound.example:7070"),
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:3000"),
        ("origin", "http://127.0.0.1:8080"),
        ("origin", "null"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1"),
        ("via", "1.1 proxy"),
        ("sec-fetch-site", "cross-site"),
        // An invalid token is worse than none.
        ("authorization", "Bearer nonsense"),
        ("authorization", "Basic YTpi"),
    ] {
        let refused = send(&[bad]).await;
        refused.is(401, "unauthenticated");
        assert!(refused.json["detail"].as_str().unwrap().len() > 20, "{bad:?}: {}", refused.text);
    }
    // A page that sends what needs no asking first is stopped too, and health is for all.
    let posted =
        http.post(host.url("/api/v1/artifacts")).header("origin", "https://evil.example").body("x").send().await.unwrap();
    assert_eq!(posted.status(), 401);
    for open in ["/healthz", "/readyz"] {
        let answer = http.get(host.url(open)).header("host", "anything.example").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{open}");
    }
    let refused = http.request(Method::POST, host.url("/healthz")).header("host", "anything.example").send().await.unwrap();
    assert_eq!(refused.status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn problems_are_shown_to_operators_only() {
    let config = "[[bindings]]\nid = \"lost\"\nrunner = \"plugin:acme/secret-project/default\"\n";
    let host = Process::start(&[], config);
    let shown = async |host_name: &str| {
        let answer = Client::new().get(host.url("/readyz")).header("host", host_name).send().await.unwrap();
        answer.text().await.unwrap()
    };
    assert!(shown("localhost").await.contains("secret-project"));
    let open = shown("elsewhere.example").await;
    assert!(open.contains("\"ready\":true") && !open.contains("secret-project"), "{open}");
}

#[test]
fn it_is_refused_on_another_address() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent-host.toml");
    for (server, line, says) in [
        ("listen = \"0.0.0.0:0\"\nloopback_without_key = true", &["serve"][..], "keys create"),
        ("loopback_without_key = true", &["serve", "--listen", "0.0.0.0:0"], "keys create"),
        ("loopback_without_key = true\ncors_origins = [\"*\"]", &["serve"], "name the origins"),
        ("cors_origins = [\"https://app.example/path\"]", &["config", "check"], "without a path"),
    ] {
        std::fs::write(&file, format!("[server]\n{server}\n")).unwrap();
        let refused = run(dir.path(), line, &[]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(says), "{server}: {error}");
    }
    std::fs::write(&file, "[server]\nloopback_without_key = true\n").unwrap();
    let checked = process::command(dir.path()).args(["config", "check"]).output().unwrap();
    assert!(String::from_utf8_lossy(&checked.stdout).contains("loopback_without_key = true"));
}
