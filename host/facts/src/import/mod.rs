//! Native events of other agent frameworks, as results of our record: a pure function of the events of one capture, in order.
//!
//! A [`Translator`] keeps what later events refer to: texts that are being said, open tool calls, open questions. Its state follows
//! from the events alone, so the same events in other portions give the same results, and the raw events give the state back.
//! What an event does not say stays unsaid; no fact is taken from the words of a text.
//!
//! - [`ai_sdk`], [`openai_agents`], [`langgraph`], [`mcp`]: one form each;
//! - [`lines`]: the events in a text;
//! - [`fit`]: results that are larger than an event may be;
//! - [`sink`]: results of bounded size, and the texts that are open;
//! - [`native`]: members of a native event.

pub mod ai_sdk;
pub mod fit;
pub mod langgraph;
pub mod lines;
pub mod mcp;
mod native;
pub mod openai_agents;
mod sink;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use agent_host_protocol::RunResult;
pub use agent_host_protocol::import::Form;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

pub use self::lines::{MAX_EVENT_BYTES, NativeError, events};
use self::{ai_sdk::AiSdk, langgraph::LangGraph, mcp::Mcp, openai_agents::OpenAiAgents, sink::Sink};

/// The end of a run, as its native events say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum NativeEnd {
    /// Well.
    Completed {
        /// The reason that the framework gives, such as `stop`.
        #[serde(skip_serializing_if = "Option::is_none")]
        finish_reason: Option<String>,
    },
    /// With an error.
    Failed {
        /// The error.
        message: String,
    },
    /// Stopped by somebody.
    Cancelled {
        /// The reason, where there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// Translates the events of one capture.
#[derive(Debug, Clone)]
pub struct Translator {
    form: Form,
    state: State,
    sink: Sink,
}

#[derive(Debug, Clone)]
enum State {
    AiSdk(AiSdk),
    OpenAiAgents(OpenAiAgents),
    LangGraph(LangGraph),
    Mcp(Mcp),
}

impl Translator {
    /// Of a capture of which nothing has been read yet.
    #[must_use]
    pub fn new(form: Form) -> Self {
        let state = match form {
            Form::AiSdk => State::AiSdk(AiSdk::default()),
            Form::OpenAiAgents => State::OpenAiAgents(OpenAiAgents::default()),
            Form::LangGraph => State::LangGraph(LangGraph::default()),
            Form::Mcp => State::Mcp(Mcp::default()),
        };
        Self { form, state, sink: Sink::new(form) }
    }

    /// The form of the events.
    #[must_use]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The results of the next event.
    pub fn push(&mut self, event: &Value) -> Vec<RunResult> {
        let Self { state, sink, .. } = self;
        match state {
            State::AiSdk(form) => form.push(sink, event),
            State::OpenAiAgents(form) => form.push(sink, event),
            State::LangGraph(form) => form.push(sink, event),
            State::Mcp(form) => form.push(sink, event),
        }
        sink.take()
    }

    /// The end that the events so far say; `None` where they say none.
    #[must_use]
    pub fn end(&self) -> Option<&NativeEnd> {
        self.sink.end.as_ref()
    }
}
