//! Reports of an agent about its turn, as results: the messages of the Agent Client Protocol, into which other protocols are translated.

use std::{collections::HashMap, path::PathBuf};

use serde_json::{Map, Value, json};

use crate::{
    acp_schema::{Content, ToolCall, ToolContent, Update},
    permissions::Intent,
    results::{Results, cut, present},
    shell,
    terminal::Terminals,
};

/// Tool calls that may be open at one time; more are not recorded. The content of an open call is kept in memory.
const MAX_CALLS: usize = 100;
/// Largest text of a change that a person is shown, in bytes.
const MAX_DIFF: usize = 3 * 1024;

/// A tool call of the agent that has not ended.
#[derive(Default)]
struct OpenCall {
    call: ToolCall,
    /// True if the record has its beginning.
    is_recorded: bool,
}

/// The turn of an agent, as far as it has reported it.
#[derive(Default)]
pub(crate) struct Turn {
    open: HashMap<String, OpenCall>,
    /// The order in which calls began.
    order: Vec<String>,
}

impl Turn {
    /// Records an update.
    pub(crate) async fn record(&mut self, update: Update, results: &mut Results, terminals: &Terminals) {
        match update {
            Update::AgentMessageChunk { content } => {
                if let Some(text) = text_of(&content) {
                    results.text(text).await;
                }
            }
            Update::AgentThoughtChunk { content } => {
                if let Some(text) = text_of(&content) {
                    results.reasoning(text).await;
                }
            }
            Update::ToolCall(call) | Update::ToolCallChange(call) => self.tool_call(call, results, terminals).await,
            Update::Plan { entries } => {
                results.plan(entries.into_iter().map(|entry| (entry.content, entry.status)).collect()).await;
            }
            Update::CurrentMode { mode } => results.add("harness.mode", json!({ "mode": cut(&mode, 200) }), None).await,
            Update::Usage { used, size, cost } => {
                let data = Map::from_iter([
                    ("used".to_owned(), json!(used)),
                    ("size".to_owned(), json!(size)),
                    ("cost".to_owned(), cost.unwrap_or_default()),
                ]);
                results.add("harness.context", present(data), None).await;
            }
            Update::Other => {}
        }
    }

    async fn tool_call(&mut self, update: ToolCall, results: &mut Results, terminals: &Terminals) {
        let id = update.tool_call_id.clone();
        self.merge(update);
        let Some(open) = self.open.get_mut(&id) else { return };
        let status = open.call.status.clone().unwrap_or_else(|| "pending".to_owned());
        let has_input = open.call.raw_input.as_ref().and_then(Value::as_object).is_some_and(|input| !input.is_empty());
        if status != "pending" || has_input {
            begin(open, results).await;
        }
        if matches!(status.as_str(), "completed" | "failed")
            && let Some(open) = self.open.remove(&id)
        {
            self.order.retain(|other| *other != id);
            end(&open.call, results, terminals).await;
        }
    }

    /// Adds what is new of a call to what is known of it.
    fn merge(&mut self, update: ToolCall) {
        let id = update.tool_call_id.clone();
        if id.is_empty() || (self.open.len() >= MAX_CALLS && !self.open.contains_key(&id)) {
            return;
        }
        let open = self.open.entry(id.clone()).or_insert_with(|| {
            self.order.push(id);
            OpenCall::default()
        });
        let ToolCall { tool_call_id, title, name, kind, status, content, locations, raw_input, raw_output, meta } = update;
        let call = &mut open.call;
        call.tool_call_id = tool_call_id;
        call.title = title.or(call.title.take());
        call.name = name.or(call.name.take());
        call.kind = kind.or(call.kind.take());
        call.status = status.or(call.status.take());
        call.content = content.or(call.content.take());
        call.locations = locations.or(call.locations.take());
        call.raw_input = raw_input.or(call.raw_input.take());
        call.raw_output = raw_output.or(call.raw_output.take());
        call.meta = meta.or(call.meta.take());
    }

    /// Records the call that a permission is asked for, and says what it is.
    pub(crate) async fn intent(&mut self, call: &ToolCall, results: &mut Results) -> Intent {
        self.merge(call.clone());
        match self.open.get_mut(&call.tool_call_id) {
            Some(open) => {
                begin(open, results).await;
                intent_of(&open.call)
            }
            None => intent_of(call),
        }
    }

