//! Connections that cost something and give nothing.

use std::time::{Duration, Instant};

use agent_host_tests::{Process, world::PATIENCE};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::access::support::{ASKS, Answer, message};

const HOSTILE: &str = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\n";

fn start(components: &[&str], limits: &str, config: &str) -> Process {
    Process::start(components, &format!("{config}\n[limits]\nmax_live_runs = 50\n{limits}"))
}

fn address(host: &Process) -> std::net::SocketAddr {
    host.url.trim_start_matches("http://").parse().unwrap()
}

async fn connect(host: &Process) -> TcpStream {
    TcpStream::connect(address(host)).await.unwrap()
}

/// All that comes until the end of the connection, however it ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let reading = async {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut piece).await {
            read.extend_from_slice(&piece[..count]);
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the connection ends");
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_head_that_does_not_come_holds_no_connection() {
    let host = start(&[], "http_header_ms = 500\n", "");
    let mut dripping = connect(&host).await;
    let began = Instant::now();
    dripping.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    // A byte every 50 ms, for as long as somebody takes them.
    let dripped = async {
        while dripping.write_all(b"x: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(10), dripped).await.expect("it is closed");
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());

    // Likewise one that says nothing, and one that has said something before.
    let mut silent = connect(&host).await;
    let mut idle = connect(&host).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(rest(&mut silent).await, "");
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200"));

    let mut long = connect(&host).await;
    let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    // The connection may be closed before the whole request is written.
    let _ = long.write_all(head.as_bytes()).await;
    let remainder = rest(&mut long).await;
    assert!(remainder.is_empty() || remainder.starts_with("HTTP/1.1 431"), "{remainder}");
    assert_eq!(reqwest::get(host.url("/healthz")).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_whose_end_two_may_read_differently_is_the_last_of_its_connection() {
    let host = start(&[], "", "");
    // By its length, the request ends before the second one begins; by its chunks, that is a part of it.
    let smuggled = "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for order in [["content-length: 5", "transfer-encoding: chunked"], ["transfer-encoding: chunked", "content-length: 5"]] {
        let mut stream = connect(&host).await;
        let head = format!(
            "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{}\r\n\r\n",
            order.join("\r\n")
        );
        stream.write_all(format!("{head}0\r\n\r\n{smuggled}").as_bytes()).await.unwrap();
        let answers = rest(&mut stream).await;
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
        assert!(answers.starts_with("HTTP/1.1 4") && answers.to_ascii_lowercase().contains("connection: close"), "{answers}");
    }
    let mut plain = connect(&host).await;
    let twice = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    plain.write_all(format!("{twice}{}", twice.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).as_bytes()).await.unwrap();
    assert_eq!(rest(&mut plain).await.matches("HTTP/1.1 200").count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn there_are_so_many_connections_and_no_more() {
    let host = start(&[], "http_connections = 8\n", "");
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = connect(&host).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        held.push(stream);
    }
    let http = Client::builder().pool_max_idle_per_host(0).build().unwrap();
    for _ in 0..3 {
        let refused = Answer::of(http.get(host.url("/healthz")).send().await.unwrap()).await;
        refused.is(503, "unavailable");
        assert_eq!(refused.headers["retry-after"], "1");
    }
    // Open connections continue, and a closed one makes room.
    held[0].write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    held[0].read_exact(&mut [0; 12]).await.unwrap();
    drop(held.pop());
    let began = Instant::now();
    while http.get(host.url("/healthz")).send().await.unwrap().status() != 200 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn there_are_so_many_subscribers_and_no_more() {
    let host = start(&["asks"], "http_subscribers = 2\n", ASKS);
    let http = Client::new();
    let accepted = http.post(host.url("/api/v1/events")).json(&message("ask form - name")).send().await.unwrap();
    let run = accepted.json::<Value>().await.unwrap()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/runs/{run}/events");
    let subscribe = async || http.get(host.url(&path)).header("accept", "text/event-stream").send().await.unwrap();
    let (first, second) = (subscribe().await, subscribe().await);
    assert_eq!((first.status(), second.status()), (reqwest::StatusCode::OK, reqwest::StatusCode::OK));
    let refused = Answer::of(subscribe().await).await;
    refused.is(503, "too_many_streams");
    assert_eq!(refused.headers["retry-after"], "1");
    // A page is no stream.
    assert_eq!(http.get(host.url(&path)).send().await.unwrap().status(), 200);
    drop(first);
    let began = Instant::now();
    while subscribe().await.status() != 200 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Memory of a process, in bytes.
fn resident(host: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Whole server-sent events of an answer in chunks: id, and what they say.
fn events(answer: &str) -> Vec<(String, Value)> {
    let Some((_, body)) = answer.split_once("\r\n\r\n") else { return Vec::new() };
    let mut text = String::new();
    let mut left = body;
    while let Some((size, after)) = left.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        // The last chunk broke off.
        let Some(chunk) = after.get(..size) else { break };
        text.push_str(chunk);
        left = after[size..].trim_start_matches("\r\n");
    }
    let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let event = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        Some((field("id:")?, serde_json::from_str(&field("data:")?).unwrap()))
    };
    whole.split("\n\n").filter_map(event).collect()
}

const EVENTS: u64 = 40_000;
const READERS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_never_reads_is_dropped_and_slows_nobody() {
    let limits = "http_slow_reader_ms = 1000\nresults_per_second = 1000000\nresults_burst = 1000000\n";
    let host = start(&["hostile"], limits, HOSTILE);
    let http = Client::new();
    let text = format!("emit-n-batched {EVENTS}");
    let run = async || {
        let began = Instant::now();
        let answer =
            http.post(host.url("/api/v1/events")).header("prefer", "wait=60").json(&message(&text)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["runs"][0]["status"], "completed", "{answer:#}");
        (answer["runs"][0]["run_id"].as_str().unwrap().to_owned(), began.elapsed())
    };
    let (finished, alone) = run().await;
    let before = resident(&host);

    // The clients request everything and read nothing: more than the system buffers.
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 * 1024).unwrap();
        let mut stream = socket.connect(address(&host)).await.unwrap();
        let request =
            format!("GET /api/v1/runs/{finished}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        readers.push(stream);
    }
    let (_, beside) = run().await;
    assert!(beside < alone * 5 + Duration::from_secs(5), "alone {alone:?}, beside those who do not read {beside:?}");
    let grown = resident(&host).saturating_sub(before);
    // Of which the second run is a part.
    assert!(grown < 128 << 20, "{READERS} readers that stand still take {} MiB", grown >> 20);

    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let remainder = rest(&mut readers[0]).await;
    let first = events(&remainder);
    let last_seen = first.last().map_or(0, |(_, event)| event["sequence"].as_u64().unwrap());
    assert!(last_seen < EVENTS, "it was not dropped: {last_seen} of {EVENTS}");

    // The client reconnects with its last position, reads, and has every event once.
    let mut request = http.get(host.url(&format!("/api/v1/runs/{finished}/events"))).header("accept", "text/event-stream");
    if let Some((id, _)) = first.last() {
        request = request.header("last-event-id", id);
    }
    let text = request.send().await.unwrap().text().await.unwrap();
    let chunked = format!("\r\n\r\n{:x}\r\n{text}\r\n", text.len());
    let sequences =
        first.iter().chain(&events(&chunked)).map(|(_, event)| event["sequence"].as_u64().unwrap()).collect::<Vec<_>>();
    let all = sequences.last().copied().unwrap();
    assert!(all > EVENTS);
    assert!(sequences.iter().copied().eq(1..=all), "a gap, or something twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_clients_that_read_stay_connected() {
    let limits = "http_slow_reader_ms = 1500\nresults_per_second = 1000000\nresults_burst = 1000000\n";
    let host = start(&["hostile"], limits, HOSTILE);
    let http = Client::new();
    let text = format!("emit-n-batched {EVENTS}");
    let answer = http.post(host.url("/api/v1/events")).header("prefer", "wait=60").json(&message(&text)).send().await.unwrap();
    let run = answer.json::<Value>().await.unwrap()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let mut stream = socket.connect(address(&host)).await.unwrap();
    let request = format!(
        "GET /api/v1/runs/{run}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    // For longer than the limit, a piece every 50 ms; then the rest.
    let mut remainder = Vec::new();
    for _ in 0..60 {
        let mut piece = vec![0; 64 * 1024];
        let count = stream.read(&mut piece).await.unwrap();
        remainder.extend_from_slice(&piece[..count]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    remainder.extend_from_slice(rest(&mut stream).await.as_bytes());
    let last = events(&String::from_utf8(remainder).unwrap()).last().map(|(_, event)| event["type"].clone());
    assert_eq!(last, Some(json!("run.completed")));
}
