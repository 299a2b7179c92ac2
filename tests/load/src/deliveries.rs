//! A webhook that receives the results of runs, and the events of these runs.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use crate::{
    connection::Connection,
    echo, http,
    model_server::{self, Listening},
};

/// Time limit for deliveries.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks for remaining deliveries.
const LOOK: Duration = Duration::from_millis(50);

const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The counts from the first event to the last delivery. The runs are made meanwhile, on the same processors.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    runs: usize,
    requests: usize,
    events: usize,
    requests_per_second: f64,
    events_per_second: f64,
    /// Until the last run had ended, and until everything was delivered.
    runs_seconds: f64,
    seconds: f64,
}

/// The requests that the webhook received.
#[derive(Debug, Default)]
struct Received {
    requests: AtomicUsize,
    events: AtomicUsize,
    /// Ends of runs among them.
    ends: AtomicUsize,
}

#[derive(Deserialize)]
struct Request {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
}

impl Received {
    fn take(&self, body: &[u8]) -> anyhow::Result<()> {
        let Request { data: Data { events } } = serde_json::from_slice(body)?;
        let ends = events.iter().filter(|event| event.kind == "run.completed").count();
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events.len(), Ordering::Relaxed);
        self.ends.fetch_add(ends, Ordering::Relaxed);
        Ok(())
    }
}

/// Prints the address of the webhook, reads the address of the host, and sends at least this many events.
pub(crate) async fn measure(events: usize, in_flight: usize) -> anyhow::Result<Report> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    crate::print(&Listening { address: listener.local_addr()? })?;
    let received = Arc::new(Received::default());
    let mut webhook = JoinSet::new();
    webhook.spawn(serve(listener, Arc::clone(&received)));
    let host = host().await?;
    let (each, began) = (events.div_ceil(in_flight), Instant::now());
    try_join_all((0..in_flight).map(|worker| send(host, worker, each))).await?;
    let made = began.elapsed();
    all_delivered(host).await?;
    let took = began.elapsed();
    let [requests, events, ends] =
        [&received.requests, &received.events, &received.ends].map(|count| count.load(Ordering::Relaxed));
    let runs = each * in_flight;
    anyhow::ensure!(ends >= runs, "the webhook was told of {ends} ends of {runs} runs");
    Ok(Report {
        runs,
        requests,
        events,
        requests_per_second: requests as f64 / took.as_secs_f64(),
        events_per_second: events as f64 / took.as_secs_f64(),
        runs_seconds: made.as_secs_f64(),
        seconds: took.as_secs_f64(),
    })
}

/// The one line of the input.
async fn host() -> anyhow::Result<SocketAddr> {
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    line.trim().parse().with_context(|| format!("`{}` is no address of a host", line.trim()))
}

/// Events, one after the other, each with its run brought to its end.
async fn send(host: SocketAddr, worker: usize, events: usize) -> anyhow::Result<()> {
    let mut connection = Connection::open(host).await?;
    for turn in 0..events {
        let event = http::event(echo::TEXT, &echo::conversation(worker, turn));
        let answer = connection.post("/api/v1/events", "prefer: wait=30\r\n", &event, 200).await?;
        anyhow::ensure!(answer.contains("\"status\":\"completed\""), "a run did not complete: {answer}");
    }
    Ok(())
}

/// Waits until the host lists nothing that is still to be delivered.
async fn all_delivered(host: SocketAddr) -> anyhow::Result<()> {
    let mut connection = Connection::open(host).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page: Value = serde_json::from_str(connection.get("/api/v1/deliveries?limit=1").await?)?;
        let left = page.get("items").and_then(Value::as_array).context("a page without items")?;
        if left.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "after {PATIENCE:?} this is not delivered, and perhaps more: {left:?}");
        sleep(LOOK).await;
    }
}

async fn serve(listener: TcpListener, received: Arc<Received>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // A connection that the host closes ends with an error, which is ignored.
        tokio::spawn(take_all(stream, Arc::clone(&received)));
    }
}

/// Answers the requests of a connection one after the other.
async fn take_all(stream: TcpStream, received: Arc<Received>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(body) = model_server::request(&mut stream).await? {
        received.take(&body)?;
        stream.write_all(TAKEN).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn deliveries_are_counted_and_accepted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Received::default());
        tokio::spawn(serve(listener, Arc::clone(&received)));
        let events = json!([{ "type": "message.completed", "data": {} }, { "type": "run.completed", "data": {} }]);
        let body = json!({ "type": "run.events", "data": { "run": {}, "events": events } }).to_string();
        let mut connection = Connection::open(address).await.unwrap();
        for _ in 0..3 {
            assert_eq!(connection.post("/", "", &body, 200).await.unwrap(), "");
        }
        let counts = [&received.requests, &received.events, &received.ends].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [3, 6, 3]);
        assert!(received.take(b"{}").is_err());
    }
}
