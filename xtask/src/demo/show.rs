//! The output of the demo.

use std::path::Path;

use serde_json::Value;

use crate::{http::Client, workspace::Workspace};

/// Width of the table of events.
pub(super) const WIDTH: usize = 100;
/// The user knows what they said: a few lines are enough to see that it is that.
const EXCERPT_LINES: usize = 4;

pub(crate) fn title(text: &str) {
    println!("\n── {text}");
}

/// The beginning of a text.
pub(crate) fn excerpt(text: &str) {
    let lines: Vec<_> = text.lines().collect();
    for line in lines.iter().take(EXCERPT_LINES) {
        println!("{}", fitting(line, WIDTH));
    }
    if let more @ 1.. = lines.len().saturating_sub(EXCERPT_LINES) {
        println!("… and {more} lines more");
    }
}

/// The record of a run, field by field.
pub(crate) fn run(run: &Value) {
    for (name, value) in run.as_object().into_iter().flatten() {
        println!("{name:<16} {}", fitting(&plain(value), WIDTH));
    }
}

/// The events of a run as a table: deltas that follow each other are one line.
pub(crate) fn events(client: &Client, id: &str) -> anyhow::Result<()> {
    let mut table = Table::default();
    let mut after = String::new();
    loop {
        let page = client.get(&format!("/api/v1/runs/{id}/events?limit=100{after}"))?;
        for event in page.pointer("/items").and_then(Value::as_array).into_iter().flatten() {
            table.add(event);
        }
        match (page.pointer("/has_more"), page.pointer("/next_cursor").and_then(Value::as_str)) {
            (Some(Value::Bool(true)), Some(cursor)) => after = format!("&after={cursor}"),
            _ => break,
        }
    }
    for line in table.lines() {
        println!("{line}");
    }
    Ok(())
}

/// Rows of consecutive events of one kind.
#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    first: u64,
    last: u64,
    timestamp: u64,
    kind: String,
    data: String,
}

impl Table {
    fn add(&mut self, event: &Value) {
        let number = |name| event.get(name).and_then(Value::as_u64).unwrap_or_default();
        let kind = event.get("type").map(plain).unwrap_or_default();
        let sequence = number("sequence");
        if let Some(row) = self.rows.last_mut().filter(|row| row.kind == kind && kind == "message.delta") {
            row.last = sequence;
            return;
        }
        let data = event.get("data").map(plain).unwrap_or_default();
        self.rows.push(Row { first: sequence, last: sequence, timestamp: number("timestamp"), kind, data });
    }

    fn lines(&self) -> Vec<String> {
        let start = self.rows.first().map_or(0, |row| row.timestamp);
        let line = |row: &Row| {
            let sequence = if row.first == row.last { row.first.to_string() } else { format!("{}…{}", row.first, row.last) };
            let more = row.last - row.first;
            let data = if more > 0 { format!("{} and {more} more", fitting(&row.data, WIDTH / 2)) } else { row.data.clone() };
            let line = format!("{sequence:>10}  {:>6}  {:<20} {data}", row.timestamp.saturating_sub(start), row.kind);
            fitting(&line, WIDTH)
        };
        let head = format!("{:>10}  {:>6}  {:<20} {}", "sequence", "ms", "type", "data");
        std::iter::once(head).chain(self.rows.iter().map(line)).collect()
    }
}

/// Commands for the next steps, to be copied.
pub(crate) fn how_to_go_on(workspace: &Workspace, binary: &Path, config: &Path) {
    let (binary, config) = (workspace.relative(binary).display(), workspace.relative(config).display());
    let root = workspace.root();
    let (guide, models) = (root.join("guest-sdk/README.md"), root.join("docs/MODELS.md"));
    println!(
        "Serve it:              {binary} serve --config {config} --listen 7070
Send an event:         curl -H 'Content-Type: application/json' -H 'Prefer: wait=10' \\
                         -d '{{\"event_type\":\"message.received\",\"input\":{{\"text\":\"hello\"}}}}' \\
                         http://127.0.0.1:7070/api/v1/events
Run without a server:  {binary} run echo 'hello there' --config {config}
Look at what happened: {binary} runs list --config {config}
Search the documents:  {binary} knowledge search docs 'lost results' --config {config}
Write a runner:        {}
Use a real model:      in {config}, instead of the entry of `[[models]]` ({}):

    [[models]]
    id = \"gpt-4o-mini\"
    provider = \"openai\"
    api_key = {{ env = \"OPENAI_API_KEY\" }}",
        workspace.relative(&guide).display(),
        workspace.relative(&models).display()
    );
}

/// A value without quotes where it is a text.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// At most `width` characters of a text on one line, without control characters.
pub(super) fn fitting(text: &str, width: usize) -> String {
    let text = printable(text).replace(['\n', '\t'], " ");
    match text.char_indices().nth(width) {
        None => text,
        Some(_) => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// Text of others, with control characters shown instead of obeyed.
pub(super) fn printable(text: &str) -> String {
    let printable = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deltas_in_a_row_are_one_line() {
        let mut table = Table::default();
        for (sequence, kind) in
            [(1, "message.delta"), (2, "message.delta"), (3, "state.updated"), (4, "message.delta"), (5, "run.completed")]
        {
            table.add(&json!({ "sequence": sequence, "timestamp": 1000 + sequence, "type": kind, "data": { "n": sequence } }));
        }
        assert_eq!(
            table.lines(),
            [
                "  sequence      ms  type                 data",
                "       1…2       0  message.delta        {\"n\":1} and 1 more",
                "         3       2  state.updated        {\"n\":3}",
                "         4       3  message.delta        {\"n\":4}",
                "         5       4  run.completed        {\"n\":5}",
            ]
        );
    }

    #[test]
    fn the_terminal_is_not_obeyed() {
        assert_eq!(fitting("a\u{1b}[2J\nb", 10), "a\u{fffd}[2J b");
        assert_eq!(fitting("abcdef", 5), "abcd…");
        assert_eq!(fitting("abcde", 5), "abcde");
    }
}
