//! The forms of conversations that providers take beside chat completions, and the pieces that their streams are made of.

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::{ApiError, message::TokenUsage, model::ModelRequest};
use bytes::Bytes;
use serde_json::Value;

use super::{
    chat,
    failure::Category,
    http::{EVENTS, Target},
    names::ToolNames,
};
use crate::ArtifactSource;

pub(super) mod converse;
pub(super) mod gemini;
mod messages;
mod request;
mod responses;

/// The form of the conversation with a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Chat completions of OpenAI, and of all that are compatible.
    Completions,
    /// Converse of Amazon Bedrock.
    Converse,
    /// `generateContent` of Gemini.
    Gemini,
    /// Messages of Anthropic.
    Messages,
    /// Responses of OpenAI.
    Responses,
}

impl Form {
    pub(super) const fn of(provider: ProviderKind) -> Self {
        match provider {
            ProviderKind::Anthropic => Self::Messages,
            ProviderKind::Bedrock => Self::Converse,
            ProviderKind::Gemini => Self::Gemini,
            ProviderKind::OpenaiResponses => Self::Responses,
            ProviderKind::Openai | ProviderKind::Cohere | ProviderKind::Jina | ProviderKind::Scripted => Self::Completions,
        }
    }

    /// The place of a request, and the answer that is asked for.
    pub(super) fn target(self, config: &ModelConfig) -> Target {
        match self {
            Self::Completions => Target::new(["chat", "completions"], EVENTS),
            Self::Converse => converse::target(config),
            Self::Gemini => gemini::target(config),
            Self::Messages => Target::new(["messages"], EVENTS),
            Self::Responses => Target::new(["responses"], EVENTS),
        }
    }

    /// The media type of a stream.
    pub(super) const fn stream_type(self) -> &'static str {
        match self {
            Self::Converse => converse::FRAMES,
            Self::Completions | Self::Gemini | Self::Messages | Self::Responses => EVENTS,
        }
    }

    /// The body of a request, and how its tools are named in it.
    pub(super) async fn body(
        self,
        config: &ModelConfig,
        request: &ModelRequest,
        artifacts: &dyn ArtifactSource,
    ) -> Result<(Bytes, ToolNames), ApiError> {
        match self {
            Self::Completions => chat::body(config, request, artifacts).await,
            Self::Converse => converse::body(config, request, artifacts).await,
            Self::Gemini => gemini::body(config, request, artifacts).await,
            Self::Messages => messages::body(config, request, artifacts).await,
            Self::Responses => responses::body(config, request, artifacts).await,
        }
    }

    /// The reader of a stream; `None` for chat completions, which are read piece by piece as they are.
    pub(super) fn reader(self) -> Option<PieceReader> {
        match self {
            Self::Completions => None,
            Self::Converse => Some(PieceReader::Converse),
            Self::Gemini => Some(PieceReader::Gemini(gemini::Reader::default())),
            Self::Messages => Some(PieceReader::Messages(messages::Reader::default())),
            Self::Responses => Some(PieceReader::Responses(responses::Reader::default())),
        }
    }
}

/// A piece of an answer.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Reasoning(String),
    /// Words with which the model refuses.
    Refusal(String),
    /// The beginning or a part of a call of a tool, by its index in the answer.
    Call {
        index: u64,
        id: String,
        name: String,
        arguments: String,
    },
    /// The signature of the thoughts behind the call with this index, which the provider wants back with it.
    Signature {
        index: u64,
        signature: String,
    },
    /// The reason why the model stopped, as chat completions name it.
    Finish(String),
    Usage(TokenUsage),
    /// The error in place of the rest.
    Failed(Value),
    /// The answer cannot be used, for this reason.
    Broken {
        category: Category,
        message: String,
    },
    /// The end: nothing follows.
    End,
}

/// Makes pieces of the events of a stream.
#[derive(Debug)]
pub(super) enum PieceReader {
    /// Events of Converse, which are read one by one.
    Converse,
    Gemini(gemini::Reader),
    Messages(messages::Reader),
    Responses(responses::Reader),
}

impl PieceReader {
    pub(super) fn event(&mut self, event: &Value) -> Vec<Piece> {
        match self {
            Self::Converse => converse::pieces(event),
            Self::Gemini(reader) => reader.event(event),
            Self::Messages(reader) => reader.event(event),
            Self::Responses(reader) => reader.event(event),
        }
    }
}

/// A text of an event; empty where there is none.
fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}
