//! The AI SDK (npm `ai` 7): chunks of `toUIMessageStream()`, which is what its servers send, and parts of `fullStream`.
//!
//! The two share most types; a piece of text is `delta` in the one and `text` in the other. Usage is in `fullStream` alone.

use std::collections::BTreeMap;

use agent_host_protocol::import::ActionDecision;
use serde_json::Value;

use super::{
    NativeEnd,
    native::{count, error_text, name, text, text_of},
    sink::{Sink, Usage, content},
};

/// Calls that are open at one time.
const MAX_CALLS: usize = 4_096;

/// Open calls and questions.
#[derive(Debug, Clone, Default)]
pub(super) struct AiSdk {
    /// The names of the tools of open calls, by call.
    calls: BTreeMap<String, String>,
    /// Open approvals: the call of each.
    approvals: BTreeMap<String, String>,
}

impl AiSdk {
    pub(super) fn push(&mut self, sink: &mut Sink, event: &Value) {
        let Some(kind) = text(event, "type") else { return sink.native("unknown", event) };
        let id = text_of(event, &["id", "toolCallId"]).unwrap_or_default();
        let call = text(event, "toolCallId").map(name);
        match (kind, call.as_deref()) {
            ("start", _) => sink.end = None,
            ("start-step" | "text-start" | "reasoning-start" | "reasoning-end", _) => {}
            // The whole input follows.
            ("tool-input-start" | "tool-input-delta" | "tool-input-end", _) => {}
            ("text-delta", _) => sink.delta(id, text_of(event, &["delta", "text"]).unwrap_or_default()),
            ("text-end", _) => sink.complete(id),
            ("reasoning-delta", _) => sink.reasoning(id, text_of(event, &["delta", "text"]).unwrap_or_default()),
            ("tool-call" | "tool-input-available", Some(call)) => self.started(sink, call, event),
            ("tool-input-error", Some(call)) => {
                self.started(sink, call, event);
                self.failed(sink, call, event);
            }
            ("tool-result" | "tool-output-available", Some(call)) if event.get("preliminary") != Some(&Value::Bool(true)) => {
                // A call that waits for an approval is made only with one.
                self.settle(sink, call, ActionDecision::Approve, None);
                let tool = self.tool(call, event);
                sink.tool_result(call, &tool, content(event.get("output").unwrap_or(&Value::Null)));
            }
            ("tool-error" | "tool-output-error", Some(call)) => {
                self.settle(sink, call, ActionDecision::Approve, None);
                self.failed(sink, call, event);
            }
            ("tool-output-denied", Some(call)) => {
                // The host ends a denied call itself.
                if !self.settle(sink, call, ActionDecision::Deny, None) {
                    let tool = self.tool(call, event);
                    sink.tool_failed(call, &tool, "denied");
                }
                self.calls.remove(call);
            }
            ("tool-approval-request", _) => self.asked(sink, event),
            ("tool-approval-response", _) => {
                let Some(approval) = text(event, "approvalId").map(name) else { return sink.native(kind, event) };
                let decision = match event.get("approved").and_then(Value::as_bool) {
                    Some(true) => ActionDecision::Approve,
                    Some(false) => ActionDecision::Deny,
                    None => ActionDecision::Unknown,
                };
                self.approvals.remove(&approval);
                sink.settled(&approval, decision, text(event, "reason"), None);
            }
            ("finish-step", _) => {
                if let Some(usage) = event.get("usage") {
                    let details = |side: &str, what: &str| usage.get(side).and_then(|details| count(details, &[what]));
                    sink.usage(Usage {
                        model: event.get("response").and_then(|response| text(response, "modelId")).map(name),
                        input: count(usage, &["inputTokens"]),
                        output: count(usage, &["outputTokens"]),
                        cached_input: details("inputTokenDetails", "cacheReadTokens"),
                        reasoning: details("outputTokenDetails", "reasoningTokens"),
                    });
                }
            }
            // The stream goes on to its end after an error.
            ("finish", _) if matches!(sink.end, Some(NativeEnd::Failed { .. })) => {}
            ("finish", _) if text(event, "finishReason") == Some("error") => {
                sink.end = Some(NativeEnd::Failed { message: "unknown".to_owned() });
            }
            ("finish", _) => sink.end = Some(NativeEnd::Completed { finish_reason: text(event, "finishReason").map(name) }),
            ("abort", _) => sink.end = Some(NativeEnd::Cancelled { reason: text(event, "reason").map(name) }),
            ("error", _) => {
                let error = event.get("errorText").or_else(|| event.get("error")).unwrap_or(&Value::Null);
                sink.end = Some(NativeEnd::Failed { message: name(&error_text(error)) });
            }
            (other, _) => sink.native(other, event),
        }
    }

    fn started(&mut self, sink: &mut Sink, call: &str, event: &Value) {
        let tool = name(text(event, "toolName").unwrap_or_default());
        if self.calls.len() < MAX_CALLS {
            self.calls.insert(call.to_owned(), tool.clone());
        }
        sink.tool_started(call, &tool, event.get("input").cloned().unwrap_or_default());
    }

    fn failed(&mut self, sink: &mut Sink, call: &str, event: &Value) {
        let error = event.get("errorText").or_else(|| event.get("error")).unwrap_or(&Value::Null);
        let tool = self.tool(call, event);
        sink.tool_failed(call, &tool, &error_text(error));
    }

    /// The tool of a call that ends.
    fn tool(&mut self, call: &str, event: &Value) -> String {
        let started = self.calls.remove(call);
        text(event, "toolName").map(str::to_owned).or(started).unwrap_or_default()
    }

    fn asked(&mut self, sink: &mut Sink, event: &Value) {
        let in_call = event.get("toolCall").and_then(|call| text(call, "toolCallId"));
        let call = text(event, "toolCallId").or(in_call).map(name);
        let (Some(approval), Some(call)) = (text(event, "approvalId").map(name), call) else {
            return sink.native("tool-approval-request", event);
        };
        if self.approvals.len() < MAX_CALLS {
            self.approvals.insert(approval.clone(), call.clone());
        }
        sink.asked(&approval, Some(&call), text(event, "reason"), None, None);
    }

    /// Settles the open approval of a call; false where there is none.
    fn settle(&mut self, sink: &mut Sink, call: &str, decision: ActionDecision, reason: Option<&str>) -> bool {
        let Some(approval) = self.approvals.iter().find(|(_, of)| *of == call).map(|(approval, _)| approval.clone()) else {
            return false;
        };
        self.approvals.remove(&approval);
        sink.settled(&approval, decision, reason, None);
        true
    }
}
