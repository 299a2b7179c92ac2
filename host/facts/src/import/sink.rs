//! Results of bounded size, and the texts that are open.

use std::collections::BTreeMap;

use agent_host_protocol::{
    RunResult,
    encoded::json_len,
    fact,
    import::{
        ACTION_REQUESTED, ACTION_RESOLVED, ActionDecision, ActionEnd, ActionRequest, NATIVE, NativeEvent, TASK_ENDED,
        TASK_STARTED, TOOL_PROGRESS, TaskEnd, TaskOutcome, TaskStart, ToolProgress,
    },
    limits::is_shallow,
    message::{ContentPart, Message, Role, TokenUsage, ToolCall},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Form, NativeEnd, native::name};
use crate::safe::beginning;

/// Longest piece of a text in one result: a result is an event of 32 KiB at most, and a character may take six bytes as JSON.
const PIECE_CHARS: usize = 4_000;
/// Texts that are open at one time. Frameworks have one for each agent that speaks.
const MAX_OPEN: usize = 64;
/// Length of an open text, in bytes, at which the text is said to its end and goes on as another message: the whole of it is kept
/// until then.
const MAX_OPEN_BYTES: usize = 256 * 1024;
/// Largest value in a result that shows a native event, a question or an answer, as JSON.
const MAX_VALUE_BYTES: usize = 8 * 1024;
/// Longest line for people.
const MAX_LINE_CHARS: usize = 500;

/// The results of the present event, and the texts that are open.
#[derive(Debug, Clone)]
pub(super) struct Sink {
    form: Form,
    results: Vec<RunResult>,
    pub(super) end: Option<NativeEnd>,
    texts: BTreeMap<String, OpenText>,
    /// The number of the last text: frameworks name texts of different steps alike.
    last: u64,
}

/// Tokens of a model call and the name of its model, as far as a framework says them.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    pub(super) model: Option<String>,
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) cached_input: Option<u64>,
    pub(super) reasoning: Option<u64>,
}

/// The data of [`fact::USAGE`].
#[derive(Serialize)]
struct ModelUse {
    #[serde(flatten)]
    tokens: TokenUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
}

#[derive(Debug, Clone)]
struct OpenText {
    id: String,
    text: String,
}

impl Sink {
    pub(super) fn new(form: Form) -> Self {
        Self { form, results: Vec::new(), end: None, texts: BTreeMap::new(), last: 0 }
    }

    pub(super) fn take(&mut self) -> Vec<RunResult> {
        std::mem::take(&mut self.results)
    }

    fn message_id(&mut self, key: &str) -> String {
        self.last += 1;
        format!("{}.{}", name(key), self.last)
    }

    /// True if a text of this name is open.
    pub(super) fn is_open(&self, key: &str) -> bool {
        self.texts.contains_key(&name(key))
    }

    /// A piece of a text of the assistant, which its framework names `key`.
    pub(super) fn delta(&mut self, key: &str, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let key = &name(key);
        if !self.texts.contains_key(key) {
            if self.texts.len() >= MAX_OPEN {
                let keys: Vec<String> = self.texts.keys().cloned().collect();
                keys.iter().for_each(|key| self.complete(key));
            }
            let id = self.message_id(key);
            self.texts.insert(key.clone(), OpenText { id, text: String::new() });
        }
        let Some(open) = self.texts.get_mut(key) else { return };
        open.text.push_str(piece);
        let (id, is_long) = (open.id.clone(), open.text.len() >= MAX_OPEN_BYTES);
        for text in pieces(piece) {
            self.results.push(RunResult::MessageDelta { message_id: id.clone(), role: Role::Assistant, text });
        }
        if is_long {
            self.complete(key);
        }
    }

    /// The text is whole: what its pieces said. Nothing for a text of which no piece came.
    pub(super) fn complete(&mut self, key: &str) {
        if let Some(open) = self.texts.remove(&name(key)) {
            self.message(open.id, open.text, Vec::new());
        }
    }

    /// The text is whole, as the framework says it, with its calls of tools.
    pub(super) fn complete_with(&mut self, key: &str, text: String, calls: Vec<ToolCall>) {
        let id = match self.texts.remove(&name(key)) {
            Some(open) => open.id,
            None if text.is_empty() && calls.is_empty() => return,
            None => self.message_id(key),
        };
        self.message(id, text, calls);
    }

    fn message(&mut self, message_id: String, text: String, tool_calls: Vec<ToolCall>) {
        let content = if text.is_empty() { Vec::new() } else { vec![ContentPart::Text(text)] };
        let message = Message { role: Role::Assistant, content, name: None, tool_calls, tool_call_id: None };
        self.results.push(RunResult::MessageCompleted { message_id, message });
    }

    /// A piece of reasoning.
    pub(super) fn reasoning(&mut self, key: &str, piece: &str) {
        for text in pieces(piece) {
            self.results.push(RunResult::ReasoningDelta { message_id: name(key), role: Role::Assistant, text });
        }
    }

    /// A call of a tool begins. `parameters` that nest too deep are left out.
    pub(super) fn tool_started(&mut self, call: &str, tool: &str, parameters: Value) {
        let parameters = if is_shallow(&parameters) { parameters } else { Value::Null };
        self.results.push(RunResult::ToolCallStarted {
            call_id: name(call),
            tool_name: name(tool),
            parameters,
            message_id: None,
        });
    }

