//! A connection to an agent: one JSON object a line, requests in both directions.
//!
//! Messages of the agent wait in a queue with a bound; while the queue is full, the agent is not read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWriteExt as _},
    process::ChildStdin,
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    acp_schema::INTERNAL_ERROR,
    process::{Line, Lines, ReadBounds},
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

/// An error as JSON-RPC has it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RpcError {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn internal(error: impl std::fmt::Display) -> Self {
        Self::new(INTERNAL_ERROR, error.to_string())
    }
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)?;
        match self.data.as_ref().and_then(|data| data.as_str().or_else(|| data.get("message")?.as_str())) {
            Some(more) => write!(f, ": {more}"),
            None => Ok(()),
        }
    }
}

/// A message of the agent.
#[derive(Debug)]
pub(super) enum Message {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    Response {
        id: u64,
        result: Result<Value, RpcError>,
    },
    /// The agent has said more than it may.
    TooMuch,
    /// The agent sends lines that are no messages, and no end of them.
    Garbage,
}

/// A line of JSON-RPC, in one of its three forms.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RpcError>,
}

impl Message {
    fn read(line: &[u8]) -> Option<Self> {
        // A struct would also be read from an array.
        line.trim_ascii_start().first().filter(|first| **first == b'{')?;
        let Wire { id, method, params, result, error } = serde_json::from_slice(line).ok()?;
        match (id, method) {
            (Some(id), Some(method)) if !id.is_null() => Some(Self::Request { id, method, params }),
            (_, Some(method)) => Some(Self::Notification { method, params }),
            (Some(id), None) => {
                let result = error.map_or_else(|| Ok(result.unwrap_or_default()), Err);
                Some(Self::Response { id: id.as_u64()?, result })
            }
            (None, None) => None,
        }
    }
}

/// Writes to the agent. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    stdin: Arc<Mutex<ChildStdin>>,
    stop: StopFlag,
}

impl Writer {
    /// Sends a message. An agent that is gone is noticed by whoever reads from it. The write waits for an agent that does not read, but
    /// not beyond the stop of the run: nobody could cancel the run otherwise.
    async fn send(&self, message: Value) {
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

    pub(super) async fn notify(&self, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(super) async fn request(&self, id: u64, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    pub(super) async fn respond(&self, id: Value, result: Result<Value, RpcError>) {
        let message = match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(RpcError { code, message, .. }) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
            }
        };
        self.send(message).await;
    }
}

/// A connection to an agent.
pub(super) struct Connection {
    pub(super) writer: Writer,
    messages: mpsc::Receiver<(Message, OwnedSemaphorePermit)>,
    reading: JoinHandle<()>,
    garbage: Arc<AtomicU32>,
    requests: u64,
}

impl Connection {
    /// Starts to read. Writes end with `stop`.
    pub(super) fn new(
        stdin: ChildStdin,
        stdout: impl AsyncRead + Unpin + Send + 'static,
        bounds: ReadBounds,
        stop: StopFlag,
    ) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE);
        let garbage = Arc::default();
        let reading = tokio::spawn(read(Lines::new(stdout, bounds), sender, Arc::clone(&garbage)));
        let writer = Writer { stdin: Arc::new(Mutex::new(stdin)), stop };
        Self { writer, messages, reading, garbage, requests: 0 }
    }

    /// Sends a request. Its response has the number that is returned.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        self.writer.request(self.requests, method, params).await;
        self.requests
    }

    /// The next message; `None` at the end of the agent's output. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<Message> {
        self.messages.recv().await.map(|(message, _)| message)
    }

    /// Number of lines so far that were no messages.
    pub(super) fn garbage(&self) -> u32 {
        self.garbage.load(Ordering::Relaxed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read<R: AsyncRead + Unpin>(
    mut lines: Lines<R>,
    sender: mpsc::Sender<(Message, OwnedSemaphorePermit)>,
    garbage: Arc<AtomicU32>,
) {
    let room = Arc::new(Semaphore::new(QUEUE_BYTES));
    loop {
        let mut bytes = 0;
        let message = match lines.next().await {
            Ok(Line::Text(line)) => {
                bytes = line.len();
                Message::read(&line)
            }
            Ok(Line::TooLong) => None,
            Ok(Line::TooMuch) => Some(Message::TooMuch),
            Ok(Line::End) | Err(_) => return,
        };
        let message = match message {
            Some(message) => message,
            None if garbage.fetch_add(1, Ordering::Relaxed) + 1 < MAX_GARBAGE => continue,
            None => Message::Garbage,
        };
        let is_last = matches!(message, Message::Garbage | Message::TooMuch);
        // A longer line has the whole room.
        let permits = u32::try_from(bytes.min(QUEUE_BYTES)).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&room).acquire_many_owned(permits).await else { return };
        if sender.send((message, permit)).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let read = |line: &str| Message::read(line.as_bytes());
        assert!(matches!(read(r#"{"id":1,"method":"a"}"#), Some(Message::Request { .. })));
        assert!(matches!(read(r#"{"method":"a","params":{}}"#), Some(Message::Notification { .. })));
        assert!(matches!(read(r#"{"id":1,"result":null}"#), Some(Message::Response { result: Ok(Value::Null), .. })));
        assert!(matches!(read(r#"{"id":1,"error":{"code":-1,"message":"m"}}"#), Some(Message::Response { result: Err(_), .. })));
        for garbage in ["warning: x", "{}", "[1]", r#"{"id":"theirs","result":1}"#, "\u{0}"] {
            assert!(read(garbage).is_none(), "{garbage}");
        }
    }
}
