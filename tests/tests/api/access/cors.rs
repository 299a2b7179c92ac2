//! Pages of other origins.

use agent_host_tests::Process;
use reqwest::{Client, Method};
use serde_json::json;

use crate::access::support::Guarded;

const APP: &str = "https://app.example";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_page_that_is_named_may_ask_and_read() {
    let host = Guarded::start(&["echo"], &format!("cors_origins = [\"{APP}\"]"), "[limits]\nmax_live_runs = 50\n");
    let preflight = async |origin: &str| {
        let request = host.http.request(Method::OPTIONS, host.url("/api/v1/events")).header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        request
            .header("access-control-request-headers", "authorization,content-type,idempotency-key,x-request-id")
            .send()
            .await
            .unwrap()
    };
    // A browser asks without a key whether it may send one.
    let allowed = preflight(APP).await;
    assert_eq!(allowed.status(), 200);
    assert_eq!(allowed.headers()["access-control-allow-origin"], APP);
    assert!(!allowed.headers().contains_key("access-control-allow-credentials"));
    let may = |name: &str| allowed.headers()[name].to_str().unwrap().to_ascii_lowercase();
    for header in ["authorization", "content-type", "idempotency-key", "prefer", "last-event-id", "traceparent", "x-request-id"] {
        assert!(may("access-control-allow-headers").contains(header), "{header}");
    }
    for method in ["get", "post", "delete"] {
        assert!(may("access-control-allow-methods").contains(method), "{method}");
    }
    for other in ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null"] {
        assert!(!preflight(other).await.headers().contains_key("access-control-allow-origin"), "{other}");
    }

    let event = json!({ "event_type": "nobody.listens" });
    let send = async |origin: &str, key: Option<&str>| {
        let request = host.http.post(host.url("/api/v1/events")).header("origin", origin).json(&event);
        let request = if let Some(key) = key { request.bearer_auth(key) } else { request };
        request.send().await.unwrap()
    };
    let answer = send(APP, Some(&host.root)).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["access-control-allow-origin"]), (202, &APP.parse().unwrap()));
    assert!(answer.headers().contains_key("x-request-id"));
    let exposed = answer.headers()["access-control-expose-headers"].to_str().unwrap().to_ascii_lowercase();
    for header in
        ["location", "idempotency-replayed", "preference-applied", "retry-after", "etag", "content-range", "x-request-id"]
    {
        assert!(exposed.contains(header), "{header}: {exposed}");
    }
    // The page can read the reason of a refusal too.
    let refused = send(APP, None).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["access-control-allow-origin"]), (401, &APP.parse().unwrap()));
    assert!(!send("https://evil.example", Some(&host.root)).await.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_that_are_named_need_no_key_where_this_machine_needs_none_and_others_are_off() {
    let server = format!("loopback_without_key = true\ncors_origins = [\"{APP}\"]");
    let host = Process::start_as(Process::lay_out(&[]), &server, "");
    let upload = async |origin: &str| {
        let request = Client::new().post(host.url("/api/v1/artifacts")).header("origin", origin);
        request.header("sec-fetch-site", "cross-site").header("content-type", "text/plain").body("x").send().await.unwrap()
    };
    assert_eq!(upload(APP).await.status(), 201);
    assert_eq!(upload("https://evil.example").await.status(), 401);

    let plain = Process::start(&[], "");
    let ask = async |origin: &str| Client::new().get(plain.url("/api/v1/runs")).header("origin", origin).send().await.unwrap();
    assert_eq!(ask("http://localhost:3000").await.status(), 401, "another program of this machine");
    let answer = ask(&plain.url).await;
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().keys().any(|name| name.as_str().starts_with("access-control")));
    let preflight = Client::new().request(Method::OPTIONS, plain.url("/api/v1/runs")).send().await.unwrap();
    assert_eq!(preflight.status(), 405);
}