    /// A call of a tool has ended well.
    pub(super) fn tool_result(&mut self, call: &str, tool: &str, content: Vec<ContentPart>) {
        self.results.push(RunResult::ToolCallCompleted { call_id: name(call), tool_name: name(tool), outcome: Ok(content) });
    }

    /// A call of a tool has failed.
    pub(super) fn tool_failed(&mut self, call: &str, tool: &str, error: &str) {
        let error = beginning(error, PIECE_CHARS).to_owned();
        self.results.push(RunResult::ToolCallCompleted { call_id: name(call), tool_name: name(tool), outcome: Err(error) });
    }

    /// A tool reports its progress.
    pub(super) fn tool_progress(&mut self, call: &str, progress: f64, total: Option<f64>, message: Option<&str>) {
        let message = message.map(|message| beginning(message, MAX_LINE_CHARS).to_owned());
        self.other(TOOL_PROGRESS, &ToolProgress { tool_call_id: name(call), progress, total, message });
    }

    /// A person is asked.
    pub(super) fn asked(
        &mut self,
        action: &str,
        call: Option<&str>,
        title: Option<&str>,
        value: Option<&Value>,
        schema: Option<&Value>,
    ) {
        let request = ActionRequest {
            action_id: name(action),
            tool_call_id: call.map(name),
            title: title.map(|title| beginning(title, MAX_LINE_CHARS).to_owned()),
            value: value.and_then(small),
            answer_schema: schema.and_then(small),
        };
        self.other(ACTION_REQUESTED, &request);
    }

    /// The question has its outcome.
    pub(super) fn settled(&mut self, action: &str, decision: ActionDecision, reason: Option<&str>, answer: Option<&Value>) {
        let reason = reason.map(|reason| beginning(reason, MAX_LINE_CHARS).to_owned());
        self.other(ACTION_RESOLVED, &ActionEnd { action_id: name(action), decision, reason, answer: answer.and_then(small) });
    }

    /// A task begins, or begins again.
    pub(super) fn task_started(&mut self, task: &str, title: &str) {
        self.other(TASK_STARTED, &TaskStart { task_id: name(task), name: name(title) });
    }

    /// An attempt at a task has ended.
    pub(super) fn task_ended(&mut self, task: &str, outcome: TaskOutcome, error: Option<&str>) {
        let error = error.map(|error| beginning(error, MAX_LINE_CHARS).to_owned());
        self.other(TASK_ENDED, &TaskEnd { task_id: name(task), outcome, error });
    }

    /// The work goes to another agent.
    pub(super) fn handoff_requested(&mut self, handoff: &str) {
        let reason = "the capture names the target when the handoff is done";
        self.results.push(RunResult::Other {
            kind: fact::HANDOFF_REQUESTED.to_owned(),
            data: json!({ "handoff_id": name(handoff), "target": "unknown", "reason": reason }),
        });
    }

    /// The work has gone to another agent.
    pub(super) fn handoff_completed(&mut self, handoff: &str, target: &str) {
        self.results.push(RunResult::Other {
            kind: fact::HANDOFF_COMPLETED.to_owned(),
            data: json!({ "handoff_id": name(handoff), "target": name(target) }),
        });
    }

    /// The use of a model by one call. Nothing where the framework does not say both numbers.
    pub(super) fn usage(&mut self, usage: Usage) {
        let Usage { model, input, output, cached_input, reasoning } = usage;
        if let (Some(input), Some(output)) = (input, output) {
            let tokens = TokenUsage { input, output, cached_input, reasoning };
            self.other(fact::USAGE, &ModelUse { tokens, model });
        }
    }

    /// An event that the form does not know, kept as it is where it is small.
    pub(super) fn native(&mut self, native_type: &str, event: &Value) {
        let kept = small(event);
        let bytes = kept.is_none().then(|| json_len(event) as u64);
        self.other(NATIVE, &NativeEvent { form: self.form, native_type: name(native_type), event: kept, bytes });
    }

    fn other(&mut self, kind: &str, data: &impl Serialize) {
        let data = serde_json::to_value(data).unwrap_or_default();
        self.results.push(RunResult::Other { kind: kind.to_owned(), data });
    }
}

/// A value that is small and flat enough to stand in a result.
fn small(value: &Value) -> Option<Value> {
    // A result has the value two levels below its top.
    let is_flat = is_shallow(&json!([[value]]));
    (is_flat && json_len(value) <= MAX_VALUE_BYTES).then(|| value.clone())
}

/// A text in pieces, each of which fits a result.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let piece = beginning(rest, PIECE_CHARS);
        rest = rest.get(piece.len()..)?;
        (!piece.is_empty()).then(|| piece.to_owned())
    })
}

/// A value as the content of a result: texts as texts, other values as one part.
pub(super) fn content(value: &Value) -> Vec<ContentPart> {
    match value {
        Value::Null => Vec::new(),
        Value::String(text) => vec![ContentPart::Text(text.clone())],
        other => vec![json_part(other)],
    }
}

/// A value that is no text, as its JSON: content has no other place for values.
pub(super) fn json_part(value: &Value) -> ContentPart {
    if is_shallow(&json!([[value]])) {
        return ContentPart::Other(json!({ "type": "json", "value": value }));
    }
    ContentPart::Text(value.to_string())
}
