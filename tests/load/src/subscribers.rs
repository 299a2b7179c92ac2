//! Clients that follow one run, of whom half never read.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::{
    net::TcpSocket,
    sync::oneshot,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    connection::Connection,
    queue::{Executor, HeldRun, make},
};

/// Number of events before the first follower: more than the buffers of the system and the host hold for a client that does
/// not read.
const SAID: usize = 256;
/// Bytes of text in each event of that.
const TEXT_BYTES: usize = 1024;
/// Results in one request.
const BATCH: usize = 64;
/// After that it says something so often.
const PAUSE: Duration = Duration::from_secs(1);

/// Segments as on a network. Over the loopback they have 64 KiB, and the system would hold some 4 MB for each client that does
/// not read: more in all than it has for sockets, which is not what is measured here.
const SEGMENT_BYTES: u32 = 1460;
/// Receive buffer of a client that does not read, in bytes.
const UNREAD_BYTES: u32 = 4 * 1024;
/// Clients come from so many addresses of this machine, 127.0.0.2 and those after it, so that no ports run out.
const SOURCES: usize = 4;
const FIRST_SOURCE: usize = 2;

/// Clients that connect at one time.
const AT_ONCE: usize = 100;
/// Time limit for reading the existing events.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time limit of the measurement.
const LONGEST: Duration = Duration::from_secs(600);
/// A look at one connection.
const LOOK: Duration = Duration::from_millis(500);
/// Wait of the run for its executor, in ms.
const CLAIM_WAIT_MS: u64 = 20_000;

/// All are there, and those who read have read all that there was.
#[derive(Debug, Serialize)]
struct Ready {
    readers: usize,
    unread: usize,
    seconds: f64,
}

/// The counts at the end.
#[derive(Debug, Serialize)]
pub(crate) struct LeftDeliveries {
    /// Clients that were still connected.
    open: usize,
    /// Events of the run.
    received: usize,
}

/// Claims a run, starts its followers, and reports; the run continues until the input of this process ends.
pub(crate) async fn subscribe(address: SocketAddr, subscribers: usize) -> anyhow::Result<LeftDeliveries> {
    let began = Instant::now();
    let mut input = input_ends();
    let mut speaker = Speaker::begin(address).await?;
    while speaker.received < SAID {
        speaker.say(BATCH.min(SAID - speaker.received)).await?;
    }
    let mut crowd = Crowd::gather(address, &format!("/api/v1/runs/{}/events", speaker.held.run_id), subscribers).await?;
    crowd.catch_up().await?;
    let ready = Ready { readers: crowd.readers.len(), unread: crowd.unread.len(), seconds: began.elapsed().as_secs_f64() };
    crate::print(&ready)?;
    let deadline = Instant::now() + LONGEST;
    loop {
        tokio::select! {
            _ended = &mut input => break,
            () = sleep(PAUSE) => {}
        }
        anyhow::ensure!(Instant::now() < deadline, "nobody has ended this within {LONGEST:?}");
        speaker.say(1).await?;
        crowd.none_has_ended()?;
    }
    Ok(LeftDeliveries { open: crowd.open().await, received: speaker.received })
}

/// Comes when the input of this process is at its end. On a thread of its own, which does not hold up the end of the process.
fn input_ends() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        // An input that breaks off is at its end as well.
        let _read = io::copy(&mut io::stdin(), &mut io::sink());
        let _gone = sender.send(());
    });
    receiver
}

/// The executor of the run.
struct Speaker {
    executor: Executor,
    held: HeldRun,
    received: usize,
}

impl Speaker {
    async fn begin(address: SocketAddr) -> anyhow::Result<Self> {
        let mut executor = Executor::register(address, "speaker").await?;
        make(&mut Connection::open(address).await?).await?;
        let held =
            executor.claim(CLAIM_WAIT_MS).await?.context("the run that is to be followed does not come to its executor")?;
        Ok(Self { executor, held, received: 0 })
    }

