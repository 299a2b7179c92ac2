//! Uses of tools by Claude Code as tool calls.

use serde_json::Value;

use super::schema::ToolResult;
use crate::acp_schema::{Content, Location, PlanEntry, ToolCall, ToolContent};

/// Kind of a tool.
fn kind(name: &str) -> &'static str {
    match name {
        "Bash" | "PowerShell" => "execute",
        "Read" | "NotebookRead" | "BashOutput" => "read",
        "Edit" | "MultiEdit" | "Write" | "NotebookEdit" => "edit",
        "Glob" | "Grep" | "LS" | "ToolSearch" => "search",
        "WebFetch" | "WebSearch" => "fetch",
        "Task" | "Agent" | "TodoWrite" => "think",
        "EnterPlanMode" | "ExitPlanMode" => "switch_mode",
        _ => "other",
    }
}

/// The beginning of a call.
pub(super) fn begun(id: String, name: &str, input: Value) -> ToolCall {
    let text = |member: &str| input.get(member).and_then(Value::as_str);
    let path = text("file_path").or_else(|| text("notebook_path")).or_else(|| text("path"));
    let subject = text("command").or(path).or_else(|| text("pattern")).or_else(|| text("url")).or_else(|| text("description"));
    let title = match subject {
        Some(command) if kind(name) == "execute" => command.to_owned(),
        Some(subject) => format!("{name} {subject}"),
        None => name.to_owned(),
    };
    let locations = path.map(|path| vec![Location { path: path.to_owned(), line: None }]);
    let changes = changes(name, path, &input);
    ToolCall {
        tool_call_id: id,
        title: Some(title),
        name: Some(name.to_owned()),
        kind: Some(kind(name).to_owned()),
        status: Some("in_progress".to_owned()),
        content: Some(changes).filter(|changes| !changes.is_empty()),
        locations,
        raw_input: Some(input),
        ..ToolCall::default()
    }
}

/// The changes of a file that a call makes.
fn changes(name: &str, path: Option<&str>, input: &Value) -> Vec<ToolContent> {
    let Some(path) = path.filter(|_| kind(name) == "edit") else { return Vec::new() };
    let diff = |old: Option<&Value>, new: Option<&Value>| {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(ToOwned::to_owned);
        let new_text = text(new)?;
        Some(ToolContent::Diff { path: path.to_owned(), old_text: text(old), new_text })
    };
    let edits = input.get("edits").and_then(Value::as_array);
    let of_edits = edits.into_iter().flatten().filter_map(|edit| diff(edit.get("old_string"), edit.get("new_string")));
    let whole = input.get("content").or_else(|| input.get("new_source"));
    of_edits.chain(diff(input.get("old_string"), input.get("new_string"))).chain(diff(None, whole)).collect()
}

/// The end of a call that began as `call`, with what it changed before what it said.
pub(super) fn ended(result: ToolResult, call: &ToolCall) -> ToolCall {
    let ToolResult { tool_use_id, content, is_error } = result;
    let has_failed = is_error == Some(true);
    let said = texts(&content).into_iter().map(|text| ToolContent::Content { content: Content::Text { text } });
    let changed = call.content.clone().filter(|_| !has_failed).unwrap_or_default();
    ToolCall {
        tool_call_id: tool_use_id,
        status: Some(if has_failed { "failed" } else { "completed" }.to_owned()),
        content: Some(changed.into_iter().chain(said).collect()),
        ..ToolCall::default()
    }
}

fn texts(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str().map(ToOwned::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// The plan that a call of `TodoWrite` writes down.
pub(super) fn plan(name: &str, input: &Value) -> Option<Vec<PlanEntry>> {
    let todos = input.get("todos").filter(|_| name == "TodoWrite")?;
    serde_json::from_value(todos.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_shown_before_it_is_made_and_kept_after() {
        let input = json!({ "file_path": "/w/a", "old_string": "x", "new_string": "y" });
        let call = begun("1".into(), "Edit", input);
        assert_eq!((call.kind.as_deref(), call.title.as_deref()), (Some("edit"), Some("Edit /w/a")));
        let result = |is_error| ToolResult { tool_use_id: "1".into(), content: json!("done"), is_error: Some(is_error) };
        let content = ended(result(false), &call).content.unwrap();
        assert!(matches!(&content[..], [ToolContent::Diff { .. }, ToolContent::Content { .. }]), "{content:?}");
        let content = ended(result(true), &call).content.unwrap();
        assert!(matches!(&content[..], [ToolContent::Content { .. }]), "{content:?}");
    }

    #[test]
    fn a_command_is_its_own_title_and_a_tool_of_a_server_has_no_kind() {
        let call = begun("1".into(), "Bash", json!({ "command": "ls", "description": "List" }));
        assert_eq!((call.kind.as_deref(), call.title.as_deref()), (Some("execute"), Some("ls")));
        let call = begun("1".into(), "mcp__agent-host__state_get", json!({}));
        assert_eq!((call.kind.as_deref(), call.title.as_deref()), (Some("other"), Some("mcp__agent-host__state_get")));
    }
}
