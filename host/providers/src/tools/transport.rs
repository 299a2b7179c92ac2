//! Between rmcp and a server: what arrives is bounded, sorted, and never waits for ever.

use std::{io, sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::{StreamableHttpClientTransport, Transport},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::ChildStdin,
    sync::{Mutex, mpsc},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{inbox::Inbox, web::Web};

/// The error that the transport puts in the place of an answer that is too large. No server uses it in good faith, and one
/// that does gains nothing.
pub(super) const TOO_LARGE: ErrorCode = ErrorCode(-1_413_001);
/// The same for an answer that is not JSON-RPC.
pub(super) const NOT_JSON_RPC: ErrorCode = ErrorCode(-1_413_002);
/// Time limit for writing one message: a server that does not read for this long counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The start and the end of a line that is too long, where the id of the answer is looked for.
const KEPT: usize = 512;
/// Bytes of one line that are dropped before the connection is given up.
const MAX_THROWN_AWAY: usize = 1 << 30;
/// Lines in a row that are not JSON-RPC before the connection is given up. A few are the output of programs that print
/// where they should not.
const MAX_GARBAGE: u32 = 1000;
/// Messages that wait for rmcp.
const QUEUE: usize = 8;

/// A server at the other end of two pipes.
pub(super) struct Stdio {
    writer: Arc<Mutex<Option<ChildStdin>>>,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    reader: JoinHandle<()>,
    inbox: Arc<Inbox>,
}

impl Stdio {
    /// `max_line`: the longest message that is taken from it.
    pub(super) fn new(
        stdin: ChildStdin,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        max_line: usize,
        inbox: Arc<Inbox>,
    ) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read(stdout, max_line, inbox.clone(), sender));
        Self { writer: Arc::new(Mutex::new(Some(stdin))), messages, reader, inbox }
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Transport<RoleClient> for Stdio {
    type Error = io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let reply = self.inbox.outgoing(&message);
        let (writer, inbox) = (self.writer.clone(), self.inbox.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let write = async {
                let mut writer = writer.lock().await;
                let Some(stdin) = writer.as_mut() else {
                    return Err(io::ErrorKind::NotConnected.into());
                };
                match timeout(WRITE_TIMEOUT, async { stdin.write_all(&line).await.and(stdin.flush().await) }).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(error),
                    Err(_) => {
                        // Half of a line may have been written: nothing can follow it.
                        *writer = None;
                        inbox.set_fault("it does not read its input");
                        Err(io::ErrorKind::TimedOut.into())
                    }
                }
            };
            let written = write.await;
            drop(reply);
            written
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        // A write that is stuck must not keep this one waiting; the process is ended anyway.
        if let Ok(mut writer) = timeout(Duration::from_millis(200), self.writer.lock()).await {
            *writer = None;
        }
        self.reader.abort();
        Ok(())
    }
}

async fn read(stdout: impl AsyncRead + Unpin, max_line: usize, inbox: Arc<Inbox>, sender: mpsc::Sender<ServerJsonRpcMessage>) {
    let mut lines = Lines { input: BufReader::with_capacity(64 << 10, stdout), max: max_line, line: Vec::new() };
    let mut garbage = 0;
    loop {
        let message = match lines.next().await {
            Ok(Some(Line::Whole(line))) => match message(line) {
                Some(message) => Some(message),
                None if line.is_empty() => None,
                None => {
                    garbage += 1;
                    None
                }
            },
            Ok(Some(Line::TooLong { id: Some(id) })) => Some(error_for(id, TOO_LARGE, "the answer is too large")),
            Ok(Some(Line::TooLong { id: None })) => {
                inbox.set_fault(format!("it sent a message of more than {max_line} bytes"));
                return;
            }
            Ok(None) => return,
            Err(error) => {
                inbox.set_fault(format!("its output cannot be read: {}", error.kind()));
                return;
            }
        };
        if message.is_some() {
            garbage = 0;
        } else if garbage > MAX_GARBAGE {
            inbox.set_fault("its standard output is not JSON-RPC");
            return;
        }
        let answer = matches!(message, Some(JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)));
        if let Some(message) = message.and_then(|message| inbox.incoming(message))
            && sender.send(message).await.is_err()
        {
            return;
        }
        if !answer {
            inbox.slow_down().await;
        }
        lines.shrink();
    }
}

