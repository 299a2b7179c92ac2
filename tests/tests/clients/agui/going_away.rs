//! Hosts that end, clients that leave, and clients that stay and say nothing.

use std::time::{Duration, Instant};

use agent_host_tests::world::PATIENCE;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};

use crate::agui::support::{Host, View, config, input, is_terminal, lines_of, sound};

/// Clients that do not read, and how much there is for each to read.
const DEAF: usize = 4;
const PIECES: usize = 900;
const QUICK: &str = "http_slow_reader_ms = 6000\nresults_per_second = 1000000\nresults_burst = 1000000\n\
                     host_calls_per_second = 1000000\nhost_calls_burst = 1000000";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_ends_says_so_at_the_end_of_each_stream_and_cuts_none() {
    let mut host = Host::start("").await;
    let text = "Nobody waits for the end of this. ".repeat(5);
    let say = json!([{ "do": "say", "text": text, "pieces": 150, "delay_ms": 100 }]);
    let sleep = json!([{ "do": "say", "text": "Good night.", "open": true }, { "do": "sleep", "ms": 3_600_000 }]);
    let mut streams = Vec::new();
    for (n, script) in [&say, &say, &sleep].into_iter().enumerate() {
        let mut wire = host.run(&input(&format!("t{n}"), &format!("r{n}"), script)).await;
        let before = wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
        streams.push((n, before, wire));
    }
    let mut read = Vec::new();
    for (n, before, wire) in streams {
        read.push(tokio::spawn(async move { (n, [before, wire.rest().await].concat()) }));
    }
    host.terminate();
    for read in read {
        let (n, events) = read.await.unwrap();
        sound(&events, &format!("t{n}"), &format!("r{n}"));
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["code"]), (&json!("RUN_ERROR"), &json!("SERVER_SHUTDOWN")), "{}", lines_of(&events));
    }
    // The runs go on where they were.
    host.revive();
    let again = host.run(&input("t0", "r0", &say)).await.rest().await;
    sound(&again, "t0", "r0");
    assert_eq!(View::of(&again).texts("assistant"), [text]);
    assert_eq!(host.cancel("t2", "r2").await, 202);
    let again = host.run(&input("t2", "r2", &sleep)).await.rest().await;
    sound(&again, "t2", "r2");
    assert_eq!(again.last().unwrap()["outcome"], json!({ "type": "cancelled" }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_holds_nobody_up() {
    let host = Host::with_config("loopback_without_key = true", &config("", QUICK)).await;
    // More than the system and the host hold for one who does not read.
    let piece = "It is all for nothing. ".repeat(400);
    let script = json!([{ "do": "repeat", "times": PIECES, "steps": [{ "do": "say", "text": piece }] }]);
    let address = host.process().url.trim_start_matches("http://").to_owned();
    let mut deaf = Vec::new();
    for n in 0..DEAF {
        let body = input(&format!("deaf-{n}"), &format!("deaf-{n}"), &script).to_string();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
        let request = format!(
            "POST /agents/stage/run HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: text/event-stream\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        deaf.push(stream);
    }
    // A client that reads is served meanwhile, and the runs of the others end.
    let events = host.run(&input("reads", "reads-1", &json!([{ "do": "say", "text": "Here." }]))).await.rest().await;
    sound(&events, "reads", "reads-1");
    for n in 0..DEAF {
        let thread = format!("deaf-{n}");
        host.until(&thread, |found| found.get("activeRun").is_none() && !found["messages"].as_array().unwrap().is_empty()).await;
        let again = host.connect(&input(&thread, "look", &json!([]))).await.rest().await;
        sound(&again, &thread, "look");
        assert_eq!(View::of(&again).texts("assistant").len(), PIECES);
    }
    // The connections were closed to free their memory.
    tokio::time::sleep(Duration::from_secs(8)).await;
    for mut stream in deaf {
        let mut read = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("it ends");
        let text = String::from_utf8_lossy(&read);
        assert!(text.starts_with("HTTP/1.1 200"), "{}", &text[..text.len().min(200)]);
        assert!(!text.contains("\"RUN_FINISHED\""), "it was all sent: {} bytes", text.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_decides_on_runs_of_disconnected_clients() {
    let slow = json!([{ "do": "say", "text": "word ".repeat(600), "pieces": 600, "delay_ms": 50 }]);
    for (policy, goes_on) in [("detach", true), ("cancel", false)] {
        let host = Host::start(&format!("on_disconnect = \"{policy}\"\ndisconnect_grace_ms = 0")).await;
        let mut wire = host.run(&input("t", "r", &slow)).await;
        wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
        drop(wire);
        if goes_on {
            // Longer than a host takes to notice.
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(host.thread("t").await["activeRun"]["runId"], "r");
            assert_eq!(host.cancel("t", "r").await, 202);
        }
        host.until("t", |thread| thread.get("activeRun").is_none()).await;
        let again = host.run(&input("t", "r", &slow)).await.rest().await;
        sound(&again, "t", "r");
        assert_eq!(again.last().unwrap()["outcome"], json!({ "type": "cancelled" }), "{policy}");
        // With two who look, one may leave.
        let run_input = input("t", "r2", &json!([{ "do": "say", "text": "Still here.", "pieces": 11, "delay_ms": 60 }]));
        let mut first = host.run(&run_input).await;
        first.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
        let second = host.run(&run_input).await;
        drop(first);
        let events = second.rest().await;
        sound(&events, "t", "r2");
        assert_eq!(View::of(&events).texts("assistant").last().unwrap(), "Still here.", "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_streams_are_kept_alive_and_no_proxy_holds_them_back() {
    let host = Host::start("").await;
    let script = json!([{ "do": "sleep", "ms": 17_000 }, { "do": "say", "text": "Awake." }]);
    let began = Instant::now();
    let mut wire = host.run(&input("t", "r", &script)).await;
    assert!(began.elapsed() < Duration::from_secs(15), "the stream begins when the run does");
    let headers = wire.headers.clone();
    assert_eq!(headers["x-accel-buffering"], "no");
    assert!(headers["cache-control"].to_str().unwrap().contains("no-store"), "{headers:?}");
    assert!(headers.get("content-encoding").is_none(), "{headers:?}");
    let mut events = Vec::new();
    while let Some(frame) = wire.next().await {
        events.push(frame.data);
    }
    assert!(wire.comments >= 1, "17 s of silence");
    assert!(!wire.broken);
    sound(&events, "t", "r");
    assert!(events.iter().any(is_terminal));
}
