//! An answer as it streams: its text, and what the model and the tools did for it.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use anyhow::ensure;
use serde_json::Value;

use super::show::{WIDTH, fitting, plain, printable};
use crate::http::StreamEvent;

/// The name of `local-agent`'s own search.
const SEARCH: &str = "search_knowledge";
/// With what the names of the tools of the MCP server begin.
const SERVER: &str = "project__";

/// The text of an answer, printed as it streams, with a line for each call of a model or a tool.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    deltas: usize,
    /// Tool calls that have begun: their parameters, and when.
    started: HashMap<String, (String, u64)>,
    /// The answers of tools: name and text.
    tools: Vec<(String, String)>,
    /// Lines that wait for the end of the message that is being printed.
    waiting: Vec<String>,
    /// True while a message is being printed.
    within_message: bool,
    /// The event that ended it, where one has.
    end: Option<String>,
}

impl Answer {
    /// Takes the next event of the stream, and prints what is to be seen of it.
    pub(crate) fn add(&mut self, event: &StreamEvent) -> anyhow::Result<()> {
        let text = self.rendered(event)?;
        print!("{text}");
        Ok(io::stdout().flush()?)
    }

    /// The text to print for the next event.
    fn rendered(&mut self, event: &StreamEvent) -> anyhow::Result<String> {
        let event_data: Value = serde_json::from_str(&event.data)?;
        let data = event_data.get("data").unwrap_or(&Value::Null);
        let at = event_data.get("timestamp").and_then(Value::as_u64).unwrap_or_default();
        let field = |name: &str| data.get(name).map(plain).unwrap_or_default();
        match event.event.as_str() {
            "message.delta" => {
                self.deltas += 1;
                self.within_message = true;
                let text = data.pointer("/chunk/content").and_then(Value::as_str);
                return Ok(printable(text.unwrap_or_default()));
            }
            "message.completed" => return Ok(self.end_of_message()),
            "tool.call.started" => {
                self.started.insert(field("tool_call_id"), (field("parameters"), at));
            }
            "tool.call.completed" => {
                let line = self.tool(data, at, &field("tool_call_id"), &field("tool_name"));
                self.waiting.push(line);
            }
            "model.call.completed" => self.waiting.push(model(data)),
            "run.completed" | "run.failed" => {
                self.end = Some(event.event.clone());
                return Ok(self.end_of_message());
            }
            "problem" => anyhow::bail!("the host could not go on: {}", event.data),
            _ => {}
        }
        // A model is done before the last of its words are here; a line of it would stand among them.
        Ok(if self.within_message { String::new() } else { self.end_of_message() })
    }

    fn end_of_message(&mut self) -> String {
        let mut text = String::new();
        if std::mem::take(&mut self.within_message) {
            text.push('\n');
        }
        for line in self.waiting.drain(..) {
            text.push_str("   · ");
            text.push_str(&fitting(&line, WIDTH));
            text.push('\n');
        }
        text
    }

    /// A tool has ended: what it was, how long it took, and the beginning of what it said.
    fn tool(&mut self, data: &Value, at: u64, id: &str, name: &str) -> String {
        let (parameters, began) = self.started.remove(id).unwrap_or_default();
        // The host measures its own tools; those of the runner are as long as it says.
        let took = data.get("duration_ms").and_then(Value::as_u64).unwrap_or_else(|| at.saturating_sub(began));
        let outcome = match (data.get("error"), data.get("result")) {
            (None, Some(result)) => {
                let text = text_of(result);
                let copied = text.clone();
                self.tools.push((name.to_owned(), text));
                copied
            }
            (error, _) => format!("failed: {}", error.map(plain).unwrap_or_default()),
        };
        format!("tool {name} {}, {took} ms: {outcome}", fitting(&parameters, WIDTH / 2))
    }

    /// Says how it ended.
    pub(crate) fn finish(&self) {
        let end = self.end.as_deref().unwrap_or("no terminal event: the stream broke off");
        println!("\n── {} deltas, then {end}", self.deltas);
    }

    /// Fails unless the demo showed its point: a tool of the server answered, and the search found passages.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(self.tools.iter().any(|(name, _)| name.starts_with(SERVER)), "no tool of the MCP server answered");
        let found = |(name, text): &(String, String)| name == SEARCH && text.starts_with('[');
        ensure!(self.tools.iter().any(found), "the search in the knowledge base found nothing");
        Ok(())
    }
}

