//! Calls of tools: those of the host, of runners, of clients, and platform actions.

use std::collections::HashMap;

use agent_host_protocol::{
    encoded::json_len,
    message::{ContentPart, Message},
};
use serde_json::Value;

use super::{
    ids::{Ids, Kind},
    models::is_retryable,
    out::{Draft, Out, Source, artifact_uri},
    texts::{Texts, artifacts, whole},
};
use crate::{
    fact::{RefKind, ScopeIds},
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::{ToolCallEnd, ToolCallProgress, ToolCallStart},
    safe::{MAX_TEXT_CHARS, line, redacted, redacted_text},
};

/// The name of a tool that nobody names.
const UNNAMED: &str = "tool";

/// The calls of an attempt, by the ids that the runner or its model gave them.
#[derive(Debug, Default)]
pub(super) struct Tools {
    open: OpenElements<OpenCall>,
    /// Calls that have ended, with the author of their end.
    done: HashMap<String, Source>,
}

#[derive(Debug, Clone)]
struct OpenCall {
    scope: ScopeIds,
    tool: String,
    message: Option<String>,
}

/// A call, as it begins.
pub(super) struct Call<'a> {
    /// As the runner or its model has it.
    pub(super) name: &'a str,
    pub(super) tool: &'a str,
    /// `None` if the parameters are unknown, or not in this event.
    pub(super) parameters: Option<Value>,
    /// Size of parameters that are not in this event.
    pub(super) parameters_bytes: Option<u64>,
    /// The message that it belongs to, as the runner names that.
    pub(super) message: Option<&'a str>,
    /// The executing side: `host`, `runner`, `client` or `platform`.
    pub(super) executor: &'a str,
}

/// The outcome of a call.
pub(super) enum Outcome<'a> {
    /// A result, as JSON shows content: a text or a list of parts.
    Result(Value),
    Failed {
        category: FailureCategory,
        code: &'a str,
        error: &'a str,
    },
}

/// The measures of a call that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measures {
    pub(super) duration_ms: Option<u64>,
    /// Bytes of the whole output.
    pub(super) output_bytes: Option<u64>,
    /// True if the record has only a part of the output.
    pub(super) is_cut: bool,
}

impl Measures {
    /// The measures of a call of which only the duration may be known.
    pub(super) fn of(duration_ms: Option<u64>) -> Self {
        Self { duration_ms, ..Self::default() }
    }

    fn put(self, draft: Draft) -> Draft {
        let draft = draft.with_some("durationMs", self.duration_ms).with_some("outputBytes", self.output_bytes);
        draft.with_some("outputTruncated", self.is_cut.then_some(true))
    }
}

impl Tools {
    pub(super) fn started(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, start: ToolCallStart) {
        let ToolCallStart { tool_call_id, tool_name, parameters, parameters_bytes, message_id } = start;
        if self.open.contains(&tool_call_id) {
            return out.warn("duplicate_tool_start", "a call of a tool began that had begun before");
        }
        let executor = out.source.as_str();
        let call = Call {
            name: &tool_call_id,
            tool: &tool_name,
            parameters: parameters.and_then(|parameters| serde_json::from_str(parameters.get()).ok()),
            parameters_bytes,
            message: message_id.as_deref(),
            executor,
        };
        self.begin(out, ids, texts, call);
    }

    /// Begins a call, or finds the open one.
    pub(super) fn begin(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, call: Call<'_>) -> ScopeIds {
        if let Some(open) = self.open.get(call.name) {
            return open.scope.clone();
        }
        let scope =
            ScopeIds { tool_call_id: Some(ids.of(Kind::Tool, call.name)), step_id: Some(ids.step()), ..ScopeIds::default() };
        let tool = if call.tool.is_empty() { UNNAMED.to_owned() } else { line(call.tool) };
        let message = texts.owner(call.message, call.name);
        let open = OpenCall { scope: scope.clone(), tool, message };
        out.say(open.draft(FactType::ToolStarted).with("executor", call.executor));
        let args = open.draft(FactType::ToolArgs);
        match (call.parameters, call.parameters_bytes) {
            (Some(parameters), _) => {
                let bytes = json_len(&parameters);
                if bytes <= MAX_TEXT_CHARS {
                    out.say(args.with("safeArgs", redacted(parameters)));
                } else {
                    let uri = out.event_uri();
                    out.say(by_reference(args, &uri, bytes));
                }
            }
            (None, Some(bytes)) => {
                let uri = out.event_uri();
                out.say(by_reference(args, &uri, usize::try_from(bytes).unwrap_or(usize::MAX)));
            }
            (None, None) => out.say(args.with("safeArgs", Value::Null).with("status", "unknown").with("reason", "not_recorded")),
        }
        self.done.remove(call.name);
        self.open.insert(call.name, open);
        scope
    }

    /// The scope of an open call.
    pub(super) fn scope_of(&self, name: &str) -> Option<&ScopeIds> {
        self.open.get(name).map(|open| &open.scope)
    }

    pub(super) fn progress(&self, out: &mut Out, progress: ToolCallProgress) {
        let Some(open) = self.open.get(&progress.tool_call_id) else { return };
        out.say(
            open.draft(FactType::ToolProgress)
                .with("progress", number(progress.progress))
                .with_some("total", progress.total.map(number))
                .with_some("detail", progress.message.map(|message| line(&message))),
        );
    }

