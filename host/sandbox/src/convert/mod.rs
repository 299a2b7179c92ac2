//! From the contract to the protocol and back. Shapes only: no rule is judged here.

use agent_host_protocol as p;
use p::{ApiError, ErrorCode, encoded::json_string};
use serde_json::{Map, Value};

use crate::bindings::{history as wh, manifest as wm, types as wt};

/// Maps enums of the contract to those of the protocol, variant by variant.
macro_rules! same {
    ($to:ident, $from:ident, $wit:ty, $protocol:ty, { $($variant:ident $(= $other:ident)?),* $(,)? }) => {
        pub(crate) fn $to(value: $wit) -> $protocol {
            match value { $(<$wit>::$variant => same!(@p $protocol, $variant $(, $other)?)),* }
        }
        #[allow(dead_code, reason = "not every enum travels both ways")]
        pub(crate) fn $from(value: $protocol) -> $wit {
            match value { $(same!(@q $protocol, $variant $(, $other)?) => <$wit>::$variant),* }
        }
    };
    (@p $protocol:ty, $variant:ident) => { <$protocol>::$variant };
    (@p $protocol:ty, $variant:ident, $other:ident) => { <$protocol>::$other };
    (@q $protocol:ty, $variant:ident) => { <$protocol>::$variant };
    (@q $protocol:ty, $variant:ident, $other:ident) => { <$protocol>::$other };
}

mod ask;
mod child;
mod context;
mod history;
mod http;
mod manifest;
mod result;
mod service;

pub(crate) use ask::{action_outcome_out, answer_out, question_kind};
pub(crate) use child::{run_event_page_out, run_summary_out, steering_out};
pub(crate) use context::{context_out, event_out, input, input_bytes};
pub(crate) use history::{event_page_out, page_out, transcript_item_out};
pub(crate) use http::http_request;
pub(crate) use manifest::manifest;
pub(crate) use result::{completion, failure, result, result_bytes};
pub(crate) use service::{
    chunk_out, hit_out, knowledge_base_out, message_bytes, messages, request, request_bytes, rerank_out, response_out,
    tool_detail_out, tool_output_out,
};

same!(role, role_out, wt::Role, p::message::Role, { System, Developer, User, Assistant, Tool });
same!(scope, scope_out, wm::StateScope, p::manifest::StateScope, { Conversation, Actor, Subject, Runner, Binding });
same!(model_op, model_op_out, wm::ModelOperation, p::manifest::ModelOperation, { Invoke, Stream, Rerank, Embed, CountTokens });
same!(tool_op, tool_op_out, wm::ToolOperation, p::manifest::ToolOperation, { Detail, Call });
same!(kb_op, kb_op_out, wm::KnowledgeOperation, p::manifest::KnowledgeOperation, { List, Retrieve });
same!(history_op, history_op_out, wm::HistoryOperation, p::manifest::HistoryOperation, { Page, Search });
same!(event_op, event_op_out, wm::EventOperation, p::manifest::EventOperation, { Get, Page });
same!(artifact_op, artifact_op_out, wm::ArtifactOperation, p::manifest::ArtifactOperation, { Metadata, Read, Create });
same!(area, area_out, wm::StorageArea, p::manifest::StorageArea, { Plugin, Workspace, Binding });
same!(run_op, run_op_out, wm::RunOperation, p::manifest::RunOperation, { Start, Get, List, Events, Cancel });
same!(ownership, ownership_out, wm::ContextOwnership, p::manifest::ContextOwnership, { SelfManaged, HostBootstrap, Hybrid });
same!(bootstrap_mode, bootstrap_mode_out, wm::BootstrapMode, p::manifest::BootstrapMode, { None, CurrentEvent, RecentTail, SummaryTail });
same!(direction, direction_out, wh::Direction, p::page::Direction, { Backward, Forward });

// ---- JSON ----

/// Parses JSON of a guest.
///
/// # Errors
/// `invalid_argument` where it is not JSON, or nests too deep.
pub fn json(what: &str, text: &str) -> Result<Value, ApiError> {
    let value = serde_json::from_str(text).map_err(|error| ApiError::invalid_argument(format!("{what} is not JSON: {error}")))?;
    if p::limits::is_shallow(&value) {
        Ok(value)
    } else {
        Err(ApiError::invalid_argument(format!("{what} nests deeper than {} levels", p::limits::MAX_JSON_DEPTH)))
    }
}

fn json_option(what: &str, text: Option<String>) -> Result<Option<Value>, ApiError> {
    text.map(|text| json(what, &text)).transpose()
}

