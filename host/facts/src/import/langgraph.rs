//! Parts of a stream of LangGraph, for Python (PyPI `langgraph`) and for JavaScript (npm `@langchain/langgraph`): `[mode, part]`,
//! `[namespace, mode, part]`, or `{"type": mode, "ns": namespace, "data": part}`.
//!
//! Several modes show the same message: it counts once, by its id. A task that waits for an answer ends with `interrupts` and
//! begins again under the same id; the answer itself is in no mode. Messages of people and of the system are input, not results.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agent_host_protocol::{
    import::{ActionDecision, TaskOutcome},
    limits::is_shallow,
    message::{ContentPart, ToolCall},
};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    native::{count, error_text, list, name, text, text_of},
    sink::{Sink, Usage, json_part},
};

/// Messages whose ids are known. The oldest are forgotten: a state shows them no more once its history was cut.
const MAX_MESSAGES: usize = 50_000;
/// Tasks and questions that are open at one time.
const MAX_OPEN: usize = 4_096;

/// The messages, questions and tasks so far.
#[derive(Debug, Clone, Default)]
pub(super) struct LangGraph {
    /// The messages that are done, by a digest of their keys.
    done: BTreeSet<u64>,
    /// The same, in order.
    order: VecDeque<u64>,
    /// Usage of messages that are being said, by the message.
    usage: BTreeMap<String, Usage>,
    /// Open questions: the task of each.
    questions: BTreeMap<String, Option<String>>,
    /// Tasks that have begun.
    tasks: BTreeSet<String>,
    /// True once a whole state was seen: the first one has the history from before.
    has_state: bool,
}

/// Tokens of a message, and its model.
fn usage_of(fields: &Value) -> Option<Usage> {
    let usage = fields.get("usage_metadata").filter(|usage| usage.is_object())?;
    let details = |side: &str, what: &str| usage.get(side).and_then(|details| count(details, &[what]));
    Some(Usage {
        model: model_of(fields),
        input: count(usage, &["input_tokens"]),
        output: count(usage, &["output_tokens"]),
        cached_input: details("input_token_details", "cache_read"),
        reasoning: details("output_token_details", "reasoning"),
    })
}

/// The name of the model that has said a message.
fn model_of(fields: &Value) -> Option<String> {
    text_of(fields.get("response_metadata")?, &["model_name", "model"]).map(name)
}

/// A message of LangChain, in either form.
struct LangMessage<'a> {
    kind: Kind,
    fields: &'a Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Piece,
    Assistant,
    Tool,
    Input,
}

impl LangGraph {
    pub(super) fn push(&mut self, sink: &mut Sink, event: &Value) {
        let Some((mode, part)) = part_of(event) else {
            return sink.native(text(event, "type").unwrap_or("unknown"), event);
        };
        match mode {
            "messages" => match part.get(0).and_then(LangMessage::of) {
                Some(message) => self.message(sink, &message, true),
                None => sink.native(mode, event),
            },
            "updates" => match part.as_object() {
                Some(nodes) => {
                    for (node, update) in nodes {
                        if node == "__interrupt__" {
                            self.interrupted(sink, update.as_array().map_or(&[], Vec::as_slice), None);
                        } else {
                            self.update(sink, update);
                        }
                    }
                }
                None => sink.native(mode, event),
            },
            "values" => {
                let is_first = !std::mem::replace(&mut self.has_state, true);
                if is_first {
                    self.know(part);
                } else {
                    self.update(sink, part);
                }
                self.interrupted(sink, list(part, "__interrupt__"), None);
            }
            "tasks" => self.task(sink, part, event),
            // A wrapper of the other modes, and of checkpoints.
            "debug" => match (text(part, "type"), part.get("payload")) {
                (Some("task" | "task_result"), Some(task)) => self.task(sink, task, event),
                (Some("checkpoint"), _) => {}
                _ => sink.native(mode, event),
            },
            "checkpoints" => {}
            other => sink.native(other, event),
        }
    }

