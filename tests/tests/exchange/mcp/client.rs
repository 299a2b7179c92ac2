//! A client of MCP made of single requests, so that it can behave badly.

use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use tokio::sync::watch;

use crate::mcp::{
    outside::{ClaimedRun, ExecutorHost},
    support::Host,
};

/// The version of the protocol that the client speaks.
const VERSION: &str = "2025-11-25";

/// A session at an endpoint.
pub struct Client {
    http: reqwest::Client,
    urls: watch::Receiver<String>,
    pub path: String,
    pub token: String,
    pub session: Option<String>,
    next: AtomicU64,
}

/// The messages of the answer to one request.
pub struct Reply {
    /// The response.
    pub response: Value,
    /// The notifications before it.
    pub notifications: Vec<Value>,
}

impl Reply {
    /// The result of a tool.
    pub fn result(&self) -> &Value {
        assert!(self.response["result"].is_object(), "{:#}", self.response);
        &self.response["result"]
    }

    /// The code of the host in an error of the protocol.
    pub fn code(&self) -> (i64, &str) {
        let error = &self.response["error"];
        (error["code"].as_i64().unwrap_or_default(), error["data"]["code"].as_str().unwrap_or_default())
    }

    /// The code of the host in a refusal that is a result.
    pub fn refusal(&self) -> &str {
        let result = self.result();
        assert_eq!(result["isError"], true, "{result:#}");
        assert!(!result["content"][0]["text"].as_str().unwrap().is_empty());
        result["structuredContent"]["error"]["code"].as_str().unwrap_or_else(|| panic!("{result:#}"))
    }
}

/// The endpoint of a claimed run.
pub fn access(held: &ClaimedRun) -> (String, String) {
    let text =
        |at: &str| held.answer.pointer(at).and_then(Value::as_str).unwrap_or_else(|| panic!("{:#}", held.answer)).to_owned();
    (text("/mcp/path"), text("/mcp/token"))
}

impl Client {
    /// A client without a session.
    pub fn new(host: &ExecutorHost, held: &ClaimedRun) -> Self {
        let (path, token) = access(held);
        Self::at(&host.host, &path, &token)
    }

    /// A client of an endpoint without a session.
    pub fn at(host: &Host, path: &str, token: &str) -> Self {
        let (path, token) = (path.to_owned(), token.to_owned());
        Self { http: reqwest::Client::new(), urls: host.urls(), path, token, session: None, next: AtomicU64::new(1) }
    }

    /// A client with a session.
    pub async fn open(host: &ExecutorHost, held: &ClaimedRun) -> Self {
        let mut client = Self::new(host, held);
        client.initialize().await;
        client
    }

    /// A request of the transport.
    pub fn http(&self, method: Method) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{}", *self.urls.borrow(), self.path));
        let request = request.header("accept", "application/json, text/event-stream");
        let request = if self.token.is_empty() { request } else { request.bearer_auth(&self.token) };
        match &self.session {
            Some(session) => request.header("mcp-session-id", session).header("mcp-protocol-version", VERSION),
            None => request,
        }
    }

    /// Sends a message; gives status and body.
    pub async fn send(&self, message: &Value) -> (u16, String) {
        let answer = self.http(Method::POST).json(message).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Sends a message that the host refuses; gives status and code.
    pub async fn refused(&self, message: &Value) -> (u16, String) {
        let (status, body) = self.send(message).await;
        let problem: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status}: {body}"));
        (status, problem["code"].as_str().unwrap_or_else(|| panic!("{problem:#}")).to_owned())
    }

    pub fn initialization() -> Value {
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "a test", "version": "1" },
        });
        json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })
    }

    /// Begins a session; gives what the server says of itself.
    pub async fn initialize(&mut self) -> Value {
        let answer = self.http(Method::POST).json(&Self::initialization()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let session = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let messages = messages(&answer.text().await.unwrap());
        self.session = Some(session);
        self.notify("notifications/initialized", json!({})).await;
        messages.last().unwrap()["result"].clone()
    }

    pub async fn notify(&self, method: &str, params: Value) {
        let (status, body) = self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
        assert_eq!(status, 202, "{body}");
    }

    /// An id for a request.
    pub fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request; gives its answer.
    pub async fn request(&self, method: &str, params: Value) -> Reply {
        self.request_as(self.id(), method, params).await
    }

    /// Sends a request with this id.
    pub async fn request_as(&self, id: u64, method: &str, params: Value) -> Reply {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let (status, body) = self.send(&message).await;
        assert_eq!(status, 200, "{method}: {body}");
        let mut notifications = messages(&body);
        let response = notifications.pop().unwrap_or_default();
        assert_eq!(response["id"], id, "{body}");
        Reply { response, notifications }
    }

    /// Calls a tool.
    pub async fn call(&self, name: &str, arguments: Value) -> Reply {
        self.request("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// Calls a tool that succeeds; gives its structured content.
    pub async fn done(&self, name: &str, arguments: Value) -> Value {
        let answered = self.call(name, arguments).await;
        let result = answered.result();
        assert_ne!(result["isError"], true, "{name}: {result:#}");
        result["structuredContent"].clone()
    }

    /// The names of the tools.
    pub async fn tools(&self) -> Vec<String> {
        let answered = self.request("tools/list", json!({})).await;
        let tools = answered.result()["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// The messages of a stream of events.
pub fn messages(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).filter(|data| !data.is_empty());
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}
