//! Stream events of the OpenAI Agents SDK, for Python (PyPI `openai-agents`) and for JavaScript (npm `@openai/agents`).
//!
//! The two differ: JavaScript has `raw_model_stream_event`, `rawItem`, `callId`, `sourceAgent`, and pieces of text without an id;
//! Python has `raw_response_event` with events of the Responses API, `raw_item`, `call_id`, `source_agent`, and writes
//! `handoff_occured`. Neither says that a function tool has failed: its words are the output, as for any other result.

use std::collections::{BTreeMap, BTreeSet};

use agent_host_protocol::{import::ActionDecision, message::ContentPart};
use serde_json::Value;

use super::{
    NativeEnd,
    native::{count, error_text, list, name, text, text_of},
    sink::{Sink, Usage, content},
};

/// Calls and questions that are open at one time.
const MAX_OPEN: usize = 4_096;
/// The name of a text whose pieces have no id.
const NAMELESS: &str = "text";

/// Open calls, questions and texts.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenAiAgents {
    /// The names of the tools of open calls, by call.
    calls: BTreeMap<String, String>,
    /// Calls that wait for an approval.
    approvals: BTreeSet<String>,
    /// Messages that raw events have completed, and how often: the items of the run that show them again say nothing new.
    completed: BTreeMap<String, u32>,
    /// Reasoning that raw events have said, likewise.
    reasoned: BTreeMap<String, u32>,
}

impl OpenAiAgents {
    pub(super) fn push(&mut self, sink: &mut Sink, event: &Value) {
        let kind = text(event, "type").unwrap_or("unknown");
        match kind {
            "raw_model_stream_event" | "raw_response_event" => match event.get("data") {
                Some(data) => self.raw(sink, data, event),
                None => sink.native(kind, event),
            },
            "run_item_stream_event" => self.item(sink, event),
            // The agent that works is a part of the items.
            "agent_updated_stream_event" => {}
            other => sink.native(other, event),
        }
    }

    /// An event of the model.
    fn raw(&mut self, sink: &mut Sink, data: &Value, event: &Value) {
        let kind = text(data, "type").unwrap_or("unknown");
        match kind {
            "response_started" | "response.created" | "response.in_progress" | "response.queued" => sink.end = None,
            "output_text_delta" => sink.delta(NAMELESS, text(data, "delta").unwrap_or_default()),
            "response.output_text.delta" | "response.refusal.delta" => {
                sink.delta(text(data, "item_id").unwrap_or(NAMELESS), text(data, "delta").unwrap_or_default());
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let id = text(data, "item_id").unwrap_or("reasoning");
                remember(&mut self.reasoned, id, true);
                sink.reasoning(id, text(data, "delta").unwrap_or_default());
            }
            "response.output_item.done" => {
                let Some(item) = data.get("item").filter(|item| text(item, "type") == Some("message")) else { return };
                let id = text(item, "id").unwrap_or(NAMELESS);
                sink.complete_with(id, message_text(item), Vec::new());
                remember(&mut self.completed, id, false);
            }
            "response_done" | "response.completed" | "response.incomplete" => {
                if let Some((response, usage)) =
                    data.get("response").and_then(|response| Some((response, response.get("usage")?)))
                {
                    let details = |side: &str, what: &str| usage.get(side).and_then(|details| count(details, &[what]));
                    sink.usage(Usage {
                        model: text(response, "model").map(name),
                        input: count(usage, &["input_tokens", "inputTokens"]),
                        output: count(usage, &["output_tokens", "outputTokens"]),
                        cached_input: details("input_tokens_details", "cached_tokens"),
                        reasoning: details("output_tokens_details", "reasoning_tokens"),
                    });
                }
            }
            "response.failed" | "error" => {
                let error = data.get("response").and_then(|response| response.get("error")).unwrap_or(data);
                sink.end = Some(NativeEnd::Failed { message: name(&error_text(error)) });
            }
            // Events of the provider behind the model are shown again by these.
            "model" => {}
            // Pieces and frames of what other events say whole.
            other if other.starts_with("response.") => {}
            other => sink.native(other, event),
        }
    }

