//! Items of Codex as tool calls.

use serde_json::{Value, json};

use super::schema::{Change, ChangeKind, Item};
use crate::{
    acp_schema::{Content, Location, ToolCall, ToolContent},
    shell::inner,
};

/// The tool call that an item is; `None` for items of other kinds. `has_ended` says so where the item does not.
pub(super) fn tool_call(item: Item, has_ended: bool) -> Option<ToolCall> {
    let by_end = if has_ended { "completed" } else { "inProgress" };
    Some(match item {
        Item::AgentMessage { .. } | Item::Other => return None,
        Item::CommandExecution { id, command, cwd, status, aggregated_output, exit_code } => {
            let command = inner(&command);
            let mut output = aggregated_output.unwrap_or_default();
            if let Some(code) = exit_code.filter(|code| *code != 0) {
                let space = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
                output.push_str(&format!("{space}exit code {code}"));
            }
            let input = json!({ "command": command, "cwd": cwd });
            if output.is_empty() && status == "declined" {
                "the permission was refused".clone_into(&mut output);
            }
            let call = call(id, "shell", "execute", command, input, &status);
            ToolCall { content: has_ended.then(|| vec![text(output)]), ..call }
        }
        Item::FileChange { id, changes, status } => {
            let title = changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>().join(", ");
            let files: Vec<&str> = changes.iter().map(|change| change.path.as_str()).collect();
            let call = call(id, "apply_patch", "edit", format!("Edit {title}"), json!({ "files": files }), &status);
            let locations = files.iter().map(|path| Location { path: (*path).to_owned(), line: None }).collect();
            ToolCall { locations: Some(locations), content: Some(changes.iter().map(diff).collect()), ..call }
        }
        Item::McpToolCall { id, server, tool, status, arguments, result, error } => {
            let mut call = call(id, &tool, "other", format!("{server}: {tool}"), arguments, &status);
            let texts = result.into_iter().flat_map(|result| result.content).map(|part| {
                let said = part.get("text").and_then(Value::as_str).map(ToOwned::to_owned);
                text(said.unwrap_or_else(|| part.to_string()))
            });
            let content: Vec<ToolContent> = texts.chain(error.map(|error| text(error.message))).collect();
            call.content = has_ended.then_some(content);
            call
        }
        Item::DynamicToolCall { id, tool, arguments, status } => call(id, &tool, "other", tool.clone(), arguments, &status),
        Item::CollabAgentToolCall { id, tool, status, prompt } => {
            call(id, &tool, "think", tool.clone(), json!({ "prompt": prompt }), &status)
        }
        Item::WebSearch { id, query } => {
            call(id, "web_search", "fetch", format!("Search: {query}"), json!({ "query": query }), by_end)
        }
        Item::ImageView { id, path } => {
            let call = call(id, "view_image", "read", format!("View {path}"), json!({ "path": path }), by_end);
            ToolCall { locations: Some(vec![Location { path, line: None }]), ..call }
        }
    })
}

fn call(id: String, name: &str, kind: &str, title: String, input: Value, status: &str) -> ToolCall {
    let status = match status {
        "completed" => "completed",
        "failed" | "declined" => "failed",
        _ => "in_progress",
    };
    ToolCall {
        tool_call_id: id,
        title: Some(title),
        name: Some(name.to_owned()),
        kind: Some(kind.to_owned()),
        status: Some(status.to_owned()),
        raw_input: Some(input),
        ..ToolCall::default()
    }
}

fn text(text: String) -> ToolContent {
    ToolContent::Content { content: Content::Text { text } }
}

fn diff(change: &Change) -> ToolContent {
    let path = change.path.clone();
    match change.kind {
        ChangeKind::Add => ToolContent::Diff { path, old_text: None, new_text: change.diff.clone() },
        ChangeKind::Delete => ToolContent::Diff { path, old_text: Some(change.diff.clone()), new_text: String::new() },
        ChangeKind::Update => {
            let (mut old, mut new) = (String::new(), String::new());
            let lines = change.diff.lines().filter(|line| !line.starts_with("--- ") && !line.starts_with("+++ "));
            for line in lines.filter(|line| !line.starts_with("@@") && !line.starts_with('\\')) {
                let (sign, rest) = line.split_at_checked(1).unwrap_or((" ", ""));
                if sign != "+" {
                    old.push_str(rest);
                    old.push('\n');
                }
                if sign != "-" {
                    new.push_str(rest);
                    new.push('\n');
                }
            }
            ToolContent::Diff { path, old_text: Some(old), new_text: new }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_a_change_of_texts() {
        let item = json!({
            "type": "fileChange", "id": "1", "status": "completed",
            "changes": [
                { "path": "/w/a", "kind": { "type": "update", "move_path": null }, "diff": "@@ -1,2 +1,2 @@\n one\n-two\n+three\n" },
                { "path": "/w/b", "kind": { "type": "add" }, "diff": "new\n" },
            ],
        });
        let call = tool_call(serde_json::from_value(item).unwrap(), true).unwrap();
        let content = call.content.unwrap();
        let ToolContent::Diff { old_text, new_text, .. } = &content[0] else { panic!("{content:?}") };
        assert_eq!((old_text.as_deref(), new_text.as_str()), (Some("one\ntwo\n"), "one\nthree\n"));
        let ToolContent::Diff { old_text, new_text, .. } = &content[1] else { panic!("{content:?}") };
        assert_eq!((old_text.as_deref(), new_text.as_str()), (None, "new\n"));
        assert_eq!(call.status.as_deref(), Some("completed"));
    }

    #[test]
    fn a_command_that_failed_says_its_code() {
        let item = json!({ "type": "commandExecution", "id": "1", "command": "bash -lc false", "cwd": "/w", "status": "failed", "exitCode": 1 });
        let call = tool_call(serde_json::from_value(item).unwrap(), true).unwrap();
        assert_eq!((call.status.as_deref(), call.title.as_deref()), (Some("failed"), Some("false")));
        let [ToolContent::Content { content: Content::Text { text } }] = &call.content.unwrap()[..] else { panic!() };
        assert_eq!(text, "exit code 1");
    }
}
