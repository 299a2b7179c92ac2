//! Requests to a warm host: it forwards them to the active one, and a stream of events outlives the active host that it began at.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use eventsource_stream::{Event, Eventsource};
use futures_util::StreamExt;
use hmac::{Hmac, Mac};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::task::JoinHandle;

use crate::{
    cluster::{LEASE_LOST, LEASE_MS, Member, World, cluster_command, command_line_of, is_numbered, is_over, lay_out, types},
    postgres::free_port,
};

pub const SECRET: &str = "a-secret-of-tests-0123456789abcdef";

/// A host that forwards, with its listener for hosts at `port`.
pub struct ForwardingHost {
    pub host: Member,
    pub port: u16,
}

impl World {
    fn host(&self) -> ForwardingHost {
        self.host_with(SECRET, free_port())
    }

    fn host_with(&self, secret: &str, advertised: u16) -> ForwardingHost {
        let port = free_port();
        let advertised = if advertised == 0 { port } else { advertised };
        let cluster = format!(
            "advertise = \"127.0.0.1:{advertised}\"\nlisten = \"127.0.0.1:{port}\"\nsecret = {{ env = \"CLUSTER_SECRET\" }}"
        );
        let variables = [("CLUSTER_SECRET", secret)];
        let host = Member::start_with(lay_out(), &self.url, free_port(), &cluster, &variables, &self.config);
        ForwardingHost { host, port }
    }

    /// A host that the others reach.
    pub fn member(&self) -> ForwardingHost {
        self.host_with(SECRET, 0)
    }

    /// An active host, and a warm one that reaches it, with its readiness.
    async fn active_and_warm(&self) -> (ForwardingHost, ForwardingHost, Value) {
        let active = self.member();
        active.host.is_active();
        let warm = self.member();
        let readiness = warm.is_ready().await;
        (active, warm, readiness)
    }
}

impl ForwardingHost {
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.host.url)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        client().request(method, self.url(path))
    }

    pub async fn readiness(&self) -> (StatusCode, Value) {
        match client().get(self.url("/readyz")).send().await {
            Ok(answer) => (answer.status(), answer.json().await.unwrap_or_default()),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Value::Null),
        }
    }

    /// Waits until the host is warm, and its readiness is as wanted.
    async fn until(&self, is_so: impl Fn(StatusCode, &Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let (status, body) = self.readiness().await;
            if body["ledger"].as_str().is_some_and(|ledger| ledger.contains("warm")) && is_so(status, &body) {
                return body;
            }
            assert!(began.elapsed() < PATIENCE, "{status}: {body}\n{}", self.host.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the host is warm and reaches the active one.
    async fn is_ready(&self) -> Value {
        self.until(|status, _| status == StatusCode::OK).await
    }
}

/// Follows a stream: its events, and whether it came to its end.
pub fn follow(request: RequestBuilder) -> JoinHandle<(Vec<Event>, bool)> {
    tokio::spawn(async move {
        let answer = request.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{}", answer.text().await.unwrap());
        let mut events = answer.bytes_stream().eventsource();
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => seen.push(event),
                Err(_) => return (seen, false),
            }
        }
        (seen, true)
    })
}

pub fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

/// A client at another address of this machine.
fn client_at(last: u8) -> Client {
    Client::builder().no_proxy().local_address(IpAddr::from(Ipv4Addr::new(127, 0, 0, last))).build().unwrap()
}

pub fn message(text: &str) -> Value {
    json!({ "event_type": "message.received", "input": { "text": text } })
}

async fn problem(request: RequestBuilder) -> (u16, String, Option<String>) {
    let answer = request.send().await.unwrap();
    let retry = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.unwrap();
    (status, body["code"].as_str().unwrap_or_default().to_owned(), retry)
}