    async fn say(&mut self, events: usize) -> anyhow::Result<()> {
        self.executor.append(&self.held, &deltas(self.received + 1, events)).await?;
        self.received += events;
        Ok(())
    }
}

/// Deltas, numbered from `first`.
fn deltas(first: usize, events: usize) -> String {
    let text = "x".repeat(TEXT_BYTES);
    let delta = json!({
        "type": "message.delta",
        "data": { "message_id": "m", "chunk": { "role": "assistant", "content": text } },
    });
    let results: Vec<Value> = vec![delta; events];
    json!({ "first": first, "results": results }).to_string()
}

/// The followers.
struct Crowd {
    readers: JoinSet<anyhow::Result<()>>,
    unread: Vec<Connection>,
    /// Number of followers that have read the earlier events.
    caught_up: Arc<AtomicUsize>,
}

impl Crowd {
    /// Every second of them reads, from the moment in which it is there.
    async fn gather(address: SocketAddr, path: &str, subscribers: usize) -> anyhow::Result<Self> {
        let mut crowd = Self { readers: JoinSet::new(), unread: Vec::new(), caught_up: Arc::default() };
        let mut there = 0;
        while there < subscribers {
            let wave = there..subscribers.min(there + AT_ONCE);
            there = wave.end;
            for (number, connection) in try_join_all(wave.map(|number| subscribed(address, path, number))).await? {
                if reads(number) {
                    crowd.readers.spawn(read(connection, Arc::clone(&crowd.caught_up)));
                } else {
                    crowd.unread.push(connection);
                }
            }
        }
        Ok(crowd)
    }

    /// Waits until those who read have read what there is.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.none_has_ended()?;
            let (caught_up, readers) = (self.caught_up.load(Ordering::Relaxed), self.readers.len());
            if caught_up == readers {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "{caught_up} of {readers} clients have read the run within {PATIENCE:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The run is active, so no stream of it may have ended.
    fn none_has_ended(&mut self) -> anyhow::Result<()> {
        match self.readers.try_join_next() {
            None => Ok(()),
            Some(ended) => {
                ended??;
                bail!("a stream came to its end before its run")
            }
        }
    }

    /// The number of open connections.
    async fn open(&mut self) -> usize {
        while self.readers.try_join_next().is_some() {}
        let mut open = self.readers.len();
        for connection in &self.unread {
            if matches!(timeout(LOOK, connection.has_unread()).await, Ok(true)) {
                open += 1;
            }
        }
        open
    }
}

fn reads(number: usize) -> bool {
    number.is_multiple_of(2)
}

/// A client that has subscribed, with its number.
async fn subscribed(address: SocketAddr, path: &str, number: usize) -> anyhow::Result<(usize, Connection)> {
    let socket = TcpSocket::new_v4()?;
    SockRef::from(&socket).set_tcp_mss(SEGMENT_BYTES)?;
    if !reads(number) {
        socket.set_recv_buffer_size(UNREAD_BYTES)?;
    }
    let source = u8::try_from(FIRST_SOURCE + number % SOURCES)?;
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, source), 0)))?;
    let stream = socket.connect(address).await.with_context(|| format!("{address} does not answer client {number}"))?;
    let mut connection = Connection::over(stream, address)?;
    connection.subscribe(path).await.with_context(|| format!("client {number} cannot follow"))?;
    Ok((number, connection))
}

async fn read(mut connection: Connection, caught_up: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let mut events = 0;
    let each = |line: &str| {
        if line.starts_with("event: message.delta") {
            events += 1;
            if events == SAID {
                caught_up.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    connection.lines(each).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_numbered_and_as_many_as_asked_for() {
        let body: Value = serde_json::from_str(&deltas(65, 3)).unwrap();
        assert_eq!(body["first"], 65);
        assert_eq!(body["results"].as_array().unwrap().len(), 3);
        assert_eq!(body["results"][0]["data"]["chunk"]["content"].as_str().unwrap().len(), TEXT_BYTES);
    }

    #[test]
    fn half_of_them_read() {
        assert_eq!((0..10).filter(|number| reads(*number)).count(), 5);
    }
}
