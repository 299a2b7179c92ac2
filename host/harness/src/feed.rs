//! Messages of an agent, one a line, and messages to it.
//!
//! Messages of the agent wait in a queue with a bound; while the queue is full, the agent is not read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWriteExt as _},
    process::ChildStdin,
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    failure::{RunFailure, TurnError},
    process::{Line, Lines, ReadBounds},
    results::Results,
    stop::StopFlag,
};

/// Messages of the agent that wait.
const QUEUE: usize = 256;
/// Bytes of messages of the agent that wait, beside the one that is read: as many long lines as [`QUEUE`] allows would not fit into
/// memory.
const QUEUE_BYTES: usize = 8 << 20;
/// Time for a message to an agent whose run is stopped.
const LAST_WRITE: Duration = Duration::from_millis(100);
/// Lines that are no message, after which the agent counts as broken: programs write a line of their log to the wrong stream.
const MAX_GARBAGE: u32 = 1_000;

/// Writes to the agent. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writer {
    stdin: Arc<Mutex<ChildStdin>>,
    stop: StopFlag,
}

impl Writer {
    /// A writer whose writes end with `stop`.
    pub(crate) fn new(stdin: ChildStdin, stop: StopFlag) -> Self {
        Self { stdin: Arc::new(Mutex::new(stdin)), stop }
    }

    /// Sends a message. An agent that is gone is noticed by whoever reads from it. The write waits for an agent that does not read, but
    /// not beyond the stop of the run: nobody could cancel the run otherwise.
    pub(crate) async fn send(&self, message: Value) {
        let mut line = message.to_string();
        line.push('\n');
        let write = async {
            let mut stdin = self.stdin.lock().await;
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await
        };
        let stopped = async {
            self.stop.stopped().await;
            sleep(LAST_WRITE).await;
        };
        tokio::select! {
            written = write => {
                if let Err(error) = written {
                    tracing::debug!(%error, "an agent does not take a message");
                }
            }
            () = stopped => tracing::debug!("an agent does not read a message before its end"),
        }
    }
}

/// An entry of the queue.
enum Entry<T> {
    Message(T),
    /// The agent has said more than it may.
    TooMuch,
    /// The agent sends lines that are no messages, and no end of them.
    Garbage,
}

/// The messages of an agent.
pub(crate) struct Feed<T> {
    messages: mpsc::Receiver<(Entry<T>, OwnedSemaphorePermit)>,
    reading: JoinHandle<()>,
    garbage: Arc<AtomicU32>,
}

impl<T: Send + 'static> Feed<T> {
    /// Starts to read. `parse` makes a message of a line; a line that is none is passed over.
    pub(crate) fn new(
        stdout: impl AsyncRead + Unpin + Send + 'static,
        bounds: ReadBounds,
        parse: fn(&[u8]) -> Option<T>,
    ) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE);
        let garbage = Arc::default();
        let reading = tokio::spawn(read(Lines::new(stdout, bounds), sender, Arc::clone(&garbage), parse));
        Self { messages, reading, garbage }
    }

    /// The next message; `None` at the end of the agent's output. May be dropped and called again.
    ///
    /// # Errors
    /// Fails where the agent does not keep to its bounds or its protocol.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, TurnError> {
        match self.messages.recv().await.map(|(entry, _)| entry) {
            Some(Entry::Message(message)) => Ok(Some(message)),
            Some(Entry::TooMuch) => Err(RunFailure::OutputLimit.into()),
            Some(Entry::Garbage) => {
                let problem = "its lines are no messages; `command` of the harness must start the agent in the mode \
                               of its `protocol`";
                Err(RunFailure::Protocol(problem.to_owned()).into())
            }
            None => Ok(None),
        }
    }

    /// Records how many lines were no messages, if any.
    pub(crate) async fn report_garbage(&self, results: &mut Results) {
        let lines = self.garbage.load(Ordering::Relaxed);
        if lines > 0 {
            let data = json!({ "lines": lines, "detail": "lines on standard output that are no messages were passed over" });
            results.add("harness.garbage", data, None).await;
        }
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read<T, R: AsyncRead + Unpin>(
    mut lines: Lines<R>,
    sender: mpsc::Sender<(Entry<T>, OwnedSemaphorePermit)>,
    garbage: Arc<AtomicU32>,
    parse: fn(&[u8]) -> Option<T>,
) {
    let room = Arc::new(Semaphore::new(QUEUE_BYTES));
    loop {
        let mut bytes = 0;
        let message = match lines.next().await {
            Ok(Line::Text(line)) => {
                bytes = line.len();
                parse(&line).map(Entry::Message)
            }
            Ok(Line::TooLong) => None,
            Ok(Line::TooMuch) => Some(Entry::TooMuch),
            Ok(Line::End) | Err(_) => return,
        };
        let message = match message {
            Some(message) => message,
            None if garbage.fetch_add(1, Ordering::Relaxed) + 1 < MAX_GARBAGE => continue,
            None => Entry::Garbage,
        };
        let is_last = matches!(message, Entry::Garbage | Entry::TooMuch);
        // A longer line has the whole room.
        let permits = u32::try_from(bytes.min(QUEUE_BYTES)).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&room).acquire_many_owned(permits).await else { return };
        if sender.send((message, permit)).await.is_err() || is_last {
            return;
        }
    }
}
