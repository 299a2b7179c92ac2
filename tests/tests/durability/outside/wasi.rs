//! Guests whose libraries know `wasi:http` and nothing else.

use std::time::{Duration, Instant};

use agent_host_protocol::{ImportVerdict, PluginStatus, RefusalCode, event::Envelope};
use agent_host_tests::{OutsideServer, World, outside::HALF, world::PATIENCE};
use serde_json::{Value, json};

use crate::outside::{LOCAL, config, outcomes, support::Host, take, world_of};

async fn world(outside: &OutsideServer, more: &str) -> World {
    world_of("wasi-http/default", &[&outside.authority], &format!("{LOCAL}{more}")).await
}

fn host(outside: &OutsideServer, limits: &str, binding: &str) -> Host {
    let limits = format!("{LOCAL}[limits]\nmax_live_runs = 50\n{limits}");
    let config = config("wasi-http/default", &[&outside.authority], &limits);
    Host::limited(&["wasi_http"], &format!("{config}{binding}"))
}

#[track_caller]
fn is(outcome: &Value, error: &str) {
    assert!(outcome["error"].as_str().is_some_and(|found| found.contains(error)), "{outcome} is not {error}");
}

/// The answer at a path, of any status.
async fn answer(host: &Host, path: &str) -> (u16, Value) {
    let url = format!("{}{path}", *host.urls().borrow());
    let answer = reqwest::get(url).await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_comes_as_it_is_sent() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let host = host(&outside, "", "");
    let run = host.send(&format!("get {}; read; rest", outside.url("halves/x"))).await;
    // One half is read before the other is sent.
    let read = host.until_step(&run, "read").await;
    assert_eq!(read["data"]["outcome"], "a".repeat(HALF));
    outside.release();
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.outcomes()[2], "a".repeat(HALF), "{ended}");
    host.check();
}

#[tokio::test]
async fn requests_are_sent_with_headers_and_bodies() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "").await;
    let steps = [
        format!("get {}; rest", outside.url("ok/a?q=1")),
        format!("post {} hello there; rest", outside.url("echo")),
        format!("send GET {} x-one: 1 & x-two: 2; rest", outside.url("echo")),
        format!("get {}; rest", outside.url("status/404")),
        format!("get {}; rest", outside.url(&format!("redirect/302/{}", outside.url("ok/there")))),
    ];
    let step_outcomes = take(&world, &steps.join("; ")).await;
    assert_eq!(step_outcomes[..2], [json!(200), json!("ok/a?q=1")]);
    let seen = outside.seen();
    assert!(seen[1].method == "POST" && seen[1].body.contains("hello there"), "{:#?}", seen[1]);
    assert_eq!((seen[2].header("x-one"), seen[2].header("x-two")), (Some("1"), Some("2")));
    assert_eq!(step_outcomes[6..8], [json!(404), json!("status/404")]);
    assert_eq!(step_outcomes[8], 302, "a redirect is for the library of the guest");
    assert_eq!(outside.times("ok/there"), 0);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn calls_without_a_grant_are_denied() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let granted = world(&outside, "").await;
    let by_name = outside.url("ok").replace("127.0.0.1", "localhost");
    let steps = format!("get {}; get {by_name}; get {}; rest", other.url("ok"), outside.url("ok/granted"));
    let step_outcomes = take(&granted, &steps).await;
    is(&step_outcomes[0], "HttpRequestDenied");
    is(&step_outcomes[1], "HttpRequestDenied");
    assert_eq!(step_outcomes[2..], [json!(200), json!("ok/granted")]);
    granted.host.shutdown(PATIENCE).await;

    // An address that is not open; no host at all.
    let closed = world_of("wasi-http/default", &["*:*"], "").await;
    for host in ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]", "localhost", "169.254.169.254"] {
        let step_outcomes = take(&closed, &format!("get http://{host}:{}/ok", outside.port())).await;
        is(&step_outcomes[0], "DestinationIpProhibited");
    }
    closed.host.shutdown(PATIENCE).await;
    let none = world_of("wasi-http/default", &[], LOCAL).await;
    is(&take(&none, &format!("get {}", outside.url("ok"))).await[0], "HttpRequestDenied");
    none.host.shutdown(PATIENCE).await;
    assert_eq!((outside.seen().len(), other.seen().len()), (1, 0));
}