    fn task(&mut self, sink: &mut Sink, task: &Value, event: &Value) {
        let Some(id) = text(task, "id").map(name) else { return sink.native("tasks", event) };
        let id = id.as_str();
        let is_end = task.get("result").is_some() || task.get("error").is_some();
        if !is_end {
            // The task goes on with an answer that the capture does not have.
            let answered: Vec<String> =
                self.questions.iter().filter(|(_, of)| of.as_deref() == Some(id)).map(|(question, _)| question.clone()).collect();
            for question in answered {
                self.questions.remove(&question);
                sink.settled(&question, ActionDecision::Unknown, None, None);
            }
            if self.tasks.len() < MAX_OPEN {
                self.tasks.insert(id.to_owned());
            }
            return sink.task_started(id, text(task, "name").unwrap_or("task"));
        }
        if let Some(result) = task.get("result") {
            self.update(sink, result);
        }
        let interrupts = list(task, "interrupts");
        self.interrupted(sink, interrupts, Some(id));
        if !self.tasks.contains(id) {
            return;
        }
        match task.get("error").filter(|error| !error.is_null()) {
            Some(error) => {
                self.tasks.remove(id);
                sink.task_ended(id, TaskOutcome::Failed, Some(&error_text(error)));
            }
            None if interrupts.is_empty() => {
                self.tasks.remove(id);
                sink.task_ended(id, TaskOutcome::Completed, None);
            }
            None => sink.task_ended(id, TaskOutcome::Waiting, None),
        }
    }

    /// Questions to people. A question is shown by several modes; only a task says whose it is.
    fn interrupted(&mut self, sink: &mut Sink, interrupts: &[Value], task: Option<&str>) {
        for interrupt in interrupts {
            let Some(id) = text(interrupt, "id").or_else(|| text(interrupt, "interrupt_id")).map(name) else {
                sink.native("interrupt", interrupt);
                continue;
            };
            if let Some(of) = self.questions.get_mut(&id) {
                *of = task.map(str::to_owned).or(of.take());
                continue;
            }
            if self.questions.len() < MAX_OPEN {
                self.questions.insert(id.clone(), task.map(str::to_owned));
            }
            sink.asked(&id, None, None, interrupt.get("value"), interrupt.get("response_schema").filter(|it| !it.is_null()));
        }
    }

    /// The messages in an update of the state, wherever the state has them.
    fn update(&mut self, sink: &mut Sink, update: &Value) {
        let mut messages = Vec::new();
        messages_in(update, &mut messages, 0);
        for message in messages {
            self.message(sink, &message, false);
        }
    }

    /// Takes the messages of a state as known.
    fn know(&mut self, state: &Value) {
        let mut messages = Vec::new();
        messages_in(state, &mut messages, 0);
        for message in messages {
            self.finish(&message.key());
        }
    }

    fn message(&mut self, sink: &mut Sink, message: &LangMessage<'_>, in_pieces: bool) {
        let key = message.key();
        let fields = message.fields;
        match message.kind {
            Kind::Input => {}
            // Only the mode `messages` has pieces: elsewhere JavaScript names whole messages like them.
            Kind::Piece if in_pieces => {
                if let Some(usage) = usage_of(fields)
                    && self.usage.len() < MAX_OPEN
                {
                    self.usage.insert(key.clone(), usage);
                }
                for part in parts(fields) {
                    match part {
                        Part::Text(words) => sink.delta(&key, words),
                        Part::Reasoning(words) => sink.reasoning(&key, words),
                        Part::Other => {}
                    }
                }
            }
            Kind::Piece | Kind::Assistant => {
                if !self.finish(&key) {
                    return;
                }
                let mut words = String::new();
                for part in parts(fields) {
                    if let Part::Text(text) = part {
                        words.push_str(text);
                    }
                }
                let calls = list(fields, "tool_calls");
                let asked: Vec<ToolCall> = calls.iter().filter_map(call_of).collect();
                sink.complete_with(&key, words, asked.clone());
                if let Some(usage) = self.usage.remove(&key).or_else(|| usage_of(fields)) {
                    let model = usage.model.or_else(|| model_of(fields));
                    sink.usage(Usage { model, ..usage });
                }
                for call in asked {
                    sink.tool_started(&call.call_id, &call.tool_name, call.parameters);
                }
            }
            Kind::Tool => {
                let Some(call) = text(fields, "tool_call_id") else { return };
                if !self.finish(&key) {
                    return;
                }
                let tool = text(fields, "name").unwrap_or_default();
                let mut content = Vec::new();
                match fields.get("content") {
                    Some(Value::Array(blocks)) => content.extend(blocks.iter().map(|block| match text(block, "text") {
                        Some(words) => ContentPart::Text(words.to_owned()),
                        None => json_part(block),
                    })),
                    Some(other) => content.extend(super::sink::content(other)),
                    None => {}
                }
                if text(fields, "status") == Some("error") {
                    let error = fields.get("content").map_or_else(|| "unknown".to_owned(), error_text);
                    return sink.tool_failed(call, tool, &error);
                }
                sink.tool_result(call, tool, content);
            }
        }
    }