pub fn records(events: &[Event]) -> Vec<Value> {
    events.iter().map(|event| serde_json::from_str(&event.data).unwrap_or_else(|_| panic!("{event:?}"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_warm_host_takes_every_request() {
    let world = World::start().await;
    let (active, warm, readiness) = world.active_and_warm().await;
    assert_eq!(readiness["active_host"], format!("127.0.0.1:{}", active.port));
    assert_eq!((&readiness["ready"], &readiness["problems"]), (&json!(true), &json!([])));
    assert_eq!(warm.request(Method::GET, "/healthz").send().await.unwrap().text().await.unwrap(), "ok");
    assert_eq!(problem(warm.request(Method::GET, "/metrics")).await.1, "partition_moving");

    // A run, whose events both hosts show alike, as a page and as a stream.
    let run = warm.host.send("task:calm").await;
    let events = warm.host.until(&run, is_over).await;
    assert_eq!(events, active.host.events(&run).await);
    let stream = follow(warm.request(Method::GET, &format!("/api/v1/runs/{run}/events"))).await.unwrap();
    assert!(stream.1);
    assert_eq!(records(&stream.0), events);

    // Content, in both directions, and a part of it; a method without a body.
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let upload = warm.request(Method::POST, "/api/v1/artifacts?workspace_id=w").body(content.clone());
    let stored: Value = upload.header("content-type", "application/octet-stream").send().await.unwrap().json().await.unwrap();
    let path = format!("/api/v1/artifacts/{}", stored["artifact_id"].as_str().unwrap_or_else(|| panic!("{stored}")));
    let head = warm.request(Method::HEAD, &path).send().await.unwrap();
    assert_eq!(head.headers()["content-length"], content.len().to_string());
    assert_eq!(warm.request(Method::GET, &path).send().await.unwrap().bytes().await.unwrap(), content);
    let part = warm.request(Method::GET, &path).header("range", "bytes=10-19").send().await.unwrap();
    assert_eq!((part.status(), &part.bytes().await.unwrap()[..]), (StatusCode::PARTIAL_CONTENT, &content[10..20]));

    // MCP answers a request by a stream.
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let accept = "application/json, text/event-stream";
    let opened = warm.request(Method::POST, "/mcp").json(&initialize).header("accept", accept).send().await.unwrap();
    assert!(opened.headers().contains_key("mcp-session-id"), "{opened:?}");
    assert!(opened.text().await.unwrap().contains("protocolVersion"));

    // The audit names the client, and not the host that forwarded.
    let made = client_at(9).post(warm.url("/api/v1/keys")).json(&json!({ "name": "far", "scopes": ["runs:read"] }));
    let made = made.send().await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED, "{}", made.text().await.unwrap());
    // A record of the audit is written behind its request.
    let began = Instant::now();
    loop {
        let (_, audit) = warm.host.get("/api/v1/audit?action=keys.create").await;
        match audit["items"].get(0) {
            Some(record) => break assert_eq!(record["details"]["address"], "127.0.0.9", "{audit}"),
            None => assert!(began.elapsed() < PATIENCE, "{audit}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // A request is judged by the host that the client asked: as one of this machine, or not.
    let runs = || warm.request(Method::GET, "/api/v1/runs");
    assert_eq!(runs().send().await.unwrap().status(), StatusCode::OK);
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1"),
        ("via", "1.1 proxy"),
        ("forwarded", "for=192.0.2.1"),
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
    ] {
        let forged = runs().header(name, value).header("agent-host-client", "127.0.0.1:1 this-machine");
        assert_eq!(problem(forged).await.1, "unauthenticated", "{name}");
    }
    let (_, readiness) = warm.readiness().await;
    assert!(readiness["forwarding"]["answered"].as_u64().unwrap() > 10, "{readiness}");
    assert_eq!(readiness["forwarding"]["failed"], 0, "{readiness}");
    // The answer of a host has no header of hosts among themselves, and a request goes through one host.
    assert!(runs().send().await.unwrap().headers().keys().all(|name| !name.as_str().starts_with("agent-host-")));
}

/// Begins a connection between hosts as `docs` of the handshake say. Gives the connection once the other side has proved itself.
fn shake_hands(port: u16, secret: &str) -> (TcpStream, bool) {
    let greeting = b"agent-host 1\n";
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ours = [7_u8; 32];
    stream.write_all(&[&greeting[..], &ours].concat()).unwrap();
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    let (theirs, proof) = answer.split_at(32);
    let mac = |purpose: &[u8]| {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret.as_bytes()).unwrap();
        for part in [greeting, purpose, &ours, theirs] {
            mac.update(part);
        }
        mac.finalize().into_bytes()
    };
    let is_known = mac(b"answer")[..] == *proof;
    stream.write_all(&mac(b"request")).unwrap();
    (stream, is_known)
}

/// Sends a request as it is, and reads to the end of the connection.
fn raw(mut stream: TcpStream, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// More new connections between two hosts than may prove themselves at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_requests_begin_at_the_same_moment() {
    let world = World::start().await;
    let (active, warm, _) = world.active_and_warm().await;
    let event = json!({ "event_type": "probe.sent" });
    let sent = (0..200).map(|_| warm.request(Method::POST, "/api/v1/events").json(&event).send());
    for answer in futures_util::future::join_all(sent).await {
        let answer = answer.unwrap();
        let status = answer.status();
        assert_eq!(status, StatusCode::ACCEPTED, "{}", answer.text().await.unwrap());
    }
    warm.host.terminate();
    active.host.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_listener_for_hosts_takes_hosts_with_the_secret_alone() {
    let world = World::start().await;
    let (active, warm, _) = world.active_and_warm().await;
    let facts = "agent-host-client: 127.0.0.1:1 this-machine";
    let request = |facts: &str| format!("GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{facts}\r\n\r\n");
    let forged = request(facts);

    for (host, port) in [(&active, active.port), (&warm, warm.port)] {
        // No proof.
        let answer = raw(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap(), &forged);
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(r#""code":"forbidden""#), "{answer}");
        // The proof of another secret.
        let (stream, is_known) = shake_hands(port, "another-secret-of-tests-0123456789");
        assert!(!is_known);
        assert_eq!(raw(stream, &forged), "");
        assert!(host.host.log().contains("a connection to the listener for hosts is refused"), "{}", host.host.log());
        // A host that does not say for whom it asks.
        let (stream, is_known) = shake_hands(port, SECRET);
        assert!(is_known);
        let answer = raw(stream, &request("x: y"));
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    // A host with the secret: the active host answers, and judges by what the other host says of the client.
    let answer = raw(shake_hands(active.port, SECRET).0, &forged);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let answer = raw(shake_hands(active.port, SECRET).0, &request("agent-host-client: 127.0.0.1:1 elsewhere"));
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    // A host that is asked as the active one, and is not, forwards nothing.
    let (_, before) = warm.readiness().await;
    let answer = raw(shake_hands(warm.port, SECRET).0, &forged);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("partition_moving"), "{answer}");
    assert_eq!(warm.readiness().await.1["forwarding"]["answered"], before["forwarding"]["answered"]);
    // The listener for clients does not know connections of hosts.
    let port = active.host.url.rsplit_once(':').unwrap().1.parse().unwrap();
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
    stream.write_all(b"agent-host 1\n").unwrap();
    assert!(raw(stream, &"0".repeat(32)).starts_with("HTTP/1.1 400 "));

    // A host of the cluster with another secret says so, and what it was asked for was not done.
    let stranger = world.host_with("another-secret-of-tests-0123456789", 0);
    let readiness = stranger.until(|_, body| body["problems"].as_array().is_some_and(|problems| !problems.is_empty())).await;
    assert!(readiness["problems"][0].as_str().unwrap().contains("another cluster secret"), "{readiness}");
    assert_eq!(stranger.readiness().await.0, StatusCode::SERVICE_UNAVAILABLE);
    let refused = problem(stranger.request(Method::POST, "/api/v1/events").json(&message("task:none"))).await;
    assert_eq!(refused, (503, "partition_unreachable".into(), Some("1".into())));
    assert!(stranger.host.log().contains("another cluster secret"));
    for host in [&active, &warm, &stranger] {
        assert!(!host.host.log().contains(SECRET) && !host.host.log().contains("another-secret-of-tests"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revoked_key_is_out_at_every_host_at_once() {
    let world = World::start().await;
    let (active, warm, _) = world.active_and_warm().await;
    let key = json!({ "name": "shortly", "scopes": ["runs:read"] });
    let made: Value = warm.request(Method::POST, "/api/v1/keys").json(&key).send().await.unwrap().json().await.unwrap();
    let (id, token) = (made["key_id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let feeds = [&active, &warm].map(|host| follow(host.request(Method::GET, "/api/v1/events").bearer_auth(token)));
    for host in [&active, &warm] {
        let runs = host.request(Method::GET, "/api/v1/runs").bearer_auth(token).send().await.unwrap();
        assert_eq!(runs.status(), StatusCode::OK);
    }
    let revoked = active.request(Method::DELETE, &format!("/api/v1/keys/{id}")).send().await.unwrap();
    assert!(revoked.status().is_success(), "{revoked:?}");
    let began = Instant::now();
    for host in [&active, &warm] {
        let refused = problem(host.request(Method::GET, "/api/v1/runs").bearer_auth(token)).await;
        assert_eq!((refused.0, refused.1.as_str()), (401, "unauthenticated"));
    }
    for feed in feeds {
        feed.await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_active_host_that_is_not_where_it_says_is_unreachable() {
    let world = World::start().await;
    // Nothing listens at the address that it advertises.
    let active = world.host();
    active.host.is_active();
    let warm = world.member();
    let readiness = warm.until(|_, body| body["problems"].as_array().is_some_and(|problems| !problems.is_empty())).await;
    assert!(readiness["problems"][0].as_str().unwrap().contains("cannot be reached"), "{readiness}");
    assert_eq!(warm.readiness().await.0, StatusCode::SERVICE_UNAVAILABLE);
    let began = Instant::now();
    let refused = problem(warm.request(Method::POST, "/api/v1/events").json(&message("task:none"))).await;
    assert_eq!(refused, (503, "partition_unreachable".into(), Some("1".into())));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    // A request that changes nothing waits for a takeover, and not for ever.
    let began = Instant::now();
    let refused = problem(warm.request(Method::GET, "/api/v1/runs")).await;
    assert_eq!(refused.1, "partition_unreachable");
    let wait = Duration::from_millis(LEASE_MS);
    assert!((wait..wait + Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
    let (_, runs) = active.host.get("/api/v1/runs").await;
    assert_eq!(runs["items"], json!([]), "a request that was refused was done");
}

/// The end of an active host.
#[derive(Debug, Clone, Copy)]
enum End {
    Killed,
    Terminated,
    Stopped,
}

/// Three hosts: of the two warm ones, either may be the next. The streams of both go on.
async fn streams_outlive(end: End) {
    let world = World::start().await;
    let mut active = world.member();
    active.host.is_active();
    let warm = [world.member(), world.member()];
    for host in &warm {
        host.is_ready().await;
    }
    let run = warm[0].host.send("task:moved").await;
    let path = format!("/api/v1/runs/{run}/events");
    let ids = ["one", "two"];
    let agui = |at: usize| {
        json!({ "threadId": format!("thread-{}", ids[at]), "runId": format!("run-{}", ids[at]), "state": {}, "tools": [], "context": [],
            "forwardedProps": {}, "messages": [{ "id": "m1", "role": "user", "content": format!("task:agui-{}", ids[at]) }] })
    };
    let streams: Vec<_> = warm.iter().map(|host| follow(host.request(Method::GET, &path))).collect();
    let agui: Vec<_> = (0..2).map(|at| follow(warm[at].request(Method::POST, "/agents/agent/run").json(&agui(at)))).collect();
    active.host.until(&run, |events| types(events).iter().filter(|kind| **kind == "message.delta").count() > 2).await;
    // A stream of what happens from now on has no place from which it goes on, until it has an event.
    let feed = follow(warm[0].request(Method::GET, "/api/v1/events"));
    let began = Instant::now();
    while warm[0].readiness().await.1["forwarding"]["open"] != 3 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let gone = Instant::now();
    match end {
        End::Killed => active.host.signal(Signal::KILL),
        End::Terminated => active.host.signal(Signal::TERM),
        End::Stopped => active.host.signal(Signal::STOP),
    }
    let mut waiting = Vec::new();
    if matches!(end, End::Killed) {
        // While nobody is active: a request that changes nothing waits, and so does one that names itself; another is refused.
        let runs = warm[0].request(Method::GET, "/api/v1/runs");
        let keyed = warm[0].request(Method::POST, "/api/v1/events").json(&message("task:keyed")).header("idempotency-key", "k1");
        waiting.push((StatusCode::OK, tokio::spawn(runs.send())));
        waiting.push((StatusCode::ACCEPTED, tokio::spawn(keyed.send())));
        let began = Instant::now();
        let (status, code, retry) = problem(warm[0].request(Method::POST, "/api/v1/events").json(&message("task:none"))).await;
        assert!(["partition_moving", "partition_unreachable", "outcome_unknown"].contains(&&*code), "{code}");
        assert_eq!(status == 503, retry.is_some());
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }

    let mut events = None;
    for stream in streams {
        let (seen, is_whole) = tokio::time::timeout(PATIENCE, stream).await.expect("a stream does not end").unwrap();
        assert!(is_whole, "{end:?}: a stream broke off: {}", warm[0].host.log());
        let seen = records(&seen);
        is_numbered(&seen);
        assert_eq!(types(&seen).last(), Some(&"run.completed"), "{seen:#?}");
        assert_eq!(events.get_or_insert_with(|| seen.clone()), &seen);
    }
    println!("{end:?}: the streams had their ends {:?} later", gone.elapsed());
    for (id, stream) in ids.iter().zip(agui) {
        let (seen, is_whole) = tokio::time::timeout(PATIENCE, stream).await.expect("a stream does not end").unwrap();
        assert!(is_whole, "{end:?}: a stream of AG-UI broke off");
        let places: Vec<_> = seen.iter().map(|event| event.id.as_str()).filter(|id| !id.is_empty()).collect();
        let mut once = places.clone();
        once.dedup();
        assert_eq!(places, once, "an event came twice");
        let kinds: Vec<_> = records(&seen).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
        let count = |kind: &str| kinds.iter().filter(|known| *known == kind).count();
        assert_eq!((count("RUN_STARTED"), count("RUN_FINISHED"), count("RUN_ERROR")), (1, 1, 0), "{id}: {kinds:?}");
        let starts = count("TEXT_MESSAGE_START");
        assert_eq!((starts, count("TOOL_CALL_START")), (count("TEXT_MESSAGE_END"), 3), "{id}: {kinds:?}");
    }
    let (_, is_whole) = tokio::time::timeout(PATIENCE, feed).await.expect("the feed goes on").unwrap();
    assert!(!is_whole, "a stream without a place has to break off");
    for (status, answer) in waiting {
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), status, "{}", answer.text().await.unwrap());
    }
    for host in &warm {
        assert_eq!(host.host.events(&run).await, *events.as_ref().unwrap());
    }
    if matches!(end, End::Stopped) {
        active.host.signal(Signal::CONT);
        assert_eq!(active.host.child.wait().unwrap().code(), Some(LEASE_LOST));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_of_warm_hosts_outlive_a_killed_host() {
    streams_outlive(End::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_of_warm_hosts_outlive_a_host_that_ends_in_good_order() {
    streams_outlive(End::Terminated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_of_warm_hosts_outlive_a_stopped_host() {
    streams_outlive(End::Stopped).await;
}

/// Sends requests to a host one after the other, until it is told to stop, and some at least: uploads without a key and reads. Gives the
/// number of those that were answered as they should be, and the first that was not.
fn requests(url: String, stop: Arc<AtomicBool>) -> JoinHandle<(usize, Option<String>)> {
    tokio::spawn(async move {
        let (client, mut answered) = (client(), 0);
        while !stop.load(Ordering::Relaxed) || answered < 10 {
            let request = if answered % 2 == 0 {
                let upload = client.post(format!("{url}/api/v1/artifacts?workspace_id=w"));
                upload.header("content-type", "text/plain").body(answered.to_string())
            } else {
                client.get(format!("{url}/api/v1/runs?limit=1"))
            };
            match request.send().await {
                Ok(answer) if answer.status().is_success() => answered += 1,
                Ok(answer) => {
                    return (answered, Some(format!("{}: {}", answer.status(), answer.text().await.unwrap_or_default())));
                }
                Err(error) => return (answered, Some(format!("{error:?}"))),
            }
        }
        (answered, None)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drained_host_fails_no_request_and_its_streams_go_on() {
    let world = World::start().await;
    let (active, warm, _) = world.active_and_warm().await;
    let commands = tempfile::tempdir().unwrap();
    command_line_of(&world.url, commands.path());
    let address = |host: &ForwardingHost| format!("127.0.0.1:{}", host.port);

    // Streams at both hosts, of a run that is under way when the ledger moves.
    let run = active.host.send("task:moved").await;
    let path = format!("/api/v1/runs/{run}/events");
    let agui = json!({ "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{ "id": "m1", "role": "user", "content": "task:agui" }] });
    let streams: Vec<_> = [&active, &warm].map(|host| follow(host.request(Method::GET, &path))).into_iter().collect();
    let agui = follow(active.request(Method::POST, "/agents/agent/run").json(&agui));
    active.host.until(&run, |events| types(events).iter().filter(|kind| **kind == "message.delta").count() > 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let wait = active.request(Method::POST, "/api/v1/events").json(&message("task:waited")).header("prefer", "wait=30");
    let waited = tokio::spawn(wait.send());
    let clients: Vec<_> = [&active, &warm].map(|host| requests(host.url(""), Arc::clone(&stop))).into_iter().collect();

    let drain = |host: String| {
        let dir = commands.path().to_owned();
        tokio::task::spawn_blocking(move || cluster_command(&dir, &["drain", &host]))
    };
    let drained = drain(address(&active)).await.unwrap().unwrap_or_else(|error| panic!("{error}\n{}", active.host.log()));
    println!("drained: {drained}");
    assert_eq!((&drained["owned"], &drained["active"]), (&json!(1), &json!([address(&warm)])), "{drained}");
    warm.host.is_active();
    // With the run as it was, or at its end.
    let waited = waited.await.unwrap().unwrap();
    assert!(waited.status().is_success(), "{}", waited.text().await.unwrap());
    let mut events = None;
    for stream in streams {
        let (seen, is_whole) = tokio::time::timeout(PATIENCE, stream).await.expect("a stream does not end").unwrap();
        assert!(is_whole, "a stream broke off: {}", active.host.log());
        let seen = records(&seen);
        is_numbered(&seen);
        assert_eq!(types(&seen).last(), Some(&"run.completed"), "{seen:#?}");
        assert_eq!(events.get_or_insert_with(|| seen.clone()), &seen);
    }
    let (seen, is_whole) = tokio::time::timeout(PATIENCE, agui).await.expect("a stream does not end").unwrap();
    let kinds: Vec<_> = records(&seen).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    let count = |kind: &str| kinds.iter().filter(|known| *known == kind).count();
    assert!(is_whole && (count("RUN_STARTED"), count("RUN_FINISHED"), count("RUN_ERROR")) == (1, 1, 0), "{kinds:?}");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let (answered, failed) = client.await.unwrap();
        assert_eq!(failed, None, "after {answered} requests\n{}", active.host.log());
    }

    // The drained host forwards, and is not ready.
    let readiness = active.until(|_, body| body["drained"] == true).await;
    assert!(readiness["problems"][0].as_str().is_some_and(|problem| problem.contains("drained")), "{readiness}");
    assert_eq!(active.readiness().await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(active.host.events(&run).await, events.unwrap());
    let hosts = cluster_command(commands.path(), &["status"]).unwrap()["hosts"].clone();
    let of = |host: &ForwardingHost| {
        let hosts = hosts.as_array().unwrap();
        hosts.iter().find(|found| found["advertise"] == address(host)).cloned().unwrap_or_else(|| panic!("{hosts:#?}"))
    };
    assert_eq!((&of(&active)["active"], &of(&active)["drained"]), (&json!(false), &json!(true)), "{hosts}");
    assert_eq!((&of(&warm)["active"], &of(&warm)["drained"]), (&json!(true), &json!(false)), "{hosts}");
    // Nobody is left who could take the ledger, but after a failure a drained host is better than none.
    let refused = drain(address(&warm)).await.unwrap().unwrap_err();
    assert!(refused.contains("no other host"), "{refused}");
    let refused = drain("127.0.0.1:1".to_owned()).await.unwrap().unwrap_err();
    assert!(refused.contains("no host at `127.0.0.1:1`"), "{refused}");
    warm.host.signal(Signal::KILL);
    active.host.is_active();
    let after = active.host.send("task:after").await;
    assert_eq!(types(&active.host.until(&after, is_over).await).last(), Some(&"run.completed"));
}