#[tokio::test]
async fn two_requests_are_on_their_way_at_once() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let both = world(&outside, "").await;
    let steps = format!("two {} {}", outside.url("held/one"), outside.url("held/two"));
    let run = both.send(Envelope::message(steps, "api")).await;
    outside.until("held/one", 1).await;
    outside.until("held/two", 1).await;
    outside.release();
    let step_outcomes = outcomes(&both.ended(run).await);
    assert_eq!(step_outcomes[0]["said"], json!(["held/one", "held/two"]), "{step_outcomes:?}");

    let step_outcomes = take(&both, &format!("two {} {}", outside.url("after/1500/slow"), outside.url("ok/fast"))).await;
    assert_eq!(step_outcomes[0], json!({ "first": [1], "said": ["after/1500/slow", "ok/fast"] }));
    both.host.shutdown(PATIENCE).await;

    let one = world(&outside, "[limits]\nhttp_requests_at_once = 1\n").await;
    let step_outcomes = take(&one, &format!("two {} {}", outside.url("after/300/one"), outside.url("ok/too-many"))).await;
    // Each request is made by a task of its own, so either may be the one.
    let said = step_outcomes[0]["said"].as_array().unwrap();
    let (made, refused): (Vec<_>, Vec<_>) = said.iter().partition(|outcome| outcome.is_string());
    assert_eq!((made.len(), refused.len()), (1, 1), "{step_outcomes:?}");
    is(refused[0], "ConnectionLimitReached");
    assert_eq!(outside.times("after/300/one") + outside.times("ok/too-many"), 1);
    one.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn bodies_and_times_are_bounded() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let limits = "[limits]\nhttp_response_bytes = 100000\nhttp_request_bytes = 100\nhttp_timeout_ms = 800\n";
    let world = world(&outside, limits).await;
    let began = Instant::now();
    let steps = [
        format!("get {}; rest", outside.url("endless")),
        format!("post {} {}", outside.url("echo/large"), "x".repeat(101)),
        format!("hurry 100 {}", outside.url("held/first-byte")),
        format!("get {}", outside.url("held/all")),
        format!("get {}; rest", outside.url("halves")),
        format!("get {}; rest", outside.url("broken")),
        format!("get {}; rest", outside.url("ok/then")),
    ];
    let step_outcomes = take(&world, &steps.join("; ")).await;
    is(&step_outcomes[1], "HTTP response body size exceeds limit");
    assert!(step_outcomes[1]["after"].as_u64().unwrap() <= 100_000, "{}", step_outcomes[1]);
    is(&step_outcomes[2], "HttpRequestBodySize");
    is(&step_outcomes[3], "HttpResponseTimeout");
    is(&step_outcomes[4], "HttpResponseTimeout");
    is(&step_outcomes[6], "HTTP response timeout");
    assert_eq!(step_outcomes[6]["after"], HALF);
    is(&step_outcomes[8], "connection terminated");
    assert_eq!(step_outcomes[9..], [json!(200), json!("ok/then")]);
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(outside.times("echo/large"), 0, "no request with half a body arrives");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_is_not_resumed_and_says_why() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "park_after_ms = 300\n", "");
    let run = host.send(&format!("get {}; rest; get {}", outside.url("ok/before"), outside.url("held/x"))).await;
    outside.until("held/x", 1).await;
    // A run without a durable write has not begun for the next host.
    host.until_step(&run, "rest").await;
    host.kill();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.failed("host_restarted");
    let message = ended.run["failure"]["message"].as_str().unwrap();
    assert!(message.contains("`wasi:http`") && message.contains("not journaled"), "{message}");
    assert_eq!((outside.times("ok/before"), outside.times("held/x")), (1, 1), "{ended}");

    // Without a journal there is nothing to list, to replay, or to fork, and the run was not parked during its sleep.
    let slept = host.take(&format!("get {}; rest; sleep 1200; get {}; rest", outside.url("ok/1"), outside.url("ok/2"))).await;
    assert_eq!(slept.statuses("timer").len(), 0, "{slept}");
    assert_eq!(slept.outcomes().len(), 5);
    for run in [run.as_str(), slept.run["run_id"].as_str().unwrap()] {
        for path in ["journal", "recording"] {
            let (status, problem) = answer(&host, &format!("/api/v1/runs/{run}/{path}")).await;
            assert_eq!((status, &problem["code"]), (409, &json!("no_journal")), "{path}: {problem:#}");
        }
        let url = format!("{}/api/v1/runs/{run}/fork", *host.urls().borrow());
        let answer = reqwest::Client::new().post(url).json(&json!({ "at": 1 })).send().await.unwrap();
        assert_eq!(answer.status(), 409, "{}", answer.text().await.unwrap());
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_begins_anew_where_the_binding_says_so() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", "durability = \"retry\"\nmax_attempts = 2\n");
    let run = host.send(&format!("get {}; rest; get {}; rest", outside.url("ok/before"), outside.url("held/x"))).await;
    outside.until("held/x", 1).await;
    // A run without a durable write has not begun for the next host: it would still be the first attempt.
    host.until_step(&run, "rest").await;
    host.kill();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    assert_eq!(ended.of("message.completed").len(), 1, "{ended}");
    assert_eq!((outside.times("ok/before"), outside.times("held/x")), (2, 2), "{ended}");
    host.check();
}

#[tokio::test]
async fn a_component_without_hosts_in_its_manifest_is_refused() {
    let world = World::from_text(&["wasi_http_undeclared", "wasi_http"], "", |_| {}).await;
    let report = world.report("wasi_http_undeclared.wasm").unwrap();
    assert_eq!(report.status, PluginStatus::Refused, "{report:#?}");
    assert_eq!(report.refusal.as_ref().unwrap().code, RefusalCode::UndeclaredImport, "{report:#?}");
    let import = report.imports.iter().find(|import| import.name.contains("wasi:http/outgoing-handler")).unwrap();
    assert_eq!(import.verdict, ImportVerdict::Undeclared);
    assert!(import.fix.as_ref().unwrap().contains("`http_hosts`"), "{import:?}");

    let report = world.report("wasi_http.wasm").unwrap();
    assert_eq!(report.status, PluginStatus::Ready, "{report:#?}");
    let import = report.imports.iter().find(|import| import.name.contains("wasi:http/outgoing-handler")).unwrap();
    assert_eq!(import.verdict, ImportVerdict::Provided);
    assert!(import.fix.as_ref().unwrap().contains("cannot be resumed"), "{import:?}");
    world.host.shutdown(PATIENCE).await;
}