/// The messages in the whole output of a server, for [`crate::fuzz`].
pub(super) async fn messages_in(output: &[u8], max_line: usize) -> Vec<ServerJsonRpcMessage> {
    let mut lines = Lines { input: BufReader::with_capacity(64 << 10, output), max: max_line, line: Vec::new() };
    let mut messages = Vec::new();
    while let Ok(Some(line)) = lines.next().await {
        messages.extend(match line {
            Line::Whole(line) => message(line),
            Line::TooLong { id } => id.map(|id| error_for(id, TOO_LARGE, "the answer is too large")),
        });
        lines.shrink();
    }
    messages
}

/// Reads a line as a message. An answer that is not as it should be becomes an error for the call that waits for it.
fn message(line: &[u8]) -> Option<ServerJsonRpcMessage> {
    if let Ok(message) = serde_json::from_slice(line) {
        return Some(message);
    }
    let value: Value = serde_json::from_slice(line).ok()?;
    if value.get("method").is_some() {
        return None;
    }
    let id = serde_json::from_value(value.get("id")?.clone()).ok()?;
    Some(error_for(id, NOT_JSON_RPC, "the answer is not JSON-RPC 2.0"))
}

pub(super) fn error_for(id: RequestId, code: ErrorCode, message: &'static str) -> ServerJsonRpcMessage {
    JsonRpcMessage::error(ErrorData::new(code, message, None), Some(id))
}

struct Lines<R> {
    input: BufReader<R>,
    max: usize,
    line: Vec<u8>,
}

enum Line<'a> {
    /// Without its end.
    Whole(&'a [u8]),
    /// The message was dropped; at best its receiver is known.
    TooLong { id: Option<RequestId> },
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// The next line, or the end. Holds at most `max` bytes of it.
    async fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let (mut thrown_away, mut tail) = (0, Vec::new());
        loop {
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            if thrown_away == 0 && self.line.len() + part.len() <= self.max {
                self.line.extend_from_slice(part);
            } else {
                if thrown_away == 0 {
                    self.line.truncate(KEPT);
                    self.line.shrink_to_fit();
                    thrown_away = self.max;
                }
                thrown_away += part.len();
                tail.extend_from_slice(part.get(part.len().saturating_sub(KEPT)..).unwrap_or_default());
                let old = tail.len().saturating_sub(KEPT);
                tail.drain(..old);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if thrown_away > MAX_THROWN_AWAY {
                return Ok(Some(Line::TooLong { id: None }));
            }
            if end.is_some() {
                break;
            }
        }
        Ok(Some(if thrown_away == 0 {
            Line::Whole(self.line.trim_ascii())
        } else {
            Line::TooLong { id: id_in(&self.line, &tail) }
        }))
    }

    /// After a large line, its memory goes back.
    fn shrink(&mut self) {
        if self.line.capacity() > 256 << 10 {
            self.line = Vec::new();
        }
    }
}