fn object(map: &Map<String, Value>) -> String {
    if map.is_empty() { "{}".to_owned() } else { json_string(map).unwrap_or_else(|_| "{}".to_owned()) }
}

// ---- errors ----

pub(crate) fn error_out(error: ApiError) -> wt::ApiError {
    let code = match error.code {
        ErrorCode::Unauthorized => wt::ErrorCode::Unauthorized,
        ErrorCode::NotFound => wt::ErrorCode::NotFound,
        ErrorCode::DeadlineExceeded => wt::ErrorCode::DeadlineExceeded,
        ErrorCode::PayloadTooLarge => wt::ErrorCode::PayloadTooLarge,
        ErrorCode::RateLimited => wt::ErrorCode::RateLimited,
        ErrorCode::InvalidArgument => wt::ErrorCode::InvalidArgument,
        ErrorCode::Conflict => wt::ErrorCode::Conflict,
        ErrorCode::Cancelled => wt::ErrorCode::Cancelled,
        ErrorCode::RuntimeError => wt::ErrorCode::RuntimeError,
        other => wt::ErrorCode::Other(other.as_str().to_owned()),
    };
    wt::ApiError {
        code,
        message: error.message,
        retryable: error.retryable,
        details: error.details.map(|details| details.to_string()),
    }
}

// ---- messages ----

fn artifact(artifact: wt::ArtifactRef) -> p::message::ArtifactRef {
    let wt::ArtifactRef { artifact_id, media_type, name, size, sha256 } = artifact;
    p::message::ArtifactRef { artifact_id, media_type, name, size, sha256 }
}

pub(crate) fn artifact_out(artifact: p::message::ArtifactRef) -> wt::ArtifactRef {
    let p::message::ArtifactRef { artifact_id, media_type, name, size, sha256 } = artifact;
    wt::ArtifactRef { artifact_id, media_type, name, size, sha256 }
}

pub(crate) fn artifact_metadata_out(metadata: p::artifact::ArtifactMetadata) -> crate::bindings::artifacts::ArtifactMetadata {
    crate::bindings::artifacts::ArtifactMetadata {
        artifact: artifact_out(metadata.artifact),
        created_at: metadata.created_at,
        expires_at: metadata.expires_at,
    }
}

fn part(part: wt::ContentPart) -> Result<p::message::ContentPart, ApiError> {
    Ok(match part {
        wt::ContentPart::Text(text) => p::message::ContentPart::Text(text),
        wt::ContentPart::Artifact(a) => p::message::ContentPart::Artifact(artifact(a)),
        wt::ContentPart::Other(text) => {
            let value = json("a content part", &text)?;
            if !value.get("type").is_some_and(Value::is_string) {
                return Err(ApiError::invalid_argument("a content part of another kind is a JSON object with a string `type`"));
            }
            p::message::ContentPart::Other(value)
        }
    })
}

fn part_out(part: p::message::ContentPart) -> wt::ContentPart {
    match part {
        p::message::ContentPart::Text(text) => wt::ContentPart::Text(text),
        p::message::ContentPart::Artifact(a) => wt::ContentPart::Artifact(artifact_out(a)),
        p::message::ContentPart::Other(value) => wt::ContentPart::Other(value.to_string()),
    }
}

fn parts(all: Vec<wt::ContentPart>) -> Result<Vec<p::message::ContentPart>, ApiError> {
    all.into_iter().map(part).collect()
}

fn message(message: wt::Message) -> Result<p::message::Message, ApiError> {
    Ok(p::message::Message {
        role: role(message.role),
        content: parts(message.content)?,
        name: message.name,
        tool_calls: message
            .tool_calls
            .into_iter()
            .map(|call| {
                Ok(p::message::ToolCall {
                    parameters: json("the parameters of a tool call", &call.parameters)?,
                    call_id: call.call_id,
                    tool_name: call.tool_name,
                })
            })
            .collect::<Result<_, ApiError>>()?,
        tool_call_id: message.tool_call_id,
    })
}

fn message_out(message: p::message::Message) -> wt::Message {
    wt::Message {
        role: role_out(message.role),
        content: message.content.into_iter().map(part_out).collect(),
        name: message.name,
        tool_calls: message
            .tool_calls
            .into_iter()
            .map(|call| wt::ToolCall {
                parameters: call.parameters.to_string(),
                call_id: call.call_id,
                tool_name: call.tool_name,
            })
            .collect(),
        tool_call_id: message.tool_call_id,
    }
}

fn localized(text: wt::LocalizedText) -> p::message::LocalizedText {
    p::message::LocalizedText::from_pairs(text)
}
