//! JSON-RPC with an agent: one JSON object a line, requests in both directions.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{io::AsyncRead, process::ChildStdin};

use crate::{
    acp_schema::{INTERNAL_ERROR, INVALID_PARAMS},
    failure::{RunFailure, TurnError},
    feed::{Feed, Writer},
    process::ReadBounds,
    stop::StopFlag,
};

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
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
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

/// The reason why a request to the agent has no result.
pub(crate) enum CallError {
    /// The agent refused.
    Rpc(RpcError),
    /// The agent's output has ended.
    Gone,
    /// The turn does not go on.
    Turn(TurnError),
}

impl From<TurnError> for CallError {
    fn from(error: TurnError) -> Self {
        Self::Turn(error)
    }
}

impl From<RunFailure> for CallError {
    fn from(failure: RunFailure) -> Self {
        Self::Turn(failure.into())
    }
}

/// A message of the agent.
#[derive(Debug)]
pub(crate) enum Message {
    Request { id: Value, method: String, params: Value },
    Notification { method: String, params: Value },
    Response { id: u64, result: Result<Value, RpcError> },
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

impl Writer {
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(crate) async fn request(&self, id: u64, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    pub(crate) async fn respond(&self, id: Value, result: Result<Value, RpcError>) {
        let message = match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(RpcError { code, message, .. }) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
            }
        };
        self.send(message).await;
    }
}

/// The parameters of a request of the agent.
///
/// # Errors
/// Says what cannot be read.
pub(crate) fn read_params<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

/// The answer to a request to the agent.
///
/// # Errors
/// Says what cannot be read.
pub(crate) fn read_answer<T: DeserializeOwned>(method: &str, result: Value) -> Result<T, RpcError> {
    serde_json::from_value(result)
        .map_err(|error| RpcError::internal(format!("the answer to `{method}` cannot be read: {error}")))
}

/// A connection to an agent.
pub(crate) struct Connection {
    pub(crate) writer: Writer,
    pub(crate) feed: Feed<Message>,
    requests: u64,
}

impl Connection {
    /// Starts to read. Writes end with `stop`.
    pub(crate) fn new(
        stdin: ChildStdin,
        stdout: impl AsyncRead + Unpin + Send + 'static,
        bounds: ReadBounds,
        stop: StopFlag,
    ) -> Self {
        Self { writer: Writer::new(stdin, stop), feed: Feed::new(stdout, bounds, Message::read), requests: 0 }
    }

    /// Sends a request. Its response has the number that is returned.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        self.writer.request(self.requests, method, params).await;
        self.requests
    }

    /// The answer of an agent whose own requests and reports are passed over.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        let id = self.request(method, params).await;
        loop {
            match self.next().await? {
                Some(Message::Response { id: of, result }) if of == id => return result.map_err(CallError::Rpc),
                Some(_) => {}
                None => return Err(CallError::Gone),
            }
        }
    }

    /// The next message; `None` at the end of the agent's output. May be dropped and called again.
    ///
    /// # Errors
    /// Fails where the agent does not keep to its bounds or its protocol.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, TurnError> {
        self.feed.next().await
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
