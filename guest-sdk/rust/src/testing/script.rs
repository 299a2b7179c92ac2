//! Scripted answers of models and tools.

use serde_json::Value;

use crate::contract::{Chunk, ContentPart, Hit, Message, Response, TokenUsage, ToolCall, ToolOutput};
use crate::error::ApiError;

/// Scripted answer of a model. A text is an answer: `"hello".into()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub(super) chunks: Vec<Chunk>,
    pub(super) end: Result<Response, ApiError>,
}

impl Reply {
    /// Creates an answer with a text. In a stream, each word is a chunk.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let chunks = text.split_inclusive(' ').map(|word| Chunk::Text(word.to_owned())).collect();
        let response = Response { message: Message::assistant(text), finish_reason: "stop".to_owned(), usage: None };
        Self { chunks, end: Ok(response) }
    }

    /// Creates an answer that calls tools by name, with the ids `call-1`, `call-2` and so on.
    #[must_use]
    pub fn calls<'c>(calls: impl IntoIterator<Item = (&'c str, Value)>) -> Self {
        Self::raw_calls(calls.into_iter().map(|(name, parameters)| (name, parameters.to_string())))
    }

    /// Like [`Reply::calls`], with parameters that need not be JSON.
    #[must_use]
    pub fn raw_calls<'c>(calls: impl IntoIterator<Item = (&'c str, String)>) -> Self {
        let tool_calls = calls.into_iter().zip(1..).map(|((name, parameters), number)| ToolCall {
            call_id: format!("call-{number}"),
            tool_name: name.to_owned(),
            parameters,
        });
        let message = Message { content: Vec::new(), tool_calls: tool_calls.collect(), ..Message::assistant("") };
        Self { chunks: Vec::new(), end: Ok(Response { message, finish_reason: "tool-calls".to_owned(), usage: None }) }
    }

    /// Adds reasoning before the answer.
    #[must_use]
    pub fn reasoning(mut self, text: &str) -> Self {
        self.chunks.insert(0, Chunk::Reasoning(text.to_owned()));
        self
    }

    /// Sets another finish reason than `stop` or `tool-calls`.
    #[must_use]
    pub fn finish_reason(mut self, reason: &str) -> Self {
        if let Ok(response) = &mut self.end {
            reason.clone_into(&mut response.finish_reason);
        }
        self
    }

    /// Sets the numbers of input and output tokens.
    #[must_use]
    pub fn usage(mut self, input: u64, output: u64) -> Self {
        if let Ok(response) = &mut self.end {
            response.usage = Some(TokenUsage { input, output, cached_input: None, reasoning: None });
        }
        self
    }

    /// Adds an error after the chunks: a stream that breaks. Without a stream, only the error is returned.
    #[must_use]
    pub fn then_fails(mut self, error: ApiError) -> Self {
        self.end = Err(error);
        self
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self::text(&text)
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Self {
        Self { chunks: Vec::new(), end: Err(error) }
    }
}

/// Scripted answer of a tool. A text or a JSON value is an output; an [`ApiError`] is a call that could not be made.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReply(pub(super) Result<ToolOutput, ApiError>);

impl ToolReply {
    /// Creates an output of a tool that ran and failed.
    #[must_use]
    pub fn failed(text: &str) -> Self {
        Self(Ok(ToolOutput { content: vec![ContentPart::Text(text.to_owned())], structured: None, is_error: true }))
    }
}

impl From<&str> for ToolReply {
    fn from(text: &str) -> Self {
        Self(Ok(ToolOutput { content: vec![ContentPart::Text(text.to_owned())], structured: None, is_error: false }))
    }
}

impl From<String> for ToolReply {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Value> for ToolReply {
    fn from(value: Value) -> Self {
        let text = value.to_string();
        Self(Ok(ToolOutput { content: vec![ContentPart::Text(text.clone())], structured: Some(text), is_error: false }))
    }
}

impl From<ToolOutput> for ToolReply {
    fn from(output: ToolOutput) -> Self {
        Self(Ok(output))
    }
}

impl From<ApiError> for ToolReply {
    fn from(error: ApiError) -> Self {
        Self(Err(error))
    }
}

/// Passage from the id of its document and its text.
impl From<(&str, &str)> for Hit {
    fn from((document_id, text): (&str, &str)) -> Self {
        Self { document_id: document_id.to_owned(), text: text.to_owned(), score: 0.0, source: None, metadata: "{}".to_owned() }
    }
}
