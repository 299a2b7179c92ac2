//! How a child ended, read from its events.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::RunEvents;
use crate::Failure;
use crate::error::ApiError;
use crate::json::from_str;

/// How a child ended. Everything but [`Completed`](Self::Completed) says in its `Display` why there is no answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChildEnd {
    /// It ended well.
    Completed(ChildAnswer),
    /// It failed, was cancelled (code `cancelled`) or ran out of time (`deadline_exceeded`).
    Failed(Failure),
    /// It had not ended when there was no more time to wait.
    Unfinished,
    /// The host would not start it, or not say how it ended.
    Refused(ApiError),
}

/// What a child said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildAnswer {
    /// `stop`, `length`, `handoff`, ...
    pub finish_reason: String,
    /// The text of each message of the assistant, in order. A long text is several messages.
    pub messages: Vec<String>,
}

impl ChildAnswer {
    /// The text of the final message; empty where it said nothing.
    #[must_use]
    pub fn text(&self) -> &str {
        self.messages.last().map(String::as_str).unwrap_or_default()
    }
}

impl ChildEnd {
    /// The text of the final message of a child that ended well.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Completed(answer) => Some(answer.text()),
            Self::Failed(_) | Self::Unfinished | Self::Refused(_) => None,
        }
    }

    /// Whether it ended well.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed(_))
    }

    /// Reads on until the end.
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

/// The data of the last event: of `run.completed`, whose message is an object, or of `run.failed`, whose message is a text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct End {
    finish_reason: String,
    code: String,
    message: Value,
    retryable: bool,
}

/// The text of the member `message`, where the assistant says it: a message has a text, or a list of parts.
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