/// A model has answered: which, how long it took, why it ended, and its tokens.
fn model(data: &Value) -> String {
    let field = |name: &str| data.get(name).map(plain).unwrap_or_default();
    let count = |name: &str| data.pointer(&format!("/usage/{name}")).and_then(Value::as_u64);
    let usage = match (count("input"), count("output")) {
        (Some(input), Some(output)) => format!("{input} tokens in, {output} out"),
        _ => "tokens unknown".to_owned(),
    };
    let end = match data.pointer("/error/message") {
        Some(error) => format!("failed: {}", plain(error)),
        None => format!("{}, {usage}", field("finish_reason")),
    };
    format!("model {} {}, {} ms: {end}", field("model_id"), field("operation"), field("duration_ms"))
}

/// The text of a result: itself, or that of its parts.
fn text_of(result: &Value) -> String {
    match result {
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n"),
        other => plain(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tell(answer: &mut Answer, kind: &str, timestamp: u64, data: &Value) -> String {
        let data = json!({ "timestamp": timestamp, "data": data }).to_string();
        answer.rendered(&StreamEvent { event: kind.into(), data }).unwrap()
    }

    /// An answer in which one search and one tool ended like this.
    fn answer(search: &Value, tool: &Value) -> Answer {
        let mut answer = Answer::default();
        for (id, name, outcome) in [("a", SEARCH, search), ("b", "project__x", tool)] {
            let mut data = json!({ "tool_call_id": id, "tool_name": name });
            tell(&mut answer, "tool.call.started", 5, &data);
            data.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
            tell(&mut answer, "tool.call.completed", 8, &data);
        }
        answer
    }

    #[test]
    fn a_message_is_not_interrupted() {
        let mut answer = Answer::default();
        let delta = |text: &str| json!({ "chunk": { "content": text } });
        let done =
            json!({ "model_id": "chat", "operation": "stream", "duration_ms": 7, "finish_reason": "stop", "usage": "unknown" });
        let lines = [
            tell(&mut answer, "message.delta", 1, &delta("one ")),
            tell(&mut answer, "model.call.completed", 2, &done),
            tell(&mut answer, "message.delta", 3, &delta("two\u{1b}")),
            tell(&mut answer, "message.completed", 4, &json!({})),
            tell(&mut answer, "run.completed", 5, &json!({})),
        ];
        assert_eq!(lines.concat(), "one two\u{fffd}\n   · model chat stream, 7 ms: stop, tokens unknown\n");
        assert_eq!((answer.deltas, answer.end.as_deref()), (2, Some("run.completed")));
    }

    #[test]
    fn calls_are_told_with_their_time() {
        let usage = json!({ "model_id": "m", "operation": "invoke", "duration_ms": 1, "finish_reason": "stop",
            "usage": { "input": 3, "output": 4 } });
        assert_eq!(model(&usage), "model m invoke, 1 ms: stop, 3 tokens in, 4 out");
        let failed = json!({ "model_id": "m", "operation": "stream", "duration_ms": 1, "error": { "message": "no" } });
        assert_eq!(model(&failed), "model m stream, 1 ms: failed: no");
        let mut answer = Answer::default();
        tell(&mut answer, "tool.call.started", 5, &json!({ "tool_call_id": "a", "parameters": { "p": 1 } }));
        let done = json!({ "tool_call_id": "a", "tool_name": "t", "result": "yes" });
        assert_eq!(tell(&mut answer, "tool.call.completed", 8, &done), "   · tool t {\"p\":1}, 3 ms: yes\n");
        let failed = json!({ "tool_call_id": "b", "tool_name": "t", "error": "no", "duration_ms": 9 });
        assert_eq!(tell(&mut answer, "tool.call.completed", 8, &failed), "   · tool t , 9 ms: failed: no\n");
    }

    #[test]
    fn a_demo_without_tools_or_passages_has_failed() {
        let (found, outcome) = (json!({ "result": "[1] README:\nText" }), json!({ "result": [{ "type": "text", "text": "3" }] }));
        answer(&found, &outcome).check().unwrap();
        let problem = |search: &Value, tool: &Value| answer(search, tool).check().unwrap_err().to_string();
        assert!(problem(&json!({ "result": "Nothing was found." }), &outcome).contains("found nothing"));
        assert!(problem(&json!({ "error": "[damaged]" }), &outcome).contains("found nothing"));
        assert!(problem(&found, &json!({ "error": "down" })).contains("no tool"));
        assert!(Answer::default().check().is_err());
    }
}