/// The id of an answer of which only the start and the end are known. SDKs write it at one of both.
fn id_in(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    let number = |text: &[u8]| {
        let digits: Vec<u8> = text.iter().copied().take_while(u8::is_ascii_digit).collect();
        std::str::from_utf8(&digits).ok()?.parse().ok().map(RequestId::Number)
    };
    let after_key = |text: &[u8]| {
        let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let at = text.windows(5).position(|window| window == b"\"id\":")?;
        Some((text.get(..at)?.to_vec(), text.get(at + 5..)?.to_vec()))
    };
    // At the start: before the result begins.
    if let Some((before, after)) = after_key(head)
        && !before.windows(8).any(|window| window == b"\"result\"")
    {
        return number(&after);
    }
    // At the end: the last key of all, followed by nothing but the end of the object.
    let at = tail.windows(4).rposition(|window| window == b"\"id\"")?;
    let (_, after) = after_key(tail.get(at..)?)?;
    let rest: Vec<u8> = after.iter().copied().skip_while(u8::is_ascii_digit).collect();
    matches!(rest.as_slice(), b"}" | br#","jsonrpc":"2.0"}"#).then(|| number(&after)).flatten()
}

/// A server at the other end of HTTP. rmcp bounds what it reads (16 MiB for JSON, what is configured for one SSE event).
pub(super) struct Http {
    inner: StreamableHttpClientTransport<Web>,
    inbox: Arc<Inbox>,
    pause: Option<Instant>,
}

impl Http {
    pub(super) fn new(inner: StreamableHttpClientTransport<Web>, inbox: Arc<Inbox>) -> Self {
        Self { inner, inbox, pause: None }
    }
}

impl Transport<RoleClient> for Http {
    type Error = <StreamableHttpClientTransport<Web> as Transport<RoleClient>>::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let reply = self.inbox.outgoing(&message);
        let send = self.inner.send(message);
        async move {
            let sent = send.await;
            drop(reply);
            sent
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(until) = self.pause {
                sleep_until(until).await;
                self.pause = None;
            }
            let message = self.inner.receive().await?;
            if !matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)) {
                self.pause = self.inbox.unasked();
            }
            if let Some(message) = self.inbox.incoming(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], max: usize) -> Vec<Result<String, Option<RequestId>>> {
        let mut lines = Lines { input: BufReader::with_capacity(7, input), max, line: Vec::new() };
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(match line {
                Line::Whole(line) => Ok(String::from_utf8(line.to_vec()).unwrap()),
                Line::TooLong { id } => Err(id),
            });
        }
        all
    }

    #[tokio::test]
    async fn lines_are_bounded_and_the_next_one_is_whole_again() {
        let long = "x".repeat(2000);
        let input = format!(
            "one\r\n\n{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{long}\"}}\n{{\"result\":\"{long}\",\"jsonrpc\":\"2.0\",\"id\": 8}}\n{long}\ntwo\nlost"
        );
        let id = |n| Err(Some(RequestId::Number(n)));
        assert_eq!(
            lines(input.as_bytes(), 100).await,
            [Ok("one".into()), Ok(String::new()), id(7), id(8), Err(None), Ok("two".into())]
        );
        assert_eq!(lines(b"12345\n123456\n", 5).await, [Ok("12345".into()), Err(None)]);
    }

    #[test]
    fn the_id_of_a_lost_answer_is_not_guessed_from_its_content() {
        assert_eq!(id_in(br#"{"result":{"id":5,"#, br#""x":1}}"#), None);
        assert_eq!(id_in(br#"{"result":{"#, br#""id":5}}"#), None);
        assert_eq!(id_in(br#"{"result":{"#, br#""id":5,"x":1}]},"jsonrpc":"2.0"}"#), None);
        assert_eq!(id_in(br#"{"result":{"#, br#"]},"id":5}"#), Some(RequestId::Number(5)));
        assert_eq!(id_in(br#"{"result":{"#, br#"]},"id":5,"jsonrpc":"2.0"}"#), Some(RequestId::Number(5)));
    }

    #[test]
    fn an_answer_that_is_not_json_rpc_becomes_an_error_of_its_call() {
        let code = |line: &[u8]| match message(line) {
            Some(JsonRpcMessage::Error(error)) => Some((error.error.code, error.id)),
            _ => None,
        };
        assert_eq!(code(br#"{"jsonrpc":"2.0","id":3,"foo":1}"#), Some((NOT_JSON_RPC, Some(RequestId::Number(3)))));
        assert_eq!(code(br#"{"jsonrpc":"1.0","id":3,"result":{}}"#), Some((NOT_JSON_RPC, Some(RequestId::Number(3)))));
        assert!(message(b"hello").is_none());
        assert!(message(br#"{"jsonrpc":"2.0","method":5}"#).is_none());
        assert!(matches!(message(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Some(JsonRpcMessage::Response(_))));
    }
}
