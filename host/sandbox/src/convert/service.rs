//! Models, tools and knowledge.

use agent_host_protocol as p;
use p::ApiError;
use serde_json::Value;

use super::{artifact_out, json, kb_op_out, message, message_out, part_out};
use crate::bindings::{context as wc, knowledge as wk, models as wm, tools as wl, types as wt};

pub(crate) fn part_bytes(part: &wt::ContentPart) -> usize {
    match part {
        wt::ContentPart::Text(text) | wt::ContentPart::Other(text) => text.len(),
        wt::ContentPart::Artifact(artifact) => artifact_bytes(artifact),
    }
}

pub(crate) fn artifact_bytes(artifact: &wt::ArtifactRef) -> usize {
    artifact.artifact_id.len() + artifact.media_type.len() + artifact.name.as_ref().map_or(0, String::len)
}

pub(crate) fn message_bytes(message: &wt::Message) -> usize {
    let calls: usize = message.tool_calls.iter().map(|c| c.call_id.len() + c.tool_name.len() + c.parameters.len()).sum();
    let names = message.name.as_ref().map_or(0, String::len) + message.tool_call_id.as_ref().map_or(0, String::len);
    calls + names + message.content.iter().map(part_bytes).sum::<usize>()
}

/// Bytes of text in a request, near enough to its size as JSON to bound it before it is parsed.
pub(crate) fn request_bytes(request: &wm::Request) -> usize {
    let tools: usize = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.as_ref().map_or(0, String::len) + tool.parameters.len())
        .sum();
    let extra = request.extra_args.as_ref().map_or(0, String::len);
    tools + extra + request.messages.iter().map(message_bytes).sum::<usize>()
}

pub(crate) fn messages(all: Vec<wt::Message>) -> Result<Vec<p::message::Message>, ApiError> {
    all.into_iter()
        .enumerate()
        .map(|(place, one)| {
            message(one).map_err(|error| ApiError { message: format!("message {place}: {}", error.message), ..error })
        })
        .collect()
}

pub(crate) fn request(request: wm::Request) -> Result<p::model::ModelRequest, ApiError> {
    let extra_args = match request.extra_args {
        None => serde_json::Map::new(),
        Some(text) => match json("`extra-args`", &text)? {
            Value::Object(map) => map,
            _ => return Err(ApiError::invalid_argument("`extra-args` is a JSON object, such as {\"temperature\":0}")),
        },
    };
    Ok(p::model::ModelRequest {
        messages: messages(request.messages)?,
        tools: request
            .tools
            .into_iter()
            .map(|tool| {
                let parameters = json(&format!("the schema of tool `{}`", tool.name), &tool.parameters)?;
                Ok(p::model::ToolDefinition { name: tool.name, description: tool.description, parameters })
            })
            .collect::<Result<_, ApiError>>()?,
        extra_args,
        session_key: None,
    })
}

fn usage_out(usage: &p::message::TokenUsage) -> wt::TokenUsage {
    let p::message::TokenUsage { input, output, cached_input, reasoning } = *usage;
    wt::TokenUsage { input, output, cached_input, reasoning }
}

pub(crate) fn response_out(response: p::model::ModelResponse) -> wm::Response {
    wm::Response {
        message: message_out(response.message),
        finish_reason: response.finish_reason,
        usage: response.usage.as_ref().map(usage_out),
    }
}

pub(crate) fn chunk_out(chunk: p::model::ModelChunk) -> wm::Chunk {
    match chunk {
        p::model::ModelChunk::Text(text) => wm::Chunk::Text(text),
        p::model::ModelChunk::Reasoning(text) => wm::Chunk::Reasoning(text),
        p::model::ModelChunk::Done(response) => wm::Chunk::Done(response_out(response)),
    }
}

pub(crate) fn rerank_out(hit: p::model::RerankHit) -> wm::RerankHit {
    wm::RerankHit { index: hit.index, score: hit.score }
}

pub(crate) fn tool_detail_out(detail: p::tool::ToolDetail) -> wl::ToolDetail {
    wl::ToolDetail {
        name: detail.name,
        description: detail.description,
        parameters: detail.parameters.to_string(),
        read_only: detail.read_only,
        idempotent: detail.idempotent,
        destructive: detail.destructive,
    }
}

pub(crate) fn tool_output_out(output: p::tool::ToolOutput) -> wl::ToolOutput {
    wl::ToolOutput {
        content: output.content.into_iter().map(part_out).collect(),
        structured: output.structured.map(|value| value.to_string()),
        is_error: output.is_error,
    }
}

pub(crate) fn knowledge_base_out(base: p::context::KnowledgeBaseResource) -> wc::KnowledgeBaseResource {
    wc::KnowledgeBaseResource {
        kb_id: base.kb_id,
        kb_name: base.kb_name,
        operations: base.operations.into_iter().map(kb_op_out).collect(),
    }
}

pub(crate) fn hit_out(hit: p::knowledge::KnowledgeHit) -> wk::Hit {
    wk::Hit {
        document_id: hit.document_id,
        text: hit.text,
        score: hit.score,
        source: hit.source.map(artifact_out),
        metadata: super::object(&hit.metadata),
    }
}