    /// The call of this id, as far as it is known, while it is open.
    pub(crate) fn call(&self, id: &str) -> Option<&ToolCall> {
        self.open.get(id).map(|open| &open.call)
    }

    /// Ends the calls that are still open: the turn is over.
    pub(crate) async fn end(&mut self, results: &mut Results) {
        for id in std::mem::take(&mut self.order) {
            let Some(mut open) = self.open.remove(&id) else { continue };
            begin(&mut open, results).await;
            let error = Err("the turn ended before this call".to_owned());
            results.tool_completed(&id, &name_of(&open.call), error, about(&open.call)).await;
        }
    }
}

async fn begin(open: &mut OpenCall, results: &mut Results) {
    if std::mem::replace(&mut open.is_recorded, true) {
        return;
    }
    let call = &open.call;
    let input = match &call.raw_input {
        Some(input @ Value::Object(_)) => input.clone(),
        Some(Value::Null) | None => json!({}),
        Some(input) => json!({ "input": input }),
    };
    results.tool_started(&call.tool_call_id, &name_of(call), input, about(call)).await;
}

async fn end(call: &ToolCall, results: &mut Results, terminals: &Terminals) {
    let mut parts: Vec<Value> = Vec::new();
    for content in call.content.iter().flatten() {
        parts.extend(part(content, terminals).await);
    }
    if parts.is_empty()
        && let Some(output) = call.raw_output.as_ref().filter(|output| !output.is_null())
    {
        let text = output.as_str().map_or_else(|| output.to_string(), ToOwned::to_owned);
        parts.push(json!({ "type": "text", "text": text }));
    }
    let outcome = if call.status.as_deref() == Some("failed") {
        let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
        let text = texts.collect::<Vec<_>>().join("\n");
        Err(if text.trim().is_empty() { "the tool failed".to_owned() } else { text })
    } else {
        Ok(parts)
    };
    results.tool_completed(&call.tool_call_id, &name_of(call), outcome, about(call)).await;
}

/// A part of the content of a tool call, as a part of a message.
async fn part(content: &ToolContent, terminals: &Terminals) -> Option<Value> {
    match content {
        ToolContent::Content { content } => text_of(content).map(|text| json!({ "type": "text", "text": text })),
        ToolContent::Diff { path, old_text, new_text } => {
            Some(json!({ "type": "diff", "path": path, "old_text": old_text, "new_text": new_text }))
        }
        ToolContent::Terminal { terminal_id } => {
            let output = terminals.output(terminal_id).await?;
            Some(json!({ "type": "text", "text": output.text }))
        }
        ToolContent::Other => None,
    }
}

fn text_of(content: &Content) -> Option<&str> {
    match content {
        Content::Text { text } => Some(text),
        Content::ResourceLink { uri } => Some(uri),
        Content::Other => None,
    }
}

/// The name of the tool: as the agent has it, else its kind.
fn name_of(call: &ToolCall) -> String {
    let claude = call.meta.as_ref().and_then(|meta| meta.get("claudeCode")?.get("toolName")?.as_str());
    let name = call.name.as_deref().or(claude).or(call.kind.as_deref()).filter(|name| !name.is_empty());
    cut(name.unwrap_or("other"), 120).to_owned()
}

/// Facts about a call that have no member of their own in a result.
fn about(call: &ToolCall) -> Value {
    let locations: Vec<Value> = call
        .locations
        .iter()
        .flatten()
        .take(50)
        .map(|location| match location.line {
            Some(line) => json!({ "path": cut(&location.path, 1024), "line": line }),
            None => json!({ "path": cut(&location.path, 1024) }),
        })
        .collect();
    let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, |text| json!(cut(text, 1024)));
    let locations = if locations.is_empty() { Value::Null } else { Value::Array(locations) };
    present(Map::from_iter([
        ("title".to_owned(), text(&call.title)),
        ("kind".to_owned(), text(&call.kind)),
        ("locations".to_owned(), locations),
    ]))
}

