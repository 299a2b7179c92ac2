//! The targets that runs may reach.

use agent_host_tests::{OutsideServer, World, world::PATIENCE};
use serde_json::{Value, json};

use crate::outside::{LOCAL, config, is_refused, outcomes, support::Host, take, world, world_of};

#[tokio::test]
async fn granted_references_are_readable_completely() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "").await;
    let url = |path: &str| outside.url(path);
    let steps = [
        format!("get {}; rest; rest", url("ok/a?q=1")),
        format!("get {}; read 10; rest", url("bytes/300000")),
        format!("get {}; rest", url("pieces/5/2")),
        format!("post {} hello there; rest", url("echo")),
        format!("send PUT {} x-one: 1 & x-two: 2 | put; rest", url("echo/put")),
        format!("send DELETE {}; rest", url("ok/gone")),
        format!("send HEAD {}; rest", url("bytes/7")),
        format!("get {}; rest", url("status/404")),
    ];
    let step_outcomes = take(&world, &steps.join("; ")).await;
    assert_eq!(step_outcomes[..3], [json!(200), json!("ok/a?q=1"), json!("")]);
    assert_eq!(step_outcomes[3..6], [json!(200), json!("xxxxxxxxxx"), json!([299_990, 299_990 * u64::from(b'x')])]);
    assert_eq!(step_outcomes[7], "piece 1\npiece 2\npiece 3\npiece 4\npiece 5\n");
    let echoed = step_outcomes[9].as_str().unwrap();
    assert!(echoed.ends_with("hello there") && echoed.contains("user-agent: agent-host/"), "{echoed}");
    let put = &outside.visits("echo/put")[0];
    assert_eq!((put.header("x-one"), put.header("x-two"), &*put.body), (Some("1"), Some("2"), "put"));
    assert_eq!(step_outcomes[12..16], [json!(200), json!("ok/gone"), json!(200), json!("")]);
    assert_eq!(step_outcomes[16..], [json!(404), json!("status/404")]);
    assert_eq!(outside.seen().len(), 8, "each was made once");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn manifest_and_binding_must_both_name_host_and_port() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let loopback = format!("{LOCAL}\n");
    let by_name = outside.url("ok/name").replace("127.0.0.1", "localhost");

    // The manifest has any host, the binding has one port.
    let world = world_of("outside/default", &[&outside.authority], &loopback).await;
    let steps =
        format!("get {}; get {}; get {by_name}; get https://{}/", outside.url("ok/1"), other.url("ok/1"), other.authority);
    let step_outcomes = take(&world, &steps).await;
    assert_eq!(step_outcomes[0], 200);
    for refused in &step_outcomes[1..] {
        is_refused(refused, "unauthorized", "host_not_allowed");
    }
    world.host.shutdown(PATIENCE).await;

    // The binding has any host, the manifest has few.
    let world = world_of("outside/narrow", &["*:*"], &loopback).await;
    let steps = format!(
        "get {}; get {}; get {by_name}; get http://www.example.com/; get https://example.com",
        outside.url("ok/2"),
        other.url("ok/2")
    );
    let step_outcomes = take(&world, &steps).await;
    assert_eq!(step_outcomes[..2], [json!(200), json!(200)]);
    for refused in &step_outcomes[2..] {
        is_refused(refused, "unauthorized", "host_not_allowed");
    }
    world.host.shutdown(PATIENCE).await;

    // Manifest and binding have no host in common; or the binding has none.
    for hosts in [&["api.example.net:*"][..], &[]] {
        let world = world_of("outside/narrow", hosts, &loopback).await;
        let step_outcomes = take(&world, &format!("get {}", outside.url("ok/3"))).await;
        assert_eq!(step_outcomes[0]["code"], "unauthorized", "{step_outcomes:?}");
        world.host.shutdown(PATIENCE).await;
    }
    assert_eq!(outside.seen().iter().map(|visit| &*visit.path).collect::<Vec<_>>(), ["/ok/1", "/ok/2"]);
    assert_eq!(other.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_grant_of_a_run_has_what_both_allow_in_one_form() {
    let host = Host::start(
        &["outside"],
        &config("outside/narrow", &["127.0.0.1:81", "API.Example.com", "*:8443", "elsewhere.net:*"], ""),
    );
    let run = host.send("sleep 1").await;
    host.ended(&run).await.completed();
    let grant = host.get(&format!("/api/v1/runs/{run}/grant")).await;
    let mut hosts: Vec<_> =
        grant["permissions"]["http_hosts"].as_array().unwrap().iter().map(|host| host.as_str().unwrap()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["127.0.0.1:81", "127.0.0.1:8443", "api.example.com:443", "api.example.org:8443"], "{grant:#}");
    host.check();
}

#[tokio::test]
async fn addresses_that_are_not_public_are_reached_by_none_of_their_names() {
    let outside = OutsideServer::start().await;
    let port = outside.port();
    let world = world_of("outside/default", &["*:*"], "").await;
    let hosts = [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "１２７.0.0.1",
        "127。0。0。1",
        "%31%32%37.0.0.1",
        "0.0.0.0",
        "0",
        "localhost",
        "LocalHost",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::ffff:a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "224.0.0.1",
        "255.255.255.255",
    ];
    for host in hosts {
        let step_outcomes = take(&world, &format!("get http://{host}:{port}/latest/meta-data")).await;
        is_refused(&step_outcomes[0], "unauthorized", "address_not_allowed");
    }
    // Other spellings of this machine.
    for host in ["localhost.", "127.0.0.1."] {
        let step_outcomes = take(&world, &format!("get http://{host}:{port}/")).await;
        assert!(step_outcomes[0]["code"].is_string(), "{host}: {step_outcomes:?}");
    }
    world.host.shutdown(PATIENCE).await;

    // One address is allowed, also in another spelling.
    let world = world_of("outside/default", &["*:*"], LOCAL).await;
    let step_outcomes = take(&world, &format!("get http://127.1:{port}/ok/short; get http://2130706433:{port}/ok/number")).await;
    assert_eq!(step_outcomes, [200, 200]);
    for host in ["127.0.0.2", "[::1]", "169.254.169.254", "[::ffff:169.254.169.254]", "10.0.0.1"] {
        let step_outcomes = take(&world, &format!("get http://{host}:{port}/")).await;
        is_refused(&step_outcomes[0], "unauthorized", "address_not_allowed");
    }
    assert_eq!(outside.seen().len(), 2, "{:#?}", outside.seen());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn smuggled_headers_are_not_sent() {
    let outside = OutsideServer::start().await;
    let world = world(&outside, "").await;
    let url = outside.url("ok/never");
    let authority = &outside.authority;
    let long = "a".repeat(9_000);
    let steps = [
        format!("get http://user:password@{authority}/"),
        format!("get http://user@{authority}/"),
        format!("get ftp://{authority}/"),
        "get file:///etc/passwd".to_owned(),
        "get /ok/never".to_owned(),
        "get http://".to_owned(),
        format!("get http://{authority}/{long}"),
        format!("send CONNECT {url}"),
        format!("send TRACE {url}"),
        format!("send GE\rT {url}"),
        format!("send GET {url} x-a: b\r\nx-evil: yes"),
        format!("send GET {url} x-a: b\nx-evil: yes"),
        format!("send GET {url} x-a\r\nx-evil: yes"),
        format!("send GET {url} x-a: b\0"),
        format!("send GET {url} host: example.com"),
        format!("send POST {url} content-length: 1000 | short"),
        format!("send POST {url} transfer-encoding: chunked | 0"),
        format!("send GET {url} connection: upgrade & upgrade: h2c"),
        format!("send GET {url} proxy-authorization: Basic eHh4"),
    ];
    for step in steps {
        let step_outcomes = take(&world, &step).await;
        is_refused(&step_outcomes[0], "invalid_argument", "invalid_request");
        assert!(!step_outcomes[0]["message"].as_str().unwrap().contains(['\r', '\n', '\0']), "{step_outcomes:?}");
    }
    // A line break in the URL is taken out as every browser does, and adds no header.
    let ended = world.say(&format!("get {url}\r\nx-evil: yes")).await;
    let step_outcomes = outcomes(&ended);
    assert!(step_outcomes[0] == 200 || step_outcomes[0]["code"] == "invalid_argument", "{step_outcomes:?}");
    for visit in outside.seen() {
        assert_eq!(visit.header("x-evil"), None, "{visit:#?}");
    }
    assert!(outside.seen().len() <= 1, "{:#?}", outside.seen());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_redirect_is_judged_like_a_request() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let world = world_of("outside/default", &[&outside.authority, "169.254.169.254:*"], LOCAL).await;
    let to = |code: u16, url: &str| outside.url(&format!("redirect/{code}/{url}"));
    let steps = [
        format!("get {}; rest", to(302, &outside.url("ok/there"))),
        format!("post {} text; rest", to(303, &outside.url("ok/becomes-get"))),
        format!("post {} text; rest", to(307, &outside.url("ok/stays-post"))),
    ];
    let step_outcomes = take(&world, &steps.join("; ")).await;
    assert_eq!(
        step_outcomes,
        [json!(200), json!("ok/there"), json!(200), json!("ok/becomes-get"), json!(200), json!("ok/stays-post")]
    );
    let asked = |path: &str| outside.visits(path).into_iter().map(|visit| (visit.method, visit.body)).collect::<Vec<_>>();
    assert_eq!(asked("ok/becomes-get"), [("GET".to_owned(), String::new())]);
    assert_eq!(asked("ok/stays-post"), [("POST".to_owned(), "text".to_owned())]);

    let refusals = [
        (to(302, &other.url("ok/not-granted")), "redirect_not_allowed"),
        (to(307, "http://localhost/"), "redirect_not_allowed"),
        (to(302, &to(302, &other.url("ok/not-granted"))), "redirect_not_allowed"),
        (to(302, &format!("http://user:password@{}/", outside.authority)), "redirect_not_allowed"),
        (to(302, "file:///etc/passwd"), "redirect_not_allowed"),
        (to(302, "http://169.254.169.254/latest/meta-data"), "address_not_allowed"),
    ];
    for (url, code) in refusals {
        let step_outcomes = take(&world, &format!("get {url}")).await;
        is_refused(&step_outcomes[0], "unauthorized", code);
    }
    assert!(other.seen().is_empty(), "{:#?}", other.seen());

    let step_outcomes = take(&world, &format!("get {}", outside.url("circle/round"))).await;
    is_refused(&step_outcomes[0], "runtime_error", "too_many_redirects");
    assert_eq!(outside.times("circle/round"), 6, "the first, and five redirects");
    world.host.shutdown(PATIENCE).await;
}

/// The world is closed where nobody opens it.
#[tokio::test]
async fn a_runner_without_a_grant_is_told_so() {
    let text = "[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\n";
    let world = World::from_text(&["outside"], text, |_| {}).await;
    let step_outcomes = take(&world, "get https://example.com/").await;
    assert_eq!((&step_outcomes[0]["code"], &step_outcomes[0]["details_code"]), (&json!("unauthorized"), &Value::Null));
    assert!(step_outcomes[0]["message"].as_str().unwrap().contains("`http` is not granted"), "{step_outcomes:?}");
    world.host.shutdown(PATIENCE).await;
}
