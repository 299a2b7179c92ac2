//! Entry points for fuzzing (`tests/fuzz`): readers of what services and files say, given bytes.
//!
//! The functions make no claim about the bytes. What must hold is asserted by the targets.

use agent_host_config::ProviderKind;
use agent_host_protocol::{ApiError, model::ModelChunk};

use crate::{
    knowledge, models,
    tools::{self, ToolResult},
};

/// The text of a document whose file has this name, read on this thread.
///
/// # Errors
/// Fails for a document that cannot be read, with the reason.
pub fn document_text(bytes: &[u8], name: &str) -> Result<String, String> {
    knowledge::document_text(bytes, name)
}

/// The results of tools in the standard output of an MCP server, with lines and answers of at most `max_bytes`.
pub async fn tool_results(output: &[u8], max_bytes: usize) -> Vec<Result<ToolResult, ApiError>> {
    tools::results_in(output, max_bytes).await
}

/// The chunks of an answer that a model of this provider has streamed, in the pieces in which it arrived.
///
/// # Errors
/// Fails as a call of the model does.
pub fn model_chunks(provider: ProviderKind, pieces: &[&[u8]], max_bytes: usize) -> Result<Vec<ModelChunk>, ApiError> {
    models::chunks_in(provider, pieces, max_bytes)
}