    /// Marks a message as done; false if it was done before.
    fn finish(&mut self, key: &str) -> bool {
        let digest = xxh3_64(key.as_bytes());
        if !self.done.insert(digest) {
            return false;
        }
        self.order.push_back(digest);
        if self.order.len() > MAX_MESSAGES
            && let Some(oldest) = self.order.pop_front()
        {
            self.done.remove(&oldest);
        }
        true
    }
}

/// The stream mode of a part, and the part.
fn part_of(event: &Value) -> Option<(&str, &Value)> {
    match event.as_array().map(Vec::as_slice) {
        Some([Value::String(mode), part]) => Some((mode, part)),
        Some([Value::Array(_), Value::String(mode), part]) => Some((mode, part)),
        Some(_) => None,
        None => Some((text(event, "type")?, event.get("data")?)),
    }
}

/// Deepest place of messages in a state.
const MAX_STATE_DEPTH: usize = 3;

/// The messages in a value, in order.
fn messages_in<'a>(value: &'a Value, found: &mut Vec<LangMessage<'a>>, depth: usize) {
    if let Some(message) = LangMessage::of(value) {
        return found.push(message);
    }
    if depth < MAX_STATE_DEPTH {
        match value {
            Value::Array(items) => items.iter().for_each(|item| messages_in(item, found, depth + 1)),
            Value::Object(members) => members.values().for_each(|member| messages_in(member, found, depth + 1)),
            _ => {}
        }
    }
}

impl<'a> LangMessage<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        // The form in which LangChain for JavaScript writes its objects.
        if value.get("lc").is_some() {
            let fields = value.get("kwargs")?;
            let class = value.get("id")?.as_array()?.last()?.as_str()?;
            let kind = match class {
                "AIMessageChunk" => Kind::Piece,
                "AIMessage" => Kind::Assistant,
                "ToolMessage" | "ToolMessageChunk" => Kind::Tool,
                other if other.ends_with("Message") || other.ends_with("MessageChunk") => Kind::Input,
                _ => return None,
            };
            return Some(Self { kind, fields });
        }
        value.get("content")?;
        let kind = match text(value, "type")? {
            "AIMessageChunk" => Kind::Piece,
            "ai" => Kind::Assistant,
            "tool" => Kind::Tool,
            "human" | "system" | "function" | "chat" | "remove" | "developer" => Kind::Input,
            _ => return None,
        };
        Some(Self { kind, fields: value })
    }

    /// The id of the message; without one, its content.
    fn key(&self) -> String {
        match text(self.fields, "id") {
            Some(id) => name(id),
            None => format!("{:016x}", xxh3_64(self.fields.to_string().as_bytes())),
        }
    }
}

/// A part of the content of a message.
enum Part<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    Other,
}

fn parts(fields: &Value) -> impl Iterator<Item = Part<'_>> {
    let whole = fields.get("content").and_then(Value::as_str).map(Part::Text);
    let blocks = list(fields, "content").iter().map(|block| match (text(block, "type"), block) {
        (_, Value::String(words)) => Part::Text(words),
        (Some("text"), _) => text(block, "text").map_or(Part::Other, Part::Text),
        (Some("reasoning" | "thinking"), _) => {
            text(block, "reasoning").or_else(|| text(block, "thinking")).map_or(Part::Other, Part::Reasoning)
        }
        _ => Part::Other,
    });
    whole.into_iter().chain(blocks)
}

fn call_of(call: &Value) -> Option<ToolCall> {
    let parameters = call.get("args").cloned().filter(is_shallow).unwrap_or_default();
    Some(ToolCall { call_id: name(text(call, "id")?), tool_name: name(text(call, "name")?), parameters })
}
