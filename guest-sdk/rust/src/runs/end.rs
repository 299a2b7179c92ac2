//! End of a child run, read from its events.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::RunEvents;
use crate::Failure;
use crate::error::ApiError;
use crate::json::from_str;

/// End of a child run. `Display` of every variant but [`Completed`](Self::Completed) gives the reason for the missing
/// answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChildEnd {
    /// The child completed.
    Completed(ChildAnswer),
    /// The child failed, was cancelled (code `cancelled`) or exceeded its deadline (`deadline_exceeded`).
    Failed(Failure),
    /// The child had not ended before the timeout.
    Unfinished,
    /// The host refused to start the child, or to return its events.
    Refused(ApiError),
}

/// Answer of a child.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildAnswer {
    /// Finish reason: `stop`, `length`, `handoff`, ...
    pub finish_reason: String,
    /// Text of each message of the assistant, in order. A long text is several messages.
    pub messages: Vec<String>,
}

impl ChildAnswer {
    /// Returns the text of the final message; empty if the child emitted none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.messages.last().map(String::as_str).unwrap_or_default()
    }
}

impl ChildEnd {
    /// Returns the text of the final message of a completed child.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Completed(answer) => Some(answer.text()),
            Self::Failed(_) | Self::Unfinished | Self::Refused(_) => None,
        }
    }

    /// Returns true if the child completed.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed(_))
    }

    /// Reads events until the end of the run.
    pub(super) fn read(events: RunEvents) -> Result<Self, ApiError> {
        let mut messages = Vec::new();
        for event in events {
            let event = event?;
            match event.type_.as_str() {
                "message.completed" => messages.extend(message_text(&event.data)),
                "run.completed" => {
                    messages.extend(message_text(&event.data));
                    let end: End = from_str(&event.data).unwrap_or_default();
                    return Ok(Self::Completed(ChildAnswer { finish_reason: end.finish_reason, messages }));
                }
                "run.failed" => {
                    let end: End = from_str(&event.data).unwrap_or_default();
                    let failure = Failure::new(end.code, end.message.as_str().unwrap_or_default());
                    return Ok(Self::Failed(if end.retryable { failure.retryable() } else { failure }));
                }
                _ => {}
            }
        }
        Ok(Self::Unfinished)
    }
}

impl fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(answer) => f.write_str(answer.text()),
            Self::Failed(failure) => write!(f, "{}: {}", failure.code, failure.message),
            Self::Unfinished => f.write_str("it did not end in time"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

/// Data of the last event: of `run.completed`, with an object as message, or of `run.failed`, with a text as message.
#[derive(Default, Deserialize)]
#[serde(default)]
struct End {
    finish_reason: String,
    code: String,
    message: Value,
    retryable: bool,
}

/// Returns the text of the member `message` of an assistant: the content is a text, or a list of parts.
fn message_text(data: &str) -> Option<String> {
    let data: Value = from_str(data).ok()?;
    let message = data.get("message")?;
    if message.get("role").and_then(Value::as_str).is_some_and(|role| role != "assistant") {
        return None;
    }
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()),
        _ => None,
    }
}