fn intent_of(call: &ToolCall) -> Intent {
    let kind = call.kind.clone().unwrap_or_else(|| "other".to_owned());
    let input = call.raw_input.as_ref().filter(|input| input.as_object().is_some_and(|input| !input.is_empty()));
    let command = input.and_then(|input| input.get("command")).and_then(|command| match command {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => Some(shell::line(words.iter().filter_map(Value::as_str))),
        _ => None,
    });
    // A command that is not told apart from its title is still one.
    let command = command.or_else(|| (kind == "execute").then(|| call.title.clone().unwrap_or_default()));
    let mut paths: Vec<PathBuf> = call.locations.iter().flatten().map(|location| PathBuf::from(&location.path)).collect();
    let mut description = command.as_deref().map(shell::inner).unwrap_or_default();
    for content in call.content.iter().flatten() {
        match content {
            ToolContent::Diff { path, old_text, new_text } => {
                paths.push(PathBuf::from(path));
                let lines = |sign: &str, text: &str| {
                    cut(text, MAX_DIFF).lines().map(|line| format!("{sign}{line}\n")).collect::<String>()
                };
                let old = old_text.as_deref().map(|old| lines("-", old)).unwrap_or_default();
                description.push_str(&format!("{path}\n{old}{}", lines("+", new_text)));
            }
            // Kimi Code has the command in the words of its request alone.
            ToolContent::Content { content: Content::Text { text } } if input.is_none() => {
                let end = if description.is_empty() || description.ends_with('\n') { "" } else { "\n" };
                description.push_str(&format!("{end}{}\n", cut(text, MAX_DIFF).trim_end()));
            }
            _ => {}
        }
    }
    if description.trim().is_empty()
        && let Some(input) = input
    {
        description = input.to_string();
    }
    Intent { kind, title: call.title.clone().unwrap_or_default(), paths, command, description }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(value: Value) -> ToolCall {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_and_a_change_are_shown_to_the_person_who_decides() {
        let intent = intent_of(&call(json!({
            "toolCallId": "1", "title": "List", "kind": "execute", "rawInput": { "command": "ls -la" },
        })));
        assert_eq!((intent.command.as_deref(), intent.description.as_str()), (Some("ls -la"), "ls -la"));
        let intent = intent_of(&call(json!({
            "toolCallId": "1", "title": "Edit", "kind": "edit", "locations": [{ "path": "/w/a" }],
            "content": [{ "type": "diff", "path": "/w/b", "oldText": "x", "newText": "y\nz" }],
        })));
        assert_eq!(intent.paths, ["/w/a", "/w/b"].map(PathBuf::from));
        assert_eq!(intent.description, "/w/b\n-x\n+y\n+z\n");
    }

    #[test]
    fn a_command_is_shown_wherever_an_agent_has_it() {
        // codex-acp, Kimi Code, Gemini CLI.
        let intent = intent_of(&call(json!({
            "toolCallId": "1", "title": "mkdir one", "kind": "execute", "rawInput": { "command": ["/bin/bash", "-lc", "mkdir one"] },
            "content": [{ "type": "content", "content": { "type": "text", "text": "Available Decisions: Approved" } }],
        })));
        assert_eq!((intent.command.as_deref(), intent.description.as_str()), (Some("/bin/bash -lc 'mkdir one'"), "mkdir one"));
        let words = "Requesting approval to Running: mkdir one";
        let intent = intent_of(&call(json!({
            "toolCallId": "1", "title": "Bash", "kind": "execute",
            "content": [{ "type": "content", "content": { "type": "text", "text": words } }],
        })));
        assert_eq!(intent.description, format!("Bash\n{words}\n"));
        let intent = intent_of(&call(json!({ "toolCallId": "1", "title": "mkdir one", "kind": "execute", "rawInput": {} })));
        assert_eq!((intent.command.as_deref(), intent.description.as_str()), (Some("mkdir one"), "mkdir one"));
    }

    #[test]
    fn updates_are_read_whatever_else_they_have() {
        let read = |value: Value| serde_json::from_value::<Update>(value).unwrap();
        assert!(matches!(read(json!({ "sessionUpdate": "galaxy", "x": 1 })), Update::Other));
        let update = read(
            json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "t", "kind": "new_kind", "content": [{ "type": "hologram" }] }),
        );
        assert!(matches!(update, Update::ToolCall(ToolCall { kind: Some(_), .. })));
    }
}