    /// An item of the run.
    fn item(&mut self, sink: &mut Sink, event: &Value) {
        let kind = text(event, "name").unwrap_or("unknown");
        let Some(item) = event.get("item") else { return sink.native(kind, event) };
        let raw = item.get("raw_item").or_else(|| item.get("rawItem")).unwrap_or(&Value::Null);
        let call = text_of(raw, &["call_id", "callId", "id"]).map(name);
        match (kind, call.as_deref()) {
            ("message_output_created", _) => self.message(sink, raw),
            ("reasoning_item_created", _) => self.reasoning(sink, raw),
            ("tool_called", Some(call)) => self.called(sink, call, raw),
            ("tool_output", Some(call)) => self.output(sink, call, item, raw),
            ("tool_approval_requested", Some(call)) => {
                if self.approvals.len() < MAX_OPEN {
                    self.approvals.insert(call.to_owned());
                }
                sink.asked(&format!("approval:{call}"), Some(call), None, None, None);
            }
            ("handoff_requested", Some(call)) => sink.handoff_requested(call),
            ("handoff_occurred" | "handoff_occured", Some(call)) => {
                let target = item.get("targetAgent").or_else(|| item.get("target_agent"));
                let target = target.and_then(|agent| text(agent, "name")).unwrap_or("unknown");
                sink.handoff_completed(call, target);
            }
            _ => sink.native(kind, event),
        }
    }

    fn message(&mut self, sink: &mut Sink, raw: &Value) {
        let id = text(raw, "id").unwrap_or(NAMELESS);
        if forget(&mut self.completed, id) {
            return;
        }
        // The pieces had no id.
        let key = if sink.is_open(id) { id } else { NAMELESS };
        sink.complete_with(key, message_text(raw), Vec::new());
    }

    fn reasoning(&mut self, sink: &mut Sink, raw: &Value) {
        let id = text(raw, "id").unwrap_or("reasoning");
        if forget(&mut self.reasoned, id) {
            return;
        }
        for part in list(raw, "summary").iter().chain(list(raw, "content")) {
            sink.reasoning(id, text(part, "text").unwrap_or_default());
        }
    }

    fn called(&mut self, sink: &mut Sink, call: &str, raw: &Value) {
        let kind = text(raw, "type").unwrap_or_default();
        let tool = text(raw, "name").unwrap_or(kind);
        // Arguments are JSON in a text. A text that is none has no parameters to be shown.
        let arguments = raw.get("arguments").or_else(|| raw.get("action")).unwrap_or(&Value::Null);
        let arguments = match arguments {
            Value::String(arguments) => serde_json::from_str(arguments).unwrap_or_default(),
            other => other.clone(),
        };
        sink.tool_started(call, tool, arguments);
        // Tools of the provider have no output event.
        let is_hosted = !kind.starts_with("function_call") && kind != "custom_tool_call" && !kind.ends_with("shell_call");
        if is_hosted && text(raw, "status") == Some("completed") {
            return sink.tool_result(call, tool, raw.get("output").map(content).unwrap_or_default());
        }
        if self.calls.len() < MAX_OPEN {
            self.calls.insert(call.to_owned(), name(tool));
        }
    }

    fn output(&mut self, sink: &mut Sink, call: &str, item: &Value, raw: &Value) {
        if self.approvals.remove(call) {
            // Only JavaScript says that a call was made.
            let decision = match text(item, "executionStatus") {
                Some("executed") => ActionDecision::Approve,
                _ => ActionDecision::Unknown,
            };
            sink.settled(&format!("approval:{call}"), decision, None, None);
        }
        let tool = self.calls.remove(call).or_else(|| text(raw, "name").map(str::to_owned)).unwrap_or_default();
        let output = item.get("output").or_else(|| raw.get("output")).unwrap_or(&Value::Null);
        let output = match (text(output, "type"), text(output, "text")) {
            (Some("text" | "input_text" | "output_text"), Some(words)) => vec![ContentPart::Text(words.to_owned())],
            _ => content(output),
        };
        sink.tool_result(call, &tool, output);
    }
}

/// Counts an id; `once`: however often it comes.
fn remember(ids: &mut BTreeMap<String, u32>, id: &str, once: bool) {
    if ids.len() < MAX_OPEN || ids.contains_key(id) {
        let times = ids.entry(name(id)).or_default();
        *times = if once { 1 } else { times.saturating_add(1) };
    }
}

/// True if the id was counted; it is counted once less then.
fn forget(ids: &mut BTreeMap<String, u32>, id: &str) -> bool {
    let id = name(id);
    let Some(times) = ids.get_mut(&id) else { return false };
    *times -= 1;
    if *times == 0 {
        ids.remove(&id);
    }
    true
}

/// The text of a message.
fn message_text(item: &Value) -> String {
    match item.get("content") {
        Some(Value::String(words)) => words.clone(),
        _ => list(item, "content").iter().filter_map(|part| text_of(part, &["text", "refusal"])).collect(),
    }
}
