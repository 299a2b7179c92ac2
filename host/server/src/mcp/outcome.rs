//! Answers and refusals of the host, as MCP says them.
//!
//! A request that cannot be carried to a tool is an error of the protocol: the tool, resource or prompt does not exist for this
//! caller, or the claim has ended. Everything that a call itself comes to is its result, with `isError` for a refusal, so that
//! the model reads it. Both have the code of the host.

use agent_host_protocol::{
    ApiError,
    message::{ArtifactRef, ContentPart},
    tool::ToolOutput,
};
use agent_host_runs::CallError;
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode as RpcCode, ErrorData, Resource};
use serde_json::{Map, Value, json};

/// The claim has ended, or the request was withdrawn: codes from -32000 on are those of a server (JSON-RPC 2.0).
const ENDED: RpcCode = RpcCode(-32000);

/// The scheme of the addresses of artifacts among the resources.
pub(super) const SCHEME: &str = "artifact://";

/// The address of an artifact among the resources.
pub(super) fn artifact_uri(artifact_id: &str) -> String {
    format!("{SCHEME}{artifact_id}")
}

/// An artifact as a resource.
pub(super) fn resource(artifact: &ArtifactRef) -> Resource {
    let name = artifact.name.as_deref().unwrap_or(&artifact.artifact_id);
    let mut resource = Resource::new(artifact_uri(&artifact.artifact_id), name).with_mime_type(&artifact.media_type);
    resource.size = artifact.size;
    resource
}

/// The content of a message, for a client of MCP.
pub(super) fn content(parts: &[ContentPart]) -> Vec<ContentBlock> {
    let block = |part: &ContentPart| match part {
        ContentPart::Text(text) => ContentBlock::text(text),
        ContentPart::Artifact(artifact) => ContentBlock::resource_link(resource(artifact)),
        ContentPart::Other(value) => ContentBlock::text(value.to_string()),
    };
    parts.iter().map(block).collect()
}

/// Structured content is an object.
fn structured(value: Value) -> Value {
    if value.is_object() { value } else { json!({ "result": value }) }
}

/// The answer of a granted tool.
pub(super) fn of_tool(output: ToolOutput) -> CallToolResult {
    let ToolOutput { content: parts, structured: value, is_error } = output;
    let mut result = CallToolResult::success(content(&parts));
    result.structured_content = value.map(structured);
    result.is_error = Some(is_error);
    result
}

/// The answer of a function of the host: the object, also as text for clients that show text alone.
pub(super) fn of_function(answer: Map<String, Value>) -> CallToolResult {
    let answer = Value::Object(answer);
    with_text(answer.to_string(), answer)
}

/// A text with its structured content.
pub(super) fn with_text(text: impl Into<String>, answer: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(answer);
    result
}

/// A refusal as the result of a tool.
pub(super) fn of_refusal(refusal: &ApiError) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(&refusal.message)]);
    result.structured_content = Some(json!({ "error": refusal }));
    result
}

/// A call that has no result: the claim has ended.
pub(super) fn lost(message: String) -> ErrorData {
    ErrorData::new(ENDED, message, Some(json!({ "code": "claim_lost" })))
}

/// A request that the client has withdrawn. Nobody waits for the answer.
pub(super) fn withdrawn() -> ErrorData {
    ErrorData::new(ENDED, "the client has cancelled the request", Some(json!({ "code": "cancelled" })))
}

/// A refusal as an error of the protocol.
pub(super) fn protocol_error(refusal: &ApiError) -> ErrorData {
    let data = serde_json::to_value(refusal).ok();
    match refusal.code.as_str() {
        "runtime_error" | "internal" => ErrorData::internal_error(refusal.message.clone(), data),
        _ => ErrorData::invalid_params(refusal.message.clone(), data),
    }
}

/// A call that has failed, as an error of the protocol.
pub(super) fn failed(error: CallError) -> ErrorData {
    match error {
        CallError::Refused(refusal) => protocol_error(&refusal),
        CallError::Lost(error) => lost(error.to_string()),
        CallError::Unknown(message) => ErrorData::invalid_params(message, Some(json!({ "code": "not_found" }))),
        other => {
            tracing::error!(error = ?other, "a call over MCP failed");
            ErrorData::internal_error("the host failed in this call; its log has the reason", None)
        }
    }
}

/// A call that has failed, as the result of its tool where it has one.
pub(super) fn failure(error: CallError) -> Result<CallToolResult, ErrorData> {
    match error {
        CallError::Refused(refusal) => Ok(of_refusal(&refusal)),
        other => Err(failed(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_code_of_the_host() {
        let refusal = ApiError::invalid_argument("no");
        let result = of_refusal(&refusal);
        assert_eq!(result.is_error, Some(true));
        assert_eq!(result.structured_content.unwrap()["error"]["code"], "invalid_argument");
        assert_eq!(protocol_error(&refusal).data.unwrap()["code"], "invalid_argument");
        assert_eq!(lost("gone".to_owned()).data.unwrap()["code"], "claim_lost");
    }

    #[test]
    fn structured_content_is_an_object() {
        let output = |value| ToolOutput { content: Vec::new(), structured: Some(value), is_error: false };
        assert_eq!(of_tool(output(json!([1]))).structured_content, Some(json!({ "result": [1] })));
        assert_eq!(of_tool(output(json!({ "a": 1 }))).structured_content, Some(json!({ "a": 1 })));
    }
}
