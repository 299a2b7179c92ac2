//! JSON-RPC messages of sessions of the Model Context Protocol, in both directions: the messages as they are on the wire, or each
//! with its direction around (`{"direction": …, "message": {…}}`).
//!
//! Both sides number their requests by themselves, so one number may be open twice: a response belongs to the request whose kind
//! of result it has, else to the latest.

use agent_host_protocol::{import::ActionDecision, message::ContentPart};
use serde_json::Value;

use super::{
    native::{error_text, list, name, text},
    sink::{Sink, json_part},
};

/// Requests that are open at one time; the oldest is forgotten.
const MAX_OPEN: usize = 4_096;

/// Open requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Mcp {
    open: Vec<Request>,
    /// The number of the last call or question: sessions begin to count anew.
    last: u64,
}

#[derive(Debug, Clone)]
struct Request {
    /// The id, as JSON.
    id: String,
    kind: RequestKind,
}

#[derive(Debug, Clone)]
enum RequestKind {
    /// `call` and `tool` of a tool call, and the token of its progress as JSON.
    Tool { call: String, tool: String, progress: Option<String> },
    /// A question to a person.
    Question { action: String },
    /// Requests about the session and its lists, which no record has.
    Session,
    /// A method that the form does not know.
    Other { method: String },
}

impl Mcp {
    pub(super) fn push(&mut self, sink: &mut Sink, event: &Value) {
        let message = event.get("message").filter(|message| message.get("jsonrpc").is_some()).unwrap_or(event);
        if let Value::Array(batch) = message {
            return batch.iter().for_each(|message| self.message(sink, message));
        }
        self.message(sink, message);
    }

    fn message(&mut self, sink: &mut Sink, message: &Value) {
        let id = message.get("id").filter(|id| !id.is_null()).map(key);
        match (text(message, "method"), id) {
            (Some(method), Some(id)) => self.request(sink, method, id, message),
            (Some(method), None) => self.notification(sink, method, message),
            (None, Some(id)) if message.get("result").is_some() || message.get("error").is_some() => {
                self.response(sink, &id, message);
            }
            _ => sink.native("unknown", message),
        }
    }

    fn request(&mut self, sink: &mut Sink, method: &str, id: String, message: &Value) {
        let params = message.get("params").unwrap_or(&Value::Null);
        let kind = match method {
            "tools/call" => {
                let call = self.number("call", &id);
                let tool = text(params, "name").unwrap_or_default().to_owned();
                let progress = params.get("_meta").and_then(|meta| meta.get("progressToken")).map(key);
                sink.tool_started(&call, &tool, params.get("arguments").cloned().unwrap_or_default());
                RequestKind::Tool { call, tool: name(&tool), progress }
            }
            "elicitation/create" => {
                let action = self.number("question", &id);
                sink.asked(&action, None, text(params, "message"), params.get("url"), params.get("requestedSchema"));
                RequestKind::Question { action }
            }
            "initialize" | "ping" | "logging/setLevel" | "server/discover" | "roots/list" => RequestKind::Session,
            list if list.ends_with("/list") => RequestKind::Session,
            other => {
                sink.native(other, message);
                RequestKind::Other { method: name(other) }
            }
        };
        if self.open.len() >= MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push(Request { id, kind });
    }

    fn number(&mut self, what: &str, id: &str) -> String {
        self.last += 1;
        format!("{what}:{}.{}", id.trim_matches('"'), self.last)
    }

    fn notification(&mut self, sink: &mut Sink, method: &str, message: &Value) {
        let params = message.get("params").unwrap_or(&Value::Null);
        match method {
            "notifications/progress" => {
                let token = params.get("progressToken").map(key);
                let call = self.open.iter().rev().find_map(|request| match &request.kind {
                    RequestKind::Tool { call, progress, .. } if progress.is_some() && *progress == token => Some(call.clone()),
                    _ => None,
                });
                match (call, params.get("progress").and_then(Value::as_f64)) {
                    (Some(call), Some(progress)) => {
                        sink.tool_progress(&call, progress, params.get("total").and_then(Value::as_f64), text(params, "message"));
                    }
                    _ => sink.native(method, message),
                }
            }
            "notifications/cancelled" => {
                let id = params.get("requestId").map(key);
                let place = self.open.iter().rposition(|request| Some(&request.id) == id.as_ref());
                match place.map(|place| self.open.remove(place).kind) {
                    Some(RequestKind::Tool { call, tool, .. }) => sink.tool_failed(&call, &tool, "cancelled"),
                    Some(RequestKind::Question { action }) => sink.settled(&action, ActionDecision::Cancel, None, None),
                    Some(_) => {}
                    None => sink.native(method, message),
                }
            }
            "notifications/initialized" => {}
            changed if changed.ends_with("/list_changed") => {}
            other => sink.native(other, message),
        }
    }

    fn response(&mut self, sink: &mut Sink, id: &str, message: &Value) {
        let result = message.get("result");
        let fits = |request: &Request| {
            request.id == id
                && result.is_some_and(|result| match &request.kind {
                    RequestKind::Tool { .. } => result.get("content").is_some() || result.get("isError").is_some(),
                    RequestKind::Question { .. } => result.get("action").is_some(),
                    RequestKind::Session | RequestKind::Other { .. } => false,
                })
        };
        let place = self.open.iter().rposition(fits).or_else(|| self.open.iter().rposition(|request| request.id == id));
        let Some(place) = place else { return sink.native("response", message) };
        match (self.open.remove(place).kind, result) {
            (RequestKind::Tool { call, tool, .. }, Some(result)) => tool_ended(sink, &call, &tool, result),
            (RequestKind::Tool { call, tool, .. }, None) => {
                sink.tool_failed(&call, &tool, &error_text(message.get("error").unwrap_or(&Value::Null)));
            }
            (RequestKind::Question { action }, Some(result)) => {
                let decision = match text(result, "action") {
                    Some("accept") => ActionDecision::Approve,
                    Some("decline") => ActionDecision::Deny,
                    Some("cancel") => ActionDecision::Cancel,
                    _ => ActionDecision::Unknown,
                };
                sink.settled(&action, decision, None, result.get("content"));
            }
            (RequestKind::Question { action }, None) => sink.settled(&action, ActionDecision::Cancel, None, None),
            (RequestKind::Session, _) => {}
            (RequestKind::Other { method }, _) => sink.native(&method, message),
        }
    }
}

/// A number or a text that names a request, as its JSON.
fn key(id: &Value) -> String {
    name(&id.to_string())
}

/// The end of a tool call. Structured content repeats the texts, so it counts where there is nothing else.
fn tool_ended(sink: &mut Sink, call: &str, tool: &str, result: &Value) {
    let blocks = list(result, "content");
    let texts: String = blocks.iter().filter_map(|block| text(block, "text")).collect();
    if result.get("isError") == Some(&Value::Bool(true)) {
        return sink.tool_failed(call, tool, if texts.is_empty() { "unknown" } else { &texts });
    }
    let part = |block: &Value| match (text(block, "type"), text(block, "text")) {
        (Some("text"), Some(words)) => ContentPart::Text(words.to_owned()),
        _ => json_part(block),
    };
    let mut content: Vec<ContentPart> = blocks.iter().map(part).collect();
    if content.is_empty() {
        content.extend(result.get("structuredContent").map(json_part));
    }
    sink.tool_result(call, tool, content);
}