    pub(super) fn completed(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, end: ToolCallEnd) {
        let name = end.tool_call_id;
        if !self.open.contains(&name) {
            match self.done.get(&name) {
                // A guest may repeat what the host has recorded of its call.
                Some(by) if *by != out.source => return,
                Some(_) => return out.warn("duplicate_terminal", "a call of a tool ended that had ended before"),
                None => {}
            }
            let call = Call {
                name: &name,
                tool: &end.tool_name,
                parameters: None,
                parameters_bytes: None,
                message: None,
                executor: out.source.as_str(),
            };
            self.begin(out, ids, texts, call);
        }
        let measures = Measures { duration_ms: end.duration_ms, output_bytes: end.output_bytes, is_cut: end.truncated };
        let error = end.error.filter(|error| !error.is_null()).map(|error| match error {
            Value::String(text) => text,
            other => other.to_string(),
        });
        match error {
            Some(error) => {
                let named = end.category.as_ref().and_then(Value::as_str);
                let category = named.and_then(FailureCategory::of_code);
                let category = category.or_else(|| end.code.as_deref().and_then(FailureCategory::of_code));
                let category = category.unwrap_or(FailureCategory::ToolFailed);
                let code = named.or(end.code.as_deref()).unwrap_or("tool_error");
                self.finish(out, &name, Outcome::Failed { category, code, error: &error }, measures);
            }
            None => self.finish(out, &name, Outcome::Result(end.result.unwrap_or_default()), measures),
        }
    }

    /// A runner that makes calls by itself may say what came of one in a message.
    pub(super) fn answered_in_message(&mut self, out: &mut Out, message: &Message) {
        let Some(call) = message.tool_call_id.as_deref().filter(|call| self.open.contains(call)) else { return };
        let result = serde_json::to_value(&message.content).unwrap_or_default();
        self.finish(out, call, Outcome::Result(result), Measures::default());
    }

    /// Ends an open call.
    pub(super) fn finish(&mut self, out: &mut Out, name: &str, outcome: Outcome<'_>, measures: Measures) {
        let Some(open) = self.open.remove(name) else { return };
        self.done.insert(name.to_owned(), out.source);
        match outcome {
            Outcome::Result(result) => open.result(out, result, measures),
            Outcome::Failed { category, code, error } => {
                let draft = open
                    .draft(FactType::ToolFailed)
                    .with("failureCategory", category.as_str())
                    .with("code", line(code))
                    .with("error", line(error))
                    .with("retryable", is_retryable(category))
                    .with("recoveryHint", category.hint());
                out.say(measures.put(draft));
            }
        }
    }

    /// Ends all open calls.
    pub(super) fn close(&mut self, out: &mut Out, category: FailureCategory, why: &str) {
        let open: Vec<String> = self.open.iter().map(|(name, _)| name.to_owned()).collect();
        for name in open {
            self.finish(out, &name, Outcome::Failed { category, code: category.as_str(), error: why }, Measures::default());
        }
        *self = Self::default();
    }
}

impl OpenCall {
    fn draft(&self, kind: FactType) -> Draft {
        Draft::new(kind)
            .in_scope(&self.scope)
            .with("toolName", self.tool.as_str())
            .with_some("messageId", self.message.as_deref())
    }

    fn result(&self, out: &mut Out, result: Value, measures: Measures) {
        let parts = match result {
            Value::String(text) => vec![ContentPart::Text(text)],
            Value::Array(parts) => {
                parts.into_iter().map(|part| serde_json::from_value(part.clone()).unwrap_or(ContentPart::Other(part))).collect()
            }
            Value::Null => Vec::new(),
            other => vec![ContentPart::Other(other)],
        };
        let text: String = parts
            .iter()
            .filter_map(|part| match part {
                ContentPart::Text(text) => Some(text.clone()),
                ContentPart::Other(value) => Some(redacted(value.clone()).to_string()),
                ContentPart::Artifact(_) => None,
            })
            .collect();
        let mut draft = self.draft(FactType::ToolResult);
        let mut of_parts = artifacts(&parts).peekable();
        let first = of_parts.peek().copied();
        for artifact in of_parts {
            draft = draft.refers(RefKind::Artifact, artifact_uri(&artifact.artifact_id));
        }
        let text = redacted_text(text);
        // Native events name no artifact: the host has kept the output as one.
        let is_cut = measures.is_cut || out.source == Source::Import;
        let draft = if let Some(artifact) = whole(&parts).filter(|_| is_cut) {
            out.spill_to(draft, "outputPreview", &text, artifact)
        } else {
            let draft = out.spill(draft, "outputPreview", &text, None, "text/plain");
            match first {
                // The host keeps long and binary output as an artifact.
                Some(artifact) => {
                    draft.with("outputRef", artifact_uri(&artifact.artifact_id)).with_some("outputBytes", artifact.size)
                }
                None => draft,
            }
        };
        out.say(measures.put(draft));
    }
}

fn by_reference(draft: Draft, uri: &str, bytes: usize) -> Draft {
    draft.refers(RefKind::Raw, uri).with("inputRef", uri).with("inputBytes", bytes).with("reason", "too_long_for_a_fact")
}

/// A number of a report, or nothing.
fn number(value: Value) -> Value {
    if value.is_number() { value } else { Value::Null }
}
